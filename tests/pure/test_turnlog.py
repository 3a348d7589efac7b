"""Reading the log for a replay: a hole in it is told by topic, partition and offsets, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiokafka import TopicPartition

from schemas import envelope
from schemas.events import Event, RunCancelled
from schemas.states import TURN_KEY, VALUE, Segment, StoredValue, TurnRecord, record_key
from streams.errors import StateError
from streams.replaying.refold import TABLES
from streams.replaying.turnlog import PartitionLog, read_changelog
from streams.settings import Settings
from tests.support.memory import DictStore

SETTINGS = Settings(app="app", partitions=1)
encode = msgspec.msgpack.encode


@dataclass(frozen=True)
class Stored:
    """A record as a consumer gives it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass
class ScriptedConsumer:
    """Topics of one partition that hold what a test says; each fetch brings a few records."""

    topics: dict[str, list[Stored]]
    begins: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)

    def assign(self, tps: Sequence[TopicPartition]) -> None:
        """All partitions are there, and read from their beginnings."""
        self.positions = {tp.topic: self.begins.get(tp.topic, 0) for tp in tps}

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Stand at the beginning."""
        self.positions.update({tp.topic: self.begins.get(tp.topic, 0) for tp in tps})

    async def end_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where topics end: behind their last record, or behind a marker."""
        return {tp: self._end(tp.topic) for tp in tps}

    def _end(self, topic: str) -> int:
        stored = self.topics.get(topic)
        return self.ends.get(topic, stored[-1].offset + 1 if stored else 0)

    async def position(self, tp: TopicPartition) -> int:
        """The next offset to be read."""
        return self.positions[tp.topic]

    async def getmany(self, tp: TopicPartition, *, timeout_ms: int) -> dict[TopicPartition, list[Stored]]:
        """The next two records."""
        at = self.positions[tp.topic]
        found = [record for record in self.topics.get(tp.topic, ()) if record.offset >= at][:2]
        self.positions[tp.topic] = found[-1].offset + 1 if len(found) == 2 else self._end(tp.topic)
        return {tp: found} if found else {}


def message(topic: str, offset: int, *events: Event) -> Stored:
    return Stored(offset, None, envelope.encode(events), envelope.headers_of(topic))


def journal(*turns: TurnRecord, table: str = "rows") -> list[Stored]:
    return [Stored(2 * place, f"{table}/0".encode(), encode(turn)) for place, turn in enumerate(turns)]


def turn(number: int, *segments: tuple[str, int, int]) -> TurnRecord:
    return TurnRecord(number, 1, segments=tuple(Segment(*segment) for segment in segments))


def read(consumer: Any) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """Table, turn, and topics and offsets of its messages, of all turns."""

    async def reading() -> list[tuple[str, int, list[tuple[str, int]]]]:
        log = PartitionLog(consumer, SETTINGS, 0)
        await log.open(topic for table in TABLES.values() for topic in table.topics)
        found = []
        async for table, record in log.turns():
            sources = await log.sources(table, record)
            found.append((table, record.turn, [(source.topic, source.offset) for source in sources]))
        return found

    return asyncio.run(reading())


CANCELS = [message("row-control", offset, RunCancelled(f"r{offset}")) for offset in (0, 1, 3, 5, 8)]


def test_N6_turns_come_with_their_messages_markers_between_them_and_what_no_turn_has_folded_yet_behind() -> None:
    turns = journal(turn(1), turn(2, ("row-control", 0, 1), ("tool-results", 4, 4)), turn(3, ("row-control", 3, 5)))
    consumer = ScriptedConsumer(
        {"turns": turns, "row-control": CANCELS, "tool-results": [message("tool-results", 4)]}, ends={"turns": 9}
    )
    assert read(consumer) == [
        ("rows", 1, []),
        ("rows", 2, [("row-control", 0), ("row-control", 1), ("tool-results", 4)]),
        ("rows", 3, [("row-control", 3), ("row-control", 5)]),
    ]


def test_N6_tables_have_their_own_turns_and_what_is_written_after_the_beginning_of_a_replay_is_left() -> None:
    consumer = ScriptedConsumer(
        {"turns": [*journal(turn(1)), Stored(1, b"runs/0", encode(turn(1))), *journal(turn(9), turn(9))[1:]]}
    )
    consumer.ends = {"turns": 2}
    assert read(consumer) == [("rows", 1, []), ("runs", 1, [])]


def test_N6_a_message_without_events_takes_no_turn() -> None:
    records = [message("row-control", 0), *CANCELS[1:]]
    assert read(ScriptedConsumer({"turns": journal(turn(1, ("row-control", 1, 1))), "row-control": records}))[0][2] == [
        ("row-control", 1)
    ]


