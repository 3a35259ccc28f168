"""A scope of a sandbox that is somewhere else is the scope of one that is here."""

from __future__ import annotations

import contextlib
import sys

import pytest
from far import OFFERED, WorkerSandbox
from hypothesis import given, settings
from hypothesis import strategies as st

from littleghost.errors import CapabilityError, LittleGhostError, ToolError
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.workspace import Workspace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers are for POSIX")

PATHS = {"data": "data", "cache": "cache"}
PLACES = st.sampled_from(
    ["sub", "sub/deeper", "workspace://data", "workspace://data/sub", "workspace://other", "../x"]
)
STEPS = st.fixed_dictionaries(
    {},
    optional={
        "read_only": st.booleans(),
        "path": PLACES,
        "paths": st.lists(st.sampled_from(["data", "cache", "other"]), max_size=2),
        "execute": st.booleans(),
        "limits": st.builds(
            SandboxLimits, read_bytes=st.integers(0, 2_000_000), list_entries=st.integers(0, 20_000)
        ),
    },
)


def both(tmp_path, **options):
    return [
        kind(Workspace(tmp_path / "root", PATHS), writable=True, **options)
        for kind in (HostSandbox, WorkerSandbox)
    ]


def shape(sandbox):
    policy = sandbox.effective_policy
    return (
        sandbox.writable,
        policy.root,
        policy.paths,
        sandbox.limits,
        sorted(sandbox.capabilities & OFFERED),
    )


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=4),
    policy=st.sampled_from([{}, {"paths": {"data": "read_only"}}, {"git": "read_write"}]),
)
def test_a_scope_there_is_a_scope_here_and_never_wider(tmp_path_factory, steps, policy):
    views = both(tmp_path_factory.getbasetemp(), policy=policy)
    for step in steps:
        before = [shape(view) for view in views]
        assert before[0] == before[1]
        outcomes = []
        for at, view in enumerate(views):
            try:
                views[at] = view.scope(**step)
                outcomes.append(None)
            except LittleGhostError as error:
                outcomes.append(type(error))
        assert outcomes[0] is outcomes[1]
        if outcomes[0] is not None:
            return
        here, there = (shape(view) for view in views)
        assert here == there
        assert not there[0] or before[1][0]
        assert set(there[4]) <= set(before[1][4])
        assert all(name in before[1][2] for name in there[2])
        assert there[3] == before[1][3].lowered(there[3])


async def outcome(work):
    try:
        return await work
    except LittleGhostError as error:
        return type(error), str(error).replace("WorkerSandbox", "HostSandbox")


async def test_what_a_scope_lets_through_is_the_same(tmp_path):
    chains = [
        [{"path": "sub"}],
        [{"path": "sub", "read_only": True}],
        [{"paths": ["data"]}],
        [{"path": "workspace://data", "paths": ["cache"]}],
        [{"execute": False}, {"path": "sub"}],
        [{"limits": SandboxLimits(read_bytes=3)}],
        [{"path": "sub"}, {"path": "deeper"}, {"read_only": True}],
        [{"path": "missing"}],
    ]
    here, there = both(tmp_path)
    async with here, there:
        for path in ("a", "sub/a", "sub/deeper/a", "workspace://data/a", "workspace://cache/a"):
            await here.write(path, f"it is {path}")
        for chain in chains:
            views = [here, there]
            for step in chain:
                views = [view.scope(**step) for view in views]
            for path in ("a", "deeper/a", "workspace://data/a", "workspace://cache/a", "../a", "."):
                for operation in ("read", "list", "stat", "glob"):
                    assert await outcome(getattr(views[0], operation)(path)) == await outcome(
                        getattr(views[1], operation)(path)
                    ), (chain, operation, path)
                for view in views:
                    with contextlib.suppress(ToolError):
                        await view.delete("new")
                answers = [await outcome(view.write("new", "x")) for view in views]
                assert answers[0] == answers[1], chain
            ran = [await outcome(view.execute("pwd", timeout=20)) for view in views]
            assert getattr(ran[0], "stdout", ran[0]) == getattr(ran[1], "stdout", ran[1])
            if not {"execute"} <= views[1].capabilities:
                assert ran[1][0] is CapabilityError
