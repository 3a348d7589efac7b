"""The traps T1-T12 of the protocol, each the shortest story that springs it, at the level of the fold and its grants.

T2, T3, T4 and T10 also have tests with real processes, where fencing and clocks are real.
"""

from __future__ import annotations

from schemas.events import LeaseReleased, Mode, Repeat
from schemas.states import Flag
from streams.engine import protocol
from streams.engine.effects import ClaimFolded, Queued
from streams.engine.port import Outbox
from tests.support import given as g


def grants(outbox: Outbox) -> list[ClaimFolded]:
    return [effect for effect in outbox.effects if isinstance(effect, ClaimFolded)]


def granted(outbox: Outbox) -> bool:
    return any(effect.granted for effect in grants(outbox))


def needs(outbox: Outbox) -> list[protocol.Need]:
    return [effect.need for effect in outbox.effects if isinstance(effect, Queued)]


def test_T1_an_answer_that_lay_unread_makes_the_second_claim_ungrantable() -> None:
    """The answer lies in the topic while expiry and a second claim come first; the claim must not be called for."""
    table = g.receipts()
    table.given(g.request())
    assert granted(table.given(g.claim(1, "L1")))
    table.given(g.expiry(1, "L1"))
    outbox = table.given(g.value(1, lease="L1"), g.claim(2, "L2"))
    assert not granted(outbox)
    assert g.state(table).current == (0, 1)
    released = outbox.events[("receipt-claims", 0)]
    assert [event.lease for event in released if isinstance(event, LeaseReleased)] == ["L2"]


def test_T1_the_answer_settles_even_when_it_comes_after_the_second_claim_was_granted() -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    table.given(g.expiry(1, "L1"))
    table.given(g.claim(2, "L2"))
    outbox = table.given(g.value(1, '"first"', lease="L1"))
    assert outbox.events[("tool-results", 0)]
    table.given(g.value(2, '"second"', lease="L2"))
    assert g.state(table).current == (0, 1)


def test_T2_T3_T4_a_claim_of_another_generation_is_never_granted() -> None:
    """A paused owner's claim, folded by the new owner, was never granted: it is released, not called, and not expired."""
    table = g.receipts()
    table.given(g.request())
    table.generation = 2
    outbox = table.given(g.claim(1, "old", generation=1))
    assert not granted(outbox)
    assert outbox.events[("receipt-claims", 0)] == [LeaseReleased("old", g.claim(1, "old").members)]


def test_a_claim_of_a_higher_generation_is_neither_granted_nor_released() -> None:
    """Else a zombie could release the true owner's running claim (owner's rule 3)."""
    table = g.receipts()
    table.given(g.request())
    outbox = table.given(g.claim(1, "newer", generation=2))
    assert grants(outbox) == []
    assert ("receipt-claims", 0) not in outbox.events


def test_T5_one_told_failed_stays_known_so_that_a_later_unknown_finds_it_in_any_order() -> None:
    table = g.receipts()
    table.given(g.request("c1", repeat=Repeat.NEVER), g.claim(1, "L1"), g.failed(1))
    assert g.state(table).waiters["c1"].flag is Flag.FAILED
    table.given(
        g.request("c2", "f1", Mode.FULL_REFRESH, repeat=Repeat.NEVER), g.claim(2, "L2", epoch=1, op=2), g.ambiguous(2, epoch=1)
    )
    receipt = g.state(table)
    assert receipt.waiters["c1"].flag is Flag.UNKNOWN
    assert receipt.waiters["c2"].flag is Flag.UNKNOWN


def test_T6_a_withdrawn_call_does_not_come_back_to_life() -> None:
    for order in ([g.withdrawn(), g.request()], [g.request(), g.withdrawn(), g.request()]):
        table = g.receipts()
        outbox = table.turn(order)
        assert needs(outbox) == []
        assert g.state(table).waiters["c1"].flag is Flag.WITHDRAWN


def test_T7_the_same_resolution_read_again_does_not_queue_again() -> None:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1))
    assert needs(table.given(g.resolved(1)))
    table.given(g.claim(2, "L2", op=2))
    table.given(g.expiry(2, "L2"))
    assert g.state(table).waiters["c1"].flag is Flag.UNKNOWN
    outbox = table.given(g.resolved(1))
    assert needs(outbox) == []


def test_T8_a_late_refusal_of_an_older_attempt_opens_no_new_key_while_the_newer_is_lost() -> None:
    """Attempt 1 refused, its answer late; attempt 2 under the same key billed and lost: the key must stay."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1", op=1))
    (need,) = needs(table.given(g.expiry(1, "L1")))
    assert (need.n, need.op) == (2, 1)
    table.given(g.claim(2, "L2", op=1))
    table.given(g.expiry(2, "L2"))
    (need,) = needs(table.given(g.retry(1)))
    assert (need.n, need.op) == (3, 1)


def test_T9_a_retry_of_the_newer_attempt_opens_no_new_key_while_the_older_may_still_send() -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1", op=1))
    table.given(g.expiry(1, "L1"))
    table.given(g.claim(2, "L2", op=1))
    (need,) = needs(table.given(g.retry(2)))
    assert (need.n, need.op) == (3, 1)


def test_a_definite_refusal_alone_opens_a_new_key() -> None:
    """K5: a provider that remembers keys would else repeat its old refusal."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1", op=1))
    (need,) = needs(table.given(g.retry(1)))
    assert (need.n, need.op) == (2, 2)


