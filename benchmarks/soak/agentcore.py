"""AgentCore Memory as a medium: its emulator in this process, for real clients in others, on a network and a service that fail."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator, Call, Fault

from .history import Book, Read
from .ledger import Key
from .media import Medium, read_of

__all__ = ["SERVICES", "AgentCore"]

SERVICES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "echo": {"replay": "echo"},
    "refuse": {"mismatch": "refuse"},
    "late": {"lag": 0.05},
    "oldest first": {"order": "oldest"},
    "ties": {"ties": "permuted"},
}
"""How the service behaves where the documentation leaves it open; in each of these ways, nothing may be lost."""

ALWAYS = (
    ("*:reset_before", 0.004),
    ("*:reset_after", 0.006),
    ("*:timeout_before:delay=0.05", 0.002),
    ("*:timeout_after:delay=0.05", 0.004),
    ("*:truncated", 0.004),
    ("*:throttle", 0.006),
    ("*:throttle_after", 0.002),
    ("CreateEvent:conflict", 0.01),
    ("CreateEvent:conflict_after", 0.004),
    ("CreateEvent:duplicate", 0.004),
    ("*:error_500", 0.003),
    ("*:error_500_after", 0.003),
    ("*:error_502_after", 0.002),
    ("*:error_503", 0.003),
    ("*:error_504_after", 0.002),
    ("*:expired_token", 0.003),
    ("*:expired_token_after", 0.003),
    ("*:quota_exceeded", 0.0005),
    ("*:access_denied", 0.0005),
    ("*:access_denied_after", 0.0005),
    ("*:slow:delay=0.05", 0.01),
    ("ListEvents:extra_page", 0.01),
)
"""What befalls calls all the time, and how likely."""

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "soak",
    "AWS_SECRET_ACCESS_KEY": "soak",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}


class AgentCore(Medium):
    """An emulator, which the clients reach as they would reach AWS."""

    strict_leases = False
    deletes_by_halves = True

    def __init__(self, chance: random.Random, service: str | None = None) -> None:
        super().__init__()
        self.service = service or chance.choice(sorted(SERVICES))
        self.befallen: Counter[str] = Counter()
        self.calls = 0
        self.emulator = AgentCoreEmulator(
            **SERVICES[self.service], seed=chance.getrandbits(32), record=False, on_call=self._count
        )
        self._before = {name: os.environ.get(name) for name in (*ENVIRONMENT, "AWS_ENDPOINT_URL")}
        os.environ.update(ENVIRONMENT, AWS_ENDPOINT_URL=self.emulator.endpoint_url)
        self.url = f"agentcore://{DEFAULT_MEMORY}?region=us-east-1"
        self._keys: list[Key] = []
        self._always()
        self.faults = {
            "service away": lambda: self._for_a_while(chance, "*:error_503"),
            "network away": lambda: self._for_a_while(chance, "*:reset_before"),
            "answers lost": lambda: self._for_a_while(chance, "*:reset_after:probability=0.5"),
            "throttled": lambda: self._for_a_while(chance, "*:throttle:probability=0.7"),
            "credentials expired": lambda: self._for_a_while(chance, "*:expired_token:probability=0.6"),
            "slow": lambda: self._for_a_while(chance, "*:slow:delay=0.2:probability=0.5"),
        }

    def _count(self, call: Call) -> None:
        self.calls += 1
        if call.fault is not None:
            self.befallen[call.fault] += 1

    def _always(self) -> None:
        for rule, probability in ALWAYS:
            self.emulator.fault(f"{rule}:probability={probability}")

    def _for_a_while(self, chance: random.Random, rule: str) -> None:
        self.emulator.clear_faults()
        self.emulator.fault(Fault.parse(rule))
        time.sleep(chance.uniform(0.1, 1.0))
        self.emulator.clear_faults()
        self._always()

    def calm(self) -> None:
        self.emulator.clear_faults()

    def known(self, book: Book) -> list[Key]:
        # The service knows pseudonyms alone, so those that the clients tell of are looked up.
        self._keys = sorted({key for key in book.by_session() if key[0] is not None}, key=str)
        return self._keys

    def read(self) -> list[tuple[Key, Read]]:
        """Read the events by the rules of the format, as the store of LittleGhost for Ruby does."""
        names = {(_name(actor or ""), _name(id)): (actor, id) for actor, id in self._keys}
        sessions: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for event in self.emulator.events():
            sessions[event["actorId"], event["sessionId"]].append(event)
        found: list[tuple[Key, Read]] = []
        for place, stored in sessions.items():
            key = names.get(place)
            if key is None:
                self.notes.append(f"there are {len(stored)} events of a session that nobody wrote")
                continue
            read = _read(key, stored, self.notes)
            found += [] if read is None else [(key, read)]
        return found

    def damage(self) -> list[str]:
        return []

    def figures(self) -> dict[str, Any]:
        """Return what the emulator was asked and did."""
        return {"service": self.service, "calls": self.calls, "befallen": self.befallen}

    def close(self) -> None:
        self.emulator.close()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# The format, read with nothing of the library. Only of what our store writes: no chunks that overlap, no version 4.


def _name(id: str) -> str:
    return f"lg_{hashlib.sha256(id.encode()).hexdigest()}"


def _label(event: Mapping[str, Any], key: str) -> str:
    return event["metadata"][f"little_ghost_{key}"]["stringValue"]


def _read(key: Key, stored: Iterable[Mapping[str, Any]], notes: list[str]) -> Read | None:
    checkpoints: dict[str, Any] = {}
    events: dict[str, list[list[str]]] = defaultdict(list)
    for event in stored:
        if _label(event, "type") == "checkpoint_v5":
            fact = json.loads(event["payload"][0]["blob"].removeprefix("little_ghost:checkpoint:v5:"))
            if checkpoints.setdefault(fact["commit_id"], fact) != fact:
                notes.append(f"session {key}: two checkpoints of {fact['commit_id']} differ")
        else:
            events[_label(event, "commit")].append(
                [item["conversational"]["content"]["text"] for item in event["payload"]]
            )
    counting: dict[str, Any] = {}
    for fact in sorted(checkpoints.values(), key=lambda fact: fact["revision"]):
        if fact["root"] or fact["parent_commit_id"] in counting:
            counting[fact["commit_id"]] = fact
    if not counting:
        if checkpoints:
            notes.append(f"session {key}: there are checkpoints, and none counts")
        return None
    head = max(
        counting.values(),
        key=lambda fact: (fact["generation_revision"], fact["generation"], fact["revision"], fact["root"]),
    )
    lineage = [head]
    while not lineage[-1]["root"]:
        lineage.append(counting[lineage[-1]["parent_commit_id"]])
    bodies: dict[int, str] = {}
    for fact in lineage:
        # A request that was carried out twice, though its token was the same, says nothing new.
        texts = [
            text for text in {tuple(texts): None for texts in events[fact["commit_id"]]} for text in text
        ]
        bodies |= _records(texts)
    if sorted(bodies) != list(range(head["message_count"])):
        notes.append(
            f"session {key}: {head['message_count']} messages are announced, and there are {sorted(bodies)}"
        )
    body = "[" + ",".join(bodies[number] for number in sorted(bodies)) + "]"
    revision = f"{head['revision']}-{head['commit_id']}"
    return read_of(
        key, revision, [body], json.dumps(head["state"]), json.dumps(head["metadata"]), "the format"
    )


def _records(texts: Iterable[str]) -> dict[int, str]:
    """Return messages as JSON by their places."""
    found: dict[int, str] = {}
    parts: dict[str, dict[int, str]] = defaultdict(dict)
    whole: list[str] = []
    for text in texts:
        if text.startswith("little_ghost:message:v4:"):
            whole.append(text.removeprefix("little_ghost:message:v4:"))
        else:
            _, _, _, _, place, index, _, part = text.split(":", 7)
            parts[place][int(index)] = part
    whole += ["".join(group[index] for index in sorted(group)) for group in parts.values()]
    for record in map(json.loads, whole):
        found[record["sequence"]] = json.dumps(record["message"])
    return found
