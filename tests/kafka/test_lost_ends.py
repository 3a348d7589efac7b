"""What a broker may do to a changelog (KAFKA-20734): a transaction is over, and stays open in one of its partitions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas.states import TURN_KEY, TurnRecord
from streams.broker import faults
from streams.errors import Unreachable
from streams.kafka import recovery
from streams.kafka.lostends import Lost
from streams.kafka.producers import Group, ProducerPair
from streams.kafka.recovery import recover
from streams.table import OFFSET_KEY, Store, StoreMemory

AT_MS = 1_700_000_000_000


class LosingPair(ProducerPair):
    """A pair whose coordinator is not told of the changelog while ``loses``, so that no end is written there."""

    loses = False

    def _producer(self, side: str) -> AIOKafkaProducer:
        producer = super()._producer(side)
        begin = producer.begin_transaction

        async def began() -> None:
            await begin()
            if self.loses:
                # There is no public way to lose a marker.
                producer._txn_manager._txn_partitions.add(TopicPartition(self.transactional_id, 0))

        producer.begin_transaction = began
        return producer


class Changelog:
    """A changelog of one partition, the journal beside it, and pairs that write both."""

    def __init__(self, broker: str, folder: Path, ends: AsyncExitStack) -> None:
        self.connection: dict[str, Any] = {"bootstrap_servers": broker}
        self.name = f"changelog{uuid.uuid4().hex[:8]}"
        self.journal = f"turns{uuid.uuid4().hex[:8]}"
        self.tp = TopicPartition(self.name, 0)
        self._folder = folder
        self._ends = ends
        self._memory = StoreMemory()

    async def pair(self) -> LosingPair:
        """The pair of a new owner, which fences the one before."""
        pair = LosingPair(self.name, self.connection, [self.name, self.journal])
        self._ends.push_async_callback(pair.stop)
        await pair.start()
        return pair

    def turn(self, number: int) -> list[Group]:
        """What a turn publishes."""
        record = msgspec.msgpack.encode(TurnRecord(number, 1, at_ms=AT_MS + number))
        return [
            (self.journal, 0, [(b"receipts/0", record, [])]),
            (self.name, 0, [(b"counter", b"%d" % number, []), (TURN_KEY, record, [])]),
        ]

    async def take(self, pair: LosingPair, number: int, *, loses: bool) -> None:
        """Take a turn and commit it."""
        pair.loses = loses
        await pair.publish(self.turn(number), AT_MS + number)

    async def break_off(self, pair: LosingPair, number: int, *, loses: bool) -> None:
        """Publish a turn and go away before the commit."""
        pair.loses = loses
        producer = pair._producers[pair._next]
        await producer.begin_transaction()
        for topic, partition, records in self.turn(number):
            for key, value, _ in records:
                await producer.send_and_wait(topic, value, key=key, partition=partition, timestamp_ms=AT_MS + number)

    async def recovered(self, pair: ProducerPair, name: str) -> bytes | None:
        """What a new owner's table says after its recovery."""
        store = Store(self._folder / name, self._memory)
        self._ends.callback(store.close)
        await recover(
            {self.tp: store},
            self.connection,
            still_owned=lambda: True,
            lost=Lost(self.connection, "receipts", self.journal, {self.tp: pair}),
        )
        assert {key for key, _ in store.scan(b"")} <= {b"counter", TURN_KEY, OFFSET_KEY}
        return store.get(b"counter")


@pytest.fixture
async def changelog(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Changelog]:
    """On a broker that takes records for a partition that is not part of their transaction, as older ones did."""
    monkeypatch.setattr(recovery, "SHOWN_SECONDS", 0.2)
    async with AsyncExitStack() as ends:
        fresh = Changelog(broker, tmp_path, ends)
        admin = AIOKafkaAdminClient(**fresh.connection)
        await admin.start()
        ends.push_async_callback(admin.close)
        await admin.create_topics([NewTopic(name, 1, 1) for name in (fresh.name, fresh.journal)])

        def verify(word: str) -> Callable[[], Any]:
            configs = {"transaction.partition.verification.enable": word}
            return lambda: admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", configs=configs)])

        ends.push_async_callback(verify("true"))
        await verify("false")()
        yield fresh


