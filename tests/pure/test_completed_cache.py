"""The receipt policy *completed-cache* (Y2): every miss calls for itself, and the first value is kept for later requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.commands import SweepDue
from schemas.events import (
    AddedRow,
    Ambiguous,
    Answer,
    AttemptEnded,
    BatchClaimed,
    CallsAnswered,
    CallWithdrawn,
    ClaimedMember,
    CompiledPlay,
    Event,
    Failed,
    Fault,
    Mark,
    Mode,
    ReceiptForgotten,
    ReceiptResolved,
    Repeat,
    RowsAdded,
    RunClosed,
    RunOpened,
    ToolRequested,
    Value,
)
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import RECEIPT, SHEET, TASK, VALUE, WAITER, Attempt, Receipt, SheetRow, Task, record_key
from streams.agents.receipts import receipts_agent
from streams.engine.compile import compile_play
from streams.engine.effects import ClaimFolded, Queued
from streams.engine.port import Outbox, Wake
from streams.engine.receipts import INLINE_BYTES_MAX
from streams.engine.rows import RowsEngine
from streams.engine.scopes import scope_changed
from streams.engine.sweep import FORGOTTEN
from streams.engine.withdrawal import WAITERS_INLINE
from streams.errors import ConfigurationError
from streams.inbox import Delivery
from streams.table import WorkingSet
from streams.userfiles import load_providers
from tests.pure.test_replay import Line, run
from tests.support import given as g
from tests.support.memory import Table

SHARED = "shared"
FULL, AGAIN = Mode.FULL_REFRESH, Mode.FAILED_REFRESH
LARGE = b'"' + b"x" * INLINE_BYTES_MAX + b'"'
LATER = 10**12


def asks(name: str, mode: Mode = Mode.NORMAL, *, text: bytes = b"{}", of: str = "run") -> ToolRequested:
    """A cell asks; ``name`` is its call and its own receipt, and a refresh is named by its run."""
    refresh = f"by {of}" if mode else None
    return ToolRequested(name, f"{of}:{name}:c", of, 0, "org/p", "p.t", Repeat.NEVER, text, mode, refresh, kept_under=SHARED)


def claimed(name: str, n: int = 1, *, epoch: int = 0, generation: int = 1) -> BatchClaimed:
    return BatchClaimed("org/p", "p.t", "", f"lease {name} {n}", generation, (ClaimedMember(name, n, epoch, n),))


def ended(name: str, output: bytes | None = None, n: int = 1, *, epoch: int = 0) -> AttemptEnded:
    return AttemptEnded(name, n, epoch, f"lease {name} {n}", Value(output or f'"{name}"'.encode()))


def calls(table: Table, name: str, mode: Mode = Mode.NORMAL, **asked: Any) -> Outbox:
    """A request that finds nothing is claimed and answered; what its value does."""
    table.given(asks(name, mode, **asked))
    epoch = 1 if mode else 0
    table.given(claimed(name, epoch=epoch))
    return table.given(ended(name, epoch=epoch))


def queued(outbox: Outbox) -> list[str]:
    return [effect.receipt for effect in outbox.effects if isinstance(effect, Queued)]


def told(outbox: Outbox) -> list[tuple[str, str, bytes | None]]:
    """Cells with the mark and the value that they got."""
    return [
        (call.split(":")[1], mark.value, event.output)
        for event in outbox.events.get(("tool-results", 0), [])
        if isinstance(event, CallsAnswered)
        for call, mark in event.calls
    ]


def record(table: Table, name: str = SHARED) -> Receipt:
    found = WorkingSet(table.reader).get(record_key(RECEIPT, name), Receipt)
    assert found is not None
    return found


def kept(table: Table, name: str = SHARED) -> bytes | None:
    """The value that a receipt has."""
    found = record(table, name)
    if found.current is None:
        return None
    output = found.attempts[found.current[1]].output
    return output if output is not None else msgspec.msgpack.decode(table.reader.data[record_key(VALUE, name, "1")])[0]


# --- the engine ---------------------------------------------------------------------------------------------


def test_Y2_a_miss_has_no_owner_every_request_calls_and_nobody_waits() -> None:
    table = g.receipts()
    assert queued(table.given(asks("a"), asks("b", of="other"))) == ["a", "b"]
    outbox = table.given(claimed("a"), claimed("b"))
    assert [effect.granted for effect in outbox.effects if isinstance(effect, ClaimFolded)] == [("a",), ("b",)]
    # While both are under way, too; and no deadline of R4 is set, for it waits for nobody.
    late = table.given(asks("c", of="third"))
    assert queued(late) == ["c"]
    assert not [effect for effect in late.effects if isinstance(effect, Wake)]
    table.given(claimed("c"))
    assert [told(table.given(ended(name))) for name in "cab"] == [[(name, "live", f'"{name}"'.encode())] for name in "cab"]


def test_Y2_the_first_value_is_kept_and_later_ones_change_nothing_stored() -> None:
    table = g.receipts()
    table.given(asks("a"), asks("b"))
    table.given(claimed("a"), claimed("b"))
    table.given(ended("b"))
    first = table.reader.data[RECEIPT + SHARED.encode()]
    assert kept(table) == b'"b"'
    table.given(ended("a"))
    assert table.reader.data[RECEIPT + SHARED.encode()] == first
    assert (kept(table, "a"), kept(table, "b")) == (b'"a"', b'"b"')


def test_Y2_of_two_values_in_one_turn_the_first_in_the_log_is_kept() -> None:
    table = g.receipts()
    table.given(asks("a"), asks("b"))
    table.given(claimed("a"), claimed("b"))
    assert told(table.given(ended("b"), ended("a"))) == [("b", "live", b'"b"'), ("a", "live", b'"a"')]
    assert kept(table) == b'"b"'


@pytest.mark.parametrize("output", [b'"short"', LARGE, b"null"], ids=["short", "large", "no result"])
def test_Y2_a_later_request_gets_the_value_as_cache_and_makes_no_call(output: bytes) -> None:
    table = g.receipts()
    table.given(asks("a"))
    table.given(claimed("a"), ended("a", output))
    outbox = table.given(asks("later", of="next"))
    assert (told(outbox), queued(outbox)) == ([("later", "cache", output)], [])
    (answer,) = outbox.events["tool-results", 0]
    assert isinstance(answer, CallsAnswered)
    assert (answer.receipt, answer.answer) == (SHARED, Answer.NO_RESULT if output == b"null" else Answer.COMPLETED)
    assert RECEIPT + b"later" not in table.reader.data


def test_Y2_a_request_in_the_turn_of_the_value_finds_it() -> None:
    table = g.receipts()
    table.given(asks("a"), claimed("a"))
    outbox = table.given(ended("a"), asks("b"))
    assert told(outbox) == [("a", "live", b'"a"'), ("b", "cache", b'"a"')]


def test_Y2_the_shared_receipt_says_what_was_asked_and_is_never_claimed() -> None:
    table = g.receipts()
    long = b'{"text":"' + b"x" * INLINE_BYTES_MAX + b'"}'
    calls(table, "a", text=long)
    shared = record(table)
    assert (shared.tool, shared.lane, shared.run, shared.repeat, shared.open) == ("p.t", "org/p", "run", Repeat.NEVER, False)
    assert [attempt.lease for attempt in shared.attempts.values()] == [None]
    assert msgspec.msgpack.decode(table.reader.data[b"i" + SHARED.encode()]) == [long]
    assert record(table, "a").kept_under == SHARED


def test_Y2_a_request_that_comes_twice_stays_where_it_was_folded_first() -> None:
    """The copy of a request that calls for itself meets a value meanwhile; it must be told one value and not two."""
    table = g.receipts()
    table.given(asks("a"), asks("b"))
    table.given(claimed("a"), claimed("b"), ended("a"))
    assert told(table.given(asks("b"))) == []
    assert told(table.given(ended("b"))) == [("b", "live", b'"b"')]
    assert told(table.given(asks("b"), asks("a"))) == []
    outbox = table.given(asks("late"))
    assert told(outbox) == [("late", "cache", b'"a"')]
    assert [told(table.given(asks("late"))) for _ in range(2)] == [[], []]


def test_Y2_a_crowd_is_answered_from_the_cache_each_once_also_beyond_what_the_record_holds() -> None:
    table = g.receipts()
    calls(table, "a")
    crowd = [asks(f"c{number:02}") for number in range(WAITERS_INLINE + 5)]
    assert len(told(table.turn(crowd))) == len(crowd)
    assert [key for key in table.reader.data if key[:1] == WAITER]
    # All of them come again, those that have records of their own, too.
    assert (told(table.turn(crowd)), queued(table.turn(crowd))) == ([], [])


def test_Y2_T6_a_request_that_is_withdrawn_before_it_is_read_stays_withdrawn() -> None:
    table = g.receipts()
    calls(table, "a")
    outbox = table.given(CallWithdrawn("b", "run:b:c"), asks("b"))
    assert (told(outbox), queued(outbox)) == ([], [])


@pytest.mark.parametrize("outcome", [Failed(Fault("refused", "no")), Ambiguous(Fault("lost", "no answer"))])
def test_Y2_only_a_completed_value_is_kept(outcome: Any) -> None:
    table = g.receipts()
    table.given(asks("a"), claimed("a"))
    table.given(AttemptEnded("a", 1, 0, "lease a 1", outcome))
    assert RECEIPT + SHARED.encode() not in table.reader.data
    assert queued(table.given(asks("next"))) == ["next"]


def test_Y2_U3_a_value_that_a_person_gives_is_kept_like_any_other() -> None:
    table = g.receipts()
    table.given(asks("a"), claimed("a"))
    table.given(AttemptEnded("a", 1, 0, "lease a 1", Ambiguous(Fault("lost", "no answer"))))
    table.given(ReceiptResolved("a", 1, 0, b'"paid"', "ann"))
    assert told(table.given(asks("next"))) == [("next", "cache", b'"paid"')]


# --- refreshes ----------------------------------------------------------------------------------------------


def test_Y2_R2_a_full_refresh_calls_again_and_its_first_value_takes_the_place_of_the_old_one() -> None:
    table = g.receipts()
    calls(table, "a")
    table.given(asks("f", FULL, of="two"), asks("h", FULL, of="two"))
    table.given(claimed("f", epoch=1), claimed("h", epoch=1))
    assert told(table.given(asks("now"))) == [("now", "cache", b'"a"')]
    assert told(table.given(ended("h", epoch=1))) == [("h", "live", b'"h"')]
    table.given(ended("f", epoch=1))
    assert kept(table) == b'"h"'
    assert told(table.given(asks("after"), asks("of the same", FULL, of="two"))) == [
        ("after", "cache", b'"h"'),
        ("of the same", "cache", b'"h"'),
    ]
    assert queued(table.given(asks("of another", FULL, of="three"))) == ["of another"]


def test_Y2_R2_refreshes_stand_in_the_order_of_their_requests_whichever_value_comes_first() -> None:
    table = g.receipts()
    table.given(asks("f", FULL, of="one"), asks("h", FULL, of="two"))
    table.given(claimed("f", epoch=1), claimed("h", epoch=1))
    table.given(ended("h", epoch=1))
    table.given(ended("f", epoch=1))
    assert (kept(table), record(table).refreshes) == (b'"h"', ["by one", "by two"])


def test_Y2_R2_a_failed_refresh_takes_a_completed_value_and_replaces_none() -> None:
    table = g.receipts()
    table.given(asks("r", AGAIN, of="one"), asks("a"))
    table.given(claimed("r", epoch=1), claimed("a"), ended("a"))
    table.given(ended("r", epoch=1))
    assert kept(table) == b'"a"'
    assert told(table.given(asks("s", AGAIN, of="two"))) == [("s", "cache", b'"a"')]


# --- the sweep ----------------------------------------------------------------------------------------------


def test_Y2_a_sweep_of_callers_keeps_the_value_and_one_of_receipts_drops_it_with_its_number() -> None:
    table = g.receipts()
    table.given(asks("a"), claimed("a"))
    table.given(ended("a", LARGE), RunClosed("run"))
    table.given(SweepDue(0, LATER))
    assert record(table, "a").waiters == {}
    assert kept(table) == LARGE
    table.given(SweepDue(LATER, LATER))
    stub = Attempt(lease=FORGOTTEN, op=0, released=True)
    assert record(table) == Receipt(attempts={1: stub}, lane="org/p", tool="p.t")
    assert not [key for key in table.reader.data if key[:1] == VALUE]
    table.given(asks("b", of="two"), claimed("b"))
    table.given(ended("b"))
    assert record(table).current == (0, 2)
    assert told(table.given(asks("c", of="two"))) == [("c", "cache", b'"b"')]


def test_Y2_a_late_value_of_a_call_whose_receipt_was_dropped_is_kept() -> None:
    table = g.receipts()
    table.given(asks("a"), claimed("a"))
    table.given(AttemptEnded("a", 1, 0, "lease a 1", Failed(Fault("refused", "no"))), RunClosed("run"))
    table.given(ReceiptForgotten("a", "ann"))
    assert record(table, "a").attempts[1].lease == FORGOTTEN
    table.given(ended("a"))
    assert told(table.given(asks("b"))) == [("b", "cache", b'"a"')]


def test_Y2_a_person_forgets_the_value_and_the_next_request_calls_again() -> None:
    table = g.receipts()
    calls(table, "a")
    table.given(RunClosed("run"), ReceiptForgotten(SHARED, "ann"))
    assert queued(table.given(asks("b", of="two"))) == ["b"]


# --- whatever comes -----------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
STEPS = st.one_of(
    st.builds(asks, st.sampled_from(NAMES)),
    st.builds(asks, st.sampled_from(NAMES), st.just(FULL)),
    st.builds(claimed, st.sampled_from(NAMES), st.integers(1, 2), epoch=st.integers(0, 1)),
    st.builds(ended, st.sampled_from(NAMES), st.none(), st.integers(1, 2), epoch=st.integers(0, 1)),
    st.builds(lambda name: CallWithdrawn(name, f"run:{name}:c"), st.sampled_from(NAMES)),
)


@given(st.lists(STEPS, max_size=20))
def test_Y2_whatever_comes_no_call_is_told_two_values_and_the_kept_one_stays_until_a_refresh(steps: list[Event]) -> None:
    table = g.receipts()
    seen: set[str] = set()
    before: tuple[int, bytes | None] | None = None
    for step in steps:
        answers = told(table.given(step))
        names = [name for name, _, _ in answers]
        assert len(set(names)) == len(names)
        assert not seen & set(names)
        seen |= set(names)
        if RECEIPT + SHARED.encode() not in table.reader.data:
            continue
        shared = record(table)
        assert not [attempt for attempt in shared.attempts.values() if attempt.lease is not None]
        after = None if shared.current is None else (shared.current[0], kept(table))
        assert before is None or after == before or (after is not None and after[0] > before[0])
        before = after


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=20), st.data())
def test_Y2_N6_a_replay_gives_the_same_records(steps: list[Event], data: st.DataObject) -> None:
    """However the messages were cut into turns."""
    line = Line(receipts_agent())
    waiting = [line.put_events(g.TOPIC_OF[type(step)], step) for step in steps]
    turns: list[tuple[list[Event], list[Delivery]]] = []
    while waiting:
        size = data.draw(st.integers(1, 4))
        turns.append(([], waiting[:size]))
        waiting = waiting[size:]
    asyncio.run(run(line, turns, data.draw(st.lists(st.integers(0, len(turns)), max_size=1))))
    line.check()


# --- rows and plays -----------------------------------------------------------------------------------------


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
    sheet = {key: records.get(record_key(SHEET, "play", key), SheetRow) for key in ("k1", "k2")}
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
