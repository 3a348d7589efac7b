"""Retry budgets, whatever comes in whatever order: never overspent, and everybody gets an end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import RecoveryEnded
from schemas.events import (
    AttemptEnded,
    CallWithdrawn,
    ClaimedMember,
    Event,
    LeaseExpired,
    LeaseReleased,
    Mode,
    ReceiptResolved,
    Repeat,
    RetryBudget,
    ToolRequested,
)
from schemas.states import RETRIES, Flag, RunRetries
from streams.engine import protocol
from tests.support import given as g
from tests.support.budget_lane import LANE, OUTCOMES, Lane

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
