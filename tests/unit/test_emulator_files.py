"""Files of the emulator of AgentCore Memory: what it saves it has again, and files of others it takes as they are."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")

from littleghost import ConfigurationError
from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "agentcore"
PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}
DAY = 86_400
OURS = b'{"format":"littleghost-agentcore-emulator-1",'


def write(client: Any, at: float = 5, **more: Any) -> dict[str, Any]:
    return client.create_event(**{**PLACE, "eventTimestamp": at, "payload": [{"blob": "é"}], **more})["event"]


def read_golden(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("[0-9]*")), ids=lambda path: path.name)
def test_golden_files_are_loaded_as_they_are(path: Path):
    wanted = read_golden(path)
    with AgentCoreEmulator() as emulator:
        emulator.load(path)
        assert emulator.events() == sorted(wanted["events"], key=lambda event: event["eventId"])
        client = emulator.client(transport="memory")
        place = {
            "memoryId": wanted["memory_id"],
            "actorId": wanted["wire_actor_id"],
            "sessionId": wanted["wire_session_id"],
        }
        listed = client.list_events(**place, maxResults=100)["events"]
        assert [event["eventId"] for event in listed] == [event["eventId"] for event in emulator.events()][
            ::-1
        ]
        for event, given in zip(listed, emulator.events()[::-1], strict=True):
            assert event["payload"] == given["payload"]
            assert event["metadata"] == given["metadata"]


def test_a_case_of_a_file_is_loaded_by_its_name():
    [path] = GOLDEN.glob("errors.json*")
    for case in read_golden(path)["cases"]:
        with AgentCoreEmulator() as emulator:
            emulator.load(path, case=case["name"])
            assert emulator.events() == sorted(case["events"], key=lambda event: event["eventId"])
    with (
        AgentCoreEmulator() as emulator,
        pytest.raises(ConfigurationError, match="has no case named 'other'"),
    ):
        emulator.load(path, case="other")


def test_a_list_of_events_is_loaded(tmp_path: Path):
    (tmp_path / "events.json").write_text(json.dumps([{**PLACE, "eventId": "1#1", "eventTimestamp": 1}]))
    with AgentCoreEmulator() as emulator:
        emulator.load(tmp_path / "events.json")
        assert [event["eventId"] for event in emulator.events()] == ["1#1"]


def test_what_is_saved_is_there_again(tmp_path: Path):
    path = tmp_path / "saved.json"
    clock = lambda: 1e9
    with AgentCoreEmulator({DEFAULT_MEMORY: 7, "other_memory-abcdefghij": 30}, clock=clock) as emulator:
        client = emulator.client(transport="memory")
        first = write(client, metadata={"k": {"stringValue": "v"}}, branch={"name": "side"}, clientToken="t")
        emulator.advance(DAY)
        write(client, memoryId="other_memory-abcdefghij")
        emptied = write(client, sessionId="emptied")
        client.delete_event(**{**PLACE, "sessionId": "emptied"}, eventId=emptied["eventId"])
        summaries = client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor")["sessionSummaries"]
        assert len(summaries) == 2
        emulator.save(path)
        before = emulator.events()
    with AgentCoreEmulator(clock=clock) as emulator:
        emulator.load(path)
        client = emulator.client(transport="memory")
        emulator.advance(DAY)
        assert emulator.memories == {DEFAULT_MEMORY: 7, "other_memory-abcdefghij": 30}
        assert emulator.events() == before
        assert client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor")["sessionSummaries"] == summaries
        again = write(client, metadata={"k": {"stringValue": "v"}}, branch={"name": "side"}, clientToken="t")
        assert again == first
        emulator.advance(6 * DAY)  # what was written before expires when it would have
        assert [event["memoryId"] for event in emulator.events()] == ["other_memory-abcdefghij"]
        emulator.save(path)
        saved = json.loads(path.read_text())
        assert len(saved["events"]) == 1


def test_a_saved_file_may_also_be_read_for_its_events_alone(tmp_path: Path):
    with AgentCoreEmulator() as emulator:
        write(emulator.client(transport="memory"))
        emulator.save(tmp_path / "saved.json")
        wanted = emulator.events()
    assert json.loads((tmp_path / "saved.json").read_text())["events"] == wanted


def test_a_file_is_kept_up_to_date_and_read_again(tmp_path: Path):
    path = tmp_path / "events.json"
    with AgentCoreEmulator(file=path) as emulator:
        client = emulator.client(transport="memory")
        event = write(client)
        deadline = time.monotonic() + 60
        while not path.exists() or "eventId" not in path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        write(client)
    with AgentCoreEmulator(file=path) as emulator:
        assert len(emulator.events()) == 2
        client = emulator.client(transport="memory")
        client.delete_event(**PLACE, eventId=event["eventId"])
    assert len(json.loads(path.read_text())["events"]) == 1
    assert os.listdir(tmp_path) == ["events.json"]


def test_a_file_is_made_even_where_nothing_was_written_and_left_alone_where_nothing_changed(tmp_path: Path):
    path = tmp_path / "events.json"
    AgentCoreEmulator(file=path).close()
    assert json.loads(path.read_text())["events"] == []
    before = path.stat().st_ino, path.stat().st_mtime_ns
    with AgentCoreEmulator(file=path) as emulator:
        emulator.client(transport="memory").list_events(**PLACE)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_memories_of_a_file_are_there_and_what_is_said_about_them_counts(tmp_path: Path):
    path = tmp_path / "events.json"
    AgentCoreEmulator({DEFAULT_MEMORY: 7, "other_memory-abcdefghij": 30}, file=path).close()
    for memories, wanted in (
        (None, (7, 30)),
        ({DEFAULT_MEMORY: 14}, (14, 30)),
        (["other_memory-abcdefghij"], (7, 90)),
    ):
        emulator = AgentCoreEmulator(memories, file=path)
        assert emulator.memories == dict(
            zip((DEFAULT_MEMORY, "other_memory-abcdefghij"), wanted, strict=True)
        )
        emulator.close()
    events = tmp_path / "plain.json"
    events.write_text(json.dumps([{**PLACE, "memoryId": "other_memory-abcdefghij", "eventId": "1#1"}]))
    assert AgentCoreEmulator(file=events).memories == {DEFAULT_MEMORY: 90, "other_memory-abcdefghij": 90}


@pytest.mark.skipif(sys.platform == "win32", reason="files have no mode there")
def test_a_file_is_for_its_owner_and_keeps_its_place_behind_a_link(tmp_path: Path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    AgentCoreEmulator(file=tmp_path / "link.json").close()
    assert (tmp_path / "link.json").is_symlink()
    assert stat.S_IMODE((tmp_path / "real.json").stat().st_mode) == 0o600


def test_a_failed_save_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "events.json"
    path.write_text('{"events":[]}')
    emulator = AgentCoreEmulator(file=path)
    write(emulator.client(transport="memory"))

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigurationError, match=r"cannot be written .No space left on device"):
        emulator.close()
    assert path.read_text() == '{"events":[]}'
    assert os.listdir(tmp_path) == ["events.json"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "is no JSON"),
        (b"\x1f\x8b\x08broken", "is no JSON"),
        (b"5", "has no list of events"),
        (b"{}", "has no list of events"),
        (b'{"cases":[]}', "has no list of events"),
        (b'{"events":[5]}', "an event must be an object, not int"),
        (b'{"events":[{}]}', "memoryId of an event must be a text, not None"),
        (b'{"format":"other-1","events":[]}', "is of another format, 'other-1'"),
        (OURS + b'"events":[]}', "is damaged: KeyError"),
        (OURS + b'"memories":{},"sessions":[],"events":[{}],"times":[]}', "is damaged: ValueError"),
        (OURS + b'"memories":{"x":{"retention":1}},"sessions":[],"events":[],"times":[]}', "retention of 1 days"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_events_is_told(tmp_path: Path, content: bytes, text: str):
    path = tmp_path / "events.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=re.escape(text)) as caught:
        AgentCoreEmulator(file=path)
    assert "events.json" in str(caught.value) or "retention" in text
    assert path.read_bytes() == content


def test_a_missing_file_is_told(tmp_path: Path):
    with (
        AgentCoreEmulator() as emulator,
        pytest.raises(ConfigurationError, match=r"cannot be read .No such file"),
    ):
        emulator.load(tmp_path / "missing.json")
    with AgentCoreEmulator() as emulator, pytest.raises(ConfigurationError, match="cannot be written"):
        emulator.save(tmp_path / "missing" / "events.json")


def in_python(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nobody_else_pays_for_it():
    names = (
        "{name for name in sys.modules if name.startswith(('boto', 'littleghost.emulators', 'http.server'))}"
    )
    assert in_python(f"import sys, littleghost, littleghost.cli, littleghost.cli.app; print(*{names})") == []


def test_without_boto3_the_extra_is_named():
    code = """
