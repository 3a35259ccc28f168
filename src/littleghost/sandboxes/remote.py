"""Files and programs behind a service, ``littleghost sandbox serve``."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import random
import secrets
import ssl as tls
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    CredentialError,
    DependencyError,
    LittleGhostError,
    PolicyError,
    ToolConnectionError,
)
from littleghost.sandboxes.contract import Check, Probe, SandboxLimits
from littleghost.sandboxes.far.line import Transport
from littleghost.sandboxes.far.sandbox import FarSandbox
from littleghost.sandboxes.far.wire import GREETING, MOST, PROTOCOL, Frames, error_of, fields_of, frame
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.workspace import Workspace, legible, shown

__all__ = ["RemoteSandbox"]

TOKEN = "LITTLEGHOST_SANDBOX_TOKEN"  # noqa: S105
_quiet = logging.getLogger(f"{__name__}.websocket")
_quiet.setLevel(logging.INFO)  # below that, websockets writes the headers of its requests, and so the token
_PIECE = 1 << 18  # bytes of a message
_MESSAGE = 1 << 20  # bytes of one that is taken
_DIALLING = 15.0  # seconds
_LEAVING = 5.0  # seconds to come again in order to close
_LEASE = 30.0  # seconds to come again before the service has said how long it waits
_LONGEST = 3600.0
_DELAYS = (0.05, 4.0)
_BRIEF = 2.0  # seconds that a connection lasts at least to be one
_WELCOME = 1 << 20  # bytes of a greeting that comes again
_APPLICATION = range(
    4000, 5000
)  # the codes of a close that are the service's own: it has nothing to come again for

_FILES = frozenset(
    "files bytes ranges stat glob grep named_paths scope git_read_only write delete move make_directory".split()  # noqa: SIM905
)
_PROGRAMS = frozenset({"execute", "start_program", "kill_tree"})
_ISOLATED = frozenset({
    "isolation", "isolated_root", "pid_namespace", "read_only_processes", "hidden_environment", "network_none",
})  # fmt: skip


_TRIALS = (
    ("programs run", "true", False),
    ("system files cannot be written", "! (echo x > /etc/littleghost) 2>/dev/null", True),
    ("the machine's processes are not seen", '[ "$(ls -d /proc/[0-9]* | wc -l)" -lt 20 ]', True),
    ("there is no network", '[ "$(grep -c : /proc/net/dev)" = 1 ]', True),
)


class RemoteSandbox(FarSandbox):
    """Works in a sandbox that a service gives it, on another machine or this one.

    The service makes an empty workspace when the sandbox is opened and deletes it, with everything that runs there, when it is closed; or
    some time after this application is gone. Nothing of this machine is there: files are brought by `write`. The sandbox's ``workspace``
    names no directory of this machine, and is never opened here.

    Where the connection is lost, it is made again, and what was asked for goes on: nothing is done twice, and no answer is lost. When the
    service does not come again in time, everything fails with `ToolConnectionError`.

    What is in force is what the service says. What was asked for and is not, by its own words, makes `open` fail; but who runs the
    service is trusted to say the truth, sees all files and output, and can change them. Before it is open, a sandbox offers what a
    service offers by default.

    Args:
        url: Where the service is: ``https://HOST``, ``wss://HOST:PORT/PATH``. Without TLS only where this machine is the host.
        token: What the service knows this client by. Without it, the environment variable ``LITTLEGHOST_SANDBOX_TOKEN``.
        paths: Named paths, below the workspace's root.
        writable: Whether the root may be written, as it may unless this says no: the workspace is empty at first, and of nobody else.
        policy: See `Sandbox`.
        limits: See `Sandbox`. The service's own are in force too, and `limits` shows the lower ones once it is open.
        ssl: How to check the service's certificate, where the system's authorities are not to decide.
        isolated: Whether the service must say that it isolates programs. Without it, one that runs them as its own user will do, too.
        insecure: Whether the token, the files and all else may cross a network as they are, without TLS.

    Raises:
        ConfigurationError: The address cannot be used.
        CredentialError: There is no token.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        paths: Mapping[str, str] | None = None,
        writable: bool = True,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
        ssl: tls.SSLContext | None = None,
        isolated: bool = True,
        insecure: bool = False,
    ) -> None:
        self._url, self._local = _address(url, insecure=insecure)
        token = os.environ.get(TOKEN) if token is None else token
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise CredentialError(
                f"a remote sandbox needs the token that its service knows: token=, or the variable {TOKEN}"
            )
        if ssl is not None and not self._url.startswith("wss:"):
            raise ConfigurationError("ssl is for an address with TLS: https:// or wss://")
        self._token, self._ssl, self._isolated = token, ssl, isolated
        self._places = {name: _relative(name, path) for name, path in (paths or {}).items()}
        super().__init__(
            Workspace("/workspace", self._places),
            writable=writable and Policy.of(policy).root != "read_only",
            policy=policy,
            limits=limits,
        )
        self._asked = self._limits
        self._secret = ""
        self._welcomed = False
        self._leaving: float | None = None
        self._way: _WebSocket | None = None
        self._lost, self._delay = 0.0, _DELAYS[0]

    def __repr__(self) -> str:
        return (
            f"RemoteSandbox({self._url.removesuffix('/sandbox')!r}, {'open' if self.is_open else 'not open'})"
        )

    def _offers(self) -> frozenset[str]:
        return _FILES | _PROGRAMS | (_ISOLATED if self._isolated else frozenset[str]())

    def stated(self) -> EffectivePolicy:
        """Return what the service says is in force, and that it is the service who says it."""
        if not self._welcomed:
            return EffectivePolicy(root=self._root_access, paths=dict(self._policy.paths))
        said = self.told.in_force
        return msgspec.structs.replace(
            said,
            enforced=tuple(f"by the service's word: {each}" for each in said.enforced),
            not_enforced=(*said.not_enforced, "anything against who runs the service"),
        )

    def _greeting(self) -> dict[str, Any]:
        asked = super()._greeting()
        limits = fields_of(self._asked, without_none=True)
        lease = {"lease": self._secret, "again": self._welcomed}
        return {**asked, "root": "", "paths": self._places, "limits": limits, **lease}

    async def _lay(self) -> tuple[Transport, bytes]:
        self._secret = secrets.token_urlsafe(32)
        self._limits, self._welcomed, self._leaving = self._asked, False, None
        self.capabilities = self._narrowed(self._offers())
        try:
            return await self._dial(again=False), b""
        except _Unreachable as error:
            raise ToolConnectionError(f"the sandbox service cannot be reached: {error}") from error

    async def _try(self) -> None:
        """See that the service says what was asked for."""
        told, policy = self.told, self._policy
        self.capabilities = self._narrowed(told.capabilities - {"local_files"})
        if told.in_force.network == "inherit":
            self.capabilities -= {"network_none"}
        runs = told.capabilities & {"execute", "start_program"}
        if self._isolated and runs and "isolation" not in told.capabilities:
            raise CapabilityError(
                "the service does not isolate programs; isolated=False takes it as it is",
                capability="isolation",
            )
        said = told.in_force
        different = [
            name
            for name, asked, there in (
                ("root", self._root_access, said.root),
                ("network", policy.network, said.network),
                ("root_filesystem", policy.root_filesystem, said.root_filesystem),
                *(("paths", access, said.paths.get(name)) for name, access in self._named().items()),
            )
            if asked is not None and asked != there
        ]
        if not set(policy.environment) <= set(said.environment):
            different.append("environment")
        if policy.git != "read_write" and "git_read_only" not in told.capabilities:
            different.append("git")
        if different:
            raise CapabilityError(
                f"the service says that another {', '.join(sorted(set(different)))} is in force than was asked for"
            )
        limits = told.limits
        for name in self._asked.__struct_fields__:
            asked, there = getattr(self._asked, name), None if limits is None else getattr(limits, name)
            if asked is not None and (there is None or there > asked):
                raise CapabilityError(
                    f"the service does not say that the limit {name} is in force", limit=name
                )
        assert limits is not None  # noqa: S101 (some are always asked for)
        self._limits = limits
        self.line.most = max(1, min(told.message_bytes, MOST))
        self._welcomed = True

    def _named(self) -> dict[str, str]:
        return {name: access for name, access in self._accesses.items() if name is not None}

    def _narrowed(self, offered: frozenset[str]) -> frozenset[str]:
        if all(access == "read_only" for access in self._accesses.values()):
            offered -= {"write", "delete", "move", "make_directory"}
        return offered - {"git_read_only"} if self._policy.git == "read_write" else offered

    def _reopening(self) -> Any:
        return self._come_again

    async def _come_again(self) -> tuple[Transport, bytes]:
        """Make the connection again where it was lost, as long as the service waits for it."""
        loop = asyncio.get_running_loop()
        if self._way is not None and self._way.refusal is not None:
            raise ToolConnectionError(self._way.refusal)
        told = self.told.lease_seconds if self._welcomed else _LEASE
        lease = told if 0 <= told <= _LONGEST else _LONGEST  # which is also for what is no number
        brief = self._way is not None and loop.time() - self._way.made < _BRIEF
        if self._way is None or not brief or self._way.useful:
            self._lost, self._delay = loop.time(), _DELAYS[0]
        if brief:  # one that is lost at once and has brought nothing does not make the time begin anew
            await self._pause(self._lost + lease)
        while True:
            try:
                way = await self._dial(again=self._welcomed)
                try:
                    return way, await self._greet(way)
                except BaseException:
                    await way.close()
                    raise
            except _Unreachable as error:
                await self._pause(self._lost + lease, error)

    async def _pause(self, end: float, error: _Unreachable | None = None) -> None:
        """Wait before the next attempt, longer each time."""
        end = end if self._leaving is None else min(end, self._leaving)
        if asyncio.get_running_loop().time() + self._delay > end:
            raise ToolConnectionError(
                f"the connection to the sandbox service was lost, and could not be made again: {error or 'it is lost at once'}"
            ) from error
        await asyncio.sleep(random.uniform(self._delay / 2, self._delay))  # noqa: S311 (so that not all come at once)
        self._delay = min(2 * self._delay, _DELAYS[1])

    async def _greet(self, way: _WebSocket) -> bytes:
        """Greet again, and return what has come after the answer."""
        try:
            async with asyncio.timeout(_DIALLING):
                await way.send(frame(GREETING, self._greeting()))
                heard = b""
                while len(heard) < 4 or len(heard) < 16 + int.from_bytes(heard[:4], "big"):
                    data = await way.receive()
                    if not data:
                        if way.refusal is not None:
                            raise ToolConnectionError(way.refusal)
                        raise _Unreachable("it closed the connection")
                    heard += data
                    if len(heard) > _WELCOME + 2 * _MESSAGE:
                        raise ToolConnectionError("the service greets with more than it may")
        except (OSError, TimeoutError) as error:
            if isinstance(error, LittleGhostError):
                raise
            raise _Unreachable(_why(error)) from error
        end = 16 + int.from_bytes(heard[:4], "big")
        way.useful = len(heard) > end
        answer = Frames(lambda _number: _WELCOME).add(heard[:end])[0]
        if answer.number != GREETING or "error" in answer.head:
            raise error_of(answer.head.get("error"))
        return heard[end:]

    async def _dial(self, *, again: bool) -> _WebSocket:
        """Return a connection to the service.

        Raises:
            LittleGhostError: It refuses, and will.
            _Unreachable: It may be there later.
        """
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
        except ImportError as error:
            raise DependencyError.missing("websockets", "remote") from error
        from littleghost.sandboxes.service.names import version

        class Direct(connect):
            """Follows nobody elsewhere, where the token would go along."""

            def process_redirect(self, exc: Exception) -> Exception | str:
                return exc

        headers = {
            "Authorization": f"Bearer {self._token}",
            "LittleGhost-Protocol": str(PROTOCOL),
            "LittleGhost-Version": version(),
            "LittleGhost-Lease": "again" if again else "new",
        }
        options: dict[str, Any] = {"ssl": self._ssl} if self._ssl is not None else {}
        try:
            connection = await Direct(
                self._url,
                additional_headers=headers,
                user_agent_header=None,
                compression=None,
                proxy=None if self._local else True,
                open_timeout=_DIALLING,
                ping_interval=10,
                ping_timeout=20,
                close_timeout=2,
                max_size=_MESSAGE,
                logger=_quiet,
                **options,
            )
        except InvalidStatus as error:
            body = legible((error.response.body or b"")[:500].decode("utf-8", "replace").strip())
            raise _refusal(
                error.response.status_code, body, again=again
            ) from None  # its request has the token
        except tls.SSLCertVerificationError as error:
            raise ConfigurationError(
                f"the certificate of the sandbox service is not trusted: {error.verify_message}; ssl= says what is"
            ) from error
        except (OSError, TimeoutError, EOFError, InvalidHandshake, WebSocketException) as error:
            raise _Unreachable(_why(error)) from None
        theirs: Mapping[str, str] = connection.response.headers if connection.response is not None else {}
        if (protocol := theirs.get("LittleGhost-Protocol", "")) != str(PROTOCOL):
            await connection.close()
            raise ConfigurationError(
                f"the service has LittleGhost {shown(theirs.get('LittleGhost-Version', 'unknown')[:40])} (protocol "
                f"{shown(protocol[:10]) or 'unknown'}), and this client {version()} (protocol {PROTOCOL}); both must have the same protocol"
            )
        self._way = _WebSocket(connection)
        return self._way

    @classmethod
    async def probe(cls, *, url: str = "", **options: Any) -> Probe:
        """Open a sandbox at a service, try there what must work and what must not, and return how that went.

        A service that lies can pass; this finds one that is set up wrongly.

        Args:
            url: Where the service is.
            **options: Those of the class.
        """
        checks: list[Check] = []
        try:
            async with cls(url, **options) as sandbox:
                for name, script, denial in _TRIALS:
                    if not denial or "isolation" in sandbox.capabilities:
                        done = await sandbox.execute(script, timeout=30)
                        checks.append(
                            Check(name=name, ok=done.success, denial=denial, detail=done.stderr[:200])
                        )
        except LittleGhostError as error:
            return Probe(available=False, reason=str(error), checks=tuple(checks))
        failed = [check.name for check in checks if not check.ok]
        reason = f"at the service this is not so: {', '.join(failed)}" if failed else ""
        return Probe(available=not failed, reason=reason, checks=tuple(checks))

    async def close(self) -> None:
        self._leaving = asyncio.get_running_loop().time() + _LEAVING
        await super().close()


