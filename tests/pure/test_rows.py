"""The rows engine, given / when / then: a row's disposition against the sheet, and its columns in order."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import address
from schemas.events import (
    Mode,
    Repeat,
    RowCounts,
)
from streams.engine.rows import INPUT_BYTES_MAX
from tests.support.given_rows import added, answer, ask, asked, column, counts, failed, later, opened, play, row, rows_table, sheet

# --- dispositions ------------------------------------------------------------------------------------------------------


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


# --- columns -----------------------------------------------------------------------------------------------------------


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
