"""From a request to an answer: no sockets, no threads, no HTTP library."""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from littleghost.emulators.agentcore.faults import CONNECTION_FAULTS, Fault, Faults, refusal_of
from littleghost.emulators.agentcore.model import ServiceModel, parse_body
from littleghost.emulators.agentcore.operations import Operations
from littleghost.emulators.agentcore.quotas import Quotas
from littleghost.emulators.agentcore.recording import Call
from littleghost.emulators.agentcore.refusals import Refusal

__all__ = ["Answer", "Core"]

logger = logging.getLogger(__name__)

SLOW = 1.0
TIMEOUT = 65.0

_CALLER = re.compile(r"Credential=([^/,\s]+)/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What goes back, and what becomes of it on its way.

    Attributes:
        status: The HTTP status.
        headers: The headers, without those of the transport.
        body: The body.
        delay: Seconds to wait before it is sent.
        broken: ``reset``, ``timeout`` or ``truncated`` where it does not arrive whole.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    delay: float = 0.0
    broken: str | None = None


class Core:
    """The emulator without a transport. It may be called by any number of threads.

    Args:
        model: The operations.
        operations: What they do.
        quotas: Their rates, or ``None``.
        clock: Seconds since the epoch.
        random: What decides about faults with a probability.
        record: Whether calls are kept.
        on_call: Called with each call when it is answered, or ``None``.
    """

    def __init__(
        self,
        *,
        model: ServiceModel,
        operations: Operations,
        quotas: Quotas | None,
        clock: Callable[[], float],
        random: random.Random,
        record: bool,
        on_call: Callable[[Call], None] | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.operations = operations
        self.faults = Faults(random)
        self.calls: list[Call] = []
        self._model = model
        self._quotas = quotas
        self._clock = clock
        self._record = record
        self._on_call = on_call

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> Answer:
        """Answer one request.

        Args:
            method: The HTTP method.
            path: The path as it was sent, percent-encoded.
            authorization: The header of that name; the signature in it is not looked at.
            body: The body.
        """
        found = _CALLER.search(authorization)
        call = Call(
            operation="",
            params={},
            caller=found[1] if found else "",
            at=self._clock(),
            request_id=str(uuid.uuid4()),
        )
        fault: Fault | None = None
        try:
            operation, labels = self._model.find(method, path)
            call.operation = operation.name
            call.params = labels
            params: dict[str, Any] = {**parse_body(body), **labels}
            call.params = params
            with self.lock:
                fault = self.faults.choose(call)
                if fault is not None:
                    call.fault = fault.kind
                    _fail_before(fault)
                if self._quotas is not None:
                    self._quotas.take(operation.name, params, call.at)
            operation.validate(params)
            with self.lock:
                answered = self.operations.perform(call, len(body))
            call.committed = True
            error = None if fault is None else refusal_of(fault.kind)
            if error is not None:
                raise error
            answer = _broken(fault, Answer(status=operation.status, body=answered))
        except Refusal as refusal:
            call.error, call.message = refusal.code, refusal.message
            answer = _broken(fault, Answer(status=refusal.status, body=refusal.body()))
        except _Broken as broken:
            answer = broken.answer
        except Exception as error:
            logger.exception("%s %s", method, path)
            call.error = "ServiceException"
            call.message = f"the emulator failed: {type(error).__name__}: {error}"
            answer = Answer(status=500, body=json.dumps({"message": call.message}).encode())
        headers = {"Content-Type": "application/json", "x-amzn-RequestId": call.request_id}
        if call.error:
            headers["x-amzn-ErrorType"] = call.error
        answer = replace(answer, headers=headers)
        call.status = 0 if answer.broken in CONNECTION_FAULTS else answer.status
        if self._record:
            with self.lock:
                self.calls.append(call)
        if self._on_call is not None:
            self._on_call(call)
        return answer


class _Broken(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def _fail_before(fault: Fault) -> None:
    """Raise what befalls a call instead of its work."""
    if fault.kind.endswith("_before"):
        raise _Broken(_broken(fault, Answer(status=0)))
    error = refusal_of(fault.kind)
    if error is not None and not fault.kind.endswith("_after"):
        raise error


def _broken(fault: Fault | None, answer: Answer) -> Answer:
    """Return the answer with what befalls it on its way."""
    if fault is None:
        return answer
    kind = fault.kind.removesuffix("_before").removesuffix("_after")
    if kind == "slow":
        delay = SLOW if fault.delay is None else fault.delay
        return replace(answer, delay=delay)
    if kind == "timeout":
        delay = TIMEOUT if fault.delay is None else fault.delay
        return replace(answer, delay=delay, broken=kind)
    if kind in {"reset", "truncated"}:
        return replace(answer, broken=kind)
    return answer
