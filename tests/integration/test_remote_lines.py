"""A remote sandbox whose connection is cut at any byte: what it was asked for is done once, and answered."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, repeat

import pytest
from remote import Relay, Service

pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from littleghost.errors import RunCancelled, ToolConnectionError, ToolError
from littleghost.sandboxes import remote as remote_sandbox
from littleghost.sandboxes.far.wire import MOST, Frames
from littleghost.testing.sandbox_trial import Caller

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service is for Linux")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_sandbox, "_DELAYS", (0.01, 0.1))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


async def work(sandbox, name: str, count: int) -> None:
    """Commands and writes whose effects are counted, each answered as if nothing had happened."""
    for number in range(count):
        this = f"{name}.{number}"
        done = await sandbox.execute(f"echo {this} >> effects; echo {this}", timeout=60)
        assert (done.stdout, done.exit_code) == (f"{this}\n", 0)
        await sandbox.write(f"file-{name}", f"{this}{'.' * random.Random(this).randrange(3000)}")
        assert (await sandbox.read(f"file-{name}")).startswith(this)
        await sandbox.make_directory(f"tree/{this}")  # which cannot be done twice
        await sandbox.move(f"tree/{this}", f"moved-{this}")


@pytest.mark.parametrize(
    ("seed", "shortest", "longest"),
    [(1, 1, 6000), (2, 600, 4000), (3, 1200, 20_000)],
    ids=["short", "middle", "long"],
)
async def test_each_effect_comes_once_and_no_answer_is_lost_wherever_the_connection_is_cut(
    service: Service, seed: int, shortest: int, longest: int
):
    chance = random.Random(seed)
    before = service.leases
    # the first connection lasts for the greeting, most of the time
    cuts = chain([5000], (chance.randint(shortest, longest) for _ in range(60)), repeat(None))
    async with Relay(service.url, cuts) as relay, service.client(url=relay.url) as sandbox:
        (lease,) = service.leases - before
        await asyncio.gather(*(work(sandbox, f"task{number}", 6) for number in range(4)))
        effects = (lease / "workspace" / "effects").read_text().split()
        moved = [path.name for path in (lease / "workspace").glob("moved-*")]
        expected = [f"task{task}.{number}" for task in range(4) for number in range(6)]
        assert Counter(effects) == Counter(expected)
        assert sorted(moved) == sorted(f"moved-{each}" for each in expected)
        assert relay.cuts >= 10
    assert not lease.exists()


async def test_what_a_program_says_and_is_told_is_whole_and_in_order(service: Service):
    chance = random.Random(4)
    cuts = chain((chance.randint(900, 6000) for _ in range(40)), repeat(None))
    async with Relay(service.url, cuts) as relay, service.client(url=relay.url) as sandbox:
        async with await sandbox.start_program(["cat"]) as process:
            said = b"".join(b"line %d\n" % number for number in range(4000))

            async def tell() -> None:
                for at in range(0, len(said), 1000):
                    await process.write(said[at : at + 1000])
                await process.close_input()

            telling = asyncio.ensure_future(tell())
            heard = b""
            while data := await process.read(700):
                heard += data
            await telling
            assert heard == said
            assert await process.wait() == 0
        assert relay.cuts >= 10


async def test_an_answer_that_was_cut_comes_again_and_is_not_kept_for_ever(service: Service):
    """One request is open all the time; answers to others are forgotten once they have come."""
    async with service.client() as sandbox:
        await sandbox.write("large", "x" * 900_000)
        async with await sandbox.start_program(["sleep", "60"]):
            for _ in range(150):  # together twice what the service would keep
                assert len(await sandbox.read("large")) == 900_000


async def test_a_command_that_is_cancelled_while_the_connection_is_lost_is_ended(service: Service):
    before = service.leases
    async with Relay(service.url, repeat(None)) as relay, service.client(url=relay.url) as sandbox:
        (lease,) = service.leases - before
        beat = lease / "workspace" / "beat"
        running = asyncio.ensure_future(
            sandbox.execute("while :; do echo x >> beat; sleep 0.05; done", timeout=60)
        )
        while not beat.exists():
            await asyncio.sleep(0.02)
        for task in list(relay.tasks):
            task.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        size = beat.stat().st_size
        await asyncio.sleep(0.3)
        assert beat.stat().st_size == size
        caller = Caller()
        waiting = asyncio.ensure_future(sandbox.execute("sleep 60", timeout=60, context=caller))
        await asyncio.sleep(0.1)
        for task in list(relay.tasks):
            task.cancel()
        caller.cancellation.cancel("enough")
        with pytest.raises(RunCancelled):
            await waiting
        assert (await sandbox.execute("echo still", timeout=10)).stdout == "still\n"


async def test_many_large_requests_and_answers_at_once_do_not_stop_each_other(service: Service):
    """The connection is lost while both sides have more to say than the network holds."""
    text = "y" * 950_000
    chance = random.Random(5)
    cuts = chain((chance.randint(1_000_000, 6_000_000) for _ in range(5)), repeat(None))
    async with Relay(service.url, cuts) as relay, service.client(url=relay.url) as sandbox:
        await sandbox.write("file", text)

        async def both(number: int) -> None:
            await sandbox.write(f"file-{number}", text)
            assert await sandbox.read(f"file-{number}") == text

        await asyncio.gather(*(both(number) for number in range(20)))
        assert relay.cuts >= 3


async def test_a_lease_ends_when_its_client_does_not_come_again_and_the_client_says_so():
    with Service("--lease-seconds", "1") as service:
        async with Relay(service.url, repeat(None)) as relay:
            sandbox = service.client(url=relay.url)
            await sandbox.open()
            (lease,) = service.leases
            await sandbox.write("pid", (await sandbox.execute("echo $PPID", timeout=10)).stdout)
            process = await sandbox.start_program(["sleep", "1000.25"])
            relay._server.close()
            for task in list(relay.tasks):
                task.cancel()
            with pytest.raises(ToolConnectionError, match="lost, and could not be made again"):
                await process.wait()
            assert not sandbox.is_open
            with pytest.raises(ToolError):
                await sandbox.read("pid")
            while lease.exists():
                await asyncio.sleep(0.05)
            await sandbox.close()
            assert not running("1000.25")
        # and one that comes too late is told, not given another sandbox in silence
        async with Relay(service.url, repeat(None)) as relay:
            sandbox = service.client(url=relay.url)
            async with sandbox:
                (lease,) = service.leases
                way = sandbox._dial

                async def late(**options):
                    while lease.exists():
                        await asyncio.sleep(0.05)
                    return await way(**options)

                sandbox._dial = late
                for task in list(relay.tasks):
                    task.cancel()
                with pytest.raises(ToolConnectionError, match="has ended on the service"):
                    await sandbox.list()
            assert not service.leases


async def test_the_lease_of_a_client_that_is_killed_ends():
    with Service("--lease-seconds", "1") as service:
        code = (
            "import asyncio, sys\n"
            "from littleghost import RemoteSandbox\n"
            "async def main():\n"
            "    async with RemoteSandbox(sys.argv[1], isolated=False) as sandbox:\n"
            "        await sandbox.start_program(['sleep', '1000.5'])\n"
            "        print('ready', flush=True)\n"
            "        await asyncio.sleep(1000)\n"
            "asyncio.run(main())\n"
        )
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            service.url,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "LITTLEGHOST_SANDBOX_TOKEN": service.token},
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"ready\n"
        while not running("1000.5"):
            await asyncio.sleep(0.02)
        client.send_signal(signal.SIGKILL)
        await client.wait()
        while running("1000.5") or service.leases:
            await asyncio.sleep(0.05)
        await client.communicate()


def running(argument: str) -> list[int]:
    """The processes that have an argument."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if argument.encode() in file.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


def test_frames_limit_their_heads():
    with pytest.raises(ToolConnectionError):
        Frames(lambda _: MOST, heads=lambda _: 10).add(b"\0\0\0\x14" + bytes(8) + b"\0\0\0\x14")
