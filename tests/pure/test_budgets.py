"""Retry budgets: who pays for a repeat, what is never overspent, and how a receipt ends that nobody pays for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import RecoveryEnded, RunRequested
from schemas.events import (
    Ambiguous,
    Answer,
    AttemptEnded,
    AttemptUnknown,
    BatchClaimed,
    CallsAnswered,
    CallWithdrawn,
    ClaimedMember,
    Event,
    Failed,
    Fault,
    JobStarted,
    LeaseExpired,
    LeaseReleased,
    Mode,
    Outcome,
    ReceiptResolved,
    Repeat,
    RetriesCounted,
    Retry,
    RetryBudget,
    ToolRequested,
    Value,
)
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import RECEIPT, RETRIES, UNKNOWN, Flag, Receipt, RunRetries, record_key
from streams.engine import budgets, protocol
from streams.engine.compile import compile_play
from streams.engine.effects import ClaimFolded, Queued
from streams.engine.port import Outbox
from streams.engine.protocol import Need
from streams.engine.runs import RunsEngine
from streams.errors import InputError, UsageError
from streams.submission import Submission
from streams.table import WorkingSet
from streams.userfiles import load_play
from tests.support import given as g
from tests.support.memory import Table

LANE = "org/p"
BUSY = Fault("http_429", "asked too often", True)
OUTCOMES: dict[str, Outcome] = {
    "value": Value(b"1"),
    "retry": Retry(BUSY, 0),
    "ambiguous": Ambiguous(g.FAULT),
    "failed": Failed(g.FAULT),
}


class Lane:
    """One lane's owner, its dispatcher played by the test: what is needed is claimed, granted and ended."""

    def __init__(self) -> None:
        self.table = g.receipts()
        self.needs: dict[str, Need] = {}
        self.leases: dict[tuple[str, int], str] = {}
        #: Granted attempts, and whether each was a repeat of a call when it was granted.
        self.granted: dict[tuple[str, int], bool] = {}
        self.answers: list[CallsAnswered] = []
        self.doubts: list[AttemptUnknown] = []
        self.reports: list[RetriesCounted] = []
        self.released: list[LeaseReleased] = []

    def turn(self, *events: Event) -> Outbox:
        outbox = self.table.turn(events)
        for effect in outbox.effects:
            if isinstance(effect, Queued):
                self.needs[effect.receipt] = effect.need
            elif isinstance(effect, ClaimFolded):
                for receipt in effect.granted:
                    n = next(n for (name, n), lease in self.leases.items() if (name, lease) == (receipt, effect.lease))
                    self.granted.setdefault((receipt, n), self._repeats(receipt, n))
        for (topic, _), sent in outbox.events.items():
            for event in sent:
                match event:
                    case CallsAnswered():
                        self.answers.append(event)
                    case AttemptUnknown():
                        self.doubts.append(event)
                    case RetriesCounted():
                        assert topic == "row-progress"
                        self.reports.append(event)
                    case LeaseReleased():
                        self.released.append(event)
        return outbox

    def _repeats(self, receipt: str, n: int) -> bool:
        attempts = self.receipt(receipt).attempts
        mine = attempts[n]
        return mine.job is None and any(
            m < n and other.epoch == mine.epoch and other.lease is not None and not other.released for m, other in attempts.items()
        )

    def asked(self, *names: str, budget: int | None = None, run: str = "run", repeat: Repeat = Repeat.NEVER, **terms: Any) -> None:
        retries = None if budget is None else RetryBudget(budget, budget)
        self.turn(
            *(ToolRequested(name, f"{run}:{name}", run, 0, LANE, "p.t", repeat, b"{}", retries=retries, **terms) for name in names)
        )

    def claim(self, name: str, *, need: Need | None = None, generation: int = 1, job: str | None = None) -> BatchClaimed:
        need = need or self.needs[name]
        lease = f"{name}{need.n}/{generation}"
        self.leases.setdefault((name, need.n), lease)
        return BatchClaimed(LANE, "p.t", "", lease, generation, (ClaimedMember(name, need.n, need.epoch, need.op),), (), job)

    def called(self, *names: str, job: str | None = None) -> None:
        """What is needed is claimed, and granted."""
        self.turn(*(self.claim(name, job=job) for name in names))

    def ended(self, outcome: str, *names: str) -> Outbox:
        """The calls under way end."""
        ends = []
        for name in names:
            n = protocol.standing(self.receipt(name)).n
            epoch = self.receipt(name).attempts[n].epoch
            ends.append(AttemptEnded(name, n, epoch, self.leases[name, n], OUTCOMES[outcome]))
        return self.turn(*ends)

    def receipt(self, name: str) -> Receipt:
        return WorkingSet(self.table.reader).get(record_key(RECEIPT, name), Receipt) or Receipt()

    def retries(self, run: str = "run") -> RunRetries:
        return WorkingSet(self.table.reader).get(record_key(RETRIES, run, LANE), RunRetries) or RunRetries()

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(call, event.answer.value) for event in self.answers for call, _ in event.calls]


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


