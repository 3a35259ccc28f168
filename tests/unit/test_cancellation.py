"""Tokens turn once and tell everyone; deadlines pass."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from littleghost import CancellationToken, Deadline, DeadlineExceeded, RunCancelled


def test_a_token_turns_once():
    token = CancellationToken()
    assert (token.cancelled, token.reason) == (False, None)
    token.check()
    token.cancel("first")
    token.cancel("second")
    assert (token.cancelled, token.reason) == (True, "first")
    with pytest.raises(RunCancelled, match=r"^cancelled: first$") as caught:
        token.check()
    assert caught.value.reason == "first"


def test_without_a_reason():
    token = CancellationToken()
    token.cancel()
    with pytest.raises(RunCancelled, match=r"^cancelled$") as caught:
        token.check()
    assert caught.value.reason is None


def test_cancellation_goes_down_and_not_up():
    parent = CancellationToken()
    child, other = parent.child(), parent.child()
    grandchild = CancellationToken(child)
    child.cancel("mine")
    assert (parent.cancelled, other.cancelled, grandchild.reason) == (False, False, "mine")
    parent.cancel("all")
    assert (child.reason, other.reason) == ("mine", "all")
    assert parent.child().reason == "all"


def test_callbacks_are_called_once_in_order_unless_taken_back():
    token, heard = CancellationToken(), []
    token.add_callback(lambda: heard.append(1))
    remove = token.add_callback(lambda: heard.append(2))
    token.add_callback(lambda: heard.append(3))
    remove()
    remove()
    token.cancel()
    token.cancel()
    assert heard == [1, 3]
    token.add_callback(lambda: heard.append(4))()
    assert heard == [1, 3, 4]


def test_a_callback_that_fails_keeps_no_other_from_hearing():
    token, heard = CancellationToken(), []

    def fail() -> None:
        raise ZeroDivisionError

    child = token.child()
    token.add_callback(fail)
    token.add_callback(lambda: heard.append(1))
    with pytest.raises(ZeroDivisionError):
        token.cancel()
    assert heard == [1]
    assert child.cancelled


def test_a_callback_may_use_the_token():
    token, heard = CancellationToken(), []
    token.add_callback(
        lambda: (
            token.cancel("again"),
            heard.append(token.reason),
            token.add_callback(lambda: heard.append("late")),
        )
    )
    token.cancel("first")
    assert heard == ["first", "late"]


def test_a_detached_child_does_not_hear_and_is_not_kept():
    parent = CancellationToken()
    child = parent.child()
    gone = weakref.ref(child.check.__self__) if hasattr(CancellationToken, "__weakref__") else None
    child.detach()
    child.detach()
    assert not parent._callbacks
    parent.cancel()
    assert not child.cancelled
    del child
    gc.collect()
    assert gone is None or gone() is None


def test_many_threads_cancel_and_one_counts():
    token, heard = CancellationToken(), []
    token.add_callback(lambda: heard.append(token.reason))
    start = threading.Barrier(8)

    def cancel(name: str) -> None:
        start.wait()
        token.cancel(name)

    threads = [threading.Thread(target=cancel, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [token.reason]


async def test_waiting_ends_when_another_thread_cancels():
    token = CancellationToken()
    waiting = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    threading.Thread(target=token.cancel).start()
    await waiting
    await token.wait()


async def test_waiting_can_be_given_up():
    token = CancellationToken()
    waiting = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not token._callbacks
    token.cancel()


def test_a_deadline_passes(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    deadline = Deadline(2.5)
    assert (deadline.at, deadline.remaining(), deadline.expired) == (102.5, 2.5, False)
    deadline.check()
    assert repr(deadline) == "Deadline(2.5 s, 2.500 s left)"
    now = 102.5
    assert (deadline.remaining(), deadline.expired) == (0.0, True)
    now = 200.0
    assert deadline.remaining() == 0.0
    with pytest.raises(DeadlineExceeded, match=r"the deadline of 2\.5 s has passed"):
        deadline.check()
