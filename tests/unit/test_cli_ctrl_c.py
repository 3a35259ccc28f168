"""Ctrl-C: whenever it is pressed, it does something."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from littleghost.cli import emulating
from littleghost.cli.ctrl_c import TERMINATED, CtrlC, not_lost, signals_held

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c() -> Iterator[CtrlC]:
    with CtrlC() as ctrl_c:
        yield ctrl_c


def test_a_press_before_a_read_ends_it_and_none_after(ctrl_c: CtrlC):
    press()
    with pytest.raises(KeyboardInterrupt):
        ctrl_c.read(lambda: "unread")
    assert ctrl_c.read(lambda: "read") == "read"


@pytest.mark.timeout(20)
def test_a_press_that_does_not_interrupt_the_wait_for_a_key_ends_it_all_the_same(ctrl_c: CtrlC):
    """As one that comes between the prompt and the wait: Python knows of it, and the main thread sleeps on."""
    key, keyboard = os.pipe()
    other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    late = threading.Timer(5, os.write, (keyboard, b"x"))  # or a failure would wait for ever
    late.start()
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.read(lambda: str(os.read(key, 1)))
        assert late.is_alive(), "it ended with the key"
    finally:
        late.cancel()
        other.join()
        os.close(key)
        os.close(keyboard)


def test_each_press_calls_what_is_to_be_called_and_so_does_one_that_came_just_before(ctrl_c: CtrlC):
    calls: list[int] = []
    press()
    with ctrl_c.calls(lambda: calls.append(1)):
        assert calls == [1]
        press()
        press()
    assert calls == [1, 1, 1]
    press()
    assert calls == [1, 1, 1]
    assert ctrl_c.pressed()
    assert not ctrl_c.pressed()


def test_a_signal_that_is_held_comes_when_the_block_has_ended():
    before, done = signal.getsignal(signal.SIGINT), []

    def start() -> None:
        with signals_held(signal.SIGINT, signal.SIGTERM):
            press()
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("leave", [lambda: None, press], ids=["quietly", "with a press that nobody wanted"])
def test_afterwards_everything_is_as_it_was(leave: Callable[[], None]):
    def handlers() -> list[object]:
        return [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGURG)]

    before, threads = handlers(), threading.active_count()
    with CtrlC():
        assert handlers() != before
        leave()
    assert handlers() == before
    assert threading.active_count() <= threads  # one of an earlier test may have ended
    assert signal.set_wakeup_fd(-1) == -1


def waits_after(work: Callable[[], None]) -> None:
    work()
    signal.pause()


class Thing:
    """Something whose end can be told."""


@pytest.mark.parametrize("how", ["callback", "del"])
@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt()), (signal.SIGTERM, SystemExit(TERMINATED))],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_at_the_end_of_an_object_is_sent_again(
    number: signal.Signals, raised: BaseException, how: str, monkeypatch: pytest.MonkeyPatch
):
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)

    def handler(*_: object) -> None:
        raised.__context__ = raised.__traceback__ = None
        raise raised

    class Ends(Thing):
        def __del__(self) -> None:
            signal.raise_signal(number)

    before = signal.signal(number, handler)
    try:
        with not_lost():
            thing = Thing() if how == "callback" else Ends()
            told = weakref.ref(thing, lambda _: signal.raise_signal(number)) if how == "callback" else None
            things = [thing]
            del thing
            with pytest.raises(type(raised)):
                waits_after(things.clear)
            assert told is None or told() is None
        assert shown == []
        assert sys.unraisablehook == shown.append
    finally:
        signal.signal(number, before)


def test_other_errors_at_the_end_of_an_object_are_shown(monkeypatch: pytest.MonkeyPatch):
    shown: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(unraisable.exc_type))

    def fail(error: BaseException) -> None:
        raise error

    with not_lost():
        for error in (ZeroDivisionError(), SystemExit(3)):
            thing = Thing()
            told = weakref.ref(thing, lambda _, error=error: fail(error))
            del thing
            assert told() is None
    assert shown == [ZeroDivisionError, SystemExit]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", range(1, 25))
def test_a_signal_anywhere_in_the_wait_of_an_emulator_ends_it(number: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emulating, "LOOK", 0.001)
    left, stopped = number, SimpleQueue[None]()

    def look(frame: object, event: str, _: object) -> None:
        nonlocal left
        left -= event in {"call", "c_call", "c_return", "c_exception"}
        if left == 0:
            sys.setprofile(None)
            press()

    with emulating.stopping(stopped):
        sys.setprofile(look)
        try:
            emulating.wait_for(stopped)
        finally:
            sys.setprofile(None)
