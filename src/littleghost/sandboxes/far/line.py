"""The near end of the line to a worker or a service: questions out, answers back, many at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from littleghost.cancellation import Interruptible
from littleghost.errors import LittleGhostError, ToolConnectionError, ToolValueError
from littleghost.sandboxes.far.wire import GREETING, MOST, Frame, Frames, error_of, frame

__all__ = ["DROPPING", "Line", "PipeTransport", "Transport", "whole"]

T = TypeVar("T")

_LOOP_ENDED = (
    "the event loop that the sandbox was opened in has ended; open one in each, or keep that one running"
)
_GRACE = 40.0  # seconds for what was withdrawn to be over; the far half gives up sooner
DROPPING = 60.0
"""Seconds for a program to be ended; after that its far half is lost, which nobody who cancels is to wait for."""
_ASKING = 0.1  # seconds between two looks at a caller's context
_HEAD = 1 << 16  # bytes of an answer that nobody counts
_CHUNK = 1 << 18


class Transport(ABC):
    """Bytes to the other half and back."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send a whole frame, waiting while the other half does not read.

        Raises:
            OSError: The line is broken.
        """

    @abstractmethod
    async def receive(self) -> bytes:
        """Return what comes next, ``b""`` when nothing will."""

    @abstractmethod
    async def close(self) -> None:
        """Break the line. Closing twice does nothing."""

    async def last_words(self) -> bytes:
        """Return the end of what the other half said elsewhere than on the line, such as its standard error."""
        return b""


class PipeTransport(Transport):
    """A line over the pipes of a process: of `asyncio`, or anything like it.

    Args:
        reader: Its standard output.
        writer: Its standard input.
        errors: Its standard error, of which the end is kept.
        end: Called when the line is to be closed, after its input.
    """

    def __init__(self, reader: Any, writer: Any, errors: Any, end: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._writer, self._end = reader, writer, end
        self._words = b""
        self._closed = False
        self._listening = asyncio.get_running_loop().create_task(
            self._listen(errors), name="littleghost-words"
        )

    async def _listen(self, errors: Any) -> None:
        with suppress(OSError, ValueError):
            while data := await errors.read(4096):
                self._words = (self._words + data)[-4096:]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK)
        except OSError:
            return b""

    async def last_words(self) -> bytes:
        await asyncio.wait([self._listening], timeout=1.0)
        return self._words

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._writer.close()
        try:
            await self._end()
        finally:
            self._listening.cancel()


class _Question:
    """A question that waits for its answer."""

    def __init__(self, said: bytes, room: int, heads: int, seen: set[int]) -> None:
        self.said, self.room, self.heads, self.seen = said, room, heads, seen
        self.answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.withdrawn = False


class Line:
    """Asks, over a transport, and matches the answers.

    Questions go out in the order of their numbers, also over another transport, so that the other half can tell one that comes again.

    Args:
        transport: The transport. It is closed with the line.
        held: What has come over it already.
        reopen: Returns another transport to the same sandbox where this one broke, or raises. Open questions are then asked again.

    Attributes:
        most: How many bytes a question may have.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        held: bytes = b"",
        reopen: Callable[[], Awaitable[tuple[Transport, bytes]]] | None = None,
    ) -> None:
        self._transport, self._held, self._reopen = transport, held, reopen
        self.most = MOST
        self._open: dict[int, _Question] = {}
        self._next = GREETING
        self._seen: set[int] = set()  # the answers that the other half need not keep, and does not know of
        # Whether open questions are about to be asked again, with those that come meanwhile.
        self._mending = False
        self._asking_again: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Future[Frame]] = set()
        self._lost: LittleGhostError | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._listening = self._loop.create_task(self._listen(), name="littleghost-line")

    @property
    def lost(self) -> LittleGhostError | None:
        """Why nothing can be asked any more, or ``None``."""
        return self._lost

    async def ask(
        self,
        head: dict[str, Any],
        data: bytes = b"",
        *,
        room: int = 0,
        heads: int = 0,
        context: Interruptible | None = None,
        patience: float | None = None,
    ) -> Frame:
        """Return the answer. It may be asked for in another event loop than the line's, as long as that one runs.

        When the caller is cancelled, or ``context`` says stop, the question is withdrawn, and this returns or raises when the other half
        is done with it. What was done by then is answered all the same.

        Args:
            head: What is asked.
            data: The bytes that go with it.
            room: How many bytes the answer may have.
            heads: How many of them its head may have, beyond what an answer without a list takes.
            context: Who asks.
            patience: Seconds after which a far half that has not answered is taken for lost, and the line with it; ``None`` for no end.

        Raises:
            ToolConnectionError: The line broke.
            LittleGhostError: What the other half raised.
            RunCancelled: ``context`` was cancelled, and nothing was done.
            DeadlineExceeded: The same for the deadline.
        """
        if context is not None:
            context.check()
        if self._lost is not None:
            raise self._lost
        if asyncio.get_running_loop() is not self._loop:
            elsewhere = self.ask(head, data, room=room, heads=heads, context=context, patience=patience)
            return await _in(self._loop, elsewhere)
        number, seen = self._next, self._seen
        said = frame(number, {**head, "seen": sorted(seen)} if seen else head, data)
        if len(said) > self.most:
            raise ToolValueError(f"more than {self.most:,} bytes cannot be sent to this sandbox at once")
        self._next, self._seen = number + 1, set()
        question = self._open[number] = _Question(said, room, heads, seen)
        try:
            sending = asyncio.ensure_future(self._say(question))
            with ExitStack() as release:
                if patience is not None:
                    release.callback(self._loop.call_later(patience, self._give_up, question.answer).cancel)
                if context is not None:
                    self._watch(number, question, context, release)
                try:
                    await asyncio.wait([sending, question.answer], return_when=asyncio.FIRST_COMPLETED)
                    answer = await asyncio.shield(question.answer)
                except asyncio.CancelledError:
                    self._withdraw(number, question)
                    await _settled(question.answer)
                    raise
        finally:
            self._open.pop(number, None)
            answered = question.answer.done() and question.answer.exception() is None
            self._seen |= {number} if answered else question.seen  # else nobody knows whether it arrived
        if "error" in answer.head:
            raise error_of(answer.head["error"])
        if answer.head.get("cancelled"):
            if context is not None:
                context.check()
            raise ToolConnectionError("the other side of the sandbox ended what was asked for")
        return answer

    def _watch(self, number: int, question: _Question, context: Interruptible, release: ExitStack) -> None:
        """Withdraw the question when its caller's context says stop."""
        loop = self._loop

        def stop() -> None:
            self._withdraw(number, question)

        def stop_threadsafe() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(stop)

        def look() -> None:
            nonlocal timer
            try:
                context.check()
            except LittleGhostError:
                stop()
            else:
                remaining = _ASKING if context.deadline is None else context.deadline.remaining()
                timer = loop.call_later(min(_ASKING, remaining + 0.001), look)

        def quiet() -> None:
            timer.cancel()

        timer = loop.call_later(_ASKING, look)
        release.callback(quiet)
        release.callback(context.cancellation.add_callback(stop_threadsafe))

    def _withdraw(self, number: int, question: _Question) -> None:
        if not question.withdrawn and not question.answer.done():
            question.withdrawn = True
            task = asyncio.ensure_future(self._send(frame(number, {"cancel": True})))
            timer = self._loop.call_later(_GRACE, self._give_up, question.answer)
            question.answer.add_done_callback(lambda _: (timer.cancel(), task))  # which keeps the task alive

    def give_up(self, awaited: asyncio.Future[Any]) -> None:
        """Take the far half for lost, from any thread, unless what was awaited has come."""
        with suppress(RuntimeError):  # the line's own loop has ended, and with it the far half
            self._loop.call_soon_threadsafe(self._give_up, awaited)

    def _give_up(self, awaited: asyncio.Future[Any]) -> None:
        """Take the far half for lost: it does not answer. What it runs ends with the line, unless it is hostile."""
        if awaited.done() or self._lost is not None:
            return
        if self._mending:  # which has an end of its own
            self._loop.call_later(_GRACE, self._give_up, awaited)
            return
        self._end(ToolConnectionError("the other side of the sandbox does not answer"))
        self._giving_up = asyncio.ensure_future(self._transport.close())

    async def _say(self, question: _Question) -> None:
        if not self._mending:
            await self._send(question.said)

    async def _send(self, said: bytes) -> None:
        with suppress(OSError):  # whoever listens finds out
            await self._transport.send(said)

    def _room(self, number: int) -> int:
        question = self._open.get(number)
        if question is None:
            return self._uncalled(number)
        return question.room + _HEAD

    def _heads(self, number: int) -> int:
        question = self._open.get(number)
        return self._uncalled(number) if question is None else question.heads + _HEAD

    def _uncalled(self, number: int) -> int:
        """Return how many bytes may come that nobody waits for: signs of life, and answers again where the line was lost in between."""
        if self._reopen is None:
            return _HEAD if number == GREETING else 0
        return MOST if number < self._next else 0

    async def _listen(self) -> None:
        why: LittleGhostError | None = None
        try:
            while True:
                why = await self._heard()
                if self._reopen is None or self._closing or why is not None or self._lost is not None:
                    break
                self._mending = True
                self._transport, self._held = await self._reopen()
                if self._asking_again is not None:
                    self._asking_again.cancel()
                # In a task, for the other half may not listen before somebody hears its answers.
                self._asking_again = asyncio.ensure_future(self._ask_again(self._transport))
        except LittleGhostError as error:
            why = error
        except asyncio.CancelledError:
            why = None if self._closing else ToolConnectionError(_LOOP_ENDED)
            raise
        finally:
            if self._asking_again is not None:
                self._asking_again.cancel()
            self._end(why)

    async def _ask_again(self, transport: Transport) -> None:
        last = GREETING - 1
        with suppress(OSError):  # whoever listens finds out
            while open_ones := [number for number in self._open if number > last]:
                last = min(open_ones)
                question = self._open[last]
                if question.answer.done():
                    continue
                await transport.send(question.said)
                if question.withdrawn:
                    await transport.send(frame(last, {"cancel": True}))
            self._mending = False

    async def _heard(self) -> LittleGhostError | None:
        """Match answers until the transport ends; return what is wrong with it, where something is."""
        frames = Frames(self._room, heads=self._heads)
        data, self._held = self._held, b""
        while True:
            try:
                answers = frames.add(data) if data else []
            except ToolConnectionError as error:
                return error
            for answer in answers:
                question = self._open.get(answer.number)
                if question is None:
                    self._seen.add(answer.number)
                elif not question.answer.done():
                    question.answer.set_result(answer)
            data = await self._transport.receive()
            if not data:
                return None

    def _end(self, why: LittleGhostError | None) -> None:
        if self._lost is None:
            self._lost = why or ToolConnectionError(
                "the sandbox is closed" if self._closing else "the connection to the sandbox was lost"
            )
        for question in self._open.values():
            if not question.answer.done():
                question.answer.set_exception(self._lost)
                question.answer.exception()  # whoever waited may be gone

    def drop(self, process: int) -> None:
        """Have a program on the far side ended, from any thread, and do not wait for it."""

        def begin() -> None:
            dropping = asyncio.ensure_future(
                self.ask({"do": "drop", "with": {"process": process}}, patience=DROPPING)
            )
            self._dropping.add(dropping)
            dropping.add_done_callback(dropped)

        def dropped(dropping: asyncio.Future[Frame]) -> None:
            self._dropping.discard(dropping)
            if not dropping.cancelled():
                dropping.exception()

        with suppress(RuntimeError):  # the line's own loop has ended, and with it the far half
            self._loop.call_soon_threadsafe(begin)

    async def close(self) -> None:
        """Break the line; open questions fail."""
        if asyncio.get_running_loop() is not self._loop:
            with suppress(ToolConnectionError):  # with its event loop, its pipes are gone too
                await _in(self._loop, self.close())
            return
        self._closing = True
        transport = self._transport
        try:
            await transport.close()
        finally:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._end(None)
            if self._transport is not transport:  # it had just been laid again
                await self._transport.close()


async def whole(work: Awaitable[T]) -> T:
    """Await something to its end, also where the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


async def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Return what comes of ``work`` in another event loop."""
    try:
        if not loop.is_running():
            raise RuntimeError
        elsewhere = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise ToolConnectionError(_LOOP_ENDED) from None
    return await asyncio.wrap_future(elsewhere)


async def _settled(answer: asyncio.Future[Frame]) -> None:
    """Wait until the other half is done, however often this task is cancelled meanwhile, but not for ever."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _GRACE
    while not answer.done() and loop.time() < end:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([answer], timeout=end - loop.time())
    if answer.done() and not answer.cancelled():
        answer.exception()
