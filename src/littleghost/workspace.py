"""The directories of a run: a root, and named paths beside it.

A `Workspace` names host directories and holds each by descriptor from `Workspace.open` to `Workspace.close`. Which directory it is
(device and inode) is settled at open; when another directory has taken its place since, nothing is read or written any more.

A path that an agent names is text: relative to the root (``src/app.py``), or ``workspace://name/…`` below a named path. It is
split into components here, once, and never joined to a host path as a string.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import re
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

from littleghost.descriptors import DIRECTORY, PathPlace, Place, delete_tree, make_below, resolved
from littleghost.errors import (
    CleanupError,
    ConfigurationError,
    LittleGhostError,
    ToolError,
    ToolFileNotFoundError,
    ToolPermissionError,
    ToolValueError,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_COMPONENTS", "Directory", "Location", "Workspace", "legible", "parse_path", "shown"]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_SCHEME = "workspace://"
MOST_COMPONENTS = 128
"""How deep a path may be."""
_MOST_BYTES = 4096
# Names that Windows takes for devices in every directory, with any extension.
_WINDOWS_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?\Z")

Hook = Callable[["Workspace"], Awaitable[None] | None]


class Location(NamedTuple):
    """Where a path leads: the named path it starts from (``None`` is the root), and the components below."""

    name: str | None
    components: tuple[str, ...]


def shown(path: object) -> str:
    """Return ``path`` as an error may show it: one line, not too long, and always valid text."""
    text = legible(str(path))
    return text if len(text) <= 200 else text[:199] + "…"


def legible(text: str) -> str:
    """Return ``text`` in one line and as valid text, for errors: what others wrote must forge no line and command no terminal."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def parse_path(path: str | os.PathLike[str]) -> Location:
    """Split a path an agent named.

    Raises:
        ToolPermissionError: It is absolute or has a ``..`` component.
        ToolValueError: It is no text, is empty, too long or too deep, has a NUL or text that is no valid Unicode, or what Windows reads
            as more than a name.
    """
    try:
        text = os.fspath(path)
    except TypeError as error:
        raise ToolValueError("a path must be text", path=path) from error
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] (what arrives comes from a model)
        raise ToolValueError("a path must be text", path=path)
    if not text:
        raise ToolValueError("the path is empty; the workspace itself is '.'", path=text)
    if "\0" in text:
        raise ToolValueError(f"{shown(text)}: a path cannot contain a NUL", path=text)
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ToolValueError(f"{shown(text)}: a path must be valid Unicode", path=text) from error
    if size > _MOST_BYTES:
        raise ToolValueError(f"{shown(text)}: a path has at most {_MOST_BYTES:,} bytes", path=text)

    name: str | None = None
    below = text
    if text.startswith(_SCHEME):
        name, _, below = text[len(_SCHEME) :].partition("/")
        if not _NAME.match(name):
            raise ToolValueError(f"{shown(text)}: workspace:// needs the name of a path", path=text)
    if below.startswith("/"):
        raise ToolPermissionError(f"{shown(text)}: the path must be relative to the workspace", path=text)
    components = tuple(part for part in below.split("/") if part not in ("", "."))
    if len(components) > MOST_COMPONENTS:
        raise ToolValueError(f"{shown(text)}: a path has at most {MOST_COMPONENTS} components", path=text)
    if ".." in components:
        raise ToolPermissionError(f"{shown(text)}: '..' is not allowed in a path", path=text)
    if sys.platform == "win32":
        _check_windows(text, components)
    return Location(name, components)


def _check_windows(text: str, components: tuple[str, ...]) -> None:
    for part in components:
        if "\\" in part or ":" in part:  # a second separator, a drive, or an alternate data stream
            raise ToolPermissionError(f"{shown(text)}: '\\' and ':' are not allowed in a path", path=text)
        if part[-1] in " ." or _WINDOWS_DEVICES.match(part):
            raise ToolPermissionError(f"{shown(text)}: not a name that Windows keeps as it is", path=text)


