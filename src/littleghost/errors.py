"""Every error the library raises, in one tree.

::

    LittleGhostError
    ├── ConfigurationError (ValueError)         the caller set something up wrongly
    │   ├── DependencyError (ImportError)       an optional package is not installed
    │   ├── CapabilityError                     asked for what this object cannot do or enforce
    │   ├── PolicyError                         a sandbox policy that contradicts itself
    │   └── CredentialError (PermissionError)   missing, wrong or expired credentials
    ├── StoreError (RuntimeError)               a session store did not do its work
    │   ├── ProtocolError                       what came from or went to a store is not what the contract says
    │   │   ├── ConflictError                   another writer was first; nothing was written
    │   │   │   └── LeaseLostError              the lease that the write was made under is another's now
    │   │   ├── CorruptSessionError             stored data cannot be read; never shown as an empty history
    │   │   ├── DataError (ValueError)          a value that cannot be stored exactly; names its path
    │   │   ├── FormatError                     the data is of another or a newer format
    │   │   └── SessionTooLargeError (ValueError)   the session would pass a limit of its store
    │   └── StoreUnavailableError (ConnectionError)   not reachable, busy too long, full, read-only
    ├── ModelError (RuntimeError)               a model did not answer
    │   ├── ModelUnavailableError (ConnectionError)   network, time-out, overload, server fault
    │   ├── ModelRequestError (ValueError)      the provider refused the request
    │   ├── ModelProtocolError                  the answer is not what the provider's format says
    │   ├── ContextOverflowError                the conversation does not fit the model's window
    │   ├── OutputLimitError                    the answer was cut at the output limit
    │   ├── MalformedToolCallError              tool-call arguments are not a JSON object
    │   └── OutputError (ValueError)            the answer does not fit the type that was asked for
    ├── ToolError (RuntimeError)                a tool failed; the model sees its text
    │   ├── ToolRetry                           it may succeed when it is run again
    │   └── Tool* (FileNotFoundError, …)        the same, for file operations
    ├── SessionBusyError (RuntimeError)         another run holds the session
    ├── SessionNotFoundError (LookupError)      no such session for this actor
    ├── SessionSuspendedError (RuntimeError)    the session waits for answers
    ├── LimitExceededError (RuntimeError)       a run reached one of its limits
    │   └── WallTimeExceededError (DeadlineExceeded)    its time
    ├── RunCancelled (RuntimeError)             a run was told to stop
    ├── DeadlineExceeded (TimeoutError)         time was up
    ├── CleanupError (RuntimeError)             something could not be closed or ended
    └── UnsupportedError (NotImplementedError)  this implementation does not offer the operation

An error carries fields (``error.path``, ``error.expected``) beside a message for people, keeps its cause, and survives
pickling and copying.
"""

from __future__ import annotations

import math
from typing import Any, Self

__all__ = [
    "CapabilityError",
    "CleanupError",
    "ConfigurationError",
    "ConflictError",
    "ContextOverflowError",
    "CorruptSessionError",
    "CredentialError",
    "DataError",
    "DeadlineExceeded",
    "DependencyError",
    "FormatError",
    "LeaseLostError",
    "LimitExceededError",
    "LittleGhostError",
    "MalformedToolCallError",
    "ModelError",
    "ModelProtocolError",
    "ModelRequestError",
    "ModelUnavailableError",
    "OutputError",
    "OutputLimitError",
    "PolicyError",
    "ProtocolError",
    "RunCancelled",
    "SessionBusyError",
    "SessionNotFoundError",
    "SessionSuspendedError",
    "SessionTooLargeError",
    "StoreError",
    "StoreUnavailableError",
    "ToolConnectionError",
    "ToolError",
    "ToolFileExistsError",
    "ToolFileNotFoundError",
    "ToolIsADirectoryError",
    "ToolNotADirectoryError",
    "ToolPermissionError",
    "ToolRetry",
    "ToolTimeoutError",
    "ToolUnicodeError",
    "ToolValueError",
    "UnsupportedError",
    "WallTimeExceededError",
]


class LittleGhostError(Exception):
    """The base of every error of this library.

    Args:
        message: What happened and what to do, for people.
        **fields: What happened, for programs; each becomes an attribute.
    """

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Not what the nearest builtin does, which knows nothing of fields. Called and not made by __new__, of which
        # an error with two builtins among its bases has the wrong one.
        return type(self), (self.message,), self.__dict__.copy()


class ConfigurationError(LittleGhostError, ValueError):
    """The caller set something up wrongly."""


class DependencyError(ConfigurationError, ImportError):
    """An optional package is missing; the message names the extra that brings it."""

    extra: str | None = None

    @classmethod
    def missing(cls, package: str, extra: str) -> Self:
        """Return the error for ``package``, which the extra named ``extra`` installs."""
        return cls(
            f"{package} is not installed; install it with: pip install 'littleghost[{extra}]'",
            package=package,
            extra=extra,
        )


class CapabilityError(ConfigurationError):
    """Something was asked for that this object cannot do or, for a sandbox, cannot enforce."""


class PolicyError(ConfigurationError):
    """A sandbox policy that contradicts itself or the workspace."""


class CredentialError(ConfigurationError, PermissionError):
    """Credentials are missing, wrong or expired."""


class StoreError(LittleGhostError, RuntimeError):
    """A session store did not do its work."""


class ProtocolError(StoreError):
    """What came from a store, or was to go to one, is not what the contract says."""


class ConflictError(ProtocolError):
    """Another writer was first. Nothing was written; load again and decide anew.

    Attributes:
        expected: The message count or revision the writer believed in.
        actual: The one the store has; ``None`` where no session exists.
        commit_id: The commit id, where it was used before for other content.
    """

    expected: int | str | None = None
    actual: int | str | None = None
    commit_id: str | None = None


