"""A provider says that the credentials belong to another account now (P4): asked again under the new keys, or failed loudly."""

from __future__ import annotations

import msgspec
import pytest

from schemas import address
from schemas.events import Answer, AttemptUnknown, CallsAnswered, CellResolved, Fault, Mark, RunClosing, ToolRequested
from schemas.progress import OperationEvent
from schemas.states import UNKNOWN_CELL, CellStatus, UnknownCell, record_key
from streams.engine.port import Outbox
from streams.engine.scopes import AUTH_SCOPE_CHANGED, AUTH_SCOPE_UNCHANGED, scope_changed, scope_in
from tests.support.given_rows import added, answer, ask, asked, column, opened, play, row, rows_table, sheet
from tests.support.memory import Table

NEW = "5e" * 20


def told(request: ToolRequested, scope: str, mark: Mark = Mark.LIVE) -> CallsAnswered:
    fault = Fault(scope_changed(scope), "http 409", True)
    return CallsAnswered(request.receipt, 1, Answer.FAILED, ((request.call, mark),), None, fault)


def begun() -> tuple[Table, ToolRequested]:
    table = rows_table()
    return table, ask(table.given(opened(of=play(column(private_to="people"))), added(row(0, x="a"))))


def test_P4_a_row_whose_scope_has_changed_asks_again_under_the_new_keys() -> None:
    table, first = begun()
    second = ask(table.given(told(first, NEW)))
    assert second.receipt == address.receipt_key(
        org="org", scope="people", tool="p.t", input={"x": "a"}, auth_scope=NEW, action_version="1", window=None
    )
    assert second.receipt != first.receipt
    assert second.call != first.call
    (shown,) = sheet(table.given(answer(second, "v")))
    assert (shown.cells["check"].status, shown.cells["check"].receipt) == (CellStatus.COMPLETED, second.receipt)


def test_P4_the_answer_to_the_old_receipt_counts_no_more() -> None:
    table, first = begun()
    table.given(told(first, NEW))
    outbox = table.given(answer(first, "old"))
    assert (asked(outbox), sheet(outbox)) == ([], [])


def test_P4_it_is_done_once_per_request() -> None:
    table, first = begun()
    second = ask(table.given(told(first, NEW)))
    outbox = table.given(told(second, "6f" * 20))
    assert asked(outbox) == []
    assert sheet(outbox)[0].cells["check"].code == AUTH_SCOPE_UNCHANGED


def test_P4_unchanged_keys_fail_the_row_loudly_and_a_person_is_told_what_to_do() -> None:
    table, first = begun()
    outbox = table.given(told(first, "scope"))
    assert asked(outbox) == []
    cell = sheet(outbox)[0].cells["check"]
    assert (cell.status, cell.code) == ("failed", AUTH_SCOPE_UNCHANGED)
    assert "change it, restart the workers" in (cell.error or "")


def test_P4_every_event_twice_asks_once() -> None:
    table, first = begun()
    assert len(asked(table.given(told(first, NEW), told(first, NEW)))) == 1


def test_P4_other_codes_name_no_scope() -> None:
    assert [scope_in(code) for code in ("http_409", "auth_scope_changed", "", scope_changed("s"))] == [None, None, None, "s"]


# --- behind a call that may have been billed ----------------------------------------------------------------


def doubted(request: ToolRequested) -> tuple[AttemptUnknown, CallsAnswered]:
    """What the receipt's owner tells where attempt 1 lost its answer and attempt 2, under the same key, was refused so."""
    answered = msgspec.structs.replace(told(request, NEW), answer=Answer.UNKNOWN, n=2)
    return AttemptUnknown(request.receipt, 1, 0, (request.call,)), answered


def word(output: bytes | None = None) -> CellResolved:
    return CellResolved("run", "key0", "check", output, "me", "why")


def operations(outbox: Outbox) -> list[OperationEvent]:
    found = [OperationEvent.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "run-events"]
    assert found
    return found


def test_P4_U1_a_row_moves_to_other_keys_only_once_no_call_of_it_is_in_doubt() -> None:
    """P4, U1: the code of the fault alone decided, also where the answer was *unknown*: the row asked under new keys while its
    first call may have been billed, and paid twice.
    """
    table, first = begun()
    outbox = table.given(*doubted(first))
    assert asked(outbox) == []
    cell = sheet(outbox)[0].cells["check"]
    assert (cell.status, cell.receipt, cell.code) == (CellStatus.UNKNOWN, first.receipt, AUTH_SCOPE_CHANGED)
    assert "settle that first" in (cell.error or "")
    # A person says that it was not billed: the refusal counts now.
    assert operations(table.given(word()))[0].type == "cell.resolved"
    second = ask(table.given(told(first, NEW)))
    assert second.receipt != first.receipt
    (shown,) = sheet(table.given(answer(second, "v")))
    assert shown.status == "completed"
    assert [key for key in table.reader.data if key[:1] == UNKNOWN_CELL] == []


def test_U3_a_late_value_settles_a_row_whose_keys_have_changed() -> None:
    table, first = begun()
    table.given(*doubted(first))
    (shown,) = sheet(table.given(answer(first, "paid")))
    assert (shown.status, shown.cells["check"].receipt) == ("completed", first.receipt)


@pytest.mark.parametrize("closing", [False, True])
def test_U3_a_word_about_a_cell_that_was_answered_under_other_keys_is_rejected(closing: bool) -> None:
    """U3: rows that had moved in spite of a doubt kept its entry. A person's word, once the row was settled and its run was
    closing, raised KeyError in the turn, and again for each next owner, which folds the same word first.
    """
    table, first = begun()
    second = ask(table.given(told(first, NEW)))
    table.given(answer(second, "v"))
    left = record_key(UNKNOWN_CELL, "run", "key0", "check")
    table.reader.data[left] = msgspec.msgpack.encode(UnknownCell(first.receipt, 1, 0))
    if closing:
        table.given(RunClosing("run"))
    outbox = table.given(word())
    (event,) = operations(outbox)
    assert (event.type, event.code) == ("cell.rejected", "not_unknown")
    assert ("receipt-completions", 0) not in outbox.events
    assert left not in table.reader.data


def test_U3_a_word_about_a_column_that_was_answered_does_not_undo_it() -> None:
    """U3: the same entry, of a column before the one that is being computed: *unpaid* failed the row, and its value was lost."""
    table = rows_table()
    first = ask(table.given(opened(of=play(column(), column("more", needs=("check",)))), added(row(0, x="a"))))
    table.given(answer(first, "v"))
    table.reader.data[record_key(UNKNOWN_CELL, "run", "key0", "check")] = msgspec.msgpack.encode(UnknownCell(first.receipt, 1, 0))
    table.given(RunClosing("run"))
    outbox = table.given(word())
    assert [event.type for event in operations(outbox)] == ["cell.rejected"]
    assert [event.topic for event in outbox.public] == ["run-events"]
