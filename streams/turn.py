"""The durable turn: one Kafka transaction that folds messages into a table and publishes what follows from them.

The shell around every engine (docs/design.md): decode, load, fold, publish and commit, write RocksDB, then effects. A message is
folded exactly once, because its offset, the changelog and the outputs are one transaction. No exception leaves an actor: what
cannot be decoded is parked in ``dead-letters``; trouble with broker or disk ends the worker; a fenced owner drops its partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from typing import NamedTuple, TypeVar

import msgspec

from schemas import envelope
from schemas.commands import Command, Parked, PartlyParked, RecoveryEnded
from schemas.events import Event
from schemas.states import TURN_KEY, Segment, TurnRecord
from streams.engine.port import Context, Effect, Engine, Outbox, PublicEvent, Wake
from streams.errors import Fenced, PaidonceError, StateError
from streams.kafka.inbox import Delivery, Inbox
from streams.kafka.producers import MESSAGE_BYTES_MAX, NO_HEADERS, Group, Message, OnPublished, ProducerPair
from streams.parking import dead_letter
from streams.table import RecordCache, Store, WorkingSet

log = logging.getLogger(__name__)
S = TypeVar("S", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()
_judged_decoder = msgspec.msgpack.Decoder(Command)
#: Judgements of one turn: they stand in its record, which is one message. What does not fit is left for the next turn.
JUDGED_BYTES_MAX = MESSAGE_BYTES_MAX - (32 << 10)
#: The judgement of one message, which the owner's own commands stand beside.
JUDGEMENT_BYTES_MAX = JUDGED_BYTES_MAX - (256 << 10)


def decode_judged(raw: bytes) -> Event:
    """A judgement as it stands in a turn record."""
    return _judged_decoder.decode(raw)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One stateful agent: its table, its topics in order of precedence, and its pure engine."""

    table: str
    topics: tuple[str, ...]
    engine: Engine
    #: The one event that a message of a public topic means, which its shell judges; ``None`` where all topics carry envelopes. One,
    #: so that a replay knows which judgement belongs to which message.
    judge: Callable[[Delivery, int], Iterable[Event]] | None = None
    public_topics: tuple[str, ...] = ()
    #: After a turn of ``gather_events``, how long messages gather for the next: a transaction costs the same for one event and for
    #: hundreds.
    gather_seconds: float = 0.0
    gather_events: int = 40
    #: Decoded records kept between turns, for each partition.
    cached_records: int = 2_000


class _Read(NamedTuple):
    """What a turn folds and parks, what its record says of it, and how much of what was offered that is."""

    events: list[Event]
    dead: list[Message]
    record: TurnRecord
    commands: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class TurnNames:
    """Names and constants that all turns of a worker share."""

    app: str
    owner: str
    partitions: int
    topic_prefix: str = ""

    def changelog(self, table: str) -> str:
        """Changelog topic of a table."""
        return f"{self.app}-{table}-changelog"


#: Called after each step of a turn with its name: where tests kill the process.
Checkpoint = Callable[[str], None]


