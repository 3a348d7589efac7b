"""Retry budgets: who pays for a repeat, what is never overspent, and how a receipt ends that nobody pays for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import RecoveryEnded
from schemas.events import (
    Answer,
    AttemptEnded,
    CallWithdrawn,
    ClaimedMember,
    Fault,
    JobStarted,
    LeaseExpired,
    LeaseReleased,
    Mode,
    ReceiptResolved,
    Repeat,
    RetriesCounted,
    RetryBudget,
    ToolRequested,
)
from schemas.states import RETRIES, UNKNOWN, RunRetries, record_key
from streams.engine import budgets
from streams.engine.protocol import Need
from tests.support import given as g
from tests.support.budget_lane import LANE, OUTCOMES, Lane

# --- counting -----------------------------------------------------------------------------------------------


def test_P2_a_call_that_succeeds_at_once_leaves_no_record_and_says_nothing_of_retries() -> None:
    lane = Lane()
    lane.asked("a", budget=3)
    lane.called("a")
    lane.ended("value", "a")
    assert lane.told == [("run:a", "completed")]
    assert not [key for key in lane.table.reader.data if key.startswith(RETRIES)]
    assert lane.reports == []


def test_P2_each_repeat_is_counted_once_it_has_ended_for_the_run_that_asked_first() -> None:
    lane = Lane()
    lane.asked("a", run="one")
    lane.asked("a", run="two")
    lane.called("a")
    lane.ended("retry", "a")
    assert lane.retries("one") == RunRetries(made=0, held=1)
    lane.called("a")
    lane.ended("retry", "a")
    assert lane.reports == [RetriesCounted("one", LANE, 1)]
    lane.called("a")
    outbox = lane.ended("value", "a")
    assert lane.retries("one") == RunRetries(made=2, held=0)
    assert lane.retries("two") == RunRetries()
    # In one transaction with the answer, so that the run's end knows it.
    assert {topic for topic, _ in outbox.events} == {"row-progress", "tool-results"}


def test_P2_an_attempt_that_was_given_back_is_no_repeat_and_stays_paid_for() -> None:
    lane = Lane()
    lane.asked("a", budget=1)
    lane.called("a")
    lane.ended("retry", "a")
    for _ in range(3):
        lane.called("a")
        n = lane.needs["a"].n
        lane.turn(LeaseReleased(lane.leases["a", n], (ClaimedMember("a", n, 0, n),)))
    assert lane.retries() == RunRetries(made=0, held=1)
    lane.called("a")
    lane.ended("value", "a")
    assert lane.retries() == RunRetries(made=1, held=0)
    assert lane.told == [("run:a", "completed")]


def test_P2_the_first_attempt_of_a_refresh_is_no_repeat() -> None:
    lane = Lane()
    lane.asked("a", budget=0)
    lane.called("a")
    lane.ended("retry", "a")
    assert lane.told == [("run:a", "failed")]
    lane.asked("a", budget=0, run="next", mode=Mode.FAILED_REFRESH, refresh="next")
    lane.called("a")
    lane.ended("value", "a")
    assert lane.told[1:] == [("next:a", "completed")]
    assert lane.retries("next") == RunRetries()


def test_P2_P10_to_ask_for_a_job_that_is_known_is_no_repeat() -> None:
    lane = Lane()
    lane.asked("a", budget=0)
    lane.called("a")
    lane.turn(JobStarted("a", 1, lane.leases["a", 1], "J"))
    lane.ended("ambiguous", "a")
    lane.called("a", job="J")
    assert ("a", 2) in lane.granted
    lane.ended("value", "a")
    assert lane.told == [("run:a", "completed")]
    assert lane.retries() == RunRetries()


def test_P2_a_repeat_that_a_job_tool_submits_again_is_one() -> None:
    lane = Lane()
    lane.asked("a")
    lane.called("a")
    lane.ended("retry", "a")
    lane.called("a")
    lane.turn(JobStarted("a", 2, lane.leases["a", 2], "J"))
    lane.ended("value", "a")
    assert lane.retries() == RunRetries(made=1, held=0)


def test_P2_what_was_held_is_free_again_when_nobody_waits() -> None:
    lane = Lane()
    lane.asked("a", "b", budget=1)
    lane.called("a", "b")
    lane.ended("retry", "a")
    assert lane.retries() == RunRetries(made=0, held=1)
    lane.turn(CallWithdrawn("a", "run:a"))
    assert lane.retries() == RunRetries(made=0, held=0)
    lane.ended("retry", "b")
    lane.called("b")
    lane.ended("value", "b")
    assert lane.told == [("run:b", "completed")]


def test_P2_a_lost_lease_counts_as_a_repeat_that_was_made() -> None:
    lane = Lane()
    lane.asked("a", repeat=Repeat.WITH_KEY)
    lane.called("a")
    lane.ended("ambiguous", "a")
    lane.called("a")
    lane.turn(LeaseExpired(lane.leases["a", 2], (ClaimedMember("a", 2, 0, 1),)))
    assert lane.retries() == RunRetries(made=1, held=1)


# --- the budget ---------------------------------------------------------------------------------------------


def test_P2_G3_what_a_spent_budget_does_not_pay_for_ends_repairable_and_names_it() -> None:
    lane = Lane()
    lane.asked("a", "b", "c", budget=2)
    lane.called("a", "b", "c")
    lane.ended("retry", "a", "b", "c")
    (answer,) = lane.answers
    assert (lane.told, answer.answer) == ([("run:c", "failed")], Answer.FAILED)
    assert answer.fault == Fault("retry_budget_spent", "retry budget of 2 spent; before it: asked too often", True)
    assert set(lane.needs) == {"a", "b", "c"}
    assert lane.needs["c"].n == 1  # no further attempt was asked for
    lane.called("a", "b")
    lane.ended("value", "a", "b")
    assert lane.told[1:] == [("run:a", "completed"), ("run:b", "completed")]
    assert lane.retries() == RunRetries(made=2, held=0)


def test_P2_a_share_is_named_beside_the_budget() -> None:
    lane = Lane()
    lane.turn(ToolRequested("a", "run:a", "run", 0, LANE, "p.t", Repeat.NEVER, b"{}", retries=RetryBudget(1200, 0)))
    lane.called("a")
    lane.ended("retry", "a")
    (answer,) = lane.answers
    assert answer.fault is not None
    assert answer.fault.message == "retry budget of 1,200 spent (this lane's share: 0); before it: asked too often"


def test_P2_U2_an_attempt_in_doubt_becomes_unknown_and_never_failed() -> None:
    for repeat, end in ((Repeat.WITH_KEY, "ambiguous"), (Repeat.FREELY, "ambiguous"), (Repeat.WITH_KEY, "expired")):
        lane = Lane()
        lane.asked("a", budget=0, repeat=repeat)
        lane.called("a")
        if end == "expired":
            lane.turn(LeaseExpired(lane.leases["a", 1], (ClaimedMember("a", 1, 0, 1),)))
        else:
            lane.ended(end, "a")
        (answer,) = lane.answers
        assert (answer.answer, [event.n for event in lane.doubts]) == (Answer.UNKNOWN, [1])
        assert answer.fault is not None
        assert answer.fault.code == ("lease_expired" if end == "expired" else g.FAULT.code)
        assert answer.fault.message.endswith("; not asked again: retry budget of 0 spent")
        assert record_key(UNKNOWN, "a") in lane.table.reader.data
        # A late value still settles it.
        lane.turn(AttemptEnded("a", 1, 0, lane.leases["a", 1], OUTCOMES["value"]))
        assert lane.told[1:] == [("run:a", "completed")]
        assert record_key(UNKNOWN, "a") not in lane.table.reader.data


@pytest.mark.parametrize("repeat", [Repeat.WITH_KEY, Repeat.FREELY])
def test_P2_U2_T8_a_refusal_for_now_behind_a_doubt_stays_in_doubt(repeat: Repeat) -> None:
    """The first attempt may have been billed; that the second was turned away says nothing of it."""
    lane = Lane()
    lane.asked("a", budget=1, repeat=repeat)
    lane.called("a")
    lane.ended("ambiguous", "a")
    lane.called("a")
    lane.ended("retry", "a")
    assert lane.told == [("run:a", "unknown")]
    assert [event.n for event in lane.doubts] == [1]
    assert record_key(UNKNOWN, "a") in lane.table.reader.data


def test_P2_U3_what_a_person_calls_unpaid_is_not_called_again_on_a_spent_budget() -> None:
    lane = Lane()
    lane.asked("a", budget=0, repeat=Repeat.WITH_KEY)
    lane.called("a")
    lane.ended("ambiguous", "a")
    lane.turn(ReceiptResolved("a", 1, 0, None, "ann"))
    assert lane.told == [("run:a", "unknown"), ("run:a", "failed")]
    fault = lane.answers[-1].fault
    assert fault is not None
    assert (fault.code, fault.repairable) == ("retry_budget_spent", True)


def test_P2_a_definite_refusal_keeps_its_own_words_whatever_the_budget() -> None:
    lane = Lane()
    lane.asked("a", budget=0, repeat=Repeat.WITH_KEY)
    lane.called("a")
    lane.ended("ambiguous", "a")
    lane.turn(AttemptEnded("a", 1, 0, lane.leases["a", 1], OUTCOMES["failed"]))
    assert lane.answers[-1].fault == g.FAULT


def test_P2_the_next_run_that_waits_pays_where_the_first_has_spent_all() -> None:
    """Nobody's row fails for want of another run's budget."""
    lane = Lane()
    lane.asked("a", budget=0, run="poor")
    lane.turn(ToolRequested("a", "poor:b", "poor", 0, LANE, "p.t", Repeat.NEVER, b"{}", retries=RetryBudget(0, 0)))
    lane.asked("a", run="rich")
    lane.called("a")
    lane.ended("retry", "a")
    assert (lane.retries("poor"), lane.retries("rich")) == (RunRetries(), RunRetries(held=1))
    lane.called("a")
    lane.ended("value", "a")
    assert lane.told == [("poor:a", "completed"), ("poor:b", "completed"), ("rich:a", "completed")]


def test_P2_a_run_that_withdrew_pays_no_longer() -> None:
    lane = Lane()
    lane.asked("a", run="one")
    lane.asked("a", run="two")
    lane.called("a")
    lane.turn(CallWithdrawn("a", "one:a"))
    lane.ended("retry", "a")
    assert (lane.retries("one"), lane.retries("two")) == (RunRetries(), RunRetries(held=1))


def test_P2_a_claim_that_was_on_its_way_is_not_granted_without_budget() -> None:
    """What was held for it went to another receipt when its caller withdrew; then somebody asks again before the claim is read."""
    lane = Lane()
    lane.asked("a", "b", budget=1)
    lane.called("a", "b")
    lane.ended("retry", "a")
    claim = lane.claim("a")
    lane.turn(CallWithdrawn("a", "run:a"))
    lane.ended("retry", "b")
    lane.turn(ToolRequested("a", "run:again", "run", 0, LANE, "p.t", Repeat.NEVER, b"{}", retries=RetryBudget(1, 1)), claim)
    assert ("a", 2) not in lane.granted
    (released,) = lane.released
    lane.turn(released)
    assert lane.told == [("run:again", "failed")]
    assert lane.retries() == RunRetries(made=0, held=1)


def test_P2_U2_a_claim_that_is_not_granted_leaves_what_is_in_doubt_unknown_and_listed() -> None:
    lane = Lane()
    lane.asked("a", "b", budget=1, repeat=Repeat.WITH_KEY)
    lane.called("a", "b")
    lane.ended("ambiguous", "a")
    claim = lane.claim("a")
    lane.turn(CallWithdrawn("a", "run:a"))
    lane.ended("ambiguous", "b")
    lane.turn(ToolRequested("a", "run:again", "run", 0, LANE, "p.t", Repeat.WITH_KEY, b"{}", retries=RetryBudget(1, 1)), claim)
    assert ("a", 2) not in lane.granted
    lane.turn(*lane.released)
    assert lane.told == [("run:again", "unknown")]
    assert record_key(UNKNOWN, "a") in lane.table.reader.data


def test_P2_what_was_held_for_a_repeat_is_free_when_a_refresh_takes_its_attempt() -> None:
    lane = Lane()
    lane.asked("a", budget=1)
    lane.called("a")
    lane.ended("retry", "a")
    refreshed = ToolRequested("a", "run:new", "run", 0, LANE, "p.t", Repeat.NEVER, b"{}", Mode.FULL_REFRESH, "new")
    lane.turn(refreshed, lane.claim("a", need=Need(2, 1, 2, 0, "")))
    assert lane.granted == {("a", 1): False, ("a", 2): False}
    lane.ended("value", "a")
    assert lane.retries() == RunRetries(made=0, held=0)
    assert lane.told == [("run:a", "completed"), ("run:new", "completed")]


def test_P2_a_repeat_that_ended_in_the_turn_that_folds_the_next_claim_was_made() -> None:
    lane = Lane()
    lane.asked("a", budget=2)
    lane.called("a")
    lane.ended("retry", "a")
    lane.called("a")
    end = AttemptEnded("a", 2, 0, lane.leases["a", 2], OUTCOMES["retry"])
    lane.turn(end, lane.claim("a", need=Need(3, 0, 3, 0, "")))
    assert lane.granted["a", 3]
    assert lane.retries() == RunRetries(made=1, held=1)
    assert [report.retries for report in lane.reports] == [1]


def test_P2_a_claim_that_was_on_its_way_is_paid_for_where_there_is_budget() -> None:
    lane = Lane()
    lane.asked("a", budget=1)
    lane.called("a")
    lane.ended("retry", "a")
    claim = lane.claim("a")
    lane.turn(CallWithdrawn("a", "run:a"))
    lane.turn(ToolRequested("a", "run:again", "run", 0, LANE, "p.t", Repeat.NEVER, b"{}", retries=RetryBudget(1, 1)), claim)
    assert lane.granted["a", 2]
    assert lane.retries() == RunRetries(made=0, held=1)


def test_P2_a_new_owner_knows_what_is_held_and_gives_up_nothing_twice() -> None:
    lane = Lane()
    lane.asked("a", "b", budget=1)
    lane.called("a", "b")
    lane.ended("retry", "a")
    claim = lane.claim("a")
    before = dict(lane.table.reader.data)
    lane.table.generation = 2
    lane.turn(RecoveryEnded())
    assert {key: value for key, value in lane.table.reader.data.items() if key in before} == before
    # The old owner's claim was never granted: it is given back, and the repeat stays paid for.
    lane.turn(claim)
    lane.turn(*lane.released)
    assert lane.retries() == RunRetries(made=0, held=1)
    need = lane.needs["a"]
    assert need.n == 3
    lane.turn(lane.claim("a", generation=2))
    lane.ended("value", "a")
    assert lane.retries() == RunRetries(made=1, held=0)


# --- shares -------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**53), st.lists(st.sampled_from("abcdef"), min_size=1))
def test_G3_the_shares_of_all_lanes_are_the_budget(total: int, lanes: list[str]) -> None:
    found = budgets.shares(total, lanes)
    assert set(found) == set(lanes)
    assert sum(budget.share for budget in found.values()) == total
    assert {budget.total for budget in found.values()} == {total}
    assert max(budget.share for budget in found.values()) - min(budget.share for budget in found.values()) <= 1
