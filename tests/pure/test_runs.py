"""The runs engine, given / when / then: requests, rows sent down, counters added up, and one end for each run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import address
from schemas.commands import (
    CancelRequested,
    CountersDue,
    Misrouted,
    ProgressDue,
    RecoveryEnded,
    RowsAppended,
    RowsSealed,
    RunRequested,
)
from schemas.events import (
    AddedRow,
    CallCounts,
    CompiledColumn,
    CompiledPlay,
    Event,
    Repeat,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosing,
    RunOpened,
)
from schemas.progress import Counts, FailedRow, MapProgress, RunEvent
from streams.engine.port import Outbox, Wake
from streams.engine.runs import FAULTS_MAX, HEARTBEAT_MS, PROGRESS_EVERY_MS, ROWS_MAX, RunsEngine, message_of
from tests.support.memory import Table

PARTITIONS = 8
COLUMN = CompiledColumn("check", "p.t", "org/p", "1", "scope", Repeat.NEVER, '{"x":"{{ row.x }}"}')
PLAY = CompiledPlay("play", "people", "rev", (), (COLUMN,))


def raw(number: int) -> bytes:
    return json.dumps({"x": number}).encode()


def requested(
    rows: int | None = 3,
    *,
    run: str = "run",
    digest: str = "d",
    play: CompiledPlay | None = PLAY,
    faults: tuple[str, ...] = (),
    expected: int | None = None,
    force: bool = False,
) -> RunRequested:
    lines = tuple(raw(number) for number in range(rows or 0))
    return RunRequested(run, "org", digest, play, faults, lines, rows is not None, expected, force)


def chunk(first: int, size: int, *, digest: str = "") -> RowsAppended:
    rows = tuple(raw(number) for number in range(first, first + size))
    return RowsAppended("run", first, rows, digest or f"{first}+{size}")


def runs_table() -> Table:
    return Table(RunsEngine(), partitions=PARTITIONS)


def ledger(outbox: Outbox) -> list[RunEvent]:
    """Run events as a reader gets them."""
    return [RunEvent.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "run-events"]


def progress(outbox: Outbox) -> list[MapProgress]:
    """Progress as a reader gets it."""
    return [MapProgress.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "map-progress"]


def types(outbox: Outbox) -> list[str]:
    return [event.type for event in ledger(outbox)]


def sent(outbox: Outbox, topic: str) -> dict[int, list[Event]]:
    return {partition: events for (name, partition), events in outbox.events.items() if name == topic}


def rows_of(outbox: Outbox) -> dict[int, list[AddedRow]]:
    """Rows that were sent down, by partition."""
    return {
        partition: [row for event in events if isinstance(event, RowsAdded) for row in event.rows]
        for partition, events in sent(outbox, "row-work").items()
    }


def sizes(outbox: Outbox) -> dict[int, int]:
    return {partition: len(rows) for partition, rows in rows_of(outbox).items()}


def counted(partition: int, sequence: int = 1, *, final: bool = False, calls: CallCounts | None = None, **rows: int) -> RowsCounted:
    counts = RowCounts(**({"seen": sum(rows.values())} | rows))
    return RowsCounted("run", partition, sequence, counts, calls or CallCounts(live=counts.completed), final)


def settles(table: Table, shares: dict[int, int], **states: int) -> Outbox:
    """All partitions settle their rows: as many as ``states`` say in these, the rest completed; then they close."""
    left = dict(states)
    reports: dict[int, dict[str, int]] = {}
    for partition, size in shares.items():
        rows = reports[partition] = {}
        for name in left:
            rows[name] = min(left[name], size - sum(rows.values()))
            left[name] -= rows[name]
        rows["completed"] = size - sum(rows.values())
    table.given(*(counted(partition, **rows) for partition, rows in reports.items()))
    return table.given(*(counted(partition, 2, final=True, **rows) for partition, rows in reports.items()))


# --- requests -----------------------------------------------------------------------------------------------


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


# --- appended rows ------------------------------------------------------------------------------------------


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


# --- the end ------------------------------------------------------------------------------------------------


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


# --- progress -----------------------------------------------------------------------------------------------


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
