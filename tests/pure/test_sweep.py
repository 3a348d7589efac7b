"""What a sweep and a person drop of receipts, given / when / then: callers, batches, receipts, and what must never go."""

from __future__ import annotations

import pytest

from schemas.commands import RecoveryEnded, SweepDue
from schemas.events import (
    BatchClaimed,
    ClaimedMember,
    Event,
    LeaseExpired,
    Mode,
    ReceiptForgotten,
    Repeat,
    RunClosed,
    ToolRequested,
)
from schemas.progress import OperationEvent
from schemas.states import ANSWERED, ASK, BATCH, RECEIPT, VALUE, WAITER, Attempt, Batch, Receipt, record_key
from streams.engine.effects import Queued
from streams.engine.port import Outbox, Wake
from streams.engine.receipts import INLINE_BYTES_MAX, ReceiptsEngine
from streams.engine.sweep import ENTRY_MAX, FORGOTTEN, PAUSE_MS, PORTION_MAX, SweepPolicy
from streams.engine.withdrawal import WAITERS_INLINE
from streams.table import WorkingSet
from tests.support import given as g
from tests.support.memory import Table

HOUR = 3_600_000
LARGE = '"' + "x" * INLINE_BYTES_MAX + '"'
LATER = 10**9
STUB = Attempt(lease=FORGOTTEN, op=1, released=True)


def settled(table: Table | None = None, *, closed: bool = True) -> Table:
    """A receipt with a large value and more callers than fit in it, all of one run."""
    table = table or g.receipts()
    table.turn([g.request(f"run:{number:02}:check") for number in range(WAITERS_INLINE + 2)])
    table.given(g.claim(1, "L1"), g.value(1, LARGE))
    if closed:
        table.given(RunClosed("run"))
    return table


def keys(table: Table, *prefixes: bytes) -> list[bytes]:
    return [key for key in table.reader.data if key[:1] in prefixes]


def forgotten(table: Table, receipt: str = g.R) -> OperationEvent:
    outbox = table.given(ReceiptForgotten(receipt, "ann", "wrong input", "op"))
    (event,) = [event for event in outbox.public if event.topic == "run-events"]
    return OperationEvent.model_validate_json(event.data or b"")


def queued(outbox: Outbox) -> list[int]:
    return [effect.need.n for effect in outbox.effects if isinstance(effect, Queued)]


# --- a person -----------------------------------------------------------------------------------------------


def test_a_forgotten_receipt_leaves_its_highest_attempt_and_is_paid_again_under_a_new_key() -> None:
    table = settled()
    told = forgotten(table)
    assert (told.type, told.n, told.operation, told.who, told.why) == ("receipt.forgotten", 1, "op", "ann", "wrong input")
    assert keys(table, ASK, VALUE, WAITER) == []
    assert g.state(table) == Receipt(attempts={1: STUB}, lane="org/p", tool="p.t")
    outbox = table.given(g.request("next:0:check", run="next"))
    (need,) = [effect.need for effect in outbox.effects if isinstance(effect, Queued)]
    assert (need.n, need.op) == (2, 2)
    assert forgotten(table).code == "in_use"


def test_forgetting_twice_changes_nothing_more() -> None:
    table = settled()
    forgotten(table)
    before = dict(table.reader.data)
    assert forgotten(table).type == "receipt.forgotten"
    assert table.reader.data == before