def test_T10_an_expiry_counts_only_under_the_attempts_own_lease() -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    table.given(g.expiry(1, "other"))
    assert protocol.standing(g.state(table)).live


def test_T11_a_claim_after_a_release_needs_a_lease_of_its_own() -> None:
    """The release of the first claim must not be taken for one of the second, nor the second be called on the first's."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    (need,) = needs(table.given(g.release(1, "L1")))
    assert need.n == 2
    assert granted(table.given(g.claim(2, "L2"), g.release(1, "L1")))
    again = table.given(g.claim(1, "L1"))
    assert not granted(again)


def test_T12_a_crash_between_claim_and_grant_is_no_unknown() -> None:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER))
    table.generation = 2
    table.given(g.claim(1, "L1", generation=1))
    (need,) = needs(table.given(g.release(1, "L1")))
    assert (need.n, need.batch) == (2, "")
    assert g.state(table).waiters["c1"].flag is Flag.OPEN


def test_released_beats_expired_in_either_order() -> None:
    for order in (("release", "expiry"), ("expiry", "release")):
        table = g.receipts()
        table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"))
        for what in order:
            table.given(getattr(g, what)(1, "L1"))
        (attempt,) = g.state(table).attempts.values()
        assert protocol.verdict(attempt, Repeat.NEVER) is protocol.Verdict.RELEASED


def test_case_C1_no_event_of_a_stale_owner_changes_a_completed_receipt() -> None:
    """case_C1: W1 claims and stalls past its lease; W2 completes with "B"; W1's value is kept aside or with its attempt."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "W1"))
    table.given(g.expiry(1, "W1"))
    table.given(g.claim(2, "W2"))
    table.given(g.value(2, '"B"', lease="W2"))
    for stale in (g.value(1, '"A"', lease="W1"), g.failed(1), g.release(2, "W3"), g.expiry(2, "W1"), g.release(1, "W1")):
        outbox = table.given(stale)
        assert ("tool-results", 0) not in outbox.events
        assert g.state(table).current == (0, 2)


def test_case_F2_a_follower_joins_the_owner_and_a_withdrawal_of_either_leaves_the_other() -> None:
    table = g.receipts()
    table.given(g.request("c1", run="run1"), g.request("c2", run="run2"))
    assert granted(table.given(g.claim(1, "L1")))
    table.given(g.withdrawn("c1"))
    assert needs(table.given(g.request("c3", run="run3"))) == []
    outbox = table.given(g.value(1, lease="L1"))
    (answer,) = outbox.events[("tool-results", 0)]
    assert [call for call, _ in answer.calls] == ["c2", "c3"]  # type: ignore[attr-defined]


def test_a_late_value_replaces_unknown_and_reaches_its_waiter_once() -> None:
    """U3, L6: what was paid for is used."""
    table = g.receipts()
    outbox = table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1))
    assert [event.answer.value for event in outbox.events[("tool-results", 0)]] == ["unknown"]  # type: ignore[attr-defined]
    outbox = table.given(g.value(1, lease="L1"))
    assert [event.answer.value for event in outbox.events[("tool-results", 0)]] == ["completed"]  # type: ignore[attr-defined]
    assert ("tool-results", 0) not in table.given(g.value(1, lease="L1")).events


def test_U2_a_used_up_repeat_ends_unknown_whatever_the_tool_allows() -> None:
    table = g.receipts()
    outbox = table.given(g.request(), g.claim(1, "L1"), g.ambiguous(1, used_up=True))
    assert [event.answer.value for event in outbox.events[("tool-results", 0)]] == ["unknown"]  # type: ignore[attr-defined]


def test_more_waiters_than_fit_inline_are_all_answered_in_pages() -> None:
    """A hot receipt: waiters beyond the inline limit have records of their own and are answered in continuation turns."""
    from streams.engine.port import Wake

    table = g.receipts()
    table.turn([g.request(f"c{index:04}") for index in range(2500)])
    table.given(g.claim(1, "L1"))
    outbox = table.given(g.value(1, lease="L1"))
    told: list[str] = []
    for _ in range(10):
        for event in outbox.events.get(("tool-results", 0), []):
            told += [call for call, _ in event.calls]  # type: ignore[attr-defined]
        wakes = [effect for effect in outbox.effects if isinstance(effect, Wake)]
        if not wakes:
            break
        outbox = table.given(wakes[0].command)
    assert sorted(told) == [f"c{index:04}" for index in range(2500)]
    assert table.given(g.request("c0005"), g.request("c2400")).events == {}