class Actor:
    """The single writer of one partition of one table."""

    def __init__(
        self,
        spec: AgentSpec,
        partition: int,
        names: TurnNames,
        store: Store,
        producers: ProducerPair,
        inbox: Inbox,
        *,
        on_effects: Callable[[int, Sequence[Effect], Context], None],
        on_failure: Callable[[PaidonceError], None],
        on_published: OnPublished = lambda _topic, _partition, _offset, _value, _headers: None,
        checkpoint: Checkpoint = lambda _step: None,
    ) -> None:
        self.spec = spec
        self.partition = partition
        self.inbox = inbox
        self._names = names
        self._store = store
        self._cache = RecordCache(spec.cached_records)
        self._producers = producers
        self._on_effects = on_effects
        self._on_failure = on_failure
        self._on_published = on_published
        self._checkpoint = checkpoint
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        raw = store.get(TURN_KEY)
        self.record = TurnRecord() if raw is None else msgspec.msgpack.decode(raw, type=TurnRecord)
        inbox.begin(self.record.offsets)
        self.generation = self.record.generation + 1
        self.fenced = False
        self.turns = 0
        self.events_folded = 0
        #: Messages and elements of messages that were parked in ``dead-letters``.
        self.parked = 0

    def start(self) -> None:
        """Begin to take turns; the first one takes stock of what is open and raises the generation."""
        self.inbox.command(RecoveryEnded())
        self._task = asyncio.create_task(self._run(), name=f"{self.spec.table}/{self.partition}")

    async def stop(self, *, grace_seconds: float = 3.0) -> None:
        """Finish the turn under way (or give it up after the grace time) and release producers and store."""
        for timer in self._timers.values():
            timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            self.inbox.command(RecoveryEnded())
            done, _ = await asyncio.wait([task], timeout=grace_seconds)
            if not done:
                task.cancel()
                await asyncio.wait([task])
        await self._producers.stop()
        self._store.close()

    def record_of(self, key: bytes, kind: type[S]) -> S | None:
        """A committed record, or ``None``; not to be changed."""
        return WorkingSet(self._store, self._cache).get(key, kind)

    def records_of(self, keys: Sequence[bytes], kind: type[S]) -> list[S]:
        """Committed records that must exist; not to be changed. Raises ``StateError`` naming one that does not."""
        records = WorkingSet(self._store, self._cache)
        records.prefetch(keys)
        found = []
        for key in keys:
            record = records.get(key, kind)
            if record is None:
                raise StateError(f"{self.spec.table}/{self.partition}: no record {key!r}")
            found.append(record)
        records.keep()
        return found

    async def _run(self) -> None:
        try:
            while True:
                await self.inbox.wait()
                if self._stopping.is_set():
                    return
                commands, deliveries = self.inbox.take()
                folded = self.events_folded
                await self.turn(commands, deliveries)
                if self.spec.gather_seconds and self.events_folded - folded >= self.spec.gather_events:
                    await self._gather()
        except Fenced as error:
            self.fenced = True
            log.warning("%s/%d: fenced, dropping the partition: %s", self.spec.table, self.partition, error)
            self._on_failure(error)
        except PaidonceError as error:
            self._on_failure(error)
        except Exception as error:  # the one shell that may: a defect or the disk ends the worker, loudly
            log.exception("%s/%d: a turn failed", self.spec.table, self.partition)
            self._on_failure(PaidonceError(f"{self.spec.table}/{self.partition}: a turn failed: {error!r}"))

    async def _gather(self) -> None:
        """Let messages gather for the next turn, unless the actor is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self.spec.gather_seconds)

    async def turn(self, commands: Sequence[Event], deliveries: Sequence[Delivery]) -> None:
        """Fold commands and messages in one transaction. Raises ``Fenced`` or ``Unreachable``."""
        now_ms = time.time_ns() // 1_000_000
        events, dead, record, *taken = self._read(commands, deliveries, now_ms)
        self.inbox.give_back(commands[taken[0] :], deliveries[taken[1] :])
        deliveries = deliveries[: taken[1]]
        if not events and not dead:
            self._acknowledge(deliveries)
            return
        context = Context(self.partition, self._names.partitions, self.generation, now_ms)
        records, outbox = WorkingSet(self._store, self._cache), Outbox()
        engine = self.spec.engine
        engine.turn(records, events, outbox, context)
        self._checkpoint(f"{self.spec.table}:folded")
        changes, local_changes = records.changes(), records.local_changes()
        silent = not record.segments and not outbox.events and not outbox.public
        if self.turns and silent and self._are_stored(changes) and self._are_stored(local_changes):
            # A timer that found nothing to do: no state and no words come of it, so neither does a transaction.
            self._follow(outbox.effects, context)
            return
        changes[TURN_KEY] = _encoder.encode(record)
        outputs = list(self._outputs(outbox))
        placed = await self._producers.publish(chain(outputs, self._messages(changes, outbox, dead)), now_ms)
        self._checkpoint(f"{self.spec.table}:committed")
        changelog = (self._names.changelog(self.spec.table), self.partition)
        self._store.write(changes, local_changes, changelog_offset=placed[changelog][-1][-1])
        self._checkpoint(f"{self.spec.table}:written")
        records.committed()
        self.record = record
        self.turns += 1
        self.events_folded += len(events)
        self._follow(outbox.effects, context)
        self._acknowledge(deliveries)
        for topic, partition, messages in outputs:
            offsets = chain.from_iterable(placed[(topic, partition)])
            for offset, (_, value, headers) in zip(offsets, messages, strict=True):
                self._on_published(topic, partition, offset, value, headers)

    def _are_stored(self, changes: Mapping[bytes, bytes | None]) -> bool:
        """What a turn would write stands in the table already."""
        return self._store.get_many(list(changes)) == list(changes.values())

    def _follow(self, effects: Sequence[Effect], context: Context) -> None:
        self._set_timers(effects, context.now_ms)
        self._on_effects(self.partition, effects, context)

    def _read(self, commands: Sequence[Event], deliveries: Sequence[Delivery], now_ms: int) -> _Read:
        """Decode what was not folded before, as much as one turn record holds, and write down what this turn folds."""
        offsets = dict(self.record.offsets)
        judged = [_encoder.encode(command) for command in commands]
        sizes = accumulate(map(len, judged))
        fitting = max(1, sum(size <= JUDGED_BYTES_MAX for size in sizes))
        if fitting < len(judged):
            deliveries = deliveries[:0]
        del judged[fitting:]
        events: list[Event] = list(commands[:fitting])
        room = JUDGED_BYTES_MAX - sum(map(len, judged))
        segments: list[Segment] = []
        dead: list[Message] = []
        place = 0
        for place, delivery in enumerate(deliveries, 1):
            if delivery.offset < offsets.get(delivery.topic, 0):
                continue
            found, said, letter = self._decode(delivery, now_ms)
            notes = [_encoder.encode(event) for event in said]
            room -= sum(map(len, notes))
            if room < 0 and notes and judged:
                place -= 1
                break
            offsets[delivery.topic] = delivery.offset + 1
            if segments and segments[-1].topic == delivery.topic:
                segments[-1] = Segment(delivery.topic, segments[-1].first, delivery.offset)
            else:
                segments.append(Segment(delivery.topic, delivery.offset, delivery.offset))
            if letter is not None:
                dead.append(letter)
            judged.extend(notes)
            events.extend(found)
        record = TurnRecord(
            turn=self.record.turn + 1,
            generation=self.generation,
            owner=self._names.owner,
            at_ms=now_ms,
            offsets=offsets,
            segments=tuple(segments),
            judged=tuple(judged),
            occasion="messages" if segments else "command",
        )
        return _Read(events, dead, record, fitting, place)

    def _decode(self, delivery: Delivery, now_ms: int) -> tuple[list[Event], list[Event], Message | None]:
        """Events of a message, what the turn record says of it, and its letter where it is parked, or a part of it."""
        try:
            if self.spec.judge is not None and delivery.topic in self.spec.public_topics:
                found = list(self.spec.judge(delivery, self.partition))
                return found, found, None
            return envelope.unpack(delivery.topic, delivery.value, delivery.headers), [], None
        except envelope.EnvelopeError as error:
            return self._park(delivery, error, now_ms)

    def _park(self, delivery: Delivery, error: Exception, now_ms: int) -> tuple[list[Event], list[Event], Message]:
        where = f"{delivery.topic}/{self.partition}@{delivery.offset}"
        found: list[Event] = []
        unread: dict[int, str] = {}
        if delivery.topic not in self.spec.public_topics:
            with contextlib.suppress(envelope.EnvelopeError):
                found, unread = envelope.unpack_partly(delivery.topic, delivery.value, delivery.headers)
        self.parked += len(unread) or 1
        if unread:
            log.error("parked elements %s of %s: %s", ", ".join(map(str, unread)), where, "; ".join(dict.fromkeys(unread.values())))
            said: Event = PartlyParked(delivery.topic, delivery.offset, tuple(unread))
        else:
            log.error("parked %s: %s", where, error)
            said = Parked(delivery.topic, delivery.offset)
        return found, [said], dead_letter(delivery, self.partition, str(error), now_ms, unread)

    def _outputs(self, outbox: Outbox) -> Iterable[tuple[str, int, list[Message]]]:
        prefix = self._names.topic_prefix
        for (topic, partition), queued in outbox.events.items():
            headers = envelope.headers_of(topic)
            yield prefix + topic, partition, [(None, value, headers) for value in envelope.pack(queued)]

    def _messages(
        self,
        changes: Mapping[bytes, bytes | None],
        outbox: Outbox,
        dead: Sequence[Message],
    ) -> Iterable[Group]:
        """What this turn publishes beside its outputs to other agents: public events, dead letters, changelog and journal."""
        prefix = self._names.topic_prefix
        for (topic, partition), messages in self._public(outbox.public).items():
            yield prefix + topic, partition, messages
        if dead:
            yield prefix + "dead-letters", self.partition, dead
        yield (
            prefix + "turns",
            self.partition,
            [(f"{self.spec.table}/{self.partition}".encode(), changes[TURN_KEY], NO_HEADERS)],
        )
        yield (
            self._names.changelog(self.spec.table),
            self.partition,
            zip(changes, changes.values(), repeat(NO_HEADERS), strict=False),
        )

    def _public(self, events: Iterable[PublicEvent]) -> dict[tuple[str, int], list[Message]]:
        grouped: dict[tuple[str, int], list[Message]] = {}
        source = f"/{self._names.app}/{self.spec.table}/{self.partition}".encode()
        common = [("ce_specversion", b"1.0"), ("ce_source", source), ("content-type", b"application/json")]
        for event in events:
            partition = self.partition if event.partition is None else event.partition
            queue = grouped.get((event.topic, partition))
            if queue is None:
                queue = grouped[(event.topic, partition)] = []
            headers = [*common, ("ce_id", event.id.encode()), ("ce_type", event.type.encode())]
            queue.append((event.key.encode(), event.data, headers))
        return grouped

    def _set_timers(self, effects: Iterable[Effect], now_ms: int) -> None:
        loop = asyncio.get_running_loop()
        for effect in effects:
            if isinstance(effect, Wake):
                name = _encoder.encode(effect.command)
                old = self._timers.pop(name, None)
                if old is not None:
                    old.cancel()
                delay = max(0, effect.at_ms - now_ms) / 1000
                self._timers[name] = loop.call_later(delay, self._fire, name, effect.command)

    def _fire(self, name: bytes, command: Event) -> None:
        self._timers.pop(name, None)
        self.inbox.command(command)

    def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.event is not None:
                delivery.event.ack()
