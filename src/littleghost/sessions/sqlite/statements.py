"""Every statement that is sent to SQLite, by name, and the format of the file.

Who writes: one process at a time, in a transaction that began with ``BEGIN IMMEDIATE``. What a reader may assume: within one
transaction a session's row and its commits belong together. What a crash leaves: whole transactions only.

``sessions`` has a row for each session: its newest state, and where its commits are. ``commits`` has a row for each commit, a
state-only one included. Its rowid is ``key << 32 | number``, so that the commits of a session lie side by side in the order of writing, a
new one touches the end of that range only, and no second index is written. ``names`` has a hash of each ``(scope, id)``, written
once and asked only where the index of ``sessions`` finds nothing, which one damaged page must not make look like no session.

* ``scope`` is ``-`` for no actor, else ``:`` and the actor; with it ``(scope, id)`` is injective.
* The revision of a commit is ``epoch-key-number``. The epoch is random, so a session deleted and made again repeats none.
* The messages of a session are those of its commits ``root`` to ``number``. A ``replace`` moves ``root`` to itself; of what was before,
  only rows with a commit id stay, their bodies emptied.
* ``count`` is how many messages the session had after the commit.
* ``digest`` tells a repeated commit from another one with its id.
* The sums find what changed on the disk, or is not where it was written; `rows` has them. ``fixed_sum`` covers what an append leaves as
  it is, ``head_sum`` the other small columns, ``body_sum`` the long ones; that of an emptied body is of no use, and nobody asks for it.
* Small columns come first: to read them no overflow page of a long body is touched.
* The text of the tables is part of the format: it is compared when the file is opened, for damage there would change what rows mean.
"""

from __future__ import annotations

APPLICATION_ID = 0x4C476873
"""``LGhs``. Source: https://www.sqlite.org/pragma.html#pragma_application_id"""

VERSION = 1
"""The format of the file, kept in ``user_version``."""

NUMBER_BITS = 32
"""How many bits of a rowid count the commits of a session."""

TABLES = (
    """
    CREATE TABLE commits (
        rowid INTEGER PRIMARY KEY,
        count INTEGER NOT NULL,
        commit_id TEXT,
        digest BLOB,
        head_sum INTEGER NOT NULL,
        body_sum INTEGER NOT NULL,
        body BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE names (
        hash INTEGER PRIMARY KEY
    )
    """,
    """
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        number INTEGER NOT NULL,
        root INTEGER NOT NULL,
        count INTEGER NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        fixed_sum INTEGER NOT NULL,
        head_sum INTEGER NOT NULL,
        body_sum INTEGER NOT NULL,
        state BLOB NOT NULL,
        metadata BLOB NOT NULL,
        UNIQUE (scope, id)
    )
    """,
)
"""In the order of their names."""

SCHEMA = (
    *TABLES,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

TEXT_OF_TABLES = """
    SELECT sql FROM sqlite_master WHERE type = 'table' AND name IN ('commits', 'names', 'sessions') ORDER BY name
"""
ANYTHING = "SELECT EXISTS (SELECT 1 FROM sqlite_master)"

HEAD = """
    SELECT key, epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum FROM sessions WHERE scope = ? AND id = ?
"""
SNAPSHOT = """
    SELECT key, epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum, body_sum, state, metadata
    FROM sessions WHERE scope = ? AND id = ?
"""
NAMED = "SELECT hash FROM names WHERE hash = ?"
LAST_KEY = "SELECT max(key) FROM sessions"
BODIES = "SELECT rowid, body_sum, body FROM commits WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
COMMIT_AT = "SELECT count, commit_id, digest, head_sum FROM commits WHERE rowid = ?"
COMMIT_BY_ID = """
    SELECT rowid, count, commit_id, digest, head_sum FROM commits
    WHERE rowid BETWEEN ? AND ? AND commit_id = ? ORDER BY rowid DESC LIMIT 1
"""

NEW_NAME = "INSERT INTO names (hash) VALUES (?)"
NEW_SESSION = """
    INSERT INTO sessions
    (key, epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum, body_sum, state, metadata, scope, id)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
UPDATE_SESSION = """
    UPDATE sessions
    SET number = ?, root = ?, count = ?, updated_at = ?, fixed_sum = ?, head_sum = ?, body_sum = ?, state = ?, metadata = ?
    WHERE key = ?
"""
ADVANCE = """
    UPDATE sessions SET number = ?, count = ?, updated_at = ?, head_sum = ?, body_sum = ?, state = ?, metadata = ?
    WHERE key = ? AND scope = ? AND id = ? AND epoch = ? AND number = ? AND count = ?
"""
NEW_COMMIT = """
    INSERT INTO commits (rowid, count, commit_id, digest, head_sum, body_sum, body) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
EMPTY_COMMITS = "UPDATE commits SET body = x'' WHERE rowid BETWEEN ? AND ? AND commit_id IS NOT NULL"
DROP_COMMITS = "DELETE FROM commits WHERE rowid BETWEEN ? AND ? AND commit_id IS NULL"

DELETE_COMMITS = "DELETE FROM commits WHERE rowid BETWEEN ? AND ?"
DELETE_SESSION = "DELETE FROM sessions WHERE key = ?"
DELETE_NAME = "DELETE FROM names WHERE hash = ?"

FIRST_SESSIONS = """
    SELECT key, epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum, id
    FROM sessions WHERE scope = ? ORDER BY id LIMIT ?
"""
NEXT_SESSIONS = """
    SELECT key, epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum, id
    FROM sessions WHERE scope = ? AND id > ? ORDER BY id LIMIT ?
"""
