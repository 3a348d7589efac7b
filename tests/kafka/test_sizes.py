"""What our limits let through is taken by a real broker with the topics' settings, and what they keep back is not (S2)."""

from __future__ import annotations

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from schemas.commands import RowsAppended
from schemas.states import Segment, TurnRecord
from streams.broker.topics import LARGE
from streams.engine import rowsize
from streams.errors import Unreachable
from streams.kafka.inbox import Delivery
from streams.kafka.producers import MESSAGE_BYTES_MAX, Message, ProducerPair
from streams.parking import dead_letter
from streams.turn import JUDGED_BYTES_MAX
from tests.kafka.test_producers import AT_MS, topic_on

#: What a thousand cells and a long fault take beside the values of a row, as `tests/pure/test_sizes.py` finds.
AROUND_BYTES = 480 << 10


def record_of(judged_bytes: int) -> bytes:
    """A turn record whose judgements have so many bytes."""
    rest = judged_bytes - len(msgspec.msgpack.encode(RowsAppended("run", 0, (b"x" * (1 << 20),), "d" * 32))) + (1 << 20)
    judged = msgspec.msgpack.encode(RowsAppended("run", 0, (b"x" * rest,), "d" * 32))
    assert len(judged) == judged_bytes
    topics = ("operations", "row-progress", "run-requests")
    segments = tuple(Segment(topic, 1 << 40, 1 << 41) for topic in topics * 20)
    return msgspec.msgpack.encode(
        TurnRecord(1, 1, "worker-0123456789ab", AT_MS, dict.fromkeys(topics, 1 << 41), segments, (judged,))
    )


async def test_S2_case_H3_the_largest_of_what_a_turn_writes_is_taken_by_the_broker(broker: str) -> None:
    """S2, case_H3: a topic refused the letter of a message that it had taken, which is larger by its headers."""
    headers = [
        ("source", b"run-requests/0@12"),
        ("error", b"run-requests: invalid JSON at character 0"),
        ("at_ms", b"1700000000000"),
    ]
    async with topic_on(broker, **LARGE) as (topic, connection):
        junk = b"x" * (MESSAGE_BYTES_MAX - 120)
        anybody = AIOKafkaProducer(**connection, max_request_size=2 * MESSAGE_BYTES_MAX, max_batch_size=2 * MESSAGE_BYTES_MAX)
        await anybody.start()
        try:
            await anybody.send_and_wait(topic, junk, key=b"run", partition=1)
        finally:
            await anybody.stop()

        async def published(*messages: Message) -> int:
            pair = ProducerPair(topic, connection, [topic])
            await pair.start()
            try:
                placed = await pair.publish([(topic, 0, messages)], AT_MS)
            finally:
                await pair.stop()
            return sum(map(len, placed[topic, 0]))

        with pytest.raises(Unreachable, match="MessageSizeTooLarge"):
            await published((b"run-requests", junk, headers))
        letter = dead_letter(Delivery("run-requests", 12, b"run", junk, [("ce_type", b"t" * 40)]), 0, "no JSON", AT_MS)
        key = b"h" + b"d" * 63 + b"/" + b"k" * 40
        row = (key, b"x" * (rowsize.ROW_BYTES_MAX + AROUND_BYTES), [("ce_id", b"i" * 170), ("ce_source", b"/paidonce/rows/0")])
        assert await published(letter, (b"runs/0", record_of(JUDGED_BYTES_MAX), []), row) == 3
