"""What a request meets and what it may claim (R1, R2, R5 to R9), and the cases that follow from it, at the level of the fold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas import envelope
from schemas.commands import RecoveryEnded
from schemas.events import AttemptEnded, CallsAnswered, Event, Fault, LeaseReleased, Mode, Repeat, Retry
from streams.engine.dispositions import Disposition, disposition
from streams.engine.effects import ClaimFolded, LeaseSeen
from streams.engine.port import Outbox
from streams.engine.protocol import standing
from tests.support import given as g
from tests.support.memory import Table

FULL, FAILED, NORMAL = Mode.FULL_REFRESH, Mode.FAILED_REFRESH, Mode.NORMAL
BROKEN = Fault("refused_connection", "nobody listens", True)


def told(outbox: Outbox) -> list[tuple[str, list[str]]]:
    return [
        (event.answer.value, [call for call, _ in event.calls])
        for event in outbox.events.get(("tool-results", 0), [])
        if isinstance(event, CallsAnswered)
    ]


def asked(table: Table, call: str, mode: Mode = NORMAL, *, run: str = "two") -> Outbox:
    return table.given(g.request(call, f"refresh-{run}" if mode else None, mode, run=run))


def met(events: list[Event], mode: Mode) -> Disposition:
    """What a request of this mode meets once these events were folded."""
    table = g.receipts()
    table.turn(events)
    asked(table, "last", mode)
    receipt = g.state(table)
    return disposition(receipt, receipt.waiters["last"], standing(receipt))


CLAIMED: list[Event] = [g.request(repeat=Repeat.NEVER), g.claim(1, "L")]


@pytest.mark.parametrize(
    ("events", "normal", "failed_refresh", "full_refresh"),
    [
        ([], "claimed", "claimed", "claimed"),
        ([g.request()], "claimed", "claimed", "claimed"),
        (CLAIMED, "running", "running", "blocked_active_lease"),
        ([*CLAIMED, g.release(1, "L")], "claimed", "claimed", "claimed"),
        ([*CLAIMED, g.retry(1)], "claimed", "claimed", "claimed"),
        ([*CLAIMED, g.value(1)], "reused", "reused", "claimed"),
        ([*CLAIMED, g.failed(1)], "failed", "claimed", "claimed"),
        ([*CLAIMED, g.ambiguous(1)], "unknown", "unknown", "claimed"),
        ([*CLAIMED, g.expiry(1, "L")], "unknown", "unknown", "claimed"),
        (
            [*CLAIMED, g.failed(1), g.request("c2", "f", FAILED), g.claim(2, "L2", epoch=1, op=2)],
            "running",
            "running",
            "blocked_active_lease",
        ),
    ],
)
def test_R1_R2_what_a_request_meets_has_a_name(events: list[Event], normal: str, failed_refresh: str, full_refresh: str) -> None:
    assert [met(events, mode).value for mode in (NORMAL, FAILED, FULL)] == [normal, failed_refresh, full_refresh]


def test_R1_the_claim_of_a_batch_is_answered_for_each_member_and_never_in_part() -> None:
    table = g.receipts()
    table.given(g.request())
    outbox = table.given(g.claim(1, "L"))
    (folded,) = [effect for effect in outbox.effects if isinstance(effect, ClaimFolded)]
    claimed = g.claim(1, "L").members
    assert folded.unanswered(claimed) == []
    more = (*claimed, msgspec.structs.replace(claimed[0], receipt="forgotten"))
    assert folded.unanswered(more) == ["forgotten"]


@pytest.mark.parametrize("lease", ["", None])
def test_R1_case_E1_a_claim_without_a_lease_is_refused_where_it_is_read(lease: Any) -> None:
    """It is parked with the dead letters, so no receipt is ever running without a lease that can run out."""
    value = envelope.encode([msgspec.structs.replace(g.claim(1, "L"), lease=lease)])
    with pytest.raises(envelope.EnvelopeError, match="receipt-claims"):
        envelope.unpack("receipt-claims", value, envelope.headers_of("receipt-claims"))


def test_case_E1_L1_every_live_claim_has_a_clock_also_for_the_next_owner() -> None:
    """(a) and (c): the process that claimed may die right after; whoever owns the partition then watches its lease."""
    table = g.receipts()
    seen = [effect for effect in table.given(g.request(), g.claim(1, "L")).effects if isinstance(effect, LeaseSeen)]
    assert [(effect.lease, [member.receipt for member in effect.members]) for effect in seen] == [("L", [g.R])]
    table.generation += 1
    seen = [effect for effect in table.given(RecoveryEnded()).effects if isinstance(effect, LeaseSeen)]
    assert [(effect.lease, [member.receipt for member in effect.members]) for effect in seen] == [("L", [g.R])]


# --- force modes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modes", "end", "claims"),
    [
        ((NORMAL, NORMAL), g.value(1), False),
        ((NORMAL, FAILED), g.value(1), False),
        ((NORMAL, FULL), g.value(1), True),
        ((FAILED, FULL), g.value(1), True),
        ((NORMAL, NORMAL), g.failed(1), False),
        ((NORMAL, FAILED), g.failed(1), True),
        ((NORMAL, FULL), g.failed(1), True),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_R2_the_strongest_of_a_group_decides(modes: tuple[Mode, Mode], end: AttemptEnded, claims: bool, turned: bool) -> None:
    table = g.receipts()
    table.given(*CLAIMED, end)
    one, other = reversed(modes) if turned else modes
    group = [g.request("a", "f1" if one else None, one), g.request("b", "f2" if other else None, other)]
    outbox = table.turn(group)
    assert bool(g.needs(outbox)) is claims
    if not claims:
        return
    (need,) = g.needs(outbox)
    outbox = table.given(g.claim(2, "L2", epoch=need.epoch, op=need.op), g.value(2, '"new"', epoch=need.epoch, lease="L2"))
    assert g.needs(outbox) == [], "one call serves the whole group"
    assert all(answer == "completed" for answer, _ in told(outbox))


def test_R2_a_failed_refresh_reuses_what_is_complete_and_claims_what_failed() -> None:
    for end, again in ((g.value(1), False), (g.failed(1), True)):
        table = g.receipts()
        table.given(*CLAIMED, end)
        outbox = asked(table, "c2", FAILED)
        assert bool(g.needs(outbox)) is again
        assert told(outbox) == ([] if again else [("completed", ["c2"])])


def test_R2_a_full_refresh_executes_again_and_until_then_others_reuse_what_there_is() -> None:
    table = g.receipts()
    table.given(*CLAIMED, g.value(1, '"old"'))
    assert len(g.needs(asked(table, "c2", FULL))) == 1
    table.given(g.claim(2, "L2", epoch=1, op=2))
    assert told(asked(table, "c3", run="three")) == [("completed", ["c3"])]
    outbox = table.given(g.value(2, '"new"', epoch=1, lease="L2"))
    assert told(outbox) == [("completed", ["c2"])]
    assert g.state(table).current == (1, 2)


# --- failures, releases, first values -----------------------------------------------------------------------


def test_R5_case_E2_a_failure_is_no_answer_that_stays_for_who_asks_for_a_refresh() -> None:
    """A repairable one is asked for again by the next run as a failed refresh; a terminal one is told, and repeats nothing."""
    table = g.receipts()
    table.given(*CLAIMED, g.failed(1))
    outbox = asked(table, "c2")
    assert (told(outbox), g.needs(outbox)) == ([("failed", ["c2"])], [])
    outbox = asked(table, "c2~1", FAILED)
    assert told(outbox) == []
    assert [need.n for need in g.needs(outbox)] == [2]
    outbox = table.given(g.claim(2, "L2", epoch=1, op=2), g.value(2, epoch=1, lease="L2"))
    assert told(outbox) == [("completed", ["c2~1"])]


def test_R6_what_proves_that_no_call_was_made_is_claimed_again_without_a_refresh() -> None:
    for end in (AttemptEnded(g.R, 1, 0, "L", Retry(BROKEN, 5)), g.release(1, "L")):
        table = g.receipts()
        outbox = table.given(*CLAIMED, end)
        assert told(outbox) == []
        (need,) = g.needs(outbox)
        assert (need.n, need.epoch) == (2, 0)
        assert g.state(table).refreshes == []


def test_R7_what_is_given_back_is_queued_again_and_nobody_is_told_a_failure() -> None:
    table = g.receipts()
    table.given(*CLAIMED)
    asked(table, "follower")
    outbox = table.given(g.release(1, "L"))
    assert told(outbox) == []
    assert [need.n for need in g.needs(outbox)] == [2]
    outbox = table.given(g.claim(2, "L2", op=2), g.value(2, lease="L2"))
    assert sorted(call for _, calls in told(outbox) for call in calls) == ["c1", "follower"]


def test_R7_a_claim_that_won_and_is_wanted_by_nobody_is_given_back() -> None:
    table = g.receipts()
    table.given(g.request(), g.withdrawn())
    outbox = table.given(g.claim(1, "L"))
    assert outbox.events[("receipt-claims", 0)] == [LeaseReleased("L", g.claim(1, "L").members)]


def test_R9_a_second_completion_of_an_attempt_changes_nothing_for_anybody() -> None:
    table = g.receipts()
    table.given(*CLAIMED, g.value(1, '"first"'))
    before = g.state(table)
    outbox = table.given(g.value(1, '"second"'))
    after = g.state(table)
    assert (after.current, after.attempts) == (before.current, before.attempts)
    assert told(outbox) == []
    (answer,) = [event for event in asked(table, "c2").events[("tool-results", 0)] if isinstance(event, CallsAnswered)]
    assert answer.output == b'"first"'


@pytest.mark.parametrize("text", ["null", "{}", "[]", '""', "0", "false"])
def test_case_E3_an_empty_answer_is_one_and_is_reused(text: str) -> None:
    table = g.receipts()
    table.given(*CLAIMED, g.value(1, text))
    outbox = asked(table, "c2")
    assert g.needs(outbox) == []
    assert told(outbox) == [("no_result" if text == "null" else "completed", ["c2"])]


def test_case_F1_followers_of_a_lost_owner_are_all_answered_by_the_next_call() -> None:
    table = g.receipts()
    table.given(g.request("c1", run="one"), g.claim(1, "gone"))
    asked(table, "c2")
    outbox = table.given(g.expiry(1, "gone"))
    assert [need.n for need in g.needs(outbox)] == [2]
    outbox = table.given(g.claim(2, "L2"), g.value(2, lease="L2"))
    assert sorted(call for _, calls in told(outbox) for call in calls) == ["c1", "c2"]
    assert not g.state(table).open
