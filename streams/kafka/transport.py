"""Faust's consumer, adapted: read committed, short fetch waits, and positions taken from the turn records.

Our one private exception (docs/design.md): Faust sets ``read_committed`` only together with its own exactly-once mode, so the
method that builds its aiokafka consumer is replaced. Nothing else here reaches into Faust's or aiokafka's insides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, cast

import aiokafka
from aiokafka import TopicPartition
from faust.transport.consumer import ConsumerThread
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from streams.kafka.consumers import UNREADABLE, unreadable

#: aiokafka sends the next fetch to a broker only when the last has returned, so a partition whose records were just taken waits
#: this long at worst while the others are quiet.
FETCH_WAIT_MS = 40
#: A fetch that brings this many messages is followed by a pause, in which the next ones gather.
BUSY_MESSAGES = 24
BUSY_PAUSE_SECONDS = 0.02
#: So does one that brings nothing but copies of what the process handed over to itself; a shorter one where they are few, for then
#: the hour is quiet and the next to come may be a request.
COPIES_PAUSE_SECONDS = 0.1
COPIES_MESSAGES = 8
FEW_COPIES_PAUSE_SECONDS = 0.03


class Fetched(dict[TP, list[Any]]):
    """Records by partition, where each partition's next ones begin, and how often positions had been set by then."""

    def __init__(self, records: Mapping[TP, list[Any]], positions: Mapping[TP, int], seeks: int) -> None:
        super().__init__(records)
        self.positions = positions
        self.seeks = seeks


class BulkConsumerThread(AIOKafkaConsumerThread):
    """The thread that owns the aiokafka consumer, whose loop also sends the group's heartbeats."""

    beat_at = 0.0
    #: How often positions were set: what was fetched before is not to be delivered after.
    seeks = 0

    async def on_start(self) -> None:
        """Start the consumer, and give signs of life for the watchdog."""
        await super().on_start()
        self._beat()

    def _beat(self) -> None:
        self.beat_at = time.monotonic()
        self.thread_loop.call_later(1.0, self._beat)

    def close(self) -> None:
        """Nothing: ``on_thread_stop`` closes the consumer in the thread that owns it.

        Faust calls this from the main thread when a rebalance meets a stop, and would there close connections and timers of the
        thread's event loop while that runs: a segmentation fault in uvloop.
        """

    async def on_thread_stop(self) -> None:
        """Stop the consumer, also while its broker is away: a thread that dies here is waited for in vain.

        aiokafka 0.14 awaits the fetches that it has just cancelled, and so lets a CancelledError out that nobody asked for and
        skips the rest (Fetcher.close).
        """
        try:
            await super().on_thread_stop()
        except asyncio.CancelledError:
            await self._consumer._client.close()  # what it skipped; there is no public way

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        worker = cast(Any, self.app).paidonce
        self._assignor = self.app.assignor
        return aiokafka.AIOKafkaConsumer(
            **worker.connection,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=worker.settings.fetch_bytes_max,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            isolation_level="read_committed",
            metadata_max_age_ms=60_000,
        )

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> Fetched:
        consumer = self._ensure_consumer()
        try:
            records = await super()._fetch_records(*args, **kwargs)
        except UNREADABLE as error:
            if (told := unreadable(consumer, error)) is not None:
                raise told from error
            raise
        # Behind the last record, and behind the markers of transactions that follow it.
        positions = {tp: await consumer.position(TopicPartition(*tp)) for tp, found in records.items() if found}
        return Fetched(records, positions, self.seeks)

    async def seek_all(self, positions: Mapping[TP, int | None], paused: set[TP]) -> None:
        """Set positions (``None``: the beginning), and keep the ``paused`` partitions from being fetched at all."""
        await self.call_thread(self._seek_all, positions, paused)

    async def _seek_all(self, positions: Mapping[TP, int | None], paused: set[TP]) -> None:
        consumer = self._ensure_consumer()
        unread = [TopicPartition(*tp) for tp, offset in positions.items() if offset is None]
        starts = await consumer.beginning_offsets(unread) if unread else {}
        assigned = consumer.assignment()
        for tp, offset in positions.items():
            if TopicPartition(*tp) in assigned:
                consumer.seek(TopicPartition(*tp), starts[TopicPartition(*tp)] if offset is None else offset)
        consumer.pause(*[TopicPartition(*tp) for tp in paused if TopicPartition(*tp) in assigned])
        self.seeks += 1


