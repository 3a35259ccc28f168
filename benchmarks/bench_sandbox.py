"""What a command and a file operation cost in each sandbox, beside the bare ones.

    python benchmarks/bench_sandbox.py [--quick] [--image IMAGE]

Everything runs in the same loop, interleaved, one after another; figures are medians, and ratios are of medians over the floor named
in the row. Below 1.3, two figures are the same. Commands are measured twice: after a pause before each one, as between the steps of an
agent, in which a namespace is made ready for the next; and back to back, each row a block, in which there is no time for that.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from littleghost import BubblewrapSandbox, ContainerSandbox, HostSandbox, RemoteSandbox, Sandbox, SSHSandbox

TRUE = shutil.which("true") or "/bin/true"
BARE = [
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
    "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
    "--", TRUE,
]  # fmt: skip
BOUNDS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
PAUSE = 0.06  # seconds
TEXT = "line of text\n" * 800  # about 10 kB

Work = Callable[[], Awaitable[object]]


def blocking(work: Callable[[], object]) -> Work:
    async def run() -> object:
        return work()

    return run


def spawn() -> None:
    os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)


def atomic_write(path: Path) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(TEXT)
    beside.replace(path)


async def measure(rounds: int, rows: dict[str, Work], *, pause: float = 0.0) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(rounds + 2):
        for name, work in rows.items():
            if pause:
                await asyncio.sleep(pause)
            started = time.perf_counter()
            await work()
            if number >= 2:
                taken[name].append(time.perf_counter() - started)
    return taken


async def measure_blocks(rounds: int, rows: dict[str, Work], size: int = 10) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(max(2, rounds // size)):
        for name, work in rows.items():
            started = time.perf_counter()
            for _ in range(size):
                await work()
            taken[name].append((time.perf_counter() - started) / size)
    return taken


def show(title: str, taken: dict[str, list[float]], floor: str) -> None:
    print(f"\n{title}: over {floor}")
    base = statistics.median(taken[floor])
    for name, values in taken.items():
        low, middle, high = (statistics.quantiles(values, n=10)[at] for at in (0, 4, 8))
        print(
            f"  {name:34} {middle * 1e3:9.3f} ms   ({low * 1e3:.3f} to {high * 1e3:.3f})   {middle / base:6.2f}×"
        )


def files(sandbox: Sandbox, prefix: str) -> dict[str, Work]:
    return {
        f"{prefix} read": lambda: sandbox.read("file"),
        f"{prefix} write": lambda: sandbox.write("file", TEXT),
        f"{prefix} list": lambda: sandbox.list("many"),
    }


@asynccontextmanager
async def service(folder: Path) -> AsyncGenerator[RemoteSandbox]:
    """A service of this machine, without isolation, so that its rows stand beside HostSandbox's, and a client."""
    cli = [sys.executable, "-m", "littleghost.cli", "sandbox"]
    tokens = ["--tokens", str(folder / "tokens")]
    made = await asyncio.create_subprocess_exec(*cli, "token", "bench", *tokens, stdout=subprocess.PIPE)
    token = (await made.communicate())[0].decode().strip()
    arguments = ["--root", str(folder / "root"), "--port", "0", "--json", "--sandbox", "host"]
    serving = await asyncio.create_subprocess_exec(*cli, "serve", *tokens, *arguments, stdout=subprocess.PIPE)
    if serving.stdout is None:
        raise RuntimeError
    url = json.loads(await serving.stdout.readline())["url"]
    try:
        async with RemoteSandbox(url, token=token, isolated=False) as sandbox:
            yield sandbox
    finally:
        serving.terminate()
        await serving.wait()


