"""The dispatcher in virtual time: a claim before each call, a grant before its first byte; what was not sent is given back."""

from __future__ import annotations

import asyncio

import pytest

from schemas.events import (
    AttemptEnded,
    BatchClaimed,
    CallWithdrawn,
    LeasesRenewed,
    Repeat,
    ToolRequested,
    Value,
)
from streams.calling.leases import steady_clock
from tests.support.dispatch import LANE, World, member, story, told
from tests.support.scripted_caller import Hangs, value_of

WINDOW = 0.25


# --- claim and grant ---------------------------------------------------------------------------------------------------


@story()
async def test_L3_a_claim_is_published_before_the_call_and_nothing_is_called_without_a_grant(it: World) -> None:
    await it.asks("a")
    assert it.claims == [BatchClaimed(LANE, "p.never", "", it.claims[0].lease, 1, (member("a"),))]
    await it.passes(1.0)
    assert it.caller.calls == []
    await it.turn()
    assert it.caller.asked == ["a"]
    assert it.steps[:4] == ["dispatcher:claimed", "dispatcher:granted", "dispatcher:calling", "dispatcher:called"]


@story()
async def test_S1_a_value_is_published_under_its_attempt_and_lease_and_the_callers_are_told(it: World) -> None:
    await it.asks("a")
    await it.turn()
    assert it.ends == [AttemptEnded("a", 1, 0, it.claims[0].lease, Value(value_of("a")))]
    await it.turn()
    assert told(it) == [("a", "completed")]


@story()
async def test_the_claim_is_in_the_log_before_anything_may_be_called_even_if_its_acknowledgement_is_late(it: World) -> None:
    """What counts is the grant: an acknowledgement that is late holds nobody up."""
    it.log.acknowledges.clear()
    await it.asks("a")
    assert it.steps == []
    await it.turn()
    assert it.caller.asked == ["a"]
    it.log.acknowledges.set()


@story()
async def test_B4_one_call_carries_the_members_of_a_batch_in_the_order_of_its_claim(it: World) -> None:
    await it.asks("abc", "batch")
    await it.turn()
    (call,) = it.caller.calls
    assert call.batched
    assert [part.receipt for part in call.members] == [part.receipt for part in it.claims[0].members]
    assert [end.outcome for end in it.ends] == [Value(value_of(name)) for name in "abc"]


@story()
async def test_B5_a_single_one_goes_unbatched_after_its_window(it: World) -> None:
    await it.asks("a", "batch")
    assert it.claims == []
    await it.passes(WINDOW)
    await it.turn()
    (call,) = it.caller.calls
    assert (call.batched, it.claims[0].batch) == (False, "")


@story()
async def test_B3_Y1_a_receipt_that_is_asked_for_by_many_is_called_for_once(it: World) -> None:
    await it.asks("a", run="one")
    await it.asks("a", run="two")
    await it.turn()
    await it.asks("a", run="three")
    await it.turns(1.0)
    assert it.caller.asked == ["a"]
    assert len([call for event in it.answers for call in event.calls]) == 3  # type: ignore[attr-defined]


@story()
async def test_a_turn_that_has_not_folded_the_claim_yet_does_not_queue_its_receipts_again(it: World) -> None:
    """Another row asks for a receipt between its claim and the grant; a second claim would be lost, with its whole batch."""
    await it.asks("ab", "batch")
    await it.passes(WINDOW)
    assert it.claimed == ["ab"]
    it.say("tool-requests", ToolRequested("a", "other:a", "other", 0, LANE, "p.batch", Repeat.WITH_KEY, b"{}"))
    await it.turn(without=["receipt-claims"])
    await it.passes(1.0)
    await it.turns(1.0)
    assert it.claimed == ["ab"]
    assert it.caller.asked == ["ab"]
    assert it.released == []


@story()
async def test_a_batch_of_which_a_member_is_lost_is_given_back_whole_and_never_called(it: World) -> None:
    await it.asks("a", "batch")
    await it.asks("b", "batch")
    it.say("receipt-claims", BatchClaimed(LANE, "p.batch", "", "other", 1, (member("b"),)))
    await it.passes(WINDOW)
    assert it.claimed == ["b", "ab"]
    await it.turn()
    assert it.released == ["a"]
    assert it.caller.calls == []
    await it.turns(1.0)
    assert it.caller.asked == ["a"]


