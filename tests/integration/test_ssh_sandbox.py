"""A sandbox on another machine, with a real OpenSSH server: what works, and what is said where something does not."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from littleghost import (
    CapabilityError,
    ConfigurationError,
    CredentialError,
    DependencyError,
    LittleGhostError,
    SandboxLimits,
    SSHSandbox,
    ToolConnectionError,
    ToolFileNotFoundError,
    ToolPermissionError,
    Workspace,
)

if sys.platform != "linux":
    pytest.skip("the server is set up for Linux", allow_module_level=True)

import sshd

SECRET = "corr3ct-h0rse"


@pytest.fixture
def there(ssh_server, tmp_path: Path) -> str:
    """A workspace that the server's user can write, and the tests can look into."""
    root = ssh_server.folder / f"work-{tmp_path.name}"
    root.mkdir()
    root.chmod(0o777)
    return str(root)


async def refused(kind: type[LittleGhostError], workspace: str, **options: Any) -> str:
    """What `open` says, having raised an error of just that kind and left nothing."""
    sandbox = SSHSandbox(workspace, **options)
    with pytest.raises(kind) as told:
        await sandbox.open()
    assert type(told.value) is kind, repr(told.value)
    assert not sandbox.is_open
    await sandbox.close()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert SECRET not in f"{told.value!r}{told.value}{vars(told.value)}{sandbox!r}"
    return str(told.value)


async def test_files_and_programs_are_over_there(ssh_server, there: str) -> None:
    async with SSHSandbox(there, writable=True, **ssh_server.options) as sandbox:
        await sandbox.write("made/file", "hello\n")
        assert Path(there, "made", "file").read_text() == "hello\n"
        done = await sandbox.execute(
            "id -un; pwd; cat made/file; echo $TOKEN", timeout=20, environment={"TOKEN": "t"}
        )
        assert done.stdout == f"{ssh_server.user}\n{there}\nhello\nt\n"
        async with await sandbox.start_program(["cat"]) as process:
            await process.write(b"hello\n")
            assert await process.read() == b"hello\n"


async def test_what_is_in_force_is_said(ssh_server, there: str) -> None:
    async with SSHSandbox(there, **ssh_server.options) as sandbox:
        assert not {"isolation", "local_files", "write", "read_only_processes"} & sandbox.capabilities
        assert {"execute", "kill_tree", "files"} <= sandbox.capabilities
        stated = sandbox.effective_policy
        assert stated.root == "read_only"
        assert (stated.network, stated.root_filesystem) == ("inherit", "host")
        assert "127.0.0.1" in stated.processes
        assert any("worker" in each for each in stated.not_enforced)
        with pytest.raises(ToolPermissionError):
            await sandbox.write("file", "")


async def test_paths_by_name(ssh_server, there: str) -> None:
    workspace = Workspace(there, {"below": "made/here", "beside": f"{ssh_server.folder}"})
    async with SSHSandbox(workspace, writable=True, **ssh_server.options) as sandbox:
        await sandbox.write("workspace://below/file", "x")
        assert Path(there, "made", "here", "file").read_text() == "x"
        assert "host.pub" in await sandbox.list("workspace://beside")
        with pytest.raises(ToolPermissionError):
            await sandbox.write("workspace://beside/file", "x")


async def test_variables_are_on_no_command_line(ssh_server, there: str) -> None:
    async with SSHSandbox(
        there, writable=True, policy={"environment": {"A": SECRET}}, **ssh_server.options
    ) as sandbox:
        running = asyncio.create_task(
            sandbox.execute("touch runs; sleep 100", timeout=100, environment={"B": SECRET}, input=SECRET)
        )
        while not Path(there, "runs").exists():
            await asyncio.sleep(0.02)
        lines = [
            file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if os.access(file, os.R_OK)
        ]
        assert any(b"binascii.unhexlify" in line for line in lines)
        assert not any(SECRET.encode() in line for line in lines)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("noise", ["printf 'Welcome!\\n\\0\\377'", "head -c 60000 /dev/zero"])