# --- laws ---------------------------------------------------------------------------------------------------

NAMES = ("a", "b")
RUNS = ("one", "two")
steps = st.one_of(
    st.tuples(
        st.just("ask"),
        st.sampled_from(NAMES),
        st.sampled_from(RUNS),
        st.integers(0, 1),
        st.sampled_from((*[Mode.NORMAL] * 3, *Mode)),
    ),
    st.tuples(st.just("withdraw"), st.sampled_from(NAMES), st.sampled_from(RUNS), st.integers(0, 1)),
    *[st.tuples(st.just("claim"), st.sampled_from(NAMES), st.sampled_from((1, 1, 1, 0)))] * 3,
    *[st.tuples(st.just("end"), st.sampled_from(NAMES), st.sampled_from(("retry", "retry", *OUTCOMES)))] * 3,
    st.tuples(st.sampled_from(("release", "expire", "unpaid")), st.sampled_from(NAMES)),
    st.tuples(st.just("answers"), st.sampled_from(NAMES)),
    st.tuples(st.just("again"), st.integers(0, 60)),
    st.tuples(st.just("owner")),
)
scripts = st.lists(st.tuples(steps, st.booleans()), max_size=60)


class Story:
    """Plays a script: events as a dispatcher, callers and people would send them, late, twice, and cut into turns anyhow."""

    def __init__(self, shares: dict[str, int | None], repeat: Repeat) -> None:
        self.lane = Lane()
        self.shares, self.repeat = shares, repeat
        self.sent: list[Event] = []
        self.waiting: list[Event] = []
        self.turns: list[list[Event]] = []

    def play(self, script: Sequence[tuple[Any, bool]]) -> None:
        for step, folded in script:
            self.waiting += self._events(*step)
            if folded:
                self._fold()
        self._fold()

    def _fold(self) -> None:
        turn, self.waiting = self.waiting, []
        turn += self.lane.released
        self.lane.released = []
        self.sent += turn
        self.turns.append(turn)
        self.lane.turn(*turn)
        self.check()

    def _events(self, kind: str, *terms: Any) -> list[Event]:
        lane = self.lane
        if kind == "again":
            return self.sent[terms[0] : terms[0] + 3]
        if kind == "owner":
            return [RecoveryEnded()]
        name = terms[0]
        n = protocol.standing(lane.receipt(name)).n
        lease = lane.leases.get((name, n), "?")
        attempt = lane.receipt(name).attempts.get(n)
        epoch = attempt.epoch if attempt is not None else 0
        members = (ClaimedMember(name, n, epoch, 1),)
        match kind:
            case "ask":
                _, run, number, mode = terms
                share = self.shares[run]
                budget = None if share is None else RetryBudget(share, share)
                refresh = None if mode is Mode.NORMAL else run
                call = f"{run}:{name}{number}{mode}"
                return [
                    ToolRequested(name, call, run, 0, LANE, "p.t", self.repeat, b"{}", mode, refresh, retries=budget),
                ]
            case "withdraw":
                _, run, number = terms
                return [CallWithdrawn(name, f"{run}:{name}{number}{Mode.NORMAL}")]
            case "claim":
                return [lane.claim(name, generation=terms[1])] if name in lane.needs else []
            case "end" if attempt is not None:
                return [AttemptEnded(name, n, epoch, lease, OUTCOMES[terms[1]])]
            case "answers" if lane.granted:
                return [AttemptEnded(name, max(1, n - 1), epoch, "late", OUTCOMES["value"])]
            case "release" if attempt is not None and attempt.out is None:
                return [LeaseReleased(lease, members)]
            case "expire":
                return [LeaseExpired(lease, members)]
            case "unpaid":
                return [ReceiptResolved(name, n, epoch, None, "ann")]
        return []

    def check(self) -> None:
        lane = self.lane
        for run, share in self.shares.items():
            spent = lane.retries(run)
            assert min(spent.made, spent.held) >= 0
            assert share is None or spent.made + spent.held <= share
            counts = [report.retries for report in lane.reports if report.run == run]
            assert counts == sorted(set(counts))
            assert spent.made == (counts[-1] if counts else 0)
        made = [(name, n) for (name, n), repeats in lane.granted.items() if repeats and not lane.receipt(name).attempts[n].released]
        known = [share for share in self.shares.values() if share is not None]
        if len(known) == len(self.shares):
            assert len(made) <= sum(known)
        for name in NAMES:
            self._check_receipt(name)

    def _check_receipt(self, name: str) -> None:
        receipt = self.lane.receipt(name)
        stands = protocol.standing(receipt)
        need = protocol.need(receipt, receipt.waiters.values(), stands)
        assert receipt.open is (need is not None or stands.live)
        if need is not None and need.tries:
            # Whoever waits for a repeat has it paid for, and is not left without an answer.
            assert receipt.retry is not None
            assert (receipt.retry.n, receipt.retry.epoch) == (need.n, need.epoch)
        if not receipt.open:
            assert receipt.retry is None
        for waiter in receipt.waiters.values():
            what, n = protocol.told(receipt, waiter, stands)
            if what is protocol.Told.FAILED and receipt.attempts[n].given_up is not None and waiter.flag is Flag.FAILED:
                assert receipt.attempts[n].out is not None
                assert not any(
                    protocol.verdict(attempt, receipt.repeat) is protocol.Verdict.UNKNOWN
                    for attempt in receipt.attempts.values()
                    if attempt.epoch >= waiter.value_epoch and attempt.lease is not None
                )


