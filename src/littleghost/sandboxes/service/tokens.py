"""Who may use the service: a file of names and of hashes of their tokens.

A token is 256 random bits, so a plain SHA-256 of it tells nothing: there is nothing to guess from, which is what slow hashes of
passwords are for. Whoever reads the file cannot use what is in it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat

from littleghost.errors import ConfigurationError

__all__ = ["TokenFile", "hash_of", "new_token"]

_log = logging.getLogger(__name__)

PREFIX = "lgs_"
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.@-]{0,63})[ \t]+sha256:([0-9a-f]{64})\Z")
_MOST = 1 << 20  # bytes of the file


def hash_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(32)


class TokenFile:
    """Names and the hashes of their tokens, in a file of lines ``NAME sha256:HASH``.

    A name may have several lines, so that one token can follow another. Empty lines and lines that begin with ``#`` do not count. The
    file is read again when it has changed; where it cannot be, what was read before holds.

    Args:
        path: The file.

    Raises:
        ConfigurationError: It cannot be read, is no such file, or others may write it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._known, self._version = self._read()
        self._trouble = ""

    @property
    def names(self) -> frozenset[str]:
        """Who has a token."""
        return frozenset(name for name, _ in self._known)

    def owner(self, token: str) -> str | None:
        """Return whose token it is, or ``None``. It takes as long for one token as for another."""
        self._renew()
        wanted, found = hash_of(token), None
        for name, known in self._known:
            if hmac.compare_digest(known, wanted):
                found = name
        return found

    def add(self, name: str) -> str:
        """Give ``name`` another token, and return it. Nothing else has it.

        Raises:
            ConfigurationError: It is no name, or the file cannot be written.
        """
        token = new_token()
        line = f"{name} sha256:{hash_of(token)}"
        if not _LINE.match(line):
            raise ConfigurationError("a name has up to 64 of A-Z, a-z, 0-9, '.', '_', '@' and '-'")
        try:
            with open(self._path, "ab+") as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    line = f"\n{line}"
                file.write(f"{line}\n".encode("ascii"))  # in one write, so that lines of two do not mix
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}") from error
        return token

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> TokenFile:
        """Return the file at ``path``, and make an empty one, which nobody else may read, where there is none.

        Raises:
            ConfigurationError: See the class.
        """
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigurationError(f"{os.fspath(path)} cannot be made: {error.strerror}") from error
        return cls(path)

    def _renew(self) -> None:
        try:
            status = os.stat(self._path)
            if _version(status) != self._version:
                self._known, self._version = self._read()
            self._trouble = ""
        except (OSError, ConfigurationError) as error:
            if str(error) != self._trouble:  # else everybody who asks would fill the log
                self._trouble = str(error)
                _log.warning("the tokens could not be read again, and those of before hold: %s", error)

    def _read(self) -> tuple[list[tuple[str, str]], tuple[int, ...]]:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                text = file.read(_MOST + 1)
        except OSError as error:
            raise ConfigurationError(
                f"the tokens cannot be read: {error.strerror}: {self._path}; littleghost sandbox token makes one"
            ) from error
        if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o022:
            raise ConfigurationError(f"others may write {self._path}, and so make tokens: chmod go-w")
        if len(text) > _MOST:
            raise ConfigurationError(f"{self._path} has more than {_MOST:,} bytes")
        known: list[tuple[str, str]] = []
        for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            found = _LINE.match(line)
            if found is None:  # and not shown: it may be a token that somebody put there as it is
                raise ConfigurationError(f"{self._path}, line {number}: it must be NAME sha256:HASH")
            known.append((found[1], found[2]))
        return known, _version(status)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
