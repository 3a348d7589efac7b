"""The runs engine, given / when / then: how a run begins and its rows are sent down, and which requests are refused."""

from __future__ import annotations

import json

import pytest

from schemas import address
from schemas.commands import (
    CancelRequested,
    CountersDue,
    Misrouted,
    ProgressDue,
    RowsAppended,
    RowsSealed,
    RunRequested,
)
from schemas.events import (
    AddedRow,
    CompiledPlay,
    Event,
    RowsAdded,
    RunCancelled,
    RunClosing,
    RunOpened,
)
from schemas.progress import Counts
from streams.engine.inputlines import ROWS_MAX
from streams.engine.runs import FAULTS_MAX, PROGRESS_EVERY_MS, RunsEngine
from tests.support.given_runs import (
    COLUMN,
    PARTITIONS,
    PLAY,
    chunk,
    counted,
    ledger,
    progress,
    raw,
    requested,
    rows_of,
    runs_table,
    sent,
    settles,
    sizes,
    types,
)
from tests.support.memory import Table

# --- requests ----------------------------------------------------------------------------------------------------------


def test_a_run_is_opened_where_its_rows_live_and_each_row_goes_to_the_home_of_its_key() -> None:
    outbox = runs_table().given(requested(20, force=True))
    seen: list[AddedRow] = []
    for partition, events in sent(outbox, "row-work").items():
        opening, *chunks = events
        assert opening == RunOpened("run", "org", PLAY, True, False)
        for event in chunks:
            assert isinstance(event, RowsAdded)
            assert all(address.spread(row.key, PARTITIONS) == partition for row in event.rows)
            seen += event.rows
    assert sorted(row.position for row in seen) == list(range(20))
    assert {row.position: row.fields for row in seen} == {number: raw(number) for number in range(20)}
    assert all(row.key == address.row_key("people", (), json.loads(row.fields)) for row in seen)


def test_rows_travel_in_events_of_bounded_size() -> None:
    table = Table(RunsEngine(), partitions=1)
    outbox = table.given(requested(ROWS_MAX * 2 + 1))
    _, *chunks = outbox.events[("row-work", 0)]
    assert [len(event.rows) for event in chunks if isinstance(event, RowsAdded)] == [ROWS_MAX, ROWS_MAX, 1]


def test_E1_the_ledger_begins_with_started_and_progress_knows_the_total() -> None:
    outbox = runs_table().given(requested(3))
    (started,) = ledger(outbox)
    assert (started.type, started.run, started.play, started.dataset, started.sequence) == (
        "run.started",
        "run",
        "play",
        "people",
        1,
    )
    assert not started.terminal
    (sample,) = progress(outbox)
    assert (sample.status, sample.counts.total, sample.counts.done) == ("running", 3, 0)
    assert sample.message == "0 / 3 rows processed"


def test_public_events_are_keyed_by_run_and_each_has_an_identity_of_its_own() -> None:
    table = runs_table()
    outboxes = [table.given(requested(3)), settles(table, {0: 3})]
    events = [event for outbox in outboxes for event in outbox.public]
    assert {event.key for event in events} == {"run"}
    assert len({event.id for event in events}) == len(events)
    assert all(event.type.startswith("paidonce.") for event in events)


def test_case_I4_the_same_request_twice_is_one_run() -> None:
    table = runs_table()
    table.given(requested(3))
    outbox = table.given(requested(3))
    assert (outbox.events, outbox.public) == ({}, [])


def test_case_I4_another_request_under_the_same_id_is_rejected_and_the_run_goes_on_unharmed() -> None:
    table = runs_table()
    shares = sizes(table.given(requested(3)))
    outbox = table.given(requested(4, digest="other"))
    (event,) = ledger(outbox)
    assert (event.type, event.code, event.terminal) == ("run.rejected", "run_id_in_use", False)
    assert "'run'" in event.message
    assert outbox.events == {}
    assert types(settles(table, shares)) == ["run.completed"]


