"""What a run of an agent costs, here and in other frameworks, with a model that answers at once.

    python -m benchmarks.peers.agents [--quick] [--only NAME …]

Three things, in µs and bytes:

* run: one question, an answer that calls one tool, the tool, an answer. Nothing is stored.
* piece: what one more piece of a streamed text costs until it is in the hands of the reader; the difference between a long answer and a
  short one, divided by the pieces between them.
* idle: the memory of one more conversation that rests between two turns, with one turn of the above in it: what the framework's own
  in-memory session takes, or, where it has none, the object that one keeps to go on with. It is what a process of its own grows by (its
  resident set, so that memory of SQLite counts) over some hundred conversations.

Everything that can be made ahead (models, agents, graphs) is made before the clock starts, and is used by all runs. Rounds are interleaved;
figures are medians. smolagents is synchronous and answers through a second call, of a tool named `final_answer`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

# Nobody reports home, and nobody pays for tracing.
os.environ |= {
    "AGNO_TELEMETRY": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}

QUESTION = "How many of A7 are there?"
ANSWER = "There are 2."
ARGUMENTS = {"sku": "A7"}
PIECE = "word "
SHORT, LONG = 20, 220
"""Pieces of the two streamed answers that are compared."""


def stock(sku: str) -> int:
    """Units on the shelf for one article.

    Args:
        sku: Article number.
    """
    return len(sku)


class Subject(ABC):
    """One framework.

    Attributes:
        name: For the table.
        package: Whose version is shown.
        kept: What is measured as an idle conversation.
    """

    name = ""
    package = ""
    kept = ""

    @abstractmethod
    def make(self) -> None:
        """Make models and agents."""

    @abstractmethod
    async def run(self) -> None:
        """One run with one tool; check the answer."""

    @abstractmethod
    async def stream(self, pieces: int) -> None:
        """One run that streams so many pieces; check that they came."""

    @abstractmethod
    async def converse(self) -> Any:
        """One turn with a tool in a conversation of its own; return what is kept of it until the next."""


class Ours(Subject):
    """This library."""

    name = package = "littleghost"
    kept = "a session in MemoryStore"

    def make(self) -> None:
        from littleghost import Agent, MemoryStore, Message, Runtime, TextDelta, ToolUse, tool
        from littleghost.events import ModelEnded
        from littleghost.testing import FunctionModel

        call = Message.assistant([ToolUse(id="1", name="stock", input=ARGUMENTS)])
        self.agent = Agent(
            FunctionModel(lambda request: ANSWER if request.messages[-1].role == "tool" else call),
            tools=[tool(stock)],
        )
        self.pieces = 0

        async def spelled(_: Any) -> AsyncIterator[Any]:
            for _ in range(self.pieces):
                yield TextDelta(text=PIECE)
            yield ModelEnded(message=Message.assistant(PIECE * self.pieces))

        self.streaming = Agent(FunctionModel(spelled))
        self.delta = TextDelta
        self.bare, self.sessions = Runtime(), Runtime(session_store=MemoryStore())
        self.number = 0

    async def run(self) -> None:
        run = await self.bare.ask(self.agent, QUESTION)
        assert run.text == ANSWER
        self.agent.model.requests.clear()

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        async with self.bare.stream(self.streaming, QUESTION) as events:
            async for event in events:
                seen += type(event) is self.delta
        assert seen == pieces
        self.streaming.model.requests.clear()

    async def converse(self) -> Any:
        self.number += 1
        await self.sessions.ask(self.agent, QUESTION, session_id=f"s{self.number}")
        self.agent.model.requests.clear()


class OpenAIAgents(Subject):
    """The OpenAI Agents SDK."""

    name = package = "openai-agents"
    kept = "its SQLiteSession in memory"

    def make(self) -> None:
        from agents import (
            Agent,
            Model,
            ModelResponse,
            RunConfig,
            Runner,
            SQLiteSession,
            Usage,
            function_tool,
        )
        from openai.types.responses import (
            Response,
            ResponseCompletedEvent,
            ResponseFunctionToolCall,
            ResponseOutputMessage,
            ResponseOutputText,
            ResponseTextDeltaEvent,
        )

        def text(words: str) -> Any:
            part = ResponseOutputText(annotations=[], text=words, type="output_text")
            return ResponseOutputMessage(
                id="m", content=[part], role="assistant", status="completed", type="message"
            )

        call = ResponseFunctionToolCall(
            arguments=json.dumps(ARGUMENTS), call_id="1", name="stock", type="function_call", id="f"
        )
        subject = self

        class Fake(Model):
            async def get_response(self, *_: Any, input: Any, **__: Any) -> ModelResponse:
                ended = isinstance(input, list) and input[-1].get("type") == "function_call_output"
                return ModelResponse(
                    output=[text(ANSWER) if ended else call], usage=Usage(), response_id=None
                )

            async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
                for number in range(subject.pieces):
                    yield ResponseTextDeltaEvent(
                        content_index=0,
                        delta=PIECE,
                        item_id="m",
                        logprobs=[],
                        output_index=0,
                        sequence_number=number,
                        type="response.output_text.delta",
                    )
                whole = Response(
                    id="r",
                    created_at=0,
                    model="fake",
                    object="response",
                    output=[text(PIECE * subject.pieces)],
                    tool_choice="auto",
                    tools=[],
                    parallel_tool_calls=True,
                )
                yield ResponseCompletedEvent(
                    response=whole, sequence_number=subject.pieces, type="response.completed"
                )

        self.agent = Agent(name="a", model=Fake(), tools=[function_tool(stock)])
        self.streaming = Agent(name="b", model=Fake())
        self.runner, self.config = Runner, RunConfig(tracing_disabled=True)
        self.session, self.number = SQLiteSession, 0

    async def run(self) -> None:
        result = await self.runner.run(self.agent, QUESTION, run_config=self.config)
        assert result.final_output == ANSWER

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        result = self.runner.run_streamed(self.streaming, QUESTION, run_config=self.config)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                seen += event.data.type == "response.output_text.delta"
        assert seen == pieces

    async def converse(self) -> Any:
        self.number += 1
        session = self.session(f"s{self.number}")
        await self.runner.run(self.agent, QUESTION, run_config=self.config, session=session)
        return session


class PydanticAI(Subject):
    """Pydantic AI."""

    name, package = "pydantic-ai", "pydantic-ai-slim"
    kept = "its message list"

    def make(self) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import FunctionModel

        def answer(messages: Any, _: Any) -> Any:
            ended = messages[-1].parts[-1].part_kind == "tool-return"
            part = TextPart(ANSWER) if ended else ToolCallPart("stock", dict(ARGUMENTS), tool_call_id="1")
            return ModelResponse(parts=[part])

        async def spelled(_: Any, __: Any) -> AsyncIterator[str]:
            for _ in range(self.pieces):
                yield PIECE

        self.agent = Agent(FunctionModel(answer), tools=[stock])
        self.streaming = Agent(FunctionModel(stream_function=spelled))

    async def run(self) -> None:
        assert (await self.agent.run(QUESTION)).output == ANSWER

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        async with self.streaming.run_stream(QUESTION) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                seen += 1
        assert seen >= pieces - 1  # the first two may come together

    async def converse(self) -> Any:
        return (await self.agent.run(QUESTION)).all_messages()


class Strands(Subject):
    """Strands Agents."""

    name, package = "strands", "strands-agents"
    kept = "its Agent, with a model and tools that are shared"

    def make(self) -> None:
        from strands import Agent, tool
        from strands.models import Model

        subject = self

        class Fake(Model):
            def update_config(self, **_: Any) -> None: ...

            def get_config(self) -> Any:
                return {}

            def structured_output(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

            async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
                yield {"messageStart": {"role": "assistant"}}
                last = messages[-1]["content"][-1]
                if subject.pieces:
                    yield {"contentBlockStart": {"start": {}}}
                    for _ in range(subject.pieces):
                        yield {"contentBlockDelta": {"delta": {"text": PIECE}}}
                elif "toolResult" in last:
                    yield {"contentBlockStart": {"start": {}}}
                    yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
                else:
                    yield {"contentBlockStart": {"start": {"toolUse": {"name": "stock", "toolUseId": "1"}}}}
                    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(ARGUMENTS)}}}}
                yield {"contentBlockStop": {}}
                called = not subject.pieces and "toolResult" not in last
                yield {"messageStop": {"stopReason": "tool_use" if called else "end_turn"}}

        self.pieces = 0
        self.model, self.tools = Fake(), [tool(stock)]
        self.kind = Agent
        self.agent = self.new()

    def new(self) -> Any:
        return self.kind(model=self.model, tools=self.tools, callback_handler=None)

    async def run(self) -> None:
        self.pieces = 0
        self.agent.messages.clear()  # the agent is the conversation; each run is to be the first
        assert str(await self.agent.invoke_async(QUESTION)).strip() == ANSWER

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        self.agent.messages.clear()
        async for event in self.agent.stream_async(QUESTION):
            seen += "data" in event
        assert seen == pieces

    async def converse(self) -> Any:
        self.pieces, agent = 0, self.new()
        await agent.invoke_async(QUESTION)
        return agent


class Smolagents(Subject):
    """smolagents, with its agent that calls tools."""

    name = package = "smolagents"
    kept = "its agent, with a model and tools that are shared"

    def make(self) -> None:
        from rich.console import Console
        from smolagents import ToolCallingAgent, tool
        from smolagents.models import (
            ChatMessage,
            ChatMessageStreamDelta,
            ChatMessageToolCall,
            ChatMessageToolCallFunction,
            ChatMessageToolCallStreamDelta,
            MessageRole,
            Model,
        )

        def call(name: str, arguments: Any) -> Any:
            function = ChatMessageToolCallFunction(name=name, arguments=arguments)
            return ChatMessageToolCall(id="1", type="function", function=function)

        subject = self

        class Fake(Model):
            def generate(self, messages: Any, *_: Any, **__: Any) -> Any:
                ended = messages[-1].role == MessageRole.TOOL_RESPONSE
                made = call("final_answer", {"answer": ANSWER}) if ended else call("stock", ARGUMENTS)
                return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[made])

            def generate_stream(self, *_: Any, **__: Any) -> Iterator[Any]:
                for _ in range(subject.pieces):
                    yield ChatMessageStreamDelta(content=PIECE)
                function = ChatMessageToolCallFunction(
                    name="final_answer", arguments=json.dumps({"answer": ANSWER})
                )
                yield ChatMessageStreamDelta(
                    tool_calls=[
                        ChatMessageToolCallStreamDelta(index=0, id="1", type="function", function=function)
                    ]
                )

        self.delta = ChatMessageStreamDelta
        self.model, self.tools = Fake(), [tool(stock)]
        self.kind = ToolCallingAgent
        self.agent = self.new()
        self.streaming = ToolCallingAgent(
            tools=[], model=self.model, stream_outputs=True, verbosity_level=-1, max_tool_threads=1
        )
        self.streaming.logger.console = Console(quiet=True)  # it draws what it streams

    def new(self) -> Any:
        return self.kind(
            tools=self.tools, model=self.model, stream_outputs=False, verbosity_level=-1, max_tool_threads=1
        )

    async def run(self) -> None:
        assert self.agent.run(QUESTION) == ANSWER

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        for event in self.streaming.run(QUESTION, stream=True):
            seen += type(event) is self.delta and bool(event.content)
        assert seen == pieces

    async def converse(self) -> Any:
        agent = self.new()
        agent.run(QUESTION)
        return agent


class LangGraph(Subject):
    """LangChain's agent over LangGraph."""

    name, package = "langgraph (create_agent)", "langgraph"
    kept = "a thread in InMemorySaver"

    def make(self) -> None:
        from langchain.agents import create_agent
        from langchain_core.language_models import BaseChatModel
        from langchain_core.messages import AIMessage, AIMessageChunk
        from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
        from langgraph.checkpoint.memory import InMemorySaver

        subject = self

        class Fake(BaseChatModel):
            @property
            def _llm_type(self) -> str:
                return "fake"

            def bind_tools(self, tools: Any, **_: Any) -> Any:
                return self

            def _generate(self, messages: Any, *_: Any, **__: Any) -> Any:
                if messages[-1].type == "tool":
                    message = AIMessage(ANSWER)
                else:
                    message = AIMessage(
                        "", tool_calls=[{"name": "stock", "args": dict(ARGUMENTS), "id": "1"}]
                    )
                return ChatResult(generations=[ChatGeneration(message=message)])

            async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> Any:
                return self._generate(messages)

        class Streaming(Fake):
            async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
                for _ in range(subject.pieces):
                    yield ChatGenerationChunk(message=AIMessageChunk(PIECE))

        self.agent = create_agent(Fake(), [stock])
        self.sessions = create_agent(Fake(), [stock], checkpointer=InMemorySaver())
        self.streaming = create_agent(Streaming(), [])
        self.number = 0

    def question(self) -> Any:
        return {"messages": [{"role": "user", "content": QUESTION}]}

    async def run(self) -> None:
        result = await self.agent.ainvoke(self.question())
        assert result["messages"][-1].content == ANSWER

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        async for chunk, _ in self.streaming.astream(self.question(), stream_mode="messages"):
            seen += chunk.content == PIECE
        assert seen == pieces

    async def converse(self) -> Any:
        self.number += 1
        config: Any = {"configurable": {"thread_id": f"t{self.number}"}}
        await self.sessions.ainvoke(self.question(), config)