def test_what_was_forgotten_keeps_its_refreshes_so_that_no_epoch_is_used_twice() -> None:
    table = g.receipts()
    table.given(g.request("run:0:c", "f1", Mode.FULL_REFRESH), g.claim(1, "L1", epoch=1), g.value(1, epoch=1), RunClosed("run"))
    forgotten(table)
    assert g.state(table).refreshes == ["f1"]
    table.given(g.value(1, '"late"', epoch=1))  # what was paid for is used, also after its receipt was dropped
    outbox = table.given(g.request("next:0:c", "f1", Mode.FULL_REFRESH, run="next"))
    assert queued(outbox) == []


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((g.request("run:0:c"), RunClosed("run")), "queued or being called"),
        ((g.request("run:0:c"), g.claim(1, "L1"), RunClosed("run")), "queued or being called"),
        ((g.request("run:0:c", repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1), RunClosed("run")), "unknown"),
        ((g.request("run:0:c"), g.claim(1, "L1"), g.value(1)), "run run has not ended"),
        (
            (g.request("run:0:c"), g.claim(1, "L1"), g.withdrawn("run:0:c"), g.ambiguous(1), RunClosed("run")),
            "may have been billed",
        ),
        ((g.request("run:0:c"), g.withdrawn("run:0:c"), g.withdrawn("other:0:c"), RunClosed("run")), "run other has not ended"),
    ],
    ids=["queued", "running", "unknown", "run open", "to be repeated under its key", "tombstone of an open run"],
)
def test_nothing_is_forgotten_while_open_work_refers_to_it(events: tuple[Event, ...], reason: str) -> None:
    table = g.receipts()
    for event in events:
        table.given(event)
    before = dict(table.reader.data)
    told = forgotten(table)
    assert (told.type, told.code) == ("receipt.rejected", "in_use")
    assert reason in told.message
    assert table.reader.data == before


def test_a_receipt_that_is_not_there_is_named() -> None:
    assert forgotten(g.receipts(), "nobody").code == "unknown_receipt"


def test_a_receipt_that_was_never_called_leaves_nothing() -> None:
    table = g.receipts()
    table.given(g.request("run:0:c"), g.withdrawn("run:0:c"), RunClosed("run"))
    assert forgotten(table).type == "receipt.forgotten"
    assert keys(table, RECEIPT) == []


# --- a sweep ------------------------------------------------------------------------------------------------


def swept(table: Table, *, drop: bool = False, until_ms: int = LATER) -> Outbox:
    table.now_ms += HOUR
    return table.given(SweepDue(until_ms if drop else 0, until_ms))


def test_callers_of_runs_that_have_ended_go_and_the_value_stays() -> None:
    table = settled()
    swept(table)
    receipt = g.state(table)
    assert (receipt.waiters, receipt.overflow, receipt.current, keys(table, WAITER)) == ({}, 0, (0, 1), [])
    (answer,) = table.given(g.request("next:0:check", run="next")).events[("tool-results", 0)]
    assert answer.output == LARGE.encode()  # type: ignore[attr-defined]


def test_callers_of_a_run_that_goes_on_stay_and_are_looked_at_again() -> None:
    """Else a request that comes twice would be a new one, and paid again."""
    table = settled(closed=False)
    before = g.state(table)
    swept(table)
    assert g.state(table) == before
    table.given(RunClosed("run"))
    swept(table)
    assert g.state(table).waiters == {}


def test_a_caller_that_listens_for_a_late_value_stays() -> None:
    table = g.receipts()
    table.given(g.request("run:0:c", repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1), RunClosed("run"))
    swept(table, drop=True)
    (answer,) = table.given(g.value(1, lease="L1")).events[("tool-results", 0)]
    assert answer.calls[0][0] == "run:0:c"  # type: ignore[attr-defined]


def test_what_is_younger_than_the_limit_stays() -> None:
    table = settled()
    before = dict(table.reader.data)
    swept(table, drop=True, until_ms=table.now_ms - 1)
    assert table.reader.data == before


def test_receipts_stay_for_ever_unless_a_limit_is_set() -> None:
    table = settled()
    swept(table)
    swept(table)
    assert g.state(table).current == (0, 1)
    swept(table, drop=True)
    assert g.state(table) == Receipt(attempts={1: STUB}, lane="org/p", tool="p.t")
    assert keys(table, ANSWERED, VALUE, ASK) == []


