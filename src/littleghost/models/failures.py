"""What goes wrong with a model call, as this library's errors: one mapping for every provider.

Statuses, error objects in any provider's form, exceptions of an SDK and of the transport below it. What a provider says is repeated
short, and without anything that looks like a key.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    ModelError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
    OutputLimitError,
)
from littleghost.models.retry import Again, retry_after

_E = TypeVar("_E", bound=Exception)

__all__ = ["Failures", "caused", "fault_of", "status_of"]

SHOWN = 300
"""Characters of a provider's own message that an error repeats."""
RETRIED = frozenset({408, 409, 429})
TRANSPORT = frozenset({"anyio", "h11", "h2", "httpcore", "httpcore2", "httpx", "httpx2"})


class Failures:
    """Maps what goes wrong to what to raise: `Again` around an error that may pass, or the error itself.

    Args:
        host: Whom the errors speak of.
        api: What the API is called, such as ``Chat Completions``.
        key_hint: What to do about a missing or refused key.
        sdk: The module of an SDK whose exceptions are known here: ``openai`` or ``anthropic``, which name them alike.
        secrets: What must never be shown, such as the key; what is no string is passed over.
    """

    def __init__(
        self,
        host: str,
        *,
        api: str,
        key_hint: str,
        sdk: str = "",
        secrets: Iterable[Any] = (),
    ) -> None:
        self._host = host
        self._api = api
        self._hint = key_hint
        self._sdk = sdk
        self._secrets = tuple(secrets)

    def of(self, error: Exception, ends: float | None = None) -> Exception:
        """Return what to raise for an exception of the SDK or of what is below it.

        Args:
            error: It becomes the cause, made safe to log.
            ends: When the call had to be over, in the loop's time.
        """
        if isinstance(error, TimeoutError) and ends is not None and asyncio.get_running_loop().time() >= ends:
            mapped: Exception = ModelUnavailableError(
                f"{self._host} did not answer within the time that was left"
            )
        else:
            mapped = self.of_sdk(error) or self._of_transport(error)
        self._defuse(error)
        caused(mapped.error if isinstance(mapped, Again) else mapped, error)
        return mapped

    def of_sdk(self, error: Exception) -> Exception | None:
        """Return what to raise for an exception of the SDK, ``None`` for another; an SDK of another kind says it in a subclass."""
        sdk = cast("Any", sys.modules.get(self._sdk))
        if sdk is None:
            return None
        name = type(error).__name__
        if isinstance(error, sdk.APIResponseValidationError):
            return Again(ModelProtocolError(f"{self._host} answered with what is no {self._api} answer"))
        if isinstance(error, sdk.APIStatusError):
            response = cast("Any", error).response
            return self.refused(
                getattr(error, "status_code", None), cast("Any", error).body, response.headers
            )
        if isinstance(error, sdk.APITimeoutError):
            return self._late()
        if isinstance(error, sdk.APIConnectionError):
            return Again(
                ModelUnavailableError(f"{self._host} cannot be reached; check base_url and the network")
            )
        if isinstance(error, sdk.APIError):
            return self.refused(None, cast("Any", error).body, {})
        if name == "LengthFinishReasonError":
            return OutputLimitError("the answer was cut at the output limit")
        if name == "ContentFilterFinishReasonError":
            return ModelRequestError("the provider's content filter refused the request")
        if name in ("SubjectTokenProviderError", "OAuthError", "CredentialsError", "IdentityTokenFileError"):
            return CredentialError(
                f"the credentials for {self._host} could not be obtained ({name}); {self._hint}"
            )
        if name.startswith("WebSocket"):
            return Again(ModelUnavailableError(f"the connection to {self._host} broke"))
        if isinstance(error, getattr(sdk, "OpenAIError", None) or sdk.AnthropicError):
            # What an SDK raises without a class of its own is about how the client was set up.
            return ConfigurationError(f"the {self._sdk} client refuses: {self.safe(str(error))}")
        return None

    def refused(self, status: int | None, body: Any, headers: Mapping[str, str]) -> Exception:
        """Return what to raise for an answer that is an error.

        Args:
            status: The HTTP status, or ``None`` for an error in the middle of a stream that names none.
            body: What came with it, in any form.
            headers: Those of the answer.
        """
        fault = fault_of(body)
        told = self.safe(fault["message"])
        words = {fault["code"], fault["type"], fault["status"]}
        if words & _OVERFLOW_CODES or _OVERFLOW.search(fault["message"]):
            return _overflow(fault)
        what = f"HTTP {status}" if status else "an error in its answer"
        if status in (401, 403) or words & _KEY_CODES:
            hint = self._hint if status != 403 else "it may not use this model, or not from here"
            return CredentialError(f"{self._host} refused the API key ({what}); {hint}")
        if "insufficient_quota" in words:
            return ModelUnavailableError(
                f"{self._host}: the account's quota is used up ({what})", status=status
            )
        why = f": {told}" if told else ""
        if status is None or status >= 500 or status in RETRIED:
            after = retry_after(headers)
            reason = "is asked too often" if status == 429 else "failed"
            error = ModelUnavailableError(
                f"{self._host} {reason} ({what}){why}", status=status, retry_after=after
            )
            # A header of OpenAI's and Anthropic's, which know better than the status.
            return error if headers.get("x-should-retry") == "false" else Again(error, after=after)
        return ModelRequestError(f"{self._host} refused the request ({what}){why}", status=status)

    def cut(self, cause: Exception) -> Again:
        """Return what to raise for an answer that broke off."""
        return Again(caused(ModelUnavailableError(f"{self._host} broke off its answer"), cause))

    def safe(self, text: str) -> str:
        """Return a provider's words as one short line without anything that looks like a key."""
        for secret in self._secrets:
            if isinstance(secret, str) and len(secret) >= 4:
                text = text.replace(secret, "***")
        text = _SECRET.sub("***", text)
        text = " ".join(text.split())
        return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"

    def _late(self) -> Again:
        return Again(ModelUnavailableError(f"{self._host} did not answer in time"))

    def _of_transport(self, error: Exception) -> Exception:
        name = type(error).__name__
        if "Timeout" in name:
            return self._late()
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in TRANSPORT:
            return Again(ModelUnavailableError(f"the connection to {self._host} broke ({name})"))
        if isinstance(error, TypeError | ValueError | RecursionError):
            return ModelRequestError(f"the request cannot be written as JSON ({name})")
        return ModelError(f"the model call failed ({name})")

    def _defuse(self, error: Exception) -> None:
        """Make the cause safe to log: its own words may repeat the key, or hold a whole page."""
        if error.args:
            error.args = tuple(self.safe(part) if isinstance(part, str) else part for part in error.args)
        for name in ("message", "body"):
            if isinstance(value := getattr(error, name, None), str | dict):
                setattr(error, name, self.safe(value if isinstance(value, str) else str(cast("Any", value))))


