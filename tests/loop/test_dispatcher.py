"""The dispatcher in virtual time: a claim before each call, a grant before the first byte, an end for everything that was sent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from schemas.commands import LeaseJudgedExpired
from schemas.events import (
    Ambiguous,
    AttemptEnded,
    BatchClaimed,
    CallsAnswered,
    CallWithdrawn,
    ClaimedMember,
    Event,
    Failed,
    Fault,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    Mode,
    Outcome,
    Probed,
    Repeat,
    Retry,
    ToolRequested,
    Value,
)
from streams.calls import outcome_of
from streams.dispatcher import PROBED_TOPICS
from streams.engine.retries import backoff_ms
from streams.errors import StateError, Unreachable
from streams.journal import AnswerJournal
from streams.leases import steady_clock
from streams.renewals import START_MARGIN_SECONDS
from streams.tools.port import Answered, CallReport, Doubtful, MemberOutcome, NotDone, ProviderCall, Refused
from tests.support.dispatch import (
    BUSY,
    LANE,
    LOST,
    NO,
    Hangs,
    World,
    busy,
    doubtful,
    not_done,
    play,
    raises,
    story,
    value_of,
    world,
)

WINDOW = 0.25


def member(name: str, n: int = 1, op: int = 1) -> ClaimedMember:
    return ClaimedMember(name, n, 0, op)


def told(it: World) -> list[tuple[str, str]]:
    """What callers were told, by receipt."""
    return [(event.receipt, event.answer.value) for event in it.answers if isinstance(event, CallsAnswered)]


# --- claim and grant ----------------------------------------------------------------------------------------


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


# --- the lease and the clock --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "called", "renewals"),
    [(START_MARGIN_SECONDS + 0.01, True, 0), (START_MARGIN_SECONDS - 0.01, True, 1), (-0.01, False, 0)],
    ids=["enough", "too little", "none"],
)
def test_L3_L5_a_lease_with_too_little_left_is_renewed_before_the_call_and_one_that_is_over_is_given_back(
    tmp_path: Path, left: float, called: bool, renewals: int
) -> None:
    """Rule 2 of the dispatcher: the lease runs from the clock that was read before the claim was published."""

    async def late() -> None:
        async with world(tmp_path) as it:
            await it.asks("a")
            beats: list[list[str]] = []
            it.log.before = lambda topic, _: beats.append(it.caller.asked) if topic == "lease-heartbeats" else None
            it.freezes(it.settings.lease_seconds - left)
            await it.turn()
            assert (it.caller.asked, it.released) == ((["a"], []) if called else ([], ["a"]))
            assert beats[:renewals] == [[]] * renewals, "it is renewed first"
            assert len(beats) == renewals
            await it.turns(1.0)
            assert it.caller.asked == ["a"]

    play(late())


@story()
async def test_L5_a_renewal_that_is_not_acknowledged_in_time_is_none_and_the_lease_is_given_back(it: World) -> None:
    await it.asks("a")
    it.log.acknowledges.clear()
    it.freezes(it.settings.lease_seconds - 0.05)
    await it.turn()
    assert (it.caller.asked, it.released) == ([], [])
    await it.passes(0.06)
    assert (it.caller.asked, it.released) == ([], ["a"])
    it.log.acknowledges.set()
    await it.turns(1.0)
    assert it.caller.asked == ["a"]


@story()
async def test_L5_T10_an_acknowledgement_that_is_read_when_the_lease_was_over_counts_for_nothing(it: World) -> None:
    """The process stands still between the two: an owner elsewhere may have judged by then, and another may be calling."""
    await it.asks("a")
    it.log.acknowledges.clear()
    it.freezes(it.settings.lease_seconds - 0.05)
    await it.turn()
    it.freezes(0.2)
    it.log.acknowledges.set()
    await it.settles()
    assert (it.caller.asked, it.released) == ([], ["a"])


@story()
async def test_L5_a_renewal_that_cannot_be_published_is_none(it: World) -> None:
    await it.asks("a")
    it.freezes(it.settings.lease_seconds - 0.05)
    it.log.trouble = Unreachable("no broker")
    await it.turn()
    await it.settles()
    assert it.caller.asked == []
    it.log.trouble = None
    await it.turns(10)
    assert (it.released, it.caller.asked) == (["a"], ["a"])


async def waits_for_a_place(it: World) -> None:
    """A call is granted, and waits: the lane's only place is taken by a lease of somebody else, for receipt ``z``."""
    await it.asks("a")
    it.say("receipt-claims", BatchClaimed(LANE, "p.never", "", "theirs", 1, (member("z"),)))
    await it.asks("z")


