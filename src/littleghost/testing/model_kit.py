"""The conformance kit for models.

Three lines try a model of your own against a server of the kit that speaks its format::

    from littleghost.testing import ChatDialect, check_model

    report = await check_model(lambda url, **options: MyModel(url, **options), ChatDialect)
    report.raise_for_failures()

The maker is given the URL of a server and these options, and returns a model that asks it: ``key``, the secret to sign in with;
``retries``, how often a failed call is made again; and, only where a clause is about them, ``timeout``, seconds of silence
after which an attempt has failed, ``settings``, and ``keep_signatures`` for a model with that capability. The server speaks the
format of a `Dialect`, refuses what the provider refuses, and does to its streams what networks and servers do: it cuts, delays,
doubles and garbles them.

In a test suite, one test a clause::

    @pytest.mark.parametrize("clause", model_clauses(), ids=lambda clause: clause.name)
    async def test_my_model(clause):
        await clause.run(Subject(make, ChatDialect))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from littleghost.models.contract import Model
from littleghost.testing import (
    model_answers,
    model_failures,
    model_requests,
    model_streams,
    model_turns,
)
from littleghost.testing.conformance import Clause, Report, run_clauses
from littleghost.testing.model_dialect import Dialect
from littleghost.testing.model_trial import KEY, Subject

__all__ = ["MODEL_CLAUSES", "Subject", "check_model", "model_clauses", "model_offers"]

MODEL_CLAUSES: tuple[Clause, ...] = (
    *model_answers.CLAUSES,
    *model_streams.CLAUSES,
    *model_failures.CLAUSES,
    *model_requests.CLAUSES,
    *model_turns.CLAUSES,
)
"""Every clause of the contract that can be tried against a server."""


def model_clauses() -> tuple[Clause, ...]:
    """Return the clauses, for one test each."""
    return MODEL_CLAUSES


def model_offers(subject: Subject) -> frozenset[str]:
    """Return what a model says it can, and what its format has; a clause that needs more does not apply."""
    model = subject.make("http://127.0.0.1:9", key=KEY, retries=0)
    return model.capabilities | subject.dialect().features


async def check_model(
    make: Callable[..., Model],
    dialect: Callable[[], Dialect],
    *,
    capabilities: Iterable[str] | None = None,
    only: Iterable[str] | None = None,
    seconds: float | None = None,
) -> Report:
    """Try every clause that applies to what ``make`` makes, and report.

    Args:
        make: ``make(url, *, key, retries, …)`` returns a new model.
        dialect: The class of its format.
        capabilities: What to try, instead of what the model and the format offer.
        only: The names of the clauses to try; all by default.
        seconds: The limit of a clause.

    Raises:
        ValueError: ``only`` names a clause that there is not.
    """
    subject = Subject(make, dialect)
    clauses = MODEL_CLAUSES
    if only is not None:
        wanted = set(only)
        clauses = tuple(one for one in MODEL_CLAUSES if one.name in wanted)
        if unknown := wanted - {one.name for one in clauses}:
            raise ValueError(f"there is no clause called {', '.join(sorted(unknown))}")
    offered = model_offers(subject) if capabilities is None else capabilities
    name = type(make("http://127.0.0.1:9", key=KEY, retries=0)).__name__
    return await run_clauses(clauses, subject, offered, subject=name, seconds=seconds)
