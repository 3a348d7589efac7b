"""The receipts engine around the protocol: where values live, who is told what, what the dispatcher hears, a new owner's stock."""

from __future__ import annotations

import msgspec
import pytest

from schemas.commands import CountersDue, LeaseJudgedExpired, RecoveryEnded
from schemas.events import (
    AttemptEnded,
    AttemptUnknown,
    BatchClaimed,
    CallsAnswered,
    ClaimedMember,
    Event,
    LeaseExpired,
    LeasesRenewed,
    Mode,
    Probed,
    Repeat,
    ToolRequested,
    Value,
)
from schemas.states import ASK, BATCH, OPEN, RECEIPT, VALUE, Ask, Batch, Flag, OpenReceipt, Receipt, record_key
from streams.engine.effects import ClaimFolded, KeptAside, LeaseOver, LeaseSeen, LeasesSeen, ProbeSeen, Queued, Unqueued
from streams.engine.port import Outbox
from streams.engine.receipts import INLINE_BYTES_MAX, WAITERS_INLINE
from streams.table import WorkingSet
from tests.support import given as g
from tests.support.memory import Table

LARGE = b'"' + b"x" * INLINE_BYTES_MAX + b'"'
MEMBER = ClaimedMember(g.R, 1, 0, 1)


def answers(outbox: Outbox) -> list[CallsAnswered]:
    found = outbox.events.get(("tool-results", 0), [])
    assert all(isinstance(event, CallsAnswered | AttemptUnknown) for event in found)
    return [event for event in found if isinstance(event, CallsAnswered)]


def calls(outbox: Outbox) -> list[str]:
    return [call for event in answers(outbox) for call, _ in event.calls]


def crowd(size: int) -> list[ToolRequested]:
    return [g.request(f"c{number:03}", repeat=Repeat.NEVER) for number in range(size)]


def ask_of(receipt: str, text: bytes = b"{}") -> ToolRequested:
    return ToolRequested(receipt, f"call-{receipt}", "run", 0, "org/p", "p.t", Repeat.WITH_KEY, text)


# --- where things live --------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [b'"small"', LARGE])
def test_a_value_is_answered_whatever_its_size_now_and_to_those_who_ask_later(output: bytes) -> None:
    table = g.receipts()
    table.given(g.request("c1"), g.claim(1, "L1"))
    (answer,) = answers(table.given(g.value(1, output.decode())))
    assert (answer.output, answer.calls[0][1].value) == (output, "live")
    (answer,) = answers(table.given(g.request("c2")))
    assert (answer.output, answer.calls[0][1].value) == (output, "cache")
    assert (record_key(VALUE, g.R, "1") in table.reader.data) is (output is LARGE)


@pytest.mark.parametrize("text", [b"{}", LARGE])
def test_an_input_is_kept_with_its_receipt_or_beside_it_by_its_size(text: bytes) -> None:
    table = g.receipts()
    table.given(ask_of(g.R, text))
    asked = WorkingSet(table.reader).get(record_key(ASK, g.R), Ask)
    assert (g.state(table).input or (asked and asked.input)) == text


def test_R9_S5_a_second_value_of_an_attempt_is_kept_aside_and_reported() -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"), g.value(1, '"first"'))
    outbox = table.given(g.value(1, '"second"'))
    assert KeptAside(g.R, 1, "p.t", b'"second"') in outbox.effects
    assert answers(outbox) == []
    (stored,) = [value for key, value in table.reader.data.items() if key.startswith(VALUE)]
    assert b'"second"' in stored
    assert not any(isinstance(effect, KeptAside) for effect in table.given(g.value(1, '"second"')).effects)


def test_B10_null_is_told_as_no_result() -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    (answer,) = answers(table.given(g.value(1, "null")))
    assert (answer.answer.value, answer.output) == ("no_result", b"null")


