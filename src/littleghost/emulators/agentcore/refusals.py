"""What the service answers when it does not do what it was asked: status, code and text."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = [
    "Refusal",
    "access_denied",
    "cannot_parse",
    "conflict",
    "expired_token",
    "fault_of_service",
    "invalid",
    "invalid_fields",
    "not_found",
    "quota_exceeded",
    "throttled",
    "unknown_operation",
]


class Refusal(Exception):
    """An answer that is an error.

    Attributes:
        status: The HTTP status.
        code: The name of the error's shape, which boto3 has in ``error.response["Error"]["Code"]``.
        message: Its text.
        reason: Of a ``ValidationException``, one of the model's enum.
        fields: Of a ``ValidationException``, the path and the complaint of each field.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        reason: str | None = None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.reason = reason
        self.fields = fields

    def body(self) -> bytes:
        """Return the body of the answer."""
        content: dict[str, object] = {"message": self.message}
        if self.reason is not None:
            content["reason"] = self.reason
            content["fieldList"] = [{"name": name, "message": text} for name, text in self.fields]
        return json.dumps(content).encode()  # escaped, for a complaint may quote what is no Unicode


def invalid(message: str, *fields: tuple[str, str], reason: str = "FieldValidationFailed") -> Refusal:
    """Return a ``ValidationException``."""
    return Refusal(400, "ValidationException", message, reason=reason, fields=fields)


def invalid_fields(problems: Sequence[tuple[str, str, str]]) -> Refusal:
    """Return the ``ValidationException`` of members that break their constraints: path, value to be shown, constraint.

    The wording is that of the answers that users of the service have reported.
    """
    count = len(problems)
    told = "; ".join(
        f"Value {shown}at '{path}' failed to satisfy constraint: {text}" for path, shown, text in problems
    )
    return invalid(
        f"{count} validation error{'s' if count > 1 else ''} detected: {told}",
        *((path, text) for path, _, text in problems),
    )


def cannot_parse(message: str) -> Refusal:
    """Return the ``ValidationException`` of a body that is not what the model says."""
    return invalid(message, reason="CannotParse")


def not_found(message: str) -> Refusal:
    """Return a ``ResourceNotFoundException``."""
    return Refusal(404, "ResourceNotFoundException", message)


def throttled() -> Refusal:
    """Return the ``ThrottledException`` of a quota."""
    return Refusal(429, "ThrottledException", "Rate exceeded.")


def conflict() -> Refusal:
    """Return the conflict that concurrent writers may get."""
    return Refusal(
        409, "RetryableConflictException", "The request conflicts with another one. Please try again."
    )


def quota_exceeded() -> Refusal:
    """Return the answer to an account that has all it may have."""
    return Refusal(402, "ServiceQuotaExceededException", "A service quota was exceeded.")


def access_denied() -> Refusal:
    """Return the answer to a caller without the permission."""
    return Refusal(
        403, "AccessDeniedException", "User is not authorized to perform this operation on this resource."
    )


def expired_token() -> Refusal:
    """Return the answer to credentials that have run out; the model does not have it, as for every AWS service."""
    return Refusal(403, "ExpiredTokenException", "The security token included in the request is expired")


def fault_of_service(status: int) -> Refusal:
    """Return the answer of a service that failed; other statuses than 500 come from what stands before it."""
    if status == 500:
        return Refusal(500, "ServiceException", "An internal error occurred.")
    text = {502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout"}[status]
    return Refusal(status, "", text)


def unknown_operation(message: str) -> Refusal:
    """Return the answer to a path that none of the six operations has."""
    return Refusal(404, "UnknownOperationException", message)
