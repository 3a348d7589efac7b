"""The public topics as a client sees them: connect, publish durably, read what is committed.

Under ``client``, which knows what the messages mean; here they are bytes. Trouble with the broker becomes
``Unreachable`` here, and nowhere else on the client's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from schemas.address import partition_of
from streams.broker import topics
from streams.errors import ConfigurationError, TopicsError, Unreachable, UsageError
from streams.kafka.consumers import reading
from streams.settings import Settings

PUBLIC_TOPICS = ("run-requests", "operations", "map-progress", "run-events", "map-rows")
CONNECT_SECONDS = 5.0
#: How long a broker may be away while a run is followed: a restart is no reason to stop looking.
OUTAGE_SECONDS = 30.0
QUIET_SECONDS = 5.0
POLL_MS = 1000
#: A new record is seen at once; a fetch that sees nothing is held this long.
FETCH_WAIT_MS = 50
FETCH_BYTES_MAX = 4 << 20
MESSAGE_BYTES_MAX = 9 << 20
BATCH_BYTES_MAX = 1 << 20

Fetched = Mapping[TopicPartition, list[ConsumerRecord]]


@contextlib.contextmanager
def broker_errors(address: str) -> Iterator[None]:
    """Turn trouble with the broker into ``Unreachable``, naming its address; a message that is too large is a ``UsageError``."""
    try:
        yield
    except MessageSizeTooLargeError as error:  # which either the client says or the broker, and both are there
        raise UsageError(f"the request is larger than a message may be, {MESSAGE_BYTES_MAX >> 20} MiB: {error}") from error
    except (KafkaError, TimeoutError, OSError) as error:
        said = str(error) or type(error).__name__
        raise Unreachable(
            f"no Kafka broker answers at {address} ({said}). Start one (paidonce broker start), or correct "
            "the address (--broker or PAIDONCE_BROKER)"
        ) from error


class PublicLog:
    """A connection to the public topics of one system; connects at its first use, within 5 seconds.

    Every method raises ``Unreachable`` when the broker does not answer.
    """

    def __init__(self, settings: Settings) -> None:
        self.address = settings.broker
        self._prefix = settings.topic_prefix
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._checked = False
        try:
            self._connection: Mapping[str, Any] = settings.connection()
        except OSError as error:
            raise ConfigurationError(f"{settings.ssl_cafile}: {error.strerror}") from error

    async def close(self) -> None:
        """Let the connection go; what was published is durable already."""
        if self._producer is not None:
            await self._producer.stop()

    def home(self, run: str, topic: str) -> TopicPartition:
        """The partition of a topic that everything about a run is on."""
        return TopicPartition(self._prefix + topic, partition_of(run, self._settings.partitions))

    def all(self, *names: str) -> list[TopicPartition]:
        """All partitions of these topics."""
        partitions = range(self._settings.partitions)
        return [TopicPartition(self._prefix + name, number) for name in names for number in partitions]

    def name_of(self, record: ConsumerRecord) -> str:
        """The topic of a record, without the prefix that this system's topics have."""
        topic: str = record.topic
        return topic.removeprefix(self._prefix)

    async def ready(self) -> None:
        """Make sure, once, that the topics are there: another partition count would mislead every key.

        Raises ``TopicsError`` naming those that are not as they must be.
        """
        if self._checked:
            return
        settings = self._settings
        inspected = topics.inspect(self._connection, settings.app, settings.partitions, self._prefix)
        with broker_errors(self.address):
            try:
                states = await asyncio.wait_for(inspected, CONNECT_SECONDS)
            except ValueError as error:  # aiokafka's, for connection settings that it refuses
                raise ConfigurationError(f"broker {self.address}: {error}") from error
        public = {self._prefix + name for name in PUBLIC_TOPICS}
        wrong = [state for state in states if state.name in public and not state.right]
        if wrong:
            raise TopicsError(
                f"the topics at {self.address} are not as they must be: {'; '.join(map(str, wrong))}. "
                "Run `paidonce topics apply` for missing ones; set PAIDONCE_PARTITIONS to the system's count"
            )
        self._checked = True

    async def send(self, topic: str, run: str, value: bytes, headers: Sequence[tuple[str, bytes]]) -> asyncio.Future[Any]:
        """Publish a message about a run, in order; it is durable when the future that is returned is done."""
        if self._producer is None:
            producer = AIOKafkaProducer(
                **self._connection,
                acks="all",
                enable_idempotence=True,
                max_request_size=MESSAGE_BYTES_MAX,
                max_batch_size=BATCH_BYTES_MAX,
            )
            try:
                await asyncio.wait_for(producer.start(), CONNECT_SECONDS)
            except (KafkaError, TimeoutError):
                await producer.stop()
                raise
            self._producer = producer
        home = self.home(run, topic)
        future: asyncio.Future[Any] = await self._producer.send(
            home.topic, value, key=run.encode(), partition=home.partition, headers=headers
        )
        return future

    @contextlib.asynccontextmanager
    async def consumer(self, tps: Sequence[TopicPartition]) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer of committed records, at the beginning of these partitions."""
        with broker_errors(self.address):
            async with reading(
                self._connection,
                start_seconds=CONNECT_SECONDS,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                fetch_max_wait_ms=FETCH_WAIT_MS,
                max_partition_fetch_bytes=FETCH_BYTES_MAX,
            ) as consumer:
                consumer.assign(list(tps))
                await consumer.seek_to_beginning(*tps)
                yield consumer

    async def poll(self, consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition]) -> Fetched:
        """The next records; none after a while in which the broker had none.

        aiokafka tries a broker that is gone for ever and in silence, so a quiet one is asked if it is there.
        """
        heard = time.monotonic()
        while True:
            fetched: Fetched = await consumer.getmany(timeout_ms=POLL_MS)
            if fetched:
                return fetched
            if time.monotonic() - heard < QUIET_SECONDS:
                continue
            try:
                await asyncio.wait_for(consumer.end_offsets(list(tps)), CONNECT_SECONDS)
                return {}
            except (KafkaError, TimeoutError):
                if time.monotonic() - heard > OUTAGE_SECONDS:
                    raise

    async def stored(self, tps: Sequence[TopicPartition]) -> AsyncIterator[ConsumerRecord]:
        """All committed records of these partitions, as of now; each partition in its order."""
        async with self.consumer(tps) as consumer:
            ends = await consumer.end_offsets(list(tps))
            behind = {tp for tp in tps if await consumer.position(tp) < ends[tp]}
            heard = time.monotonic()
            while behind:
                fetched = await consumer.getmany(*behind, timeout_ms=FETCH_WAIT_MS)
                if fetched:
                    heard = time.monotonic()
                elif time.monotonic() - heard > OUTAGE_SECONDS:
                    raise Unreachable(f"the broker at {self.address} stopped answering")
                for tp, records in fetched.items():
                    for record in records:
                        if record.offset < ends[tp]:
                            yield record
                # Markers of transactions take offsets but are no records: only the position tells the end.
                behind = {tp for tp in behind if await consumer.position(tp) < ends[tp]}


async def is_behind(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether a partition is not yet read to its end."""
    return any([await consumer.position(tp) < end for tp, end in ends.items()])
