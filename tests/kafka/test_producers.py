"""The pair of producers of a partition's owner, on a real broker: of two owners that start at the same time only one can commit."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.errors import Fenced, Unreachable
from streams.kafka.producers import ProducerPair

AT_MS = 1_700_000_000_000


class HeldPair(ProducerPair):
    """A pair one of whose sides is slow to start: it waits for the test."""

    def __init__(self, topic: str, connection: dict[str, Any], held: str) -> None:
        super().__init__(topic, connection, [topic])
        self.held = held
        self.let_go = asyncio.Event()
        self.waits = asyncio.Event()
        #: Sides whose start has begun, in order.
        self.begun: list[str] = []

    def _producer(self, side: str) -> AIOKafkaProducer:
        producer = super()._producer(side)
        start = producer.start

        async def noted() -> None:
            self.begun.append(side)
            if side == self.held:
                self.waits.set()
                await self.let_go.wait()
            await start()

        producer.start = noted
        return producer


@asynccontextmanager
async def topic_on(broker: str, **configuration: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    connection: dict[str, Any] = {"bootstrap_servers": broker}
    topic = f"pair{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(**connection)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs=configuration)])
        yield topic, connection
    finally:
        await admin.close()


async def committed(topic: str, connection: dict[str, Any]) -> Counter[bytes]:
    """Values of all committed records."""
    tps = [TopicPartition(topic, partition) for partition in (0, 1)]
    found: Counter[bytes] = Counter()
    async with AIOKafkaConsumer(**connection, isolation_level="read_committed", enable_auto_commit=False) as consumer:
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for records in (await consumer.getmany(*tps, timeout_ms=500)).values():
                found.update(record.value for record in records)
    return found


async def publish(pair: ProducerPair, topic: str, value: bytes) -> None:
    await pair.publish([(topic, partition, [(b"key", value, [])]) for partition in (0, 1)], AT_MS)


@pytest.mark.parametrize("held", ["a", "b"])
async def test_T2_of_two_owners_that_start_at_the_same_time_the_later_one_alone_can_commit(broker: str, held: str) -> None:
    """Both sides were once initialised side by side: then the older owner could have "b", the newer "a", and each took turn 57."""
    async with topic_on(broker) as (topic, connection), AsyncExitStack() as ends:
        older, newer = ProducerPair(topic, connection, [topic]), HeldPair(topic, connection, held)
        ends.push_async_callback(older.stop)
        ends.push_async_callback(newer.stop)
        starting = asyncio.create_task(newer.start())
        await newer.waits.wait()
        await older.start()
        assert newer.begun == (["a"] if held == "a" else ["a", "b"])
        if held == "a":
            await publish(older, topic, b"56")
        newer.let_go.set()
        await starting
        turns = [asyncio.create_task(publish(pair, topic, who)) for pair, who in ((older, b"57 older"), (newer, b"57 newer"))]
        done = await asyncio.gather(*turns, return_exceptions=True)
        won = [who for who, outcome in zip(("older", "newer"), done, strict=True) if outcome is None]
        assert all(outcome is None or isinstance(outcome, Fenced) for outcome in done)
        assert len(won) <= 1
        found = await committed(topic, connection)
        assert found == dict.fromkeys(([b"56"] if held == "a" else []) + [b"57 " + who.encode() for who in won], 2)


async def test_S2_a_turn_of_which_a_batch_is_refused_is_not_committed_in_part(broker: str) -> None:
    """aiokafka's commit waits for all batches and asks of none how it ended."""
    async with topic_on(broker, **{"max.message.bytes": "2000"}) as (topic, connection), AsyncExitStack() as ends:
        pair = ProducerPair(topic, connection, [topic])
        ends.push_async_callback(pair.stop)
        await pair.start()
        whole, large = [(b"key", b"small", [])], [(b"key", b"x" * 3_000, [])]
        with pytest.raises(Unreachable, match="MessageSizeTooLarge"):
            await pair.publish([(topic, 0, whole), (topic, 1, large)], AT_MS)
        again = ProducerPair(topic, connection, [topic])
        ends.push_async_callback(again.stop)
        await again.start()
        assert await committed(topic, connection) == {}
