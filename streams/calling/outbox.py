"""Plain idempotent publishing for the dispatcher: what it says is input for others, never state of its own.

Events for one partition that are handed over in the same moment travel in one envelope.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas import envelope
from schemas.events import Event
from streams.errors import PaidonceError, StateError, Unreachable
from streams.kafka.producers import MESSAGE_BYTES_MAX, STOP_SECONDS, OnPublished, put_away

log = logging.getLogger(__name__)

#: Topic without prefix, and partition.
Place: TypeAlias = tuple[str, int]
#: Events in order, and who waits until they are acknowledged.
Waiting: TypeAlias = tuple[Sequence[Event], asyncio.Future[None]]

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
        self._queues: dict[Place, list[Waiting]] = {}
        self._flushing: asyncio.Task[None] | None = None
        #: What is being handed over, one after the other for each partition.
        self._handing: dict[Place, asyncio.Task[None]] = {}
        #: The producer that each of them is waiting for.
        self._through: dict[Place, AIOKafkaProducer] = {}
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
        self._flushing = None
        for place in [place for place in self._queues if place not in self._handing]:
            self._next(place)

    def _next(self, place: Place) -> None:
        """Hand over what has gathered for a partition."""
        waiting = self._queues.pop(place)
        task = asyncio.create_task(self._hand_over(place, waiting))
        self._handing[place] = task
        task.add_done_callback(partial(self._handed, place, waiting))

    def _handed(self, place: Place, waiting: Sequence[Waiting], task: asyncio.Task[None]) -> None:
        """A partition has room for what gathered meanwhile."""
        del self._handing[place]
        self._through.pop(place, None)
        # Cut off with its producer: what comes behind it would overtake it when it is published again.
        _hear(place, [*waiting, *(self._queues.pop(place, ()) if task.cancelled() else ())], task)
        if place in self._queues:
            self._next(place)

    async def _hand_over(self, place: Place, waiting: Sequence[Waiting]) -> None:
        """Handing over keeps the order of a partition: aiokafka lets one wait for a full batch, and others pass it meanwhile.

        Acknowledgements are awaited apart, and each partition apart from the others, so that one does not hold up another.
        """
        parcels = list(_parcels(place, waiting))
        for position, (values, gathered) in enumerate(parcels):
            error = await self._send(place, values, gathered)
            if error is not None:
                # What comes behind it would overtake it when it is published again.
                rest = [one for _, parcel in parcels[position:] for one in parcel]
                _settle([*rest, *self._queues.pop(place, ())], error)
                return

    async def _send(self, place: Place, values: Sequence[bytes], waiting: Sequence[Waiting]) -> Unreachable | None:
        (topic, partition), producer, futures = place, self._producer, []
        headers = envelope.headers_of(topic)
        self._through[place] = producer
        try:
            for value in values:
                futures.append((value, await producer.send(self._prefix + topic, value, partition=partition, headers=headers)))
        except KafkaError as error:
            self._failed = self._failed or producer is self._producer
            return Unreachable(f"cannot publish to {topic}/{partition}: {error!r}")
        task = asyncio.create_task(self._acknowledged(topic, partition, producer, futures, waiting))
        self._sends[task] = producer
        task.add_done_callback(self._sends.pop)
        task.add_done_callback(partial(_hear, place, waiting))
        return None

    async def _acknowledged(
        self,
        topic: str,
        partition: int,
        producer: AIOKafkaProducer,
        futures: Sequence[tuple[bytes, Any]],
        waiting: Sequence[Waiting],
    ) -> None:
        try:
            for value, future in futures:
                offset = (await future).offset
                self._on_published(self._prefix + topic, partition, offset, value, envelope.headers_of(topic))
        except KafkaError as error:
            self._failed = self._failed or producer is self._producer
            _settle(waiting, Unreachable(f"cannot publish to {topic}/{partition}: {error!r}"))
        else:
            _settle(waiting, None)

    async def stop(self) -> None:
        """Wait a moment for what was handed over, then disconnect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while handing := self._under_way():
                    await asyncio.wait(handing)
        await self._put_away(self._producer)
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _under_way(self) -> list[asyncio.Task[None]]:
        """What gathers and what is being handed over."""
        return [*self._handing.values(), *([] if self._flushing is None else [self._flushing])]

    async def _put_away(self, producer: AIOKafkaProducer) -> None:
        await put_away(producer)
        for task in [task for task, sent_by in self._sends.items() if sent_by is producer]:
            task.cancel()
        for place in [place for place, waited_for in self._through.items() if waited_for is producer]:
            self._handing[place].cancel()


def _parcels(place: Place, waiting: Sequence[Waiting]) -> Iterator[tuple[Sequence[bytes], Sequence[Waiting]]]:
    """The messages of what has gathered. An event larger than a message may be fails alone, and not what came with it (S2)."""
    try:
        yield list(envelope.pack(event for events, _ in waiting for event in events)), waiting
    except envelope.EventTooLarge:
        for one in waiting:
            try:
                yield list(envelope.pack(one[0])), [one]
            except envelope.EventTooLarge as error:
                _settle([one], StateError(f"cannot publish to {place[0]}/{place[1]}: {error}"))


def _hear(place: Place, waiting: Sequence[Waiting], task: asyncio.Task[None]) -> None:
    """Nobody awaits these tasks: what ends one is told to those who wait for what it had in hand (B11)."""
    topic, partition = place
    if task.cancelled():
        _settle(waiting, Unreachable(f"cannot publish to {topic}/{partition}: the producer was given up"))
    elif (error := task.exception()) is not None:
        log.error("publishing to %s/%d ended in a defect", topic, partition, exc_info=error)
        _settle(waiting, PaidonceError(f"publishing to {topic}/{partition} ended in a defect: {error!r}"))


def _settle(waiting: Sequence[Waiting], error: PaidonceError | None) -> None:
    for _, future in waiting:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
