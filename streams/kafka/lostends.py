"""Transactions whose end the broker lost: how they ended elsewhere, and ending them once more (S1).

Kafka 4.1 to 4.4 drop the marker that ends a transaction for a partition that has no leader just then (KAFKA-20734), as after a
pause or a restart. The transaction is over for its coordinator, and stays open in that partition: what it wrote is hidden there,
while other partitions show it. Where that is a changelog, a turn that was taken would be taken again, and its calls paid twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from schemas.states import TURN_KEY
from streams.errors import Unreachable
from streams.kafka.consumers import reading
from streams.kafka.producers import ProducerPair

log = logging.getLogger(__name__)

#: Key of the records that end such a transaction: removals of what no table has.
ENDED_KEY: Final = b"\x00ended"
#: What finding out and ending may take.
END_SECONDS: Final = 20.0
#: The turn's record in the journal may be that much older than the one in the changelog, where a topic has the broker's times: both
#: are of one transaction, which takes 20 s at most.
EARLIER_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Lost:
    """Where the turns of a table are journalled, and the started pairs of those who write its changelog now."""

    connection: Mapping[str, Any]
    table: str
    journal: str
    pairs: Mapping[TopicPartition, ProducerPair]

    async def end(self, tp: TopicPartition, written: int) -> None:
        """End what is open in a changelog before ``written`` as it ended elsewhere.

        Its coordinator lets a pair start only when no transaction of its ids is left to be ended: whatever is open after that would
        stay so. Raises ``Unreachable`` where nothing tells how it ended.
        """
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._end(tp, written)
        except TimeoutError as error:
            raise Unreachable(
                f"{tp.topic}/{tp.partition}: the broker lost the end of a transaction (KAFKA-20734), and within {END_SECONDS:g} s "
                f"{self.journal}/{tp.partition} did not tell how it ended"
            ) from error

    async def _end(self, tp: TopicPartition, written: int) -> None:
        pair = self.pairs[tp]
        verdicts = {since: await self._was_committed(tp, since, written) for since in await _open_since(pair, tp)}
        if len(set(verdicts.values())) > 1:
            # Which of the two producers is whose is nowhere told.
            raise Unreachable(f"{_lost(tp, min(verdicts))}, and of another one; one was committed, the other was not")
        for since, committed in verdicts.items():
            log.warning("%s; it was %s, and is now ended", _lost(tp, since), "committed" if committed else "not committed")
            await pair.end(tp.topic, tp.partition, ENDED_KEY, commit=committed)

    async def _was_committed(self, tp: TopicPartition, since: int, written: int) -> bool:
        turn = None
        async for record in self._records(tp, since, written, "read_uncommitted"):
            if record.key == TURN_KEY:
                turn = record
                break
        # Without the turn's record, which comes last, not all of it was written, so it was not committed.
        return turn is not None and await self._is_journalled(tp, turn)

    async def _is_journalled(self, tp: TopicPartition, turn: ConsumerRecord) -> bool:
        where, key = TopicPartition(self.journal, tp.partition), f"{self.table}/{tp.partition}".encode()
        async with self._consumer(where, "read_uncommitted") as consumer:
            end = (await consumer.end_offsets([where]))[where]
            began = (await consumer.offsets_for_times({where: max(0, turn.timestamp - EARLIER_MS)}))[where]
        if began is None:
            return False
        # Up to an end that is shown only when no transaction before it is open any more.
        async for record in self._records(where, began.offset, end, "read_committed"):
            # First turns of several tables may be the same bytes.
            if record.key == key and record.value == turn.value:
                return True
        return False

    async def _records(self, tp: TopicPartition, begin: int, end: int, isolation: str) -> AsyncIterator[ConsumerRecord]:
        async with self._consumer(tp, isolation) as consumer:
            consumer.seek(tp, begin)
            while await consumer.position(tp) < end:
                for record in (await consumer.getmany(tp, timeout_ms=200)).get(tp, ()):
                    if record.offset < end:
                        yield record

    @contextlib.asynccontextmanager
    async def _consumer(self, tp: TopicPartition, isolation: str) -> AsyncIterator[AIOKafkaConsumer]:
        async with reading(self.connection, isolation_level=isolation) as consumer:
            consumer.assign([tp])
            yield consumer


def _lost(tp: TopicPartition, since: int) -> str:
    return f"{tp.topic}/{tp.partition}: the broker lost the end of the transaction that began at offset {since:,} (KAFKA-20734)"


class _DescribeProducersResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "active_producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("current_txn_start_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DescribeProducersRequestV0(RequestStruct):  # type: ignore[misc]
    API_KEY = 61
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _DescribeProducersResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("name", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)),
        ),
        ("tags", TaggedFields),
    )


class _DescribeProducers(Request[_DescribeProducersRequestV0]):  # type: ignore[misc]
    """Asks the leader of a partition for its producers (KIP-664); aiokafka has no such question."""

    API_KEY = 61

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp

    def build(self, request_struct_class: type[_DescribeProducersRequestV0]) -> _DescribeProducersRequestV0:
        return request_struct_class([(self._tp.topic, [self._tp.partition], {})], {})


async def _open_since(pair: ProducerPair, tp: TopicPartition) -> list[int]:
    """Where the transactions begin that are open in a partition."""
    client = pair.client
    response = await client.send(client.cluster.leader_for_partition(tp), _DescribeProducers(tp))
    ((_, ((_, code, message, producers, _),), _),) = response.topics
    if code:
        raise Unreachable(f"{tp.topic}/{tp.partition}: the broker does not tell its producers: error {code}, {message}")
    return sorted(since for *_, since, _ in producers if since >= 0)
