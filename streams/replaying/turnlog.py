"""The durable log of one system, read for a replay: the journal of turns, the messages that they folded, and the changelogs.

Plain consumers of committed records, without a group. What is no longer there is told by topic, partition and offsets: a replay
with a hole in it would show a state that never was.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from schemas import envelope
from schemas.events import EVENTS_BY_TOPIC
from schemas.states import TURN_KEY, TurnRecord
from streams.errors import StateError, Unreachable
from streams.kafka.consumers import reading
from streams.replaying.refold import TABLES, Source
from streams.settings import Settings
from streams.table import Store

CONNECT_SECONDS: Final = 5.0
#: What is committed may take this long to be shown: markers of a transaction are written to its partitions one after the other.
SHOWN_SECONDS: Final = 20.0
#: A fetch that sees nothing holds up those that would: short, since some topics of a partition are always read to their ends.
FETCH_WAIT_MS: Final = 5
_turn_decoder = msgspec.msgpack.Decoder(TurnRecord)


@contextlib.asynccontextmanager
async def consumer_of(settings: Settings) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of committed records that belongs to no group. Raises ``Unreachable``."""
    try:
        async with reading(
            settings.connection(),
            start_seconds=CONNECT_SECONDS,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_partition_fetch_bytes=settings.fetch_bytes_max,
        ) as consumer:
            yield consumer
    except (KafkaError, TimeoutError) as error:
        said = str(error) or type(error).__name__
        raise Unreachable(f"no Kafka broker answers at {settings.broker} ({said}); correct --broker or PAIDONCE_BROKER") from error


async def count_messages(consumer: AIOKafkaConsumer, settings: Settings) -> dict[tuple[str, int], int]:
    """How many messages each partition of each table may have folded, or some more."""
    places = {
        TopicPartition(settings.topic_prefix + topic, partition): (table, partition)
        for table, folded in TABLES.items()
        for topic in folded.topics
        for partition in range(settings.partitions)
    }
    # Makes the consumer know all topics at once; what it would ask about unassigned ones one by one takes a second.
    consumer.assign(list(places))
    consumer.pause(*places)
    counts = dict.fromkeys(places.values(), 0)
    for tp, end in (await consumer.end_offsets(list(places))).items():
        counts[places[tp]] += end
    return counts


