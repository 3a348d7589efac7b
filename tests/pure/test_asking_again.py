"""What was asked again is a cell, not its row: the columns behind it ask as if nothing had been (R2, R5, P4)."""

from __future__ import annotations

from schemas import address
from schemas.events import CallsAnswered, CallWithdrawn, Fault, Mark, Mode, RunCancelled, RunClosing, ToolRequested
from streams.engine.cells import CALLS_MAX, call_of
from streams.engine.scopes import AUTH_SCOPE_CHANGED, AUTH_SCOPE_UNCHANGED, scope_changed
from tests.support.given_rows import (
    BROKEN,
    NO,
    added,
    answer,
    ask,
    asked,
    column,
    failed,
    opened,
    play,
    row,
    rows_table,
    sheet,
    unknown,
)
from tests.support.memory import Table

NEW = "5e" * 20
MOVED = Fault(scope_changed(NEW), "http 409", True)
TWO = play(column("a"), column("b", {"y": "{{ row.x }}"}))


def begun(force: bool = False) -> tuple[Table, ToolRequested]:
    table = rows_table()
    return table, ask(table.given(opened(of=TWO, force=force), added(row(0, x="v"))))


def key(request: ToolRequested, scope: str) -> str:
    return address.receipt_key(
        org="org",
        scope=None,
        tool="p.t",
        input={"x" if ":a" in request.call else "y": "v"},
        auth_scope=scope,
        action_version="1",
        window=None,
    )


def test_R2_R5_a_column_behind_one_that_was_asked_again_asks_as_a_normal_request() -> None:
    """It asked as a failed refresh, though nobody had forced anything: a terminal refusal of it was paid for again."""
    table, first = begun()
    again = ask(table.given(failed(first, BROKEN, Mark.CACHE)))
    assert (again.mode, again.call) == (Mode.FAILED_REFRESH, "run:key0:a~1")
    behind = ask(table.given(answer(again, "v")))
    assert (behind.mode, behind.refresh, behind.call) == (Mode.NORMAL, None, "run:key0:b")
    # A terminal refusal of an earlier run is the cell's; it is not asked for again.
    outbox = table.given(failed(behind, NO, Mark.CACHE))
    assert asked(outbox) == []
    assert sheet(outbox)[0].status == "failed"


def test_R5_each_column_has_a_second_request_of_its_own() -> None:
    """The second column's old failure was final, because the first one's had been asked for again."""
    table, first = begun()
    behind = ask(table.given(answer(ask(table.given(failed(first, BROKEN, Mark.CACHE))), "v")))
    again = ask(table.given(failed(behind, BROKEN, Mark.CACHE)))
    assert (again.mode, again.call, again.receipt) == (Mode.FAILED_REFRESH, "run:key0:b~1", behind.receipt)
    # Answers to what was asked before are old news.
    assert sheet(table.given(failed(behind, NO))) == []
    assert sheet(table.given(answer(again, "w")))[0].status == "completed"


def test_P4_each_column_of_a_moved_provider_moves() -> None:
    """The second one failed with *the same account as before*, which was not true."""
    table, first = begun()
    there = ask(table.given(failed(first, MOVED)))
    assert (there.call, there.mode, there.receipt) == ("run:key0:a~1", Mode.NORMAL, key(first, NEW))
    behind = ask(table.given(answer(there, "v")))
    assert behind.receipt == key(behind, "scope")
    moved = ask(table.given(failed(behind, MOVED)))
    assert (moved.call, moved.receipt) == ("run:key0:b~1", key(behind, NEW))
    (shown,) = sheet(table.given(answer(moved, "w")))
    assert (shown.status, shown.cells["b"].receipt) == ("completed", moved.receipt)


def test_P4_a_cell_whose_old_401_was_asked_for_again_moves_all_the_same() -> None:
    table, first = begun()
    again = ask(table.given(failed(first, Fault("http_401", "old", True), Mark.CACHE)))
    there = ask(table.given(failed(again, MOVED)))
    assert (there.call, there.receipt, there.mode) == ("run:key0:a~2", key(first, NEW), Mode.NORMAL)


