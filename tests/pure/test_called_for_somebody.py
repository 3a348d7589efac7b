"""What a receipt does beyond its first call, given / when / then: for whom it is called again, as what, and what is known of it."""

from __future__ import annotations

import pytest

from schemas.commands import LeaseJudgedExpired, RecoveryEnded
from schemas.events import (
    CallsAnswered,
    CallWithdrawn,
    ClaimedMember,
    LeaseExpired,
    Mode,
    Repeat,
    RunClosed,
)
from schemas.states import UNKNOWN, Flag, Out, Receipt, Unknown, record_key
from streams.engine import protocol
from streams.engine.effects import ClaimFolded, UnknownSeen
from streams.engine.port import Outbox
from streams.engine.protocol import Need, batch_of
from streams.table import WorkingSet
from tests.pure.test_sweep import swept
from tests.support import given as g
from tests.support.memory import Table

# --- for whom (M15) -----------------------------------------------------------------------------------------


def refused_for_a(repeat: Repeat = Repeat.WITH_KEY) -> Table:
    """*a* was told failed; *b* asked again, and its call is under way."""
    table = g.receipts()
    table.given(g.request("a:0:c", run="a", repeat=repeat), g.claim(1, "L1"))
    table.given(g.failed(1))
    table.given(g.request("b:0:c", "fb", Mode.FAILED_REFRESH, run="b", repeat=repeat))
    return table


def granted(outbox: Outbox) -> list[str]:
    return [receipt for effect in outbox.effects if isinstance(effect, ClaimFolded) for receipt in effect.granted]


@pytest.mark.parametrize("over", [True, False])
def test_M15_no_call_is_repeated_for_one_who_was_told_failed(over: bool) -> None:
    """M15: *b* was cancelled while its call was under way, the answer was lost, and the lane called again for *a*: it had been told
    *failed*, which is final for its row, and its run had even ended.
    """
    table = refused_for_a()
    if over:
        table.given(RunClosed("a"))
    assert granted(table.given(g.claim(2, "L2", epoch=1, op=2))) == [g.R]
    table.given(CallWithdrawn(g.R, "b:0:c"))
    assert g.needs(table.given(g.ambiguous(2, epoch=1))) == []
    assert g.needs(table.given(RecoveryEnded())) == []
    assert g.needs(table.given(g.request("c:0:c", run="c"))) == [Need(3, 1, 2, 0, "", 1)]  # the next one who asks, under its key


def test_M15_no_claim_is_granted_for_one_who_was_told_failed() -> None:
    table = refused_for_a()
    outbox = table.given(CallWithdrawn(g.R, "b:0:c"), g.claim(2, "L2", epoch=1, op=2))
    assert granted(outbox) == []
    assert g.state(table).waiters["a:0:c"].flag is Flag.FAILED


def test_M15_no_claim_is_granted_for_a_listener_whose_run_has_ended() -> None:
    """M15: whoever was told *unknown* and has gone counted as one who waits once another call was claimed."""
    table = g.receipts()
    table.given(g.request("a:0:c", run="a", repeat=Repeat.NEVER), g.claim(1, "L1"))
    table.given(g.ambiguous(1))
    table.given(RunClosed("a"))
    table.given(g.request("b:0:c", "fb", Mode.FULL_REFRESH, run="b", repeat=Repeat.NEVER))
    outbox = table.given(CallWithdrawn(g.R, "b:0:c"), g.claim(2, "L2", epoch=1, op=2))
    assert granted(outbox) == []


# --- as what (K6) -------------------------------------------------------------------------------------------


def lost_batch(not_before_ms: int = 0) -> Receipt:
    receipt = Receipt(repeat=Repeat.WITH_KEY)
    assert protocol.claim(receipt, 1, "L1", 1, 0, 1, "batch:ab")
    attempt = protocol.end(receipt, 1, Out.AMBIGUOUS)
    assert attempt is not None
    attempt.not_before_ms = not_before_ms
    return receipt


def needed(receipt: Receipt) -> Need | None:
    waiter = protocol.waiter_of(receipt, g.request())
    return protocol.need(receipt, [waiter], protocol.standing(receipt))