class _Cursor:
    """One partition of one topic, read forwards once."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, tp: TopicPartition, begin: int) -> None:
        self.topic, self.tp, self.begin = topic, tp, begin
        self.name = f"{tp.topic}/{tp.partition}"
        self.read: deque[ConsumerRecord] = deque()
        self._consumer = consumer

    async def fetch(self) -> bool:
        """Read on; whether there was anything."""
        fetched = (await self._consumer.getmany(self.tp, timeout_ms=500)).get(self.tp, ())
        self.read.extend(fetched)
        return bool(fetched)

    async def end(self) -> int:
        """Where the partition ends now. Asks a broker that has gone, too, which aiokafka would await in silence."""
        return int((await asyncio.wait_for(self._consumer.end_offsets([self.tp]), CONNECT_SECONDS))[self.tp])

    async def reach(self, offset: int) -> None:
        """Read up to ``offset``, whether there is a record at it or not. Raises ``StateError`` where the topic ends before."""
        deadline = 0.0
        while not self.read or self.read[-1].offset < offset:
            if await self.fetch():
                deadline = 0.0
            elif await self._consumer.position(self.tp) > offset:
                return
            elif not deadline:
                deadline = time.monotonic() + SHOWN_SECONDS
            elif time.monotonic() > deadline:
                end = await self.end()
                raise StateError(f"{self.name}@{offset}: this message is not there; the topic ends at offset {end:,}")

    async def take(self, first: int, last: int, turn: str) -> list[ConsumerRecord]:
        """The records from ``first`` to ``last``, which a turn folded. Raises ``StateError`` where one of the two is missing."""
        if first < self.begin:
            raise StateError(
                f"{self.name}@{first}..{last}: {turn} folded these messages, but the topic now begins at offset {self.begin:,}: "
                "retention took what lies before, and without it no state can be rebuilt"
            )
        await self.reach(last)
        taken: list[ConsumerRecord] = []
        while self.read and self.read[0].offset <= last:
            record = self.read.popleft()
            if record.offset >= first:
                taken.append(record)
            else:
                self._check_empty(record, turn)
        if not taken or taken[0].offset != first or taken[-1].offset != last:
            found = f"{taken[0].offset}..{taken[-1].offset}" if taken else "none of them"
            raise StateError(f"{self.name}@{first}..{last}: {turn} folded these messages, found {found}")
        return taken

    def _check_empty(self, record: ConsumerRecord, turn: str) -> None:
        """Only a message without events may stand between those that turns folded: it takes no turn."""
        if self.topic in EVENTS_BY_TOPIC:
            with contextlib.suppress(envelope.EnvelopeError):
                if not envelope.unpack(self.topic, record.value, record.headers):
                    return
        raise StateError(f"{self.name}@{record.offset}: no turn folded this message, though {turn} folded later ones")


class PartitionLog:
    """The journal of one partition and the messages that its turns folded."""

    def __init__(self, consumer: AIOKafkaConsumer, settings: Settings, partition: int) -> None:
        self.partition = partition
        self._consumer = consumer
        self._prefix = settings.topic_prefix
        self._cursors: dict[str, _Cursor] = {}

    async def open(self, sources: Iterable[str] = ()) -> None:
        """Stand at the beginning of the journal and of ``sources``. Raises ``StateError`` where that of the journal is gone."""
        topics = ["turns", *sources]
        tps = {topic: TopicPartition(self._prefix + topic, self.partition) for topic in topics}
        self._consumer.assign(list(tps.values()))
        for topic, tp in tps.items():
            # Where nothing is committed a consumer begins with the earliest; to seek there beside it can cost a fifth of a second.
            begin = await asyncio.wait_for(self._consumer.position(tp), CONNECT_SECONDS)
            self._cursors[topic] = _Cursor(self._consumer, topic, tp, begin)
        journal = self._cursors["turns"]
        if journal.begin:
            raise StateError(
                f"{journal.name}@0..{journal.begin - 1}: the journal of turns now begins at offset {journal.begin:,}: "
                "retention took what lies before, and without it no state can be rebuilt"
            )

    async def turns(self) -> AsyncIterator[tuple[str, TurnRecord]]:
        """Tables and turns in the order of the journal, up to where it ends now. Raises ``StateError`` where one is missing."""
        cursor = self._cursors["turns"]
        end = await cursor.end()
        last = dict.fromkeys(TABLES, (0, -1))
        newest: dict[str, bytes | None] = {}
        while True:
            if not cursor.read:
                if await self._consumer.position(cursor.tp) >= end:
                    return
                if not await cursor.fetch():
                    await cursor.end()
                continue
            stored = cursor.read.popleft()
            if stored.offset >= end:
                return
            table = (stored.key or b"").partition(b"/")[0].decode(errors="replace")
            try:
                record = _turn_decoder.decode(stored.value)
                number, offset = last[table]
            except (msgspec.MsgspecError, KeyError, TypeError) as error:
                raise StateError(f"{cursor.name}@{stored.offset}: no turn of a table of this program: {error!r}") from error
            if record.turn == number and stored.value == newest.get(table):
                # The same record once more, to the byte, so by the same owner: what was published with it came twice, too, and
                # changes nothing. Two owners' records of one turn differ, and are an error.
                continue
            newest[table] = stored.value
            if record.turn != number + 1:
                raise StateError(
                    f"{cursor.name}@{stored.offset}: turn {record.turn:,} of {table}/{self.partition} follows turn {number:,} at "
                    f"offset {offset}: what lies between is missing"
                )
            last[table] = record.turn, stored.offset
            yield table, record

    async def sources(self, table: str, record: TurnRecord) -> list[Source]:
        """The messages that a turn folded, in fold order. Raises ``StateError`` where one is missing."""
        turn = f"{table}/{self.partition}@{record.turn}"
        sources: list[Source] = []
        for segment in record.segments:
            cursor = self._cursors.get(segment.topic)
            if cursor is None:
                raise StateError(f"{turn} folded messages of {segment.topic}, which is no topic of this program")
            taken = await cursor.take(segment.first, segment.last, turn)
            sources.extend(Source(segment.topic, found.offset, found.value, found.headers) for found in taken)
        return sources


async def read_changelog(
    consumer: AIOKafkaConsumer, settings: Settings, table: str, partition: int, turn: int, store: Store
) -> None:
    """Bring ``store`` to what the live table was between ``turn`` and the next: its changelog up to there.

    Exact also where the changelog was compacted: it then holds the turn's record only if it holds the state of that moment too.
    Raises ``StateError`` where it does not.
    """
    tp = TopicPartition(f"{settings.app}-{table}-changelog", partition)
    consumer.assign([tp])
    await consumer.seek_to_beginning(tp)
    end = (await consumer.end_offsets([tp]))[tp]
    found, deadline = 0, time.monotonic() + SHOWN_SECONDS
    #: Behind the turn's record, which is its last: those of the next turn, or, where none follows, what belongs to no turn. Whoever
    #: recovers the table would take that in.
    behind: dict[bytes, bytes | None] = {}
    next_began = False
    while not next_began and (found < turn or await consumer.position(tp) < end):
        changes: dict[bytes, bytes | None] = {}
        fetched = (await consumer.getmany(tp, timeout_ms=500)).get(tp, ())
        for record in fetched:
            if record.key == TURN_KEY:
                if found >= turn:
                    next_began = True
                    break
                found = _turn_decoder.decode(record.value).turn
                if found > turn:
                    raise StateError(
                        f"{tp.topic}/{partition}@{record.offset}: compacted beyond turn {turn:,}; the next is {found:,}"
                    )
            (changes if found < turn or record.key == TURN_KEY else behind)[record.key] = record.value
        if fetched:
            store.write(changes, changelog_offset=fetched[-1].offset)
            deadline = time.monotonic() + SHOWN_SECONDS
        elif time.monotonic() > deadline:
            end = (await asyncio.wait_for(consumer.end_offsets([tp]), CONNECT_SECONDS))[tp]
            name = f"{tp.topic}/{partition}"
            raise StateError(f"{name}: it ends at offset {end:,} with turn {found:,}, the journal has turn {turn:,}")
        await asyncio.sleep(0)
    if not next_began:
        store.write(behind, changelog_offset=end)
