"""Clauses about refusals: which error, whether the call is made again and when, and that no error shows a key."""

from __future__ import annotations

import traceback
from typing import Any, cast

from littleghost.errors import (
    ContextOverflowError,
    CredentialError,
    ModelRequestError,
    ModelUnavailableError,
)
from littleghost.events import ModelEnded, Retrying
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.model_dialect import Said
from littleghost.testing.model_trial import KEY, Subject, opened, same

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

HI = Said(text=("Hi",))


@clause(CLAUSES)
async def a_status_that_may_pass_is_asked_again(subject: Subject) -> None:
    """Too many requests, and every failure of the server; in the end it is unavailable, with the status."""
    async with opened(subject) as trial:
        for status in (408, 429, 500, 502, 503, 504, 529):
            trial.server.play(trial.server.error(status), HI)
            events = await trial.hear()
            expect(isinstance(events[0], Retrying), f"HTTP {status} was not asked again")
            same(cast("ModelEnded", events[-1]), HI, f"the answer after HTTP {status}")
    async with opened(subject, retries=0) as trial:
        for status in (429, 500, 503):
            trial.server.play(trial.server.error(status))
            error: Any = await trial.fails(ModelUnavailableError, f"HTTP {status}")
            expect(error.status == status, f"the error of HTTP {status} has the status {error.status}")


@clause(CLAUSES)
async def a_status_that_will_not_pass_ends_the_call(subject: Subject) -> None:
    """A refused request is not sent again, and the error says why in the provider's words."""
    async with opened(subject) as trial:
        for number, status in enumerate((400, 404, 413, 422), 1):
            trial.server.play(trial.server.error(status, "there is no such\nmodel"))
            error: Any = await trial.fails(ModelRequestError, f"HTTP {status}")
            expect(error.status == status, f"the error of HTTP {status} has the status {error.status}")
            expect("there is no such model" in str(error), f"the error does not say why: {error}")
            expect(len(trial.server.requests) == number, f"HTTP {status} was asked again")


@clause(CLAUSES)
async def a_refused_key_is_a_matter_of_credentials(subject: Subject) -> None:
    """Not asked again."""
    async with opened(subject) as trial:
        for number, status in enumerate((401, 403), 1):
            trial.server.play(trial.server.error(status, "who are you"))
            await trial.fails(CredentialError, f"HTTP {status}")
            expect(len(trial.server.requests) == number, f"HTTP {status} was asked again")


@clause(CLAUSES)
async def errors_show_no_key(subject: Subject) -> None:
    """Whatever a server repeats, neither an error nor what caused it has the key in it, and they are short."""
    async with opened(subject, retries=0) as trial:
        for status in (400, 401, 500):
            trial.server.play(trial.server.error(status, f"the key {KEY} is wrong " + "x" * 5000))
            error = await trial.fails(Exception, f"HTTP {status}")  # pyright: ignore[reportArgumentType]
            shown = "".join(traceback.format_exception(error)) + repr(error) + repr(trial.model)
            cause = error.__cause__
            if cause is not None:
                shown += repr(cause) + repr(cause.args) + repr(vars(cause).get("body"))
            expect(KEY not in shown, f"the error of HTTP {status} shows the key")
            expect(len(str(error)) < 600, f"the error of HTTP {status} has {len(str(error))} characters")


@clause(CLAUSES)
async def retry_after_is_obeyed(subject: Subject) -> None:
    """The wait is never shorter than what the server asks for; one that is too long ends the call, and is told."""
    async with opened(subject) as trial:
        trial.server.play(trial.server.error(429, headers={"retry-after": "1"}), HI)
        events = await trial.hear()
        first: Any = events[0]
        expect(isinstance(first, Retrying) and first.delay >= 1, f"asked to wait 1 s, it told {first}")
        trial.server.play(trial.server.error(503, headers={"retry-after": "3600"}))
        error: Any = await trial.fails(ModelUnavailableError, "an hour to wait")
        expect(error.retry_after == 3600, f"the error says to wait {error.retry_after} s")


@clause(CLAUSES)
async def an_overflow_of_the_context_is_told(subject: Subject) -> None:
    """A conversation that does not fit is an error of its own, by which it can be shortened, and is not sent again."""
    async with opened(subject) as trial:
        trial.server.play(trial.server.error(400, "too long", "overflow"))
        error: Any = await trial.fails(ContextOverflowError, "a conversation that is too long")
        expect(error.tokens in (9001, None) and error.limit in (8192, None), f"its numbers are {vars(error)}")
        expect(len(trial.server.requests) == 1, "it was asked again")


@clause(CLAUSES)
async def nobody_listening_is_unavailable(subject: Subject) -> None:
    """A server that is not there may come back."""
    async with opened(subject, retries=0) as trial:
        await trial.server.__aexit__()
        await trial.fails(ModelUnavailableError, "a closed port")
