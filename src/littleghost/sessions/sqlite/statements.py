"""Every statement that is sent to SQLite, by name, and the format of the file.

Who writes: one process at a time, in a transaction that began with ``BEGIN IMMEDIATE``. What a reader may assume: within one
transaction a session's row and its commits belong together. What a crash leaves: whole transactions only.

``sessions`` has a row for each session: its newest state, and where its commits are. ``commits`` has a row for each commit, a
state-only one included. Its rowid is ``key << 32 | number``, so that the commits of a session lie side by side in the order of writing, a
new one touches the end of that range only, and no second index is written.

* ``scope`` is ``-`` for no actor, else ``:`` and the actor; with it ``(scope, id)`` is injective.
* The revision of a commit is ``epoch-key-number``. The epoch is random, so a session deleted and made again repeats none.
* The messages of a session are those of its commits ``root`` to ``number``. A ``replace`` moves ``root`` to itself; of what was before,
  only rows with a commit id stay, their bodies emptied.
* ``count`` is how many messages the session had after the commit.
* ``digest`` tells a repeated commit from another one with its id. ``checksum`` (Adler-32) finds bytes that changed on the disk.
* Small columns come first: to read them no overflow page of a long body is touched.
"""

from __future__ import annotations

APPLICATION_ID = 0x4C476873
"""``LGhs``. Source: https://www.sqlite.org/pragma.html#pragma_application_id"""

VERSION = 1
"""The format of the file, kept in ``user_version``."""

NUMBER_BITS = 32
"""How many bits of a rowid count the commits of a session."""

SCHEMA = (
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
        checksum INTEGER NOT NULL,
        state BLOB NOT NULL,
        metadata BLOB NOT NULL,
        UNIQUE (scope, id)
    )
    """,
    """
    CREATE TABLE commits (
        rowid INTEGER PRIMARY KEY,
        count INTEGER NOT NULL,
        commit_id TEXT,
        digest BLOB,
        checksum INTEGER NOT NULL,
        body BLOB NOT NULL
    )
    """,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('commits', 'sessions')"
ANYTHING = "SELECT EXISTS (SELECT 1 FROM sqlite_master)"

HEAD = "SELECT key, epoch, number, root, count FROM sessions WHERE scope = ? AND id = ?"
SNAPSHOT = """
    SELECT key, epoch, number, root, count, checksum, state, metadata FROM sessions WHERE scope = ? AND id = ?
"""
BODIES = "SELECT checksum, body FROM commits WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
COUNT_AT = "SELECT count FROM commits WHERE rowid = ?"
COMMIT_BY_ID = """
    SELECT rowid, count, digest FROM commits WHERE rowid BETWEEN ? AND ? AND commit_id = ? ORDER BY rowid DESC LIMIT 1
"""

NEW_SESSION = """
    INSERT INTO sessions (scope, id, epoch, number, root, count, created_at, updated_at, checksum, state, metadata)
    VALUES (?, ?, ?, 1, 1, ?, ?, ?, ?, ?, ?)
"""
UPDATE_SESSION = """
    UPDATE sessions SET number = ?, root = ?, count = ?, updated_at = ?, checksum = ?, state = ?, metadata = ? WHERE key = ?
"""
ADVANCE = """
    UPDATE sessions SET number = ?, count = ?, updated_at = ?, checksum = ?, state = ?, metadata = ?
    WHERE key = ? AND scope = ? AND id = ? AND epoch = ? AND number = ? AND count = ?
"""
NEW_COMMIT = "INSERT INTO commits (rowid, count, commit_id, digest, checksum, body) VALUES (?, ?, ?, ?, ?, ?)"
EMPTY_COMMITS = """
    UPDATE commits SET body = x'', checksum = 1 WHERE rowid BETWEEN ? AND ? AND commit_id IS NOT NULL
"""
DROP_COMMITS = "DELETE FROM commits WHERE rowid BETWEEN ? AND ? AND commit_id IS NULL"

DELETE_COMMITS = "DELETE FROM commits WHERE rowid BETWEEN ? AND ?"
DELETE_SESSION = "DELETE FROM sessions WHERE key = ?"

FIRST_SESSIONS = """
    SELECT key, id, epoch, number, count, created_at, updated_at FROM sessions WHERE scope = ? ORDER BY id LIMIT ?
"""
NEXT_SESSIONS = """
    SELECT key, id, epoch, number, count, created_at, updated_at FROM sessions WHERE scope = ? AND id > ? ORDER BY id LIMIT ?
"""
