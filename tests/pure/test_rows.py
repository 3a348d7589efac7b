"""The rows engine, given / when / then: dispositions, columns in order, answers, counters, cancel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import address
from schemas.commands import CountersDue, ProgressDue, RecoveryEnded
from schemas.events import (
    AddedRow,
    Answer,
    CallCounts,
    CallsAnswered,
    CallWithdrawn,
    CompiledColumn,
    CompiledPlay,
    Event,
    Fault,
    Mark,
    Mode,
    Repeat,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosing,
    RunOpened,
    ToolRequested,
)
from schemas.progress import MapRow
from streams.engine.port import Outbox, Wake
from streams.engine.rows import INPUT_BYTES_MAX, RowsEngine
from streams.engine.rowsturn import COUNTERS_EVERY_MS
from tests.support.memory import Table

NO = Fault("refused", "the provider said no")
BROKEN = Fault("http_503", "the provider is closed", repairable=True)
LOST = Fault("lost", "the answer is lost")


def column(
    name: str = "check",
    template: Any = None,
    *,
    needs: tuple[str, ...] = (),
    extract: str | None = None,
    private_to: str | None = None,
) -> CompiledColumn:
    text = json.dumps({"x": "{{ row.x }}"} if template is None else template)
    return CompiledColumn(name, "p.t", "org/p", "1", "scope", Repeat.NEVER, text, needs, extract, private_to)


def play(*columns: CompiledColumn, revision: str = "rev") -> CompiledPlay:
    return CompiledPlay("play", "people", revision, (), columns or (column(),))


def opened(run: str = "run", *, force: bool = False, refresh: bool = False, of: CompiledPlay | None = None) -> RunOpened:
    return RunOpened(run, "org", play() if of is None else of, force, refresh)


def row(position: int, key: str | None = None, **fields: Any) -> AddedRow:
    return AddedRow(position, key or f"key{position}", json.dumps(fields or {"x": position}).encode())


def added(*rows: AddedRow, run: str = "run") -> RowsAdded:
    return RowsAdded(run, rows)


def rows_table() -> Table:
    return Table(RowsEngine())


def asked(outbox: Outbox) -> list[ToolRequested]:
    found = [event for (topic, _), events in outbox.events.items() if topic == "tool-requests" for event in events]
    return [event for event in found if isinstance(event, ToolRequested)]


def ask(outbox: Outbox) -> ToolRequested:
    (request,) = asked(outbox)
    return request


def withdrawn(outbox: Outbox) -> list[CallWithdrawn]:
    found = [event for (topic, _), events in outbox.events.items() if topic == "tool-requests" for event in events]
    return [event for event in found if isinstance(event, CallWithdrawn)]


def counted(outbox: Outbox) -> list[RowsCounted]:
    return [
        event
        for (topic, _), events in outbox.events.items()
        if topic == "row-progress"
        for event in events
        if isinstance(event, RowsCounted)
    ]


def counts(outbox: Outbox) -> RowCounts:
    (event,) = counted(outbox)
    return event.rows


def later(table: Table, run: str = "run") -> Outbox:
    """What the timer of a run's counters brings when it is due."""
    table.now_ms += COUNTERS_EVERY_MS
    return table.given(CountersDue(run))


def sheet(outbox: Outbox) -> list[MapRow]:
    """The rows that were published, as a reader of ``map-rows`` gets them."""
    assert all(event.topic == "map-rows" for event in outbox.public)
    found = [MapRow.model_validate_json(event.data or b"") for event in outbox.public]
    assert [event.key for event in outbox.public] == [f"{shown.dataset}/{shown.key}" for shown in found]
    return found


def answer(
    request: ToolRequested,
    output: Any = None,
    *,
    what: Answer = Answer.COMPLETED,
    fault: Fault | None = None,
    mark: Mark = Mark.LIVE,
    n: int = 1,
) -> CallsAnswered:
    text = json.dumps(output).encode() if what in (Answer.COMPLETED, Answer.NO_RESULT) else None
    return CallsAnswered(request.receipt, n, what, ((request.call, mark),), text, fault)