def test_K6_a_batch_is_kept_in_payload_order_so_that_it_can_be_repeated_as_it_was() -> None:
    table = g.receipts()
    table.given(ask_of("a"), ask_of("b"))
    members = tuple(ClaimedMember(name, 1, 0, 1) for name in "ba")
    outbox = table.given(BatchClaimed("org/p", "p.t", "batch:1", "L1", 1, members))
    assert [effect.granted for effect in outbox.effects if isinstance(effect, ClaimFolded)] == [("b", "a")]
    batch = WorkingSet(table.reader).get(record_key(BATCH, "batch:1"), Batch)
    assert batch == Batch("p.t", "org/p", (("b", 0, 1), ("a", 0, 1)))
    again = (ClaimedMember("a", 2, 0, 1),)
    table.given(LeaseExpired("L1", members))
    table.given(BatchClaimed("org/p", "p.t", "batch:1", "L2", 1, again, (ClaimedMember("b", 0, 0, 1), *again)))
    assert WorkingSet(table.reader).get(record_key(BATCH, "batch:1"), Batch) == batch


def test_a_batch_of_which_a_member_was_lost_to_another_claim_says_so() -> None:
    table = g.receipts()
    table.given(ask_of("a"), ask_of("b"), BatchClaimed("org/p", "p.t", "", "other", 1, (ClaimedMember("a", 1, 0, 1),)))
    members = tuple(ClaimedMember(name, 1, 0, 1) for name in "ab")
    outbox = table.given(BatchClaimed("org/p", "p.t", "batch:1", "L1", 1, members))
    assert [(effect.granted, effect.lost) for effect in outbox.effects if isinstance(effect, ClaimFolded)] == [(("b",), ("a",))]
    assert LeaseSeen("org/p", "L1", (members[1],)) in outbox.effects


# --- many waiters -------------------------------------------------------------------------------------------


def test_waiters_beyond_the_inline_ones_are_known_when_they_ask_again() -> None:
    table = g.receipts()
    table.turn(crowd(WAITERS_INLINE + 2))
    before = dict(table.reader.data)
    table.turn(crowd(WAITERS_INLINE + 2))
    assert table.reader.data == before
    assert g.state(table).overflow == 2


@pytest.mark.parametrize("number", [0, WAITERS_INLINE])
def test_T6_a_withdrawal_is_a_tombstone_wherever_the_waiter_lives(number: int) -> None:
    table = g.receipts()
    table.turn(crowd(WAITERS_INLINE + 1))
    name = f"c{number:03}"
    table.given(g.withdrawn(name))
    table.turn(crowd(WAITERS_INLINE + 1))
    told = calls(table.given(g.claim(1, "L1"), g.value(1)))
    assert len(told) == WAITERS_INLINE
    assert name not in told


def test_T6_a_withdrawal_that_comes_before_its_request_is_one_even_if_there_is_no_room_inline() -> None:
    table = g.receipts()
    table.turn(crowd(WAITERS_INLINE))
    table.given(g.withdrawn("late"), g.withdrawn("late"))
    assert g.state(table).overflow == 1
    table.given(g.request("late"))
    assert "late" not in calls(table.given(g.claim(1, "L1"), g.value(1)))


def test_a_withdrawal_of_the_last_waiter_takes_the_receipt_out_of_its_lane() -> None:
    table = g.receipts()
    table.given(g.request())
    assert Unqueued("org/p", (g.R,)) in table.given(g.withdrawn()).effects


# --- what is told -------------------------------------------------------------------------------------------


def test_U2_a_lease_that_ran_out_without_a_word_is_unknown_and_says_why() -> None:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"))
    (answer,) = answers(table.given(g.expiry(1, "L1")))
    assert answer.answer.value == "unknown"
    assert answer.fault is not None
    assert answer.fault.code == "lease_expired"


def test_U3_a_person_resolves_as_paid_with_the_value_or_as_unpaid_with_a_new_call() -> None:
    for output, repeats in ((b'"bill"', False), (None, True)):
        table = g.receipts()
        table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1))
        outbox = table.given(g.resolved(1, output))
        assert [answer.output for answer in answers(outbox)] == ([output] if output else [])
        assert any(isinstance(effect, Queued) for effect in outbox.effects) is repeats
        again = table.given(g.resolved(1, output))
        assert answers(again) == []