class LeaseLostError(ConflictError):
    """The lease that a write was made under has ended, or is another's by now. Nothing was written."""


class CorruptSessionError(ProtocolError):
    """Stored data cannot be read. It is never shown as an empty history."""


class DataError(ProtocolError, ValueError):
    """A value cannot be stored exactly, and nothing was written.

    Attributes:
        path: Where the value is, such as ``state.plan.items[3].due``.
        reason: What is wrong with it.
    """

    path: str = ""
    reason: str = ""

    @classmethod
    def at(cls, path: str, reason: str) -> Self:
        """Return the error for the value at ``path``."""
        return cls(f"{path or 'value'}: {reason}", path=path, reason=reason)


class FormatError(ProtocolError):
    """Stored data is of another format, or of a version this library does not know.

    Attributes:
        found: The version or format that was found.
        supported: The newest version this library reads.
    """

    found: int | str | None = None
    supported: int | str | None = None


class SessionTooLargeError(ProtocolError, ValueError):
    """The session would pass one of its store's `SessionLimits`. Nothing was written.

    Attributes:
        limit: The name of the limit, as in `SessionLimits`.
        value: Its value.
        actual: What the session would have had.
    """

    limit: str = ""
    value: int | None = None
    actual: int | None = None


class StoreUnavailableError(StoreError, ConnectionError):
    """The store cannot be reached, or cannot write now.

    Whether a write took place may be unknown; a retry with the same ``commit_id`` is safe.
    """


class ModelError(LittleGhostError, RuntimeError):
    """A model did not answer."""


class ModelUnavailableError(ModelError, ConnectionError):
    """The model cannot be reached, is overloaded or failed; trying again later may help.

    Attributes:
        status: The HTTP status, or ``None`` where there was no response.
    """

    status: int | None = None


class ModelRequestError(ModelError, ValueError):
    """The provider refused the request as it is; sending it again will not help.

    Attributes:
        status: The HTTP status.
    """

    status: int | None = None


class ModelProtocolError(ModelError):
    """The provider's answer is not what its format says: cut, malformed or empty."""


class ContextOverflowError(ModelError):
    """The conversation does not fit the model's context window.

    Attributes:
        tokens: How many tokens the request had, where the provider says so.
        limit: How many the window holds, where the provider says so.
    """

    tokens: int | None = None
    limit: int | None = None


class OutputLimitError(ModelError):
    """The answer was cut because the model reached its output limit."""


class MalformedToolCallError(ModelError):
    """The arguments of a tool call are not a JSON object."""


class OutputError(ModelError, ValueError):
    """There is no answer of the type that was asked for: what the model wrote never fitted, or the run ended without one.

    Attributes:
        errors: What was wrong with the last answer, as the model was told.
        text: The last answer.
    """

    errors: tuple[str, ...] = ()
    text: str = ""


class ToolError(LittleGhostError, RuntimeError):
    """A tool failed. Its text reaches the model whole, so it must hold nothing that the model should not see."""


class ToolRetry(ToolError):
    """A tool failed in a way that may pass. It is run again for the same call; when it has failed too often, the model reads the text.

    Attributes:
        after: Seconds to wait before, or ``None`` for a wait that doubles each time.
    """

    after: float | None = None

    def __init__(self, message: str = "", after: float | None = None, **fields: Any) -> None:
        if after is not None and (not isinstance(after, int | float) or math.isnan(after)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"after must be a number of seconds, not {after!r}")
        super().__init__(message, after=after, **fields)


class ToolFileNotFoundError(ToolError, FileNotFoundError):
    """A path does not exist."""


class ToolFileExistsError(ToolError, FileExistsError):
    """A path exists already."""


class ToolIsADirectoryError(ToolError, IsADirectoryError):
    """A path is a directory where a file is needed."""


class ToolNotADirectoryError(ToolError, NotADirectoryError):
    """A path is not a directory where one is needed."""


class ToolPermissionError(ToolError, PermissionError):
    """The operation is not allowed: outside the workspace, read-only, or a special file."""


class ToolUnicodeError(ToolError, ValueError):
    """A file is not valid UTF-8 text."""


class ToolValueError(ToolError, ValueError):
    """An argument is not acceptable: a malformed path, too large a file, text that is not unique."""


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool did not end in time."""


class ToolConnectionError(ToolError, ConnectionError):
    """What the tool works on cannot be reached any more. Whether the last thing asked for was done is not known."""


class SessionBusyError(LittleGhostError, RuntimeError):
    """Another run holds the session.

    Attributes:
        waited: How long it was waited for, in seconds.
    """

    waited: float = 0.0


class SessionNotFoundError(LittleGhostError, LookupError):
    """No such session exists for this actor."""


class SessionSuspendedError(LittleGhostError, RuntimeError):
    """The session waits for answers; give them with ``resume``.

    Attributes:
        pending: The calls that wait.
    """

    pending: tuple[Any, ...] = ()


class LimitExceededError(LittleGhostError, RuntimeError):
    """A run reached one of its limits.

    Attributes:
        limit: The name of the limit, as in ``RunLimits``.
        value: Its value.
    """

    limit: str = ""
    value: float | None = None


class RunCancelled(LittleGhostError, RuntimeError):
    """The run was told to stop.

    Attributes:
        reason: Why, where the one who cancelled said so.
    """

    reason: str | None = None


class DeadlineExceeded(LittleGhostError, TimeoutError):
    """Time was up."""


class WallTimeExceededError(LimitExceededError, DeadlineExceeded):
    """A run reached its limit of wall time."""


class CleanupError(LittleGhostError, RuntimeError):
    """Something could not be closed or ended."""


class UnsupportedError(LittleGhostError, NotImplementedError):
    """This implementation does not offer the operation."""