async def test_S1_a_turn_that_was_taken_is_not_taken_again_though_the_broker_lost_its_end(changelog: Changelog) -> None:
    """S1: the turn that follows by the other producer is hidden behind it."""
    older = await changelog.pair()
    await changelog.take(older, 1, loses=False)
    await changelog.take(older, 2, loses=True)
    await changelog.take(older, 3, loses=False)
    newer = await changelog.pair()
    assert await changelog.recovered(newer, "newer") == b"3"
    await changelog.take(newer, 4, loses=False)
    await changelog.take(newer, 5, loses=False)
    assert await changelog.recovered(await changelog.pair(), "newest") == b"5"


async def test_S1_a_turn_that_was_not_taken_is_not_there_though_the_broker_lost_its_end(changelog: Changelog) -> None:
    older = await changelog.pair()
    await changelog.take(older, 1, loses=False)
    await changelog.break_off(older, 2, loses=True)
    newer = await changelog.pair()
    assert await changelog.recovered(newer, "newer") == b"1"
    await changelog.take(newer, 2, loses=False)
    assert await changelog.recovered(await changelog.pair(), "newest") == b"2"


async def test_S1_a_turn_that_was_taken_counts_where_the_broker_gives_the_changelogs_records_their_times(
    changelog: Changelog,
) -> None:
    """The journal was read from the time of the turn's record in the changelog on. Where the broker gave that (LogAppendTime), the
    record in the journal was older, so it was not found, and a turn that was committed was ended as one that was not.
    """
    admin = AIOKafkaAdminClient(**changelog.connection)
    await admin.start()
    try:
        configs = {"message.timestamp.type": "LogAppendTime"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, changelog.name, configs=configs)])
    finally:
        await admin.close()
    older = await changelog.pair()
    older.loses = True
    await older.publish(changelog.turn(1), time.time_ns() // 1_000_000 - 5_000)
    assert await changelog.recovered(await changelog.pair(), "newer") == b"1"


async def test_S1_another_tables_turn_of_the_same_bytes_is_no_proof(changelog: Changelog) -> None:
    """A turn record does not name its table: first turns that an owner takes in one millisecond are alike."""
    older = await changelog.pair()
    ((_, _, ((_, record, _),)), _) = changelog.turn(1)
    await older.publish([(changelog.journal, 0, [(b"rows/0", record, [])])], AT_MS + 1)
    await changelog.break_off(older, 1, loses=True)
    assert await changelog.recovered(await changelog.pair(), "newer") is None


async def test_S1_of_two_turns_the_last_of_which_was_broken_off_the_first_counts(changelog: Changelog) -> None:
    older = await changelog.pair()
    await changelog.take(older, 1, loses=True)
    await changelog.break_off(older, 2, loses=False)
    assert await changelog.recovered(await changelog.pair(), "newer") == b"1"


async def test_S1_where_both_ends_are_lost_and_differ_nothing_is_guessed(changelog: Changelog) -> None:
    older = await changelog.pair()
    await changelog.take(older, 1, loses=True)
    await changelog.break_off(older, 2, loses=True)
    with pytest.raises(
        Unreachable, match=f"{changelog.name}/0: the broker lost the end of the transaction that began at offset 0 "
    ):
        await changelog.recovered(await changelog.pair(), "newer")


async def test_S1_a_broker_that_may_lose_ends_is_told_by_what_it_can_do(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"bootstrap_servers": broker}
    assert await faults.known_fault(connection) is None
    monkeypatch.setattr(faults, "_FETCH_OF_4_1", 17)  # which this one can answer
    assert await faults.known_fault(connection) == faults.LOSES_ENDS
    with pytest.raises(Unreachable, match="no Kafka broker answers at "):
        await faults.known_fault({"bootstrap_servers": "127.0.0.1:1"})