def test_a_value_is_no_news_to_a_call_that_was_told_failed_and_reaches_the_others() -> None:
    table = g.receipts()
    table.given(g.request("c1"), g.claim(1, "L1"), g.failed(1))
    outbox = table.given(g.request("c2", "f1", Mode.FAILED_REFRESH), g.claim(2, "L2", epoch=1, op=2), g.value(2, epoch=1))
    assert calls(outbox) == ["c2"]
    assert g.state(table).waiters["c1"].flag is Flag.DONE


def test_answers_go_to_the_partition_of_each_caller() -> None:
    table = g.receipts()
    table.given(g.request("c1"), ToolRequested(g.R, "c2", "run", 5, "org/p", "p.t", Repeat.WITH_KEY, b"{}"), g.claim(1, "L1"))
    outbox = table.given(g.value(1))
    assert {partition for topic, partition in outbox.events if topic == "tool-results"} == {0, 5}


# --- what the dispatcher hears ------------------------------------------------------------------------------


def test_heartbeats_and_marks_change_nothing_and_are_passed_on() -> None:
    table = g.receipts()
    outbox = table.given(LeasesRenewed(("L1", "L2")), Probed("mark"))
    assert outbox.effects == [LeasesSeen(("L1", "L2")), ProbeSeen("mark")]
    assert (outbox.events, table.reader.data) == ({}, {})


def test_L4_a_lease_that_was_judged_expired_becomes_an_event_before_it_takes_effect() -> None:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"))
    outbox = table.given(LeaseJudgedExpired("L1", (MEMBER,)))
    assert outbox.events == {("receipt-claims", 0): [LeaseExpired("L1", (MEMBER,))]}
    assert g.state(table).attempts[1].expired is False


@pytest.mark.parametrize("end", [g.value(1, lease="L1"), g.release(1, "L1"), g.expiry(1, "L1")])
def test_the_end_of_an_attempt_ends_its_lease(end: Event) -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    assert LeaseOver("L1", (g.R,)) in table.given(end).effects


def test_an_event_of_another_agent_changes_nothing() -> None:
    table = g.receipts()
    outbox = table.given(CountersDue("run"))
    assert (outbox.events, outbox.effects, table.reader.data) == ({}, [], {})


# --- a new owner --------------------------------------------------------------------------------------------


def stock() -> Table:
    """A partition with a queued receipt, one under a live lease, and a settled one."""
    table = g.receipts()
    table.given(*(ask_of(name) for name in ("queued", "live", "settled")))
    members = tuple(ClaimedMember(name, 1, 0, 1) for name in ("live", "settled"))
    table.given(BatchClaimed("org/p", "p.t", "batch:1", "L1", 1, members))
    table.given(AttemptEnded("settled", 1, 0, "L1", Value(b"1")))
    table.generation = 2
    return table


def test_a_new_owner_queues_what_waits_and_starts_the_clocks_of_leases_that_live() -> None:
    outbox = stock().given(RecoveryEnded())
    assert [effect.receipt for effect in outbox.effects if isinstance(effect, Queued)] == ["queued"]
    seen = [effect for effect in outbox.effects if isinstance(effect, LeaseSeen)]
    assert seen == [LeaseSeen("org/p", "L1", (ClaimedMember("live", 1, 0, 1),))]
    assert outbox.events == {}


def test_what_a_new_owner_folds_in_its_first_turn_is_kept() -> None:
    """Its first turn takes stock and folds the messages that waited, of the same receipts: their changes must be written."""
    table = stock()
    table.given(RecoveryEnded(), msgspec.structs.replace(ask_of("queued"), call="late"))
    receipt = WorkingSet(table.reader).get(record_key(RECEIPT, "queued"), Receipt)
    assert receipt is not None
    assert "late" in receipt.waiters


def test_an_index_entry_without_its_receipt_does_no_harm() -> None:
    table = g.receipts()
    table.reader.data[record_key(OPEN, "gone")] = msgspec.msgpack.encode(OpenReceipt())
    outbox = table.given(RecoveryEnded())
    assert (outbox.events, outbox.effects) == ({}, [])