@contextmanager
def ssh_server() -> Iterator[Any]:
    """Yields the tests' own server on loopback, how `ssh` is called for it, and how for a connection that is shared."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import sshd

    if not sshd.program():
        yield None
        return
    server = sshd.Server()
    try:
        plain = [
            "ssh", "-F", "none", "-p", str(server.port), "-i", str(server.key), "-o", f"UserKnownHostsFile={server.known_hosts}",
            "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-l", server.user,
        ]  # fmt: skip
        shared = [*plain, "-o", f"ControlPath={server.folder}/control"]
        with subprocess.Popen([*shared, "-M", "-N", "127.0.0.1"], stdin=subprocess.DEVNULL) as master:
            check = [*shared, "-O", "check", "127.0.0.1"]
            while subprocess.run(check, check=False, capture_output=True).returncode:
                time.sleep(0.05)
            try:
                yield server, plain, shared
            finally:
                master.terminate()
    finally:
        server.remove()


async def over_ssh(rounds: int, given: Any) -> None:
    """Print what the same costs on a machine that is as near as can be."""
    if given is None:
        print(
            "\nNOT MEASURED: SSHSandbox, for there is no sshd. To have it: apt-get install openssh-server openssh-client"
        )
        return
    server, plain, shared = given

    def ssh(base: list[str], command: str, text: str | None) -> Work:
        arguments = [*base, "127.0.0.1", command]
        return blocking(
            lambda: subprocess.run(arguments, check=True, capture_output=True, text=True, input=text)
        )

    root = server.home / "work"
    async with SSHSandbox(root, writable=True, **server.options) as sandbox:
        await sandbox.write("file", TEXT)
        for number in range(100):
            await sandbox.write(f"many/{number}", "")
        work = files(sandbox, "sandbox")
        commands = {
            "a command (true)": (TRUE, None, lambda: sandbox.execute_program([TRUE], timeout=10)),
            "read of 10 kB": (f"cat {root}/file", None, work["sandbox read"]),
            "write of 10 kB": (f"cat > {root}/new && mv {root}/new {root}/file", TEXT, work["sandbox write"]),
            "list of 100 entries": (f"ls {root}/many", None, work["sandbox list"]),
        }
        for name, (command, text, ours) in commands.items():
            rows = {
                "ssh": ssh(plain, command, text),
                "ssh, ControlMaster": ssh(shared, command, text),
                "SSHSandbox": ours,
            }
            taken = await measure(max(rounds // 4, 5), rows)
            show(f"over SSH on loopback, {name}", taken, "ssh, ControlMaster")


@contextmanager
def idle(image: str) -> Iterator[str]:
    """Start a container that does nothing; yield its name."""
    name = f"littleghost-bench-{os.getpid()}"
    start = ["podman", "run", "--rm", "--detach", "--pull=never", "--name", name, *BOUNDS]
    subprocess.run([*start, "--entrypoint", "sleep", image, "10000"], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["podman", "rm", "--force", "--time", "0", name], check=True, capture_output=True)


async def in_containers(rounds: int, folder: Path, image: str | None) -> None:
    """Measure a container, beside an ``exec`` in one; with a user's image, or with one that the tests make."""
    with ExitStack() as stack:
        if image is None:
            sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
            import containers

            missing = containers.missing()
            if missing:
                print(
                    f"\n!!! containers are NOT MEASURED: {missing} is missing. To have it: {containers.HOW}"
                )
                return
            found = stack.enter_context(containers.containers())
            os.environ.update(found.environment)
            image = found.image
        name = stack.enter_context(idle(image))
        once = [
            "podman",
            "run",
            "--rm",
            "--pull=never",
            "--network",
            "none",
            *BOUNDS,
            "--entrypoint",
            "true",
            image,
        ]
        run: dict[str, Work] = {
            "podman exec": blocking(lambda: subprocess.run(["podman", "exec", name, "true"], check=True)),
            "podman run": blocking(lambda: subprocess.run(once, check=True)),
        }

        async def opened() -> None:
            async with ContainerSandbox(folder / "opened", image=image, engine="podman"):
                pass

        run["ContainerSandbox, opened and closed"] = opened
        async with ContainerSandbox(
            folder / "container", image=image, engine="podman", writable=True
        ) as sandbox:
            run["ContainerSandbox"] = lambda: sandbox.execute_program(["true"], timeout=10)
            await sandbox.write("file", TEXT)
            for number in range(100):
                await sandbox.write(f"many/{number}", "")
            show("a command (true) in a container", await measure(max(rounds // 5, 5), run), "podman exec")
            show(
                "files in a container",
                await measure(rounds * 3, files(sandbox, "container")),
                "container read",
            )


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    parser.add_argument("--image", help="an image with Python 3.11, for containers; else one is made")
    given = parser.parse_args()
    rounds = 10 if given.quick else 200
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host = await stack.enter_async_context(HostSandbox(folder / "host", writable=True))
        spawns: dict[str, Work] = {
            "subprocess.run": blocking(lambda: subprocess.run([TRUE], check=True, capture_output=True)),
            "os.posix_spawn": blocking(spawn),
            "HostSandbox": lambda: host.execute_program([TRUE], timeout=10),
        }
        far = None
        if importlib.util.find_spec("uvicorn") and sys.platform == "linux":
            far = await stack.enter_async_context(service(folder))
            spawns["RemoteSandbox of a HostSandbox"] = lambda: far.execute_program([TRUE], timeout=10)
        if shutil.which("bwrap"):
            isolated = await stack.enter_async_context(
                BubblewrapSandbox(folder / "bubblewrap", writable=True)
            )
            spawns["bwrap, bare"] = blocking(lambda: subprocess.run(BARE, check=True, capture_output=True))
            spawns["BubblewrapSandbox"] = lambda: isolated.execute_program([TRUE], timeout=10)
        show("a command (true), after a pause", await measure(rounds, spawns, pause=PAUSE), "subprocess.run")
        show("a command (true), back to back", await measure_blocks(rounds, spawns), "subprocess.run")

        await host.write("file", TEXT)
        for number in range(100):
            await host.write(f"many/{number}", "")
        root = host.workspace.root
        remote: dict[str, Work] = {}
        if far is not None:
            await far.write("file", TEXT)
            for number in range(100):
                await far.write(f"many/{number}", "")
            remote = files(far, "remote")
        raw: dict[str, Work] = {
            "plain read": blocking((root / "file").read_text),
            "plain write, renamed": blocking(lambda: atomic_write(root / "file")),
            "plain list": blocking(lambda: sorted(entry.name for entry in (root / "many").iterdir())),
        }
        for floor, (name, work) in zip(raw, files(host, "sandbox").items(), strict=True):
            beside = {
                each: far_work for each, far_work in remote.items() if each.split()[-1] == name.split()[-1]
            }
            rows = {floor: raw[floor], name: work, **beside, "thread hop": lambda: asyncio.to_thread(int)}
            taken = await measure(rounds * 3, rows)
            show(
                name.removeprefix("sandbox ") + (" of 100 entries" if "list" in name else " of 10 kB"),
                taken,
                floor,
            )
        await over_ssh(rounds, stack.enter_context(ssh_server()))
        await in_containers(rounds, folder, given.image)


if __name__ == "__main__":
    asyncio.run(main())
