"""What PostgresStore sends names every function with its schema, so that nobody else's is taken for it."""

from __future__ import annotations

import re

from littleghost.sessions.postgres.migrations import sql
from littleghost.sessions.postgres.statements import VERSION, Statement, Statements

# What stands before a bracket and is no function: words of the language, and what is named there. `unnest` with several arguments is
# rewritten by the server to its own, and only where it has no schema.
# Source: https://github.com/postgres/postgres/blob/master/src/backend/parser/parse_clause.c
WORDS = {
    "all", "always", "and", "any", "as", "between", "by", "case", "coalesce", "conflict", "else", "exists", "first", "from",
    "greatest", "held", "in", "insert", "item", "key", "last", "lateral", "least", "not", "on", "or", "order", "over", "primary",
    "select", "set", "then", "unnest", "using", "values", "when", "where", "with",
}  # fmt: skip


def texts() -> dict[str, str]:
    statements = Statements("schema", "prefix_")
    found = {name: value.text for name, value in vars(statements).items() if isinstance(value, Statement)} | {
        "lock": statements.lock
    }
    for name in ("CREATE_SCHEMA", "HAS_FORMAT", "HAS_SCHEMA", "FORMAT"):
        found[name] = statements.text(getattr(sql, name))
    for version in range(1, VERSION + 1):
        found |= {f"step {version}.{place}": text for place, text in enumerate(statements.step(version))}
    return found


def test_every_function_is_named_with_its_schema():
    called: set[str] = set()
    for name, text in texts().items():
        plain = re.sub(r"\"schema\"\.\"\w+\"|\"prefix_\w+\"", "t", text)
        plain = re.sub(r"\bt (AS \w+ )?\(", "t [", plain)  # columns of a table
        for schema, function in re.findall(r"(\w+\.)?\"?\b([A-Za-z_]+)\"? ?\(", plain):
            if schema == "pg_catalog.":
                called.add(function)
            else:
                assert function.lower() in WORDS, (name, function)
    assert called >= {"cardinality", "count", "date_part", "floor", "length", "now", "right", "substr"}


def test_no_time_is_divided_by_a_whole_number():
    """`double precision / integer` is no operator of the server's, but may be one of somebody else's."""
    for name, text in texts().items():
        assert not re.search(r"(3600|86400)(?!::double precision)\b(?!:)", text), name