async def has_a_place(it: World) -> None:
    it.say("receipt-completions", AttemptEnded("z", 1, 0, "theirs", Value(b"1")))
    await it.turn()


@story(pace={"concurrency": 1})
async def test_L5_a_call_that_waits_for_its_place_keeps_its_lease_by_heartbeats_that_were_acknowledged(it: World) -> None:
    await waits_for_a_place(it)
    await it.passes(it.settings.lease_seconds * 2)
    await has_a_place(it)
    assert (it.caller.asked, it.released) == (["a"], [])


@story(pace={"concurrency": 1})
async def test_L5_heartbeats_that_nobody_acknowledged_keep_no_lease(it: World) -> None:
    await waits_for_a_place(it)
    it.log.acknowledges.clear()
    await it.passes(it.settings.lease_seconds + 0.1)
    await has_a_place(it)
    assert (it.caller.asked, it.released) == ([], ["a"])
    it.log.acknowledges.set()


@story(pace={"concurrency": 1})
async def test_L5_a_renewal_counts_from_when_it_was_sent_and_not_from_its_acknowledgement(it: World) -> None:
    """The one that was sent after a second is acknowledged after 2.5: the lease ends at 4, whatever comes after."""
    await waits_for_a_place(it)
    it.log.acknowledges.clear()
    await it.passes(1.5)
    it.log.before = lambda topic, _: it.log.acknowledges.clear() if topic == "lease-heartbeats" else None
    it.freezes(1.0)
    it.log.acknowledges.set()
    await asyncio.sleep(0)
    await it.settles()
    it.freezes(1.6)
    await has_a_place(it)
    assert (it.caller.asked, it.released) == ([], ["a"])
    it.log.before = lambda _topic, _events: None
    it.log.acknowledges.set()


@story()
async def test_L5_a_worker_that_stops_while_it_renews_makes_no_call(it: World) -> None:
    await it.asks("a")
    it.log.acknowledges.clear()
    it.freezes(it.settings.lease_seconds - 0.05)
    await it.turn()
    stopping = asyncio.create_task(it.dispatcher.stop())
    await it.settles()
    it.log.acknowledges.set()
    await stopping
    assert (it.caller.asked, it.released) == ([], ["a"])


@story(pace={"requests_per_second": 25.0, "concurrency": 9})
async def test_T10_the_last_look_at_the_clock_comes_right_before_the_bytes_leave(it: World) -> None:
    """Granted in time, then the process stands still while the call waits for its moment: another one may be calling by now."""
    await it.asks("ab")
    await it.turn()
    assert (it.claimed, it.caller.asked) == (["a", "b"], ["a"])
    it.freezes(60.0)
    await it.settles()
    assert it.caller.asked == ["a"]
    assert it.released == ["b"]
    await it.turns(1.0)
    assert it.caller.asked == ["a", "b"]


@story()
async def test_L2_heartbeats_name_every_lease_in_flight_and_no_other(it: World) -> None:
    hangs = [Hangs(), Hangs(), Hangs()]
    it.caller.scripts.extend(hangs)
    await it.asks("abc")
    await it.turn()
    hangs[1].ended.set()
    await it.settles()
    await it.passes(1.3)
    beats = it.log.of("lease-heartbeats", LeasesRenewed)
    by_receipt = {claim.members[0].receipt: claim.lease for claim in it.claims}
    assert [set(beat.leases) for beat in beats] == [{by_receipt["a"], by_receipt["c"]}]
    for hang in hangs:
        hang.ended.set()
    await it.passes(2.0)
    assert len(it.log.of("lease-heartbeats", LeasesRenewed)) == 1


