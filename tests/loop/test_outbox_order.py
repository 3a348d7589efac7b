"""The order in which the dispatcher's publisher hands over: unbroken in a partition, and each partition on its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError

from schemas import envelope
from schemas.events import AttemptEnded, BatchClaimed, ClaimedMember, Event, LeaseReleased, Value
from streams.calling.outbox import EventPublisher
from streams.errors import PaidonceError, Unreachable
from tests.support.wait import eventually

CLAIMS, ENDS = "receipt-claims", "receipt-completions"
MEMBERS = (ClaimedMember("a", 1, 0, 1),)


class Filling:
    """As aiokafka's producer: a topic with a full batch lets who hands over wait until it is drained, and then takes anybody."""

    def __init__(self, *full: str) -> None:
        self.taken: dict[str, list[str]] = defaultdict(list)
        self.asked: list[str] = []
        self.drained: dict[str, asyncio.Event] = {topic: asyncio.Event() for topic in full}
        self.trouble: dict[str, Exception] = {}
        self.client = SimpleNamespace(close=self.stop)

    async def send(self, topic: str, value: bytes, *, partition: int, headers: Any) -> asyncio.Future[Any]:
        """Hand a message over."""
        self.asked.append(topic)
        # Only who comes while it is full waits; who comes a moment later may be quicker.
        full = self.drained.pop(topic, None)
        if full is not None:
            await full.wait()
        if topic in self.trouble:
            raise self.trouble.pop(topic)
        self.taken[topic] += [type(event).__name__ for event in envelope.unpack(topic, value, headers)]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(SimpleNamespace(offset=len(self.asked)))
        return future

    async def stop(self) -> None:
        """Disconnect."""


class Publisher(EventPublisher):
    """Over a producer of the test."""

    def __init__(self, producer: Filling) -> None:
        super().__init__({})
        self.producer = producer

    async def _connect(self) -> Any:
        return self.producer


async def publisher_over(producer: Filling) -> Publisher:
    publisher = Publisher(producer)
    await publisher.start()
    return publisher


def claim() -> Event:
    return BatchClaimed("org/p", "p.never", "", "L", 1, MEMBERS)


def release() -> Event:
    return LeaseReleased("L", MEMBERS)


def answer() -> Event:
    return AttemptEnded("b", 1, 0, "other", Value(b"1"))


async def test_T12_a_release_never_overtakes_its_claim_while_a_batch_is_full() -> None:
    """T12: the claim waited for a full batch, the next flush ran beside it, and the release stood ahead of its claim in the topic.

    Nobody gives back a claim that is folded after its release: it ran out, and its receipt ended as a false unknown.
    """
    producer = Filling(CLAIMS)
    full = producer.drained[CLAIMS]
    publisher = await publisher_over(producer)
    claimed = publisher.enqueue(CLAIMS, 0, [claim()])
    await eventually("the claim waits for its batch", lambda: producer.asked)
    released = publisher.enqueue(CLAIMS, 0, [release()])
    await publisher.publish(ENDS, 0, [answer()])
    full.set()
    await asyncio.gather(claimed, released)
    assert producer.taken[CLAIMS] == ["BatchClaimed", "LeaseReleased"]
    await publisher.stop()


async def test_T12_a_full_batch_of_one_partition_holds_up_no_other() -> None:
    """All that was gathered in one moment waited behind the first full batch: claims and heartbeats behind large answers."""
    producer = Filling(ENDS)
    full = producer.drained[ENDS]
    publisher = await publisher_over(producer)
    ended = publisher.enqueue(ENDS, 0, [answer()])
    await publisher.publish(CLAIMS, 0, [claim()])
    assert not ended.done()
    full.set()
    await ended
    await publisher.stop()


async def test_T12_what_waits_behind_a_message_that_failed_fails_with_it_so_that_both_are_repeated_in_order() -> None:
    producer = Filling(CLAIMS)
    full, producer.trouble[CLAIMS] = producer.drained[CLAIMS], KafkaTimeoutError()
    publisher = await publisher_over(producer)
    claimed = publisher.enqueue(CLAIMS, 0, [claim()])
    await eventually("the claim waits for its batch", lambda: producer.asked)
    released = publisher.enqueue(CLAIMS, 0, [release()])
    full.set()
    for waiting in (claimed, released):
        with pytest.raises(Unreachable, match="receipt-claims/0"):
            await waiting
    await publisher.publish(CLAIMS, 0, [claim()])
    await publisher.publish(CLAIMS, 0, [release()])
    assert producer.taken[CLAIMS] == ["BatchClaimed", "LeaseReleased"]
    await publisher.stop()


async def test_T12_what_waits_for_a_producer_that_was_replaced_fails_with_it_and_holds_nothing_up() -> None:
    """Else the next heartbeats of that partition would wait for as long as aiokafka does for room, ten seconds."""
    first, second = Filling(CLAIMS), Filling()
    publisher = await publisher_over(first)
    claimed = publisher.enqueue(CLAIMS, 0, [claim()])
    await eventually("the claim waits for its batch", lambda: first.asked)
    released = publisher.enqueue(CLAIMS, 0, [release()])
    first.trouble[ENDS] = KafkaTimeoutError()
    with pytest.raises(Unreachable):
        await publisher.publish(ENDS, 0, [answer()])
    publisher.producer = second
    await publisher.renew()
    for waiting in (claimed, released):
        with pytest.raises(Unreachable, match="receipt-claims/0: the producer was given up"):
            await asyncio.wait_for(waiting, 5)
    await publisher.publish(CLAIMS, 0, [claim()])
    assert second.taken[CLAIMS] == ["BatchClaimed"]
    await publisher.stop()


async def test_B11_a_defect_while_handing_over_is_told_to_who_waits_and_ends_no_later_publication() -> None:
    """B11: what is no trouble with the broker ended the task that flushes, and everybody waited for ever."""
    producer = Filling()
    producer.trouble[CLAIMS] = ValueError("a defect")
    publisher = await publisher_over(producer)
    with pytest.raises(PaidonceError, match="receipt-claims/0 ended in a defect"):
        await asyncio.wait_for(publisher.publish(CLAIMS, 0, [claim()]), 5)
    await asyncio.wait_for(publisher.publish(CLAIMS, 0, [claim()]), 5)
    await publisher.stop()


async def test_S4_what_still_waits_for_a_full_batch_when_the_publisher_stops_is_told_as_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streams.calling.outbox.STOP_SECONDS", 0.05)
    publisher = await publisher_over(producer := Filling(CLAIMS))
    waiting = publisher.enqueue(CLAIMS, 0, [claim()])
    await eventually("the claim waits for its batch", lambda: producer.asked)
    await publisher.stop()
    with pytest.raises(Unreachable, match="given up"):
        await asyncio.wait_for(waiting, 5)
