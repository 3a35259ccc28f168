"""The six operations as botocore's model of the service has them: where they are, and what they take."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from urllib.parse import unquote

from littleghost.emulators.agentcore.refusals import cannot_parse, invalid, invalid_fields, unknown_operation
from littleghost.emulators.agentcore.shapes import Check, Problems, compile_shape
from littleghost.errors import ConfigurationError, DependencyError

__all__ = ["OPERATIONS", "Operation", "ServiceModel", "parse_body", "service_model"]

OPERATIONS = ("CreateEvent", "GetEvent", "ListEvents", "DeleteEvent", "ListSessions", "ListActors")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: As in the API.
        method: The HTTP method.
        segments: The path, split at its slashes; a label such as ``{memoryId}`` stands for what the caller fills in.
        status: Of success.
        check: The check of all parameters, those in the path included.
    """

    name: str
    method: str
    segments: tuple[str, ...]
    status: int
    check: Check

    def labels(self, segments: list[str]) -> dict[str, Any] | None:
        """Return what a raw path has in place of the labels, decoded; ``None`` where it is another path."""
        if len(segments) != len(self.segments):
            return None
        found: dict[str, Any] = {}
        for mine, given in zip(self.segments, segments, strict=True):
            if mine.startswith("{"):
                found[mine[1:-1]] = unquote(given)
            elif mine != given:
                return None
        return found

    def validate(self, params: Mapping[str, Any]) -> None:
        """Check ``params`` against every constraint of the model.

        Raises:
            Refusal: They break one.
        """
        problems: Problems = []
        self.check(params, "", problems)
        if not problems:
            return
        if any(path == "memoryId" for path, _, _ in problems):
            text = "Invalid memoryId: not a valid memory ID or ARN"
            raise invalid(text, ("memoryId", text))
        raise invalid_fields(problems)


class ServiceModel:
    """The operations, to be found by method and path.

    Args:
        text_in_bytes: Whether the limit of a message's text counts UTF-8 bytes; else it counts characters.

    Raises:
        DependencyError: botocore is not installed, or its model does not know the service.
    """

    def __init__(self, *, text_in_bytes: bool = False) -> None:
        model = _load()
        text = model.shape_for("Content").members["text"].name
        in_bytes = (text,) if text_in_bytes else ()
        self.operations = {name: _operation(model, name, in_bytes) for name in OPERATIONS}
        self._memory_id = compile_shape(model.shape_for("MemoryId"))

    def check_memory(self, id: str) -> None:
        """Check the id of a memory that is to be.

        Raises:
            ConfigurationError: No memory can have it.
        """
        problems: Problems = []
        self._memory_id(id, "memories", problems)
        if problems or ":" in id:
            raise ConfigurationError(
                f"memories: {id!r} is no memory id; one is a name of letters, digits, - and _, then - and ten letters or digits"
            )

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, Any]]:
        """Return the operation of a request and what its path holds. The path is split before it is decoded.

        Raises:
            Refusal: There is no such operation.
        """
        segments = path.partition("?")[0].split("/")
        for operation in self.operations.values():
            if operation.method == method:
                labels = operation.labels(segments)
                if labels is not None:
                    return operation, labels
        raise unknown_operation(
            f"{method} {path[:200]} is none of the operations emulated: {', '.join(OPERATIONS)}"
        )


@cache
def service_model(*, text_in_bytes: bool = False) -> ServiceModel:
    """Return the model, compiled once."""
    return ServiceModel(text_in_bytes=text_in_bytes)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty body is an empty one.

    Raises:
        Refusal: It is none.
    """
    if not body:
        return {}
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise cannot_parse("the body is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError as well
        raise cannot_parse(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise cannot_parse("the body is not a JSON object")
    return cast("dict[str, Any]", value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _operation(model: Any, name: str, in_bytes: tuple[str, ...]) -> Operation:
    operation = model.operation_model(name)
    return Operation(
        name=name,
        method=operation.http["method"],
        segments=tuple(operation.http["requestUri"].split("/")),
        status=operation.http["responseCode"],
        check=compile_shape(operation.input_shape, in_bytes),
    )


def _load() -> Any:
    try:
        loaders: Any = importlib.import_module("botocore.loaders")
        models: Any = importlib.import_module("botocore.model")
        exceptions: Any = importlib.import_module("botocore.exceptions")
    except ImportError as error:
        raise DependencyError.missing("boto3", "agentcore") from error
    try:
        described = loaders.Loader().load_service_model("bedrock-agentcore", "service-2")
        model = models.ServiceModel(described, "bedrock-agentcore")
        model.operation_model("CreateEvent").input_shape.members["extractionMode"]
    except (exceptions.DataNotFoundError, exceptions.UnknownServiceError, KeyError) as error:
        raise DependencyError(
            "this botocore is too old for AgentCore Memory; bring it up to date with: pip install -U 'littleghost[agentcore]'",
            package="boto3",
            extra="agentcore",
        ) from error
    return model