async def test_a_login_that_prints_disturbs_nothing(ssh_server, there: str, noise: str) -> None:
    with ssh_server.account(f'command="{noise}; eval \\"$SSH_ORIGINAL_COMMAND\\""') as key:
        async with SSHSandbox(
            there, writable=True, **{**ssh_server.options, "client_keys": [str(key)]}
        ) as sandbox:
            await sandbox.write("file", "x")
            assert (await sandbox.execute("cat file", timeout=20)).stdout == "x"


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("exit 0", CapabilityError, "sftp only"),
        ("echo This account is not available.; exit 1", CapabilityError, "This account is not available."),
        (
            "echo Could not chdir to home directory /nowhere: No such file or directory >&2; echo No account.; exit 1",
            CapabilityError,
            "did not start: No account.",
        ),
        ("echo oops >&2; exit 1", CapabilityError, "oops"),
        ("yes", ToolConnectionError, "something else than a worker"),
        (r"printf '\000littleghost\000ready\n'; yes", ToolConnectionError, "the sandbox"),
        (r"printf '\000littleghost\000ready\n'", ToolConnectionError, "was ended there"),
    ],
)  # fmt: skip
async def test_an_account_that_runs_no_worker(
    ssh_server, there: str, script: str, kind: type[LittleGhostError], said: str
) -> None:
    Path(there, "script").write_text(script)
    with ssh_server.account(f'command="sh {there}/script"') as key:
        options = {**ssh_server.options, "client_keys": [str(key)]}
        assert said in await refused(kind, there, **options)


async def test_an_account_for_sftp_only(ssh_server, there: str) -> None:
    with ssh_server.account('command="internal-sftp"') as key:
        options = {**ssh_server.options, "client_keys": [str(key)]}
        assert "sftp connections only" in await refused(CapabilityError, there, **options)


async def test_no_python_or_too_old_a_one(ssh_server, there: str) -> None:
    said = await refused(CapabilityError, there, **ssh_server.options, python="python3.nowhere")
    assert "no Python" in said
    assert "python=" in said
    assert "[127.0.0.1]" in said
    old = Path(there, "an old 'python'")
    old.write_text(
        "#!/bin/sh\nexec python3 -c 'import sys; sys.version_info = (3, 8, 1); exec(sys.argv[1])' \"$5\"\n"
    )
    old.chmod(0o755)
    said = await refused(CapabilityError, there, **ssh_server.options, python=str(old))
    assert "has Python 3.8" in said
    assert "3.11" in said


async def test_a_workspace_that_cannot_be(ssh_server, there: str) -> None:
    Path(there, "file").touch()
    for root in (f"{there}/file", "/proc/nothing"):
        said = await refused(ConfigurationError, root, **ssh_server.options)
        assert said.startswith("[127.0.0.1]:")
        assert root in said
    async with SSHSandbox(f"{there}/made/anew", **ssh_server.options) as sandbox:
        assert await sandbox.list() == []
        with pytest.raises(ToolFileNotFoundError):
            await sandbox.read("file")


async def test_a_workspace_of_this_machine_is_refused(ssh_server) -> None:
    for workspace in (Workspace.temporary(), Workspace("/tmp/x", setup=lambda _: None)):
        with pytest.raises(ConfigurationError, match="another machine"):
            await SSHSandbox(workspace, **ssh_server.options).open()
    with pytest.raises(ConfigurationError, match="absolute"):
        SSHSandbox("here", **ssh_server.options)


async def test_what_cannot_be_enforced_there_is_refused(ssh_server, there: str) -> None:
    for limits in ({"temporary_bytes": 1_000_000}, {"disk_bytes": 1_000_000}):
        await refused(CapabilityError, there, **ssh_server.options, limits=SandboxLimits(**limits))
    for policy in ({"network": "none"}, {"root_filesystem": "isolated"}):
        assert "SSHSandbox" in await refused(CapabilityError, there, **ssh_server.options, policy=policy)


async def test_who_may_not_log_in(ssh_server, there: str) -> None:
    options = {**ssh_server.options, "client_keys": [str(ssh_server.folder / "other")]}
    said = await refused(CredentialError, there, **options, password=SECRET)
    assert f"does not let {ssh_server.user} in" in said
    assert "client_keys=" in said
    await refused(CredentialError, there, **{**options, "client_keys": None})


async def test_keys_that_cannot_be_used(ssh_server, there: str, tmp_path: Path) -> None:
    sshd.make_key(tmp_path / "locked", SECRET)
    options = {**ssh_server.options, "client_keys": [str(tmp_path / "locked")]}
    assert "passphrase" in await refused(CredentialError, there, **options)
    assert "passphrase" in await refused(CredentialError, there, **options, passphrase=SECRET + "x")
    assert "does not let" in await refused(CredentialError, there, **options, passphrase=SECRET)
    (tmp_path / "broken").write_text("no key")
    options["client_keys"] = [str(tmp_path / "broken")]
    await refused(CredentialError, there, **options)
    options["client_keys"] = [str(tmp_path / "missing")]
    assert "missing" in await refused(ConfigurationError, there, **options)