class Directory:
    """One host directory, held by descriptor (by path alone where the system has no directory descriptors).

    Args:
        path: An absolute path; the directory must exist, unless it is below ``top``.
        top: The directory it is beneath, so that no link on the way can lead out of it.
        below: The components from there. What is missing is made.

    Attributes:
        path: Where it was at open.
        identity: Its device and inode then.
    """

    __slots__ = ("_below", "_closing", "_fd", "_lock", "_top", "_users", "identity", "path")

    def __init__(self, path: Path, top: Directory | None = None, below: tuple[str, ...] = ()) -> None:
        self.path, self._top, self._below = path, top, below
        self._lock = threading.Lock()
        self._users, self._closing = 0, False
        if sys.platform == "win32":
            self._fd: int | None = None
            if top is not None:
                make_below(PathPlace(str(top.path)), below)
            status = path.stat()
            if not path.is_dir():
                raise NotADirectoryError(str(path))
        else:
            if top is None:
                self._fd = os.open(path, DIRECTORY)
            else:
                with top.place() as place:
                    make_below(place, below)
                    self._fd = resolved(place, below, DIRECTORY)
            status = os.fstat(self._fd)
        self.identity = (status.st_dev, status.st_ino)

    @contextmanager
    def held(self) -> Generator[int | None]:
        """Keep the descriptor open for the block and yield it; ``None`` where there are none.

        Raises:
            ToolPermissionError: Another directory is at the path now.
            ToolError: It has been closed.
        """
        with self._lock:
            if self._closing:
                raise ToolError("the workspace is closed")
            self._users += 1
        try:
            self.check()
            yield self._fd
        finally:
            with self._lock:
                self._users -= 1
                self._release()

    def check(self) -> None:
        """Raise `ToolPermissionError` unless the path still leads to the directory that was opened."""
        try:
            status = self._there()
        except ToolError:
            raise
        except OSError as error:
            raise ToolPermissionError("the workspace directory is gone; open the workspace again") from error
        if (status.st_dev, status.st_ino) != self.identity:
            raise ToolPermissionError("the workspace directory was replaced; open the workspace again")

    def _there(self) -> os.stat_result:
        if self._top is None or sys.platform == "win32":
            return os.stat(self.path)
        with self._top.place() as place:
            fd = resolved(place, self._below, DIRECTORY)
            try:
                return os.fstat(fd)
            finally:
                os.close(fd)

    @contextmanager
    def place(self) -> Generator[Place]:
        """Hold the directory for the block, to reach what is beneath it."""
        with self.held() as fd:
            yield PathPlace(str(self.path)) if fd is None else Place(fd, owned=False)

    def close(self) -> None:
        """Close the descriptor as soon as nobody uses it."""
        with self._lock:
            self._closing = True
            self._release()

    def _release(self) -> None:
        if self._closing and self._users == 0 and self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.close()


def _delete(root: Path) -> None:
    if sys.platform == "win32":
        import shutil

        shutil.rmtree(root)
    else:
        delete_tree(str(root))