class BulkConsumer(Consumer):
    """Faust's consumer whose starting positions are those of the turn records."""

    _busy = False
    #: Messages of the last fetch, where it brought only what was handed over before.
    _copies = 0
    #: The last record that was fetched of each partition, and the position behind it.
    behind: dict[TP, tuple[int, int]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.behind = {}

    def position_behind(self, tp: TP, offset: int) -> int:
        """Where the fetcher stood when it had taken this message; 0 where more came with it."""
        last, position = self.behind.get(tp, (-1, 0))
        return position if last == offset else 0

    #: When the fetcher last asked for records.
    fetched_at = 0.0

    def last_fetch(self) -> float:
        """When the fetcher last gave a sign of life; during a rebalance none is due."""
        return self.fetched_at if self.flow_active else time.monotonic()

    def last_beat(self) -> float:
        """When the thread of the group's heartbeats last gave a sign of life."""
        return cast(BulkConsumerThread, self._thread).beat_at

    def _new_consumer_thread(self) -> ConsumerThread:
        return BulkConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Start behind the last folded message; the offset committed by Faust is only a hint."""
        await super().perform_seek()
        positions: Callable[[], Mapping[TP, int]] = cast(Any, self.app).paidonce.positions
        assigned = self.assignment()
        changelogs = {tp for tp in assigned if tp.topic in self.app.tables.changelog_topics}
        # Every source partition is set, those never folded too: a fetch may have moved any of them meanwhile.
        folded = dict.fromkeys(assigned - changelogs) | dict(positions())
        await cast(BulkConsumerThread, self._thread).seek_all(folded, changelogs)
        for tp, offset in folded.items():
            self._read_offset[tp] = offset if offset else None

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Messages of one fetch, as long as no rebalance and no seek came since it was taken: then all is read again."""
        records, active = await self._wait_next_records(timeout)
        if not records or self.should_stop:
            return
        generation, thread = self.app.consumer_generation_id, cast(BulkConsumerThread, self._thread)
        passes: Callable[[TP, int, int], bool] = cast(Any, self.app).paidonce.handover.passes
        for tp, position in records.positions.items():
            self.behind[tp] = (records[tp][-1].offset, position)
        copies, new = 0, False
        for tp, record in self.scheduler.iterate(records):
            current = records.seeks == thread.seeks and generation == self.app.consumer_generation_id
            if not current or not self.flow_active:
                return
            if passes(tp, record.offset, self.position_behind(tp, record.offset)):
                copies += 1
                continue
            new = True
            if tp in active or tp in self._buffered_partitions:
                yield tp, self._to_message(tp, record)
        self._copies = 0 if new else copies

    async def _wait_next_records(self, timeout: float) -> Any:
        self.fetched_at = time.monotonic()
        # Faust sleeps a whole second when no partition is active, which would be added to every take-over.
        if self.flow_active and not self._get_active_partitions():
            await asyncio.sleep(0.02)
            return {}, set()
        if self._busy:
            # Each fetch names every partition, and each turn costs a transaction: under load, fewer and larger ones do more.
            await asyncio.sleep(BUSY_PAUSE_SECONDS)
        elif self._copies:
            # What this process says to itself needs no fetch, and a fetch takes milliseconds from those whose turn it is.
            pause = COPIES_PAUSE_SECONDS if self._copies >= COPIES_MESSAGES else FEW_COPIES_PAUSE_SECONDS
            self._copies = 0
            await asyncio.sleep(pause)
        records, active = await super()._wait_next_records(timeout)
        self._busy = records is not None and sum(map(len, records.values())) >= BUSY_MESSAGES
        return records, active


class BulkTransport(Transport):
    """Faust's transport with our consumer."""

    Consumer: ClassVar[type[BulkConsumer]] = BulkConsumer