def test_case_I4_the_same_request_after_the_runs_end_changes_nothing() -> None:
    table = runs_table()
    settles(table, sizes(table.given(requested(3))))
    outbox = table.given(requested(3))
    assert (outbox.events, outbox.public) == ({}, [])


def test_a_faulty_request_for_a_run_that_exists_names_its_faults_and_does_no_harm() -> None:
    """Such as appended rows with an unknown field: "another request" would be no help to whoever wrote them."""
    table = runs_table()
    shares = sizes(table.given(requested(3)))
    (event,) = ledger(table.given(requested(digest="x", play=None, faults=("rows_appended.first: missing",))))
    assert (event.type, event.code, event.faults) == ("run.rejected", "invalid_request", ("rows_appended.first: missing",))
    assert types(settles(table, shares)) == ["run.completed"]


def test_M1_a_refused_request_names_every_fault_and_starts_nothing() -> None:
    table = runs_table()
    outbox = table.given(requested(play=None, faults=("play.columns.0.tool: unknown", "run: too long")))
    (event,) = ledger(outbox)
    assert (event.type, event.code, event.terminal) == ("run.refused", "invalid_request", True)
    assert event.faults == ("play.columns.0.tool: unknown", "run: too long")
    assert event.message == "the run request has 2 faults"
    assert (outbox.events, table.reader.data) == ({}, {})
    assert types(table.given(requested(3))) == ["run.started"]


def test_M1_faults_of_rows_are_named_by_their_position_all_of_them() -> None:
    table = runs_table()
    play = CompiledPlay("play", "people", "rev", ("id",), (COLUMN,))
    rows = (b'{"id":1}', b'{"x":1}', b'{"id":null}', b"[1]", b"{", b'{"id":{"$bytes":"?"}}')
    (event,) = ledger(table.given(RunRequested("run", "org", "d", play, (), rows)))
    assert event.type == "run.refused"
    assert [fault.split(":")[0] for fault in event.faults] == ["row 1", "row 2", "row 3", "row 4", "row 5"]


def test_a_refusal_names_a_bounded_number_of_faults_and_counts_them_all() -> None:
    faults = tuple(f"fault {number}" for number in range(1_000))
    (event,) = ledger(runs_table().given(requested(play=None, faults=faults)))
    assert len(event.faults) == FAULTS_MAX
    assert event.message == "the run request has 1000 faults"


def test_rows_that_are_not_as_many_as_announced_are_a_fault() -> None:
    (event,) = ledger(runs_table().given(requested(3, expected=4)))
    assert event.faults == ("expected_rows: 4, but the request has 3 rows",)
    assert event.message == "the run request has 1 fault"


def test_a_run_without_rows_ends_at_once() -> None:
    outbox = runs_table().given(requested(0))
    assert types(outbox) == ["run.started", "run.completed"]
    assert progress(outbox)[-1].counts == Counts(total=0)


def test_a_misrouted_request_is_forwarded_to_its_runs_home_as_it_came() -> None:
    outbox = runs_table().given(Misrouted("run", "run-requests", b"{...}"))
    (forwarded,) = outbox.public
    assert (forwarded.topic, forwarded.key, forwarded.data) == ("run-requests", "run", b"{...}")
    assert forwarded.partition == address.partition_of("run", PARTITIONS)
    assert outbox.events == {}


# --- appended rows -----------------------------------------------------------------------------------------------------


def test_chunks_in_order_are_sent_down_and_the_seal_makes_the_total_known() -> None:
    table = runs_table()
    outbox = table.given(requested(None))
    assert progress(outbox)[0].counts.total is None
    assert progress(outbox)[0].message == "0 / ? rows processed"
    positions: list[int] = []
    for event in (chunk(0, 2), chunk(2, 3)):
        positions += [row.position for rows in rows_of(table.given(event)).values() for row in rows]
    assert sorted(positions) == list(range(5))
    table.now_ms += PROGRESS_EVERY_MS
    (sample,) = progress(table.given(RowsSealed("run", 5)))
    assert (sample.counts.total, sample.counts.received) == (5, 5)


