"""Plain idempotent publishing for the dispatcher: what it says is input for others, never state of its own.

Events for one partition that are handed over in the same moment travel in one envelope.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas import envelope
from schemas.events import Event
from streams.errors import PaidonceError, StateError, Unreachable
from streams.producers import MESSAGE_BYTES_MAX, STOP_SECONDS, OnPublished, put_away

#: Two flushes are at least this far apart.
GATHER_SECONDS = 0.005
#: A connection on which a broker is silent for this long is given up and made anew; what was sent on it is sent again.
REQUEST_TIMEOUT_MS = 10_000


class EventPublisher:
    """Publishes internal events with acknowledgement of all in-sync replicas."""

    def __init__(
        self,
        connection: Mapping[str, Any],
        topic_prefix: str = "",
        *,
        on_published: OnPublished = lambda _topic, _partition, _offset, _value, _headers: None,
    ) -> None:
        self._connection = connection
        self._on_published = on_published
        self._prefix = topic_prefix
        self._queues: dict[tuple[str, int], list[tuple[Sequence[Event], asyncio.Future[None]]]] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._flushed_at = 0.0
        #: Acknowledgements that are waited for, with the producer that each is to come from.
        self._sends: dict[asyncio.Task[None], AIOKafkaProducer] = {}
        #: Producers that were replaced and finish what they have in hand.
        self._leaving: set[asyncio.Task[None]] = set()
        #: The producer said that it failed: what aiokafka does not try again by itself may have ended it for good.
        self._failed = False

    async def start(self) -> None:
        """Connect. Raises ``Unreachable``."""
        self._producer = await self._connect()

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._connection,
            acks="all",
            enable_idempotence=True,
            max_request_size=MESSAGE_BYTES_MAX,
            linger_ms=0,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        try:
            await producer.start()
        except KafkaError as error:
            await producer.stop()
            raise Unreachable(f"cannot start the dispatcher's producer: {error}") from error
        return producer

    async def renew(self) -> None:
        """Replace a producer that has failed; does nothing for one that has not, or while no broker answers."""
        if not self._failed:
            return
        self._failed = False
        try:
            fresh = await self._connect()
        except Unreachable:
            self._failed = True
            return
        old, self._producer = self._producer, fresh
        leaving = asyncio.create_task(self._put_away(old))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def publish(self, topic: str, partition: int, events: Sequence[Event]) -> None:
        """Publish events in order and wait until they are acknowledged. Raises ``Unreachable``."""
        await self.enqueue(topic, partition, events)

    def enqueue(self, topic: str, partition: int, events: Sequence[Event]) -> asyncio.Future[None]:
        """Publish events in order; the future is done when they are acknowledged, or raises ``Unreachable``."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault((topic, partition), []).append((events, done))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return done

    async def _flush(self) -> None:
        # A moment after the last flush, more is likely to come: what gathers costs one message instead of many.
        await asyncio.sleep(max(0.0, self._flushed_at + GATHER_SECONDS - time.monotonic()))
        self._flushed_at = time.monotonic()
        queues, self._queues = self._queues, {}
        self._flushing = None
        for (topic, partition), waiting in queues.items():
            try:
                values = list(envelope.pack(event for events, _ in waiting for event in events))
            except envelope.EventTooLarge:
                await self._one_by_one(topic, partition, waiting)
            else:
                await self._hand_over(topic, partition, values, [done for _, done in waiting])

    async def _one_by_one(
        self, topic: str, partition: int, waiting: Sequence[tuple[Sequence[Event], asyncio.Future[None]]]
    ) -> None:
        """One event is larger than a message may be: it fails alone, and not what was gathered with it (S2)."""
        for events, done in waiting:
            try:
                values = list(envelope.pack(events))
            except envelope.EventTooLarge as error:
                _settle([done], StateError(f"cannot publish to {topic}/{partition}: {error}"))
            else:
                await self._hand_over(topic, partition, values, [done])

    async def _hand_over(
        self, topic: str, partition: int, values: Sequence[bytes], waiting: Sequence[asyncio.Future[None]]
    ) -> None:
        """Handing over keeps the order; acknowledgements are awaited apart, so that one partition does not hold up another."""
        producer, futures, headers = self._producer, [], envelope.headers_of(topic)
        try:
            for value in values:
                futures.append((value, await producer.send(self._prefix + topic, value, partition=partition, headers=headers)))
        except KafkaError as error:
            self._failed = self._failed or producer is self._producer
            _settle(waiting, Unreachable(f"cannot publish to {topic}/{partition}: {error!r}"))
            return
        task = asyncio.create_task(self._acknowledged(topic, partition, producer, futures, waiting))
        self._sends[task] = producer
        task.add_done_callback(self._sends.pop)

    async def _acknowledged(
        self,
        topic: str,
        partition: int,
        producer: AIOKafkaProducer,
        futures: Sequence[tuple[bytes, Any]],
        waiting: Sequence[asyncio.Future[None]],
    ) -> None:
        try:
            for value, future in futures:
                offset = (await future).offset
                self._on_published(self._prefix + topic, partition, offset, value, envelope.headers_of(topic))
        except KafkaError as error:
            self._failed = self._failed or producer is self._producer
            _settle(waiting, Unreachable(f"cannot publish to {topic}/{partition}: {error!r}"))
        except asyncio.CancelledError:
            _settle(waiting, Unreachable(f"cannot publish to {topic}/{partition}: the producer was given up"))
            raise
        else:
            _settle(waiting, None)

    async def stop(self) -> None:
        """Wait a moment for what was handed over, then disconnect."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing], timeout=STOP_SECONDS)
        await self._put_away(self._producer)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _put_away(self, producer: AIOKafkaProducer) -> None:
        await put_away(producer)
        for task in [task for task, sent_by in self._sends.items() if sent_by is producer]:
            task.cancel()


def _settle(waiting: Sequence[asyncio.Future[None]], error: PaidonceError | None) -> None:
    for future in waiting:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