budgets_of_runs = st.fixed_dictionaries({run: st.one_of(st.none(), st.integers(0, 2)) for run in RUNS})


@given(budgets_of_runs, st.sampled_from(list(Repeat)), scripts)
@settings(max_examples=400)
def test_P2_G3_no_order_and_no_copy_of_events_overspends_a_budget_or_leaves_anybody_without_an_end(
    shares: dict[str, int | None], repeat: Repeat, script: list[tuple[Any, bool]]
) -> None:
    story = Story(shares, repeat)
    story.play(script)


@given(budgets_of_runs, st.sampled_from(list(Repeat)), scripts)
@settings(max_examples=100)
def test_P2_N6_a_replay_of_the_turns_counts_the_same_also_where_each_event_comes_twice(
    shares: dict[str, int | None], repeat: Repeat, script: list[tuple[Any, bool]]
) -> None:
    story = Story(shares, repeat)
    story.play(script)
    for copies in (1, 2):
        table = g.receipts()
        for turn in story.turns:
            table.turn([event for event in turn for _ in range(copies)])
        if copies == 1:
            assert table.reader.data == story.lane.table.reader.data
        for key, value in table.reader.data.items():
            if key.startswith(RETRIES):
                assert msgspec.msgpack.decode(value, type=RunRetries) == story.lane.retries(key[1:].decode().partition("\x00")[0])


