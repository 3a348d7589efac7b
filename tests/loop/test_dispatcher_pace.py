"""The dispatcher in virtual time: pauses, pace and the ceiling on calls under way."""

from __future__ import annotations

from schemas.events import (
    AttemptEnded,
    Repeat,
    ToolRequested,
    Value,
)
from tests.support.dispatch import LANE, World, foreign_lease, story
from tests.support.scripted_caller import Hangs, busy


@story()
async def test_P3_retry_after_pauses_the_whole_lane_and_not_only_the_call_that_was_told(it: World) -> None:
    it.caller.scripts.append(busy)
    await it.asks("a")
    await it.turn()
    began = it.time.now
    await it.asks("b")
    assert it.claimed == ["a"]
    await it.turns(4.0, every=0.05)
    assert it.caller.asked[:1] == ["a"]
    assert sorted(it.caller.asked[1:]) == ["a", "b"]
    assert all(at >= began + 2.0 for at in it.caller.at[1:])


@story()
async def test_P3_a_claim_that_was_under_way_when_the_pause_began_is_given_back(it: World) -> None:
    it.caller.scripts.append(busy)
    await it.asks("a")
    it.say("tool-requests", ToolRequested("b", "run:b", "run", 0, LANE, "p.never", Repeat.NEVER, b"{}"))
    await it.turn()
    assert it.claimed == ["a", "b"]
    await it.turn()
    assert it.caller.asked == ["a"]
    assert it.released == ["b"]
    await it.turns(3.0, every=0.05)
    assert sorted(it.caller.asked) == ["a", "a", "b"]


@story(pace={"requests_per_second": 10.0, "burst": 1, "concurrency": 50})
async def test_G1_grants_that_come_late_and_together_leave_at_the_pace_all_the_same(it: World) -> None:
    await it.asks("abcdef")
    for _ in range(10):
        await it.passes(0.1)
    assert len(it.claims) == 6
    await it.turn()
    await it.passes(1.0)
    gaps = [later - earlier for earlier, later in zip(it.caller.at, it.caller.at[1:], strict=False)]
    assert len(gaps) == 5
    assert min(gaps) >= 0.1 - 1e-6


@story(pace={"concurrency": 2})
async def test_B9_no_more_calls_than_the_ceiling_are_under_way(it: World) -> None:
    hangs = [Hangs(), Hangs()]
    it.caller.scripts.extend(hangs)
    await it.asks("abc")
    await it.turns(0.5)
    assert it.caller.asked == ["a", "b"]
    hangs[0].ended.set()
    await it.turns(0.5)
    assert it.caller.asked == ["a", "b", "c"]
    hangs[1].ended.set()


async def waits_for_room(it: World) -> Hangs:
    """Grants are slow here, so that claims are made ahead: "a" is being called, "b" is granted and waits for its place."""
    lane = it.dispatcher._lane(it.dispatcher._partitions[0], LANE, it.time.now)
    lane.grant_seconds, lane.call_seconds = 1.0, 1.0
    it.caller.scripts.append(hang := Hangs())
    await it.asks("ab")
    await it.turn()
    assert (it.claimed, it.caller.asked) == (["a", "b"], ["a"])
    return hang


@story(pace={"concurrency": 1})
async def test_B9_a_call_that_was_claimed_ahead_waits_for_its_place_below_the_ceiling(it: World) -> None:
    hang = await waits_for_room(it)
    await it.passes(1.0)
    assert it.caller.asked == ["a"]
    hang.ended.set()
    await it.settles()
    assert it.caller.asked == ["a", "b"]
    await it.turns(0.2)
    lane = it.dispatcher._partitions[0].lanes[LANE]
    assert (lane.in_flight, lane.claimed) == (0, 0)


@story(pace={"concurrency": 1})
async def test_T10_a_call_that_waited_for_its_place_until_its_lease_was_over_is_given_back(it: World) -> None:
    """The process stood still, so nobody renewed it (L5)."""
    hang = await waits_for_room(it)
    it.freezes(10.0)
    hang.ended.set()
    await it.settles()
    assert (it.caller.asked, it.released) == (["a"], ["b"])
    await it.turns(0.5)
    assert it.caller.asked == ["a", "b"]


@story(pace={"concurrency": 1})
async def test_a_call_that_waits_for_its_place_is_given_back_when_the_partition_is_taken_away(it: World) -> None:
    """It would wait for ever: the lane that it waits for is gone, and its heartbeats would keep its receipt running."""
    hang = await waits_for_room(it)
    await it.revoked()
    assert it.released == ["b"]
    hang.ended.set()
    await it.settles()
    assert it.dispatcher.calls.in_flight() == {}
    await it.returns()
    await it.turns(0.5)
    assert it.caller.asked == ["a", "b"]


@story(pace={"concurrency": 1})
async def test_L7_R7_a_stop_gives_back_a_call_that_waits_for_its_place(it: World) -> None:
    """Nothing was sent, so it must not end as unknown when its lease is over."""
    await waits_for_room(it)
    await it.dispatcher.stop()
    assert it.released == ["b"]


@story(pace={"concurrency": 1})
async def test_G1_the_end_of_a_foreign_lease_makes_room_for_a_call_that_waits(it: World) -> None:
    await foreign_lease(it)
    lane = it.dispatcher._partitions[0].lanes[LANE]
    lane.grant_seconds, lane.call_seconds = 1.0, 1.0
    await it.asks("b")
    await it.turn()
    assert (it.claimed, it.caller.asked) == (["a", "b"], [])
    it.say("receipt-completions", AttemptEnded("a", 1, 0, "gone", Value(b"1")))
    await it.turn()
    assert it.caller.asked == ["b"]