def test_N6_a_turn_that_stands_there_twice_is_folded_once() -> None:
    once = read(ScriptedConsumer({"turns": journal(turn(1))}))
    assert read(ScriptedConsumer({"turns": journal(turn(1), turn(1))})) == once
    assert len(once) == 1


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([turn(2)], r"turns/0@0: turn 2 of rows/0 follows turn 0 at offset -1"),
        ([turn(1), turn(3)], r"turns/0@2: turn 3 of rows/0 follows turn 1 at offset 0: what lies between is missing"),
        ([turn(1), turn(1, ("row-control", 0, 0))], r"turns/0@2: turn 1 of rows/0 follows turn 1"),
        ([turn(1, ("row-control", 0, 2))], r"row-control/0@0..2: rows/0@1 folded these messages, found 0..1"),
        ([turn(1, ("row-control", 4, 5))], r"row-control/0@0: no turn folded this message, though rows/0@1 folded later ones"),
        ([turn(1, ("row-control", 0, 0)), turn(2, ("row-control", 3, 3))], r"row-control/0@1: no turn folded this message"),
        ([turn(1, ("row-control", 0, 1)), turn(2, ("row-control", 2, 3))], r"@2..3: rows/0@2 folded these messages, found 3..3"),
        ([turn(1, ("no-topic", 0, 1))], r"rows/0@1 folded messages of no-topic, which is no topic of this program"),
    ],
)
def test_N6_a_hole_is_told_by_topic_partition_and_offsets(turns: Iterable[TurnRecord], said: str) -> None:
    with pytest.raises(StateError, match=said):
        read(ScriptedConsumer({"turns": journal(*turns), "row-control": CANCELS}))


def test_N6_what_retention_took_is_told_by_topic_partition_and_offsets() -> None:
    turns = journal(turn(1, ("row-control", 0, 1)))
    with pytest.raises(
        StateError, match=r"row-control/0@0..1: rows/0@1 folded these messages, but the topic now begins at offset 3"
    ):
        read(ScriptedConsumer({"turns": turns, "row-control": CANCELS[2:]}, begins={"row-control": 3}))
    with pytest.raises(StateError, match=r"turns/0@0..11: the journal of turns now begins at offset 12"):
        read(ScriptedConsumer({"turns": []}, begins={"turns": 12}, ends={"turns": 12}))


def test_N6_what_is_no_turn_of_this_program_is_refused() -> None:
    for key, value in ((b"tally/0", encode(turn(1))), (b"rows/0", b"?"), (None, None)):
        with pytest.raises(StateError, match="turns/0@7: no turn of a table of this program"):
            read(ScriptedConsumer({"turns": [Stored(7, key, value)]}))


# --- changelogs ---------------------------------------------------------------------------------------------


def counter(offset: int, name: str, count: int | None) -> Stored:
    return Stored(offset, record_key(VALUE, name), None if count is None else encode(StoredValue(b"%d" % count)))


def mark(offset: int, number: int) -> Stored:
    return Stored(offset, TURN_KEY, encode(TurnRecord(number)))


CHANGELOG = [counter(0, "a", 1), mark(1, 1), counter(3, "b", 1), counter(4, "a", 2), mark(5, 2), counter(7, "b", None), mark(8, 3)]


def live(turn: int, changelog: list[Stored]) -> dict[str, int]:
    """Counters of the live table at a turn."""
    consumer: Any = ScriptedConsumer({"app-rows-changelog": changelog})
    store: Any = DictStore()
    asyncio.run(read_changelog(consumer, SETTINGS, "rows", 0, turn, store))
    return {
        key[1:].decode(): int(msgspec.msgpack.decode(value, type=StoredValue).output)
        for key, value in store.data.items()
        if key != TURN_KEY
    }


def test_N6_a_changelog_is_read_up_to_the_end_of_a_turn() -> None:
    assert [live(number, CHANGELOG) for number in range(4)] == [{}, {"a": 1}, {"a": 2, "b": 1}, {"a": 2}]


def test_N6_records_behind_the_last_turn_that_belong_to_none_are_part_of_what_is_live() -> None:
    """Whoever recovers the table takes them in."""
    stray = [*CHANGELOG, counter(9, "a", 7)]
    assert live(3, stray) == {"a": 7}
    assert live(2, stray) == live(2, CHANGELOG)


def test_N6_a_changelog_compacted_beyond_a_turn_is_refused_and_one_that_has_it_is_exact() -> None:
    """Of what the cleaner went over only the newest record of each key is left, the turn's own as well."""
    compacted = CHANGELOG[2:]
    assert live(2, compacted) == {"a": 2, "b": 1}
    with pytest.raises(StateError, match="app-rows-changelog/0@5: compacted beyond turn 1; the next is 2"):
        live(1, compacted)


def test_N6_the_tables_of_a_replay_are_those_of_the_changelogs() -> None:
    from streams.broker import topics

    assert set(TABLES) == set(topics.TABLES)
    assert {topic for table in TABLES.values() for topic in table.topics} < set(topics.TOPICS)
