"""The plan of a lane: what leaves together and when (B1, B2), in turns between runs (N7); what is queued again or taken out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.engine.buckets import ToolForm
from streams.engine.lanes import GATHER_SECONDS, LanePace
from tests.support.lanes import lane, left, need, queue, run_dry

# --- windows and batches -----------------------------------------------------------------------------------------------


def test_B1_a_window_starts_with_the_first_request_of_an_empty_bucket_and_never_resets() -> None:
    it = lane()
    queue(it, "a", 10.0)
    assert it.plan(10.0) == ([], 10.25)
    queue(it, "b", 10.2)
    assert it.plan(10.2) == ([], 10.25)
    departures, again = it.plan(10.25)
    assert left(departures) == ["ab"]
    assert (again, len(it)) == (None, 0)


def test_B1_what_comes_after_a_bucket_left_starts_a_window_of_its_own() -> None:
    it = lane()
    queue(it, "a", 0.0)
    it.plan(0.25)
    queue(it, "b", 0.5)
    assert it.plan(0.5) == ([], 0.75)


def test_B2_a_full_bucket_leaves_at_once() -> None:
    it = lane()
    queue(it, "abcd", 10.0)
    departures, again = it.plan(10.0)
    assert left(departures) == ["abcd"]
    assert again is None


def test_B2_a_tool_without_batch_form_never_waits_and_each_request_goes_alone() -> None:
    it = lane()
    queue(it, "abc", 10.0, tool="p.single")
    departures, again = it.plan(10.0)
    assert left(departures) == ["a", "b", "c"]
    assert again is None


def test_B2_what_is_left_over_by_a_full_batch_keeps_its_own_window() -> None:
    it = lane()
    queue(it, "abc", 10.0)
    queue(it, "def", 10.1)
    departures, again = it.plan(10.1)
    assert left(departures) == ["abcd"]
    assert again == 10.1 + 0.25
    assert left(it.plan(10.1 + 0.25)[0]) == ["ef"]


def test_tools_never_share_a_call() -> None:
    it = lane(forms={"p.one": ToolForm(10, 0.1), "p.two": ToolForm(10, 0.1)})
    queue(it, "ab", 0.0, tool="p.one")
    queue(it, "cd", 0.0, tool="p.two")
    departures, _ = it.plan(0.1)
    assert sorted(left(departures)) == ["ab", "cd"]
    assert {departure.tool for departure in departures} == {"p.one", "p.two"}


# --- fairness ----------------------------------------------------------------------------------------------------------


def test_N7_a_run_of_ten_rows_is_served_within_a_few_batches_beside_one_of_ten_thousand() -> None:
    it = lane(forms={"p.batch": ToolForm(100, 0.25)})
    queue(it, (f"big{index}" for index in range(10_000)), 0.0, run="big")
    queue(it, (f"small{index}" for index in range(10)), 1.0, run="small")
    departures, _ = it.plan(1.0)
    first_two = [entry.run for departure in departures[:2] for entry in departure.entries]
    assert first_two.count("small") == 10
    assert all(len(departure.entries) == 100 for departure in departures[:-1])


def test_N7_runs_take_turns_where_each_request_is_a_call_of_its_own() -> None:
    it = lane()
    queue(it, (f"big{index}" for index in range(1_000)), 0.0, run="big", tool="p.single")
    queue(it, (f"small{index}" for index in range(10)), 1.0, run="small", tool="p.single")
    departures, _ = it.plan(1.0)
    assert [departure.entries[0].run for departure in departures[:20]].count("small") == 10


def test_N7_tools_take_turns_so_that_a_long_queue_of_one_does_not_hold_up_a_run_that_needs_another() -> None:
    it = lane(LanePace(concurrency=1), forms={})
    queue(it, (f"big{index}" for index in range(100)), 0.0, run="big", tool="p.one")
    queue(it, ("small0", "small1"), 1.0, run="small", tool="p.two")
    served = []
    for _ in range(4):
        (departure,), _ = it.plan(2.0)
        served.append(departure.entries[0].run)
        it.claimed -= 1
    assert served.count("small") == 2


@settings(max_examples=60)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(1, 40))
def test_N7_each_run_gets_its_share_of_every_batch(sizes: list[int], size_max: int) -> None:
    """Of runs that still wait none is behind another by more than two batches, whatever their sizes."""
    it = lane(forms={"p.batch": ToolForm(size_max, 0.25)})
    for run, size in enumerate(sizes):
        queue(it, (f"{run}/{index}" for index in range(size)), 0.0, run=str(run))
    waiting = dict(enumerate(sizes))
    places = dict.fromkeys(waiting, 0)
    departures, _ = it.plan(10.0)
    for departure in departures:
        for entry in departure.entries:
            places[int(entry.run)] += 1
            waiting[int(entry.run)] -= 1
        hungry = [places[run] for run in waiting if waiting[run]]
        if hungry:
            assert max(hungry) - min(hungry) <= 2 * size_max
    assert not any(waiting.values())


# --- later, again, replaced, withdrawn ---------------------------------------------------------------------------------


def test_a_retry_waits_for_its_moment_and_has_its_window_from_there() -> None:
    it = lane()
    queue(it, "a", 0.0, later=2.0)
    assert it.plan(0.0) == ([], 2.0)
    assert it.plan(2.0) == ([], 2.25)
    assert left(it.plan(2.25)[0]) == ["a"]


def test_of_what_is_ready_at_different_moments_the_next_one_is_looked_for() -> None:
    it = lane()
    queue(it, "a", 0.0, later=0.1)
    queue(it, "b", 0.0)
    assert it.plan(0.0) == ([], 0.1)
    assert it.plan(0.1) == ([], 0.25)


def test_the_pace_does_not_hide_what_becomes_ready_earlier() -> None:
    it = lane(LanePace(1.0, 1, 100), forms={})
    queue(it, "ab", 0.0, tool="p.single")
    queue(it, "c", 0.0, tool="p.single", later=0.5)
    departures, again = it.plan(0.0)
    assert (left(departures), again) == (["a"], 0.5)


def test_K6_a_batch_that_is_to_be_repeated_leaves_as_that_batch_and_with_nothing_else() -> None:
    it = lane()
    it.queue("a", "p.batch", "run", need(2, batch="batch:1"), 0.0, 0.0)
    it.queue("b", "p.batch", "other", need(2, batch="batch:1"), 0.01, 0.01)
    it.queue("c", "p.batch", "run", need(2, batch="batch:2"), 0.0, 0.0)
    queue(it, "d", 0.0)
    assert it.plan(0.0) == ([], GATHER_SECONDS)
    departures, _ = it.plan(GATHER_SECONDS)
    assert sorted((departure.batch, *left([departure])) for departure in departures) == [("batch:1", "ab"), ("batch:2", "c")]


def test_a_batch_to_be_repeated_may_exceed_the_size_of_a_new_one() -> None:
    """It is the batch that it was, although the providers file may say otherwise by now."""
    it = lane(forms={"p.batch": ToolForm(2, 0.25)})
    for name in "abcd":
        it.queue(name, "p.batch", "run", need(2, batch="batch:1"), 0.0, 0.0)
    assert left(it.plan(1.0)[0]) == ["abcd"]


def test_the_same_need_queued_twice_changes_nothing() -> None:
    it = lane()
    queue(it, "a", 0.0)
    queue(it, "a", 0.2)
    assert len(it) == 1
    assert it.plan(0.2) == ([], 0.25)
    assert left(it.plan(0.25)[0]) == ["a"]


def test_another_need_replaces_the_one_that_was_queued() -> None:
    it = lane()
    queue(it, "a", 0.0)
    it.queue("a", "p.batch", "run", need(2), 0.2, 0.2)
    assert len(it) == 1
    assert it.plan(0.25) == ([], 0.45)
    ((departure,), _) = it.plan(0.45)
    assert [entry.need for entry in departure.entries] == [need(2)]


@pytest.mark.parametrize("place", ["bucket", "repeat", "later"])
def test_what_needs_no_claim_any_more_is_taken_out_wherever_it_waits(place: str) -> None:
    it = lane()
    batch = "batch:1" if place == "repeat" else ""
    not_before = 1.0 if place == "later" else 0.0
    for name in "ab":
        it.queue(name, "p.batch", "run", need(batch=batch), 0.0, not_before)
    it.unqueue("a")
    it.unqueue("nobody")
    assert len(it) == 1
    assert left(run_dry(it)) == ["b"]
    assert len(it) == 0


@pytest.mark.parametrize("batch", ["", "batch:1"])
def test_the_last_one_taken_out_leaves_nothing_to_look_for(batch: str) -> None:
    it = lane()
    it.queue("a", "p.batch", "run", need(batch=batch), 0.0, 0.0)
    it.unqueue("a")
    assert it.plan(0.0) == ([], None)
