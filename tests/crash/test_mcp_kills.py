"""An application that is killed in the middle of a call to an MCP server leaves no server, and another process goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from mcpside import Line, alive

sys.path.insert(0, str(Path(__file__).parent))
from mcp_app import make

APP = Path(__file__).with_name("mcp_app.py")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are not run on Windows")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
async def test_killed_in_a_call(tmp_path: Path, number: signal.Signals) -> None:
    async with Line() as line:
        environment = {**os.environ, "PYTHONPATH": str(APP.parents[1])}
        app = await asyncio.create_subprocess_exec(
            sys.executable, APP, tmp_path, line.address, env=environment, stderr=asyncio.subprocess.PIPE
        )
        calls = [await line.call(), await line.call()]
        assert all(alive(call.pid) for call in calls)
        app.send_signal(number)
        _, errors = await app.communicate()
        assert app.returncode == -number, errors.decode()
        for call in calls:
            while await call.heard():  # "cancelled", where there was time to say so
                pass
            while alive(call.pid):  # its socket closes a moment before it is gone
                await asyncio.sleep(0.001)
        assert (tmp_path / "ledger").read_text() == "once\n" * 2

        if number == signal.SIGINT:  # whoever asked was there to settle the calls
            return
        agent, runtime = make(tmp_path, line.address)
        async with runtime:
            running = asyncio.create_task(runtime.resume(agent, session_id="s", actor_id="a"))
            again = await line.call()
            await again.go_on("again")
            run = await running
        assert run.text == "Done."
        once, twice = run.messages[2].tool_results
        assert once.status == "error"
        assert "interrupted" in once.text
        assert (twice.status, twice.text) == ("success", "again")
        assert (tmp_path / "ledger").read_text() == "once\n" * 3
        assert not alive(again.pid)
