"""Folding one partition of one table again, turn by turn, as its owner did: the part of a replay that knows no Kafka.

Turn records and messages in, records out. What an engine wants published or done is thrown away: this module and all
that it imports can neither publish nor call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from schemas import envelope
from schemas.commands import Command, Parked, PartlyParked, RowsAppended, RunRequested
from schemas.events import BatchClaimed, CallsAnswered, Event, LeaseExpired, LeaseReleased, RowsAdded
from schemas.states import TurnRecord
from streams.engine.port import Context, Engine, Outbox, P, PublicEvent
from streams.engine.receipts import ReceiptsEngine
from streams.engine.rows import RowsEngine
from streams.engine.runs import RunsEngine
from streams.errors import StateError
from streams.replaying.held import HeldRecords

_judged_decoder = msgspec.msgpack.Decoder(Command)


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """What a replay must know of a stateful agent; ``streams.agents`` has the rest, which publishes."""

    topics: tuple[str, ...]
    engine: Callable[[], Engine]
    #: Topics whose messages mean what stands in the turn record.
    public_topics: frozenset[str] = frozenset()


TABLES: Final[Mapping[str, FoldedTable]] = {
    "runs": FoldedTable(("operations", "row-progress", "run-requests"), RunsEngine, frozenset(("operations", "run-requests"))),
    "rows": FoldedTable(("row-control", "tool-results", "row-work"), RowsEngine),
    "receipts": FoldedTable(
        ("lane-control", "receipt-completions", "receipt-claims", "lease-heartbeats", "tool-requests"), ReceiptsEngine
    ),
}


class Source(NamedTuple):
    """One message that a turn folded."""

    topic: str
    offset: int
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Unsent(Outbox):
    """An outbox that keeps nothing."""

    def send(self, topic: str, partition: int, event: Event) -> None:
        """Throw an event away."""

    def publish(self, make: Callable[P, PublicEvent], *of: P.args, **named: P.kwargs) -> None:
        """Make nothing."""


class Refold:
    """One partition of one table, folded into ``records`` up to the last turn that was given."""

    def __init__(self, table: str, partition: int, partitions: int, records: HeldRecords) -> None:
        self.table, self.partition, self.records = table, partition, records
        self.record = TurnRecord()
        self.events = 0
        self._partitions = partitions
        self._public = TABLES[table].public_topics
        self._engine = TABLES[table].engine()

    def turn(self, record: TurnRecord, sources: Sequence[Source]) -> None:
        """Fold the turn that comes next, with the messages of its segments in their order. Raises ``StateError``."""
        where = f"{self.table}/{self.partition}@{record.turn}"
        if record.turn != self.record.turn + 1 or record.generation < self.record.generation:
            last = f"turn {self.record.turn:,} of generation {self.record.generation}"
            raise StateError(f"{where}, of generation {record.generation}, stands in the journal behind {last}")
        events = events_of(record, sources, self._public, where)
        context = Context(self.partition, self._partitions, record.generation, record.at_ms)
        self._engine.turn(self.records, events, Unsent(), context)
        self.records.turn_over()
        self.record = record
        self.events += folded(events)


#: The kinds of which one element stands for several.
_OF_MANY: Final = frozenset((RowsAdded, RowsAppended, RunRequested, BatchClaimed, LeaseReleased, LeaseExpired, CallsAnswered))


def folded(events: Sequence[Event]) -> int:
    """How many events the elements of messages stand for together."""
    return len(events) + sum(folded_in(event) - 1 for event in events if type(event) in _OF_MANY)


def folded_in(event: Event) -> int:
    """How many events an element of a message stands for: rows, members of a claim and answered calls share one."""
    match event:
        case RowsAdded() | RowsAppended():
            return len(event.rows)
        case RunRequested():
            return 1 + len(event.rows)
        case BatchClaimed() | LeaseReleased() | LeaseExpired():
            return len(event.members)
        case CallsAnswered():
            return len(event.calls)
        case _:
            return 1


def events_of(record: TurnRecord, sources: Iterable[Source], public_topics: frozenset[str], where: str) -> list[Event]:
    """The events of a turn in fold order: its owner's commands, then what each message means or was judged to mean.

    ``where`` names the turn in a ``StateError``, raised where messages and judgements do not fit together.
    """
    try:
        judged: list[Event] = [_judged_decoder.decode(raw) for raw in record.judged]
    except msgspec.MsgspecError as error:
        raise StateError(f"{where}: a judgement in the turn record cannot be read: {error}") from error
    parked = {(event.topic, event.offset) for event in judged if isinstance(event, Parked)}
    read = [source for source in sources if (source.topic, source.offset) not in parked]
    partly = {(event.topic, event.offset): event.places for event in judged if isinstance(event, PartlyParked)}
    judgements = [event for event in judged if not isinstance(event, Parked | PartlyParked)]
    # A message of a public topic means one event; what stands before those of messages are the owner's own commands.
    commands = len(judgements) - sum(source.topic in public_topics for source in read)
    if commands < 0:
        raise StateError(f"{where}: {len(judgements)} judgements for {len(judgements) - commands} messages of public topics")
    following = iter(judgements[commands:])
    events = judgements[:commands]
    for source in read:
        if source.topic in public_topics:
            events.append(next(following))
            continue
        try:
            places = partly.get((source.topic, source.offset))
            if places is None:
                events.extend(envelope.unpack(source.topic, source.value, source.headers))
            else:
                events.extend(envelope.unpack_without(source.topic, source.value, source.headers, places))
        except envelope.EnvelopeError as error:
            raise StateError(f"{where} folded a message that cannot be read, at offset {source.offset:,}: {error}") from error
    return events