def caused(error: _E, cause: Exception) -> _E:
    """Return ``error`` with its cause set."""
    error.__cause__ = cause
    return error


_WORDS = {
    # OpenAI and Anthropic, https://platform.claude.com/docs/en/api/errors
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # Google, https://cloud.google.com/apis/design/errors#handling_errors
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_KEY_CODES = frozenset({"invalid_api_key", "authentication_error"})
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW = re.compile(
    r"maximum context length|exceeds? the (?:available )?context (?:size|window|length)"
    r"|prompt is too long|exceed context limit|token count.{0,30}exceeds the maximum|input is too long for",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:context (?:length|window|size) (?:is |of )?\(?|n_ctx\D{0,3}|tokens > |\+ \d+ > |tokens allowed \()(\d+)",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    r"(?:resulted in|requested(?: about)?|has|contains(?: at least)?|request \(|too long:)\s*(\d+)(?: input)? tokens"
    r"|token count \((\d+)\)",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|key)[-_][A-Za-z0-9*_.-]{6,}|\bAIza[A-Za-z0-9_-]{10,}|\bBearer\s+\S+", re.IGNORECASE
)


def fault_of(body: Any) -> dict[str, Any]:
    """Return an error object with ``message``, ``code``, ``type`` and ``status`` as text, whatever form ``body`` has."""
    while isinstance(body, dict) and isinstance(
        inner := cast("dict[str, Any]", body).get("error"), dict | str
    ):
        body = cast("Any", inner)
    if not isinstance(body, dict):
        # A plain sentence may help; a page of HTML does not.
        text = body if isinstance(body, str) and not body.lstrip().startswith("<") else ""
        return {"message": text, "code": "", "type": "", "status": ""}
    form = cast("dict[str, Any]", body)
    message = form.get("message") or form.get("detail") or ""
    text = {
        name: form[name] if isinstance(form.get(name), str) else "" for name in ("code", "type", "status")
    }
    return {**form, **text, "message": message if isinstance(message, str) else str(message)}


def status_of(body: Any) -> int | None:
    """Return the HTTP status that an error object names, by number or in a provider's word for it, or ``None``."""
    if not isinstance(body, dict):
        return None
    fault = fault_of(body)
    number: Any = cast("dict[str, Any]", body).get("code")
    if isinstance(number, int) and 400 <= number < 600:
        return number
    return next((_WORDS[fault[name]] for name in ("code", "type", "status") if fault[name] in _WORDS), None)


def _overflow(fault: Mapping[str, Any]) -> ContextOverflowError:
    tokens, limit = fault.get("n_prompt_tokens"), fault.get("n_ctx")
    if not isinstance(tokens, int):
        tokens = int(found[1] or found[2]) if (found := _TOKENS.search(fault["message"])) else None
    if not isinstance(limit, int):
        limit = int(found[1]) if (found := _LIMIT.search(fault["message"])) else None
    numbers = f": {tokens} tokens, and it holds {limit}" if tokens is not None and limit is not None else ""
    return ContextOverflowError(
        f"the conversation does not fit the model's context window{numbers}; shorten it",
        tokens=tokens,
        limit=limit,
    )
