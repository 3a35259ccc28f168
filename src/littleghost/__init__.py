"""Agents whose conversations cannot be lost and whose tools cannot get out of bounds.

Every public name can be imported from here, and is loaded when it is first used. Test kits and fakes are in `littleghost.testing`, the
synchronous face of sessions and runtimes in `littleghost.sync`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from littleghost.agent import Agent as Agent
    from littleghost.cancellation import CancellationToken as CancellationToken, Deadline as Deadline
    from littleghost.content import Block as Block, Document as Document, Image as Image, Reasoning as Reasoning, Text as Text, ToolResult as ToolResult, ToolUse as ToolUse
    from littleghost.errors import CapabilityError as CapabilityError, CleanupError as CleanupError, ConfigurationError as ConfigurationError, ConflictError as ConflictError, ContextOverflowError as ContextOverflowError, CorruptSessionError as CorruptSessionError, CredentialError as CredentialError, DataError as DataError, DeadlineExceeded as DeadlineExceeded, DependencyError as DependencyError, FormatError as FormatError, LimitExceededError as LimitExceededError, LittleGhostError as LittleGhostError, MalformedToolCallError as MalformedToolCallError, ModelError as ModelError, ModelProtocolError as ModelProtocolError, ModelRequestError as ModelRequestError, ModelUnavailableError as ModelUnavailableError, OutputLimitError as OutputLimitError, PolicyError as PolicyError, ProtocolError as ProtocolError, RunCancelled as RunCancelled, SessionBusyError as SessionBusyError, SessionNotFoundError as SessionNotFoundError, SessionSuspendedError as SessionSuspendedError, StoreError as StoreError, StoreUnavailableError as StoreUnavailableError, ToolError as ToolError, ToolFileExistsError as ToolFileExistsError, ToolFileNotFoundError as ToolFileNotFoundError, ToolIsADirectoryError as ToolIsADirectoryError, ToolNotADirectoryError as ToolNotADirectoryError, ToolPermissionError as ToolPermissionError, ToolTimeoutError as ToolTimeoutError, ToolUnicodeError as ToolUnicodeError, ToolValueError as ToolValueError, UnsupportedError as UnsupportedError
    from littleghost.events import Committed as Committed, Event as Event, ModelEnded as ModelEnded, ModelEvent as ModelEvent, ModelStarted as ModelStarted, ReasoningDelta as ReasoningDelta, Retrying as Retrying, RunEnded as RunEnded, RunStarted as RunStarted, Suspended as Suspended, TextDelta as TextDelta, ToolCallArguments as ToolCallArguments, ToolCallReady as ToolCallReady, ToolCallStarted as ToolCallStarted, ToolEnded as ToolEnded, ToolStarted as ToolStarted, UsageReported as UsageReported
    from littleghost.loop import RunLimits as RunLimits
    from littleghost.message import Message as Message
    from littleghost.models.contract import Model as Model, ModelRequest as ModelRequest, ToolSpec as ToolSpec
    from littleghost.models.local import LocalModel as LocalModel
    from littleghost.models.openai import OpenAIModel as OpenAIModel
    from littleghost.models.resolve import resolve_model as resolve_model
    from littleghost.run import Run as Run
    from littleghost.runtime import RunStream as RunStream, Runtime as Runtime
    from littleghost.sandboxes.bubblewrap import BubblewrapSandbox as BubblewrapSandbox
    from littleghost.sandboxes.contract import Execution as Execution, FileInfo as FileInfo, Probe as Probe, Process as Process, Sandbox as Sandbox, SandboxLimits as SandboxLimits
    from littleghost.sandboxes.host import HostSandbox as HostSandbox
    from littleghost.sandboxes.native import native_sandbox as native_sandbox
    from littleghost.sandboxes.policy import EffectivePolicy as EffectivePolicy, Policy as Policy
    from littleghost.sessions.contract import ANY as ANY, Commit as Commit, Lease as Lease, Page as Page, SessionInfo as SessionInfo, SessionStore as SessionStore, Snapshot as Snapshot
    from littleghost.sessions.memory import MemoryStore as MemoryStore
    from littleghost.sessions.opening import open_store as open_store
    from littleghost.sessions.session import Session as Session
    from littleghost.sessions.sqlite import SQLiteStore as SQLiteStore
    from littleghost.tools.builtin import SandboxTools as SandboxTools, list_files as list_files, read_file as read_file, replace_in_file as replace_in_file, sandbox_tools as sandbox_tools, shell as shell, write_file as write_file
    from littleghost.tools.contract import RunContext as RunContext, Tool as Tool, Toolset as Toolset
    from littleghost.tools.function import tool as tool
    from littleghost.usage import Usage as Usage
    from littleghost.workspace import Workspace as Workspace

__version__ = "0.1.0"

_HOMES = {
    "agent": ("Agent",),
    "cancellation": ("CancellationToken", "Deadline"),
    "content": ("Block", "Document", "Image", "Reasoning", "Text", "ToolResult", "ToolUse"),
    "errors": (
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
        "LimitExceededError",
        "LittleGhostError",
        "MalformedToolCallError",
        "ModelError",
        "ModelProtocolError",
        "ModelRequestError",
        "ModelUnavailableError",
        "OutputLimitError",
        "PolicyError",
        "ProtocolError",
        "RunCancelled",
        "SessionBusyError",
        "SessionNotFoundError",
        "SessionSuspendedError",
        "StoreError",
        "StoreUnavailableError",
        "ToolError",
        "ToolFileExistsError",
        "ToolFileNotFoundError",
        "ToolIsADirectoryError",
        "ToolNotADirectoryError",
        "ToolPermissionError",
        "ToolTimeoutError",
        "ToolUnicodeError",
        "ToolValueError",
        "UnsupportedError",
    ),
    "events": (
        "Committed",
        "Event",
        "ModelEnded",
        "ModelEvent",
        "ModelStarted",
        "ReasoningDelta",
        "Retrying",
        "RunEnded",
        "RunStarted",
        "Suspended",
        "TextDelta",
        "ToolCallArguments",
        "ToolCallReady",
        "ToolCallStarted",
        "ToolEnded",
        "ToolStarted",
        "UsageReported",
    ),
    "loop": ("RunLimits",),
    "message": ("Message",),
    "models.contract": ("Model", "ModelRequest", "ToolSpec"),
    "models.local": ("LocalModel",),
    "models.openai": ("OpenAIModel",),
    "models.resolve": ("resolve_model",),
    "run": ("Run",),
    "runtime": ("RunStream", "Runtime"),
    "sandboxes.bubblewrap": ("BubblewrapSandbox",),
    "sandboxes.contract": ("Execution", "FileInfo", "Probe", "Process", "Sandbox", "SandboxLimits"),
    "sandboxes.host": ("HostSandbox",),
    "sandboxes.native": ("native_sandbox",),
    "sandboxes.policy": ("EffectivePolicy", "Policy"),
    "sessions.contract": ("ANY", "Commit", "Lease", "Page", "SessionInfo", "SessionStore", "Snapshot"),
    "sessions.memory": ("MemoryStore",),
    "sessions.opening": ("open_store",),
    "sessions.session": ("Session",),
    "sessions.sqlite": ("SQLiteStore",),
    "tools.builtin": ("SandboxTools", "list_files", "read_file", "replace_in_file", "sandbox_tools", "shell", "write_file"),
    "tools.contract": ("RunContext", "Tool", "Toolset"),
    "tools.function": ("tool",),
    "usage": ("Usage",),
    "workspace": ("Workspace",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'littleghost' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"littleghost.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
