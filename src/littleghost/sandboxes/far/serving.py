"""The far half: it answers one client's requests with a sandbox."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from littleghost.errors import CapabilityError, ToolError, ToolValueError
from littleghost.sandboxes.contract import Process, Sandbox, SandboxLimits
from littleghost.sandboxes.far.wire import (
    PROTOCOL,
    Frame,
    bytes_of,
    error_said,
    fields_of,
    frame,
    mapping,
    text_of,
)

__all__ = ["Served", "welcome"]

Answer = tuple[Any, bytes]
Send = Callable[[bytes], Awaitable[None]]

_BOUNDS = ("temporary_bytes", "memory_bytes", "processes", "cpu_seconds", "file_bytes", "disk_bytes")
_SCOPES = 256  # that are kept made
_ENDS = ("end_input", "signal", "drop", "close")
_SMALL = 100_000  # what a question that ends something may weigh, however much waits
_KEPT = 10_000  # characters of a scope that is kept made
_DEEPEST = 64  # scopes of scopes
_MOST_HEARD = 1 << 20  # bytes that are read at once
_ENDING = 5.0  # seconds for a program that is dead to be over


def welcome(sandbox: Sandbox) -> dict[str, Any]:
    """Return what a client is told of the sandbox it got, which is open: what it offers, enforces and refuses."""
    refused: dict[str, str] = {}
    for name in _BOUNDS if "scope" in sandbox.capabilities else ():
        try:
            sandbox.scope(limits=SandboxLimits(**{name: 1}))
        except CapabilityError as error:
            refused[name] = str(error)
    return {
        "protocol": PROTOCOL,
        "capabilities": sorted(sandbox.capabilities),
        "in force": fields_of(sandbox.effective_policy),
        "limits": fields_of(sandbox.limits),
        "refused": refused,
    }


class Served:
    """Answers the questions of one client.

    A question that comes again, because its client lost the line before the answer, is not done again: it gets the answer it had, or
    waits for it. An answer is kept until a later question says that it has been seen. New questions have rising numbers.

    Args:
        sandbox: What to answer with. It is open, and whoever opened it closes it, after this.
        keep: Whether the client may come again.
        questions: How many may be open at a time.
        programs: How many programs may run at a time.
        waiting: How many bytes questions that are open, by what they take in memory, and answers that are kept may have together before
            another is refused.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        keep: bool = False,
        questions: int = 256,
        programs: int = 64,
        waiting: int | None = None,
    ) -> None:
        self._sandbox, self._keep = sandbox, keep
        self._most_questions, self._most_programs, self._most_waiting = questions, programs, waiting
        self._scopes: dict[str, Sandbox] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: dict[int, bytes] = {}
        self._repeating: set[asyncio.Task[None]] = set()
        self._highest = 0
        self._waiting = 0
        self._programs = 0  # that begin, or run to their end
        self._started: dict[int, _Started] = {}
        self._send: Send | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether nothing runs, and nobody has to come again for an answer."""
        return not (self._running or self._started or (self._answers and self._send is None))

    def attach(self, send: Send | None) -> None:
        """Let answers go out through ``send`` from now on; ``None`` where the line is lost."""
        self._send = send

    async def take(self, question: Frame) -> None:
        """Begin to answer a question, or withdraw it."""
        number, head = question.number, question.head
        if head.get("cancel"):
            if number in self._running:  # not before it has begun, else nobody would answer
                asyncio.get_running_loop().call_soon(self._running[number].cancel)
            return
        seen = head.get("seen")
        for known in cast("list[Any]", seen) if isinstance(seen, list) else ():
            if isinstance(known, int):
                self._waiting -= len(self._answers.pop(known, b""))
        if number in self._answers:
            await self._repeat(self._answers[number])
        elif number in self._running or self._closed:
            return
        elif number <= self._highest:
            await self._refuse(number, "what was asked for before cannot be answered any more")
        else:
            self._highest = number
            if (why := self._refusal(question)) is not None:
                await self._refuse(number, why)
            else:
                self._waiting += question.weight
                task = asyncio.get_running_loop().create_task(
                    self._answer(question), name="littleghost-request"
                )
                self._running[number] = task

    def _refusal(self, question: Frame) -> str | None:
        """Return why a question is one too many, or ``None``. What ends something else is not, unless nobody hears the answers."""
        ends = question.head.get("do") in _ENDS
        if len(self._answers) >= 4 * self._most_questions or (
            len(self._running) >= self._most_questions * (2 if ends else 1)
        ):
            return f"too many requests at once; {self._most_questions} may be open"
        return self._no_room(question, question.weight)

    def _no_room(self, question: Frame, more: int = 0) -> str | None:
        """Return why nothing can be done that has so many bytes more, or ``None``."""
        most = self._most_waiting
        small = question.head.get("do") in _ENDS and more < _SMALL
        if most is None or self._waiting + more <= most or small:
            return None
        return f"too much at once; what is open may have {most:,} bytes"

    async def _refuse(self, number: int, why: str) -> None:
        await self._repeat(frame(number, {"error": error_said(ToolError(why))}))

    async def _repeat(self, answer: bytes) -> None:
        """Say something without waiting for a client that sends on before it listens; but not without end."""
        task = asyncio.get_running_loop().create_task(self._say(answer), name="littleghost-answer")
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)
        if len(self._repeating) > 4 * self._most_questions:
            await asyncio.wait(self._repeating, return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, question: Frame) -> None:
        number = question.number
        try:
            value, data = await self._done(question)
            answer = frame(number, {"is": value}, data)
        except asyncio.CancelledError:
            answer = frame(number, {"cancelled": True})
        except Exception as error:  # noqa: BLE001 (whoever asked is told)
            answer = frame(number, {"error": error_said(error)})
        self._waiting -= question.weight
        if self._keep:
            self._answers[number] = answer
            self._waiting += len(answer)
        try:
            await self._say(answer)
        finally:
            self._running.pop(number, None)

    async def _say(self, answer: bytes) -> None:
        if self._send is not None:
            with suppress(OSError, asyncio.CancelledError):  # the client asks again, or is gone
                await self._send(answer)

    async def _done(self, question: Frame) -> Answer:
        if (why := self._no_room(question)) is not None:  # since it was taken, others have been answered
            raise ToolError(why)
        head = question.head
        name, given = head.get("do"), mapping(head.get("with", {}))
        shape = _OPERATIONS.get(name) if isinstance(name, str) else None
        if shape is None or given is None:
            raise ToolValueError("the sandbox was asked for something it does not know")
        for key, value in given.items():
            if key not in shape or not _fits(value, shape[key]):
                raise ToolValueError(f"the sandbox was asked for something with a wrong {key[:40]}")
        do: Callable[[Sandbox, dict[str, Any], bytes], Awaitable[Answer]] = getattr(self, f"_{name}")
        return await do(self._view(head.get("in", [])), given, question.data)

    def _view(self, chain: Any) -> Sandbox:
        """Return the sandbox, or the scope of a scope … of it."""
        if not chain:
            return self._sandbox
        if not isinstance(chain, list) or len(cast("list[Any]", chain)) > _DEEPEST:
            raise ToolValueError(_NO_SCOPE)
        steps = [mapping(step) for step in cast("list[Any]", chain)]
        key = json.dumps(steps, sort_keys=True)
        view = self._scopes.get(key)
        if view is None:
            view = self._sandbox
            for step in steps:
                view = view.scope(**_scope(step))
            if len(self._scopes) >= _SCOPES:
                self._scopes.clear()
            if len(key) <= _KEPT:
                self._scopes[key] = view
        return view

    # What can be asked for. Each takes the view, what was given by name, and the bytes.

    async def _read(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return None, bytes_of(await view.read(given["path"], **_part(given)))

    async def _read_bytes(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return None, await view.read_bytes(given["path"], **_part(given))

    async def _list(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await view.list(given["path"]), b""

    async def _stat(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return fields_of(await view.stat(given["path"])), b""

    async def _write(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await view.write(given["path"], text_of(data)), b""

    async def _write_bytes(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await view.write_bytes(given["path"], data), b""

    async def _replace(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        at = given["old"]
        return await view.replace(given["path"], text_of(data[:at]), text_of(data[at:])), b""

    async def _delete(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await view.delete(given["path"]), b""

    async def _move(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await view.move(given["path"], given["target"]), b""

    async def _make_directory(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await view.make_directory(given["path"]), b""

    async def _glob(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        pattern, options = given.pop("pattern"), given
        found = await view.glob(pattern, **options)
        return {"items": list(found), "truncated": found.truncated, "skipped": found.skipped}, b""

    async def _grep(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        pattern, options = given.pop("pattern"), given
        found = await view.grep(pattern, **options)
        items = [fields_of(match) for match in found]
        return {"items": items, "truncated": found.truncated, "skipped": found.skipped}, b""

    async def _execute(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        has_input, timeout = given.pop("input", False), given.pop("timeout", None)
        with self._program():
            execution = await view.execute_program(
                given.pop("command"), timeout=timeout, input=data if has_input else None, **given
            )
        fields = fields_of(execution)
        stdout, stderr = bytes_of(fields.pop("stdout")), bytes_of(fields.pop("stderr"))
        return {**fields, "stdout": len(stdout)}, stdout + stderr

    async def _start(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        number = given.pop("process")
        if number in self._started:
            raise ToolValueError("the sandbox was asked for a program it has already")
        with self._program():
            process = await view.start_program(given.pop("command"), **given)
        if self._closed or number in self._started:
            await process.close()
            raise ToolError("the sandbox is closed")
        self._started[number] = _Started(process)
        return None, b""

    @contextmanager
    def _program(self) -> Generator[None]:
        if self._programs + len(self._started) >= self._most_programs:
            raise ToolError(f"too many programs at once; {self._most_programs} may run")
        self._programs += 1
        try:
            yield
        finally:
            self._programs -= 1

    async def _tell(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await self._process(given).process.write(data), b""

    async def _end_input(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        return await self._process(given).process.close_input(), b""

    async def _hear(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        process = self._process(given).process
        return None, await (process.read_error if given["errors"] else process.read)(
            min(given["limit"], _MOST_HEARD)
        )

    async def _wait(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        started = self._process(given)
        code = await asyncio.shield(started.over)
        return {"code": code, "error": started.process.error}, b""

    async def _signal(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        started = self._process(given)
        over = started.over.done()
        await (started.process.kill if given["kill"] else started.process.terminate)()
        return {"over": over}, b""

    async def _drop(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        started = self._started.pop(given["process"], None)
        if started is not None:
            await started.close()
        return None, b""

    async def _close(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        await self._sandbox.close()  # what runs is ended by this, and answered
        return None, b""

    def _process(self, given: dict[str, Any]) -> _Started:
        started = self._started.get(given["process"])
        if started is None:
            raise ToolError("the process is closed")
        return started

    async def close(self) -> None:
        """End whatever runs, and wait until it has ended."""
        self._closed, self._send = True, None
        running = [*self._running.values(), *self._repeating]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        started = list(self._started.values())
        self._started.clear()
        await asyncio.gather(*(each.close() for each in started), return_exceptions=True)


class _Started:
    """A program that a client talks to."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.over = asyncio.get_running_loop().create_task(process.wait(), name="littleghost-process")
        self.over.add_done_callback(_heard)

    async def close(self) -> None:
        """End it."""
        try:
            await self.process.close()
            await asyncio.wait([self.over], timeout=_ENDING)
        finally:
            self.over.cancel()


