"""Models on Amazon Bedrock, by its Converse API.

boto3 makes the requests, each in a thread of its own, for it has no asyncio; `littleghost.models.bedrock_format` writes their arguments
and reads the events. boto3 is imported at the first call, never before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from littleghost.errors import (
    ConfigurationError,
    CredentialError,
    LittleGhostError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
)
from littleghost.events import ModelEvent
from littleghost.models import claude, network
from littleghost.models.bedrock_calls import END, Call, make_breakable
from littleghost.models.bedrock_format import ConverseAnswer, converse_arguments
from littleghost.models.clients import import_sdk
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.event_streams import CutError, NotTheAPIError
from littleghost.models.exchange import DRAIN_SECONDS, TAIL_SECONDS
from littleghost.models.failures import Failures
from littleghost.models.retry import Again, RetryPolicy, retrying
from littleghost.models.settings import abilities, checked, joined

__all__ = ["BedrockModel"]

CONNECT_SECONDS = 10.0
CONNECTIONS = 64
"""How many connections are kept for later calls; there can be more at once."""
OURS = frozenset({"messages", "modelId", "system", "toolConfig"})
"""What settings cannot change: a call has one answer to the messages and tools of the request."""


class BedrockModel(Model):
    """A model on Amazon Bedrock.

    A call is made again, with growing waits, when the service cannot be reached, is silent too long, throttles, answers 408, 409, 424,
    429 or 5xx, breaks off its answer or sends what is no answer. botocore's own retries are off.

    Args:
        model: The id or ARN of a model or an inference profile, such as ``us.anthropic.claude-sonnet-4-6``.
        region: The AWS region; by default ``AWS_REGION``, then what boto3 finds.
        base_url: Where the service is, where it is not the region's own endpoint.
        client: A ``bedrock-runtime`` client of boto3 of your own to use instead; you close it, and should have switched its retries
            off. Its connections are made such that a cancelled call can be broken off.
        settings: Arguments of every call, such as ``inferenceConfig`` and ``additionalModelRequestFields``; those of a request go
            first. ``None`` takes one back.
        cache: How long the provider keeps prefixes of requests: five minutes, an hour, or only where a message's metadata has
            ``cache: true``. Not all models can.
        keep_signatures: Whether opaque signatures of reasoning are stored with messages, so that a run resumed between a call and
            its result goes on thinking.
        context_window: Tokens that a request and its answer may have together; by default what is known of the model.
        capabilities: What the model can, in place of what is known of it; see `Model`.
        developer_role: The role of developer messages amid a conversation: ``user``, where they stand in tags, or ``system``, which
            few models take. Those that a conversation begins with are instructions.
        max_retries: How often a call that failed is made again.
        timeout: Seconds without a byte from the service after which an attempt has failed.
    """

    def __init__(
        self,
        model: str,
        *,
        region: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        settings: Mapping[str, Any] | None = None,
        cache: Literal["5m", "1h"] | None = None,
        keep_signatures: bool = False,
        context_window: int | None = None,
        capabilities: Iterable[str] | None = None,
        developer_role: Literal["user", "system"] = "user",
        max_retries: int = RetryPolicy().retries,
        timeout: float = 600.0,
    ) -> None:
        if client is not None and (region is not None or base_url is not None):
            raise ConfigurationError(
                "give either a client, or region and base_url, which the client has already"
            )
        if cache not in (None, "5m", "1h"):
            raise ConfigurationError(f"cache is {cache!r}; it can be '5m', '1h' or None")
        if developer_role not in ("user", "system"):
            raise ConfigurationError(f"developer_role is {developer_role!r}; it can be 'user' or 'system'")
        self.model = model
        self.settings = checked(settings, OURS)
        self.context_window = context_window or claude.context_window(model)
        self.capabilities = _abilities(model) if capabilities is None else abilities(capabilities)
        self._region = region
        self._base_url = base_url
        self._given = client
        self._client: Any = None
        self._making = threading.Lock()
        self.cache: Literal["5m", "1h"] | None = cache
        self._keep = keep_signatures
        self._developer: Literal["user", "system"] = developer_role
        self._policy = RetryPolicy(retries=max_retries)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"BedrockModel({self.model!r}, host={self.host!r})"

    @property
    def name(self) -> str:
        return self.model

    @property
    def provider(self) -> str:
        return "aws.bedrock"

    @property
    def host(self) -> str:
        """The host that is asked, without anything secret that a URL may hold; before the first call, as far as it is known."""
        client = self._given or self._client
        url = (
            self._base_url
            or (client.meta.endpoint_url if client is not None else None)
            or os.environ.get("AWS_ENDPOINT_URL_BEDROCK_RUNTIME")
            or os.environ.get("AWS_ENDPOINT_URL")
            or f"//bedrock-runtime.{self._where or os.environ.get('AWS_DEFAULT_REGION') or 'REGION'}.amazonaws.com"
        )
        return urlsplit(url).hostname or "Bedrock"

    @property
    def _where(self) -> str | None:
        """The region as far as it is said here; boto3 itself does not look at ``AWS_REGION``, which other SDKs of AWS do."""
        return self._region or os.environ.get("AWS_REGION") or None

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        def attempt(left: float | None) -> AsyncGenerator[ModelEvent]:
            return self._attempt(request, left)

        return retrying(attempt, self._policy, timeout=request.timeout)

    async def aclose(self) -> None:
        """Close the connections. A client that was passed in stays open. The model can be used again."""
        with self._making:
            client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _attempt(self, request: ModelRequest, left: float | None) -> AsyncGenerator[ModelEvent]:
        network.check_host(self.host)
        ends = None if left is None else asyncio.get_running_loop().time() + left
        arguments = self._arguments(request)
        answer = ConverseAnswer(keep=self._keep)
        call = Call(lambda: self._converse(arguments))
        try:
            while not answer.closed:
                event = await self._next(call, answer, ends)
                if event is END:
                    break
                try:
                    for ours in answer.feed(event):
                        yield ours
                except ModelProtocolError as error:
                    raise Again(error) from None
            if not answer.finished:
                raise self._failures.cut(CutError())
            await _drain(call)
        finally:
            call.break_off()
        for ours in answer.end():
            yield ours

    async def _next(self, call: Call, answer: ConverseAnswer, ends: float | None) -> Any:
        """Return the next event, or `END`."""
        limit = ends
        if answer.finished:
            tail = asyncio.get_running_loop().time() + TAIL_SECONDS
            limit = tail if ends is None else min(ends, tail)
        try:
            async with asyncio.timeout_at(limit):
                return await call.next()
        except LittleGhostError:
            raise
        except Exception as error:
            if answer.finished:
                return END  # it is complete; only its usage is lost
            raise self._failures.of(error, ends) from error

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        settings = joined(self.settings, request.settings, OURS)
        known = {name: value for name, value in settings.items() if value is not None}
        if "tool_choice" not in self.capabilities and request.tool_choice != "none":
            request = msgspec.structs.replace(request, tool_choice="auto")
        arguments = converse_arguments(
            request, known, cache=self.cache, kept=self._keep, developer=self._developer
        )
        return {"modelId": self.model, **arguments}

    # -- in the call's thread

    def _converse(self, arguments: dict[str, Any]) -> Iterator[Any]:
        try:
            msgspec.json.encode(arguments)  # botocore would send half a character as it is
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelRequestError(
                f"the request cannot be written as JSON ({type(error).__name__})"
            ) from error
        answer = self._ready().converse_stream(**arguments)
        with contextlib.closing(answer["stream"]) as stream:
            headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            if headers.get("content-type", "").startswith("text/html"):
                raise NotTheAPIError("a web page came in place of an answer; is base_url right?")
            try:
                yield from stream
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
            ) as error:
                # What botocore's parser comes to grief on.
                raise _UnreadableError(type(error).__name__) from error

    def _ready(self) -> Any:
        with self._making:
            client = self._given or self._client
            if client is None:
                client = self._client = self._make()
            make_breakable(client)
            return client

    def _make(self) -> Any:
        boto3 = import_sdk("boto3", "bedrock")
        config = import_sdk("botocore.config", "bedrock").Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=min(CONNECT_SECONDS, self._timeout),
            read_timeout=self._timeout,
            max_pool_connections=CONNECTIONS,
        )
        # A session of its own: boto3's default one is not made for several threads.
        session = boto3.session.Session(region_name=self._where)
        return session.client("bedrock-runtime", endpoint_url=self._base_url, config=config)

    @property
    def _failures(self) -> BedrockFailures:
        secrets = [
            os.environ.get(name)
            for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
        ]
        return BedrockFailures(
            self.host,
            api="Converse",
            key_hint="look at the AWS credentials and what their policy allows",
            secrets=secrets,
        )


class _UnreadableError(Exception):
    """An event is not what the API says."""


def _abilities(model: str) -> frozenset[str]:
    """Return what is known of a model.

    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/conversation-inference-supported-models-features.html
    """
    found: set[str] = set()
    if claude.is_claude(model) or "amazon.nova" in model:
        found |= {"images", "documents", "tool_choice"}
    if not claude.can_be_forced(model):
        found.discard("tool_choice")
    if claude.holds_to_schema(model):
        found.add("answer_format")
    return frozenset(found)


async def _drain(call: Call) -> None:
    """Wait for the end of the stream, for a moment, so that the connection can be used again."""
    with contextlib.suppress(Exception):  # the answer is complete
        async with asyncio.timeout(DRAIN_SECONDS):
            while await call.next() is not END:
                pass


class BedrockFailures(Failures):
    """Maps what botocore raises.

    By the names of its classes: a client that somebody passes in may be of a botocore of its own.
    Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html
    """

    def of_sdk(self, error: Exception) -> Exception | None:
        """Return what to raise for an exception of botocore or of what is below it, ``None`` for another."""
        names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        name = type(error).__name__
        if "botocore.ClientError" in names:
            return self._said(cast("Any", error).response, mid_stream="botocore.EventStreamError" in names)
        if names & _CREDENTIALS:
            return CredentialError(f"there are no AWS credentials that can be used for {self._host} ({name})")
        if "botocore.NoRegionError" in names:
            return ConfigurationError("no AWS region is known; pass region=, or set AWS_REGION")
        if "botocore.ParamValidationError" in names:
            # Its report repeats values, which are what people wrote.
            where = ", ".join(dict.fromkeys(_PARAMETER.findall(str(error)))) or "a parameter"
            return ModelRequestError(f"the request is not as the Converse API has it: {where}")
        if names & _TIMEOUTS:
            return self._late()
        if names & _BROKEN or isinstance(error, _UnreadableError):
            return Again(
                ModelProtocolError(f"{self._host} answered with what is no Converse answer ({name})")
            )
        if names & _CONNECTIONS:
            what = "cannot be reached" if "Connect" in name else "broke the connection"
            return Again(ModelUnavailableError(f"{self._host} {what} ({name})"))
        if "botocore.BotoCoreError" in names:
            return ConfigurationError(f"botocore refuses: {self.safe(str(error))}")
        return None

    def _said(self, response: Any, *, mid_stream: bool) -> Exception:
        """Return what to raise for an error of the service, in place of an answer or in the middle of one."""
        form = _object(response)
        about, metadata = _object(form.get("Error")), _object(form.get("ResponseMetadata"))
        code, told = str(about.get("Code") or ""), str(about.get("Message") or "")
        status = metadata.get("HTTPStatusCode")
        if mid_stream:
            status = _STATUS.get(code[:1].upper() + code[1:])
        elif code == "ModelErrorException":
            status = None  # the model failed, not the request
        if code in _DENIED:
            return CredentialError(f"{self._host} refused the AWS credentials ({code}): {self.safe(told)}")
        if code == "AccessDeniedException":
            return CredentialError(
                f"{self._host}: the AWS credentials may not use this model: {self.safe(told)}"
            )
        if code == "ServiceQuotaExceededException":
            return ModelUnavailableError(f"{self._host}: a quota of the account is used up", status=status)
        headers = {
            str(key).lower(): str(value) for key, value in _object(metadata.get("HTTPHeaders")).items()
        }
        return self.refused(
            status if isinstance(status, int) else None, {"message": told, "code": code}, headers
        )


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


_PARAMETER = re.compile(r'parameter (?:in input: "|in )?([\w.\[\]]+)')
_STATUS = {
    "ThrottlingException": 429,
    "InternalServerException": 500,
    "ServiceUnavailableException": 503,
    "ValidationException": 400,
}
"""The status of an error in the middle of a stream; one without may pass, such as ``ModelStreamErrorException``."""
_DENIED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_CREDENTIALS = {
    f"botocore.{name}"
    for name in (
        "CredentialRetrievalError",
        "LoginError",
        "MetadataRetrievalError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshWithMFAUnsupportedError",
        "SSOError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
        "UnknownCredentialError",
    )
}
_TIMEOUTS = {"botocore.ReadTimeoutError", "botocore.ConnectTimeoutError", "urllib3.ReadTimeoutError"}
_BROKEN = {
    "botocore.ParserError",  # of the event stream
    "botocore.ChecksumMismatch",
    "botocore.ResponseParserError",
    "botocore.NoInitialResponseError",
}
_CONNECTIONS = {
    "botocore.HTTPClientError",
    "botocore.ConnectionError",
    "botocore.IncompleteReadError",
    "botocore.ResponseStreamingError",
    "urllib3.HTTPError",
}
