"""A provider says that the credentials belong to another account now (P4): asked again under the new keys, or failed loudly."""

from __future__ import annotations

from schemas import address
from schemas.events import Answer, CallsAnswered, Fault, Mark, ToolRequested
from schemas.states import CellStatus
from streams.engine.scopes import AUTH_SCOPE_UNCHANGED, scope_changed, scope_in
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
