"""Every statement that is sent to SQLite, by name, and the format of the file.

Who writes: one process at a time, in a transaction that began with ``BEGIN IMMEDIATE``. What a reader may assume: within one
transaction a session's row and its commits belong together. What a crash leaves: whole transactions only.

``sessions`` has a row for each session: its newest state, and where its commits are. ``commits`` has a row for each commit, a
state-only one included, and several for one of very many messages. Its rowid is ``key << 32 | number``, so that the commits of a session
lie side by side in the order of writing, a new one touches the end of that range only, and no second index is written. ``names`` has a
hash of each ``(scope, id)``, written once and asked only where the index of ``sessions`` finds nothing, which one damaged page must not
make look like no session.

* ``scope`` is ``-`` for no actor, else ``:`` and the actor; with it ``(scope, id)`` is injective.
* The revision of a commit is ``epoch-key-number``, of several rows that of the last. The epoch is random, so a session deleted and made
  again repeats none.
* The messages of a session are those of its commits ``root`` to ``number``. A ``replace`` moves ``root`` to its first row; of what was
  before, only rows with a commit id stay, their bodies emptied.
* ``count`` is how many messages the session had after the commit; ``size`` is how many bytes the bodies of its messages have.
* ``updated_at`` never goes back, whatever the clock does, and nothing but lists by time and `expire` depends on it. ``hour`` is its hour
  since 1970. Sessions are found by that, and sorted by the rest, so an append touches an index only in an hour in which it is the first.
* ``digest`` tells a repeated commit from another one with its id.
* The sums find what changed on the disk, or is not where it was written; `rows` has them. ``fixed_sum`` covers what an append leaves as
  it is, ``small_sum`` the other small columns, ``body_sum`` the long ones; that of an emptied body is of no use, and nobody asks for it.
  ``size_sum`` and ``size`` add up to a number of the session, so that both can be changed by who does not know them.
* Small columns come first: to read them no overflow page of a long body is touched.
* The text of tables and indexes is part of the format: it is compared when the file is opened, for damage there would change what rows
  mean.

Formats, each read for ever. 1: the first. 2: ``size``, ``size_sum``, ``hour`` and its indexes; ``head_sum`` of ``sessions`` has become
``small_sum``.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x4C476873
"""``LGhs``. Source: https://www.sqlite.org/pragma.html#pragma_application_id"""

VERSION: Final = 2
"""The format of the file, kept in ``user_version``."""

NUMBER_BITS: Final = 32
"""How many bits of a rowid count the commits of a session."""

_COMMITS = """
    CREATE TABLE commits (
        rowid INTEGER PRIMARY KEY,
        count INTEGER NOT NULL,
        commit_id TEXT,
        digest BLOB,
        head_sum INTEGER NOT NULL,
        body_sum INTEGER NOT NULL,
        body BLOB NOT NULL
    )
"""
_NAMES = """
    CREATE TABLE names (
        hash INTEGER PRIMARY KEY
    )
"""
_SESSIONS_1 = """
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
"""
_SESSIONS = """
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        number INTEGER NOT NULL,
        root INTEGER NOT NULL,
        count INTEGER NOT NULL,
        size INTEGER NOT NULL,
        size_sum INTEGER NOT NULL,
        hour INTEGER NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        fixed_sum INTEGER NOT NULL,
        small_sum INTEGER NOT NULL,
        body_sum INTEGER NOT NULL,
        state BLOB NOT NULL,
        metadata BLOB NOT NULL,
        UNIQUE (scope, id)
    )
"""
_SESSIONS_BY_HOUR = "CREATE INDEX sessions_by_hour ON sessions (hour)"
_SESSIONS_BY_SCOPE = "CREATE INDEX sessions_by_scope ON sessions (scope, hour)"

SCHEMAS: Final = {
    1: (_COMMITS, _NAMES, _SESSIONS_1),
    2: (_COMMITS, _NAMES, _SESSIONS, _SESSIONS_BY_HOUR, _SESSIONS_BY_SCOPE),
}
"""What makes the tables and indexes of each format, in the order of their names."""

