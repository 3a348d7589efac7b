"""Copies of a claim (F2, H6): one may come again at any time, and what was granted under it may be at the provider."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.events import BatchClaimed, ClaimedMember, Event, LeaseReleased, Repeat
from streams.engine import protocol
from streams.engine.effects import ClaimFolded
from streams.engine.port import Outbox
from streams.engine.protocol import Verdict
from tests.support import given as g


def released(outbox: Outbox) -> list[Event]:
    return [event for event in outbox.events.get(("receipt-claims", 0), []) if isinstance(event, LeaseReleased)]


def folded(outbox: Outbox) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(effect.granted, effect.lost) for effect in outbox.effects if isinstance(effect, ClaimFolded)]


@pytest.mark.parametrize("repeat", Repeat)
def test_F2_a_copied_claim_does_not_release_a_call_that_its_last_waiter_has_left(repeat: Repeat) -> None:
    """Granted, and at the provider; the last waiter withdraws; the claim is read again, because its publisher was not sure of it.
    It was judged anew, found that nobody waited, and was released: the next run paid a second time, while the first call was out.
    """
    table = g.receipts()
    table.given(g.request("one:k:c", repeat=repeat, run="one"))
    assert folded(table.given(g.claim(1, "L1"))) == [((g.R,), ())]
    table.given(g.withdrawn("one:k:c"))
    copy = table.given(g.claim(1, "L1"))
    assert (released(copy), folded(copy)) == ([], [])
    outbox = table.given(g.request("two:k:c", repeat=repeat, run="two"))
    assert g.needs(outbox) == []
    assert protocol.standing(g.state(table)).live
    (answer,) = table.given(g.value(1)).events[("tool-results", 0)]
    assert [call for call, _ in answer.calls] == ["two:k:c"]  # type: ignore[attr-defined]


def test_F2_a_copy_in_the_turn_of_the_first_is_judged_once_and_each_of_its_members_has_an_answer() -> None:
    """A batch of which one member lost: its owner hears of both members once, and of no release of the one that won."""
    table = g.receipts()
    members = (ClaimedMember(g.R, 1, 0, 1), ClaimedMember("other", 1, 0, 1))
    ours = BatchClaimed("org/p", "p.t", "", "L1", 1, members)
    table.given(g.request(), g.claim(1, "L0"), g.withdrawn("nobody"))
    outbox = table.given(ours, ours)
    assert folded(outbox) == [((), (g.R, "other"))]
    assert [event.members for event in released(outbox)] == [members[1:]]  # type: ignore[attr-defined]
    again = table.given(ours)
    assert released(again) == []


def test_R1_a_claim_that_lost_all_its_members_is_answered() -> None:
    """It won nothing either, like a copy, yet its owner waits to hear that."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    assert folded(table.given(g.claim(1, "L2"))) == [((), (g.R,))]


STEPS = st.sampled_from(("claim", "copy", "withdraw", "ask", "value", "own release"))


@given(st.lists(STEPS, min_size=4, max_size=12))
@example(["ask", "claim", "withdraw", "copy"])
def test_case_H6_no_order_of_copies_and_withdrawals_releases_what_was_granted(script: list[str]) -> None:
    """case_H6, for claims: whatever was granted stays live until it ends or its own dispatcher gives it back."""
    table = g.receipts()
    sent: list[BatchClaimed] = []
    asked: list[str] = []
    out: set[str] = set()
    for number, step in enumerate(script):
        stands = protocol.standing(g.state(table)) if sent else protocol.Standing(0, None)
        events: list[Event] = []
        match step:
            case "claim":
                events = [g.claim(stands.n + (not stands.live), f"L{number}", op=1)]
                sent += [event for event in events if isinstance(event, BatchClaimed)]
            case "copy":
                events = list(sent)
            case "withdraw":
                events = [g.withdrawn(call) for call in asked]
                asked = []
            case "ask":
                asked.append(f"c{number}")
                events = [g.request(asked[-1], repeat=Repeat.NEVER)]
            case "value" if stands.live:
                events = [g.value(stands.n)]
                out.clear()
            case "own release" if out:
                events = [g.release(stands.n, lease) for lease in out]
                out.clear()
        while events:
            outbox = table.given(*events)
            for effect in outbox.effects:
                if isinstance(effect, ClaimFolded) and effect.granted:
                    out.add(effect.lease)
            events = released(outbox)
            assert not [event for event in events if event.lease in out]  # type: ignore[attr-defined]
        if out:
            assert protocol.standing(g.state(table)).verdict is Verdict.LIVE
