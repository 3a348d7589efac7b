"""One lane's owner for tests of retry budgets: its dispatcher is played by the test."""

from __future__ import annotations

from typing import Any

from schemas.events import (
    Ambiguous,
    AttemptEnded,
    AttemptUnknown,
    BatchClaimed,
    CallsAnswered,
    ClaimedMember,
    Event,
    Failed,
    Fault,
    LeaseReleased,
    Outcome,
    Repeat,
    RetriesCounted,
    Retry,
    RetryBudget,
    ToolRequested,
    Value,
)
from schemas.states import RECEIPT, RETRIES, Receipt, RunRetries, record_key
from streams.engine import protocol
from streams.engine.effects import ClaimFolded, Queued
from streams.engine.port import Outbox
from streams.engine.protocol import Need
from streams.table import WorkingSet
from tests.support import given as g

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