def test_a_receipt_that_a_new_run_uses_is_not_dropped_until_that_run_has_ended() -> None:
    table = settled()
    swept(table)
    table.given(g.request("next:0:check", run="next"))
    swept(table, drop=True)
    assert g.state(table).current == (0, 1)
    table.given(RunClosed("next"))
    swept(table, drop=True)
    swept(table, drop=True)
    assert g.state(table).current is None


def test_a_sweep_goes_on_in_portions_and_then_rests() -> None:
    policy = SweepPolicy(every_ms=HOUR, callers_keep_ms=10 * HOUR, receipts_keep_ms=100 * HOUR)
    table = Table(ReceiptsEngine(sweep=policy))
    outbox = table.given(RecoveryEnded())
    at_ms = table.now_ms + HOUR
    assert outbox.effects == [Wake(at_ms, SweepDue(at_ms - 100 * HOUR, at_ms - 10 * HOUR))]
    for _ in range(PORTION_MAX + 1):
        table.now_ms += 1
        settled(table)
        table.given(ReceiptForgotten(g.R))
    due = SweepDue(0, LATER)
    assert table.given(due).effects == [Wake(table.now_ms + PAUSE_MS, due)]
    (wake,) = table.given(due).effects
    assert isinstance(wake, Wake)
    assert wake.at_ms == table.now_ms + HOUR
    assert g.receipts().given(RecoveryEnded()).effects == []


def test_a_turn_that_answers_very_many_receipts_is_indexed_in_several_entries() -> None:
    table = g.receipts()
    names = [f"{number:05}" for number in range(ENTRY_MAX + 1)]
    table.turn([ask(name) for name in names])
    for start in (0, ENTRY_MAX):
        part = names[start : start + ENTRY_MAX]
        members = tuple(ClaimedMember(name, 1, 0, 1) for name in part)
        table.given(BatchClaimed("org/p", "p.t", "", f"L{start}", 1, members))
    members = tuple(ClaimedMember(name, 1, 0, 1) for name in names)
    table.given(LeaseExpired("L0", members[:ENTRY_MAX]), LeaseExpired(f"L{ENTRY_MAX}", members[ENTRY_MAX:]))
    assert len(keys(table, ANSWERED)) == 2


# --- batches ------------------------------------------------------------------------------------------------


def ask(receipt: str, repeat: Repeat = Repeat.NEVER) -> ToolRequested:
    return ToolRequested(receipt, f"run:{receipt}:c", "run", 0, "org/p", "p.t", repeat, b"{}")


def batch(table: Table) -> Batch | None:
    return WorkingSet(table.reader).get(record_key(BATCH, "batch:1"), Batch)


def batched() -> tuple[Table, tuple[ClaimedMember, ...]]:
    table = g.receipts()
    members = (ClaimedMember(g.R, 1, 0, 1), ClaimedMember("s", 1, 0, 1))
    table.given(ask(g.R, Repeat.WITH_KEY), ask("s", Repeat.WITH_KEY), BatchClaimed("org/p", "p.t", "batch:1", "L", 1, members))
    return table, members


@pytest.mark.parametrize("how", ["swept", "forgotten"])
def test_a_batch_goes_once_no_member_can_ask_for_it_again(how: str) -> None:
    table, members = batched()
    table.given(g.value(1, lease="L"))
    table.given(LeaseExpired("L", members[1:]))
    table.given(RunClosed("run"))
    for _ in range(2):
        swept(table)
    assert batch(table) is not None  # the other member is repeated as that same batch
    again = BatchClaimed(
        "org/p", "p.t", "batch:1", "M", 1, (ClaimedMember("s", 2, 0, 1),), (members[0], ClaimedMember("s", 2, 0, 1))
    )
    table.given(again)
    from schemas.events import AttemptEnded, Value

    table.given(AttemptEnded("s", 2, 0, "M", Value(b"1")))
    if how == "swept":
        swept(table)
    else:
        forgotten(table)
        forgotten(table, "s")
    assert batch(table) is None
