"""A chat service: answers are streamed as they are written, and every user has conversations of their own that no crash loses.

    pip install 'littleghost[web]' fastapi
    python examples/fastapi_app.py --port 8000
    curl -N -H 'Authorization: Bearer ann-secret' -d '{"text": "How many of A7?"}' \\
         -H 'Content-Type: application/json' http://127.0.0.1:8000/chats/shop/messages

A script stands in for the model, so this needs no key; ``--model openai:gpt-5`` asks a real one. docs/web.md goes through it line by line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from littleghost import (
    Agent,
    Message,
    ModelRequest,
    RunContext,
    RunEnded,
    Runtime,
    SessionBusyError,
    SessionNotFoundError,
    TextDelta,
    ToolEnded,
    ToolStarted,
    ToolUse,
    open_store,
    tool,
)
from littleghost.testing import FunctionModel

SHELF = {"A7": 9, "B2": 0}
# In a real service: a session cookie, or a token that an identity provider signed.
TOKENS = {"ann-secret": "ann", "bob-secret": "bob"}


@tool(idempotent=True)
async def stock(sku: str, context: RunContext) -> int:
    """Units on the shelf for one article.

    Args:
        sku: Article number.
    """
    context.state["asked_for"] = [*context.state.get("asked_for", []), sku]
    return SHELF.get(sku, 0)


def script(request: ModelRequest) -> Message:
    """Stand in for a model."""
    last = request.messages[-1]
    if last.role == "tool":
        return Message.assistant(f"There are {last.tool_results[0].text} of A7. (I am a script.)")
    return Message.assistant([ToolUse(id="1", name="stock", input={"sku": "A7"})])


# -- who asks


def user(given: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    """The user, from what the request proves, never from its path or body."""
    name = TOKENS.get(given.credentials)
    if name is None:
        raise HTTPException(401, "unknown token")
    return name


User = Annotated[str, Depends(user)]


def runtime_of(request: Request) -> Runtime:
    return request.app.state.runtime


Running = Annotated[Runtime, Depends(runtime_of)]


class Question(BaseModel):
    """What a user says."""

    text: str = Field(min_length=1, max_length=10_000)


# -- what a browser is told


def shown(event: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the data of what a user may see of an event, or ``None``."""
    match event:
        case TextDelta():
            return "text", {"text": event.text}
        case ToolStarted():
            return "tool", {"name": event.call.name, "id": event.call.id}
        case ToolEnded():
            return "tool_ended", {"id": event.call.id, "status": event.result.status}
        case RunEnded():
            return "end", {"outcome": event.outcome, "text": event.text}
    return None


async def server_sent(stream: Any) -> AsyncIterator[str]:
    """Yield the events of a run as server-sent events. When the browser goes away, this is cancelled, and so is the run."""
    async with stream as events:
        yield ": begun\n\n"
        async for event in events:
            told = shown(event)
            if told is not None:
                name, data = told
                yield f"id: {event.seq}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


async def answer(stream: Any) -> StreamingResponse:
    """Return the response that streams a run, once it has begun: until then an error can still have a status of its own."""
    lines = server_sent(stream)
    held = [await anext(lines), await anext(lines, "")]

    async def all_lines() -> AsyncIterator[str]:
        for line in held:
            yield line
        async for line in lines:
            yield line

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second is for nginx
    return StreamingResponse(all_lines(), media_type="text/event-stream", headers=headers)


# -- the service


def create_app(agent: Agent, store: str) -> FastAPI:
    """Return the service, which keeps its conversations in the store of that URL."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_store(store) as opened, Runtime(session_store=opened) as runtime:
            app.state.runtime = runtime
            yield  # leaving ends the runs, and what they had written is kept

    app = FastAPI(title="Chats", lifespan=lifespan)

    @app.post("/chats/{chat}/messages")
    async def ask(chat: str, question: Question, user: User, runtime: Running) -> StreamingResponse:
        return await answer(
            runtime.stream(agent, question.text, session_id=chat, actor_id=user, busy="raise", timeout=300)
        )

    @app.post("/chats/{chat}/resume")
    async def resume(chat: str, user: User, runtime: Running) -> StreamingResponse:
        return await answer(
            runtime.stream(agent, None, session_id=chat, actor_id=user, busy="raise", timeout=300)
        )

    @app.get("/chats")
    async def chats(user: User, runtime: Running, cursor: str | None = None) -> dict[str, Any]:
        page = await runtime.session_store.sessions(actor_id=user, limit=50, cursor=cursor)
        return {"chats": [item.id for item in page.items], "cursor": page.cursor}

    @app.get("/chats/{chat}")
    async def chat(chat: str, user: User, runtime: Running) -> list[dict[str, str]]:
        history = await runtime.session(chat, actor_id=user).history()
        return [{"role": message.role, "text": message.text} for message in history if message.text]

    @app.delete("/chats/{chat}", status_code=204)
    async def forget(chat: str, user: User, runtime: Running) -> None:
        await runtime.session(chat, actor_id=user).delete()

    @app.exception_handler(SessionBusyError)
    async def busy(_: Request, __: SessionBusyError) -> JSONResponse:
        return JSONResponse({"detail": "another answer is being written"}, status_code=409)

    @app.exception_handler(SessionNotFoundError)
    async def unknown(_: Request, __: SessionNotFoundError) -> JSONResponse:
        return JSONResponse({"detail": "there is no such chat"}, status_code=404)

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--store", default="sqlite:///chats.db")
    parser.add_argument("--model", help="such as openai:gpt-5; without one a script answers")
    given = parser.parse_args()
    agent = Agent(given.model or FunctionModel(script), instructions="Answer from stock().", tools=[stock])
    # Answers that are being written when the service is stopped get 10 seconds to end; then they are cut, and kept as far as they got.
    uvicorn.run(create_app(agent, given.store), port=given.port, timeout_graceful_shutdown=10)


if __name__ == "__main__":
    main()