def failed(request: ToolRequested, fault: Fault = NO, mark: Mark = Mark.LIVE) -> CallsAnswered:
    return answer(request, what=Answer.FAILED, fault=fault, mark=mark)


def unknown(request: ToolRequested) -> CallsAnswered:
    return answer(request, what=Answer.UNKNOWN, fault=LOST)


# --- dispositions -------------------------------------------------------------------------------------------


def test_M2_a_new_row_is_pending_and_its_first_column_is_asked_for() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0, x="a"))))
    assert request.input == b'{"x":"a"}'
    assert request.call == "run:key0:check"
    assert (request.run, request.destination, request.lane, request.tool) == ("run", 0, "org/p", "p.t")
    assert (request.mode, request.refresh, request.repeat) == (Mode.NORMAL, None, Repeat.NEVER)


def test_a_request_goes_to_the_home_of_its_lane() -> None:
    outbox = rows_table().given(opened(), added(row(0)))
    assert ("tool-requests", address.spread("org/p", 8)) in outbox.events


def test_K1_the_same_ask_of_two_rows_has_one_receipt_and_a_private_tool_one_for_each_dataset() -> None:
    table = rows_table()
    first, second = asked(table.given(opened(), added(row(0, x="a"), row(1, x="a"))))
    assert first.receipt == second.receipt
    assert first.call != second.call
    private = ask(table.given(opened("other", of=play(column(private_to="people"))), added(row(0, "k", x="a"), run="other")))
    assert private.receipt != first.receipt


def test_M2_a_row_that_stands_is_reused_and_costs_nothing() -> None:
    table = rows_table()
    table.given(answer(ask(table.given(opened(), added(row(0)))), "v"))
    outbox = table.given(opened("again"), added(row(5, "key0", x=0), run="again"))
    assert asked(outbox) == []
    assert counts(outbox) == RowCounts(seen=1, reused=1)
    assert outbox.public == []


@pytest.mark.parametrize("change", ["input", "revision", "force", "refresh"])
def test_M2_a_row_is_computed_again_for_another_input_or_revision_or_when_forced(change: str) -> None:
    table = rows_table()
    table.given(answer(ask(table.given(opened(), added(row(0)))), "v"))
    of = play(revision="new") if change == "revision" else play()
    again = opened("again", of=of, force=change == "force", refresh=change == "refresh")
    fields = {"x": 7 if change == "input" else 0}
    assert ask(table.given(again, added(row(0, **fields), run="again"))).call == "again:key0:check"


@pytest.mark.parametrize(
    ("force", "refresh", "mode"),
    [(True, False, Mode.FAILED_REFRESH), (False, True, Mode.FULL_REFRESH), (True, True, Mode.FULL_REFRESH)],
)
def test_R2_a_forced_run_asks_with_its_mode_and_one_refresh_for_all_its_rows(force: bool, refresh: bool, mode: Mode) -> None:
    requests = asked(rows_table().given(opened(force=force, refresh=refresh), added(row(0), row(1))))
    assert {(request.mode, request.refresh) for request in requests} == {(mode, address.refresh_id(run="run"))}


def test_M6_a_row_that_failed_runs_again_in_the_next_run() -> None:
    table = rows_table()
    table.given(failed(ask(table.given(opened(), added(row(0))))))
    assert asked(table.given(opened("again"), added(row(0), run="again")))


def test_rows_of_a_run_that_was_never_opened_here_change_nothing() -> None:
    table = rows_table()
    outbox = table.given(added(row(0)))
    assert (outbox.events, outbox.public) == ({}, [])


def test_M5_the_first_of_two_rows_with_one_key_wins_and_the_other_is_counted() -> None:
    table = rows_table()
    outbox = table.given(opened(), added(row(0, "k", x="a"), row(3, "k", x="b")))
    assert ask(outbox).input == b'{"x":"a"}'
    assert counts(later(table)) == RowCounts(seen=2, duplicate=1)
    (shown,) = sheet(table.given(answer(ask(outbox), "v")))
    assert (shown.position, shown.fields) == (0, {"x": "a"})


