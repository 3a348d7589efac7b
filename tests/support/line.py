"""One partition of one agent in memory: a real actor folds and journals, and its journal is folded again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas import envelope
from schemas.commands import RecoveryEnded
from schemas.events import Event
from schemas.states import OPEN, OpenReceipt, TurnRecord
from streams.engine.digest import IN_DIGEST, digests_of
from streams.kafka.inbox import Delivery, Inbox
from streams.kafka.producers import MESSAGE_BYTES_MAX
from streams.replaying.held import HeldRecords
from streams.replaying.refold import TABLES, Refold, Source, events_of, folded_in
from streams.turn import Actor, AgentSpec, TurnNames
from tests.support.memory import DictStore

NAMES = TurnNames("app", "owner", 4)
#: What Kafka puts around a message.
BATCH_BYTES = 128
PUBLIC = TABLES["runs"].public_topics


@dataclass
class Broker:
    """What one actor published, in the place of its producers."""

    journal: list[TurnRecord] = field(default_factory=list)
    changelog: dict[bytes, bytes] = field(default_factory=dict)
    #: Every value by topic.
    values: dict[str, list[bytes | None]] = field(default_factory=dict)
    #: Key, value and headers of what went to ``dead-letters``.
    letters: list[tuple[bytes, bytes | None, dict[str, bytes]]] = field(default_factory=list)

    async def publish(self, messages: Iterable[tuple[str, int, Sequence[Any]]], at_ms: int) -> dict[tuple[str, int], list[range]]:
        """Take what a turn publishes."""
        placed = {}
        for topic, partition, records in messages:
            placed[topic, partition] = [range(at_ms, at_ms + len(records := list(records)))]
            for key, value, headers in records:
                size = len(key or b"") + len(value or b"") + sum(len(name) + len(said) for name, said in headers)
                # A broker says so, too, and the worker ends.
                assert size + BATCH_BYTES <= MESSAGE_BYTES_MAX, f"{topic}: one message of {size:,} bytes"
                self.values.setdefault(topic, []).append(value)
                if topic == "turns":
                    self.journal.append(msgspec.msgpack.decode(value, type=TurnRecord))
                elif topic.endswith("-changelog"):
                    self.changelog.pop(key, None) if value is None else self.changelog.update({key: value})
                elif topic == "dead-letters":
                    self.letters.append((key, value, dict(headers)))
        return placed

    async def stop(self) -> None:
        """Nothing to release."""


@dataclass
class Line:
    """One partition with its topics: messages are put in, owners fold them, each turn is journalled."""

    spec: AgentSpec
    store: DictStore = field(default_factory=DictStore)
    broker: Broker = field(default_factory=Broker)
    topics: dict[str, list[Delivery]] = field(default_factory=dict)

    def put(self, topic: str, value: bytes | None, *, gap: int = 0, headers: Sequence[tuple[str, bytes]] = ()) -> Delivery:
        """Append a message; a ``gap`` is where a transaction left its marker."""
        stored = self.topics.setdefault(topic, [])
        delivery = Delivery(topic, (stored[-1].offset + 1 if stored else 0) + gap, None, value, headers)
        stored.append(delivery)
        return delivery

    def put_events(self, topic: str, *events: Event, gap: int = 0) -> Delivery:
        """Append one envelope."""
        return self.put(topic, envelope.encode(events), gap=gap, headers=envelope.headers_of(topic))

    async def owner(self, *turns: tuple[Sequence[Event], Sequence[Delivery]]) -> None:
        """A new owner of the partition: it takes stock, then takes turns of these commands and messages."""
        inbox = Inbox(self.spec.topics, bytes_max=1, turn_bytes_max=1)
        quiet: Any = lambda *_: None  # noqa: E731 - both callbacks do nothing
        producers: Any = self.broker
        store: Any = self.store
        actor = Actor(self.spec, 0, NAMES, store, producers, inbox, on_effects=quiet, on_failure=quiet)
        await actor.turn([RecoveryEnded()], [])
        for commands, deliveries in turns:
            order = {topic: place for place, topic in enumerate(self.spec.topics)}
            await actor.turn(commands, sorted(deliveries, key=lambda delivery: (order[delivery.topic], delivery.offset)))
        await actor.stop()

    def sources(self, record: TurnRecord) -> list[Source]:
        """The messages of a turn's segments."""
        return [
            Source(segment.topic, delivery.offset, delivery.value, delivery.headers)
            for segment in record.segments
            for delivery in self.topics[segment.topic]
            if segment.first <= delivery.offset <= segment.last
        ]

    def refolded(self, *, held_max: int = 50) -> Refold:
        """The journal folded again."""
        open_store: Any = DictStore
        fold = Refold(self.spec.table, 0, NAMES.partitions, HeldRecords(open_store, held_max=held_max))
        for record in self.broker.journal:
            fold.turn(record, self.sources(record))
        return fold

    def check(self) -> None:
        """Live records, the changelog's and a replay's are the same bytes."""
        live = sorted((key, value) for key, value in self.store.data.items() if key[0] in IN_DIGEST)
        assert self.broker.journal
        for held_max in (1, 50):
            fold = self.refolded(held_max=held_max)
            assert list(fold.records.items()) == live
            events = [event for r in self.broker.journal for event in events_of(r, self.sources(r), PUBLIC, "")]
            assert fold.events == sum(map(folded_in, events))
            opened = {key for key, _ in fold.records.scan(OPEN, OpenReceipt)}
            assert opened == {key for key in self.store.data if key.startswith(OPEN)}
            assert fold.records.digests() == digests_of(live) == digests_of(sorted(self.broker.changelog.items()))
        # Else recovery would not make them again.
        assert not any(key.startswith(OPEN) for key in self.broker.changelog)