UPGRADES: Final = {
    1: (
        "ALTER TABLE sessions RENAME TO sessions_1",
        _SESSIONS,
        """
        INSERT INTO sessions
        SELECT key, scope, id, epoch, number, root, count, size, size_sum(key, epoch, size), hour_of(updated_at),
            created_at, updated_at, fixed_sum, head_sum, body_sum, state, metadata
        FROM (SELECT *, size_of(key << 32 | root, key << 32 | number) AS size FROM sessions_1)
        """,
        "DROP TABLE sessions_1",
        _SESSIONS_BY_HOUR,
        _SESSIONS_BY_SCOPE,
    ),
}
"""What makes of each format the next one, in the transaction that also changes ``user_version``; `rows` has the functions. ``size_of``
reads bodies beside the transaction, for a page of them that cannot be read must not end it.

Sums are taken over as they are, so damage stays damage. Other processes may have the file open with a library that knows only the older
format, and it looks no second time: so a step that changes what rows mean also renames a column that all its statements name. They then
fail, and write nothing. Tables are made by the text for a new file, for `SCHEMAS` is compared with what is there.
"""

SIZE_OF: Final = "SELECT coalesce(sum(length(body)), 0) FROM commits WHERE rowid BETWEEN ? AND ?"

MARK: Final = f"PRAGMA application_id = {APPLICATION_ID}"
MARK_VERSION: Final = f"PRAGMA user_version = {VERSION}"

TEXTS: Final = """
    SELECT sql FROM sqlite_master
    WHERE name IN ('commits', 'names', 'sessions', 'sessions_by_hour', 'sessions_by_scope') ORDER BY name
"""
ANYTHING: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_master)"

# What `rows.head` reads comes first, then the rest.

HEAD: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        length(state) + length(metadata)
    FROM sessions WHERE scope = ? AND id = ?
"""
SNAPSHOT: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        body_sum, state, metadata
    FROM sessions WHERE scope = ? AND id = ?
"""
NAMED: Final = "SELECT hash FROM names WHERE hash = ?"
LAST_KEY: Final = "SELECT max(key) FROM sessions"
BODIES: Final = "SELECT body_sum, body FROM commits WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
COMMIT_AT: Final = "SELECT count, commit_id, digest, head_sum FROM commits WHERE rowid = ?"
COMMIT_BY_ID: Final = """
    SELECT rowid, count, commit_id, digest, head_sum FROM commits
    WHERE rowid BETWEEN ? AND ? AND commit_id = ? ORDER BY rowid DESC LIMIT 1
"""

NEW_NAME: Final = "INSERT INTO names (hash) VALUES (?)"
NEW_SESSION: Final = """
    INSERT INTO sessions
    (epoch, number, root, count, size, size_sum, created_at, updated_at, fixed_sum, small_sum, body_sum, state, metadata, key,
        scope, id, hour)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
UPDATE_SESSION: Final = """
    UPDATE sessions
    SET epoch = ?, number = ?, root = ?, count = ?, size = ?, size_sum = ?, created_at = ?, updated_at = ?, fixed_sum = ?,
        small_sum = ?, body_sum = ?, state = ?, metadata = ?
    WHERE key = ?
"""
SET_HOUR: Final = "UPDATE sessions SET hour = ? WHERE key = ?"
ADVANCE: Final = """
    UPDATE sessions
    SET number = ?1, count = ?2, updated_at = ?3, small_sum = ?4, body_sum = ?5, state = ?6, metadata = ?7,
        size = size + ?8, size_sum = size_sum - ?8
    WHERE key = ?9 AND scope = ?10 AND id = ?11 AND epoch = ?12 AND number = ?13 AND count = ?14
        AND hour = ?15 AND updated_at <= ?3 AND size <= ?16
"""
NEW_COMMIT: Final = """
    INSERT INTO commits (rowid, count, commit_id, digest, head_sum, body_sum, body) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
EMPTY_COMMITS: Final = "UPDATE commits SET body = x'' WHERE rowid BETWEEN ? AND ? AND commit_id IS NOT NULL"
DROP_COMMITS: Final = "DELETE FROM commits WHERE rowid BETWEEN ? AND ? AND commit_id IS NULL"

DELETE_COMMITS: Final = "DELETE FROM commits WHERE rowid BETWEEN ? AND ?"
DELETE_SESSION: Final = "DELETE FROM sessions WHERE key = ?"
DELETE_NAME: Final = "DELETE FROM names WHERE hash = ?"

# Lists: the columns of a head, the bytes of state and metadata, and whose the session is. The index is named, so that none of them can
# become a walk through everything.

