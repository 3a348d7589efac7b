"""The rows engine, given / when / then: what an answer makes of a cell and its row, and what is asked for again."""

from __future__ import annotations

import pytest

from schemas import address
from schemas.events import (
    Answer,
    CallCounts,
    CallsAnswered,
    Event,
    Fault,
    Mark,
    Mode,
    RowCounts,
    RunCancelled,
    RunClosing,
)
from streams.engine.rowsturn import COUNTERS_EVERY_MS
from tests.support.given_rows import (
    BROKEN,
    LOST,
    NO,
    added,
    answer,
    ask,
    asked,
    column,
    counted,
    counts,
    failed,
    opened,
    play,
    row,
    rows_table,
    sheet,
    unknown,
)


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
