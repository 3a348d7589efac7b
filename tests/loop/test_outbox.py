"""The dispatcher's publisher over a producer that does what the test says: what fails alone, and what a new producer is for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError, KafkaTimeoutError

from schemas import envelope
from schemas.events import AttemptEnded, Value
from streams.calling.outbox import EventPublisher
from streams.errors import StateError, Unreachable
from tests.support.wait import eventually

TOPIC = "receipt-completions"


class Producer:
    """Acknowledges at once, fails, or keeps silent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.trouble: KafkaError | None = None
        self.silent = False
        self.stopped = False
        self.client = SimpleNamespace(close=self.stop)

    async def send(self, _topic: str, value: bytes, **_options: Any) -> asyncio.Future[Any]:
        """Hand a message over."""
        self.sent.append(value)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.trouble is not None:
            future.set_exception(self.trouble)
        elif not self.silent:
            future.set_result(SimpleNamespace(offset=len(self.sent)))
        return future

    async def stop(self) -> None:
        """Disconnect."""
        self.stopped = True


class Publisher(EventPublisher):
    """Over producers of the test, in their order."""

    def __init__(self, *producers: Producer) -> None:
        super().__init__({})
        self.left = list(producers)

    async def _connect(self) -> Any:
        if not self.left:
            raise Unreachable("no broker")
        return self.left.pop(0)


def answer(receipt: str, output: bytes = b'"paid"') -> AttemptEnded:
    return AttemptEnded(receipt, 1, 0, "lease", Value(output))


def receipts(sent: Sequence[bytes]) -> list[list[str]]:
    """Receipts in each message."""
    return [[event.receipt for event in envelope.unpack(TOPIC, value, envelope.headers_of(TOPIC))] for value in sent]  # type: ignore[attr-defined]


async def test_S2_a_bulk_of_completions_has_at_most_500_members_and_8_mib_and_one_that_is_larger_fails_alone_naming_sizes() -> None:
    producer = Producer()
    publisher = Publisher(producer)
    await publisher.start()
    large = answer("large", b'"' + b"x" * (envelope.EVENT_BYTES_MAX + 1) + b'"')
    bulk = [publisher.enqueue(TOPIC, 0, [answer(f"r{number}", b'"' + b"x" * 5_000 + b'"')]) for number in range(1_200)]
    alone = publisher.enqueue(TOPIC, 0, [large])
    behind = publisher.enqueue(TOPIC, 0, [answer("behind")])
    await asyncio.gather(*bulk, behind)
    with pytest.raises(StateError, match=r"one AttemptEnded has 8,\d{3},\d{3} bytes; a message carries at most 8,388,608"):
        await alone
    sent = receipts(producer.sent)
    assert [name for names in sent for name in names] == [*(f"r{number}" for number in range(1_200)), "behind"]
    assert max(map(len, sent)) <= 500
    assert max(map(len, producer.sent)) <= 8 << 20
    await publisher.stop()


async def test_S2_what_is_gathered_goes_in_messages_of_at_most_500() -> None:
    producer = Producer()
    publisher = Publisher(producer)
    await publisher.start()
    await asyncio.gather(*(publisher.enqueue(TOPIC, 0, [answer(f"r{number}")]) for number in range(1_200)))
    assert [len(names) for names in receipts(producer.sent)] == [500, 500, 200]
    await publisher.stop()


async def test_S3_a_producer_that_failed_is_replaced_once_a_broker_answers_and_the_old_one_is_put_away() -> None:
    first, second = Producer(), Producer()
    publisher = Publisher(first)
    await publisher.start()
    first.trouble = KafkaTimeoutError()
    with pytest.raises(Unreachable, match=f"{TOPIC}/0"):
        await publisher.publish(TOPIC, 0, [answer("a")])
    await publisher.renew()
    assert not first.stopped
    publisher.left = [second]
    await publisher.renew()
    await publisher.publish(TOPIC, 0, [answer("a")])
    assert receipts(second.sent) == [["a"]]
    await publisher.stop()
    assert (first.stopped, second.stopped) == (True, True)


async def test_S3_a_producer_that_did_not_fail_is_kept() -> None:
    first, second = Producer(), Producer()
    publisher = Publisher(first, second)
    await publisher.start()
    await publisher.renew()
    await publisher.publish(TOPIC, 0, [answer("a")])
    assert receipts(first.sent) == [["a"]]
    await publisher.stop()


async def test_S4_what_a_producer_still_has_in_hand_when_it_is_given_up_is_told_as_in_doubt() -> None:
    producer = Producer()
    publisher = Publisher(producer)
    await publisher.start()
    producer.silent = True
    waiting = publisher.enqueue(TOPIC, 0, [answer("a")])
    await eventually("the producer has it in hand", lambda: producer.sent)
    await publisher.stop()
    with pytest.raises(Unreachable, match="given up"):
        await waiting
