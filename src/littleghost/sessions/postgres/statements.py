"""Every statement that is sent to PostgreSQL, by name, and the tables it works on.

Who writes: anybody, each commit in one statement, which is a transaction by itself. The row of a session is its lock: a commit updates it
where epoch, number and count are still those that its writer saw, and PostgreSQL looks again after having waited for another writer. What
a reader may assume: one statement sees one moment, so a session's row and its commits belong together. What a crash leaves: whole commits.

``sessions`` has a row for each session: its newest state, and which of its commits count. ``commits`` has a row for each part of a commit,
one at least. ``leases`` has a row for each lease that is held, or was held by somebody who died. ``format`` has the version of the tables.

* ``name`` is a hash of ``(scope, id)``: an id may be longer than what an index takes. Both are kept, and compared.
* ``scope`` is ``-`` for no actor, else ``:`` and the actor. It and ``id`` are UTF-8 in a ``bytea``, which takes every text, U+0000 too,
  and sorts by code points. The index ``order`` sorts by their beginnings, and by those of the ids only where the scope is whole.
* The revision of a commit is ``epoch-number``, of its last part. The epoch is random, so a session deleted and made again repeats none.
* The messages of a session are those of its commits ``root`` to ``number``. A ``replace`` moves ``root`` beyond the last one; of what was
  before, only rows with a commit id stay, their bodies emptied.
* ``count`` is how many messages the session had after the commit; ``body_size`` how many bytes all its bodies have.
* ``digest`` tells a repeated commit from another one with its id.
* Times are seconds since the epoch by the server's clock. ``hour`` is the index by time: it changes once an hour, so that most commits
  change no indexed column, and their update stays within its page (a heap-only tuple).
* The sums find what was changed or exchanged behind our back; `rows` has them.
* Where a statement works on rows that another writer may just have added, it compares ``number`` with what its snapshot saw (``seen``):
  after waiting for a lock an ``UPDATE`` sees the newest row, and a ``DELETE`` beside it still the old ones. It then changes nothing, and
  is sent again.
* Who may make functions in a schema of the ``search_path`` must not have theirs run. Functions are named with their schema, and operators
  have operands of the very types of one of the server's own: of those there is none better elsewhere. ``unnest`` with several arguments
  is the server's in any case, and is refused with a schema.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from littleghost.errors import ConfigurationError

__all__ = ["LONG_ID", "LONG_SCOPE", "VERSION", "Statement", "Statements", "check_names"]

VERSION: Final = 1
"""The version of the tables that this library writes and reads."""

LONG_SCOPE: Final = 1000
LONG_ID: Final = 1000
"""What the index ``order`` takes of a scope and an id; an entry of a B-tree has 2,704 bytes at most."""

CREATE_SCHEMA: Final = "CREATE SCHEMA IF NOT EXISTS {schema}"

STEPS: Final = (
    (
        """
        CREATE TABLE {sessions} (
            key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            epoch bigint NOT NULL,
            body_size bigint NOT NULL,
            created_at double precision NOT NULL,
            updated_at double precision NOT NULL,
            hour double precision NOT NULL,
            number integer NOT NULL,
            root integer NOT NULL,
            count integer NOT NULL,
            sum integer NOT NULL,
            name bytea NOT NULL UNIQUE,
            scope bytea NOT NULL,
            id bytea NOT NULL,
            state bytea NOT NULL,
            metadata bytea NOT NULL
        ) WITH (fillfactor = 70)
        """,
        """
        CREATE INDEX {order} ON {sessions}
        (pg_catalog.substr(scope, 1, 1001),
            (CASE WHEN pg_catalog.length(scope) > 1000 THEN ''::bytea ELSE pg_catalog.substr(id, 1, 1000) END))
        """,
        "CREATE INDEX {hours} ON {sessions} (hour)",
        """
        CREATE TABLE {commits} (
            session bigint NOT NULL,
            number integer NOT NULL,
            count integer NOT NULL,
            head_sum integer NOT NULL,
            body_sum integer NOT NULL,
            commit_id text COLLATE "C",
            digest bytea,
            body bytea NOT NULL,
            PRIMARY KEY (session, number)
        )
        """,
        # Written once and read often: compressing costs an append three times its work, and a load five times.
        "ALTER TABLE {commits} ALTER COLUMN body SET STORAGE EXTERNAL",
        # By the end of the id, for that is where ids differ, and it is a third of the size.
        """
        CREATE INDEX {ids} ON {commits} (session, pg_catalog."right"(commit_id, 8)) WHERE commit_id IS NOT NULL
        """,
        """
        CREATE TABLE {leases} (
            name bytea PRIMARY KEY,
            token text NOT NULL,
            expires_at double precision NOT NULL
        ) WITH (fillfactor = 50)
        """,
        "CREATE TABLE {format} (version integer NOT NULL)",
        "INSERT INTO {format} (version) VALUES (1)",
    ),
)
"""What makes the tables of version 1, and then each version of the one before."""

LOCK: Final = "SELECT pg_catalog.pg_advisory_xact_lock({lock})"
# Asked of the catalogue and not of to_regclass(), which may still believe what was so before the lock was waited for.
HAS_FORMAT: Final = """
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = {schema_text} AND c.relname = {format_text}
    )