@story()
async def test_L2_a_call_that_outlives_many_leases_is_kept_alive_and_settles(it: World) -> None:
    hang = Hangs()
    it.caller.scripts.append(hang)
    await it.asks("a")
    await it.turns(20.0, every=0.1)
    assert it.log.of("receipt-claims", LeaseExpired) == []
    hang.ended.set()
    await it.turns(0.1)
    assert told(it) == [("a", "completed")]


@story()
async def test_L4_an_owner_never_expires_a_call_that_its_own_process_has_in_flight(it: World) -> None:
    """Its heartbeats lie unread, because the topic is slow; the call is alive all the same."""
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    for _ in range(20):
        await it.passes(1.0)
        await it.turn(without=["lease-heartbeats"])
    assert it.log.of("receipt-claims", Probed) == []
    hang.ended.set()


async def foreign_lease(it: World) -> None:
    """A call of a process that is gone: its claim was granted to an owner before us."""
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.never", Repeat.NEVER, b"{}"))
    it.say("receipt-claims", BatchClaimed(LANE, "p.never", "", "gone", 1, (member("a"),)))
    await it.turn()
    await it.revoked()
    await it.returns()


@pytest.mark.parametrize("unread", PROBED_TOPICS)
def test_T10_expiry_is_judged_only_once_all_three_topics_were_read_to_their_ends(tmp_path: Path, unread: str) -> None:
    async def judged() -> None:
        async with world(tmp_path) as it:
            await foreign_lease(it)
            await it.passes(3.0)
            assert it.log.of(unread, Probed) == []
            await it.passes(0.6)
            assert [len(it.log.of(topic, Probed)) for topic in PROBED_TOPICS] == [1, 1, 1]
            await it.turn(without=[unread])
            await it.passes(5.0)
            await it.turn(without=[unread])
            assert it.owner.inbox.waiting == []
            await it.turn()
            assert it.owner.inbox.waiting == [LeaseJudgedExpired("gone", (member("a"),))]
            await it.turn()
            await it.turn()
            assert told(it) == [("a", "unknown")]
            assert it.caller.calls == []

    play(judged())


@pytest.mark.parametrize("sign", ["heartbeat", "value", "release"])
def test_T10_a_sign_of_life_that_lay_unread_behind_the_mark_saves_the_lease(tmp_path: Path, sign: str) -> None:
    events: dict[str, tuple[str, Event]] = {
        "heartbeat": ("lease-heartbeats", LeasesRenewed(("gone",))),
        "value": ("receipt-completions", AttemptEnded("a", 1, 0, "gone", Value(b'"late"'))),
        "release": ("receipt-claims", LeaseReleased("gone", (member("a"),))),
    }

    async def saved() -> None:
        async with world(tmp_path) as it:
            await foreign_lease(it)
            it.say(*events[sign])
            await it.passes(3.6)
            await it.turn()
            assert it.owner.inbox.waiting == []
            await it.turns(0.5)
            assert it.log.of("receipt-claims", LeaseExpired) == []
            assert it.caller.asked == (["a"] if sign == "release" else [])

    play(saved())


@story()
async def test_a_mark_of_somebody_else_means_nothing(it: World) -> None:
    await foreign_lease(it)
    await it.passes(3.6)
    for topic in PROBED_TOPICS:
        it.say(topic, Probed("another"))
    await it.turn(without=["lease-heartbeats"])
    assert it.owner.inbox.waiting == []


@story(pace={"concurrency": 1})
async def test_G1_a_foreign_lease_counts_against_the_ceiling_until_it_is_over(it: World) -> None:
    await foreign_lease(it)
    await it.asks("b")
    await it.turns(2.0, every=0.1)
    assert it.claimed == ["a"]
    it.say("receipt-completions", AttemptEnded("a", 1, 0, "gone", Value(b"1")))
    await it.turns(0.5)
    assert it.caller.asked == ["b"]