@story()
async def test_what_is_withdrawn_between_claim_and_grant_is_not_called(it: World) -> None:
    await it.asks("a")
    it.say("tool-requests", CallWithdrawn("a", "run:a"))
    await it.turns(0.5)
    assert it.caller.calls == []
    assert it.released == ["a"]


@story()
async def test_what_is_withdrawn_while_it_waits_for_its_window_is_not_claimed(it: World) -> None:
    await it.asks("a", "batch")
    it.say("tool-requests", CallWithdrawn("a", "run:a"))
    await it.turns(1.0)
    assert (it.claims, it.caller.calls) == ([], [])


@story()
async def test_a_claim_of_an_owner_before_us_is_neither_called_nor_held_against_the_lane_for_long(it: World) -> None:
    await it.asks("a")
    await it.revoked()
    await it.returns()
    await it.turns(0.5)
    first, second = it.claims
    assert (first.generation, second.generation) == (1, 2)
    assert it.caller.asked == ["a"]
    assert it.ends[0].lease == second.lease
    assert it.dispatcher._partitions[0].lanes[LANE].in_flight == 0


# --- revocation and stop -----------------------------------------------------------------------------------------------


@story()
async def test_R7_a_revoked_lane_gives_back_what_was_not_granted_and_claims_nothing_more(it: World) -> None:
    await it.asks("b", "batch")
    await it.asks("a")
    await it.revoked()
    assert it.released == ["a"]
    await it.passes(5.0)
    assert it.claimed == ["a"]
    await it.turn()
    assert it.caller.calls == []


@story()
async def test_calls_in_flight_outlive_a_revocation_and_publish_their_own_end(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    await it.revoked()
    await it.passes(1.5)
    assert [beat.leases for beat in it.log.of("lease-heartbeats", LeasesRenewed)] == [(it.claims[0].lease,)]
    hang.ended.set()
    await it.settles()
    assert it.ends == [AttemptEnded("a", 1, 0, it.claims[0].lease, Value(value_of("a")))]


@story(pace={"concurrency": 1})
async def test_a_lane_that_comes_back_adopts_the_call_that_is_still_in_flight(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    await it.revoked()
    await it.returns()
    await it.asks("b")
    await it.turns(8.0, every=0.1)
    assert it.claimed == ["a"], "it is neither expired, since it is ours, nor exceeded"
    hang.ended.set()
    await it.turns(0.5)
    assert it.caller.asked == ["a", "b"]
    assert it.dispatcher._partitions[0].lanes[LANE].in_flight == 0


@story()
async def test_L7_a_stop_waits_for_calls_in_flight_gives_back_the_rest_and_takes_no_more(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    await it.asks("b")
    stop = asyncio.create_task(it.dispatcher.stop())
    await it.passes(1.0)
    assert it.released == ["b"]
    assert not stop.done()
    await it.asks("c")
    assert it.claimed == ["a", "b"]
    hang.ended.set()
    await stop
    assert [end.receipt for end in it.ends] == ["a"]
    assert it.caller.closed
    assert not it.log.running


@story(grace_seconds=5.0)
async def test_L7_a_call_that_does_not_end_within_the_grace_time_is_left_to_its_lease(it: World) -> None:
    """Whether it was billed is not known: no release, no failure; a new owner judges when its lease is over."""
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    began = it.time.now
    await it.dispatcher.stop()
    assert it.time.now == pytest.approx(began + 5.0)
    assert hang.cancelled
    assert (it.ends, it.released) == ([], [])


@story(pace={"requests_per_second": 20.0, "concurrency": 9})
async def test_L7_R7_a_stop_gives_back_a_granted_call_that_still_waits_for_its_moment(it: World) -> None:
    await it.asks("ab")
    await it.turn()
    assert it.caller.asked == ["a"]
    await it.dispatcher.stop()
    assert it.caller.asked == ["a"]
    assert it.released == ["b"]


@story()
async def test_only_the_receipts_table_is_the_dispatchers_business(it: World) -> None:
    await it.dispatcher.opened("rows", {1: it.owner})  # type: ignore[dict-item]
    assert list(it.dispatcher._partitions) == [0]


def test_the_steady_clock_goes_on() -> None:
    assert steady_clock() <= steady_clock()