class _WebSocket(Transport):
    """A line over a WebSocket."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._order = asyncio.Lock()
        self.made = asyncio.get_running_loop().time()
        self.refusal: str | None = None
        self.useful = False  # whether more has come than the answer to a greeting

    async def send(self, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        async with self._order:
            try:
                for at in range(0, len(data), _PIECE):
                    await self._connection.send(data[at : at + _PIECE])
            except ConnectionClosed as error:
                raise ConnectionResetError("the connection was lost") from error

    async def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        data: Any = b""
        try:
            while not data:
                data = await self._connection.recv()
        except ConnectionClosed:
            code = self._connection.close_code
            if code in _APPLICATION:
                self.refusal = f"the sandbox has ended: {shown(self._connection.close_reason)}"
            return b""
        self.useful = True
        return data if isinstance(data, bytes) else data.encode("utf-8")  # which is no frame

    async def close(self) -> None:
        await self._connection.close()


class _Unreachable(Exception):
    """The service cannot be reached now."""


def _why(error: BaseException) -> str:
    return legible(str(getattr(error, "strerror", None) or error))[:300] or type(error).__name__


def _refusal(status: int, body: str, *, again: bool) -> Exception:
    if status == 401:
        return CredentialError("the sandbox service does not know this token")
    if status == 426 and body:
        return ConfigurationError(body)
    if status == 503 and not again:
        return ToolConnectionError(f"the sandbox service refuses: {body or 'it is not available'}")
    if status >= 500:
        return _Unreachable(f"it answers with HTTP status {status}")
    return ConfigurationError(
        f"there is no sandbox service at this address: it answers with HTTP status {status}"
    )


def _relative(name: str, path: str) -> str:
    given = PurePosixPath(path)
    if given.is_absolute() or Path(path).is_absolute() or ".." in given.parts:
        raise PolicyError(
            f"the path named {name!r} must be below the root of the remote workspace", name=name
        )
    return str(given)


def _address(url: str, *, insecure: bool) -> tuple[str, bool]:
    """Return the address of the WebSocket, and whether its host is this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError("the address of a sandbox service must be https://HOST") from error
    schemes = {"https": "wss", "wss": "wss", "http": "ws", "ws": "ws"}
    if parts.scheme not in schemes or not host:
        raise ConfigurationError("the address of a sandbox service must be https://HOST")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "the address of a sandbox service has a host, a port and a path, and nothing else; the token is given by token="
        )
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    scheme = schemes[parts.scheme]
    if scheme == "ws" and not local and not insecure:
        raise ConfigurationError(
            "without TLS, the token would cross the network as it is: take https://, or insecure=True if you know the network"
        )
    where = f"[{host}]" if ":" in host else host
    return f"{scheme}://{where}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}/sandbox", local