def test_M5_a_duplicate_that_comes_after_its_row_has_settled_is_one_all_the_same() -> None:
    table = rows_table()
    table.given(answer(ask(table.given(opened(), added(row(0, "k")))), "v"))
    assert counts(table.given(added(row(9, "k")))) == RowCounts(seen=2, completed=1, duplicate=1)


def test_a_chunk_that_comes_twice_changes_nothing() -> None:
    table = rows_table()
    chunk = added(row(0, "a"), row(1, "b"), row(2, "a"))
    table.given(opened(), chunk)
    before = dict(table.reader.data)
    outbox = table.given(chunk)
    assert (outbox.events, outbox.public) == ({}, [])
    assert table.reader.data == before


def test_a_run_that_is_opened_twice_goes_on() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    table.given(opened())
    assert counts(table.given(answer(request, "v"))) == RowCounts(seen=1, completed=1)


# --- columns ------------------------------------------------------------------------------------------------


def test_C1_columns_are_computed_in_order_and_a_later_one_uses_an_earlier_ones_value() -> None:
    table = rows_table()
    of = play(column("first"), column("second", {"y": "{{ row.first.score }}", "x": "{{ row.x }}"}))
    first = ask(table.given(opened(of=of), added(row(0, x="a"))))
    outbox = table.given(answer(first, {"score": 5}))
    second = ask(outbox)
    assert second.call == "run:key0:second"
    assert second.input == b'{"x":"a","y":5}'
    assert outbox.public == []
    (shown,) = sheet(table.given(answer(second, "v")))
    assert {name: cell.value for name, cell in shown.cells.items()} == {"first": {"score": 5}, "second": "v"}
    assert shown.status == "completed"


def test_C6_the_cell_is_what_the_extraction_says_and_the_next_column_sees_it() -> None:
    table = rows_table()
    of = play(column("first", extract="list.1"), column("second", {"y": "{{ row.first }}"}))
    second = ask(table.given(answer(ask(table.given(opened(of=of), added(row(0)))), {"list": [1, 2]})))
    assert second.input == b'{"y":2}'


def test_P9_a_getter_makes_the_cell_and_the_next_column_sees_what_it_made() -> None:
    table = rows_table()
    read = '{"extract":"data","getter":"email_status/1","paths":{}}'
    of = play(column("first", extract=read), column("second", {"y": "{{ row.first.verdict }}"}))
    answered = answer(ask(table.given(opened(of=of), added(row(0)))), {"data": {"status": "ok", "catch_all": True}})
    assert ask(table.given(answered)).input == b'{"y":"verify_next"}'


def test_a_path_that_leads_nowhere_makes_an_empty_cell() -> None:
    table = rows_table()
    of = play(column(extract="no.such"))
    (shown,) = sheet(table.given(answer(ask(table.given(opened(of=of), added(row(0)))), {"list": []})))
    assert (shown.status, shown.cells["check"].value) == ("completed", None)


@pytest.mark.parametrize("empty", [{}, {"mail": ""}, {"mail": None}])
def test_C3_a_cell_whose_needs_are_not_met_is_skipped_and_a_row_of_such_cells_too(empty: dict[str, Any]) -> None:
    table = rows_table()
    of = play(column("a", needs=("mail",)), column("b", needs=("a",)))
    outbox = table.given(opened(of=of), added(row(0, x=1, **empty)))
    assert asked(outbox) == []
    assert counts(outbox) == RowCounts(seen=1, skipped=1)
    (shown,) = sheet(outbox)
    assert shown.status == "skipped"
    assert {cell.status for cell in shown.cells.values()} == {"skipped"}


def test_C3_a_row_of_which_one_cell_was_computed_is_completed() -> None:
    table = rows_table()
    of = play(column("a", needs=("mail",)), column("b"))
    (shown,) = sheet(table.given(answer(ask(table.given(opened(of=of), added(row(0)))), "v")))
    assert shown.status == "completed"
    assert (shown.cells["a"].status, shown.cells["b"].status) == ("skipped", "completed")


@pytest.mark.parametrize("zero", [0, False, [], {}])
def test_C3_zero_and_false_are_no_missing_values(zero: Any) -> None:
    assert asked(rows_table().given(opened(of=play(column(needs=("x",)))), added(row(0, x=zero))))


