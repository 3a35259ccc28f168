"""What a type checker knows of answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CODE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Any
import pydantic
from littleghost import Agent, Output, Run, Runtime, sync

@dataclass
class A:
    x: int

class B(pydantic.BaseModel):
    y: str

async def asynchronous(runtime: Runtime) -> None:
    reveal_type((await Agent("m").ask("")).output)  # str
    reveal_type((await Agent("m", output=None).ask("")).output)  # str
    reveal_type((await Agent("m", output=A).ask("")).output)  # A
    reveal_type((await Agent("m", output=B).ask("")).output)  # B
    reveal_type((await Agent("m", output=A | B).ask("")).output)  # A | B
    reveal_type((await Agent("m", output=A | None).ask("")).output)  # A | None
    reveal_type((await Agent("m", output=list[A]).ask("")).output)  # list[A]
    reveal_type((await Agent("m", output=Output(A)).ask("")).output)  # A
    reveal_type((await Agent("m", output=Output(A | B, repairs=1)).ask("")).output)  # A | B
    reveal_type((await Agent("m", output=Output[A | B](A | B)).ask("")).output)  # A | B
    reveal_type(Agent("m", output=int).ask_sync("").output)  # int
    agent = Agent("m", output=A, tools=[], name="a")
    reveal_type(agent)  # Agent[A]
    reveal_type((await runtime.ask(agent, "")).output.x)  # int
    reveal_type((await runtime.resume(agent, session_id="")).check().output)  # A
    async with runtime.stream(agent, "") as events:
        reveal_type(events.run.output)  # A

def synchronous(runtime: sync.Runtime) -> None:
    agent = Agent("m", output=A)
    reveal_type(runtime.ask(agent, "").output)  # A
    reveal_type(runtime.resume(agent, session_id="").output)  # A
    with runtime.stream(agent, "") as events:
        reveal_type(events.run.output)  # A

def any_agent(agent: Agent, run: Run) -> None:
    reveal_type(run.output)  # Any

wider: Agent[object] = Agent("m", output=A)
any_agent(wider, Run[A](id="", outcome="completed", text="", messages=[], state={}, usage=__import__("littleghost").Usage(), steps=0))
wrong: Agent[int] = Agent("m", output=A)  # error
"""


def test_a_type_checker_knows_the_type_of_the_answer(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(CODE)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    checker = Path(sys.executable).with_name("basedpyright")
    done = subprocess.run(
        [checker, "--project", tmp_path, "--pythonpath", sys.executable, page],
        capture_output=True,
        text=True,
        check=False,
    )
    found = dict(re.findall(r'page\.py:(\d+):\d+ - information: Type of ".*" is "(.*)"', done.stdout))
    lines = enumerate(CODE.splitlines(), 1)
    wanted = {str(number): line.split("# ")[1] for number, line in lines if "reveal_type" in line}
    assert found == wanted, done.stdout
    errors = re.findall(r"page\.py:(\d+):\d+ - error", done.stdout)
    assert errors == [str(len(CODE.splitlines()))], done.stdout
