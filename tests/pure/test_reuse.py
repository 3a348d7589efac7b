"""For how long a result is reused: windows that a run pins when it is accepted (K4), and calls that reuse nothing (K8, P7)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from schemas import address
from schemas.commands import RunRequested
from schemas.events import AddedRow, Answer, CallsAnswered, CompiledPlay, Fault, Mark, RowsAdded, RunOpened, ToolRequested
from schemas.plays import Play
from schemas.providers import Providers
from streams.agents.runs import judged
from streams.engine.cells import call_of, cell_of, standing_of
from streams.engine.compile import compile_play
from streams.engine.port import Outbox
from streams.engine.rows import RowsEngine
from streams.kafka.inbox import Delivery
from tests.support.memory import Table

DAY = 86_400


def providers(**terms: Any) -> Providers:
    return Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": {"path": "/t"} | terms}}}})


def play(**column: Any) -> Play:
    return Play.model_validate({"name": "play", "columns": [{"name": "c", "tool": "p.t", "input": {"x": "{{ row.x }}"}} | column]})


def bound(now: int, column: dict[str, Any] | None = None, **terms: Any) -> CompiledPlay:
    compiled, faults = compile_play(play(**(column or {})), providers(**terms), "org", now)
    assert compiled is not None, faults
    return compiled


def asked(table: Table, *runs: tuple[str, CompiledPlay], force: bool = False) -> list[ToolRequested]:
    """What runs over one and the same row ask for; a run that finds a standing row asks for nothing."""
    found: list[ToolRequested] = []
    for run, of in runs:
        outbox = table.turn([RunOpened(run, "org", of, force), RowsAdded(run, (AddedRow(0, "key", b'{"x":1}'),))])
        found += requests(outbox)
    return found


def requests(outbox: Outbox) -> list[ToolRequested]:
    return [event for events in outbox.events.values() for event in events if isinstance(event, ToolRequested)]


def answer(table: Table, request: ToolRequested, mark: Mark = Mark.LIVE) -> Outbox:
    return table.turn([CallsAnswered(request.receipt, 1, Answer.COMPLETED, ((request.call, mark),), b'"v"')])


# --- windows ------------------------------------------------------------------------------------------------


def test_K4_a_result_expires_by_its_key_changing_at_the_windows_edge() -> None:
    table = Table(RowsEngine())
    one, same, next_day = asked(
        table,
        ("one", bound(5 * DAY, stale_after_seconds=DAY)),
        ("same", bound(6 * DAY - 1, stale_after_seconds=DAY)),
        ("next", bound(6 * DAY, stale_after_seconds=DAY)),
    )
    assert one.receipt == same.receipt != next_day.receipt


def test_K4_the_key_is_the_one_that_the_address_gives_for_the_window() -> None:
    compiled = bound(5 * DAY + 3, stale_after_seconds=DAY)
    (request,) = asked(Table(RowsEngine()), ("run", compiled))
    column = compiled.columns[0]
    assert request.receipt == address.receipt_key(
        org="org",
        scope=None,
        tool="p.t",
        input={"x": 1},
        auth_scope=column.scope,
        action_version=column.version,
        window=address.window_index(5 * DAY + 3, DAY),
    )


def test_K4_what_never_expires_keeps_the_key_that_it_always_had() -> None:
    now, later = bound(5 * DAY), bound(50 * DAY)
    assert now == later
    assert (now.columns[0].window, now.columns[0].fresh, standing_of("org", now)) == (None, False, standing_of("org", later))


@pytest.mark.parametrize(
    ("tool", "column", "seconds"),
    [
        ({"stale_after_seconds": DAY}, {}, DAY),
        ({"stale_after_seconds": DAY}, {"stale_after_seconds": 60}, 60),
        ({}, {"stale_after_seconds": 60}, 60),
    ],
)
def test_K4_a_column_says_it_instead_of_its_tool(tool: dict[str, Any], column: dict[str, Any], seconds: int) -> None:
    assert bound(7 * DAY + 123, column, **tool).columns[0].window == (7 * DAY + 123) // seconds


def test_K4_the_window_is_pinned_when_the_run_is_accepted_and_kept_by_a_replay_across_the_edge() -> None:
    """The judgement stands in the turn record; what is folded from it again, on any later day, has the same keys."""
    request = {"type": "run_requested", "run": "run", "play": play().model_dump(mode="json"), "rows": [{"x": 1}]}
    delivery = Delivery("run-requests", 0, b"run", json.dumps(request).encode())
    (accepted,) = judged(delivery, None, 8, providers(stale_after_seconds=DAY), lambda: 5.9 * DAY)
    assert isinstance(accepted, RunRequested)
    assert accepted.play is not None
    assert accepted.play.columns[0].window == 5
    record = msgspec.msgpack.encode(accepted)
    replayed = msgspec.msgpack.decode(record, type=RunRequested)
    assert replayed.play is not None
    first, again = asked(Table(RowsEngine()), ("run", accepted.play)), asked(Table(RowsEngine()), ("run", replayed.play))
    assert first == again


def test_K4_a_repeat_of_a_failed_call_across_the_edge_keeps_its_key() -> None:
    table = Table(RowsEngine())
    (request,) = asked(table, ("run", bound(6 * DAY - 1, stale_after_seconds=DAY)))
    again = table.turn(
        [CallsAnswered(request.receipt, 1, Answer.FAILED, ((request.call, Mark.CACHE),), None, Fault("http_503", "closed", True))]
    )
    (repeated,) = requests(again)
    assert repeated.receipt == request.receipt


def test_K4_M2_a_row_of_an_earlier_window_does_not_stand_and_one_of_the_same_does() -> None:
    table = Table(RowsEngine())
    (request,) = asked(table, ("one", bound(5 * DAY, stale_after_seconds=DAY)))
    answer(table, request)
    assert asked(table, ("same", bound(5 * DAY + 9, stale_after_seconds=DAY))) == []
    (after,) = asked(table, ("next", bound(6 * DAY, stale_after_seconds=DAY)))
    assert after.receipt != request.receipt


def test_K4_an_unused_setting_leaves_a_plays_revision_alone() -> None:
    assert "stale_after_seconds" not in json.dumps(play().model_dump(mode="json"))
    assert bound(0).revision != bound(0, {"stale_after_seconds": 60}).revision


# --- always fresh -------------------------------------------------------------------------------------------

FRESH: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"stale_after_seconds": 0}, {}),
    ({"cacheable": False}, {}),
    ({}, {"stale_after_seconds": 0}),
    ({"stale_after_seconds": DAY}, {"stale_after_seconds": 0}),
    ({"cacheable": False}, {"stale_after_seconds": 60}),
]


@pytest.mark.parametrize(("tool", "column"), FRESH)
def test_K8_a_call_that_is_always_fresh_shares_its_receipt_with_no_other_call(tool: dict[str, Any], column: dict[str, Any]) -> None:
    table = Table(RowsEngine())
    compiled = bound(9 * DAY, column, **tool)
    outbox = table.turn(
        [
            RunOpened("one", "org", compiled),
            RowsAdded("one", (AddedRow(0, "key0", b'{"x":1}'), AddedRow(1, "key1", b'{"x":1}'))),
            RunOpened("two", "org", compiled),
            RowsAdded("two", (AddedRow(0, "key0", b'{"x":1}'),)),
        ]
    )
    assert len({request.receipt for request in requests(outbox)}) == 3


def test_K8_two_columns_of_a_row_that_ask_alike_have_receipts_of_their_own() -> None:
    columns = [{"name": name, "tool": "p.t", "input": {"x": 1}} for name in ("a", "b")]
    compiled, _ = compile_play(Play.model_validate({"name": "p", "columns": columns}), providers(cacheable=False), "org")
    assert compiled is not None
    table = Table(RowsEngine())
    (first,) = asked(table, ("run", compiled))
    (second,) = requests(answer(table, first))
    assert first.receipt != second.receipt


def test_P7_the_identity_of_a_fresh_call_is_stable_under_replay() -> None:
    compiled = bound(0, cacheable=False)
    (first,) = asked(Table(RowsEngine()), ("run", compiled))
    (again,) = asked(Table(RowsEngine()), ("run", compiled))
    assert first == again
    run, row, column, refreshed = cell_of(first.call)
    shared = asked(Table(RowsEngine()), ("run", bound(0)))[0].receipt
    assert first.receipt == address.fresh_receipt_key(shared, call_of(run, row, column, refreshed)) != shared


def test_P7_a_row_that_comes_twice_asks_once() -> None:
    table = Table(RowsEngine())
    compiled = bound(0, cacheable=False)
    assert len(asked(table, ("run", compiled), ("run", compiled))) == 1


def test_K8_M2_a_row_with_a_fresh_column_never_stands() -> None:
    table = Table(RowsEngine())
    compiled = bound(0, cacheable=False)
    (request,) = asked(table, ("one", compiled))
    answer(table, request)
    assert len(asked(table, ("two", compiled))) == 1


def test_K8_windows_mean_nothing_to_what_is_not_cacheable() -> None:
    with pytest.raises(ValidationError, match="cacheable = false reuses nothing"):
        providers(cacheable=False, stale_after_seconds=60)
    assert bound(0, {"stale_after_seconds": 60}, cacheable=False).columns[0].window is None


# --- what may not be repeated -------------------------------------------------------------------------------


def test_P6_an_unsafe_write_needs_its_key_or_goes_once() -> None:
    with pytest.raises(ValidationError, match='requires_execution_fence forbids repeat = "freely"'):
        providers(requires_execution_fence=True, repeat="freely")
    for repeat in ("never", "with-key"):
        found = providers(requires_execution_fence=True, repeat=repeat).tool("p.t")
        assert found is not None
        assert found[1].repeat == repeat
