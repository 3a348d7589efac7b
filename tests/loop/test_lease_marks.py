"""Expiry is judged behind a mark of each topic: which marks were read is told apart by topic, however often one stands there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from schemas.commands import LeaseJudgedExpired
from schemas.events import AttemptEnded, BatchClaimed, Event, Probed, Repeat, ToolRequested, Value
from streams.dispatcher import PROBED_TOPICS
from tests.support.dispatch import LANE, World, member, story

UNREAD = "receipt-completions"


async def called_elsewhere(it: World) -> None:
    """A process that is gone called for ``a``, which may be repeated under its key."""
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.key", Repeat.WITH_KEY, b"{}"))
    it.say("receipt-claims", BatchClaimed(LANE, "p.key", "", "gone", 1, (member("a"),)))
    await it.turn()
    await it.revoked()
    await it.returns()


@story(broker_seconds=12.0)
async def test_T1_T10_a_mark_that_stands_twice_in_its_topic_does_not_stand_for_a_topic_that_was_not_read(it: World) -> None:
    """T1: marks were only counted. Two copies of one topic's mark and one of another's made three, and a call whose answer lay
    unread in the third topic was judged expired and paid for again.

    A mark is published again where nothing acknowledged it for ``broker_seconds``, as while its leader is away.
    """
    await called_elsewhere(it)
    enqueue, silent = it.log.enqueue, [True]

    def slow(topic: str, partition: int, events: Sequence[Event]) -> asyncio.Future[None]:
        done = enqueue(topic, partition, events)
        if topic == "receipt-claims" and isinstance(events[0], Probed) and silent:
            silent.clear()
            return asyncio.get_running_loop().create_future()
        return done

    it.log.enqueue = slow  # type: ignore[method-assign]
    await it.passes(3.6)
    it.say(UNREAD, AttemptEnded("a", 1, 0, "gone", Value(b'"paid"')))
    await it.passes(12.5)
    assert [len(it.log.of(topic, Probed)) for topic in PROBED_TOPICS] == [2, 1, 1]
    for _ in range(6):
        await it.turn(without=[UNREAD])
        assert it.owner.inbox.waiting == []
        await it.passes(0.1)
    await it.turn()
    assert it.caller.asked == []


@story()
async def test_T10_the_next_judgement_waits_for_marks_of_its_own(it: World) -> None:
    """A copy of an earlier judgement's mark that is read late says nothing of what was written since."""
    await called_elsewhere(it)
    await it.passes(3.6)
    await it.turn()
    first = it.log.of(UNREAD, Probed)
    assert [type(judged) for judged in it.owner.inbox.waiting] == [LeaseJudgedExpired]
    it.owner.inbox.waiting.clear()
    await it.passes(3.6)
    assert len(it.log.of(UNREAD, Probed)) == 2
    it.say(UNREAD, *first)
    kept = [entry for entry in it.log.published[it.folded :] if entry[0] == UNREAD and entry[2] not in first]
    assert len(kept) == 1
    it.log.published.remove(kept[0])
    await it.turn()
    assert it.owner.inbox.waiting == []
    it.log.published += kept
    await it.turn()
    assert len(it.owner.inbox.waiting) == 1
