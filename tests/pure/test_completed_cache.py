"""The receipt policy *completed-cache* (Y2): every miss calls for itself, and the first value is kept for later requests."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import SweepDue
from schemas.events import (
    Ambiguous,
    Answer,
    AttemptEnded,
    BatchClaimed,
    CallsAnswered,
    CallWithdrawn,
    ClaimedMember,
    Event,
    Failed,
    Fault,
    Mode,
    ReceiptForgotten,
    ReceiptResolved,
    Repeat,
    RunClosed,
    ToolRequested,
    Value,
)
from schemas.states import RECEIPT, VALUE, WAITER, Attempt, Receipt, record_key
from streams.agents.receipts import receipts_agent
from streams.engine.effects import ClaimFolded, Queued
from streams.engine.port import Outbox, Wake
from streams.engine.receipts import INLINE_BYTES_MAX
from streams.engine.sweep import FORGOTTEN
from streams.engine.withdrawal import WAITERS_INLINE
from streams.kafka.inbox import Delivery
from streams.table import WorkingSet
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


def test_Y2_R2_a_value_of_a_failed_refresh_behind_a_full_one_is_kept_for_the_full_one() -> None:
    """Crash of each owner: such a refresh has no place under the shared receipt, where its value was to be put."""
    table = g.receipts()
    table.given(asks("r", FULL, of="one"))
    table.given(msgspec.structs.replace(asks("r", AGAIN, of="one"), call="one:r:c~1", refresh="by one, again"))
    table.given(claimed("r", epoch=2), ended("r", epoch=2))
    assert (kept(table), record(table).current) == (b'"r"', (1, 1))
    assert told(table.given(asks("s", FULL, of="one"))) == [("s", "cache", b'"r"')]


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
