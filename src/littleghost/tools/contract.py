"""What a tool is to the run, and what a run is to a tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from msgspec import Struct

from littleghost.cancellation import CancellationToken, Deadline
from littleghost.content import ToolResult, ToolUse
from littleghost.errors import CapabilityError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from littleghost.sandboxes.contract import Sandbox
    from littleghost.workspace import Workspace

    Deps = TypeVar("Deps", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")

__all__ = ["Approval", "RunContext", "Tool", "ToolPending", "Toolset"]

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Approval(Struct, frozen=True):
    """What a person answers to a call that waits for approval.

    Attributes:
        approved: Whether it may run.
        arguments: In place of the arguments shown, where the person changed them. They are checked as the model's are, and the model is
            told. Those that were shown are no change; given all the same, they are what runs, whatever waits under this id by now.
        reason: Why not, for the model.
    """

    approved: bool
    arguments: dict[str, Any] | None = None
    reason: str | None = None


class ToolPending(Exception):
    """Raised by a tool whose own work waits for answers, such as an agent whose run is suspended.

    The call gets no result then. The run that made it goes on with the other calls and is suspended: its ``pending`` shows ``calls``,
    each with the id ``CALL/ID``, the id of the tool's call before its own. When some have been answered, by ``resume`` with these
    ids, the answers are committed and the tool is called again for the same call, with ``context.approvals`` and ``context.results``
    holding the answers, by the calls' own ids. It may raise `ToolPending` again, with what is still open.

    A crash after the answers were committed settles the call as any other; a tool that raises this should be idempotent.

    Args:
        calls: What waits for answers, at least one call, no two with one id.
    """

    def __init__(self, calls: Sequence[ToolUse]) -> None:
        super().__init__(f"{len(calls)} calls wait for answers")
        self.calls = tuple(calls)


class RunContext(Generic[Deps]):
    """What a tool call knows of its run. Sandboxes and other long operations take it as their ``context=``.

    Attributes:
        deps: What the caller passed as ``deps=``. Never stored.
        state: The session's state, a copy of the call's own, made when it is first looked at. What a tool changes in it is checked
            when the tool ends and stored with its result; a tool that was stopped changes nothing.
        session_id: The session, or ``None`` where nothing is stored.
        actor_id: Whose session it is. It comes from the caller, never from the model.
        cancellation: Stops the run.
        deadline: When the run must have ended, or ``None``.
        run_id: The run.
        call_id: The tool call, or ``None`` outside of one.
        idempotency_key: The same for this call after any number of resumes, to hand to an outside service; ``None`` outside of a call.
        depth: How many runs this one is inside of, as that of an agent which another uses as a tool.
        delegate: Runs another agent inside of this call, for `Agent.as_tool`; ``None`` outside of a run.
        approvals: Answers to what the call's tool said to wait for; see `ToolPending`.
        results: Results of what the call's tool said to wait for.
    """

    __slots__ = (
        "_make_state",
        "_sandbox",
        "_state",
        "_workspace",
        "actor_id",
        "approvals",
        "call_id",
        "cancellation",
        "deadline",
        "delegate",
        "deps",
        "depth",
        "idempotency_key",
        "results",
        "run_id",
        "session_id",
    )

    def __init__(
        self,
        *,
        deps: Deps = None,
        state: dict[str, Any] | None = None,
        make_state: Callable[[], dict[str, Any]] | None = None,
        session_id: str | None = None,
        actor_id: str | None = None,
        run_id: str = "",
        workspace: Workspace | None = None,
        sandbox: Sandbox | None = None,
        cancellation: CancellationToken | None = None,
        deadline: Deadline | None = None,
        call_id: str | None = None,
        idempotency_key: str | None = None,
        depth: int = 0,
    ) -> None:
        self.deps = deps
        self._make_state: Callable[[], dict[str, Any]] = make_state or dict
        self._state: dict[str, Any] | None = state
        self.session_id = session_id
        self.actor_id = actor_id
        self.run_id = run_id
        self._workspace = workspace
        self._sandbox = sandbox
        self.cancellation = CancellationToken() if cancellation is None else cancellation
        self.deadline = deadline
        self.call_id = call_id
        self.idempotency_key = idempotency_key
        self.depth = depth
        self.delegate: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.approvals: Mapping[str, Approval] = NOTHING
        self.results: Mapping[str, ToolResult] = NOTHING

    @property
    def state(self) -> dict[str, Any]:
        """The session's state; see above."""
        if self._state is None:
            self._state = self._make_state()
        return self._state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._state = value

    @property
    def touched_state(self) -> Any:
        """What became of the state, or ``None`` where nobody has looked at it."""
        return self._state

    @property
    def sandbox(self) -> Sandbox:
        """The run's sandbox.

        Raises:
            CapabilityError: The run has none.
        """
        if self._sandbox is None:
            raise CapabilityError("this run has no sandbox; give Runtime(sandbox=…) one")
        return self._sandbox

    @property
    def workspace(self) -> Workspace:
        """The run's workspace: its sandbox's, or the one the runtime was given.

        Raises:
            CapabilityError: The run has none.
        """
        workspace = self._workspace or (self._sandbox.workspace if self._sandbox is not None else None)
        if workspace is None:
            raise CapabilityError("this run has no workspace; give Runtime(workspace=…) one")
        return workspace

    def check(self) -> None:
        """Raise `RunCancelled` or `DeadlineExceeded` where the run must stop."""
        self.cancellation.check()
        if self.deadline is not None:
            self.deadline.check()

    def inside(self, workspace: Workspace | None, sandbox: Sandbox | None) -> RunContext[Deps]:
        """Return this context with a workspace and a sandbox."""
        return self._with(workspace, sandbox, self.call_id, self.idempotency_key)

    def within(self, outer: RunContext[Any]) -> RunContext[Deps]:
        """Return this context with the workspace and the sandbox of ``outer``, inside of which it is."""
        inner = self.inside(outer._workspace, outer._sandbox)
        inner.depth = outer.depth + 1
        return inner

    def for_call(
        self, call_id: str, idempotency_key: str, state: Callable[[], dict[str, Any]]
    ) -> RunContext[Deps]:
        """Return this context for one tool call, with ``state`` to make its copy of the state."""
        return self._with(self._workspace, self._sandbox, call_id, idempotency_key, state)

    def for_hook(self, call_id: str | None, state: Callable[[], dict[str, Any]]) -> RunContext[Deps]:
        """Return this context for a hook, with ``state`` to make its copy of the state."""
        return self._with(self._workspace, self._sandbox, call_id, None, state)

    def _with(
        self,
        workspace: Workspace | None,
        sandbox: Sandbox | None,
        call_id: str | None,
        key: str | None,
        make_state: Callable[[], dict[str, Any]] | None = None,
    ) -> RunContext[Deps]:
        context = RunContext(
            deps=self.deps,
            state=self._state if make_state is None else None,
            make_state=make_state,
            session_id=self.session_id,
            actor_id=self.actor_id,
            run_id=self.run_id,
            workspace=workspace,
            sandbox=sandbox,
            cancellation=self.cancellation,
            deadline=self.deadline,
            call_id=call_id,
            idempotency_key=key,
            depth=self.depth,
        )
        context.delegate = self.delegate
        return context


