"""The pace of a lane: rate, burst and ceiling (G1), claims made ahead, and the gate of a provider's pause (P3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.lanes import AHEAD_MAX, CLAIM_AHEAD_SECONDS, Gcra, LanePace
from tests.support.lanes import lane, left, queue, run_dry

arrivals = st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=50)
paces = st.builds(LanePace, st.sampled_from((1.0, 7.0, 20.0, 100.0, 1000.0)), st.integers(1, 12), st.just(10_000))


def keeps_pace(sent: list[float], pace: LanePace) -> None:
    """No window holds more than rate times its length plus the burst; for sorted moments all windows from one to another."""
    assert pace.requests_per_second is not None
    for first, begin in enumerate(sent):
        for count, end in enumerate(sent[first:], 1):
            assert count <= pace.requests_per_second * (end - begin) + pace.burst + 1e-6


@given(paces, arrivals)
def test_G1_no_window_holds_more_departures_than_its_rate_and_burst(pace: LanePace, gaps: list[float]) -> None:
    it = lane(pace, forms={})
    sent: list[float] = []
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap / 10
        queue(it, [str(number)], now, tool="p.single")
        sent += [departure.send_at for departure in it.plan(now)[0]]
    sent += [departure.send_at for departure in run_dry(it, now)]
    assert len(sent) == len(gaps)
    assert sent == sorted(sent)
    keeps_pace(sent, pace)


@given(paces, st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=40))
def test_G1_grants_that_come_late_and_together_do_not_let_calls_leave_together(pace: LanePace, delays: list[float]) -> None:
    """A slow turn grants many claims at one moment; the provider must not see them so."""
    it = lane(pace, forms={})
    queue(it, (str(number) for number in range(len(delays))), 0.0, tool="p.single")
    planned = [departure.send_at for departure in run_dry(it)]
    granted_at, sent = 0.0, []
    for at, delay in zip(planned, delays, strict=True):
        granted_at = max(granted_at, at - CLAIM_AHEAD_SECONDS + delay)
        sent.append(it.send_at(at, granted_at))
        assert sent[-1] >= max(at, granted_at)
    keeps_pace(sorted(sent), pace)


def test_G1_a_grant_in_time_is_not_delayed_any_further() -> None:
    pace = LanePace(10.0, 2, 100)
    it = lane(pace, forms={})
    queue(it, "abcdef", 0.0, tool="p.single")
    for departure in run_dry(it):
        assert it.send_at(departure.send_at, departure.send_at - 0.01) == departure.send_at


def test_G1_a_new_owner_starts_with_an_empty_burst() -> None:
    """It cannot know what the owner before it used up."""
    it = lane(LanePace(1.0, 5, 100), forms={}, now=50.0)
    queue(it, "abcdef", 50.0, tool="p.single")
    departures, again = it.plan(50.0)
    assert left(departures) == ["a"]
    assert again == pytest.approx(51.0 - CLAIM_AHEAD_SECONDS)


def test_G1_a_lane_that_was_idle_may_use_its_burst() -> None:
    it = lane(LanePace(1.0, 5, 100), forms={})
    queue(it, "abcdef", 60.0, tool="p.single")
    assert left(it.plan(60.0)[0]) == ["a", "b", "c", "d", "e"]


def test_a_lane_without_a_rate_is_never_held_back() -> None:
    rate = Gcra(LanePace(None), 5.0)
    assert [rate.take(5.0) for _ in range(3)] == [5.0] * 3


def test_calls_are_claimed_a_little_ahead_of_their_moment() -> None:
    it = lane(LanePace(100.0, 1, 100), forms={})
    queue(it, "abcdefghij", 0.0, tool="p.single")
    departures, again = it.plan(0.0)
    assert [departure.send_at for departure in departures] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04, 0.05])
    assert again == pytest.approx(0.06 - CLAIM_AHEAD_SECONDS)


def test_the_ceiling_holds_back_what_is_ready_until_a_call_has_landed() -> None:
    it = lane(LanePace(concurrency=2), forms={})
    queue(it, "abc", 0.0, tool="p.single")
    assert left(it.plan(0.0)[0]) == ["a", "b"]
    assert it.plan(1.0) == ([], None)
    it.claimed -= 1
    it.in_flight += 1
    assert it.plan(1.0) == ([], None)
    it.in_flight -= 1
    assert left(it.plan(1.0)[0]) == ["c"]


def test_claims_are_made_ahead_of_the_ceiling_as_far_as_grants_are_slow_beside_calls() -> None:
    """As many calls end while a claim is granted; where calls are slow, a claim that waits would only be in doubt after a crash."""
    it = lane(LanePace(concurrency=10), forms={})
    assert it.ahead == 0
    for _ in range(200):
        it.took(grant_seconds=0.05, call_seconds=0.1)
    assert it.ahead == pytest.approx(5, abs=1)
    queue(it, (str(number) for number in range(100)), 0.0, tool="p.single")
    assert len(it.plan(0.0)[0]) == 10 + it.ahead
    for _ in range(200):
        it.took(call_seconds=10.0)
    assert it.ahead == 0


def test_B9_batches_are_claimed_ahead_of_their_own_ceiling_as_calls_for_one_are() -> None:
    """Else half of their places would stand empty while the next claims are granted."""
    it = lane(LanePace(concurrency=50, batches=2))
    queue(it, (str(number) for number in range(40)), 0.0)
    assert len(it.plan(0.0)[0]) == 2
    for _ in range(200):
        it.took(grant_seconds=0.12, call_seconds=0.1)
    ahead = it.plan(0.0)[0]
    assert (len(ahead), it.batches) == (2, 4)
    for _ in range(2):
        it.sends(batch=True)
    assert not it.is_free(for_batch=True), "what is claimed ahead is not sent ahead"
    assert it.plan(0.0)[0] == []


def test_however_slow_grants_are_claims_ahead_are_bounded() -> None:
    it = lane(LanePace(concurrency=10), forms={})
    for _ in range(500):
        it.took(grant_seconds=60.0, call_seconds=0.0)
    assert it.ahead == AHEAD_MAX * 10


def test_there_is_room_for_a_call_below_the_ceiling_alone() -> None:
    it = lane(LanePace(concurrency=2), forms={})
    it.claimed, it.in_flight = 5, 1
    assert it.is_free(for_batch=False)
    it.in_flight = 2
    assert not it.is_free(for_batch=False)


def test_B9_a_lane_may_be_full_for_batches_and_free_for_a_call_for_one() -> None:
    it = lane(LanePace(concurrency=3, batches=1), forms={})
    it.claimed = 3
    it.sends(batch=True)
    assert not it.is_free(for_batch=True)
    assert it.is_free(for_batch=False)
    it.sends(batch=False)
    it.landed(batch=True, sent=True)
    assert it.is_free(for_batch=True)
    assert (it.claimed, it.in_flight, it.batches_in_flight) == (1, 1, 0)


def test_foreign_calls_count_against_the_ceiling() -> None:
    it = lane(LanePace(concurrency=2), forms={})
    it.in_flight = 3
    queue(it, "a", 0.0, tool="p.single")
    assert it.plan(0.0)[0] == []


def test_P3_nothing_leaves_before_the_gate_opens_and_a_shorter_pause_does_not_open_it() -> None:
    it = lane()
    queue(it, "abcd", 0.0)
    it.pause(5.0)
    it.pause(3.0)
    assert it.plan(0.0) == ([], 5.0)
    assert it.plan(4.9) == ([], 5.0)
    assert left(it.plan(5.0)[0]) == ["abcd"]


def test_P3_an_empty_lane_need_not_look_when_its_gate_opens() -> None:
    it = lane()
    it.pause(5.0)
    assert it.plan(0.0) == ([], None)