def test_P4_R5_an_old_failure_under_the_new_keys_is_asked_for_again_there_and_that_is_all() -> None:
    table, first = begun()
    calls = [first]
    for fault, mark in ((BROKEN, Mark.CACHE), (MOVED, Mark.LIVE), (BROKEN, Mark.CACHE)):
        calls.append(ask(table.given(failed(calls[-1], fault, mark))))
    last = calls[-1]
    assert (last.receipt, last.mode) == (key(first, NEW), Mode.FAILED_REFRESH)
    assert [request.call for request in calls] == [call_of("run", "key0", "a", number) for number in range(CALLS_MAX)]
    outbox = table.given(failed(last, Fault(scope_changed("6f" * 20), "http 409", True)))
    assert asked(outbox) == []
    assert sheet(outbox)[0].cells["a"].code == AUTH_SCOPE_UNCHANGED


def test_R2_a_moved_request_of_a_forced_run_is_forced_too() -> None:
    table, first = begun(force=True)
    assert first.mode is Mode.FAILED_REFRESH
    there = ask(table.given(failed(first, MOVED)))
    assert (there.mode, there.refresh) == (Mode.FAILED_REFRESH, first.refresh)


def test_M15_a_cancel_withdraws_the_call_that_a_moved_cell_waits_for() -> None:
    table, first = begun()
    there = ask(table.given(failed(ask(table.given(failed(first, BROKEN, Mark.CACHE))), MOVED)))
    outbox = table.given(RunCancelled("run"))
    withdrawn = [event for events in outbox.events.values() for event in events if isinstance(event, CallWithdrawn)]
    assert withdrawn == [CallWithdrawn(there.receipt, there.call)]


def test_P4_after_a_runs_end_nothing_moves_and_nothing_is_asked_again() -> None:
    """A late refusal of an unknown cell made a run that had ended ask again."""
    for end in (RunClosing("run"), RunCancelled("run")):
        table, first = begun()
        table.given(unknown(first))
        table.given(end)
        outbox = table.given(failed(first, MOVED))
        assert asked(outbox) == []
        cell = sheet(outbox)[0].cells["a"]
        assert (cell.status, cell.code) == ("failed", AUTH_SCOPE_CHANGED)
        assert "a next one asks" in (cell.error or "")
        table, first = begun()
        table.given(unknown(first))
        table.given(end)
        outbox = table.given(failed(first, BROKEN, Mark.CACHE))
        assert asked(outbox) == []
        assert sheet(outbox)[0].cells["a"].code == BROKEN.code


def test_M15_a_cancel_behind_a_late_value_is_no_defect() -> None:
    """A run may be cancelled while it closes. A row that a late value took to a column that is not asked for any more has no cell
    of that column: the cancel's turn failed with a KeyError, for ever.
    """
    table, first = begun()
    table.given(unknown(first))
    table.given(RunClosing("run"))
    table.given(answer(first, "late"))
    outbox = table.given(RunCancelled("run"))
    assert asked(outbox) == []


def test_P4_every_event_twice_asks_for_each_column_once() -> None:
    table, first = begun()
    there = ask(table.given(failed(first, MOVED), failed(first, MOVED)))
    twice: list[CallsAnswered] = [answer(there, "v"), answer(there, "v")]
    behind = ask(table.given(*twice))
    assert len(asked(table.given(failed(behind, MOVED), failed(behind, MOVED)))) == 1


def test_P4_K3_a_row_with_a_moved_cell_does_not_stand_for_a_run_bound_to_the_old_account() -> None:
    """It holds what the other account got: the next run asks under its own keys, and pays for nothing that it has paid for."""
    table, first = begun()
    there = ask(table.given(failed(first, MOVED)))
    behind = ask(table.given(answer(there, "v")))
    assert sheet(table.given(answer(behind, "w")))[0].status == "completed"
    again = ask(table.given(opened("next", of=TWO), added(row(0, x="v"), run="next")))
    assert again.receipt == first.receipt != there.receipt
