"""Agents whose conversations cannot be lost and whose tools cannot get out of bounds.

Every public name can be imported from here, and is loaded when it is first used. Test kits and fakes are in `littleghost.testing`, the
synchronous face of sessions and runtimes in `littleghost.sync`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from littleghost.agent import (
        Agent as Agent,
    )
    from littleghost.cancellation import (
        CancellationToken as CancellationToken,
    )
    from littleghost.cancellation import (
        Deadline as Deadline,
    )
    from littleghost.content import (
        Block as Block,
    )
    from littleghost.content import (
        Document as Document,
    )
    from littleghost.content import (
        Image as Image,
    )
    from littleghost.content import (
        Reasoning as Reasoning,
    )
    from littleghost.content import (
        Text as Text,
    )
    from littleghost.content import (
        ToolResult as ToolResult,
    )
    from littleghost.content import (
        ToolUse as ToolUse,
    )
    from littleghost.errors import (
        CapabilityError as CapabilityError,
    )
    from littleghost.errors import (
        CleanupError as CleanupError,
    )
    from littleghost.errors import (
        ConfigurationError as ConfigurationError,
    )
    from littleghost.errors import (
        ConflictError as ConflictError,
    )
    from littleghost.errors import (
        ContextOverflowError as ContextOverflowError,
    )
    from littleghost.errors import (
        CorruptSessionError as CorruptSessionError,
    )
    from littleghost.errors import (
        CredentialError as CredentialError,
    )
    from littleghost.errors import (
        DataError as DataError,
    )
    from littleghost.errors import (
        DeadlineExceeded as DeadlineExceeded,
    )
    from littleghost.errors import (
        DependencyError as DependencyError,
    )
    from littleghost.errors import (
        FormatError as FormatError,
    )
    from littleghost.errors import (
        LeaseLostError as LeaseLostError,
    )
    from littleghost.errors import (
        LimitExceededError as LimitExceededError,
    )
    from littleghost.errors import (
        LittleGhostError as LittleGhostError,
    )
    from littleghost.errors import (
        MalformedToolCallError as MalformedToolCallError,
    )
    from littleghost.errors import (
        ModelError as ModelError,
    )
    from littleghost.errors import (
        ModelProtocolError as ModelProtocolError,
    )
    from littleghost.errors import (
        ModelRequestError as ModelRequestError,
    )
    from littleghost.errors import (
        ModelUnavailableError as ModelUnavailableError,
    )
    from littleghost.errors import (
        OutputError as OutputError,
    )
    from littleghost.errors import (
        OutputLimitError as OutputLimitError,
    )
    from littleghost.errors import (
        PolicyError as PolicyError,
    )
    from littleghost.errors import (
        ProtocolError as ProtocolError,
    )
    from littleghost.errors import (
        RunCancelled as RunCancelled,
    )
    from littleghost.errors import (
        SessionBusyError as SessionBusyError,
    )
    from littleghost.errors import (
        SessionNotFoundError as SessionNotFoundError,
    )
    from littleghost.errors import (
        SessionSuspendedError as SessionSuspendedError,
    )
    from littleghost.errors import (
        SessionTooLargeError as SessionTooLargeError,
    )
    from littleghost.errors import (
        StoreError as StoreError,
    )
    from littleghost.errors import (
        StoreUnavailableError as StoreUnavailableError,
    )
    from littleghost.errors import (
        ToolConnectionError as ToolConnectionError,
    )
    from littleghost.errors import (
        ToolError as ToolError,
    )
    from littleghost.errors import (
        ToolFileExistsError as ToolFileExistsError,
    )
    from littleghost.errors import (
        ToolFileNotFoundError as ToolFileNotFoundError,
    )
    from littleghost.errors import (
        ToolIsADirectoryError as ToolIsADirectoryError,
    )
    from littleghost.errors import (
        ToolNotADirectoryError as ToolNotADirectoryError,
    )
    from littleghost.errors import (
        ToolPermissionError as ToolPermissionError,
    )
    from littleghost.errors import (
        ToolRetry as ToolRetry,
    )
    from littleghost.errors import (
        ToolTimeoutError as ToolTimeoutError,
    )
    from littleghost.errors import (
        ToolUnicodeError as ToolUnicodeError,
    )
    from littleghost.errors import (
        ToolValueError as ToolValueError,
    )
    from littleghost.errors import (
        UnsupportedError as UnsupportedError,
    )
    from littleghost.errors import (
        WallTimeExceededError as WallTimeExceededError,
    )
    from littleghost.events import (
        Committed as Committed,
    )
    from littleghost.events import (
        Compacted as Compacted,
    )
    from littleghost.events import (
        Event as Event,
    )
    from littleghost.events import (
        ModelEnded as ModelEnded,
    )
    from littleghost.events import (
        ModelEvent as ModelEvent,
    )
    from littleghost.events import (
        ModelStarted as ModelStarted,
    )
    from littleghost.events import (
        OutputDelta as OutputDelta,
    )
    from littleghost.events import (
        ReasoningDelta as ReasoningDelta,
    )
    from littleghost.events import (
        Retrying as Retrying,
    )
    from littleghost.events import (
        RunEnded as RunEnded,
    )
    from littleghost.events import (
        RunStarted as RunStarted,
    )
    from littleghost.events import (
        Suspended as Suspended,
    )
    from littleghost.events import (
        TextDelta as TextDelta,
    )
    from littleghost.events import (
        ToolCallArguments as ToolCallArguments,
    )
    from littleghost.events import (
        ToolCallReady as ToolCallReady,
    )
    from littleghost.events import (
        ToolCallStarted as ToolCallStarted,
    )
    from littleghost.events import (
        ToolEnded as ToolEnded,
    )
    from littleghost.events import (
        ToolStarted as ToolStarted,
    )
    from littleghost.events import (
        UsageReported as UsageReported,
    )
    from littleghost.message import (
        Message as Message,
    )
    from littleghost.models.anthropic import (
        AnthropicModel as AnthropicModel,
    )
    from littleghost.models.bedrock import (
        BedrockModel as BedrockModel,
    )
    from littleghost.models.contract import (
        AnswerFormat as AnswerFormat,
    )
    from littleghost.models.contract import (
        Model as Model,
    )
    from littleghost.models.contract import (
        ModelRequest as ModelRequest,
    )
    from littleghost.models.contract import (
        ToolSpec as ToolSpec,
    )
    from littleghost.models.gemini import (
        GeminiModel as GeminiModel,
    )
    from littleghost.models.local import (
        LocalModel as LocalModel,
    )
    from littleghost.models.openai import (
        OpenAIModel as OpenAIModel,
    )
    from littleghost.models.openai_responses import (
        OpenAIResponsesModel as OpenAIResponsesModel,
    )
    from littleghost.models.resolve import (
        resolve_model as resolve_model,
    )
    from littleghost.output.declared import (
        Output as Output,
    )
    from littleghost.prices import (
        Prices as Prices,
    )
    from littleghost.runs.compaction import (
        Compaction as Compaction,
    )
    from littleghost.runs.hooks import (
        Hooks as Hooks,
    )
    from littleghost.runs.limits import (
        Budget as Budget,
    )
    from littleghost.runs.limits import (
        RunLimits as RunLimits,
    )
    from littleghost.runs.limits import (
        Spent as Spent,
    )
    from littleghost.runs.run import (
        Run as Run,
    )
    from littleghost.runs.streaming import (
        RunStream as RunStream,
    )
    from littleghost.runtime import (
        Runtime as Runtime,
    )
    from littleghost.sandboxes.bubblewrap import (
        BubblewrapSandbox as BubblewrapSandbox,
    )
    from littleghost.sandboxes.container import (
        ContainerSandbox as ContainerSandbox,
    )
    from littleghost.sandboxes.contract import (
        Execution as Execution,
    )
    from littleghost.sandboxes.contract import (
        FileInfo as FileInfo,
    )
    from littleghost.sandboxes.contract import (
        Found as Found,
    )
    from littleghost.sandboxes.contract import (
        Match as Match,
    )
    from littleghost.sandboxes.contract import (
        Probe as Probe,
    )
    from littleghost.sandboxes.contract import (
        Process as Process,
    )
    from littleghost.sandboxes.contract import (
        Sandbox as Sandbox,
    )
    from littleghost.sandboxes.contract import (
        SandboxLimits as SandboxLimits,
    )
    from littleghost.sandboxes.host import (
        HostSandbox as HostSandbox,
    )
    from littleghost.sandboxes.native import (
        native_sandbox as native_sandbox,
    )
    from littleghost.sandboxes.policy import (
        EffectivePolicy as EffectivePolicy,
    )
    from littleghost.sandboxes.policy import (
        Policy as Policy,
    )
    from littleghost.sandboxes.remote import (
        RemoteSandbox as RemoteSandbox,
    )
    from littleghost.sandboxes.service.app import (
        SandboxService as SandboxService,
    )
    from littleghost.sandboxes.service.leases import (
        ServiceLimits as ServiceLimits,
    )
    from littleghost.sandboxes.ssh import (
        SSHSandbox as SSHSandbox,
    )
    from littleghost.sessions.agentcore import (
        AgentCoreMemoryStore as AgentCoreMemoryStore,
    )
    from littleghost.sessions.agentcore import (
        StoredSession as StoredSession,
    )
    from littleghost.sessions.contract import (
        ALL_ACTORS as ALL_ACTORS,
    )
    from littleghost.sessions.contract import (
        ANY as ANY,
    )
    from littleghost.sessions.contract import (
        AllActors as AllActors,
    )
    from littleghost.sessions.contract import (
        Commit as Commit,
    )
    from littleghost.sessions.contract import (
        Damage as Damage,
    )
    from littleghost.sessions.contract import (
        Lease as Lease,
    )
    from littleghost.sessions.contract import (
        Page as Page,
    )
    from littleghost.sessions.contract import (
        SessionInfo as SessionInfo,
    )
    from littleghost.sessions.contract import (
        SessionLimits as SessionLimits,
    )
    from littleghost.sessions.contract import (
        SessionStore as SessionStore,
    )
    from littleghost.sessions.contract import (
        Snapshot as Snapshot,
    )
    from littleghost.sessions.contract import (
        Statistics as Statistics,
    )
    from littleghost.sessions.contract import (
        Verified as Verified,
    )
    from littleghost.sessions.memory import (
        MemoryStore as MemoryStore,
    )
    from littleghost.sessions.opening import (
        open_store as open_store,
    )
    from littleghost.sessions.postgres import (
        PostgresStore as PostgresStore,
    )
    from littleghost.sessions.session import (
        Session as Session,
    )
    from littleghost.sessions.sqlite import (
        SQLiteStore as SQLiteStore,
    )
    from littleghost.sessions.transfer import (
        Transferred as Transferred,
    )
    from littleghost.sessions.transfer import (
        copy_sessions as copy_sessions,
    )
    from littleghost.sessions.transfer import (
        export_sessions as export_sessions,
    )
    from littleghost.sessions.transfer import (
        import_sessions as import_sessions,
    )
    from littleghost.sessions.upkeep import (
        expire_sessions as expire_sessions,
    )
    from littleghost.sessions.upkeep import (
        retention as retention,
    )
    from littleghost.sessions.upkeep import (
        unfinished_sessions as unfinished_sessions,
    )
    from littleghost.sessions.upkeep import (
        verify_sessions as verify_sessions,
    )
    from littleghost.tools.builtin import (
        SandboxTools as SandboxTools,
    )
    from littleghost.tools.builtin import (
        find_files as find_files,
    )
    from littleghost.tools.builtin import (
        list_files as list_files,
    )
    from littleghost.tools.builtin import (
        read_file as read_file,
    )
    from littleghost.tools.builtin import (
        replace_in_file as replace_in_file,
    )
    from littleghost.tools.builtin import (
        sandbox_tools as sandbox_tools,
    )
    from littleghost.tools.builtin import (
        search_files as search_files,
    )
    from littleghost.tools.builtin import (
        shell as shell,
    )
    from littleghost.tools.builtin import (
        write_file as write_file,
    )
    from littleghost.tools.contract import (
        Approval as Approval,
    )
    from littleghost.tools.contract import (
        RunContext as RunContext,
    )
    from littleghost.tools.contract import (
        Tool as Tool,
    )
    from littleghost.tools.contract import (
        ToolPending as ToolPending,
    )
    from littleghost.tools.contract import (
        Toolset as Toolset,
    )
    from littleghost.tools.function import (
        tool as tool,
    )
    from littleghost.tools.mcp.options import (
        MCPOptions as MCPOptions,
    )
    from littleghost.tools.mcp.toolset import (
        MCPToolset as MCPToolset,
    )
    from littleghost.usage import (
        Usage as Usage,
    )
    from littleghost.workspace import (
        Workspace as Workspace,
    )

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
    ),
    "events": (
        "Committed",
        "Compacted",
        "Event",
        "ModelEnded",
        "ModelEvent",
        "ModelStarted",
        "OutputDelta",
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
    "message": ("Message",),
    "models.anthropic": ("AnthropicModel",),
    "models.bedrock": ("BedrockModel",),
    "models.contract": ("AnswerFormat", "Model", "ModelRequest", "ToolSpec"),
    "models.gemini": ("GeminiModel",),
    "models.local": ("LocalModel",),
    "models.openai": ("OpenAIModel",),
    "models.openai_responses": ("OpenAIResponsesModel",),
    "models.resolve": ("resolve_model",),
    "prices": ("Prices",),
    "output.declared": ("Output",),
    "runs.compaction": ("Compaction",),
    "runs.hooks": ("Hooks",),
    "runs.limits": ("Budget", "RunLimits", "Spent"),
    "runs.run": ("Run",),
    "runs.streaming": ("RunStream",),
    "runtime": ("Runtime",),
    "sandboxes.bubblewrap": ("BubblewrapSandbox",),
    "sandboxes.container": ("ContainerSandbox",),
    "sandboxes.contract": (
        "Execution",
        "FileInfo",
        "Found",
        "Match",
        "Probe",
        "Process",
        "Sandbox",
        "SandboxLimits",
    ),
    "sandboxes.host": ("HostSandbox",),
    "sandboxes.native": ("native_sandbox",),
    "sandboxes.policy": ("EffectivePolicy", "Policy"),
    "sandboxes.remote": ("RemoteSandbox",),
    "sandboxes.service.app": ("SandboxService",),
    "sandboxes.service.leases": ("ServiceLimits",),
    "sandboxes.ssh": ("SSHSandbox",),
    "sessions.agentcore": ("AgentCoreMemoryStore", "StoredSession"),
    "sessions.contract": (
        "ALL_ACTORS",
        "ANY",
        "AllActors",
        "Commit",
        "Damage",
        "Lease",
        "Page",
        "SessionInfo",
        "SessionLimits",
        "SessionStore",
        "Snapshot",
        "Statistics",
        "Verified",
    ),
    "sessions.memory": ("MemoryStore",),
    "sessions.opening": ("open_store",),
    "sessions.postgres": ("PostgresStore",),
    "sessions.session": ("Session",),
    "sessions.sqlite": ("SQLiteStore",),
    "sessions.transfer": ("Transferred", "copy_sessions", "export_sessions", "import_sessions"),
    "sessions.upkeep": ("expire_sessions", "retention", "unfinished_sessions", "verify_sessions"),
    "tools.builtin": (
        "SandboxTools",
        "find_files",
        "list_files",
        "read_file",
        "replace_in_file",
        "sandbox_tools",
        "search_files",
        "shell",
        "write_file",
    ),
    "tools.contract": ("Approval", "RunContext", "Tool", "ToolPending", "Toolset"),
    "tools.function": ("tool",),
    "tools.mcp.options": ("MCPOptions",),
    "tools.mcp.toolset": ("MCPToolset",),
    "usage": ("Usage",),
    "workspace": ("Workspace",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'littleghost' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"littleghost.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