class Workspace:
    """The host directories an agent works in, open from `open` to `close`.

    It says *where*; a `Sandbox` says what may be done there. It is an async context manager.

    Args:
        root: The directory that relative paths start from. `open` creates it, with its parents, where it is missing.
        paths: More directories by name (``[a-z0-9][a-z0-9_-]*``), reached as ``workspace://name/…``. A relative one is below the root
            and created; an absolute one must exist.
        setup: Called with the workspace when it is open, sync or async. When it fails the workspace is closed again.
        teardown: Called with the workspace before it closes, sync or async.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        paths: Mapping[str, str | os.PathLike[str]] | None = None,
        setup: Hook | None = None,
        teardown: Hook | None = None,
    ) -> None:
        from pathlib import Path  # not before there is a workspace: it takes longer than all of this module

        self._root = Path(os.path.abspath(os.fspath(root)))
        self._relative: dict[str, Path] = {}
        named: dict[str, Path] = {}
        for name, path in (paths or {}).items():
            if not _NAME.match(name):
                raise ConfigurationError(
                    f"{shown(name)!r} is not a name for a path: use a-z, 0-9, '-' and '_'", name=name
                )
            given = Path(path)
            if not given.is_absolute():
                if ".." in given.parts:
                    raise ConfigurationError(
                        f"the path named {name!r} leaves the root; give it as an absolute path", name=name
                    )
                self._relative[name] = given
            named[name] = Path(os.path.normpath(self._root / given))
        self._paths = MappingProxyType(named)
        self._setup, self._teardown = setup, teardown
        self._directories: dict[str | None, Directory] = {}
        self._lock = asyncio.Lock()
        self._throw_away = False

    @classmethod
    def temporary(
        cls,
        paths: Mapping[str, str | os.PathLike[str]] | None = None,
        setup: Hook | None = None,
        teardown: Hook | None = None,
    ) -> Self:
        """Return a workspace in the system's temporary folder that is created at `open` and deleted at `close`.

        A process that is killed leaves the folder behind. Directories that deny their owner access are changed and deleted too.
        """
        import tempfile

        root = os.path.join(tempfile.gettempdir(), f"littleghost-{secrets.token_hex(8)}")
        workspace = cls(root, paths, setup, teardown)
        workspace._throw_away = True
        return workspace

    @property
    def root(self) -> Path:
        """The root's absolute host path."""
        return self._root

    @property
    def paths(self) -> Mapping[str, Path]:
        """The named paths as absolute host paths."""
        return self._paths

    @property
    def given_paths(self) -> Mapping[str, Path]:
        """The named paths as they were given: one below the root that was relative is so still."""
        return MappingProxyType({**self._paths, **self._relative})

    @property
    def is_plain(self) -> bool:
        """Whether it is directories and no more, so that they may be another machine's: it has no hooks, and is not temporary."""
        return self._setup is None and self._teardown is None and not self._throw_away

    @property
    def is_open(self) -> bool:
        """Whether the directories are held."""
        return bool(self._directories)

    async def open(self) -> Self:
        """Create what is missing, hold the directories, and run ``setup``. Opening an open workspace does nothing.

        Raises:
            ConfigurationError: The root or a path is no directory, or an absolute path does not exist.
        """
        async with self._lock:
            if self._directories:
                return self
            self._directories = await asyncio.to_thread(self._hold)
            try:
                await self._call(self._setup)
            except BaseException:
                await self._let_go(delete=self._throw_away)
                raise
        return self

    async def close(self) -> None:
        """Run ``teardown`` and let the directories go. Closing a closed workspace does nothing.

        Raises:
            CleanupError: ``teardown`` or deleting a temporary root failed; everything is closed all the same.
        """
        async with self._lock:
            if not self._directories:
                return
            try:
                await self._call(self._teardown)
            except Exception as error:
                raise CleanupError("the workspace's teardown failed", workspace=str(self._root)) from error
            finally:
                await self._let_go(delete=self._throw_away)

    def directory(self, name: str | None = None) -> Directory:
        """Return the held directory called ``name``, or the root.

        Raises:
            ToolError: The workspace is not open.
            ToolFileNotFoundError: There is no such name.
        """
        if not self._directories:
            raise ToolError("the workspace is not open")
        try:
            return self._directories[name]
        except KeyError:
            raise ToolFileNotFoundError(
                f"{_SCHEME}{shown(name)}: no path has this name", path=f"{_SCHEME}{name}"
            ) from None

    def resolve(self, path: str | os.PathLike[str]) -> Location:
        """Split ``path`` into the named path it starts from and its components. Nothing on disk is looked at.

        Raises:
            ToolError: It is malformed, leaves the workspace, or starts from a name that does not exist.
        """
        location = parse_path(path)
        if location.name is not None and location.name not in self._paths:
            raise ToolFileNotFoundError(
                f"{shown(path)}: no path has the name {location.name!r}", path=str(path)
            )
        return location

    async def _call(self, hook: Hook | None) -> None:
        if hook is not None:
            result = hook(self)
            if inspect.isawaitable(result):
                await result

    def _hold(self) -> dict[str | None, Directory]:
        held: dict[str | None, Directory] = {}
        try:
            if self._throw_away:
                self._root.mkdir(mode=0o700, parents=True)
            else:
                self._root.mkdir(parents=True, exist_ok=True)
            held[None] = Directory(self._root)
            for name, path in self._paths.items():
                below = self._relative.get(name)
                if below is None:
                    held[name] = Directory(path)
                    continue
                try:
                    held[name] = Directory(path, held[None], below.parts)
                except OSError as error:
                    if error.errno not in (errno.EXDEV, errno.ELOOP):
                        raise
                    raise ConfigurationError(
                        f"the path named {name!r} leads out of the root through a link", name=name
                    ) from error
        except BaseException as error:
            for directory in held.values():
                directory.close()
            if isinstance(error, OSError) and not isinstance(error, LittleGhostError):
                where = error.filename or self._root
                # What `mkdir` says of a path where something else is.
                why = "not a directory" if isinstance(error, FileExistsError) else error.strerror
                raise ConfigurationError(f"the workspace cannot be opened: {why}: {where}") from error
            raise
        return held

    async def _let_go(self, *, delete: bool) -> None:
        directories, self._directories = self._directories, {}
        for directory in directories.values():
            directory.close()
        if delete:
            try:
                await asyncio.to_thread(_delete, self._root)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise CleanupError(
                    "the temporary workspace could not be deleted", workspace=str(self._root)
                ) from error

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Workspace({str(self._root)!r}, {'open' if self.is_open else 'closed'})"
