"""The bytes of every kind of message stay for ever: ``tests/golden/events.json`` holds those of one example of each.

After adding a type, give it an example in ``tests/support/examples.py`` and run ``python -m tests.pure.test_golden --write-new``,
which adds what is missing and never touches an entry that stands.
"""

from __future__ import annotations

import enum
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from pydantic import TypeAdapter

from schemas import commands, envelope, events, requests, states
from schemas.envelope import unpack
from schemas.events import (
    EVENTS_BY_TOPIC,
    AttemptEnded,
    Event,
)
from schemas.plays import Play
from schemas.states import (
    RECORD_TYPES,
)
from streams.turn import decode_judged
from tests.support.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES, RECORD_EXAMPLES, REQUEST_EXAMPLES

GOLDEN = Path(__file__).parents[1] / "golden" / "events.json"
WRITE_NEW = "python -m tests.pure.test_golden --write-new"
NEVER_EDIT = (
    "Never edit an event: Kafka keeps the old bytes for ever. Add a version of its topic's schema and an upcaster "
    "(schemas/envelope.py), or a new type."
)
#: Golden bytes from before a field was added, by section and name.
EARLIER = "earlier"
ADD_NEW = f"A new type needs an example in tests/support/examples.py and a golden entry: {WRITE_NEW} adds missing ones only."

ENUMS = [
    kind for module in (events, states) for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, enum.Enum)
]
_request: TypeAdapter[requests.PublicRequest] = TypeAdapter(requests.PublicRequest)
Golden = dict[str, dict[str, Any]]


def type_of(name: str) -> str:
    """The type that an example is of: its name up to the remark."""
    return name.partition(":")[0]


def topics_carrying(kind: type[Event]) -> list[str]:
    return [topic for topic, kinds in EVENTS_BY_TOPIC.items() if kind in kinds]


@cache
def todays() -> Golden:
    """All examples as today's code encodes them."""
    return {
        "events": {
            f"{topic}/{envelope.VERSION} {name}": envelope.encode([event]).hex()
            for name, event in EVENT_EXAMPLES.items()
            for topic in topics_carrying(type(event))
        },
        "commands": {name: msgspec.msgpack.encode(command).hex() for name, command in COMMAND_EXAMPLES.items()},
        "records": {name: msgspec.msgpack.encode(record).hex() for name, record in RECORD_EXAMPLES.items()},
        "requests": {name: request.model_dump(mode="json") for name, request in REQUEST_EXAMPLES.items()},
        "words": {f"{kind.__name__}.{member.name}": member.value for kind in ENUMS for member in kind},
    }


@cache
def golden() -> Golden:
    """The entries that stand."""
    loaded: Golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    return loaded


def entries() -> list[Any]:
    """Section and name of every entry, of today's examples as of the file."""
    today, stand = todays(), golden()
    return [
        pytest.param(section, name, id=f"{section}: {name}")
        for section in today
        for name in today[section] | stand.get(section, {})
    ]


def decoded(section: str, name: str, entry: Any) -> object:
    """What stands in a golden entry, read the way the program reads it."""
    match section:
        case "events":
            schema, _, kind = name.partition(" ")
            topic = schema.partition("/")[0]
            (event,) = unpack(topic, bytes.fromhex(entry), [(envelope.HEADER, schema.encode())])
            assert type(event).__name__ == type_of(kind)
            return event
        case "commands":
            return decode_judged(bytes.fromhex(entry))
        case "records":
            return msgspec.msgpack.decode(bytes.fromhex(entry), type=RECORD_TYPES[name[0].encode()])
        case "requests":
            return _request.validate_json(json.dumps(entry))
    return entry


def example(section: str, name: str) -> object:
    """Today's example of an entry."""
    match section:
        case "events":
            return EVENT_EXAMPLES[name.partition(" ")[2]]
        case "commands":
            return COMMAND_EXAMPLES[name]
        case "records":
            return RECORD_EXAMPLES[name]
        case "requests":
            return REQUEST_EXAMPLES[name]
    return todays()[section][name]


@pytest.mark.parametrize(("section", "name"), entries())
def test_what_kafka_keeps_has_the_same_bytes_today(section: str, name: str) -> None:
    stands = golden().get(section, {})
    assert name in stands, f"{section}: {name} has no golden entry. {ADD_NEW}"
    today = todays()[section]
    assert name in today, f"{section}: {name} is gone, but Kafka keeps such messages for ever. {NEVER_EDIT}"
    assert today[name] == stands[name], f"{section}: {name} is encoded in another way than before. {NEVER_EDIT}"