def test_K6_the_repeat_of_a_batch_waits_as_long_as_its_own_attempt_said_and_the_last_one() -> None:
    """K6, P2: the repeat was described by the last attempt, also where that was of another epoch: no batch, and no wait."""
    receipt = lost_batch(5_000)
    assert protocol.claim(receipt, 2, "L2", 1, 1, 2, "")
    refused = protocol.end(receipt, 2, Out.FAILED)
    assert refused is not None
    assert needed(receipt) == Need(3, 0, 1, 5_000, "batch:ab", 1)
    refused.not_before_ms = 9_000
    assert needed(receipt) == Need(3, 0, 1, 9_000, "batch:ab", 1)


@pytest.mark.parametrize("end", ["given back", "expired"])
def test_K6_a_claim_that_names_no_batch_does_not_make_its_operation_a_call_for_one(end: str) -> None:
    receipt = lost_batch()
    assert protocol.claim(receipt, 2, "L2", 1, 0, 1, "")
    if end == "expired":
        protocol.expire(receipt, 2, "L2")
    else:
        protocol.release(receipt, 2, "L2")
    assert needed(receipt) == Need(3, 0, 1, 0, "batch:ab", 1 + (end == "expired"))
    assert [batch_of(receipt, 0, op) for op in (1, 2)] == ["batch:ab", ""]


def test_K6_a_new_operation_is_of_no_batch() -> None:
    receipt = lost_batch()
    protocol.end(receipt, 1, Out.UNPAID)
    assert needed(receipt) == Need(2, 0, 2, 0, "", 1)


# --- a request that comes again (T6) ------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["withdrawn", "answered"])
def test_T6_a_caller_with_a_record_of_its_own_is_known_when_the_inline_ones_are_gone(what: str) -> None:
    """T6: after a sweep there was room among the inline callers, so nobody looked for the record of one that came when there was
    none: a call that was withdrawn came back to life, and one that was answered was answered again.
    """
    table = g.receipts()
    table.turn([g.request(f"old:{number:02}:c", run="old") for number in range(16)])
    late = g.request("new:0:c", run="new")
    table.given(late)
    if what == "withdrawn":
        table.given(CallWithdrawn(g.R, late.call))
    table.given(g.claim(1, "L1"), g.value(1), RunClosed("old"))
    swept(table)
    before = g.state(table)
    assert (len(before.waiters), before.overflow) == (0, 1)
    assert table.given(late).events == {}
    assert (g.state(table).waiters, g.state(table).overflow) == ({}, 1)


# --- what is known of it (U5) -------------------------------------------------------------------------------


def test_U5_whoever_is_told_unknown_finds_the_receipt_in_the_list_of_unknown_outcomes() -> None:
    """U5: the expiry that used the attempts up and the next claim were folded in one turn, and that claim was given back: a caller
    was told *unknown* of the older attempt, but the receipt was not listed, not looked up, and not known to a next owner.
    """
    table = g.receipts()
    member = ClaimedMember(g.R, 1, 0, 1)
    table.given(g.request("a:0:c", run="a", repeat=Repeat.FREELY), g.claim(1, "L1"))
    table.given(LeaseJudgedExpired("L1", (member,), 0, (g.R,)))
    assert g.needs(table.given(g.ambiguous(1))) == [Need(2, 0, 1, 0, "", 1)]
    table.given(LeaseExpired("L1", (member,), 0, (g.R,)), g.claim(2, "L2"))
    outbox = table.given(g.release(2, "L2"))
    told = [event for event in outbox.events[("tool-results", 0)] if isinstance(event, CallsAnswered)]
    assert [(event.answer.value, event.n) for event in told] == [("unknown", 1)]
    entry = WorkingSet(table.reader).get(record_key(UNKNOWN, g.R), Unknown)
    assert entry is not None
    assert entry.n == 1
    for seen in (outbox, table.given(RecoveryEnded())):
        assert [effect.n for effect in seen.effects if isinstance(effect, UnknownSeen)] == [1]