import sys
sys.modules["botocore.loaders"] = sys.modules["boto3.session"] = None
from littleghost import DependencyError
from littleghost.emulators.agentcore import AgentCoreEmulator
try:
    AgentCoreEmulator()
except DependencyError as error:
    print(error.extra, error.package)
"""
    assert in_python(code) == ["agentcore", "boto3"]


def test_a_botocore_that_does_not_know_the_service_is_too_old(tmp_path: Path):
    code = """
import botocore.loaders
from botocore.exceptions import UnknownServiceError
def unknown(self, name, type, api_version=None):
    raise UnknownServiceError(service_name=name, known_service_names="")
botocore.loaders.Loader.load_service_model = unknown
from littleghost import DependencyError
from littleghost.emulators.agentcore import AgentCoreEmulator
try:
    AgentCoreEmulator()
except DependencyError as error:
    print(str(error).replace(" ", "_"))
"""
    assert "too_old_for_AgentCore_Memory" in in_python(code)[0]


def test_a_file_is_one_emulators(tmp_path):
    file = tmp_path / "events.json"
    with AgentCoreEmulator(file=file), pytest.raises(ConfigurationError, match="another emulator has"):
        AgentCoreEmulator(file=file)
    with AgentCoreEmulator(file=file):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["events.json"]