class Tool(ABC):
    """Something a model may call.

    A subclass sets the attributes and implements `call`. Most tools are made from a function, by `tool`.

    Attributes:
        name: ``[A-Za-z0-9_-]{1,64}``.
        description: What it does, for the model.
        schema: The JSON Schema of its arguments, an object.
        idempotent: Running it twice with the same arguments is no harm, so a call that a crash interrupted runs again.
        exclusive: No other call runs beside it.
        timeout: Seconds a call may take, or ``None``. Each attempt of one that retries has so many.
        grace: Seconds that a call gets to end after it was told to, by its time-out or because the run is stopped.
        needs_approval: Whether a person must approve a call before it runs: always, never, or as a function of the checked arguments
            says (a subclass may define it as a method). Where the function fails, the call needs approval.
        external: It never runs here: a call waits until its result is given to ``resume``.
        retries: How often a call that ends with `ToolRetry` runs again.
    """

    name: str
    description: str
    schema: dict[str, Any]
    idempotent: bool = False
    exclusive: bool = False
    timeout: float | None = None
    grace: float = 5.0
    needs_approval: bool | Callable[[dict[str, Any]], bool] = False
    external: bool = False
    retries: int = 2

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return ``arguments`` checked and with their defaults, as JSON values. Asked before a person is, and for what a person changed.

        Raises:
            ToolValueError: They are not what the tool takes.
        """
        return arguments

    @abstractmethod
    async def call(self, arguments: dict[str, Any], context: RunContext[Any]) -> Any:
        """Run the tool and return its result: a string, content blocks, or any value that has a JSON form.

        Raises:
            ToolError: It failed; the model reads the text. Of any other exception the model learns the class name alone.
        """


class Toolset(ABC):
    """Tools that exist for the time of a run, such as those of a sandbox or of a server."""

    @abstractmethod
    def open(self, context: RunContext[Any]) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Return a context manager that gives the tools, and releases what they need at the end of the run."""