# --- pace and pauses ----------------------------------------------------------------------------------------


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


# --- how calls end ------------------------------------------------------------------------------------------


@story()
async def test_U1_an_ambiguous_end_is_never_repeated_for_a_tool_that_says_so(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("a", "never")
    await it.turns(30.0, every=0.2)
    assert it.caller.asked == ["a"]
    assert told(it) == [("a", "unknown")]


@story()
async def test_case_A2_an_ambiguous_end_is_repeated_under_the_same_key_where_the_provider_honours_keys(it: World) -> None:
    it.caller.scripts.extend([doubtful, doubtful])
    await it.asks("a", "key")
    await it.turns(5.0, every=0.05)
    assert it.caller.asked == ["a", "a", "a"]
    assert len({call.idempotency_key for call in it.caller.calls}) == 1
    assert told(it) == [("a", "completed")]


@story()
async def test_K5_a_definite_no_for_now_is_repeated_as_a_new_operation(it: World) -> None:
    it.caller.scripts.append(not_done)
    await it.asks("a", "never")
    await it.turns(3.0, every=0.05)
    assert it.caller.asked == ["a", "a"]
    assert len({call.idempotency_key for call in it.caller.calls}) == 2
    assert told(it) == [("a", "completed")]


@story(attempts_max=3)
async def test_P2_repeats_are_bounded_and_end_as_a_repairable_failure(it: World) -> None:
    it.caller.scripts.extend([not_done] * 9)
    await it.asks("a")
    await it.turns(60.0, every=0.2)
    assert len(it.caller.calls) == 3
    (answer,) = it.answers
    assert isinstance(answer, CallsAnswered)
    assert answer.fault is not None
    assert answer.fault.repairable
    assert "given up after 3 attempts" in answer.fault.message


@story()
async def test_case_F5_members_of_one_call_end_each_in_its_own_way(it: World) -> None:
    def mixed(call: ProviderCall) -> CallReport:
        outcomes: dict[str, MemberOutcome] = {"a": Answered(b"1"), "b": NotDone(BUSY), "c": Refused(NO)}
        return CallReport(tuple(outcomes[part.receipt] for part in call.members))

    it.caller.scripts.append(mixed)
    await it.asks("abc", "once")
    await it.turns(3.0, every=0.05)
    assert it.caller.asked == ["abc", "b"]
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed"), ("c", "failed")]


@story()
async def test_K6_a_batch_with_an_ambiguous_end_is_repeated_as_it_was_with_new_arrivals_left_out(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("abc", "batch")
    await it.turn()
    await it.asks("d", "batch")
    await it.turns(3.0, every=0.05)
    first, *rest = it.caller.calls
    (second,) = [call for call in rest if len(call.members) == 3]
    assert second.members == first.members
    assert (second.idempotency_key, second.request_id) == (first.idempotency_key, first.request_id)
    assert sorted(it.caller.asked) == ["abc", "abc", "d"]


@story()
async def test_K6_a_repeated_batch_carries_members_that_have_settled_meanwhile_in_their_old_places(it: World) -> None:
    """Else its key would name another operation, and a provider that honours keys would work again."""

    def half(call: ProviderCall) -> CallReport:
        outcomes: dict[str, MemberOutcome] = {"a": Doubtful(LOST), "b": Answered(b"1"), "c": Doubtful(LOST)}
        return CallReport(tuple(outcomes[part.receipt] for part in call.members))

    it.caller.scripts.append(half)
    await it.asks("abc", "batch")
    await it.turns(3.0, every=0.05)
    first, second = it.caller.calls
    assert second.members == first.members
    assert second.idempotency_key == first.idempotency_key
    claim = it.claims[1]
    assert sorted(part.receipt for part in claim.members) == ["a", "c"]
    assert [part.receipt for part in claim.payload] == ["a", "b", "c"]
    assert len([end for end in it.ends if end.receipt == "b"]) == 1
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed"), ("c", "completed")]


@story()
async def test_K5_a_refreshed_receipt_is_called_under_a_key_of_its_own(it: World) -> None:
    await it.asks("a", "key")
    await it.turns(0.5)
    await it.asks("a", "key", run="again", mode=Mode.FULL_REFRESH)
    await it.turns(0.5)
    assert len(it.caller.calls) == 2
    assert it.caller.calls[0].idempotency_key != it.caller.calls[1].idempotency_key


@story()
async def test_a_large_input_reaches_the_provider_like_a_small_one(it: World) -> None:
    large = b'"' + b"x" * 5_000 + b'"'
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.never", Repeat.NEVER, large))
    await it.turns(0.2)
    assert it.caller.calls[0].members[0].input == large


@story()
async def test_a_tool_that_is_not_in_this_workers_file_is_refused_without_a_call(it: World) -> None:
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.gone", Repeat.NEVER, b"{}"))
    it.say("tool-requests", ToolRequested("b", "run:b", "run", 0, "org/nobody", "nobody.gone", Repeat.NEVER, b"{}"))
    await it.turns(0.5)
    assert it.caller.calls == []
    assert sorted(told(it)) == [("a", "failed"), ("b", "failed")]


@story()
async def test_B11_a_defect_in_a_caller_ends_the_worker_loudly(it: World) -> None:
    it.caller.scripts.append(raises)
    await it.asks("a")
    await it.turn()
    (failure,) = it.failures
    assert "p.never" in str(failure)
    assert "RuntimeError" in str(failure)
    it.failures.clear()


@pytest.mark.parametrize("when", ["claim", "completion"])
def test_B11_a_broker_that_cannot_be_reached_ends_the_worker_and_no_answer_is_lost(tmp_path: Path, when: str) -> None:
    async def broken() -> None:
        async with world(tmp_path) as it:
            if when == "claim":
                it.log.trouble = Unreachable("no broker")
            await it.asks("a")
            it.log.trouble = Unreachable("no broker")
            await it.turn()
            assert it.failures == []
            # It was tried again after 1, 3 and 9 seconds, and then for no longer (S3).
            await it.passes(13.5)
            assert {str(failure) for failure in it.failures} == {"no broker"}
            it.failures.clear()
            kept = [end.receipt for _, events in it.journal.unpublished() for end in events]
            assert kept == ([] if when == "claim" else ["a"])

    play(broken())


@story()
async def test_B11_a_batch_that_is_to_be_repeated_but_unknown_ends_the_worker_loudly_even_from_a_timer(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("abc", "batch")
    await it.turn()
    await it.turn()
    for key in [key for key in it.table.reader.data if key.startswith(b"b")]:
        del it.table.reader.data[key]
    await it.passes(5.0)
    assert [type(failure) for failure in it.failures] == [StateError]
    it.failures.clear()


@story()
async def test_S5_values_that_are_kept_aside_are_counted(it: World) -> None:
    await it.asks("a")
    await it.turn()
    it.say("receipt-completions", AttemptEnded("a", 1, 0, "zombie", Value(b'"other"')))
    await it.turn()
    assert it.dispatcher.stale_values == 1


# --- the journal --------------------------------------------------------------------------------------------


@story()
async def test_S5_the_journal_has_the_answer_before_it_is_published_and_forgets_it_once_it_is_acknowledged(it: World) -> None:
    seen: list[list[str]] = []

    def look(topic: str, _events: object) -> None:
        if topic == "receipt-completions":
            seen.append([end.receipt for _, ends in it.journal.unpublished() for end in ends])

    it.log.before = look
    await it.asks("ab")
    it.log.acknowledges.clear()
    await it.turn()
    assert seen == [["a"], ["a", "b"]]
    assert len(it.journal.unpublished()) == 2
    it.log.acknowledges.set()
    await it.settles()
    assert it.journal.unpublished() == []


@story()
async def test_S5_a_full_disk_keeps_no_paid_answer_from_being_published(it: World) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, it.journal._fd)
    os.close(full)
    published: list[str] = []

    def look(topic: str, events: Any) -> None:
        if topic == "receipt-completions":
            published.extend(end.receipt for end in events)

    it.log.before = look
    await it.asks("ab")
    await it.turn()
    await it.settles()
    assert sorted(published) == ["a", "b"]


def test_S5_what_a_killed_process_had_read_is_published_by_the_next_one(tmp_path: Path) -> None:
    end = AttemptEnded("a", 1, 0, "L", Value(b'"paid"'))

    async def again() -> None:
        journal = AnswerJournal(tmp_path / "answers.journal")
        journal.append(0, [end])
        journal.append(3, [end, end])
        journal.close()
        with (tmp_path / "answers.journal").open("ab") as file:
            file.write(b"\x00\x00\x00\x00\x00\x00\x01\x00cut off")
        async with world(tmp_path) as it:
            assert [(partition, event) for topic, partition, event in it.log.published if topic == "receipt-completions"] == [
                (0, end),
                (3, end),
                (3, end),
            ]
            assert it.journal.unpublished() == []

    play(again())


# --- revocation and stop ------------------------------------------------------------------------------------


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


# --- outcomes -----------------------------------------------------------------------------------------------

NOW, JITTER = 1_000.0, 0.5


def given_up(tries: int) -> Failed:
    return Failed(Fault(BUSY.code, f"{BUSY.message} (given up after {tries} attempts)", True))


CLOSED = Fault("http_503", "closed")


def later(tries: int) -> int:
    return int(NOW * 1000) + backoff_ms(tries, jitter=JITTER)


@pytest.mark.parametrize(
    ("outcome", "repeat", "tries", "event"),
    [
        (Answered(b"1"), Repeat.NEVER, 1, Value(b"1")),
        (Answered(b"null"), Repeat.FREELY, 9, Value(b"null")),
        (Refused(NO), Repeat.FREELY, 1, Failed(NO)),
        (Refused(CLOSED), Repeat.NEVER, 9, Failed(CLOSED)),
        # Not done: worth another attempt whatever the tool allows, since nothing was billed.
        (NotDone(CLOSED), Repeat.NEVER, 1, Retry(CLOSED, later(1))),
        (NotDone(CLOSED), Repeat.WITH_KEY, 4, Retry(CLOSED, later(4))),
        (NotDone(CLOSED, 0.1), Repeat.NEVER, 1, Retry(CLOSED, later(1))),
        (NotDone(CLOSED, 60.0), Repeat.NEVER, 1, Retry(CLOSED, int((NOW + 60) * 1000))),
        (NotDone(CLOSED), Repeat.FREELY, 5, Failed(Fault("http_503", "closed (given up after 5 attempts)", True))),
        # A provider that is merely busy gets more patience.
        (NotDone(BUSY, 3.0), Repeat.NEVER, 5, Retry(BUSY, later(5))),
        (NotDone(BUSY, 3.0), Repeat.NEVER, 19, Retry(BUSY, later(19))),
        (NotDone(BUSY, 3.0), Repeat.NEVER, 20, given_up(20)),
        (NotDone(BUSY), Repeat.NEVER, 9, Retry(BUSY, later(9))),
        (NotDone(BUSY), Repeat.NEVER, 10, given_up(10)),
        # Doubtful: only a tool that may be repeated is, and no more often than the budget allows.
        (Doubtful(LOST), Repeat.NEVER, 1, Ambiguous(LOST)),
        (Doubtful(LOST), Repeat.NEVER, 9, Ambiguous(LOST)),
        (Doubtful(LOST), Repeat.WITH_KEY, 1, Ambiguous(LOST, later(1))),
        (Doubtful(LOST), Repeat.FREELY, 4, Ambiguous(LOST, later(4))),
        (Doubtful(LOST), Repeat.WITH_KEY, 5, Ambiguous(LOST, used_up=True)),
        (Doubtful(LOST), Repeat.FREELY, 6, Ambiguous(LOST, used_up=True)),
    ],
)
def test_P2_U1_how_an_end_is_judged(outcome: MemberOutcome, repeat: Repeat, tries: int, event: Outcome) -> None:
    assert outcome_of(outcome, repeat, tries, 5, NOW, JITTER) == event
