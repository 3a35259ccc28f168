"""What goes over the line to a sandbox that is somewhere else, and what is made of a line that lies."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import warnings

import pytest
from far import OFFERED, WorkerSandbox
from hypothesis import given
from hypothesis import strategies as st

from littleghost.cancellation import CancellationToken
from littleghost.errors import (
    CapabilityError,
    LittleGhostError,
    PolicyError,
    SessionBusyError,
    ToolConnectionError,
    ToolError,
    ToolFileNotFoundError,
)
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.sandboxes.far import line as far_line
from littleghost.sandboxes.far import sandbox as far_sandbox
from littleghost.sandboxes.far.line import Line, Transport
from littleghost.sandboxes.far.sandbox import FarSandbox
from littleghost.sandboxes.far.serving import Served, welcome
from littleghost.sandboxes.far.wire import (
    GREETING,
    MOST,
    PROTOCOL,
    Frame,
    Frames,
    bytes_of,
    error_of,
    error_said,
    frame,
    text_of,
)
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.policy import EffectivePolicy
from littleghost.testing.sandbox_trial import Caller


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.dictionaries(st.text(), st.text()), st.binary()), max_size=5
    ),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_frames_come_back_however_they_are_cut(said, cuts):
    whole = b"".join(frame(*one) for one in said)
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    frames = Frames(lambda _: MOST)
    found = [
        one
        for start, end in zip(places, [*places[1:], len(whole)], strict=True)
        for one in frames.add(whole[start:end])
    ]
    assert [each[:3] for each in found] == said


@given(st.text(st.characters(codec=None)))
def test_any_text_passes_lone_surrogates_too(text):
    assert text_of(bytes_of(text)) == text
    assert Frames(lambda _: MOST).add(frame(1, {"is": text}))[0].head == {"is": text}


def prefix(length: int, head: int, number: int = 1) -> bytes:
    return struct.pack(">IQI", length, number, head)


@pytest.mark.parametrize(
    "data",
    [
        prefix(3, 4) + b"{}xx",  # a head longer than the whole
        prefix(101, 2) + b"{}",  # larger than was asked for; refused before it has arrived
        prefix(1 << 31, 2),
        prefix(4, 4) + b"nope",
        prefix(2, 2) + b"[]",
        prefix(90, 90) + b"[" * 90,
        prefix(2, 2) + b"\xff\xfe",
    ],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(ToolConnectionError):
        Frames(lambda _: 100).add(data)


def test_errors_come_back_as_what_they_were():
    error = error_of(
        json.loads(json.dumps(error_said(ToolFileNotFoundError("a: not found", path="a", handle=object()))))
    )
    assert type(error) is ToolFileNotFoundError
    assert (str(error), error.path) == ("a: not found", "a")
    assert type(error_of(error_said(PolicyError("no")))) is PolicyError
    told = error_of(error_said(OSError(13, "denied", "/etc/secret")))
    assert type(told) is ToolError
    assert "secret" not in str(told)


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"kind": "Exception"},
        {"kind": "__name__"},
        {"kind": "RunCancelled"},
        {"kind": ["x"], "fields": 3},
        {"kind": "SessionBusyError"},
    ],
)
def test_a_line_makes_no_errors_but_a_sandboxs(said):
    error = error_of(said)
    assert isinstance(error, ToolError)
    assert not isinstance(error, SessionBusyError)


class Scripted(Transport):
    """Answers each question with what a function makes of it."""

    def __init__(self, answer) -> None:
        self.answer, self.out = answer, asyncio.Queue()
        self.frames = Frames(lambda _: MOST)

    async def send(self, data):
        for question in self.frames.add(data):
            if "cancel" not in question.head:
                self.out.put_nowait(self.answer(question))

    async def receive(self):
        return await self.out.get()

    async def close(self):
        self.out.put_nowait(b"")


GREETED = {
    "protocol": PROTOCOL,
    "capabilities": sorted(OFFERED),
    "in force": {"root": "read_write"},
    "refused": {},
}


class Lying(FarSandbox):
    """A sandbox whose far half says what a test wants."""

    def __init__(self, answer, **options) -> None:
        self.lie = answer
        super().__init__("somewhere", writable=True, **options)

    def _offers(self):
        return OFFERED

    def stated(self):
        return EffectivePolicy(root="read_write")

    async def _lay(self):
        def answer(question):
            return frame(GREETING, {"is": GREETED}) if question.number == GREETING else self.lie(question)

        return Scripted(answer), b""


CALLS = {
    "read": lambda sandbox: sandbox.read("a"),
    "read_bytes": lambda sandbox: sandbox.read_bytes("a"),
    "list": lambda sandbox: sandbox.list(),
    "stat": lambda sandbox: sandbox.stat("a"),
    "glob": lambda sandbox: sandbox.glob("*"),
    "grep": lambda sandbox: sandbox.grep("x"),
    "execute": lambda sandbox: sandbox.execute("true", timeout=5),
}
WRONG = (
    {"is": [1, 2]},
    {"is": {"stdout": "x"}},
    {"is": {"items": [3], "truncated": None, "skipped": 0}},
    {"is": "text"},
    {},
)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("read", "read_bytes")])
@pytest.mark.parametrize("head", WRONG, ids=str)
async def test_an_answer_of_another_kind_is_an_error(name, head):
    async with Lying(lambda question: frame(question.number, head)) as sandbox:
        with pytest.raises(ToolConnectionError, match="answered something else"):
            await CALLS[name](sandbox)


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_larger_than_was_asked_for_ends_the_line(name):
    much = bytes(8 << 20)
    limits = SandboxLimits(list_entries=10)
    async with Lying(lambda question: frame(question.number, {"is": None}, much), limits=limits) as sandbox:
        with pytest.raises(ToolConnectionError, match="said more than it was asked for"):
            await CALLS[name](sandbox)
        assert not sandbox.is_open
        with pytest.raises(ToolConnectionError):
            await sandbox.list()


async def test_an_answer_to_nobody_ends_the_line():
    async with Lying(lambda question: frame(question.number + 7, {"is": None})) as sandbox:
        with pytest.raises(ToolConnectionError):
            await sandbox.list()


async def test_a_far_half_of_another_version_is_refused_and_so_is_one_that_greets_with_something_else():
    for head in (
        {"is": {**GREETED, "protocol": PROTOCOL + 1}},
        {"is": 3},
        {"error": {"kind": "CapabilityError", "message": "no"}},
    ):

        class Other(Lying):
            async def _lay(self, head=head):
                return Scripted(lambda question: frame(question.number, head)), b""

        with pytest.raises((LittleGhostError,)):
            await Other(None).open()


async def test_limits_that_the_far_half_refuses_are_refused_here(tmp_path):
    limits = SandboxLimits(disk_bytes=1)
    async with WorkerSandbox(tmp_path) as sandbox:
        with pytest.raises(CapabilityError, match="disk_bytes"):
            sandbox.scope(limits=limits)
    with pytest.raises(CapabilityError, match="disk_bytes"):
        await WorkerSandbox(tmp_path, limits=limits).open()


async def asked(served: Served, number: int, do: str, data: bytes = b"", *, seen=(), **given) -> None:
    await served.take(Frame(number, {"do": do, "with": given, "seen": list(seen)}, data))


async def test_a_question_that_comes_again_gets_its_answer_and_is_not_done_again(tmp_path):
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        served = Served(sandbox, keep=True)
        said: list[Frame] = []

        async def send(answer: bytes) -> None:
            said.extend(Frames(lambda _: MOST).add(answer))

        script = {"command": ["sh", "-c", "echo x >> effects"], "timeout": 10, "max_output_bytes": 100}
        served.attach(send)
        await asked(served, 1, "execute", **script)
        await asked(served, 1, "execute", **script)  # while it runs
        while not said:
            await asyncio.sleep(0.01)
        await asked(served, 1, "execute", **script)  # and when it is done
        while len(said) < 2:
            await asyncio.sleep(0.01)
        assert [one.number for one in said] == [1, 1]
        assert said[0] == said[1]
        assert (tmp_path / "effects").read_text() == "x\n"
        await asked(served, 2, "list", seen=[1, "x", None], path=".")
        await asked(served, 1, "execute", **script)  # of which it said that it has the answer
        while len(said) < 4 or not served.idle:
            await asyncio.sleep(0.01)
        assert sorted((one.number, "error" in one.head) for one in said) == [
            (1, False),
            (1, False),
            (1, True),
            (2, False),
        ]
        assert (tmp_path / "effects").read_text() == "x\n"
        await served.close()


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"do": "nothing"},
        {"do": "__class__"},
        {"do": ["read"]},
        {"do": "read", "with": []},
        {"do": "read", "with": {"path": 3}},
        {"do": "read", "with": {}},
        {"do": "read", "with": {"path": "a", "context": "x"}},
        {"do": "execute", "with": {"command": ["true"], "timeout": float("inf"), "max_output_bytes": 1}},
        {"do": "execute", "with": {"command": "true", "timeout": 1, "max_output_bytes": 1}},
        {"do": "list", "with": {"path": "."}, "in": 3},
        {"do": "list", "with": {"path": "."}, "in": [[]]},
        {"do": "list", "with": {"path": "."}, "in": [{"self": 1}]},
        {"do": "list", "with": {"path": "."}, "in": [{"limits": {"read_bytes": -1}}]},
        {"do": "list", "with": {"path": "."}, "in": [{"limits": {"nothing": 1}}]},
        {"do": "tell", "with": {"process": 7}},
        {"do": "wait", "with": {"process": True}},
    ],
    ids=str,
)
async def test_a_hostile_question_is_answered_with_an_error_and_no_more(tmp_path, head):
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        served = Served(sandbox)
        said: list[Frame] = []

        async def send(answer: bytes) -> None:
            said.extend(Frames(lambda _: MOST).add(answer))

        served.attach(send)
        await served.take(Frame(1, head, b""))
        while not said:
            await asyncio.sleep(0.01)
        assert isinstance(error_of(said[0].head["error"]), LittleGhostError)
        assert str(tmp_path) not in said[0].head["error"]["message"]
        await served.close()


async def test_what_a_sandbox_offers_is_told(tmp_path):
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        told = welcome(sandbox)
        assert told["capabilities"] == sorted(sandbox.capabilities)
        assert "disk_bytes" in told["refused"]
        json.dumps(told)


async def test_a_lost_line_fails_what_is_open_and_all_that_follows():
    transport = Scripted(lambda _question: b"")
    line = Line(transport)
    with pytest.raises(ToolConnectionError, match="lost"):
        await line.ask({"do": "list"})
    with pytest.raises(ToolConnectionError, match="lost"):
        await line.ask({"do": "list"})
    await line.close()


async def test_a_far_half_that_never_answers_is_lost(monkeypatch):
    monkeypatch.setattr(far_sandbox, "_ANSWERING", 0.05)
    async with Lying(lambda question: frame(GREETING, {})) as sandbox:
        with pytest.raises(ToolConnectionError, match="does not answer"):
            await sandbox.execute("true", timeout=0.05)
        assert not sandbox.is_open


async def test_a_far_half_that_does_not_heed_a_cancellation_is_lost(monkeypatch):
    monkeypatch.setattr(far_line, "_GRACE", 0.05)
    async with Lying(lambda question: frame(GREETING, {})) as sandbox:
        running = asyncio.ensure_future(sandbox.execute("true", timeout=60))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not sandbox.is_open
    token = CancellationToken()
    caller = Caller()
    caller.cancellation = token
    async with Lying(lambda question: frame(GREETING, {})) as sandbox:
        running = asyncio.ensure_future(sandbox.execute("true", timeout=60, context=caller))
        await asyncio.sleep(0.05)
        token.cancel()
        with pytest.raises(ToolConnectionError, match="does not answer"):
            await running


async def test_it_can_be_used_from_another_event_loop(tmp_path):
    async with WorkerSandbox(tmp_path, writable=True) as sandbox:

        def elsewhere() -> str:
            async def work() -> str:
                await sandbox.write("a", "there")
                async with await sandbox.start_program(["cat", "a"]) as process:
                    said = await process.read()
                    assert await process.wait() == 0
                return said.decode() + (await sandbox.execute("cat a", timeout=20)).stdout

            return asyncio.run(work())

        assert await asyncio.to_thread(elsewhere) == "therethere"


def test_it_says_so_when_its_event_loop_has_ended(tmp_path):
    sandbox = WorkerSandbox(tmp_path, writable=True)

    async def opened() -> None:
        await sandbox.open()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(opened())

        async def used() -> None:
            with pytest.raises(ToolError, match="event loop"):
                await sandbox.read("a")

        asyncio.run(used())
        asyncio.run(sandbox.close())
        gc.collect()


def test_the_contract_is_offered_whole():
    own = {name for name, value in vars(Sandbox).items() if callable(value) and not name.startswith("_")}
    assert {name for name in own if getattr(FarSandbox, name) is getattr(Sandbox, name)} == {"execute"}


class Broken(Transport):
    """Keeps what is sent, and is broken when a test says so."""

    def __init__(self, *, listened: bool = True) -> None:
        self.frames, self.said = Frames(lambda _: MOST), []
        self.out: asyncio.Queue[bytes] = asyncio.Queue()
        self.listened = asyncio.Event()
        if listened:
            self.listened.set()
        self.closed = False

    async def send(self, data):
        await self.listened.wait()
        self.said += self.frames.add(data)

    async def receive(self):
        self.listened.set()
        return await self.out.get()

    async def close(self):
        self.closed = True
        self.out.put_nowait(b"")

    async def hears(self, count):
        while len(self.said) < count:
            await asyncio.sleep(0)
        return [(question.number, bool(question.head.get("cancel"))) for question in self.said]


async def test_over_another_transport_open_questions_go_first_and_in_order_and_so_does_what_was_withdrawn():
    first, second = Broken(), Broken(listened=False)  # which takes nothing before somebody hears it
    broken = asyncio.Event()

    async def again():
        await broken.wait()
        return second, b""

    line = Line(first, reopen=again)
    asking = [asyncio.ensure_future(line.ask({"do": str(number)})) for number in range(4)]
    assert await first.hears(4) == [(number, False) for number in range(4)]
    first.out.put_nowait(frame(1, {"is": None}))
    await asking[1]
    first.out.put_nowait(b"")
    await asyncio.sleep(0.01)
    asking[2].cancel()
    asking.append(asyncio.ensure_future(line.ask({"do": "4"})))  # while there is no transport
    await asyncio.sleep(0.01)
    broken.set()
    await asyncio.sleep(0)
    asking.append(asyncio.ensure_future(line.ask({"do": "5"})))
    assert await second.hears(6) == [(0, False), (2, False), (2, True), (3, False), (4, False), (5, False)]
    assert [question.head.get("seen") for question in second.said if question.number >= 4] == [[1], None]
    for number in (0, 3, 4, 5):
        second.out.put_nowait(frame(number, {"is": number}))
    second.out.put_nowait(frame(2, {"cancelled": True}))
    done = await asyncio.gather(*asking, return_exceptions=True)
    assert [getattr(one, "head", None) for one in done] == [
        {"is": 0},
        {"is": None},
        None,
        {"is": 3},
        {"is": 4},
        {"is": 5},
    ]
    assert isinstance(done[2], asyncio.CancelledError)
    last = asyncio.ensure_future(line.ask({"do": "6"}))
    assert (await second.hears(7))[-1] == (6, False)
    assert second.said[-1].head["seen"] == [0, 2, 3, 4, 5]
    second.out.put_nowait(frame(6, {"is": None}))
    await last
    await line.close()
    assert second.closed


async def test_what_waits_to_be_heard_is_bounded(tmp_path):
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        (tmp_path / "large").write_bytes(bytes(1000))
        served = Served(sandbox, keep=True, questions=4, waiting=3500)
        said: list[Frame] = []

        async def send(answer: bytes) -> None:
            said.extend(Frames(lambda _: MOST).add(answer))

        served.attach(send)
        for number in range(1, 5):
            await asked(served, number, "read_bytes", path="large")
            while len(said) < number:
                await asyncio.sleep(0.001)
        await asked(served, 5, "write_bytes", bytes(100), path="other")
        while len(said) < 5:
            await asyncio.sleep(0.001)
        assert ["error" in one.head for one in said] == [False] * 4 + [True]
        assert "too much at once" in said[-1].head["error"]["message"]
        assert not (tmp_path / "other").exists()
        await asked(served, 6, "drop", process=1)  # which takes no room, and may make some
        while len(said) < 6:
            await asyncio.sleep(0.001)
        assert said[-1].head == {"is": None}
        await asked(served, 7, "write_bytes", bytes(100), seen=[1, 2], path="other")
        while len(said) < 7:
            await asyncio.sleep(0.001)
        assert said[-1].head == {"is": None}
        served.attach(None)
        assert not served.idle  # for there are answers that somebody may come for
        await served.close()


async def test_programs_that_begin_at_the_same_time_are_counted_too(tmp_path):
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        served = Served(sandbox, programs=2)
        said: list[Frame] = []

        async def send(answer: bytes) -> None:
            said.extend(Frames(lambda _: MOST).add(answer))

        served.attach(send)
        for number in range(1, 7):
            await asked(served, number, "start", command=["sleep", "30"], process=number)
        while len(said) < 6:
            await asyncio.sleep(0.01)
        assert sum("error" in one.head for one in said) == 4
        await served.close()