# --- around the engine --------------------------------------------------------------------------------------


def providers_of(*names: str) -> Providers:
    one = {"base_url": "https://p.example", "tools": {"t": {"path": "/t"}, "u": {"path": "/u"}}}
    return Providers.model_validate({"providers": dict.fromkeys(names, one)})


def play_of(*tools: str, **terms: Any) -> Play:
    columns = [{"name": f"c{place}", "tool": tool, "input": {"x": "{{ row.x }}"}} for place, tool in enumerate(tools)]
    return Play.model_validate({"name": "leads", "columns": columns} | terms)


def test_G3_a_play_is_bound_with_a_share_for_each_lane_and_stands_for_the_same_rows_whatever_its_budget() -> None:
    tools, providers = ("p.t", "q.t", "p.u", "r.t"), providers_of("p", "q", "r")
    free, faults = compile_play(play_of(*tools), providers, "org")
    bound, more = compile_play(play_of(*tools, retries_max=200), providers, "org")
    assert free is not None
    assert bound is not None
    assert faults + more == []
    assert [column.retries for column in free.columns] == [None] * 4
    shares = [(column.lane, column.retries) for column in bound.columns]
    first, other = RetryBudget(200, 67), RetryBudget(200, 66)
    assert shares == [("org/p", first), ("org/q", first), ("org/p", first), ("org/r", other)]
    assert bound.revision == free.revision


def test_P2_a_request_says_nothing_of_a_budget_that_it_has_not() -> None:
    assert "retries_max" not in play_of("p.t").model_dump()
    assert play_of("p.t", retries_max=0).model_dump()["retries_max"] == 0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("retries_max = -1", "retries_max: Input should be greater than or equal to 0"),
        ('retries_max = "many"', "retries_max: Input should be a valid integer, unable to parse string as an integer"),
        ("retries_max = 9007199254740993", "retries_max: Input should be less than or equal to 9007199254740992"),
    ],
)
def test_P2_M1_a_budget_that_is_none_is_refused_by_file_and_field(tmp_path: Path, line: str, fault: str) -> None:
    file = tmp_path / "play.toml"
    file.write_text(f'name = "leads"\n{line}\n[[columns]]\nname = "c"\ntool = "p.t"\ninput = {{ x = "{{{{ row.x }}}}" }}\n')
    with pytest.raises(InputError) as refused:
        load_play(file)
    assert str(refused.value) == f"{file}: {fault}"


def test_P2_a_run_says_its_own_budget_instead_of_the_plays() -> None:
    with Submission(play_of("p.t", retries_max=5), "run", retries_max=7) as submission:
        submission.add({"x": "1"})
        (request,) = submission.requests()
    assert json.loads(request.value)["play"]["retries_max"] == 7
    with pytest.raises(UsageError, match=r"^run request: retries_max: Input should be greater than or equal to 0, found -1$"):
        Submission(play_of("p.t"), "run", retries_max=-1)


def test_P2_O3_a_run_shows_the_repeats_of_all_lanes_and_never_fewer_than_before() -> None:
    play, _ = compile_play(play_of("p.t"), providers_of("p"), "org")
    runs = Table(RunsEngine())
    runs.given(RunRequested("run", "org", "d", play, rows=(b'{"x":"1"}',), expected=1))
    home = [RetriesCounted("run", "org/p", 4), RetriesCounted("run", "org/q", 2), RetriesCounted("run", "org/p", 3)]
    runs.now_ms += 1_000
    outbox = runs.given(*home, home[0], RetriesCounted("stranger", "org/p", 1))
    (sample,) = [json.loads(event.data or b"") for event in outbox.public if event.topic == "map-progress"]
    assert sample["counts"]["retries"] == 6
