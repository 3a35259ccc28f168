"""What boto3 and the service say, in our words.

Nothing here imports botocore: a client that somebody passes in may be none of its, and what is not loaded cannot have raised. Codes are
those of the model ``bedrock-agentcore/2024-02-28``, and of what AWS answers before a service sees the request.
Source: https://docs.aws.amazon.com/bedrock-agentcore/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

import sys
from typing import Any, Final, Literal, cast

from littleghost.errors import (
    ConfigurationError,
    CredentialError,
    DataError,
    LittleGhostError,
    ProtocolError,
    StoreUnavailableError,
)

__all__ = [
    "Outcome",
    "UnreadableAnswer",
    "code_of",
    "is_mismatch",
    "is_missing_event",
    "outcome",
    "store_error",
]

Outcome = Literal["again", "expired", "refused"]
"""After an error: it may pass, and the same request may be sent again; the credentials have expired; no repetition helps.

``again`` says nothing of whether the request was carried out."""


class UnreadableAnswer(Exception):
    """An answer that is none: its body was cut off, or came from something that stands before the service."""


EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException"})

PASSING: Final = frozenset(
    {
        "InternalServerException",
        "RequestTimeout",
        "RequestTimeoutException",
        "RetryableConflictException",
        "ServiceException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)

DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

# Where the way to the service failed, or what came back was no answer. By name and module, so that nothing has to be imported.
_TRANSPORT: Final = (
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "IncompleteReadError"),
    ("botocore.exceptions", "ResponseStreamingError"),
    ("botocore.parsers", "ResponseParserError"),
)
_CREDENTIALS: Final = (
    ("botocore.exceptions", "LoginError"),
    ("botocore.exceptions", "MetadataRetrievalError"),
    ("botocore.exceptions", "NoAuthTokenError"),
    ("botocore.exceptions", "NoCredentialsError"),
    ("botocore.exceptions", "PartialCredentialsError"),
    ("botocore.exceptions", "CredentialRetrievalError"),
    ("botocore.exceptions", "RefreshWithMFAUnsupportedError"),
    ("botocore.exceptions", "SSOError"),
    ("botocore.exceptions", "TokenRetrievalError"),
    ("botocore.exceptions", "UnknownCredentialError"),
)


def code_of(error: BaseException) -> str:
    """Return the code that the service gave, ``""`` where it gave none."""
    return str(_error(error).get("Code") or "")


def is_missing_event(error: BaseException) -> bool:
    """Tell whether the service answered that it has no such event, as opposed to no such memory."""
    said = _said(error).lower()
    return (
        code_of(error) == "ResourceNotFoundException" and "event" in said and "memory not found" not in said
    )


def is_mismatch(error: BaseException) -> bool:
    """Tell whether a client token was refused because another request had it."""
    response: Any = getattr(error, "response", None)
    reason: Any = cast("dict[str, Any]", response).get("reason") if isinstance(response, dict) else None
    return reason == "IdempotentParameterMismatchException" or "IdempotentParameterMismatch" in code_of(error)


def outcome(error: BaseException) -> Outcome:
    """Tell what may be done after ``error``."""
    code = code_of(error)
    if code in EXPIRED:
        return "expired"
    if code in PASSING or _status(error) >= 500 or _status(error) == 429 or _is_cut(error):
        return "again"
    if not code and (isinstance(error, OSError | UnreadableAnswer) or _is(error, _TRANSPORT)):
        return "again"
    return "refused"


def store_error(error: BaseException, operation: str) -> LittleGhostError:
    """Return our error for one of a call that is given up. It repeats the service's words, which have no content of messages in them."""
    code, said = code_of(error), _said(error)
    what = f"AgentCore Memory, {operation}: "
    if code in EXPIRED or code in DENIED or _is(error, _CREDENTIALS):
        return CredentialError(
            f"{what}{said}. Look at the credentials, and at what their policy allows for this memory, actor and session."
        )
    if _is_cut(error):
        return StoreUnavailableError(f"{what}{code}, and the rest of the answer was cut off. Try again.")
    if code == "ResourceNotFoundException":
        return ConfigurationError(f"{what}{said}. Is memory_id that of a memory in this region and account?")
    if code == "ServiceQuotaExceededException":
        return StoreUnavailableError(f"{what}{said}. A quota of the account is used up.")
    if code in {"ValidationException", "InvalidInputException"}:
        if "memoryId" in said:
            return ConfigurationError(f"{what}{said}")
        return ProtocolError(f"{what}the service refused the request: {said}")
    if outcome(error) == "again":
        return StoreUnavailableError(f"{what}{said or type(error).__name__}. It may pass; try again.")
    if _is(error, (("botocore.exceptions", "ParamValidationError"),)):
        said = " ".join(said.split())
        return ConfigurationError(f"{what}{said}") if "memoryId" in said else DataError.at(operation, said)
    if _is(error, (("botocore.exceptions", "BotoCoreError"),)):
        return ConfigurationError(f"{what}{said}")
    return StoreUnavailableError(f"{what}{code or type(error).__name__}: {said}")


def _error(error: BaseException) -> dict[str, Any]:
    response: Any = getattr(error, "response", None)
    found: Any = cast("dict[str, Any]", response).get("Error") if isinstance(response, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _is_cut(error: BaseException) -> bool:
    """Tell whether a refusal is known by its headers only, for its body did not arrive whole: botocore then has that as the message."""
    message = _error(error).get("Message")
    return message == "" or (isinstance(message, str) and message.startswith("{"))


def _said(error: BaseException) -> str:
    return str(_error(error).get("Message") or error).rstrip(". ")


def _status(error: BaseException) -> int:
    response: Any = getattr(error, "response", None)
    found: Any = (
        cast("dict[str, Any]", response).get("ResponseMetadata") if isinstance(response, dict) else None
    )
    status: Any = cast("dict[str, Any]", found).get("HTTPStatusCode") if isinstance(found, dict) else None
    return status if isinstance(status, int) else 0


def _is(error: BaseException, kinds: tuple[tuple[str, str], ...]) -> bool:
    for module, name in kinds:
        kind: Any = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return True
    return False
