"""Completed-cache receipts (Y2) as rows ask for them, and what a providers file or a play may not say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.events import (
    AddedRow,
    Answer,
    CallsAnswered,
    CompiledPlay,
    Fault,
    Mark,
    RowsAdded,
    RunOpened,
    ToolRequested,
)
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import SHEET, TASK, SheetRow, Task, record_key
from streams.engine.compile import compile_play
from streams.engine.port import Outbox
from streams.engine.rows import RowsEngine
from streams.engine.scopes import scope_changed
from streams.errors import ConfigurationError
from streams.table import WorkingSet
from streams.userfiles import load_providers
from tests.support.memory import Table


def providers(**terms: Any) -> Providers:
    tool = {"path": "/t"} | terms
    return Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": tool}}}})


def bound(column: dict[str, Any] | None = None, **terms: Any) -> CompiledPlay:
    columns = [{"name": "c", "tool": "p.t", "input": {"x": "{{ row.x }}"}} | (column or {})]
    compiled, faults = compile_play(Play.model_validate({"name": "play", "columns": columns}), providers(**terms), "org", 10**9)
    assert compiled is not None, faults
    return compiled


def asked(table: Table, of: str, play: CompiledPlay, *keys: str) -> list[ToolRequested]:
    rows = tuple(AddedRow(number, key, b'{"x":1}') for number, key in enumerate(keys))
    outbox = table.turn([RunOpened(of, "org", play), RowsAdded(of, rows)])
    return requests(outbox)


def requests(outbox: Outbox) -> list[ToolRequested]:
    return [event for events in outbox.events.values() for event in events if isinstance(event, ToolRequested)]


def test_Y1_a_tool_that_says_nothing_is_leased_and_equal_cells_ask_for_one_receipt() -> None:
    table = Table(RowsEngine())
    found = asked(table, "one", bound(), "k1", "k2") + asked(table, "two", bound(receipts="leased"), "k1")
    assert len({request.receipt for request in found}) == 1
    assert {request.kept_under for request in found} == {""}


def test_Y2_equal_cells_ask_under_receipts_of_their_own_and_name_the_one_that_leased_ones_share() -> None:
    table, play = Table(RowsEngine()), bound(receipts="completed-cache")
    found = asked(table, "one", play, "k1", "k2") + asked(table, "two", play, "k1")
    (leased,) = asked(Table(RowsEngine()), "one", bound(), "k1")
    assert len({request.receipt for request in found} | {leased.receipt}) == 4
    assert {request.kept_under for request in found} == {leased.receipt}
    # A row that comes twice asks under the same receipt: its identity is the call's (P7).
    assert asked(Table(RowsEngine()), "one", play, "k1") == found[:1]


def test_Y2_a_cell_names_the_receipt_that_its_value_came_from() -> None:
    table = Table(RowsEngine())
    live, cached = asked(table, "one", bound(receipts="completed-cache"), "k1", "k2")
    table.given(CallsAnswered(live.receipt, 1, Answer.COMPLETED, ((live.call, Mark.LIVE),), b"1"))
    table.given(CallsAnswered(cached.kept_under, 1, Answer.COMPLETED, ((cached.call, Mark.CACHE),), b"1"))
    records = WorkingSet(table.reader)
    sheet = {key: records.get(record_key(SHEET, "org", "play", key), SheetRow) for key in ("k1", "k2")}
    assert {key: row.cells["c"].receipt for key, row in sheet.items() if row is not None} == {
        "k1": live.receipt,
        "k2": cached.kept_under,
    }


def test_Y2_P4_under_another_auth_scope_the_value_is_kept_under_that_scopes_receipt() -> None:
    table = Table(RowsEngine())
    (first,) = asked(table, "one", bound(receipts="completed-cache"), "k1")
    fault = Fault(scope_changed("5e" * 20), "another account", True)
    (again,) = requests(table.given(CallsAnswered(first.receipt, 1, Answer.FAILED, ((first.call, Mark.LIVE),), None, fault)))
    assert len({first.receipt, again.receipt, first.kept_under, again.kept_under}) == 4
    task = WorkingSet(table.reader).get(record_key(TASK, "one", "k1"), Task)
    assert task is not None
    assert task.cells["c"].receipt == again.receipt


def test_Y2_a_column_that_reuses_nothing_keeps_nothing() -> None:
    (request,) = asked(Table(RowsEngine()), "one", bound({"stale_after_seconds": 0}, receipts="completed-cache"), "k1")
    assert request.kept_under == ""


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ("cacheable = false", "this tool reuses nothing"),
        ("stale_after_seconds = 0", "this tool reuses nothing"),
        ("max_wait_ms = 5", "max_wait_ms has no meaning"),
        ("requires_execution_fence = true", 'requires_execution_fence needs "leased"'),
    ],
)
@pytest.mark.parametrize("python", [False, True], ids=["http", "python"])
def test_Y2_what_the_policy_contradicts_is_refused_with_file_and_tool(tmp_path: Path, terms: str, said: str, python: bool) -> None:
    file = tmp_path / "providers.toml"
    head = 'kind = "python"\naccount = "me"' if python else 'base_url = "https://p.example"'
    how = 'entry_point = "pkg:f"' if python else 'path = "/t"'
    file.write_text(f'[providers.p]\n{head}\n[providers.p.tools.t]\n{how}\nreceipts = "completed-cache"\n{terms}\n')
    with pytest.raises(ConfigurationError) as refused:
        load_providers(file)
    assert str(file) in str(refused.value)
    assert "providers.p.tools.t" in str(refused.value)
    assert said in str(refused.value)


def test_Y2_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"tools\.t\.receipts\n.*'leased' or 'completed-cache'"):
        providers(receipts="owned")


def test_Y2_R4_a_wait_of_a_column_whose_requests_never_wait_is_refused_by_its_place() -> None:
    columns = [{"name": "c", "tool": "p.t", "input": {}, "receipt_wait_ms": 5}]
    play = Play.model_validate({"name": "play", "columns": columns})
    compiled, (fault,) = compile_play(play, providers(receipts="completed-cache"), "org")
    assert compiled is None
    assert fault.startswith('play.columns.0.receipt_wait_ms: p.t has receipts = "completed-cache" in the providers file')
