"""Unknown outcomes from a person's word to the cell, given / when / then: runs judge, rows name the attempt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas import address
from schemas.commands import ForgettingRequested, ResolutionRequested
from schemas.events import (
    AddedRow,
    Answer,
    AttemptUnknown,
    CallsAnswered,
    CellResolved,
    CompiledColumn,
    CompiledPlay,
    Event,
    Fault,
    Mark,
    ReceiptForgotten,
    ReceiptResolved,
    Repeat,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosed,
    RunClosing,
    RunOpened,
    ToolRequested,
)
from schemas.progress import MapRow, OperationEvent
from schemas.states import UNKNOWN_CELL
from streams.agents.operations import VALUE_BYTES_MAX
from streams.engine.port import Outbox
from streams.engine.rows import RowsEngine
from streams.engine.rowsturn import COUNTERS_EVERY_MS
from tests.support.given_operations import ASKED, KEY, events, judge
from tests.support.given_runs import requested, runs_table, settles, sizes
from tests.support.memory import Table

LOST = Fault("lost", "the answer is lost")
COLUMNS = (
    CompiledColumn("check", "p.t", "org/p", "1", "scope", Repeat.NEVER, '{"x":"{{ row.x }}"}', extract="status"),
    CompiledColumn("next", "p.u", "org/p", "1", "scope", Repeat.NEVER, '{"x":"{{ row.check }}"}'),
)


def told(outbox: Outbox) -> list[OperationEvent]:
    """What became of operations, as a reader gets it."""
    found = [event for event in outbox.public if event.topic == "run-events"]
    return [OperationEvent.model_validate_json(event.data or b"") for event in found if "operation" in (event.data or b"").decode()]


def sheet(outbox: Outbox) -> list[MapRow]:
    return [MapRow.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "map-rows"]


# --- runs: the judgement -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "output"),
    [
        ({"outcome": "paid", "value": {"b": 1, "a": [None]}}, b'{"b":1,"a":[null]}'),
        ({"outcome": "paid", "value": None}, b"null"),
        ({"outcome": "unpaid"}, None),
        ({"outcome": "unpaid", "value": None}, None),
    ],
)
def test_U3_a_resolution_is_read_with_who_and_why(said: dict[str, Any], output: bytes | None) -> None:
    assert judge(ASKED | said) == ResolutionRequested("run", KEY, "check", output, "ann", "bill", "op")


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"outcome": "paid"}, "paid needs a value"),
        ({"outcome": "unpaid", "value": 1}, "unpaid has no value"),
        ({"outcome": "free"}, "outcome"),
        ({"outcome": "unpaid", "row": "seven"}, "row"),
        ({"outcome": "unpaid", "more": 1}, "more"),
        ({"outcome": "unpaid", "contract": 9}, "contract"),
        ({"outcome": "paid", "value": "x" * VALUE_BYTES_MAX}, "at most"),
    ],
)
def test_U3_a_faulty_resolution_is_answered_by_its_own_name_and_ends_no_run(said: dict[str, Any], fault: str) -> None:
    command = judge(ASKED | said)
    assert isinstance(command, ResolutionRequested)
    outbox = runs_table().given(command)
    (answer,) = told(outbox)
    assert (answer.type, answer.code, answer.operation, answer.run) == ("cell.rejected", "invalid_request", "op", "run")
    assert fault in answer.message
    assert outbox.events == {}


def key_on(partition: int) -> str:
    return next(key for key in (f"{n:040x}" for n in range(999)) if address.spread(key, 8) == partition)


def test_U3_runs_sends_a_resolution_to_the_row_and_names_what_does_not_exist() -> None:
    table = runs_table()

    def resolved(partition: int, column: str = "check") -> Outbox:
        return table.given(ResolutionRequested("run", key_on(partition), column, b"1", "ann", "bill", "op"))

    def rejection(outbox: Outbox) -> str:
        (answer,) = told(outbox)
        assert answer.rejected
        assert outbox.events == {}
        return answer.code

    assert rejection(resolved(0)) == "unknown_run"
    (home,) = sizes(table.given(requested(1)))
    assert rejection(resolved(home, "price")) == "unknown_column"
    assert rejection(resolved((home + 1) % 8)) == "unknown_row"
    sent = resolved(home)
    assert sent.events == {("row-control", home): [CellResolved("run", key_on(home), "check", b"1", "ann", "bill", "op")]}
    assert told(sent) == []


def test_the_owners_of_its_lanes_hear_of_a_runs_end_once() -> None:
    table = runs_table()
    shares = sizes(table.given(requested(3)))
    outbox = settles(table, shares)
    assert events(outbox, RunClosed) == [RunClosed("run")]
    assert ("lane-control", address.spread("org/p", 8)) in outbox.events


def test_a_wish_to_forget_goes_to_the_lane_of_its_receipt() -> None:
    text = {"type": "receipt_forgotten", "receipt": "9f" * 20, "lane": "org/p", "operation": "op"}
    command = judge(text)
    assert command == ForgettingRequested("9f" * 20, "org/p", operation="op")
    outbox = runs_table().given(command)
    assert outbox.events == {("lane-control", address.spread("org/p", 8)): [ReceiptForgotten("9f" * 20, operation="op")]}
    outbox = runs_table().given(judge(text | {"lane": ""}))
    (answer,) = told(outbox)
    assert (answer.type, answer.receipt, outbox.events) == ("receipt.rejected", "9f" * 20, {})


# --- rows: the attempt -------------------------------------------------------------------------------------------------


class Cellar:
    """A partition of rows with one row of a run whose first cell is unknown."""

    def __init__(self) -> None:
        self.table = Table(RowsEngine())
        self.call, self.receipt = self.asks("run")
        self.unknown("run")

    def asks(self, run: str) -> tuple[str, str]:
        play = CompiledPlay("play", "people", "rev", (), COLUMNS)
        row = AddedRow(0, KEY, b'{"x":7}')
        outbox = self.table.given(RunOpened(run, "org", play), RowsAdded(run, (row,)))
        (request,) = events(outbox, ToolRequested)
        return request.call, request.receipt

    def unknown(self, run: str, n: int = 3, epoch: int = 1) -> Outbox:
        call = f"{run}:{KEY}:check"
        doubt = AttemptUnknown(self.receipt, n, epoch, (call,))
        return self.later(doubt, CallsAnswered(self.receipt, n, Answer.UNKNOWN, ((call, Mark.LIVE),), fault=LOST))

    def later(self, *happened: Event) -> Outbox:
        self.table.now_ms += COUNTERS_EVERY_MS
        return self.table.given(*happened)

    def resolved(self, output: bytes | None, *, run: str = "run", column: str = "check", row: str = KEY) -> Outbox:
        return self.later(CellResolved(run, row, column, output, "ann", "bill", "op"))

    def answered(self, output: bytes, run: str = "run") -> Outbox:
        return self.later(CallsAnswered(self.receipt, 3, Answer.COMPLETED, ((f"{run}:{KEY}:check", Mark.LIVE),), output))


def counts(outbox: Outbox) -> RowCounts:
    (event,) = events(outbox, RowsCounted)
    return event.rows


@pytest.mark.parametrize("output", [b'{"status":"ok"}', None])
def test_U3_rows_names_the_attempt_that_it_was_told_and_says_so(output: bytes | None) -> None:
    """T7: a resolution is about one attempt, whatever comes later."""
    cellar = Cellar()
    for _ in range(2):  # the same word again sends the same event again, which changes nothing in the fold
        outbox = cellar.resolved(output)
        where = ("receipt-completions", address.spread("org/p", 8))
        assert outbox.events[where] == [ReceiptResolved(cellar.receipt, 3, 1, output, "ann", "bill")]
        (answer,) = told(outbox)
        assert (answer.type, answer.code, answer.n, answer.who, answer.why, answer.operation) == (
            "cell.resolved",
            "unpaid" if output is None else "paid",
            3,
            "ann",
            "bill",
            "op",
        )
        assert sheet(outbox) == []


def test_U3_progress_follows_a_resolution_while_the_run_is_open() -> None:
    """O3: unknown falls, completed rises, and their sum does not fall."""
    cellar = Cellar()
    cellar.resolved(b'{"status":"ok"}')
    outbox = cellar.answered(b'{"status":"ok"}')
    (request,) = events(outbox, ToolRequested)
    assert request.tool == "p.u"
    assert json.loads(request.input) == {"x": "ok"}
    outbox = cellar.later(CallsAnswered(request.receipt, 1, Answer.COMPLETED, ((request.call, Mark.LIVE),), b"1"))
    assert (counts(outbox).unknown, counts(outbox).completed, counts(outbox).settled) == (0, 1, 1)
    (row,) = sheet(outbox)
    assert (row.status, row.cells["check"].value) == ("completed", "ok")


def test_U3_after_the_runs_end_unpaid_leaves_the_cell_to_the_next_run_and_the_ledger_alone() -> None:
    cellar = Cellar()
    cellar.later(RunClosing("run"))
    outbox = cellar.resolved(None)
    (row,) = sheet(outbox)
    assert (row.status, row.cells["check"].status, row.cells["check"].code) == ("failed", "failed", "resolved_unpaid")
    assert "ann: bill" in (row.cells["check"].error or "")
    assert all(event.final for event in events(outbox, RowsCounted))  # which runs does not take from a run that has ended
    again = cellar.resolved(None)
    (answer,) = told(again)
    assert (answer.type, answer.code, answer.message) == (
        "cell.rejected",
        "not_unknown",
        "column check of this row is failed, not unknown",
    )
    assert (events(again, ReceiptResolved), sheet(again)) == ([], [])
    assert cellar.asks("next")[1] == cellar.receipt


def test_U3_a_late_value_changes_the_sheet_of_a_run_that_has_ended() -> None:
    cellar = Cellar()
    cellar.later(RunClosing("run"))
    (row,) = sheet(cellar.answered(b'{"status":"late"}'))
    assert (row.run, row.cells["check"].value) == ("run", "late")


def test_a_late_value_of_an_older_run_does_not_undo_what_a_later_run_made() -> None:
    cellar = Cellar()
    cellar.later(RunClosing("run"))
    cellar.asks("next")
    cellar.unknown("next")
    outbox = cellar.answered(b'{"status":"late"}')
    assert sheet(outbox) == []
    outbox = cellar.answered(b'{"status":"late"}', "next")
    assert events(outbox, ToolRequested)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"row": "c5" * 20}, "unknown_row", "no row with the key"),
        ({"run": "other"}, "unknown_row", "no row with the key"),
        ({"column": "next"}, "not_unknown", "not asked for yet"),
    ],
)
def test_U3_rows_rejects_what_is_in_no_doubt(change: dict[str, str], code: str, message: str) -> None:
    outbox = Cellar().resolved(b"1", **change)
    (answer,) = told(outbox)
    assert (answer.type, answer.code, events(outbox, ReceiptResolved)) == ("cell.rejected", code, [])
    assert message in answer.message


def test_what_was_answered_is_in_no_doubt_any_more() -> None:
    cellar = Cellar()
    cellar.answered(b'{"status":"ok"}')
    assert not [key for key in cellar.table.reader.data if key.startswith(UNKNOWN_CELL)]
    (answer,) = told(cellar.resolved(None))
    assert answer.message == "column check of this row is completed, not unknown"


def test_a_doubt_about_an_ask_that_was_replaced_or_never_made_is_not_noted() -> None:
    cellar = Cellar()
    before = dict(cellar.table.reader.data)
    calls = (f"run:{KEY}:check~1", f"run:{'c5' * 20}:check", f"run:{KEY}:next")
    cellar.table.given(AttemptUnknown(cellar.receipt, 9, 9, calls))
    assert cellar.table.reader.data == before


def test_a_cancelled_run_gives_its_unknown_cell_up_when_nothing_was_paid() -> None:
    cellar = Cellar()
    cellar.later(RunCancelled("run"))
    (row,) = sheet(cellar.resolved(None))
    assert row.status == "failed"


def test_U3_paid_settles_the_unknown_cell_of_a_cancelled_run() -> None:
    """The word was taken and the receipt settled, but the sheet went on saying *unknown*, and a later *unpaid* was taken too."""
    cellar = Cellar()
    cellar.later(RunCancelled("run"))
    (answer,) = told(cellar.resolved(b'{"status":"ok"}'))
    assert (answer.type, answer.code) == ("cell.resolved", "paid")
    outbox = cellar.answered(b'{"status":"ok"}')
    (row,) = sheet(outbox)
    assert (row.cells["check"].status, row.cells["check"].value) == ("completed", "ok")
    assert events(outbox, ToolRequested) == []  # the next column is for the next run
    assert not [key for key in cellar.table.reader.data if key.startswith(UNKNOWN_CELL)]
    (answer,) = told(cellar.resolved(None))
    assert (answer.type, answer.code, answer.message) == (
        "cell.rejected",
        "not_unknown",
        "column check of this row is completed, not unknown",
    )


def test_M15_a_cell_that_was_running_at_the_cancel_gets_no_value() -> None:
    cellar = Cellar()
    call, receipt = cellar.asks("other")
    cellar.later(RunCancelled("other"))
    outbox = cellar.later(CallsAnswered(receipt, 4, Answer.COMPLETED, ((call, Mark.LIVE),), b'{"status":"ok"}'))
    assert (sheet(outbox), events(outbox, ToolRequested)) == ([], [])
