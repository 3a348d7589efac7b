"""Transactional publishing: the pair of producers that a partition's owner writes with.

Under the turn. Starting a pair fences every earlier owner for good; a pair knows nothing of what it carries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced

from streams.errors import Fenced, Unreachable

#: The broker aborts a transaction after this long (a paused worker must not hold back readers for longer) ...
TRANSACTION_TIMEOUT_MS = 10_000
#: ... and here one that has not ended by then is given up.
TRANSACTION_SECONDS_MAX = 20
#: What a producer gets to end in; with its broker away it never would.
STOP_SECONDS = 2.0
MESSAGE_BYTES_MAX = 9 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024


Headers: TypeAlias = list[tuple[str, bytes]]
NO_HEADERS: Final[Headers] = []
#: One Kafka record to publish: key, value and headers, of which aiokafka wants a list. A plain tuple, for there are many.
Message: TypeAlias = tuple[bytes | None, bytes | None, Headers]
#: Messages for one partition of a topic.
Group: TypeAlias = tuple[str, int, Iterable[Message]]
#: Told of a message to another agent once it is durable: topic with prefix, partition, offset, value and headers.
OnPublished: TypeAlias = Callable[[str, int, int, bytes | None, Headers], None]
#: Offsets of the messages of a transaction, by topic and partition and in their order; each range is unbroken.
Placed: TypeAlias = dict[tuple[str, int], list[range]]


class ProducerPair:
    """Two transactional producers of one partition that take turns.

    aiokafka waits 20 ms between two transactions of one producer that follow closely (``BACKOFF_OVERRIDE``); with two that
    alternate, the markers of one are written while the other works.
    """

    def __init__(self, transactional_id: str, connection: Mapping[str, Any], topics: Sequence[str]) -> None:
        self.transactional_id = transactional_id
        self._connection = connection
        self._topics = topics
        self._producers: list[AIOKafkaProducer] = []
        self._next = 0

    async def start(self) -> None:
        """Initialise both producers, which fences whoever wrote under this id before. Raises ``Unreachable``.

        One after the other, in the order in which turns use them. Of two owners that start at the same time the one that is first
        with "a" has lost it by its first turn if it is last with "b"; else each would have one, and both would commit a turn on it.
        """
        self._producers = [self._producer(side) for side in ("a", "b")]
        try:
            for producer in self._producers:
                await producer.start()
            await asyncio.gather(*(producer.client.set_topics(self._topics) for producer in self._producers))
        except KafkaError as error:
            await self.stop()
            raise Unreachable(f"cannot start the producers of {self.transactional_id}: {error}") from error

    def _producer(self, side: str) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **self._connection,
            transactional_id=f"{self.transactional_id}/{side}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_request_size=MESSAGE_BYTES_MAX,
            max_batch_size=BATCH_BYTES_MAX,
            linger_ms=0,
        )

    async def publish(self, messages: Iterable[Group], at_ms: int) -> Placed:
        """Publish all messages in one transaction; returns where they lie.

        Raises ``Fenced`` when a newer owner started, ``Unreachable`` on any other trouble (the outcome is then unknown until
        the partition is recovered).
        """
        try:
            async with asyncio.timeout(TRANSACTION_SECONDS_MAX):
                return await self._publish(messages, at_ms)
        except TimeoutError as error:
            # The broker has given it up by then; aiokafka's sender may have died over that without a word.
            raise Unreachable(f"{self.transactional_id}: a transaction did not end in {TRANSACTION_SECONDS_MAX} s") from error

    async def _publish(self, messages: Iterable[Group], at_ms: int) -> Placed:
        producer = self._producers[self._next]
        self._next = 1 - self._next
        try:
            await producer.begin_transaction()
            pending: list[tuple[tuple[str, int], int, asyncio.Future[Any]]] = []
            for topic, partition, records in messages:
                for count, future in await _send_batches(producer, topic, partition, records, at_ms):
                    pending.append(((topic, partition), count, future))
            # aiokafka commits what was written even where a batch was refused; a turn is whole, or it is none.
            await asyncio.gather(*(future for _, _, future in pending))
            await producer.commit_transaction()
            placed: Placed = {}
            for where, count, future in pending:
                first = (await future).offset
                placed.setdefault(where, []).append(range(first, first + count))
            return placed
        except (ProducerFenced, OutOfOrderSequenceNumber) as error:
            raise Fenced(f"{self.transactional_id}: a newer owner started") from error
        except KafkaError as error:
            raise Unreachable(f"{self.transactional_id}: a transaction failed: {error!r}") from error

    @property
    def client(self) -> AIOKafkaClient:
        """A client of the brokers that knows the topics, once started."""
        return self._producers[0].client

    async def end(self, topic: str, partition: int, key: bytes, *, commit: bool) -> None:
        """End what earlier owners' transactions left open in a partition, by one of each producer that removes ``key``.

        What a transaction writes belongs to one that is still open under its id there, and has the same end. Raises
        ``Unreachable``.
        """
        try:
            for producer in self._producers:
                await producer.begin_transaction()
                await producer.send_and_wait(topic, None, key=key, partition=partition)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        except KafkaError as error:
            raise Unreachable(f"{self.transactional_id}: an open transaction could not be ended: {error!r}") from error

    async def stop(self) -> None:
        """Stop both producers; what was not committed is aborted by the broker."""
        producers, self._producers = self._producers, []
        await asyncio.gather(*(put_away(producer) for producer in producers))


async def put_away(producer: AIOKafkaProducer) -> None:
    """Stop a producer, which waits for what it has in hand, for a limited time."""
    stopping = asyncio.create_task(producer.stop())
    await asyncio.wait([stopping], timeout=STOP_SECONDS)
    if not stopping.done():
        stopping.cancel()
        await producer.client.close()
        await asyncio.wait([stopping], timeout=STOP_SECONDS)
    if stopping.done() and not stopping.cancelled():
        error = stopping.exception()
        if error is not None and not isinstance(error, KafkaError):
            raise error


async def _send_batches(
    producer: AIOKafkaProducer, topic: str, partition: int, records: Iterable[Message], at_ms: int
) -> list[tuple[int, asyncio.Future[Any]]]:
    """Hand records over in as few record batches as their sizes allow: (count, future of the batch) each."""
    sent: list[tuple[int, asyncio.Future[Any]]] = []
    builder, count = producer.create_batch(), 0
    append = builder.append
    for key, value, headers in records:
        if append(timestamp=at_ms, key=key, value=value, headers=headers) is None:
            if count:
                builder.close()
                sent.append((count, await producer.send_batch(builder, topic, partition=partition)))
            builder, count = producer.create_batch(), 0
            append = builder.append
            # The first record of a batch is always accepted, whatever its size.
            append(timestamp=at_ms, key=key, value=value, headers=headers)
        count += 1
    if count:
        builder.close()
        sent.append((count, await producer.send_batch(builder, topic, partition=partition)))
    return sent
