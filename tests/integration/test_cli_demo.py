"""`littleghost demo`: it passes, it fails when a promise is broken, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from littleghost import BubblewrapSandbox
from littleghost.cli import demo as story
from littleghost.portal import portal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")

DEMO = [sys.executable, "-m", "littleghost.cli", "demo"]
PROMISES = [
    "the file is in the folder, as the agent wrote it",
    "the process died by SIGKILL",
    "the call of charge() was stored before it ran, and has no result",
    "no stored message was lost or changed",
    "no message was stored twice",
    "the customer was charged once",
    "every call has exactly one result",
    "the conversation has the shape that every provider accepts",
    "who would not wait got SessionBusyError",
    "who would wait, waited",
    "bob, who asks for mine, finds nothing",
    "no file outside was read: not by .., not by its path, not by a link",
]
ISOLATION = ["a program cannot read the host's file", "nor the environment of the process that started it"]

Demo = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "broken").mkdir()
    path = os.pathsep.join([str(tmp_path / "broken"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": path, "COLUMNS": "200"}


@pytest.fixture
def demo(tmp_path: Path, environment: dict[str, str]) -> Demo:
    """Run the demo, in an installation that `broken`, a piece of Python, has changed in all of its processes."""

    def run(*options: str, broken: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "broken" / "sitecustomize.py").write_text(broken)
        done = subprocess.run(
            [*DEMO, *options], env=environment, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.stderr == ""
        return done

    return run


@pytest.fixture(scope="module")
def isolation(require: Any) -> None:
    require(
        portal.call(BubblewrapSandbox.probe).available,
        "bubblewrap that works here",
        "apt-get install bubblewrap",
    )


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_promise_is_checked_and_kept(demo: Demo, tmp_path: Path, isolation: None):
    done = demo()
    assert done.returncode == 0, done.stdout
    for promise in PROMISES + ISOLATION:
        assert f"   ✓ {promise}\n" in done.stdout
    ticks = done.stdout.count("   ✓ ")
    assert re.search(rf"^All {ticks} checks passed, in \d+\.\d s\.$", done.stdout, re.MULTILINE)
    assert "I am a script, not a language model" in done.stdout
    assert "✗" not in done.stdout
    assert "\x1b" not in done.stdout
    assert left_in(tmp_path / "temporary") == []


def test_without_isolation_it_says_so_and_passes(demo: Demo):
    done = demo(broken="from littleghost.sandboxes import bubblewrap\nbubblewrap._installed = lambda: []\n")
    assert done.returncode == 0, done.stdout
    assert "NOTHING IS ISOLATED HERE" in done.stdout
    assert "bubblewrap is not installed" in done.stdout
    assert "not checked: what programs can reach" in done.stdout
    assert "Isolation was not among them" in done.stdout
    for promise in PROMISES:
        assert f"   ✓ {promise}\n" in done.stdout
    for promise in ISOLATION:
        assert promise not in done.stdout


BROKEN = {
    "tools run again after a crash": (
        """
        from littleghost.runs import driver
        traits = driver.ToolTraits
        driver.ToolTraits = lambda idempotent, exclusive: traits(True, exclusive)
        """,
        ["the customer was charged once"],
    ),
    "a turn is stored when it ends": (
        """
        from littleghost.runs.journal import SessionJournal
        commit, held = SessionJournal.commit, []
        async def late(self, messages, *rest):
            if any(message.tool_uses or message.tool_results for message in messages):
                held.extend(messages)
                return self.count, None
            messages, held[:] = [*held, *messages], []
            return await commit(self, messages, *rest)
        SessionJournal.commit = late
        """,
        ["the call of charge() was stored before it ran, and has no result"],
    ),
    "results are lost": (
        """
        from littleghost import SQLiteStore, Snapshot
        load = SQLiteStore.load
        async def forgetful(self, id, *, actor_id=None):
            found = await load(self, id, actor_id=actor_id)
            kept = [] if found is None else [message for message in found.messages if message.role != "tool"]
            return found and Snapshot(messages=kept, state=found.state, revision=found.revision, count=found.count)
        SQLiteStore.load = forgetful
        """,
        ["the conversation is in the store, whole", "every call has exactly one result"],
    ),
    "a session is not held": (
        """
        from littleghost import SQLiteStore
        SQLiteStore.capabilities = SQLiteStore.capabilities - {"leases"}
        """,
        ["who would not wait got SessionBusyError"],
    ),
    "actors are mixed up": (
        """
        from littleghost.sessions import recording
        from littleghost.sessions.sqlite import store
        check = store.check_key
        store.check_key = recording.check_key = lambda id, actor: check(id, None)
        """,
        ["bob, who asks for mine, finds nothing", "nor can he go on with it"],
    ),
    "the sandbox does not isolate": (
        """
        from littleghost.sandboxes import native
        from littleghost import HostSandbox
        native.native_sandbox = HostSandbox
        """,
        ["a program cannot read the host's file", "nor the environment of the process that started it"],
    ),
    "files are not confined": (
        """
        from littleghost.sandboxes.local import LocalSandbox
        async def read(self, path, *, context=None):
            return open(self.workspace.root / path).read()
        LocalSandbox.read = read
        """,
        ["no file outside was read: not by .., not by its path, not by a link"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(demo: Demo, tmp_path: Path, name: str, isolation: None):
    code, promises = BROKEN[name]
    done = demo(broken=textwrap.dedent(code))
    assert done.returncode == 1, done.stdout
    for promise in promises:
        assert re.search(rf"^   ✗ {re.escape(promise)}", done.stdout, re.MULTILINE), done.stdout
        assert re.search(rf"^  ✗ {re.escape(promise)}$", done.stdout, re.MULTILINE), "it is listed at the end"
    assert re.search(r"^\d+ of \d+ checks failed", done.stdout, re.MULTILINE)
    assert left_in(tmp_path / "temporary") == []


def test_keep_keeps_the_folder(demo: Demo, tmp_path: Path):
    done = demo("--keep")
    assert done.returncode == 0
    (folder,) = (tmp_path / "temporary").iterdir()
    assert (
        f"{sys.executable} -m littleghost.cli sessions list --store sqlite:///{folder}/sessions.db"
        in done.stdout
    )
    command = [
        sys.executable,
        "-m",
        "littleghost.cli",
        "sessions",
        "show",
        "shop",
        "--store",
        f"sqlite:///{folder}/sessions.db",
    ]
    assert "Charge order 17" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if word in command:
            found.append(command)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_cleans_up_when_it_is_interrupted(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals, status: int
):
    with subprocess.Popen(
        DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if line.startswith("4. "):
                break
        give_up = time.monotonic() + 30
        while not processes_with(str(tmp_path / "temporary")):
            assert time.monotonic() < give_up
        child.send_signal(number)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (status, ""), out
    assert left_in(tmp_path / "temporary") == []
    assert processes_with(str(tmp_path / "temporary")) == []


def test_a_process_whose_end_is_waited_for_may_end_between_two_looks():
    child = subprocess.Popen([sys.executable, "-c", "print({})"], stdout=subprocess.PIPE, text=True)
    looks = 0

    def there() -> bool:
        nonlocal looks
        looks += 1
        if looks > 1:
            return True
        child.wait()  # just after the first look
        return False

    story.Demo._wait_for(object.__new__(story.Demo), "its end", there, child)
    with pytest.raises(RuntimeError, match="ended before its end"):
        story.Demo._wait_for(object.__new__(story.Demo), "its end", lambda: False, child)