async def test_an_encrypted_key_and_its_passphrase(ssh_server, there: str, tmp_path: Path) -> None:
    with ssh_server.account() as key:
        await asyncio.to_thread(
            sshd.subprocess.run,
            ["ssh-keygen", "-q", "-p", "-a", "1", "-N", SECRET, "-f", str(key)],
            check=True,
        )
        options = {**ssh_server.options, "client_keys": [str(key)], "passphrase": SECRET}
        async with SSHSandbox(there, **options) as sandbox:
            assert SECRET not in repr(sandbox)
            assert await sandbox.list() == []


async def test_host_keys_that_are_unknown_or_others(
    ssh_server, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**ssh_server.options}
    known, other = tmp_path / "known", (ssh_server.folder / "other.pub").read_text()
    known.write_text("")
    options["known_hosts"] = str(known)
    said = await refused(CredentialError, there, **options)
    assert "is not known" in said
    assert str(known) in said
    assert "fingerprint" in said
    known.write_text(f"[127.0.0.1]:{ssh_server.port} {other}")
    for given in (str(known), known, [known], known.read_bytes()):
        said = await refused(CredentialError, there, **{**options, "known_hosts": given})
        assert "is not the one" in said
        assert f"ssh-keygen -R '[127.0.0.1]:{ssh_server.port}'" in said
        assert isinstance(given, bytes) or str(known) in said
    known.write_text(
        f"@revoked * {(ssh_server.folder / 'host.pub').read_text()}{ssh_server.known_hosts.read_text()}"
    )
    assert "revoked" in await refused(CredentialError, there, **options)
    known.write_text("nonsense")
    await refused(ConfigurationError, there, **options)
    options["known_hosts"] = str(tmp_path / "missing")
    assert "missing" in await refused(ConfigurationError, there, **options)

    monkeypatch.setenv("HOME", str(tmp_path))  # the user's own file, which is not there, and then is
    del options["known_hosts"]
    said = await refused(CredentialError, there, **options)
    assert "is not known" in said
    assert str(tmp_path / ".ssh" / "known_hosts") in said
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(ssh_server.known_hosts.read_text())
    async with SSHSandbox(there, **options) as sandbox:
        assert await sandbox.list() == []


async def test_the_check_of_host_keys_cannot_be_switched_off(ssh_server, there: str, tmp_path: Path) -> None:
    for nothing in (None, False):
        with pytest.raises(ConfigurationError, match="known_hosts"):
            SSHSandbox(there, **{**ssh_server.options, "known_hosts": nothing})
    options = {**ssh_server.options}
    del options["known_hosts"]
    config = tmp_path / "config"
    config.write_text("Host *\nUserKnownHostsFile none\nStrictHostKeyChecking no\n")
    assert "UserKnownHostsFile" in await refused(ConfigurationError, there, **options, config=config)
    for empty in ([], b"", ([], [], [])):
        await refused(CredentialError, there, **{**options, "known_hosts": empty})


async def test_an_ssh_config_that_was_asked_for(ssh_server, there: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host machine\nHostName 127.0.0.1\nUser {ssh_server.user}\nIdentityFile {ssh_server.key}\n"
        f"UserKnownHostsFile {ssh_server.known_hosts}\nRemoteCommand exit 3\nRequestTTY force\nForwardAgent yes\n"
    )
    async with SSHSandbox(there, host="machine", port=ssh_server.port, config=config) as sandbox:
        assert await sandbox.list() == []
    await refused(ToolConnectionError, there, host="machine.invalid", connect_timeout=5)