class Agno(Subject):
    """Agno."""

    name = package = "agno"
    kept = "a session in InMemoryDb"

    def make(self) -> None:
        from agno.agent import Agent
        from agno.db.in_memory import InMemoryDb
        from agno.models.base import Model
        from agno.models.response import ModelResponse

        subject = self
        function = {"name": "stock", "arguments": json.dumps(ARGUMENTS)}

        class Fake(Model):
            def invoke(self, messages: Any, **_: Any) -> Any:
                if messages[-1].role == "tool":
                    return ModelResponse(role="assistant", content=ANSWER)
                return ModelResponse(
                    role="assistant", tool_calls=[{"id": "1", "type": "function", "function": dict(function)}]
                )

            async def ainvoke(self, messages: Any, **_: Any) -> Any:
                return self.invoke(messages)

            def invoke_stream(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

            async def ainvoke_stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
                for _ in range(subject.pieces):
                    yield ModelResponse(role="assistant", content=PIECE)

            def _parse_provider_response(self, response: Any, **_: Any) -> Any:
                return response

            def _parse_provider_response_delta(self, response: Any) -> Any:
                return response

        self.agent = Agent(model=Fake(id="fake"), tools=[stock], telemetry=False)
        self.streaming = Agent(model=Fake(id="fake"), telemetry=False)
        self.sessions = Agent(model=Fake(id="fake"), tools=[stock], telemetry=False, db=InMemoryDb())
        self.number = 0

    async def run(self) -> None:
        assert (await self.agent.arun(QUESTION)).content == ANSWER

    async def stream(self, pieces: int) -> None:
        self.pieces, seen = pieces, 0
        async for event in self.streaming.arun(QUESTION, stream=True):
            seen += getattr(event, "content", None) == PIECE
        assert seen == pieces

    async def converse(self) -> Any:
        self.number += 1
        await self.sessions.arun(QUESTION, session_id=f"s{self.number}")


SUBJECTS: tuple[type[Subject], ...] = (
    Ours,
    OpenAIAgents,
    PydanticAI,
    Strands,
    Smolagents,
    LangGraph,
    Agno,
)


async def taken(work: Any, times: int) -> list[float]:
    """Seconds of each of so many calls."""
    found: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        await work()
        found.append(time.perf_counter() - begun)
    return found


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def grown(subject: Subject, count: int) -> float:
    """Bytes that this process grows by for one more idle conversation."""
    subject.make()
    kept = [await subject.converse() for _ in range(count // 2)]
    before = resident()
    kept += [await subject.converse() for _ in range(count)]
    return (resident() - before) / count


def idle(subject: Subject, count: int) -> float:
    """The same of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peers.agents", "--idle", subject.name, str(count)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def measure(subjects: list[Subject], *, rounds: int, runs: int, conversations: int) -> dict[str, Any]:
    """The figures of each subject, by its name."""
    for subject in subjects:
        subject.make()
        await taken(subject.run, 3)
        await subject.stream(SHORT)
    figures: dict[str, Any] = {
        subject.name: {"run": [], "short": [], "long": [], "idle": 0.0} for subject in subjects
    }
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for subject in subjects:
            mine = figures[subject.name]
            mine["run"] += await taken(subject.run, runs)
            for kind, pieces in (("short", SHORT), ("long", LONG)):
                mine[kind] += await taken(lambda s=subject, n=pieces: s.stream(n), max(1, runs // 5))
    for subject in subjects:
        figures[subject.name]["idle"] = await asyncio.to_thread(idle, subject, conversations)
    return figures


def show(subjects: list[Subject], figures: dict[str, Any]) -> None:
    """Print the table: medians, and ratios over ours where we are in it."""
    rows: dict[str, tuple[float, float, float]] = {}
    spreads: dict[str, tuple[float, float]] = {}
    for name, found in figures.items():
        median = {kind: statistics.median(found[kind]) for kind in ("run", "short", "long")}
        piece = (median["long"] - median["short"]) / (LONG - SHORT)
        rows[name] = (median["run"] * 1e6, piece * 1e6, found["idle"])
        tenths = statistics.quantiles(found["run"], n=10)
        spreads[name] = (tenths[0] * 1e6, tenths[-1] * 1e6)
    ours = rows.get(Ours.name)
    print(
        f"{'':26}{'run, µs':>10}{'p10–p90':>16}{'×':>7}{'piece, µs':>11}{'×':>7}{'idle, bytes':>13}{'×':>7}  kept"
    )
    for subject in subjects:
        row = rows[subject.name]
        ratios = [
            "" if ours is None else f"{mine / base:.1f}" for mine, base in zip(row, ours or row, strict=True)
        ]
        low, high = spreads[subject.name]
        print(
            f"{subject.name:26}{row[0]:>10,.0f}{f'{low:,.0f}–{high:,.0f}':>16}{ratios[0]:>7}{row[1]:>11.2f}{ratios[1]:>7}"
            f"{row[2]:>13,.0f}{ratios[2]:>7}  {subject.kept}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.agents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, half a minute")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these, by a part of the name, beside ours"
    )
    parser.add_argument("--idle", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if given.idle:
        name, count = given.idle
        print(asyncio.run(grown(next(kind for kind in SUBJECTS if kind.name == name)(), int(count))))
        return
    kinds = [
        kind
        for kind in SUBJECTS
        if kind is Ours or not given.only or any(part in kind.name for part in given.only)
    ]
    rounds, runs, conversations = (3, 10, 200) if given.quick else (15, 30, 1000)
    subjects = [kind() for kind in kinds]
    load = os.getloadavg()[0]
    figures = asyncio.run(measure(subjects, rounds=rounds, runs=runs, conversations=conversations))
    versions = ", ".join(f"{subject.package} {metadata.version(subject.package)}" for subject in subjects)
    print(
        f"Python {platform.python_version()}, {rounds} interleaved rounds of {runs} runs, load {load:.1f} at the start."
    )
    print(f"{versions}\n")
    show(subjects, figures)


if __name__ == "__main__":
    main()