FIRST_SESSIONS: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        length(state) + length(metadata), scope, id, metadata
    FROM sessions WHERE scope = ?1 AND (?2 IS NULL OR updated_at >= ?2) AND (?3 IS NULL OR updated_at < ?3) ORDER BY id LIMIT ?4
"""
NEXT_SESSIONS: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        length(state) + length(metadata), scope, id, metadata
    FROM sessions WHERE scope = ?1 AND id > ?2 AND (?3 IS NULL OR updated_at >= ?3) AND (?4 IS NULL OR updated_at < ?4) ORDER BY id LIMIT ?5
"""
NEXT_OF_ALL: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        length(state) + length(metadata), scope, id, metadata
    FROM sessions INDEXED BY sqlite_autoindex_sessions_1
    WHERE (scope, id) > (?1, ?2) AND (?3 IS NULL OR updated_at >= ?3) AND (?4 IS NULL OR updated_at < ?4) ORDER BY scope, id LIMIT ?5
"""
RECENT_SESSIONS: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        length(state) + length(metadata), scope, id, metadata
    FROM sessions INDEXED BY sessions_by_scope
    WHERE scope = ?1 AND hour BETWEEN ?2 AND ?3 AND updated_at >= ?4 AND updated_at < ?5
        AND (updated_at < ?6 OR updated_at = ?6 AND id > ?7)
    ORDER BY hour DESC, updated_at DESC, id LIMIT ?8
"""
RECENT_OF_ALL: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        length(state) + length(metadata), scope, id, metadata
    FROM sessions INDEXED BY sessions_by_hour
    WHERE hour BETWEEN ?1 AND ?2 AND updated_at >= ?3 AND updated_at < ?4
        AND (updated_at < ?5 OR updated_at = ?5 AND (scope, id) > (?6, ?7))
    ORDER BY hour DESC, updated_at DESC, scope, id LIMIT ?8
"""
OLDEST: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum, scope, id
    FROM sessions INDEXED BY sessions_by_hour
    WHERE hour BETWEEN ?1 AND ?2 AND updated_at < ?3 AND (updated_at > ?4 OR updated_at = ?4 AND (scope, id) > (?5, ?6))
    ORDER BY hour, updated_at, scope, id LIMIT ?7
"""

# Figures of everybody are of every row, though of no body.

FIGURES: Final = """
    SELECT count(*), coalesce(sum(count), 0), coalesce(sum(size + length(state) + length(metadata)), 0),
        min(updated_at), max(updated_at)
    FROM sessions WHERE scope = ?
"""
FIGURES_OF_ALL: Final = """
    SELECT count(*), coalesce(sum(count), 0), coalesce(sum(size + length(state) + length(metadata)), 0),
        min(updated_at), max(updated_at)
    FROM sessions
"""

# What `verification` asks.

NEXT_KEY: Final = "SELECT key FROM sessions WHERE key > :key ORDER BY key LIMIT 1"
NEXT_COMMIT: Final = "SELECT rowid >> 32 FROM commits WHERE rowid > :place ORDER BY rowid LIMIT 1"
WHOLE: Final = """
    SELECT key, epoch, number, root, count, created_at, updated_at, size, size_sum, hour, fixed_sum, small_sum,
        body_sum, state, metadata, scope, id
    FROM sessions WHERE key = ?
"""
COMMITS: Final = """
    SELECT rowid, count, commit_id, digest, head_sum, body_sum, body FROM commits WHERE rowid BETWEEN ? AND ? ORDER BY rowid
"""
KEY_BY_NAME: Final = (
    "SELECT key FROM sessions INDEXED BY sqlite_autoindex_sessions_1 WHERE scope = ? AND id = ?"
)
KEY_BY_HOUR: Final = "SELECT key FROM sessions INDEXED BY sessions_by_hour WHERE hour = ? AND key = ?"
KEY_BY_SCOPE: Final = (
    "SELECT key FROM sessions INDEXED BY sessions_by_scope WHERE scope = ? AND hour = ? AND key = ?"
)
NAME_OF_KEY: Final = "SELECT scope, id FROM sessions INDEXED BY sqlite_autoindex_sessions_1 WHERE key = ?"
COUNTS: Final = "SELECT (SELECT count(*) FROM names), (SELECT count(*) FROM sessions)"
FILE_SIZE: Final = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
