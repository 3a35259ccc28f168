"""The same library without async: in a script, in a thread, or inside a running event loop such as a notebook's.

python examples/sync_script.py
"""

from __future__ import annotations

import tempfile

from littleghost import Agent, Message
from littleghost.sync import Runtime, Session, SQLiteStore
from littleghost.testing import FunctionModel


def answer(request: object) -> str:
    return f"You have said {sum(message.role == 'user' for message in request.messages)} things."  # type: ignore[attr-defined]


agent = Agent(FunctionModel(answer))

with tempfile.TemporaryDirectory() as folder, SQLiteStore(f"{folder}/notes.db") as store:
    # A session alone: messages and state of an application, with no agent.
    notes = Session(id="notes", store=store, actor_id="user-7")
    notes.append([Message.user("Buy milk.")], state={"open": 1})
    notes.update(lambda found: ([Message.user("Buy bread.")], {"open": found.state["open"] + 1}))
    print([message.text for message in notes.history()], notes.state())

    with Runtime(session_store=store) as runtime:
        print(runtime.ask(agent, "Hello", session_id="chat", actor_id="user-7").text)
        with runtime.stream(agent, "And again", session_id="chat", actor_id="user-7") as events:
            for event in events:
                print(type(event).__name__)
        print(events.run.text)

# Without a store: one question, one answer.
print(agent.ask_sync("Hello").text)
