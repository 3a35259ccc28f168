"""Every error that boto3 and botocore have for a call has a name of ours, and says whether the call may be sent again."""

from __future__ import annotations

import inspect
import pickle
import string
from collections.abc import Iterator
from typing import Any

import boto3.exceptions
import botocore.exceptions
import botocore.parsers
import pytest
from botocore.exceptions import ClientError

from littleghost.errors import (
    ConfigurationError,
    CredentialError,
    DataError,
    LittleGhostError,
    ProtocolError,
    StoreUnavailableError,
)
from littleghost.sessions.agentcore.failures import (
    UnreadableAnswer,
    is_mismatch,
    is_missing_event,
    outcome,
    store_error,
)


def _kinds() -> Iterator[type[Exception]]:
    for module in (botocore.exceptions, botocore.parsers, boto3.exceptions):
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, Exception) and not issubclass(kind, Warning):
                if kind.__module__ == module.__name__:
                    yield kind


KINDS = list(_kinds())

AGAIN = {
    "ConnectTimeoutError", "ConnectionClosedError", "ConnectionError", "EndpointConnectionError", "HTTPClientError",
    "IncompleteReadError", "ProxyConnectionError", "ReadTimeoutError", "ResponseParserError", "ResponseStreamingError", "SSLError",
}  # fmt: skip
CREDENTIALS = {
    "CredentialRetrievalError", "LoginAuthorizationCodeError", "LoginError", "LoginInsufficientPermissions", "LoginRefreshRequired",
    "LoginTokenLoadError", "MetadataRetrievalError", "NoAuthTokenError", "NoCredentialsError", "PartialCredentialsError",
    "PendingAuthorizationExpiredError", "RefreshWithMFAUnsupportedError", "SSOError", "SSOTokenLoadError", "TokenRetrievalError",
    "UnauthorizedSSOTokenError", "UnknownCredentialError",
}  # fmt: skip


def made(kind: type[Exception]) -> Exception:
    """Return an error of a class as botocore would make it, of whatever version."""
    if issubclass(kind, ClientError):
        return kind({"Error": {"Code": "Odd", "Message": "said"}}, "ListEvents")
    names = {name for _, name, *_ in string.Formatter().parse(getattr(kind, "fmt", "")) if name}
    values: dict[str, Any] = {name.partition("[")[0]: "said" for name in names}
    for attempt in (values, {**values, "error": OSError("said"), "endpoint_url": "said"}):
        try:
            return kind(**attempt)
        except (TypeError, KeyError):
            pass
    error = kind.__new__(kind)
    Exception.__init__(error, "said")
    return error


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_exception_of_the_client_is_mapped(kind: type[Exception]):
    error = made(kind)
    ours = store_error(error, "ListEvents")
    assert isinstance(ours, LittleGhostError)
    assert "ListEvents" in str(ours)
    assert (outcome(error) == "again") == (kind.__name__ in AGAIN)
    assert isinstance(ours, CredentialError) == (kind.__name__ in CREDENTIALS)
    if kind.__name__ in AGAIN:
        assert isinstance(ours, StoreUnavailableError)
    assert type(pickle.loads(pickle.dumps(ours))) is type(ours)


def of(code: str, message: str = "said", status: int = 400, **more: Any) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}, **more},
        "CreateEvent",
    )


@pytest.mark.parametrize(
    ("error", "known", "kind", "words"),
    [
        (of("ThrottledException", status=429), "again", StoreUnavailableError, "try again"),
        (of("TooManyRequestsException", status=429), "again", StoreUnavailableError, "try again"),
        (of("429", status=429), "again", StoreUnavailableError, "try again"),
        (of("ServiceException", status=500), "again", StoreUnavailableError, "try again"),
        (of("503", status=503), "again", StoreUnavailableError, "try again"),
        (of("RetryableConflictException", status=409), "again", StoreUnavailableError, "try again"),
        (of("ExpiredTokenException", status=403), "expired", CredentialError, "credentials"),
        (of("ExpiredToken", status=403), "expired", CredentialError, "credentials"),
        (of("AccessDeniedException", status=403), "refused", CredentialError, "policy"),
        (of("UnrecognizedClientException", status=403), "refused", CredentialError, "credentials"),
        (of("InvalidSignatureException", status=403), "refused", CredentialError, "credentials"),
        (of("ServiceQuotaExceededException", status=402), "refused", StoreUnavailableError, "quota"),
        (
            of("ResourceNotFoundException", "Memory not found: x", 404),
            "refused",
            ConfigurationError,
            "memory_id",
        ),
        (of("ValidationException", "Invalid memoryId: no"), "refused", ConfigurationError, "memoryId"),
        (of("ValidationException", "too long"), "refused", ProtocolError, "refused"),
        (of("InvalidInputException", "no"), "refused", ProtocolError, "refused"),
        (of("ValidationException", '{"message": "used for ano'), "again", StoreUnavailableError, "cut off"),
        (of("ResourceNotFoundException", "", 404), "again", StoreUnavailableError, "cut off"),
        (of("AccessDeniedException", '{"mes', 403), "again", CredentialError, "policy"),
        (of("SomethingNew", status=418), "refused", StoreUnavailableError, "SomethingNew"),
        (ConnectionResetError("said"), "again", StoreUnavailableError, "try again"),
        (TimeoutError(), "again", StoreUnavailableError, "TimeoutError"),
        (UnreadableAnswer("the answer has no 'events'"), "again", StoreUnavailableError, "no 'events'"),
        (botocore.exceptions.ParamValidationError(report="said"), "refused", DataError, "said"),
        (ZeroDivisionError("said"), "refused", StoreUnavailableError, "ZeroDivisionError"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, Exception) else "",
)
def test_what_the_service_says(error: Exception, known: str, kind: type[LittleGhostError], words: str):
    ours = store_error(error, "CreateEvent")
    assert type(ours) is kind
    assert words in str(ours)
    assert outcome(error) == known


def test_a_missing_event_is_no_missing_memory():
    said = "Unable to find event with id 0000000000000000001#00000000"
    assert is_missing_event(of("ResourceNotFoundException", said, 404))
    assert not is_missing_event(
        of("ResourceNotFoundException", "Memory not found: my_events-abcdefghij", 404)
    )
    assert not is_missing_event(of("ValidationException", said))


def test_a_token_that_another_request_had_is_known_by_its_reason():
    assert is_mismatch(of("ValidationException", reason="IdempotentParameterMismatchException"))
    assert is_mismatch(of("IdempotentParameterMismatchException"))
    assert not is_mismatch(of("ValidationException", reason="FieldValidationFailed"))
    assert not is_mismatch(ValueError())
