"""A tool that kept first values (Y2) is leased from now on: its shared receipts hold values that nobody claimed (P2)."""

from __future__ import annotations

import pytest

from schemas.events import AttemptEnded, Event, Mode, Repeat, RetryBudget, ToolRequested, Value
from tests.pure.test_completed_cache import SHARED, calls, record
from tests.support import given as g
from tests.support.budget_lane import LANE, Lane


def leased(run: str, budget: int | None, *, repeat: Repeat = Repeat.NEVER) -> ToolRequested:
    """A full refresh of what was kept."""
    retries = None if budget is None else RetryBudget(budget, budget)
    return ToolRequested(SHARED, f"{run}:c", run, 0, LANE, "p.t", repeat, b"{}", Mode.FULL_REFRESH, f"by {run}", retries=retries)


def ended(n: int, epoch: int) -> AttemptEnded:
    return AttemptEnded(SHARED, n, epoch, f"{SHARED}{n}/1", Value(b'"new"'))


@pytest.mark.parametrize("budget", [None, 0, 3])
def test_Y2_P2_a_refresh_of_a_kept_value_is_one_call_that_needs_no_retry_budget(budget: int | None) -> None:
    """The refresh claimed attempt 1, under which the value stood that nobody had claimed: that brought no call, counted as a try,
    and made the next attempt a repeat. Where the budget was spent nobody paid for that, and nothing could be given up: claimed and
    released for ever.
    """
    lane = Lane()
    calls(lane.table, "a")
    lane.turn(leased("two", budget))
    lane.called(SHARED)
    assert lane.granted == {(SHARED, 2): False}
    assert (lane.released, record(lane.table).attempts[1].lease) == ([], None)
    lane.turn(ended(2, 1))
    assert lane.told[-1] == ("two:c", "completed")
    assert record(lane.table).open is False
    assert (lane.retries("two").made, lane.retries("two").held) == (0, 0)


def test_Y2_P2_a_value_that_is_kept_while_a_claim_is_under_way_does_not_take_its_number() -> None:
    """A late request of the old policy settles between the refresh's claim and its fold: the claim would win a value, no call."""
    lane = Lane()
    calls(lane.table, "a")
    lane.turn(leased("two", 0))
    claim = lane.claim(SHARED)
    assert claim.members[0].n == 2
    calls(lane.table, "b", Mode.FULL_REFRESH, of="three")
    assert record(lane.table).current == (2, 3)
    # That value is of a later refresh than the first, so it is told; the next one wants a value of its own, and pays for no repeat.
    lane.turn(leased("four", 0))
    lane.turn(claim)
    lane.turn(*lane.released)
    assert lane.needs[SHARED].n == 4
    lane.called(SHARED)
    assert list(lane.granted.values()) == [False]
    ((_, n),) = lane.granted
    lane.turn(ended(n, record(lane.table).attempts[n].epoch))
    assert lane.told[-1] == ("four:c", "completed")


def test_T8_an_ambiguous_end_that_is_read_before_its_claim_is_not_passed_over() -> None:
    """Only values are: behind an open end a new number would be a new key, while the call under the old one may be billed."""
    table = g.receipts()
    events: list[Event] = [g.request(), g.claim(1, "L1"), g.ambiguous(1), g.ambiguous(2)]
    assert [need.n for need in g.needs(table.given(*events))] == [2]