def test_a_template_that_the_row_cannot_fill_fails_the_row_and_names_the_field() -> None:
    table = rows_table()
    outbox = table.given(opened(), added(row(0, other=1), row(1, x=1)))
    assert counts(later(table)) == RowCounts(seen=2, failed=1)
    (shown,) = sheet(outbox)
    assert (shown.status, shown.cells["check"].code) == ("failed", "bad_input")
    assert "'x'" in str(shown.cells["check"].error)
    assert len(asked(outbox)) == 1


def test_an_input_that_json_cannot_carry_exactly_fails_the_row() -> None:
    outbox = rows_table().given(opened(of=play(column(template={"x": "{{ row.x }}"}))), added(row(0, x={"$bytes": "no base64!"})))
    (shown,) = sheet(outbox)
    assert shown.cells["check"].code == "bad_input"


def test_an_input_that_no_event_can_carry_fails_its_row_with_both_sizes() -> None:
    table = rows_table()
    outbox = table.given(opened(), added(row(0, x="x" * INPUT_BYTES_MAX), row(1)))
    assert counts(later(table)) == RowCounts(seen=2, failed=1)
    (shown,) = sheet(outbox)
    assert shown.cells["check"].code == "input_too_large"
    assert f"at most {INPUT_BYTES_MAX:,}" in str(shown.cells["check"].error)
    assert len(asked(outbox)) == 1


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mark", "status"), [(Mark.LIVE, "completed"), (Mark.IN_FLIGHT, "completed"), (Mark.CACHE, "cached")])
def test_R8_a_cell_says_how_its_value_came_and_it_is_counted(mark: Mark, status: str) -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    outbox = table.given(answer(request, "v", mark=mark))
    (shown,) = sheet(outbox)
    cell = shown.cells["check"]
    assert (cell.status, cell.mark, cell.receipt, cell.run) == (status, mark.value, request.receipt, "run")
    (event,) = counted(outbox)
    assert event.calls == CallCounts(**{mark.value: 1})


def test_Y3_what_asks_names_run_and_call_with_the_receipt_and_the_sheet_keeps_it_for_later_runs() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    assert (request.run, request.call.split(":")) == ("run", ["run", "key0", "check"])
    (shown,) = sheet(table.given(answer(request, "v")))
    assert (shown.cells["check"].receipt, shown.cells["check"].run) == (request.receipt, "run")
    assert table.given(opened("later"), added(row(0), run="later")).public == [], "a run that reuses the row changes no pointer"


def test_B10_no_result_is_complete() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    outbox = table.given(answer(request, None, what=Answer.NO_RESULT))
    (shown,) = sheet(outbox)
    assert (shown.status, shown.cells["check"].value) == ("completed", None)
    assert counts(outbox) == RowCounts(seen=1, completed=1)


def test_M6_a_failed_cell_fails_its_row_and_no_other() -> None:
    table = rows_table()
    of = play(column("first"), column("second"))
    one, two = asked(table.given(opened(of=of), added(row(0), row(1))))
    outbox = table.given(failed(one), answer(two, "v"))
    assert [request.call for request in asked(outbox)] == ["run:key1:second"]
    (shown,) = sheet(outbox)
    assert (shown.key, shown.status) == ("key0", "failed")
    assert (shown.cells["first"].code, shown.cells["first"].error) == (NO.code, NO.message)
    assert "second" not in shown.cells


def test_M13_three_samples_of_failed_rows_and_a_count() -> None:
    table = rows_table()
    requests = asked(table.given(opened(), added(*(row(position) for position in range(5)))))
    (event,) = counted(table.given(*map(failed, requests)))
    assert event.rows.failed == 5
    assert event.samples == tuple((position, "check", NO.message) for position in range(3))


def test_B3_one_answer_reaches_every_row_that_waits_for_its_receipt() -> None:
    table = rows_table()
    one, two = asked(table.given(opened(), added(row(0, x="a"), row(1, x="a"))))
    both = CallsAnswered(one.receipt, 1, Answer.COMPLETED, ((one.call, Mark.LIVE), (two.call, Mark.IN_FLIGHT)), b'"v"')
    (event,) = counted(table.given(both))
    assert (event.rows, event.calls) == (RowCounts(seen=2, completed=2), CallCounts(live=1, in_flight=1))


