"""The runs engine, given / when / then: how a run closes and ends, and what is told of its progress."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import (
    CancelRequested,
    ProgressDue,
    RecoveryEnded,
    RowsSealed,
)
from schemas.events import (
    CallCounts,
    RowCounts,
    RowsCounted,
    RunCancelled,
    RunClosing,
)
from schemas.progress import Counts, FailedRow, MapProgress, RunEvent
from streams.engine.port import Wake
from streams.engine.runs import HEARTBEAT_MS, PROGRESS_EVERY_MS, RunsEngine, message_of
from tests.support.given_runs import chunk, counted, ledger, progress, requested, runs_table, sent, settles, sizes, types
from tests.support.memory import Table

# --- the end -----------------------------------------------------------------------------------------------------------


def test_M9_a_run_closes_only_when_every_partition_has_accounted_for_what_it_was_sent() -> None:
    table = runs_table()
    shares = sizes(table.given(requested(20)))
    assert len(shares) > 1
    *first, last = shares.items()
    outbox = table.given(*(counted(partition, completed=size) for partition, size in first))
    assert sent(outbox, "row-control") == {}
    table.given(counted(last[0], completed=last[1] - 1, seen=last[1]))
    outbox = table.given(counted(last[0], 2, completed=last[1]))
    assert sent(outbox, "row-control") == {partition: [RunClosing("run")] for partition in shares}
    assert ledger(outbox) == []


def test_M9_a_run_is_not_closed_before_it_is_sealed() -> None:
    table = runs_table()
    table.given(requested(None))
    shares = sizes(table.given(chunk(0, 4)))
    assert sent(table.given(*(counted(partition, completed=size) for partition, size in shares.items())), "row-control") == {}
    assert sent(table.given(RowsSealed("run", 4)), "row-control").keys() == shares.keys()


def test_M9_partitions_that_only_add_up_together_do_not_close_a_run() -> None:
    """One counts a row twice and another none: the sum is right and the run is not."""
    table = runs_table()
    shares = sizes(table.given(requested(20)))
    (one, size), (other, more), *rest = shares.items()
    reports = [counted(one, completed=size + 1), counted(other, completed=more - 1)]
    outbox = table.given(*reports, *(counted(partition, completed=number) for partition, number in rest))
    assert sent(outbox, "row-control") == {}


def test_E1_the_terminal_event_comes_once_last_and_after_the_last_progress() -> None:
    table = runs_table()
    shares = sizes(table.given(requested(20)))
    outbox = settles(table, shares)
    assert [event.topic for event in outbox.public] == ["map-progress", "run-events"]
    (end,) = ledger(outbox)
    assert (end.type, end.terminal, end.code) == ("run.completed", True, "")
    assert end.counts is not None
    assert end.counts.completed == end.counts.total == 20
    (sample,) = progress(outbox)
    assert (sample.status, sample.ended_ms) == ("completed", table.now_ms)
    for event in (counted(partition, 9, final=True, completed=size) for partition, size in shares.items()):
        outbox = table.given(event, RecoveryEnded(), ProgressDue("run"))
        assert (outbox.public, outbox.events, outbox.effects) == ([], {}, [])


@pytest.mark.parametrize(
    ("states", "kind", "code"),
    [
        ({}, "run.completed", ""),
        ({"failed": 1}, "run.completed", "partial_failures"),
        ({"failed": 20}, "run.failed", "all_rows_failed"),
        ({"failed": 18, "duplicate": 2}, "run.failed", "all_rows_failed"),
        ({"failed": 19, "reused": 1}, "run.completed", "partial_failures"),
        ({"unknown": 1}, "run.completed", "unknown_outcomes"),
        ({"unknown": 1, "failed": 19}, "run.completed", "unknown_outcomes"),
        ({"skipped": 20}, "run.completed", ""),
        ({"reused": 15, "duplicate": 5}, "run.completed", ""),
    ],
)
def test_M8_how_a_run_ends_follows_from_its_rows(states: dict[str, int], kind: str, code: str) -> None:
    table = runs_table()
    outbox = settles(table, sizes(table.given(requested(20))), **states)
    (end,) = ledger(outbox)
    assert (end.type, end.code) == (kind, code)
    assert end.counts is not None
    assert end.counts.done == end.counts.total == 20
    for name, number in states.items():
        assert getattr(end.counts, name) == number


def test_M13_the_end_shows_three_samples_of_failed_rows_in_order_of_the_input() -> None:
    table = Table(RunsEngine(), partitions=2)
    shares = sizes(table.given(requested(20)))
    positions = {0: (9, 3), 1: (10, 2)}
    for sequence, final in ((1, False), (2, True)):
        events = []
        for partition, size in shares.items():
            rows = RowCounts(seen=size, completed=size - 2, failed=2)
            samples = tuple((at, "check", f"no {at}") for at in positions[partition])
            events.append(RowsCounted("run", partition, sequence, rows, CallCounts(), final, samples))
        outbox = table.given(*events)
    (end,) = ledger(outbox)
    assert end.failed_samples == tuple(FailedRow(position=at, column="check", message=f"no {at}") for at in (2, 3, 9))


def test_M15_a_cancelled_run_tells_every_partition_and_ends_cancelled_once_all_is_accounted_for() -> None:
    table = runs_table()
    shares = sizes(table.given(requested(20)))
    outbox = table.given(CancelRequested("run", "somebody"))
    assert sent(outbox, "row-control") == {partition: [RunCancelled("run")] for partition in shares}
    assert ledger(outbox) == []
    assert table.given(CancelRequested("run")).events == {}
    (end,) = ledger(settles(table, shares, skipped=15))
    assert (end.type, end.code) == ("run.cancelled", "cancelled")


def test_M15_a_run_whose_rows_still_come_can_be_cancelled_and_takes_no_more() -> None:
    table = runs_table()
    table.given(requested(None))
    shares = sizes(table.given(chunk(0, 4)))
    table.given(CancelRequested("run"))
    assert table.given(chunk(4, 4), RowsSealed("run", 8)).events == {}
    (end,) = ledger(settles(table, shares, skipped=4))
    assert end.type == "run.cancelled"


def test_a_cancel_that_comes_while_the_run_closes_is_too_late() -> None:
    table = runs_table()
    shares = sizes(table.given(requested(4)))
    table.given(*(counted(partition, completed=size) for partition, size in shares.items()))
    outbox = table.given(CancelRequested("run"))
    assert outbox.events == {}
    assert types(table.given(*(counted(at, 2, final=True, completed=size) for at, size in shares.items()))) == ["run.completed"]


# --- progress ----------------------------------------------------------------------------------------------------------


def test_O2_progress_is_published_at_most_every_250_ms() -> None:
    table = Table(RunsEngine(), partitions=1)
    table.given(requested(10))
    table.now_ms += 100
    outbox = table.given(counted(0, 1, completed=3, seen=10))
    assert progress(outbox) == []
    assert outbox.effects == [Wake(1_000_000 + PROGRESS_EVERY_MS, ProgressDue("run"))]
    table.now_ms = 1_000_000 + PROGRESS_EVERY_MS
    (sample,) = progress(table.given(ProgressDue("run")))
    assert (sample.counts.completed, sample.counts.calls_live) == (3, 3)


def test_O2_a_run_in_which_nothing_changes_gives_a_heartbeat_every_five_seconds() -> None:
    table = Table(RunsEngine(), partitions=1)
    outbox = table.given(requested(10))
    assert outbox.effects == [Wake(table.now_ms + HEARTBEAT_MS, ProgressDue("run"))]
    table.now_ms += HEARTBEAT_MS - 1
    assert progress(table.given(ProgressDue("run"))) == []
    table.now_ms += 1
    outbox = table.given(ProgressDue("run"))
    assert len(progress(outbox)) == 1
    assert outbox.effects == [Wake(table.now_ms + HEARTBEAT_MS, ProgressDue("run"))]


def test_a_new_owner_takes_up_the_progress_of_the_runs_that_live() -> None:
    table = runs_table()
    table.given(requested(3, run="one"), requested(0, run="two"))
    outbox = table.given(RecoveryEnded())
    assert [effect.command for effect in outbox.effects if isinstance(effect, Wake)] == [ProgressDue("one")]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (Counts(total=10_000, completed=1_204), "1,204 / 10,000 rows processed"),
        (
            Counts(total=9, completed=1, failed=1, unknown=1, reused=1, duplicate=1, skipped=1),
            "6 / 9 rows processed (1 failed, 1 unknown, 1 reused, 1 duplicate, 1 skipped)",
        ),
        (Counts(), "0 / ? rows processed"),
    ],
)
def test_O1_progress_in_words(counts: Counts, message: str) -> None:
    assert message_of(counts) == message


STATES = ("completed", "failed", "skipped", "reused", "duplicate", "unknown")


@st.composite
def reports(draw: st.DrawFn) -> tuple[int, list[list[dict[str, int]]]]:
    """For a run on two partitions: how many rows, and what each partition would publish in its order."""
    rows = draw(st.integers(1, 8))
    shares = sizes(Table(RunsEngine(), partitions=2).given(requested(rows)))
    streams: list[list[dict[str, int]]] = []
    for size in (shares.get(partition, 0) for partition in range(2)):
        state: dict[str, int] = {"seen": 0}
        stream = [dict(state)]
        for _ in range(size):
            name = draw(st.sampled_from(STATES))
            state["seen"] += 1
            state[name] = state.get(name, 0) + 1
            stream.append(dict(state))
        streams.append(stream)
    return rows, streams


@settings(max_examples=100)
@given(reports(), st.data())
def test_case_I1_progress_never_falls_nor_exceeds_the_total_whatever_the_order_and_number_of_counters(
    story: tuple[int, list[list[dict[str, Any]]]], data: st.DataObject
) -> None:
    """Counters late, lost, twice and out of order, of two partitions; the terminal event comes exactly once and last."""
    rows, streams = story
    table = Table(RunsEngine(), partitions=2)
    shares = sizes(table.given(requested(rows)))
    events = [
        counted(partition, sequence, final=False, **state)
        for partition, stream in enumerate(streams)
        for sequence, state in enumerate(stream, 1)
    ]
    chosen = data.draw(st.lists(st.sampled_from(events), max_size=12))
    last = [counted(at, len(streams[at]), **streams[at][-1]) for at in shares]
    final = [counted(at, len(streams[at]) + 1, final=True, **streams[at][-1]) for at in shares]
    done, ends = 0, 0
    for event in [*chosen, *last, *data.draw(st.permutations(final * 2)), *chosen, RecoveryEnded(), ProgressDue("run")]:
        table.now_ms += data.draw(st.sampled_from((1, 300)))
        for public in table.given(event).public:
            assert ends == 0, "something came after the terminal event"
            if public.topic == "map-progress":
                counts = MapProgress.model_validate_json(public.data or b"").counts
                assert counts.total == rows
                assert done <= counts.done <= rows
                done = counts.done
            else:
                end = RunEvent.model_validate_json(public.data or b"")
                assert end.terminal
                assert end.counts is not None
                assert end.counts.done == rows
                ends += 1
    assert (done, ends) == (rows, 1)
