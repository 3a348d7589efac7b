"""A lane against a model of it: whatever comes in whatever order, nothing is lost and nothing leaves twice."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams.engine.buckets import Entry, ToolForm
from streams.engine.lanes import CLAIM_AHEAD_SECONDS, Departure, Lane, LanePace
from streams.engine.protocol import Need
from tests.support.lanes import need


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
        doubtful = any(entry.need.op != entry.need.n for entry in departure.entries)
        assert departure.batch or not doubtful or len(departure.entries) == 1, "a call under another key than before"
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
        if entry.need.op == entry.need.n and not departure.batch and len(departure.entries) < form.size_max:
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
needs = st.one_of(
    st.builds(lambda n, batch: need(n, batch=batch), st.integers(1, 2), st.sampled_from(("", "", "batch:1", "batch:2"))),
    # A call for one that is in doubt.
    st.just(Need(3, 0, 2, 0, "", 1)),
)
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