def test_U2_an_unknown_outcome_settles_the_row_and_a_late_value_replaces_it() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    outbox = table.given(unknown(request))
    assert counts(outbox) == RowCounts(seen=1, unknown=1)
    (shown,) = sheet(outbox)
    assert (shown.status, shown.cells["check"].status, shown.cells["check"].code) == ("unknown", "unknown", LOST.code)
    outbox = table.given(answer(request, "late"))
    assert counts(outbox) == RowCounts(seen=1, completed=1)
    (shown,) = sheet(outbox)
    assert (shown.status, shown.cells["check"].value, shown.cells["check"].code) == ("completed", "late", None)


def test_U2_unknown_may_be_replaced_by_failed_too_and_told_twice_it_stays() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    table.given(unknown(request))
    outbox = table.given(unknown(request))
    assert counted(outbox) == []
    assert counts(table.given(failed(request))) == RowCounts(seen=1, failed=1)


def test_U2_a_rerun_does_not_take_an_unknown_row_as_standing() -> None:
    table = rows_table()
    table.given(unknown(ask(table.given(opened(), added(row(0))))))
    assert ask(table.given(opened("again"), added(row(0), run="again"))).mode is Mode.NORMAL


@pytest.mark.parametrize("first", ["completed", "failed"])
def test_the_first_of_completed_and_failed_is_final(first: str) -> None:
    """protocol.md, the rule for rows."""
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    events = [answer(request, "v"), failed(request), unknown(request)]
    table.given(*(events if first == "completed" else [events[1], events[0], events[2]]))
    before = dict(table.reader.data)
    for event in events:
        outbox = table.given(event)
        assert (counted(outbox), outbox.public) == ([], [])
    assert table.reader.data == before


def test_an_answer_that_nobody_here_waits_for_changes_nothing() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    for call in ("other:key0:check", "run:nobody:check", "run:key0:nothing", "run:key0:check~1"):
        outbox = table.given(CallsAnswered(request.receipt, 1, Answer.COMPLETED, ((call, Mark.LIVE),), b"1"))
        assert (counted(outbox), outbox.public) == ([], [])


def test_O3_a_late_value_of_a_row_with_a_further_column_never_makes_progress_fall() -> None:
    table = rows_table()
    first = ask(table.given(opened(of=play(column("first"), column("second"))), added(row(0))))
    assert counts(table.given(unknown(first))).settled == 1
    table.now_ms += COUNTERS_EVERY_MS
    outbox = table.given(answer(first, "late"))
    second = ask(outbox)
    assert all(event.rows.settled == 1 for event in counted(outbox))
    assert counts(table.given(answer(second, "v"))) == RowCounts(seen=1, completed=1)


@pytest.mark.parametrize("end", [RunCancelled("run"), RunClosing("run")])
def test_M15_a_late_value_asks_for_nothing_once_the_run_is_cancelled_or_closed(end: Event) -> None:
    table = rows_table()
    first = ask(table.given(opened(of=play(column("first"), column("second"))), added(row(0))))
    table.given(unknown(first))
    table.given(end)
    assert asked(table.given(answer(first, "late"))) == []


def test_an_answer_to_an_earlier_column_that_comes_again_changes_nothing() -> None:
    table = rows_table()
    of = play(column("first"), column("second"))
    first = ask(table.given(opened(of=of), added(row(0))))
    table.given(answer(first, "v"))
    outbox = table.given(answer(first, "w"))
    assert (asked(outbox), outbox.public) == ([], [])


def test_R5_a_repairable_failure_of_an_earlier_run_is_asked_for_again_once_with_this_runs_refresh() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    outbox = table.given(failed(request, BROKEN, Mark.CACHE))
    again = ask(outbox)
    assert (again.receipt, again.input) == (request.receipt, request.input)
    assert (again.mode, again.refresh) == (Mode.FAILED_REFRESH, address.refresh_id(run="run"))
    assert again.call == "run:key0:check~1"
    assert outbox.public == []
    # The first answer again is old news; the second failure is the row's.
    assert asked(table.given(failed(request, BROKEN, Mark.CACHE))) == []
    outbox = table.given(failed(again, BROKEN, Mark.CACHE))
    assert asked(outbox) == []
    assert counts(outbox) == RowCounts(seen=1, failed=1)