def test_a_partition_hears_of_the_run_once_however_many_chunks_it_gets() -> None:
    table = Table(RunsEngine(), partitions=1)
    table.given(requested(None), chunk(0, 2))
    outbox = table.given(chunk(2, 2))
    assert [type(event) for event in outbox.events[("row-work", 0)]] == [RowsAdded]


def test_a_chunk_that_comes_twice_adds_nothing() -> None:
    table = runs_table()
    table.given(requested(None), chunk(0, 2), chunk(2, 2))
    outbox = table.given(chunk(0, 2), chunk(2, 2))
    assert (outbox.events, ledger(outbox)) == ({}, [])
    table.given(RowsSealed("run", 4))
    assert table.given(chunk(2, 2), RowsSealed("run", 4)).events == {}


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ((chunk(0, 2), chunk(0, 2, digest="other")), "rows_conflict", "row 0"),
        ((chunk(0, 2), chunk(3, 2)), "rows_out_of_order", "expected 2"),
        ((chunk(0, 2), chunk(1, 2)), "rows_out_of_order", "row 1"),
        ((chunk(1, 1),), "rows_out_of_order", "expected 0"),
        ((chunk(0, 2), RowsSealed("run", 3)), "rows_missing", "3 rows, but 2 came"),
        ((chunk(0, 2), RowsSealed("run", 1)), "rows_missing", "1 rows, but 2 came"),
        ((RowsAppended("run", 0, (b"{}", b"[]"), "d"),), "bad_row", "row 1"),
    ],
)
def test_input_that_contradicts_itself_fails_the_run_and_stops_its_rows(events: tuple[Event, ...], code: str, words: str) -> None:
    table = runs_table()
    opened = table.given(requested(None))
    for event in events[:-1]:
        opened = table.given(event)
    outbox = table.given(events[-1])
    (event,) = ledger(outbox)
    assert (event.type, event.code) == ("run.failed", code)
    assert words in event.message
    expected = {partition: [RunCancelled("run"), RunClosing("run")] for partition in sent(opened, "row-work")}
    assert sent(outbox, "row-control") == expected
    for late in (chunk(2, 2), RowsSealed("run", 4), CancelRequested("run"), counted(0, completed=1), ProgressDue("run")):
        outbox = table.given(late)
        assert (outbox.events, outbox.public, outbox.effects) == ({}, [], [])


@pytest.mark.parametrize(
    ("event", "code"),
    [(chunk(2, 2), "too_many_rows"), (RowsSealed("run", 2), "rows_missing"), (RowsSealed("run", 3), "rows_missing")],
)
def test_case_I1_other_rows_than_announced_fail_the_run_so_that_its_total_stays(event: Event, code: str) -> None:
    table = runs_table()
    totals = [sample.counts.total for sample in progress(table.given(requested(None, expected=3)))]
    table.given(chunk(0, 2))
    outbox = table.given(event)
    assert [event.code for event in ledger(outbox)] == [code]
    assert totals + [sample.counts.total for sample in progress(outbox)] == [3, 3]


def test_rows_as_many_as_announced_are_fine() -> None:
    table = runs_table()
    table.given(requested(None, expected=2), chunk(0, 2))
    assert ledger(table.given(RowsSealed("run", 2))) == []


@pytest.mark.parametrize(
    "event", [chunk(0, 1), RowsSealed("run", 0), CancelRequested("run"), counted(0, completed=1), ProgressDue("run")]
)
def test_what_comes_for_a_run_that_nobody_asked_for_changes_nothing(event: Event) -> None:
    table = runs_table()
    outbox = table.given(event)
    assert (outbox.events, outbox.public, outbox.effects, table.reader.data) == ({}, [], [], {})


def test_an_event_of_another_agent_changes_nothing() -> None:
    table = runs_table()
    assert table.given(CountersDue("run")).public == []
