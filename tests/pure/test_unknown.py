"""Unknown outcomes from a person's word to the cell, given / when / then: runs judge, rows name the attempt, receipts fold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas import address
from schemas.commands import ForgettingRequested, RecoveryEnded, ResolutionRequested
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
    Mode,
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
from schemas.requests import CellResolved as CellResolvedRequest
from schemas.states import UNKNOWN, UNKNOWN_CELL, Flag, Unknown, record_key
from streams.agents.operations import VALUE_BYTES_MAX
from streams.agents.runs import judged
from streams.engine.effects import ClaimFolded, Queued, UnknownOver, UnknownSeen
from streams.engine.port import Outbox
from streams.engine.receipts import WAITERS_INLINE
from streams.engine.rows import RowsEngine
from streams.engine.rowsturn import COUNTERS_EVERY_MS
from streams.inbox import Delivery
from streams.table import WorkingSet
from tests.pure.test_runs import requested, runs_table, settles, sizes
from tests.support import given as g
from tests.support.memory import Table

LOST = Fault("lost", "the answer is lost")
COLUMNS = (
    CompiledColumn("check", "p.t", "org/p", "1", "scope", Repeat.NEVER, '{"x":"{{ row.x }}"}', extract="status"),
    CompiledColumn("next", "p.u", "org/p", "1", "scope", Repeat.NEVER, '{"x":"{{ row.check }}"}'),
)
KEY = "c4" * 20


def told(outbox: Outbox) -> list[OperationEvent]:
    """What became of operations, as a reader gets it."""
    found = [event for event in outbox.public if event.topic == "run-events"]
    return [OperationEvent.model_validate_json(event.data or b"") for event in found if "operation" in (event.data or b"").decode()]


def events(outbox: Outbox, kind: type[Event]) -> list[Any]:
    return [event for queue in outbox.events.values() for event in queue if isinstance(event, kind)]


def sheet(outbox: Outbox) -> list[MapRow]:
    return [MapRow.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "map-rows"]


# --- runs: the judgement ------------------------------------------------------------------------------------


def judge(text: str | dict[str, Any], **settings: Any) -> Event:
    value = (text if isinstance(text, str) else json.dumps(text)).encode()
    (event,) = judged(Delivery("operations", 1, b"run", value, ()), None, 8, settings.get("providers"))  # type: ignore[arg-type]
    return event


ASKED = {"type": "cell_resolved", "run": "run", "row": KEY, "column": "check", "operation": "op", "who": "ann", "reason": "bill"}


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


# --- rows: the attempt --------------------------------------------------------------------------------------


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


# --- receipts: who waits on ---------------------------------------------------------------------------------


def doubtful() -> Table:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1))
    return table


def queued(outbox: Outbox) -> list[int]:
    return [effect.need.n for effect in outbox.effects if isinstance(effect, Queued)]


def entry(table: Table) -> Unknown | None:
    return WorkingSet(table.reader).get(record_key(UNKNOWN, g.R), Unknown)


def test_U2_the_answer_unknown_comes_with_its_attempt() -> None:
    table = g.receipts()
    outbox = table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1", epoch=0), g.ambiguous(1))
    doubt, answer = outbox.events[("tool-results", 0)]
    assert doubt == AttemptUnknown(g.R, 1, 0, ("c1",))
    assert isinstance(answer, CallsAnswered)
    assert answer.answer is Answer.UNKNOWN


def test_U3_unpaid_is_called_again_for_a_run_that_is_open_and_its_next_doubt_is_told_with_its_own_attempt() -> None:
    table = doubtful()
    assert queued(table.given(g.resolved(1))) == [2]
    assert queued(table.given(g.resolved(1))) == [2]  # T7: the same word again, the same need
    assert [effect.granted for effect in table.given(g.claim(2, "L2", op=2)).effects if isinstance(effect, ClaimFolded)] == [(g.R,)]
    outbox = table.given(g.ambiguous(2))
    assert events(outbox, AttemptUnknown) == [AttemptUnknown(g.R, 2, 0, ("c1",))]
    assert queued(table.given(g.resolved(1))) == []
    assert queued(table.given(g.resolved(2))) == [3]


@pytest.mark.parametrize("first", ["run's end", "resolution"])
def test_U3_unpaid_is_not_called_again_for_a_run_that_has_ended_but_by_the_next_one(first: str) -> None:
    table = doubtful()
    if first == "resolution":
        table.given(g.withdrawn("nobody"), RunClosed("run"), RunClosed("run"))
        assert queued(table.given(g.resolved(1))) == []
    else:
        table.given(RunClosed("run"))
        assert queued(table.given(g.resolved(1))) == []
    assert table.given(RecoveryEnded()).effects == []
    assert queued(table.given(g.request("c2", run="next", repeat=Repeat.NEVER))) == [2]
    outbox = table.given(g.claim(2, "L2", op=2), g.value(2))
    assert [call for event in events(outbox, CallsAnswered) for call, _ in event.calls] == ["c1", "c2"]


def test_U3_a_late_value_reaches_a_run_that_has_ended() -> None:
    table = doubtful()
    table.given(RunClosed("run"))
    (answer,) = events(table.given(g.value(1, lease="L1")), CallsAnswered)
    assert (answer.answer, answer.calls[0][0]) == (Answer.COMPLETED, "c1")


def test_a_doubt_beneath_the_one_that_was_resolved_is_told_next() -> None:
    """Two calls of different refreshes are in doubt; the word about one leaves the other, and its attempt must be known too."""
    table = doubtful()
    table.given(g.request("c2", "f1", Mode.FULL_REFRESH, repeat=Repeat.NEVER))
    table.given(g.claim(2, "L2", epoch=1, op=2))
    outbox = table.given(g.ambiguous(2, epoch=1))
    assert sorted((doubt.n, doubt.calls) for doubt in events(outbox, AttemptUnknown)) == [(2, ("c1", "c2"))]
    outbox = table.given(g.resolved(2))
    assert events(outbox, AttemptUnknown) == [AttemptUnknown(g.R, 1, 0, ("c1",))]
    assert queued(outbox) == [3]


def test_waiters_beyond_the_inline_ones_wait_again_after_unpaid() -> None:
    table = g.receipts()
    crowd = [g.request(f"c{number:03}", repeat=Repeat.NEVER) for number in range(WAITERS_INLINE + 2)]
    table.turn(crowd)
    table.given(g.claim(1, "L1"), g.ambiguous(1))
    assert queued(table.given(g.resolved(1))) == [2]
    outbox = table.given(g.claim(2, "L2", op=2), g.ambiguous(2))
    assert sorted(call for doubt in events(outbox, AttemptUnknown) for call in doubt.calls) == [event.call for event in crowd]


# --- receipts: the index ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [g.value(1, lease="L1"), g.resolved(1, b"1"), g.resolved(1), g.failed(1), g.retry(1)],
    ids=["late", "paid", "unpaid", "no", "retry"],
)
def test_U5_the_index_has_what_is_unknown_since_when_and_only_that(end: Event) -> None:
    table = doubtful()
    assert entry(table) == Unknown(1, 0, 1, "p.t", "org/p", table.now_ms)
    since = table.now_ms
    table.now_ms += 500
    assert not [e for e in table.given(g.request("c9", repeat=Repeat.NEVER, run="rerun")).effects if isinstance(e, UnknownSeen)]
    (seen,) = [e for e in table.given(RecoveryEnded()).effects if isinstance(e, UnknownSeen)]
    assert seen == UnknownSeen(g.R, "org/p", "p.t", 1, 0, 1, since)
    outbox = table.given(end)
    assert UnknownOver(g.R) in outbox.effects
    assert entry(table) is None


def test_U5_an_expired_lease_is_unknown_until_its_release_is_read() -> None:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"))
    assert [e.n for e in table.given(g.expiry(1, "L1")).effects if isinstance(e, UnknownSeen)] == [1]
    assert UnknownOver(g.R) in table.given(g.release(1, "L1")).effects


def test_U5_a_newer_value_ends_the_doubt_about_an_older_call() -> None:
    table = doubtful()
    table.given(g.request("c2", "f1", Mode.FULL_REFRESH, repeat=Repeat.NEVER), g.claim(2, "L2", epoch=1, op=2))
    assert entry(table) is not None
    table.given(g.value(2, epoch=1))
    assert entry(table) is None
    assert g.state(table).waiters["c1"].flag is Flag.DONE


@pytest.mark.parametrize("request_", [{"outcome": "unpaid"}, {"outcome": "paid", "value": None}, {"outcome": "paid", "value": [1]}])
def test_what_the_client_publishes_is_what_the_judge_reads(request_: dict[str, Any]) -> None:
    """Fields that were not set are published too: without its type a message is parked, and nobody hears of it."""
    published = CellResolvedRequest.model_validate(ASKED | request_).model_dump_json()
    assert judge(published) == judge(ASKED | request_)