@pytest.mark.parametrize(("section", "name"), entries())
def test_what_kafka_keeps_is_read_as_what_it_was(section: str, name: str) -> None:
    stands = golden().get(section, {})
    assert name in stands, f"{section}: {name} has no golden entry. {ADD_NEW}"
    assert decoded(section, name, stands[name]) == example(section, name), (
        f"{section}: {name} is read as something else than what was written. {NEVER_EDIT}"
    )


@pytest.mark.parametrize("entry", golden().get(EARLIER, {}))
def test_what_was_written_before_a_field_was_added_is_read_with_its_default(entry: str) -> None:
    """A field may be added behind the others, with a default: topics and tables still hold the shorter form."""
    section, _, name = entry.partition(" ")
    for shorter in golden()[EARLIER][entry]:
        assert decoded(section, name, shorter) == example(section, name)


@pytest.mark.parametrize("topic", EVENTS_BY_TOPIC)
def test_every_event_of_a_topic_has_a_golden_entry(topic: str) -> None:
    stand = {type_of(name) for name in golden()["events"] if name.startswith(f"{topic}/{envelope.VERSION} ")}
    expected = {f"{topic}/{envelope.VERSION} {kind.__name__}" for kind in EVENTS_BY_TOPIC[topic]}
    assert expected <= stand, f"without a golden entry: {sorted(expected - stand)}. {ADD_NEW}"


def test_every_command_record_request_and_outcome_has_a_golden_entry() -> None:
    stand = {section: {type_of(name) for name in names} for section, names in golden().items()}
    expected = {
        "commands": {kind.__name__ for kind in get_args(commands.Command)},
        "records": {f"{prefix.decode()} {kind.__name__}" for prefix, kind in RECORD_TYPES.items()},
        "requests": {kind.model_fields["type"].default for kind in get_args(get_args(requests.PublicRequest)[0])},
        "words": {f"{kind.__name__}.{member.name}" for kind in ENUMS for member in kind},
    }
    missing = {section: names - stand[section] for section, names in expected.items() if names - stand[section]}
    assert not missing, f"without a golden entry: {missing}. {ADD_NEW}"
    outcomes = {type(event.outcome) for event in EVENT_EXAMPLES.values() if isinstance(event, AttemptEnded)}
    assert outcomes == set(get_args(events.Outcome)), ADD_NEW


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            '{"type":"run_requested","run":"r","play":{"name":"p","columns":[{"name":"c","tool":"a.b","input":{}}]}}',
            requests.RunRequested(
                run="r", play=Play.model_validate({"name": "p", "columns": [{"name": "c", "tool": "a.b", "input": {}}]})
            ),
        ),
        ('{"type":"rows_appended","run":"r","first":0,"rows":[{}]}', requests.RowsAppended(run="r", first=0, rows=[{}])),
        ('{"type":"rows_sealed","run":"r","total":0}', requests.RowsSealed(run="r", total=0)),
        ('{"type":"run_cancelled","run":"r"}', requests.RunCancelled(run="r")),
        (
            '{"type":"cell_resolved","run":"r","row":"%s","column":"c","outcome":"unpaid"}' % ("c4" * 20),
            requests.CellResolved(run="r", row="c4" * 20, column="c", outcome="unpaid"),
        ),
        (
            '{"type":"receipt_forgotten","receipt":"%s","lane":"o/p"}' % ("9f" * 20),
            requests.ReceiptForgotten(receipt="9f" * 20, lane="o/p"),
        ),
    ],
)
def test_a_request_of_nothing_but_what_must_be_said_is_read_for_ever(text: str, meaning: object) -> None:
    """Programs of other people send these: a field that is required from now on would break them."""
    assert _request.validate_json(text) == meaning


def test_writing_new_entries_adds_what_is_missing_and_touches_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    today = todays()
    kept = dict(today["events"])
    new, _ = kept.popitem()
    first = next(iter(kept))
    kept[first] = "00"
    file.write_text(json.dumps({"events": kept, "requests": {"of yore": {}}}), encoding="utf-8")
    added = write_new(file)
    assert f"events: {new}" in added
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["events"] == {**today["events"], first: "00"}
    assert written["requests"] == {**today["requests"], "of yore": {}}
    assert written["words"] == today["words"]
    assert write_new(file) == []


def write_new(file: Path = GOLDEN) -> list[str]:
    """Add the entries that the file lacks, and return their names; what stands in it stays as it is."""
    entries: Golden = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    added = []
    for section, examples in todays().items():
        stand = entries.setdefault(section, {})
        for name, entry in examples.items():
            if name not in stand:
                stand[name] = entry
                added.append(f"{section}: {name}")
    if added:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(entries, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return added


if __name__ == "__main__":
    if sys.argv[1:] != ["--write-new"]:
        sys.exit(f"usage: {WRITE_NEW}")
    print("\n".join(write_new()) or "nothing is missing")