def test_R5_the_answer_to_the_second_request_settles_the_row() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    again = ask(table.given(failed(request, BROKEN, Mark.CACHE)))
    assert counts(table.given(answer(again, "v"))) == RowCounts(seen=1, completed=1)


@pytest.mark.parametrize(("fault", "mark"), [(NO, Mark.CACHE), (BROKEN, Mark.LIVE), (BROKEN, Mark.IN_FLIGHT)])
def test_R5_a_terminal_failure_or_one_of_this_runs_own_call_is_not_asked_for_again(fault: Fault, mark: Mark) -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    outbox = table.given(failed(request, fault, mark))
    assert asked(outbox) == []
    assert counts(outbox).failed == 1


# --- cancel -------------------------------------------------------------------------------------------------


def test_M15_cancel_withdraws_what_is_asked_for_and_skips_the_open_rows() -> None:
    table = rows_table()
    one, two, three = asked(table.given(opened(), added(row(0), row(1), row(2))))
    table.given(answer(one, "v"), failed(two))
    outbox = table.given(RunCancelled("run"))
    assert withdrawn(outbox) == [CallWithdrawn(three.receipt, three.call)]
    assert counts(outbox) == RowCounts(seen=3, completed=1, failed=1, skipped=1)
    again = table.given(RunCancelled("run"))
    assert (withdrawn(again), counted(again)) == ([], [])


def test_case_I3_a_cancelled_run_gets_no_cell_from_a_call_that_was_in_flight() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    table.given(RunCancelled("run"))
    outbox = table.given(answer(request, "v"))
    assert (asked(outbox), counted(outbox), outbox.public) == ([], [], [])


def test_M15_a_row_that_was_asked_for_again_is_withdrawn_under_its_second_name() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    again = ask(table.given(failed(request, BROKEN, Mark.CACHE)))
    assert withdrawn(table.given(RunCancelled("run"))) == [CallWithdrawn(again.receipt, again.call)]


def test_M15_an_unknown_row_that_went_on_to_its_next_column_is_withdrawn_too() -> None:
    table = rows_table()
    first = ask(table.given(opened(of=play(column("first"), column("second"))), added(row(0))))
    table.given(unknown(first))
    second = ask(table.given(answer(first, "late")))
    outbox = table.given(RunCancelled("run"))
    assert withdrawn(outbox) == [CallWithdrawn(second.receipt, second.call)]
    assert counts(outbox) == RowCounts(seen=1, unknown=1)


def test_M15_rows_that_come_after_the_cancel_are_skipped_even_if_it_overtook_the_opening() -> None:
    table = rows_table()
    outbox = table.given(RunCancelled("run"))
    assert outbox.events == {}
    outbox = table.given(opened(), added(row(0), row(1)))
    assert asked(outbox) == []
    assert counts(outbox) == RowCounts(seen=2, skipped=2)


# --- counters -----------------------------------------------------------------------------------------------


def test_counters_go_to_the_runs_home_cumulatively_and_with_a_growing_sequence() -> None:
    table = rows_table()
    one, two = asked(table.given(opened(), added(row(0), row(1))))
    sequences = []
    for event, rows in ((answer(one, 1), RowCounts(seen=2, completed=1)), (answer(two, 2), RowCounts(seen=2, completed=2))):
        table.now_ms += COUNTERS_EVERY_MS
        outbox = table.given(event)
        assert ("row-progress", address.partition_of("run", 8)) in outbox.events
        (published,) = counted(outbox)
        assert published.rows == rows
        assert (published.partition, published.final) == (0, False)
        sequences.append(published.sequence)
    assert sequences == sorted(set(sequences))


