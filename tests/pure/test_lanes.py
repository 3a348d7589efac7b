"""Lane planning with the time passed in: windows, batches, pace, the gate, fairness, and that nothing is lost or leaves twice."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.engine.lanes import AHEAD_MAX, CLAIM_AHEAD_SECONDS, GATHER_SECONDS, Departure, Entry, Gcra, Lane, LanePace, ToolForm
from streams.engine.protocol import Need

WIDE = LanePace(concurrency=1000)
FORMS = {"p.batch": ToolForm(size_max=4, window_seconds=0.25)}


def need(n: int = 1, *, batch: str = "", epoch: int = 0) -> Need:
    return Need(n, epoch, n, 0, batch)


def lane(pace: LanePace = WIDE, forms: dict[str, ToolForm] | None = None, now: float = 0.0) -> Lane:
    return Lane(pace, FORMS if forms is None else forms, now)


def queue(it: Lane, names: Iterable[str], now: float, *, tool: str = "p.batch", run: str = "run", later: float = 0.0) -> None:
    for name in names:
        it.queue(name, tool, run, need(), now, now + later)


def left(departures: list[Departure]) -> list[str]:
    return ["".join(entry.receipt for entry in departure.entries) for departure in departures]


def run_dry(it: Lane, now: float = 0.0) -> list[Departure]:
    """All departures, when the lane is looked at just when it says so."""
    found: list[Departure] = []
    for _ in range(2_000):
        departures, again = it.plan(now)
        found += departures
        if again is None:
            return found
        assert again > now, "a busy loop"
        now = again
    raise AssertionError("the lane never runs dry")


# --- windows and batches ------------------------------------------------------------------------------------


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


# --- fairness -----------------------------------------------------------------------------------------------


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


# --- pace, ceiling and gate ---------------------------------------------------------------------------------

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


# --- later, again, replaced, withdrawn ----------------------------------------------------------------------


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


# --- against a model ----------------------------------------------------------------------------------------


@dataclass
class Model:
    """What a lane should hold: a plain dictionary of needs, and what it let go."""

    lane: Lane
    pace: LanePace
    forms: dict[str, ToolForm]
    now: float = 0.0
    gate: float = 0.0
    waiting: dict[str, tuple[str, Need, float]] = field(default_factory=dict)

    def queue(self, receipt: str, tool: str, run: str, wanted: Need, later: float) -> None:
        self.lane.queue(receipt, tool, run, wanted, self.now, self.now + later)
        old = self.waiting.get(receipt)
        if old is None or old[1] != wanted:
            self.waiting[receipt] = (tool, wanted, self.now + later)

    def unqueue(self, receipt: str) -> None:
        self.lane.unqueue(receipt)
        self.waiting.pop(receipt, None)

    def pause(self, seconds: float) -> None:
        self.gate = max(self.gate, self.now + seconds)
        self.lane.pause(self.now + seconds)

    def plan(self) -> float | None:
        departures, again = self.lane.plan(self.now)
        for departure in departures:
            self.departed(departure)
        assert len(self.lane) == len(self.waiting)
        assert self.lane.claimed <= self.pace.concurrency
        assert again is None or again > self.now, "a busy loop"
        if self.waiting and self.lane.claimed < self.pace.concurrency:
            assert again is not None, "what waits would be forgotten"
        if again is not None:
            early = copy.deepcopy(self.lane)
            for part in (0.5, 0.999):
                assert early.plan(self.now + (again - self.now) * part)[0] == [], "something could have left earlier"
        return again

    def departed(self, departure: Departure) -> None:
        assert self.now >= self.gate
        assert departure.entries
        assert departure.send_at <= self.now + CLAIM_AHEAD_SECONDS + 1e-9
        size_max = self.forms.get(departure.tool, ToolForm()).size_max
        assert departure.batch or len(departure.entries) <= size_max
        for entry in departure.entries:
            tool, wanted, not_before = self.waiting.pop(entry.receipt)
            assert (tool, wanted) == (entry.tool, entry.need)
            assert departure.tool == tool
            assert departure.batch == wanted.batch
            assert not_before <= self.now
            self.in_window(departure, entry)
        if departure.batch:
            ready = [name for name, (_, n, at) in self.waiting.items() if n.batch == departure.batch and at <= self.now]
            assert not ready, "a part of a batch stayed behind"

    def in_window(self, departure: Departure, entry: Entry) -> None:
        form = self.forms.get(departure.tool, ToolForm())
        if not departure.batch and len(departure.entries) < form.size_max:
            assert min(member.since for member in departure.entries) + form.window_seconds <= self.now
        assert entry.since <= self.now

    def drain(self) -> None:
        """Everything leaves in the end, when calls land and the lane is looked at just when it says so."""
        for _ in range(500):
            self.lane.claimed = 0
            again = self.plan()
            if again is None and not self.waiting:
                return
            self.now = self.now if again is None else again
        raise AssertionError(f"{len(self.waiting)} are still waiting")


names = st.sampled_from([f"r{index}" for index in range(8)])
tools = st.sampled_from(("p.batch", "p.single", "p.wide"))
needs = st.builds(lambda n, batch: need(n, batch=batch), st.integers(1, 2), st.sampled_from(("", "", "batch:1", "batch:2")))
# Eighths, so that sums of times are exact and a moment that is named can be met.
moments = st.integers(0, 12).map(lambda eighths: eighths / 8)
steps = st.one_of(
    st.tuples(st.just("queue"), names, st.sampled_from(("run1", "run2", "run3")), needs, st.one_of(st.just(0.0), moments)),
    st.tuples(st.just("unqueue"), names),
    st.tuples(st.just("pause"), moments),
    st.tuples(st.just("plan"), moments),
    st.tuples(st.just("land"), st.integers(1, 3)),
)


@given(
    st.lists(steps, max_size=30),
    st.builds(LanePace, st.sampled_from((None, 2.0, 64.0)), st.integers(1, 4), st.integers(1, 5)),
    st.dictionaries(names, tools, min_size=8),
)
def test_nothing_queued_is_lost_or_leaves_twice(script: list[tuple[Any, ...]], pace: LanePace, tool_of: dict[str, str]) -> None:
    forms = {"p.batch": ToolForm(3, 0.25), "p.wide": ToolForm(100, 1.0)}
    model = Model(Lane(pace, forms, 0.0), pace, forms)
    for step, *fields in script:
        match step:
            case "queue":
                receipt, run, wanted, later = fields
                tool = tool_of[receipt]
                if wanted.batch:
                    # A batch is one call of one tool.
                    wanted = need(wanted.n, batch=f"{wanted.batch}/{tool}")
                model.queue(receipt, tool, run, wanted, later)
            case "unqueue":
                model.unqueue(*fields)
            case "pause":
                model.pause(*fields)
            case "plan":
                model.now += fields[0]
                model.plan()
            case _:
                model.lane.claimed = max(0, model.lane.claimed - fields[0])
    model.drain()
    assert model.lane.plan(model.now + 100) == ([], None)
