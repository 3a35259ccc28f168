"""Files and programs on another machine, over SSH."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    CredentialError,
    DependencyError,
    LittleGhostError,
    ToolConnectionError,
    ToolError,
)
from littleghost.sandboxes.contract import Check, Probe, Sandbox, SandboxLimits
from littleghost.sandboxes.far import guest
from littleghost.sandboxes.far.line import PipeTransport, Transport
from littleghost.sandboxes.far.sandbox import FarSandbox
from littleghost.sandboxes.far.wire import GREETING, frame
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.workspace import Workspace, shown

__all__ = ["SSHSandbox"]

_OFFERED = frozenset(
    {
        "files",
        "bytes",
        "ranges",
        "stat",
        "glob",
        "grep",
        "named_paths",
        "scope",
        "git_read_only",
        "write",
        "delete",
        "move",
        "make_directory",
        "execute",
        "start_program",
        "kill_tree",
    }
)
_ISOLATED = frozenset(
    {"isolation", "isolated_root", "pid_namespace", "read_only_processes", "hidden_environment"}
)
_TOLD = frozenset(
    {"memory_limit", "process_limit", "cpu_limit", "file_limit", "seccomp", "git_read_only_processes"}
)
_MISSES = 3  # intervals without a sign of life after which the other machine is gone
_SIGN = frame(GREETING, {"cancel": True})  # it withdraws nothing, and is heard
_STARTING = 30.0  # seconds for the worker to be there
_ENDING = 15.0  # seconds for it to be gone
_PIECE = 1 << 18


class SSHSandbox(FarSandbox):
    """Works on another machine over SSH, which needs Python 3.11 or newer. It **isolates nothing there** unless asked to.

    One connection is opened at `open`. Over it runs a worker, an interpreter of that machine that is given its program through the
    connection and leaves no file behind. A command or a file operation costs a round trip. The worker confines the file methods as on
    this machine, by descriptor. A program runs as the user who logged in, and may do all that user may: take a machine, or at
    least a user, that has nothing else.

    Everything that was started ends with the connection: at `close`, at the death of the application or of the session over there, and
    when one side hears nothing of the other any more. Then every call raises `ToolConnectionError`, until the sandbox is closed and
    opened again.

    With ``isolation="bubblewrap"`` the worker isolates programs over there as a `BubblewrapSandbox` does here, and `open` fails where
    that cannot be. Then programs cannot reach the worker either.

    The host key is always verified. Neither agent nor X11 is forwarded, there is no terminal, and variables of a command are not on any
    command line.

    Args:
        workspace: An absolute path over there, or a `Workspace` of such paths without hooks. It is created where it is missing.
        host: The machine's name or address.
        port: Its port.
        username: Whom to log in as; this application's user when left out.
        known_hosts: The keys that hosts are known by: a file, several, or the text of one as bytes; ``~/.ssh/known_hosts`` when left out.
            See `asyncssh <https://asyncssh.readthedocs.io/en/latest/api.html#specifying-known-hosts>`_ for what else. ``None``, which
            would switch the check off there, is refused.
        client_keys: Files of private keys, or keys of asyncssh; when left out, those of the agent and of ``~/.ssh``. ``None`` uses none.
        passphrase: What the private keys are encrypted with.
        password: For servers that ask for one.
        agent_path: The agent's socket; ``SSH_AUTH_SOCK`` when left out. ``None`` uses no agent.
        config: Files in the format of ``ssh_config``, which also say what is left out here, but for the port; by default none.
        isolation: ``"bubblewrap"``, or ``None`` for none.
        python: The interpreter over there, by a name on the ``PATH`` or an absolute path.
        connect_timeout: Seconds until the login must be done.
        keepalive_interval: Seconds between two signs of life, which both sides give. When nothing came for three of these intervals the
            connection is taken for lost; the worker takes it for lost, and ends, after six.
        writable: See `Sandbox`.
        policy: See `Sandbox`.
        limits: See `Sandbox`. What that machine cannot enforce makes `open` fail.

    Raises:
        ConfigurationError: An argument cannot be.
    """

    _refused_here = {  # noqa: RUF012 (the annotation is the parent's)
        "temporary_bytes": "SSHSandbox has no private /tmp, so it cannot enforce the limit temporary_bytes"
    }

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        host: str,
        port: int = 22,
        username: str | None = None,
        known_hosts: Any = (),
        client_keys: Any = (),
        passphrase: str | bytes | None = None,
        password: str | None = None,
        agent_path: str | os.PathLike[str] | tuple[()] | None = (),
        config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        isolation: Literal["bubblewrap"] | None = None,
        python: str = "python3",
        connect_timeout: float = 20.0,
        keepalive_interval: float = 10.0,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> None:
        if not isinstance(workspace, Workspace) and not os.path.isabs(workspace):
            raise ConfigurationError(
                "the workspace of an SSHSandbox is an absolute path on the other machine"
            )
        if not host or host.startswith("-") or not python or "\0" in host + python:
            raise ConfigurationError("host= and python= must name something")
        if known_hosts is None or known_hosts is False:
            raise ConfigurationError(
                "known_hosts=None would take any machine for the right one; name a file, or leave it out for ~/.ssh/known_hosts"
            )
        for name, value in (
            ("connect_timeout", connect_timeout),
            ("keepalive_interval", keepalive_interval),
        ):
            if not 0 < value < 86_400:
                raise ConfigurationError(f"{name} must be a number of seconds above 0, and less than a day")
        if isolation not in (None, "bubblewrap"):
            raise ConfigurationError(f"isolation must be 'bubblewrap' or None, not {isolation!r}")
        self._isolation, self.confines_processes = isolation, isolation is not None
        super().__init__(workspace, writable=writable, policy=policy, limits=limits)
        if isolation is not None:
            self._refused_here = {}
        self._host, self._port, self._username, self._python = host, port, username, python
        self._known_hosts = known_hosts
        self._login: dict[str, Any] = {
            "client_keys": client_keys,
            "passphrase": passphrase,
            "password": password,
            "agent_path": agent_path,
        }
        self._config, self._connect_timeout, self._interval = config, connect_timeout, keepalive_interval
        self._connection: Any = None
        self._channel: _Channel | None = None
        self._watching: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"SSHSandbox({str(self.workspace.root)!r} on {self._where}, {'open' if self.is_open else 'not open'})"

    @property
    def _where(self) -> str:
        return self._host if self._port == 22 else f"[{self._host}]:{self._port}"

    def _offers(self) -> frozenset[str]:
        if self._isolation is None:
            return _OFFERED
        network: frozenset[str] = (
            frozenset() if self.policy.network == "inherit" else frozenset({"network_none"})
        )
        return _OFFERED | _ISOLATED | network

    def stated(self) -> EffectivePolicy:
        """Return what is in force: what a `HostSandbox` on the other machine enforces, less what a connection adds to its weaknesses."""
        told = self.told.in_force
        if self._isolation is not None:
            return msgspec.structs.replace(told, processes=f"{told.processes}, on {self._host}")
        return msgspec.structs.replace(
            told,
            network="inherit",
            root_filesystem="host",
            processes=f"run as the user who logged in to {self._host}, with all of that user's rights there",
            not_enforced=(
                *told.not_enforced,
                "survival of the worker: a program of the same user that kills or stops it ends the sandbox",
                "what the login shell of that user does at the next login, which programs may change",
            ),
        )

    def _greeting(self) -> dict[str, Any]:
        paths = {name: str(path) for name, path in self.workspace.given_paths.items()}
        return {
            **super()._greeting(),
            "paths": paths,
            "signs": self._interval,
            "isolation": self._isolation,
        }

    async def _prepare(self) -> None:
        if not self.workspace.is_plain:
            raise ConfigurationError(
                "the workspace of an SSHSandbox is on another machine, so it cannot be temporary or have setup= or teardown="
            )
        if self._isolation is not None:
            return
        if self.policy.network not in (None, "inherit"):
            raise CapabilityError(
                "SSHSandbox cannot keep programs off the other machine's network without isolation='bubblewrap'"
            )
        if self.policy.root_filesystem not in (None, "host"):
            raise CapabilityError(
                "SSHSandbox cannot hide the other machine's files from programs without isolation='bubblewrap'"
            )

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except ConfigurationError as error:
            # What the worker refuses, it refuses in the words of a sandbox of its own machine.
            if self._where not in error.message:
                error.message = f"{self._where}: {error.message}"
            raise

    async def _lay(self) -> tuple[Transport, bytes]:
        asyncssh = _asyncssh()
        self._connection = connection = await self._connected(asyncssh)
        try:
            async with asyncio.timeout(_STARTING):
                process = await connection.create_process(_command(self._python), encoding=None)
                self._channel = channel = _Channel(asyncssh, connection, process, self._where)
                try:
                    held = await guest.begin(
                        channel, self._where, guest.ISOLATING if self._isolation else guest.MODULES
                    )
                    channel.serving = True
                    return channel, held
                except CapabilityError as error:
                    raise CapabilityError(f"{error}{_hint(process, str(error))}") from error
        except TimeoutError as error:
            raise ToolConnectionError(
                f"{self._where} let us in, but no worker started there within {_STARTING:g} s; "
                "does the account run programs? (one for sftp only does not)"
            ) from error
        except Exception as error:
            raise self._mapped(asyncssh, error) from error

    async def _connected(self, asyncssh: Any) -> Any:
        known = self._known(asyncssh)
        given: dict[str, Any] = {
            **self._login,
            "known_hosts": known,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "request_pty": False,
            "env": {},
            "send_env": [],
            "gss_host": None,
            "compression_algs": None,
            "keepalive_interval": 0,  # there are signs of life of our own
        }
        if self._username is not None:
            given["username"] = self._username
        config = self._config
        if config is not None:
            config = [
                os.fspath(file) for file in ([config] if isinstance(config, str | os.PathLike) else config)
            ]
        where: dict[str, Any] = {"host": self._host, "port": self._port, "config": config}
        try:
            async with asyncio.timeout(self._connect_timeout):
                options = await asyncssh.SSHClientConnectionOptions.construct(**where, **given)
                if options.known_hosts is None:
                    raise ConfigurationError(
                        "the ssh_config says UserKnownHostsFile none, which would take any machine for the right one"
                    )
                return await asyncssh.connect(
                    self._host, self._port, config=config, **{**given, "known_hosts": options.known_hosts}
                )
        except TimeoutError as error:
            raise ToolConnectionError(
                f"{self._where} did not let us in within {self._connect_timeout:g} s; is it up, and does a firewall let SSH through?"
            ) from error
        except Exception as error:
            raise self._mapped(asyncssh, error) from error

    def _known(self, asyncssh: Any) -> Any:
        """Return the known hosts as asyncssh takes them, having read the files that were named."""
        known = self._known_hosts
        try:
            if known == () and self._config is None:
                default = _default_known_hosts()
                return (
                    asyncssh.read_known_hosts(str(default))
                    if default.exists()
                    else asyncssh.import_known_hosts("")
                )
            if isinstance(known, bytes):
                return asyncssh.import_known_hosts(known.decode())
            if isinstance(known, str | os.PathLike):
                known = cast("Any", [known])
            if isinstance(known, list):
                files = cast("list[str | os.PathLike[str]]", known)
                return asyncssh.read_known_hosts([os.path.expanduser(file) for file in files])
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"the known hosts cannot be read: {_reason(error)}{_file(error)}"
            ) from error
        return known

    def _mapped(self, asyncssh: Any, error: Exception) -> LittleGhostError:
        """Return what an exception of asyncssh, or one on the way to it, is here."""
        return mapped(
            asyncssh,
            error,
            self._where,
            username=self._username,
            known_hosts=self._sources(),
            known=self._is_known(asyncssh),
        )

    def _is_known(self, asyncssh: Any) -> bool:
        """Return whether there is some key of the machine, as far as that can be said."""
        port = None if self._port == 22 else self._port
        try:
            known = asyncssh.match_known_hosts(self._known(asyncssh), self._host, "", port)
            return any(known[:3])
        except Exception:  # noqa: BLE001 (the keys may come from a function of the application's)
            return True

    def _sources(self) -> str:
        """Return where the known hosts are from, in words."""
        known = self._known_hosts
        if known == ():
            return str(_default_known_hosts()) if self._config is None else "the files of the ssh_config"
        if isinstance(known, str | os.PathLike):
            return os.fspath(cast("str", known))
        if isinstance(known, list):
            return ", ".join(map(str, cast("list[Any]", known))) or "known_hosts="
        return "known_hosts="

    async def _try(self) -> None:
        told = self.told.capabilities
        if not told >= (self._offers() - _OFFERED):
            raise CapabilityError(f"the worker on {self._where} does not isolate as it was told to")
        self.capabilities = (self.capabilities - (_OFFERED - told)) | (told & _TOLD)
        assert self._channel is not None  # noqa: S101 (the sandbox is open)
        self._watching = asyncio.get_running_loop().create_task(
            _watch(self._channel, self._interval), name="littleghost-ssh"
        )

    async def _unlay(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        channel, self._channel = self._channel, None
        connection, self._connection = self._connection, None
        if channel is not None:
            await channel.close()
        if connection is not None:
            await _ended(connection)

    @classmethod
    async def probe(
        cls,
        *,
        directory: str = "/tmp",  # noqa: S108 (over there)
        isolation: Literal["bubblewrap"] | None = None,
        **options: Any,
    ) -> Probe:
        """Return whether a machine can be worked on: the login, its key, its Python, that the file methods stay inside, and what isolates.

        Args:
            directory: Where, over there, a directory of its own can be made for it, which is deleted afterwards.
            isolation: As for the class. Opening the sandbox tries over there whether bubblewrap denies what it must.
            **options: As for the class; ``host`` at least.
        """
        folder = f"{directory.rstrip('/')}/littleghost-probe-{secrets.token_hex(8)}"
        try:
            async with cls(f"{folder}/workspace", writable=True, **options) as sandbox:
                try:
                    checks = await _checks(sandbox, folder)
                    if isolation is not None:
                        async with cls(
                            f"{folder}/workspace", writable=True, isolation=isolation, **options
                        ) as isolated:
                            checks += await _isolated(isolated, folder)
                finally:
                    with suppress(LittleGhostError):
                        await sandbox.execute_program(["/bin/rm", "-rf", "--", folder], timeout=20)
                version = f"Python {shown(sandbox.told.python)}"
        except LittleGhostError as error:
            return Probe(available=False, reason=str(error))
        wrong = [f"{check.name} {'worked' if check.denial else 'failed'}" for check in checks if not check.ok]
        reason = "" if not wrong else "not as it must be: " + ", ".join(wrong)
        return Probe(available=not wrong, reason=reason, checks=tuple(checks), version=version)


class _Channel(PipeTransport):
    """The line: the pipes of a program on the other side of an SSH connection.

    Args:
        asyncssh: The package.
        connection: The connection, which ends with the line.
        process: The program.
        where: The machine.

    Attributes:
        serving: Whether the worker is there.
        received: How often something came.
        over: Whether nothing more comes.
    """

    def __init__(self, asyncssh: Any, connection: Any, process: Any, where: str) -> None:
        self._failures = (*_failures(asyncssh), OSError)
        self._connection, self._process = connection, process
        super().__init__(
            _Reader(process.stdout, self._failures),
            process.stdin,
            _Reader(process.stderr, self._failures),
            self._over,
        )
        self._where = where
        self._sending = asyncio.Lock()
        self._silent = self._closing = False
        self.serving = self.over = False
        self.received = 0

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        async with self._sending:  # a frame stays whole
            for at in range(0, len(view), _PIECE):
                try:
                    self._process.stdin.write(bytes(view[at : at + _PIECE]))
                    await self._process.stdin.drain()
                except self._failures as error:
                    raise ConnectionResetError("the SSH connection was lost") from error

    async def receive(self) -> bytes:
        data = await super().receive()
        self.received += 1
        if not data:
            self.over = True
            if self.serving and not self._closing:
                raise ToolConnectionError(await self._why())
        return data

    async def give_sign(self) -> None:
        """Say that this side is there."""
        with suppress(OSError):  # whoever listens finds out
            await self.send(_SIGN)

    async def _why(self) -> str:
        """Return why nothing more comes."""
        if self._silent:
            return f"nothing is heard from {self._where} any more"
        with suppress(TimeoutError, *self._failures):
            await asyncio.wait_for(self._process.wait_closed(), 1.0)
        if self._process.exit_signal or self._process.exit_status is not None:
            return f"the worker on {self._where} was ended there"
        return f"the connection to {self._where} was lost"

    async def _over(self) -> None:
        """Let the worker end by itself, and then the connection."""
        try:
            async with asyncio.timeout(_ENDING):
                await self._process.wait_closed()
        except (TimeoutError, *self._failures):
            self._kill()
        await _ended(self._connection)

    async def close(self) -> None:
        self._closing = True
        with suppress(*self._failures):
            self._process.stdin.write_eof()
        await super().close()

    async def give_up(self) -> None:
        """End a connection over which nothing is heard, and the worker if it still can be reached: one that is stopped ends by SIGKILL."""
        self._silent = True
        self._kill()
        await _ended(self._connection)

    def _kill(self) -> None:
        with suppress(*self._failures):
            self._process.kill()


class _Reader:
    """A reader at whose end nothing is raised."""

    def __init__(self, reader: Any, failures: tuple[type[Exception], ...]) -> None:
        self._reader, self._failures = reader, failures

    async def read(self, size: int) -> bytes:
        try:
            return await self._reader.read(size)
        except self._failures:
            return b""


async def _watch(channel: _Channel, interval: float) -> None:
    """Give signs of life, and see that some come, until none does. How long this loop was held up by others does not count."""
    heard, misses = channel.received, 0
    saying: asyncio.Task[None] | None = None
    try:
        while misses < _MISSES:
            if saying is None or saying.done():
                saying = asyncio.get_running_loop().create_task(channel.give_sign())
            await asyncio.sleep(interval)
            if channel.over:
                return
            misses = misses + 1 if channel.received == heard else 0
            heard = channel.received
        await channel.give_up()
    finally:
        if saying is not None:
            saying.cancel()


async def _ended(connection: Any) -> None:
    """Close a connection, and do not wait long for the other side to agree."""
    connection.close()
    try:
        async with asyncio.timeout(2.0):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()


def _asyncssh() -> Any:
    try:
        import asyncssh
    except ImportError as error:
        raise DependencyError.missing("asyncssh", "ssh") from error
    return asyncssh


def _failures(asyncssh: Any) -> tuple[type[Exception], ...]:
    """Return what asyncssh raises where a connection fails that was made. None of it is an `OSError`."""
    return (
        asyncssh.Error,
        asyncssh.BreakReceived,
        asyncssh.SignalReceived,
        asyncssh.TerminalSizeChanged,
    )


def mapped(
    asyncssh: Any, error: Exception, where: str, *, username: str | None, known_hosts: str, known: bool
) -> LittleGhostError:
    """Return what an exception of asyncssh, or of the way to a connection, is in this library.

    Args:
        asyncssh: The package.
        error: The exception.
        where: The machine.
        username: Whom to log in as.
        known_hosts: Where its key should be, in words.
        known: Whether some key of it is there.
    """
    if isinstance(error, LittleGhostError):
        return error
    reason = _reason(error)
    unmatched = isinstance(error, asyncssh.KeyExchangeFailed) and "host key" in reason
    if isinstance(error, asyncssh.HostKeyNotVerifiable) or unmatched:
        if not known:
            return CredentialError(
                f"{where} is not known: {known_hosts} has no key of it. Log in once with ssh, compare the fingerprint it shows with the "
                "machine's own, and accept it; or have the key of its /etc/ssh/ssh_host_*.pub put there",
                host=where,
            )
        return CredentialError(
            f"the key of {where} is not the one that {known_hosts} has ({reason}). Somebody may be in between. If the machine was made "
            f"anew, remove the old key with ssh-keygen -R '{where}', and then get the new one by a way that can be trusted",
            host=where,
        )
    if isinstance(
        error, asyncssh.PermissionDenied | asyncssh.IllegalUserName | asyncssh.PasswordChangeRequired
    ):
        who = username or "this application's user"
        return CredentialError(
            f"{where} does not let {who} in ({reason}); give username=, client_keys= or password=, or add a key to an agent",
            host=where,
        )
    keys = (
        asyncssh.KeyImportError,
        asyncssh.KeyEncryptionError,
        asyncssh.KeyExportError,
        asyncssh.KeyGenerationError,
    )
    if isinstance(error, keys):
        return CredentialError(
            f"a key cannot be used ({reason}); is the passphrase given, and the right one?"
        )
    if isinstance(error, asyncssh.ConfigParseError):
        return ConfigurationError(f"the ssh_config cannot be used: {reason}")
    if isinstance(error, asyncssh.ChannelOpenError):
        return CapabilityError(f"{where} let us in, but runs no programs for this account ({reason})")
    if isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.ProtocolNotSupported):
        return ConfigurationError(f"{where} speaks another SSH than asyncssh: {reason}")
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError) and error.filename:
        return ConfigurationError(f"a file cannot be read: {error.strerror}{_file(error)}")
    if isinstance(error, asyncssh.ConnectionLost):
        return ToolConnectionError(f"{where} hung up ({reason}); does something else listen there?")
    if isinstance(error, OSError | asyncssh.Error | TimeoutError):
        return ToolConnectionError(f"{where} cannot be reached: {reason}")
    return ConfigurationError(f"a connection to {where} cannot be made with these arguments: {reason}")


def _reason(error: BaseException) -> str:
    """Return what an exception says, in one line, as far as it can be shown."""
    said = (isinstance(error, OSError) and error.strerror) or getattr(error, "reason", None) or str(error)
    text = " ".join(shown(said).split())
    return text[:300] or type(error).__name__


def _file(error: BaseException) -> str:
    return f": {shown(error.filename)}" if isinstance(error, OSError) and error.filename else ""


def _default_known_hosts() -> Path:
    return Path("~/.ssh/known_hosts").expanduser()


def _command(python: str) -> str:
    """Return the line for the login shell, whichever that is: of all its text only a path may need quotes, and there are no line ends."""
    *start, boot = guest.command(python)
    return f"exec {shlex.join(start)} 'import binascii; exec(binascii.unhexlify(\"{boot.encode().hex()}\"))'"


def _hint(process: Any, said: str) -> str:
    if "said nothing" in said:
        return (
            f" (exit code {process.exit_status}). Does the account run programs? One for sftp only does not"
        )
    return ""


_SECRET = "outside the workspace"  # noqa: S105
_PLANT = 'mkdir "$0" && printf %s "$1" > "$0/secret" && ln -s "$0" planted && ln -s "$0/secret" secret'


async def _checks(sandbox: SSHSandbox, folder: str) -> list[Check]:
    """Try what must work and what must not, with something outside the workspace that lies in the same folder."""
    outside = f"{folder}/outside"
    checks = [
        Check(name="connect, verify the host key, log in", ok=True),
        Check(name="start Python", ok=True, detail=shown(sandbox.told.python)),
    ]

    async def attempt(name: str, work: Awaitable[bool], *, denial: bool = False) -> None:
        try:
            worked = await work
        except ToolConnectionError:
            raise
        except ToolError:
            worked = False
        checks.append(Check(name=name, ok=worked is not denial, denial=denial))

    async def written(sandbox: Sandbox, path: str) -> bool:
        await sandbox.write(path, "made")
        return await sandbox.read(path) == "made"

    async def ran(script: str, *arguments: str, code: int = 0, output: str = "") -> bool:
        done = await sandbox.execute_program(["/bin/sh", "-c", script, *arguments], timeout=20)
        return done.exit_code == code and done.stdout == output

    async def told(path: str) -> bool:
        return _SECRET in await sandbox.read(path)

    await attempt("write and read a file", written(sandbox, "made"))
    await attempt("run a program and get its exit code", ran("exit 7", code=7))
    await attempt("plant links that lead outside", ran(_PLANT, outside, _SECRET))
    await attempt("read through a planted link", told("secret"), denial=True)
    await attempt("read below a planted link", told("planted/secret"), denial=True)
    await attempt("read a path that leads up", told("../outside/secret"), denial=True)
    await attempt("write below a planted link", written(sandbox, "planted/made"), denial=True)
    await attempt("write a read-only scope", written(sandbox.scope(read_only=True), "forbidden"), denial=True)
    await attempt("find outside only what was there", ran('ls "$0"', outside, output="secret\n"))
    return checks


async def _isolated(sandbox: SSHSandbox, folder: str) -> list[Check]:
    """See that programs run and do not see what is outside, once more than the worker has tried by itself."""
    ran = await sandbox.execute_program(["/bin/sh", "-c", "cat made; exit 7"], timeout=20)
    seen = await sandbox.execute_program(
        ["/bin/sh", "-c", 'cat "$0"', f"{folder}/outside/secret"], timeout=20
    )
    return [
        Check(name="run an isolated program in the workspace", ok=(ran.exit_code, ran.stdout) == (7, "made")),
        Check(name="read a file outside from a program", ok=_SECRET not in seen.stdout, denial=True),
    ]