def test_counters_are_published_at_most_every_100_ms_but_at_once_when_nothing_is_open() -> None:
    table = rows_table()
    one, two, three = asked(table.given(opened(), added(row(0), row(1), row(2))))
    table.now_ms += 40
    outbox = table.given(answer(one, 1))
    assert counted(outbox) == []
    assert [effect for effect in outbox.effects if isinstance(effect, Wake)] == [Wake(1_000_100, CountersDue("run"))]
    table.now_ms = 1_000_100
    assert counts(table.given(CountersDue("run"))) == RowCounts(seen=3, completed=1)
    table.now_ms += 1
    assert counted(table.given(answer(two, 2))) == []
    table.now_ms += 1
    assert counts(table.given(answer(three, 3))) == RowCounts(seen=3, completed=3)


def test_a_timer_with_nothing_new_publishes_nothing() -> None:
    table = rows_table()
    table.given(opened(), added(row(0)))
    assert counts(later(table)) == RowCounts(seen=1)
    assert counted(later(table)) == []
    assert table.given(CountersDue("nobody")).events == {}


def test_a_run_that_closes_gets_its_final_counters_at_once_and_takes_no_more_rows() -> None:
    table = rows_table()
    table.given(answer(ask(table.given(opened(), added(row(0)))), 1))
    (final,) = counted(table.given(RunClosing("run")))
    assert final.final
    assert final.rows == RowCounts(seen=1, completed=1)
    outbox = table.given(added(row(1)))
    assert (asked(outbox), counted(outbox)) == ([], [])


def test_a_closing_that_overtook_the_opening_is_answered_once_the_run_is_known() -> None:
    table = rows_table()
    assert table.given(RunClosing("run")).events == {}
    (final,) = counted(table.given(opened()))
    assert (final.final, final.rows) == (True, RowCounts())


def test_a_new_owner_publishes_the_counters_of_every_run_that_is_not_closed() -> None:
    table = rows_table()
    table.given(opened("one"), added(row(0), run="one"), opened("two"), opened("three"), RunClosing("three"))
    outbox = table.given(RecoveryEnded())
    assert sorted(event.run for event in counted(outbox)) == ["one", "two"]


def test_what_is_not_for_rows_changes_nothing() -> None:
    table = rows_table()
    outbox = table.given(ProgressDue("run"))
    assert (outbox.events, table.reader.data) == ({}, {})


def test_several_runs_in_one_turn_have_counters_of_their_own() -> None:
    table = rows_table()
    table.given(opened("one"), opened("two"), added(row(0), run="one"), added(row(0), row(1, "k"), run="two"))
    assert {event.run: event.rows.seen for run in ("one", "two") for event in counted(later(table, run))} == {"one": 1, "two": 2}


# --- laws ---------------------------------------------------------------------------------------------------


def story(table: Table, outcomes: Sequence[str]) -> list[Event]:
    """Events that a partition gets for rows with these outcomes, found by playing them."""
    events: list[Event] = [opened(), added(*(row(position) for position in range(len(outcomes))))]
    outbox = table.turn(events)
    for request, outcome in zip(asked(outbox), outcomes, strict=True):
        match outcome:
            case "completed":
                events.append(answer(request, "v"))
            case "failed":
                events.append(failed(request))
            case "unknown":
                events.append(unknown(request))
            case _:
                events += [unknown(request), answer(request, "late")]
    return events


outcomes_of_rows = st.lists(st.sampled_from(("completed", "failed", "unknown", "late")), min_size=1, max_size=6)


@given(outcomes_of_rows, st.data())
def test_case_I1_every_event_twice_and_in_turns_of_any_size_gives_the_same_counts(outcomes: list[str], data: st.DataObject) -> None:
    events = [event for event in story(rows_table(), outcomes) for _ in range(2)]
    table = rows_table()
    done = 0
    while events:
        size = data.draw(st.integers(1, len(events)))
        table.now_ms += data.draw(st.sampled_from((1, 200)))
        for event in counted(table.turn(events[:size])):
            assert done <= event.rows.settled <= event.rows.seen <= len(outcomes)
            done = event.rows.settled
        del events[:size]
    (final,) = counted(table.given(RunClosing("run")))
    assert final.rows == RowCounts(
        seen=len(outcomes),
        completed=outcomes.count("completed") + outcomes.count("late"),
        failed=outcomes.count("failed"),
        unknown=outcomes.count("unknown"),
    )