def _heard(task: asyncio.Task[int]) -> None:
    if not task.cancelled():
        task.exception()


def _part(given: dict[str, Any]) -> dict[str, Any]:
    """Return which part of a file is asked for. One that has no parts is not asked for one."""
    return {name: given[name] for name in ("offset", "limit") if given.get(name)} | (
        {"limit": 0} if given.get("limit") == 0 else {}
    )


def _scope(step: dict[str, Any] | None) -> dict[str, Any]:
    if step is None or any(name not in _SCOPE or not _fits(step[name], _SCOPE[name]) for name in step):
        raise ToolValueError(_NO_SCOPE)
    limits = step.get("limits")
    return step if limits is None else {**step, "limits": limits_of(limits)}


def limits_of(said: Mapping[str, Any]) -> SandboxLimits:
    """Return limits that came over the line.

    Raises:
        ToolValueError: They are none.
    """
    known = SandboxLimits.__struct_fields__
    if any(name not in known for name in said):
        raise ToolValueError("the sandbox was asked for limits that it does not know")
    return SandboxLimits(**{name: value for name, value in said.items() if value is not None})


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind)


_NONE = type(None)
_COUNT = (int, _NONE)
_LIST = (list, _NONE)
_DICT = (dict, _NONE)
_TEXT = (str, _NONE)
_SECONDS = (int, float, _NONE)
_NO_SCOPE = "the sandbox was asked for a scope that is none"
_SCOPE = {"read_only": bool, "path": _TEXT, "paths": _LIST, "execute": bool, "limits": _DICT}
_SEARCH = {"pattern": str, "path": str, "hidden": bool, "limit": _COUNT}
_PROGRAM = {"command": list, "environment": _DICT, "cwd": _TEXT}
_OPERATIONS: dict[str, dict[str, Any]] = {
    "read": {"path": str, "offset": int, "limit": _COUNT},
    "read_bytes": {"path": str, "offset": int, "limit": _COUNT},
    "list": {"path": str},
    "stat": {"path": str},
    "write": {"path": str},
    "write_bytes": {"path": str},
    "replace": {"path": str, "old": int},
    "delete": {"path": str},
    "move": {"path": str, "target": str},
    "make_directory": {"path": str},
    "glob": _SEARCH,
    "grep": {**_SEARCH, "glob": _TEXT},
    "execute": {**_PROGRAM, "timeout": _SECONDS, "max_output_bytes": int, "input": bool},
    "start": {**_PROGRAM, "process": int},
    "tell": {"process": int},
    "end_input": {"process": int},
    "hear": {"process": int, "errors": bool, "limit": int},
    "wait": {"process": int},
    "signal": {"process": int, "kill": bool},
    "drop": {"process": int},
    "close": {},
}
"""What can be asked for, each with a method of `Served`, and which values may be given by name."""