async def answers(serve: Callable[..., Any]) -> asyncio.Server:
    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_machines_that_cannot_be_reached(ssh_server, there: str) -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def short(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n" + bytes(range(256)) * 100)
        writer.close()

    held: list[asyncio.StreamWriter] = []
    for serve, said in (
        (None, "cannot be reached"),
        (silent, "within 0.5 s"),
        (web, ""),
        (short, ""),
        (garbage, ""),
    ):
        server = await asyncio.start_server(serve or short, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if serve is None:
            server.close()
        # what asyncssh makes of garbage is its own affair, as long as it is said
        sandbox = SSHSandbox(there, **{**ssh_server.options, "port": port}, connect_timeout=0.5)
        with pytest.raises(LittleGhostError) as told:
            await sandbox.open()
        assert type(told.value) in (ToolConnectionError, ConfigurationError), repr(told.value)
        assert said in str(told.value)
        assert f"[127.0.0.1]:{port}" in str(told.value)
        await sandbox.close()
        server.close()
        for writer in held:
            writer.transport.abort()


async def test_a_password(ssh_server, there: str) -> None:
    import asyncssh

    class Asks(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return password == SECRET

    server = await asyncssh.create_server(
        Asks, "127.0.0.1", 0, server_host_keys=[str(ssh_server.folder / "host")]
    )
    port = server.get_port()
    options = {**ssh_server.options, "port": port, "client_keys": None}
    options["known_hosts"] = f"[127.0.0.1]:{port} {(ssh_server.folder / 'host.pub').read_text()}".encode()
    try:
        await refused(CredentialError, there, **options)
        await refused(CredentialError, there, **options, password=SECRET + "x")
        assert "runs no programs" in await refused(CapabilityError, there, **options, password=SECRET)
    finally:
        server.close()
        await server.wait_closed()


async def test_without_asyncssh(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    assert "littleghost[ssh]" in await refused(DependencyError, there, host="127.0.0.1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"host": "-x"},
        {"python": ""},
        {"connect_timeout": 0},
        {"keepalive_interval": float("nan")},
    ],
)
def test_arguments_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SSHSandbox("/tmp/x", **{"host": "h", **wrong})


async def test_a_port_that_is_none(there: str, ssh_server) -> None:
    await refused(ConfigurationError, there, **{**ssh_server.options, "port": 123_456})


async def test_the_probe(ssh_server, there: str) -> None:
    probe = await SSHSandbox.probe(directory=there, **ssh_server.options)
    assert probe.available, probe.reason
    assert probe.version.startswith("Python 3.")
    assert sum(check.denial for check in probe.checks) >= 5
    assert os.listdir(there) == []
    probe = await SSHSandbox.probe(**{**ssh_server.options, "port": 1})
    assert not probe.available
    assert "cannot be reached" in probe.reason


async def test_the_probe_finds_files_that_are_not_confined(ssh_server, there: str) -> None:
    class Trusting(SSHSandbox):
        async def read(self, path, **options):
            return (await self.execute_program(["cat", path], timeout=20)).stdout

        async def write(self, path, content, **options):
            await self.execute_program(["sh", "-c", 'printf %s "$1" > "$0"', path, content], timeout=20)

    probe = await Trusting.probe(directory=there, **ssh_server.options)
    assert not probe.available
    for each in (
        "read through a planted link worked",
        "write below a planted link worked",
        "leads up worked",
    ):
        assert each in probe.reason
    assert os.listdir(there) == []


def test_every_exception_of_asyncssh_is_one_of_ours(require) -> None:
    asyncssh = pytest.importorskip("asyncssh")
    from littleghost.sandboxes.ssh import mapped

    kinds = {
        thing for thing in vars(asyncssh).values() if inspect.isclass(thing) and issubclass(thing, Exception)
    }
    assert len(kinds) > 30
    expected = {
        "HostKeyNotVerifiable": CredentialError, "PermissionDenied": CredentialError, "IllegalUserName": CredentialError,
        "PasswordChangeRequired": CredentialError, "KeyImportError": CredentialError, "KeyEncryptionError": CredentialError,
        "KeyExportError": CredentialError, "KeyGenerationError": CredentialError, "ConfigParseError": ConfigurationError,
        "ChannelOpenError": CapabilityError, "KeyExchangeFailed": ConfigurationError, "ProtocolNotSupported": ConfigurationError,
        "ConnectionLost": ToolConnectionError, "ProtocolError": ToolConnectionError, "MACError": ToolConnectionError,
        "ServiceNotAvailable": ToolConnectionError, "CompressionError": ToolConnectionError, "DisconnectError": ToolConnectionError,
    }  # fmt: skip
    assert set(expected) <= {kind.__name__ for kind in kinds}
    others = [
        ConnectionRefusedError(111, "refused"),
        TimeoutError(),
        OSError("x"),
        ValueError("x"),
        AssertionError(),
    ]
    for error in [*map(made, kinds), *others]:
        found = mapped(asyncssh, error, "there", username=None, known_hosts="the file", known=True)
        kind = type(error).__name__
        assert isinstance(found, LittleGhostError), kind
        assert type(found) is expected.get(kind, type(found)), kind
        if isinstance(error, asyncssh.Error):
            assert "with these arguments" not in str(found), kind


def made(kind: type[Exception]) -> Exception:
    """An exception of a kind, with something for each argument that it must have."""
    given: dict[str, Any] = {
        "code": 2,
        "env": None,
        "command": None,
        "subsystem": None,
        "exit_status": 1,
        "exit_signal": None,
    }
    if kind.__init__ in (Exception.__init__, ValueError.__init__):
        return kind("x")
    parameters = inspect.signature(kind).parameters.values()
    return kind(*[
        given.get(each.name, "x")
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.POSITIONAL_ONLY)
    ])  # fmt: skip
