"""The buckets of a lane (B4): what may leave is found without a look at all that waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.buckets import Agenda, Bucket, Place
from streams.engine.lanes import LanePace
from streams.engine.protocol import Need
from tests.support.lanes import lane, left, need


def test_B4_a_plan_looks_at_the_buckets_that_leave_and_not_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """B4: with a bucket for each of 8,000 rows a look at all of them took 18 ms, after each call that ended."""
    it = lane(LanePace(concurrency=8))
    for number in range(5_000):
        it.queue(f"r{number}", "p.batch", "run", need(), 0.0, 0.0, f"bucket {number}")
    looks = 0
    ready_at = Bucket.ready_at

    def counted(self: Bucket, *, idle: bool) -> float:
        nonlocal looks
        looks += 1
        return ready_at(self, idle=idle)

    monkeypatch.setattr(Bucket, "ready_at", counted)
    departures, again = it.plan(0.25)
    assert (len(departures), again) == (8, None)
    assert looks <= 2 * 8
    for _ in departures:
        it.sends(batch=False)
        it.landed(batch=False, sent=True)
    assert len(it.plan(0.25)[0]) == 8
    assert looks <= 4 * 8


def test_B4_buckets_that_joined_an_idle_lane_wait_for_their_window_when_it_is_idle_no_more() -> None:
    it = lane(LanePace(concurrency=2))
    for number in range(3):
        it.queue(f"r{number}", "p.batch", "run", need(), 0.0, 0.0, str(number), continues=True)
    departures, again = it.plan(0.01)
    assert [entry.receipt for departure in departures for entry in departure.entries] == ["r0"]
    assert again == 0.25
    assert len(it.plan(0.25)[0]) == 1


def test_K5_what_is_in_doubt_leaves_alone_at_once_and_runs_take_turns() -> None:
    """K5: the repeat of a call for one stood in the bucket of what had never been called for, and left with it."""
    it = lane()
    for receipt, run, need_of in (
        ("a", "one", need()),
        ("b", "one", Need(2, 0, 1, 0, "", 1)),
        ("c", "one", Need(4, 0, 3, 0, "", 1)),
        ("d", "two", Need(2, 0, 1, 0, "", 1)),
        ("e", "two", Need(2, 0, 2, 0, "", 1)),
    ):
        it.queue(receipt, "p.batch", run, need_of, 0.0, 0.0)
    departures, again = it.plan(0.0)
    assert (left(departures), again) == (["b", "d", "c"], 0.25)
    assert it.batches == 0
    assert left(it.plan(0.25)[0]) == ["ae"]


def test_N7_B9_what_is_in_doubt_may_leave_where_no_batch_may_and_is_withdrawn_like_all_else() -> None:
    it = lane(LanePace(concurrency=10, batches=0))
    for receipt in "ab":
        it.queue(receipt, "p.batch", "run", need(), 0.0, 0.0)
    for receipt in "cde":
        it.queue(receipt, "p.batch", "run", Need(2, 0, 1, 0, "", 1), 0.0, 0.0)
    it.unqueue("d")
    assert left(it.plan(0.25)[0]) == ["c", "e"]
    assert len(it) == 2


places = st.tuples(st.just("tool"), st.sampled_from("abc"), st.booleans())
steps = st.lists(st.tuples(places, st.none() | st.integers(0, 3).map(float)), max_size=300)


@given(steps)
def test_an_agenda_knows_the_earliest_place_and_keeps_no_more_than_twice_what_it_holds(
    given_steps: list[tuple[Place, float | None]],
) -> None:
    agenda, times = Agenda(), dict[Place, float]()
    for place, at in given_steps:
        if at is None:
            agenda.drop(place)
            times.pop(place, None)
        else:
            agenda.set(place, at)
            times[place] = at
        assert agenda.first() == min(((at, place) for place, at in times.items()), default=None)
        assert len(agenda._heap) <= 2 * len(times) + 64
    for place in times:
        agenda.drop(place)
    assert agenda._heap == []