"""
HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_text})"
FORMAT: Final = "SELECT version FROM {format}"
SET_FORMAT: Final = "UPDATE {format} SET version = {version}"


# What the statements have in common, by the name it has in them. An argument means the same in all statements that write:
# $1 name, $2 scope, $3 id, $4 bodies, $5 messages up to the end of each, $6 their sums, $7 commit id, $8 digest, $9 sum of both, $10 state,
# $11 metadata, $12 sum of both, $13 messages, $14 bytes of the bodies, $15 most messages, $16 most bytes, $17 lease.
def _hour(seconds: str) -> str:
    """Return the hour of a time, as `rows.hour` has it. Next to 0 a division would be an error, for the server tells what becomes 0."""
    return f"""pg_catalog.floor(
        CASE WHEN {seconds} > -1::double precision AND {seconds} < 1::double precision THEN pg_catalog.floor({seconds}) ELSE {seconds} END
        / 3600::double precision
    )"""


FRAGMENTS: Final = {
    "NOW": "pg_catalog.date_part('epoch', pg_catalog.now())",
    # The sums, as `rows.bind` has them.
    "HEAD_SUM": "((($12::bigint) # ((s.epoch + s.number + pg_catalog.cardinality($4::bytea[])) & 4294967295)) - 2147483648)::integer",
    "NEXT_SUM": "((($12::bigint) # ((s.epoch + s.number + 1) & 4294967295)) - 2147483648)::integer",
    "NEW_SUM": "((($12::bigint) # (($18::bigint + pg_catalog.cardinality($4::bytea[])) & 4294967295)) - 2147483648)::integer",
    # What is held while a commit is made under it; nobody takes it over meanwhile.
    "LEASE": "lease AS (SELECT FROM {leases} WHERE name = $1 AND token = $17 FOR SHARE),",
    "LEASED": "($17::text IS NULL OR EXISTS (SELECT FROM lease))",
    "NEW_SIZE": "$14::bigint + pg_catalog.length($10::bytea) + pg_catalog.length($11::bytea)",
    "OLD_SIZE": "s.body_size + pg_catalog.length(s.state) + pg_catalog.length(s.metadata)",
    "WRITTEN_HOUR": _hour("coalesce($20::double precision, {NOW})"),
    "MADE": """
        INSERT INTO {sessions}
        (name, scope, id, epoch, number, root, count, body_size, created_at, updated_at, hour, sum, state, metadata)
        SELECT $1, $2, $3, $18::bigint, pg_catalog.cardinality($4::bytea[]), 1, $13, $14,
            coalesce($19::double precision, $20::double precision, {NOW}), coalesce($20::double precision, {NOW}),
            {WRITTEN_HOUR}, {NEW_SUM}, $10, $11
        WHERE $13::integer <= $15::bigint AND {NEW_SIZE} <= $16::bigint AND {LEASED}
    """,
    "WRITTEN": """
        written AS (
            INSERT INTO {commits} (session, number, count, head_sum, body_sum, commit_id, digest, body)
            SELECT head.key, part.number, part.count,
                (((CASE WHEN part.last THEN $9::bigint ELSE 0 END) # ((head.epoch + part.number + part.count) & 4294967295))
                    - 2147483648)::integer,
                ((part.sum # ((head.epoch + part.number) & 4294967295)) - 2147483648)::integer,
                CASE WHEN part.last THEN $7::text END, CASE WHEN part.last THEN $8::bytea END, part.body
            FROM head, LATERAL (
                SELECT
                    head.number - pg_catalog.cardinality($4::bytea[]) + item.place::integer AS number,
                    head.count - $13::integer + item.upto AS count,
                    item.place = pg_catalog.cardinality($4::bytea[]) AS last,
                    item.sum,
                    item.body
                FROM unnest($4::bytea[], $5::integer[], $6::bigint[]) WITH ORDINALITY AS item (body, upto, sum, place)
            ) AS part
        )
    """,
    "INFO": """
        scope, id, count, epoch, number, created_at, updated_at,
        body_size + pg_catalog.length(state) + pg_catalog.length(metadata), name, metadata
    """,
    "FIGURES": """
        pg_catalog.count(*), coalesce(pg_catalog.sum(count), 0)::bigint,
        coalesce(pg_catalog.sum(body_size + pg_catalog.length(state) + pg_catalog.length(metadata)), 0)::bigint,
        pg_catalog.min(updated_at), pg_catalog.max(updated_at)
    """,
    # As the index `order` has them.
    "PREFIX": "pg_catalog.substr(scope, 1, 1001)",
    "ORDER": """
        pg_catalog.substr(scope, 1, 1001),
        (CASE WHEN pg_catalog.length(scope) > 1000 THEN ''::bytea ELSE pg_catalog.substr(id, 1, 1000) END)
    """,
    # NULL is no bound at all. These are planned for their arguments, so nothing of it is left then.
    "MOMENT": f"""
        ($2::double precision IS NULL OR updated_at >= $2 AND hour >= {_hour("$2")})
        AND ($3::double precision IS NULL OR updated_at < $3 AND hour <= {_hour("$3")})
    """,
    "EARLIER": f"""
        ($4::double precision IS NULL OR hour <= {_hour("$4")}
            AND (updated_at < $4 OR updated_at = $4 AND (scope, id) > ($5::bytea, $6::bytea)))
    """,
}

CREATE: Final = """
    WITH {LEASE} head AS (
        {MADE}
        ON CONFLICT (name) DO NOTHING
        RETURNING key, epoch, number, count
    ), {WRITTEN}
    SELECT epoch, number, count FROM head
"""
"""The first commit of a session that must not exist. $18 epoch, $19 made at, $20 written at."""

ADVANCE: Final = """
    WITH {LEASE} head AS (
        UPDATE {sessions} AS s SET
            number = s.number + 1, count = s.count + $13, body_size = s.body_size + $14,
            updated_at = {NOW}, hour = pg_catalog.floor({NOW} / 3600::double precision), sum = {NEXT_SUM}, state = $10, metadata = $11
        WHERE s.name = $1 AND s.scope = $2 AND s.id = $3 AND s.epoch = $18::bigint AND s.number = $19::integer
            AND s.count = $5::integer
            AND s.count + $13::integer <= greatest($15::bigint, s.count)
            AND s.body_size + {NEW_SIZE} <= greatest($16::bigint, {OLD_SIZE})
            AND {LEASED}
        RETURNING key, epoch, number, count
    )
    INSERT INTO {commits} (session, number, count, head_sum, body_sum, commit_id, digest, body)
    SELECT key, number, count,
        (($9::bigint # ((epoch + number + count) & 4294967295)) - 2147483648)::integer,
        (($6::bigint # ((epoch + number) & 4294967295)) - 2147483648)::integer,
        $7::text, $8::bytea, $4::bytea
    FROM head
    RETURNING $18, number, count
"""
"""What nearly every commit is: an append of one body to a session as its writer saw it. $4 the body, $5 the messages before it, $6 its sum;
$18 epoch, $19 number."""

WRITE: Final = """
    WITH {LEASE} seen AS (
        SELECT key, number, root FROM {sessions} WHERE name = $1 AND scope = $2 AND id = $3
    ), made AS (
        {MADE} AND $21::boolean AND NOT EXISTS (SELECT FROM seen)
        ON CONFLICT (name) DO NOTHING
        RETURNING key, epoch, number, count
    ), moved AS (
        UPDATE {sessions} AS s SET
            number = s.number + pg_catalog.cardinality($4::bytea[]),
            root = CASE WHEN $22::boolean THEN s.number + 1 ELSE s.root END,
            count = CASE WHEN $22 THEN $13 ELSE s.count + $13 END,
            body_size = CASE WHEN $22 THEN $14 ELSE s.body_size + $14 END,
            created_at = coalesce($19::double precision, s.created_at), updated_at = coalesce($20::double precision, {NOW}),
            hour = {WRITTEN_HOUR}, sum = {HEAD_SUM}, state = $10, metadata = $11
        FROM seen
        WHERE s.key = seen.key AND s.number = seen.number
            AND ($23::bigint IS NULL OR s.epoch = $23 AND s.number = $24::integer)
            AND ($25::integer IS NULL OR s.count = $25)
            AND ($23 IS NOT NULL OR $7::text IS NULL OR NOT EXISTS (
                SELECT FROM {commits} AS c
                WHERE c.session = seen.key AND pg_catalog."right"(c.commit_id, 8) = pg_catalog."right"($7, 8) AND c.commit_id = $7
            ))
            AND (CASE WHEN $22 THEN 0 ELSE s.count END) + $13::integer <= greatest($15::bigint, s.count)
            AND (CASE WHEN $22 THEN 0 ELSE s.body_size END) + {NEW_SIZE} <= greatest($16::bigint, {OLD_SIZE})
            AND {LEASED}
        RETURNING s.key, s.epoch, s.number, s.count, seen.root AS old_root, seen.number AS old_number
    ), head AS (
        SELECT key, epoch, number, count FROM made UNION ALL SELECT key, epoch, number, count FROM moved
    ), emptied AS (
        UPDATE {commits} AS c SET body = ''
        FROM moved
        WHERE $22 AND c.session = moved.key AND c.number BETWEEN old_root AND old_number AND c.commit_id IS NOT NULL
    ), dropped AS (
        DELETE FROM {commits} AS c
        USING moved
        WHERE $22 AND c.session = moved.key AND c.number BETWEEN old_root AND old_number AND c.commit_id IS NULL
    ), {WRITTEN}
    SELECT epoch, number, count FROM head
"""
"""Any other commit. $18 to $20 as for `CREATE`; $21 whether it may make the session, $22 whether it replaces; $23 epoch, $24 number and
$25 count, each ``NULL`` to not check."""

EXAMINE: Final = """
    SELECT s.epoch, s.number, s.count, s.body_size, s.body_size + pg_catalog.length(s.state) + pg_catalog.length(s.metadata),
        c.number, c.count, c.head_sum, c.digest,
        EXISTS (SELECT FROM {leases} WHERE name = $1 AND token = $5::text)
    FROM (SELECT) AS always
    LEFT JOIN {sessions} AS s ON s.name = $1 AND s.scope = $2 AND s.id = $3
    LEFT JOIN LATERAL (
        SELECT number, count, head_sum, digest FROM {commits}
        WHERE session = s.key AND pg_catalog."right"(commit_id, 8) = pg_catalog."right"($4::text, 8) AND commit_id = $4
        ORDER BY number DESC LIMIT 1
    ) AS c ON true
"""
"""Why a commit changed nothing. $1 name, $2 scope, $3 id, $4 commit id, $5 lease."""

LOAD: Final = """
    WITH s AS (
        SELECT key, epoch, number, root, count, body_size, sum, state, metadata
        FROM {sessions} WHERE name = $1 AND scope = $2 AND id = $3
    )
    SELECT -2 AS number, sum AS body_sum, state AS body, ARRAY[epoch, number, root, count, body_size] AS head FROM s
    UNION ALL
    SELECT -1, 0, metadata, NULL FROM s
    UNION ALL
    SELECT c.number, c.body_sum, c.body, NULL FROM s JOIN {commits} AS c ON c.session = s.key AND c.number >= s.root
"""
"""A session whole: its row, in two, and its commits. Narrow, for what stands in each row costs more than the join.
$1 name, $2 scope, $3 id."""

TAIL: Final = """
    WITH RECURSIVE s AS (
        SELECT key, epoch, number, root, count,
            greatest(0, least(coalesce($5::bigint, count), count) - $4::bigint) AS start,
            greatest(0, least(coalesce($5::bigint, count), count)) AS stop
        FROM {sessions} WHERE name = $1 AND scope = $2 AND id = $3
    ), first (low, high) AS (
        SELECT root, number FROM s
        UNION ALL
        SELECT CASE WHEN c.count > s.start THEN first.low ELSE c.number + 1 END,
            CASE WHEN c.count > s.start THEN c.number ELSE first.high END
        FROM s, first, {commits} AS c
        WHERE first.low < first.high AND c.session = s.key AND c.number = (first.low + first.high) / 2
    ), last (low, high) AS (
        SELECT root, number FROM s
        UNION ALL
        SELECT CASE WHEN c.count >= s.stop THEN last.low ELSE c.number + 1 END,
            CASE WHEN c.count >= s.stop THEN c.number ELSE last.high END
        FROM s, last, {commits} AS c
        WHERE last.low < last.high AND c.session = s.key AND c.number = (last.low + last.high) / 2
    ), span AS (
        SELECT (SELECT low FROM first WHERE low = high) AS first, (SELECT low FROM last WHERE low = high) AS last
    )
    SELECT s.epoch, s.number, s.count, s.start, s.stop,
        EXISTS (SELECT FROM {commits} WHERE session = s.key AND number > s.number),
        newest.count, newest.head_sum, newest.commit_id, newest.digest,
        span.first, span.last,
        CASE WHEN span.first > s.root
            THEN (SELECT count FROM {commits} WHERE session = s.key AND number = span.first - 1) ELSE 0 END,
        c.number, c.count, c.head_sum, c.body_sum, c.commit_id, c.digest, c.body
    FROM s CROSS JOIN span
    LEFT JOIN {commits} AS newest ON newest.session = s.key AND newest.number = s.number
    LEFT JOIN {commits} AS c ON s.start < s.stop AND c.session = s.key AND c.number BETWEEN span.first AND span.last
    ORDER BY c.number
"""
"""The commits that hold a page of messages, found by halving, and what `rows.page` checks them by. $1 name, $2 scope, $3 id, $4 limit,
$5 before."""

DELETE: Final = """
    WITH seen AS (
        SELECT key, number FROM {sessions} WHERE name = $1 AND scope = $2 AND id = $3
    ), gone AS (
        DELETE FROM {sessions} AS s USING seen WHERE s.key = seen.key AND s.number = seen.number RETURNING s.key
    ), dropped AS (
        DELETE FROM {commits} AS c USING gone WHERE c.session = gone.key
    )
    SELECT (SELECT pg_catalog.count(*) FROM seen), (SELECT pg_catalog.count(*) FROM gone)
"""

SESSIONS: Final = """
    SELECT {INFO} FROM {sessions}
    WHERE {MOMENT} AND ({ORDER}) >= ($4::bytea, $5::bytea) AND (scope, id) > ($6::bytea, $7::bytea)
    ORDER BY {ORDER}, scope, id LIMIT $1
"""
"""Of everybody. $1 limit, $2 since and $3 until, or ``NULL``, $4 and $5 the beginnings of, $6 and $7 the scope and the id after which."""

SESSIONS_OF: Final = """
    SELECT {INFO} FROM {sessions}
    WHERE {MOMENT} AND {PREFIX} = $4::bytea AND ({ORDER}) >= ($4::bytea, $5::bytea) AND scope = $6::bytea AND id > $7::bytea
    ORDER BY {ORDER}, id LIMIT $1
"""
"""The same of one scope."""

FIRST_SESSIONS: Final = "SELECT {INFO} FROM {sessions} WHERE {MOMENT} ORDER BY {ORDER}, scope, id LIMIT $1"
FIRST_SESSIONS_OF: Final = """
    SELECT {INFO} FROM {sessions} WHERE {MOMENT} AND {PREFIX} = $4::bytea AND scope = $5::bytea ORDER BY {ORDER}, id LIMIT $1
"""

LATEST: Final = """
    SELECT {INFO} FROM {sessions} WHERE {MOMENT} AND {EARLIER} ORDER BY hour DESC, updated_at DESC, scope, id LIMIT $1
"""
"""Of everybody, the last written first. $1 limit, $2 since, $3 until, $4 the moment, ``NULL`` for the first page, $5 and $6 the scope and
the id after which."""

LATEST_OF: Final = """
    SELECT {INFO} FROM {sessions} WHERE {MOMENT} AND {EARLIER} AND {PREFIX} = $7::bytea AND scope = $8::bytea
    ORDER BY hour DESC, updated_at DESC, id LIMIT $1
"""

STATISTICS: Final = "SELECT {FIGURES} FROM {sessions}"
STATISTICS_OF: Final = "SELECT {FIGURES} FROM {sessions} WHERE {PREFIX} = $1::bytea AND scope = $2::bytea"

EXPIRE: Final = """
    WITH old AS (
        SELECT key, number FROM {sessions}
        WHERE hour <= pg_catalog.floor(({NOW} - $1::double precision) / 3600::double precision)
            AND updated_at < {NOW} - $1::double precision
        ORDER BY hour, updated_at, scope, id LIMIT $2
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {sessions} AS s USING old, {sessions} AS seen
        WHERE s.key = old.key AND seen.key = old.key AND seen.number = old.number
        RETURNING s.key
    ), dropped AS (
        DELETE FROM {commits} AS c USING gone WHERE c.session = gone.key
    ), tidied AS (
        DELETE FROM {leases} WHERE expires_at < {NOW} - 86400::double precision
    )
    SELECT (SELECT pg_catalog.count(*) FROM old), (SELECT pg_catalog.count(*) FROM gone)
"""
"""$1 seconds, $2 limit. Leases of those who died are tidied away as well, when they are a day old."""

KEYS: Final = "SELECT key, scope, id FROM {sessions} WHERE key > $1 ORDER BY key LIMIT $2"
WHOLE: Final = """
    SELECT c.number, c.count, c.head_sum, c.body_sum, c.commit_id, c.digest, c.body,
        s.epoch, s.number, s.root, s.count, s.body_size, s.sum, s.name, s.scope, s.id,
        CASE WHEN c.number = s.number OR c.number IS NULL THEN s.state END,
        CASE WHEN c.number = s.number OR c.number IS NULL THEN s.metadata END,
        s.hour, s.created_at, s.updated_at
    FROM {sessions} AS s LEFT JOIN {commits} AS c ON c.session = s.key
    WHERE s.key = $1
    ORDER BY c.number
"""
ORPHANS: Final = """
    SELECT DISTINCT c.session FROM {commits} AS c
    WHERE c.session > $1 AND c.session <= $2 AND NOT EXISTS (SELECT FROM {sessions} AS s WHERE s.key = c.session)
    ORDER BY c.session LIMIT 1000
"""

TAKE_LEASE: Final = """
    INSERT INTO {leases} AS held (name, token, expires_at)
    SELECT $1, $2, {NOW} + $3::double precision
    WHERE NOT EXISTS (SELECT FROM {leases} WHERE name = $1 AND token <> $2 AND expires_at >= {NOW})
    ON CONFLICT (name) DO UPDATE SET token = $2, expires_at = {NOW} + $3::double precision
    WHERE held.token = $2 OR held.expires_at < {NOW}
    RETURNING 1
"""
KEEP_LEASE: Final = """
    UPDATE {leases} SET expires_at = {NOW} + $3::double precision WHERE name = $1 AND token = $2 RETURNING 1
"""
END_LEASE: Final = "DELETE FROM {leases} WHERE name = $1 AND token = $2 RETURNING 1"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_LONGEST = 63  # bytes of a name. Source: https://www.postgresql.org/docs/current/sql-syntax-lexical.html
_TABLES = ("sessions", "commits", "leases", "format")
_INDEXES = ("order", "hours", "ids")


class Statement(Struct, frozen=True):
    """A statement, and a name for it.

    The name is made of the text, so that whoever has prepared it on a connection of a pooler has prepared this very one.
    """

    text: str
    name: str
    prepare: bool = True

    @classmethod
    def of(cls, text: str, *, prepare: bool = True) -> Statement:
        """Return the statement ``text``. One that is not to be prepared is planned for its very arguments, each time."""
        text = " ".join(text.split())
        return cls(text, f"littleghost_{blake2b(text.encode(), digest_size=12).hexdigest()}", prepare)


class Statements:
    """The statements for the tables of one schema and prefix.

    Args:
        schema: Where the tables are.
        prefix: What the names of the tables begin with.

    Raises:
        ConfigurationError: One is no plain name.
    """

    def __init__(self, schema: str, prefix: str) -> None:
        check_names(schema, prefix)
        self.schema, self.prefix = schema, prefix
        # One lock for all that may be in a schema, which may itself have to be made.
        lock = int.from_bytes(
            blake2b(f"littleghost {schema}".encode(), digest_size=8).digest(), "big", signed=True
        )
        self._names = {
            "schema": f'"{schema}"',
            "schema_text": f"'{schema}'",
            "format_text": f"'{prefix}format'",
            "lock": f"'{lock}'::bigint",
            **{table: f'"{schema}"."{prefix}{table}"' for table in _TABLES},
            **{index: f'"{prefix}{index}"' for index in _INDEXES},
        }
        self.create = self._statement(CREATE)
        self.advance = self._statement(ADVANCE, LEASE="", LEASED="$17::text IS NULL")
        self.advance_leased = self._statement(ADVANCE)
        self.write = self._statement(WRITE)
        self.examine = self._statement(EXAMINE)
        self.load = self._statement(LOAD)
        self.tail = self._statement(TAIL)
        self.delete = self._statement(DELETE)
        # Which index serves a list best depends on its arguments; one plan for all reads a hundred times too much for some.
        self.sessions = self._statement(SESSIONS, prepare=False)
        self.sessions_of = self._statement(SESSIONS_OF, prepare=False)
        self.first_sessions = self._statement(FIRST_SESSIONS, prepare=False)
        self.first_sessions_of = self._statement(FIRST_SESSIONS_OF, prepare=False)
        self.latest = self._statement(LATEST, prepare=False)
        self.latest_of = self._statement(LATEST_OF, prepare=False)
        self.statistics = self._statement(STATISTICS)
        self.statistics_of = self._statement(STATISTICS_OF)
        self.expire = self._statement(EXPIRE, prepare=False)
        self.keys = self._statement(KEYS)
        self.whole = self._statement(WHOLE)
        self.orphans = self._statement(ORPHANS, prepare=False)
        self.take_lease = self._statement(TAKE_LEASE)
        self.keep_lease = self._statement(KEEP_LEASE)
        self.end_lease = self._statement(END_LEASE)

    def _statement(self, template: str, *, prepare: bool = True, **values: str) -> Statement:
        return Statement.of(self.text(template, **values), prepare=prepare)

    def text(self, template: str, **values: object) -> str:
        """Return ``template`` with what it names by braces: fragments, and the names of the tables."""
        while "{" in template:
            template = template.format_map({**FRAGMENTS, **self._names, **values})
        return template

    @property
    def lock(self) -> str:
        """Takes the lock of whoever changes the tables, until the end of the transaction."""
        return self.text(LOCK)

    def step(self, version: int) -> list[str]:
        """Return the statements that make the tables of ``version`` out of those of the version before."""
        made = [self.text(statement) for statement in STEPS[version - 1]]
        return made if version == 1 else [*made, self.text(SET_FORMAT, version=version)]

    def script(self) -> str:
        """Return everything that makes the tables, as a script that somebody else can run, once."""
        statements = [
            self.text(CREATE_SCHEMA),
            *(statement for version in range(1, VERSION + 1) for statement in self.step(version)),
        ]
        body = "".join(f"{' '.join(statement.split())};\n" for statement in statements)
        return f"BEGIN;\n{body}COMMIT;\n"


def check_names(schema: str, prefix: str) -> None:
    """Refuse what is no plain name: letters, digits, ``_`` and ``$``, not beginning with a digit.

    Raises:
        ConfigurationError: It is none, or too long.
    """
    if not isinstance(schema, str) or not _IDENTIFIER.fullmatch(schema) or len(schema) > _LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError("schema must be a plain name: ASCII letters, digits, _ and $, 63 at most")
    longest = _LONGEST - max(map(len, (*_TABLES, *_INDEXES))) - len("_session_number_pkey")
    if not isinstance(prefix, str) or not _IDENTIFIER.fullmatch(prefix or "_") or len(prefix) > longest:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"table_prefix must be a plain name: ASCII letters, digits, _ and $, {longest} at most, or empty"
        )
