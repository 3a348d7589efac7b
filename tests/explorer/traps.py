"""The traps T1-T12 of the protocol: a rule that is switched off, and the bounds within which the search must notice it.

A rule of the engine is broken by another engine or another function in its place; a rule of owner or dispatcher by a word in
``Scenario.off``, which the steps look at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import msgspec

from schemas.events import BatchClaimed, CallWithdrawn, Event, LeaseReleased, ReceiptResolved, Repeat
from schemas.states import Flag, Out, Receipt
from streams.engine import protocol
from streams.engine.port import Context, Outbox, Records
from streams.engine.receipts import ReceiptsEngine
from tests.explorer.model import Budget, R, Scenario, asked
from tests.explorer.search import Found, search
from tests.explorer.turns import RECEIPT_KEY

NEVER, WITH_KEY, FREELY = Repeat.NEVER, Repeat.WITH_KEY, Repeat.FREELY


class Forgetful(ReceiptsEngine):
    """Forgets callers once they were told failed (T5)."""

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Take a turn, then drop waiters that were told failed."""
        super().turn(records, events, outbox, context)
        receipt = records.get(RECEIPT_KEY, Receipt)
        if receipt is not None:
            receipt.waiters = {call: waiter for call, waiter in receipt.waiters.items() if waiter.flag is not Flag.FAILED}
            records.put(RECEIPT_KEY, receipt)


class Traceless(ReceiptsEngine):
    """Keeps no tombstones (T6)."""

    def _fold(self, turn: Any, event: Event) -> None:
        if isinstance(event, CallWithdrawn):
            turn.receipt(event.receipt).waiters.pop(event.call, None)
        else:
            super()._fold(turn, event)


class Generous(ReceiptsEngine):
    """Takes a resolution for the newest attempt, whatever attempt it names (T7)."""

    def _resolve(self, turn: Any, event: ReceiptResolved) -> None:
        n = protocol.standing(turn.receipt(event.receipt)).n
        super()._resolve(turn, msgspec.structs.replace(event, n=n))


class Doubting(ReceiptsEngine):
    """Does not release a claim of a lower generation, which was never granted (T12)."""

    def _claim(self, turn: Any, event: BatchClaimed) -> None:
        super()._claim(turn, event)
        if event.generation < turn.context.generation:
            queue = turn.outbox.events.get(("receipt-claims", 0), [])
            queue[:] = [owed for owed in queue if not (isinstance(owed, LeaseReleased) and owed.lease == event.lease)]


def _granted_if_won(receipt: Receipt, n: int, waiters: object, stands: protocol.Standing) -> bool:
    return receipt.attempts[n].lease is not None


def _newest_value(receipt: Receipt, n: int, epoch: int, value: str) -> bool:
    new = _complete(receipt, n, epoch, value)
    if receipt.current is not None and receipt.current[0] == epoch and n > receipt.current[1]:
        receipt.current = (epoch, n)
    return new


_complete = protocol.complete
_DEFINITE = (Out.FAILED, Out.RETRY, Out.UNPAID, Out.VALUE)


def _operation_by(judge: Callable[[list[Any]], bool]) -> Callable[[Receipt, int, int], int]:
    """The operation rule with another judgement of whether a call under the last operation is in doubt."""

    def operation(receipt: Receipt, epoch: int, n: int) -> int:
        ours = [
            attempt
            for _, attempt in sorted(receipt.attempts.items())
            if attempt.lease is not None and attempt.epoch == epoch and not attempt.released
        ]
        if not ours:
            return n
        op = ours[-1].op
        return op if judge([attempt for attempt in ours if attempt.op == op]) else n

    return operation


@dataclass(frozen=True, slots=True)
class Trap:
    """A rule that is broken on purpose."""

    name: str
    rule: str
    scenario: Scenario
    #: Words for ``Scenario.off``.
    off: frozenset[str] = frozenset()
    engine: type[ReceiptsEngine] = ReceiptsEngine
    #: Functions of ``protocol`` with others in their place.
    patches: dict[str, Callable[..., Any]] = field(default_factory=dict)
    #: Without the rule the bill alone shows it, within these bounds.
    costs: bool = False

    def springs(self, states_max: int, seconds_max: float = float("inf"), *, bill_only: bool = False) -> Found:
        """Search without the rule."""
        with contextlib.ExitStack() as stack:
            for name, other in self.patches.items():
                stack.enter_context(mock.patch.object(protocol, name, other))
            scenario = self.scenario._replace(name=f"{self.name} without: {self.rule}", off=self.off, bill_only=bill_only)
            return search(scenario, states_max=states_max, seconds_max=seconds_max, engine=self.engine())

    def holds(self, states_max: int, seconds_max: float = float("inf")) -> Found:
        """Search the same bounds with the rule."""
        return search(self.scenario, states_max=states_max, seconds_max=seconds_max)


def _scenario(name: str, repeat: Repeat, budget: Budget, *more: tuple[Event, str], ttl: int = 1) -> Scenario:
    return Scenario(name, repeat, budget, ((asked("c1", repeat), ""), *more), ttl=ttl)


def _traps() -> Iterator[Trap]:
    late = _scenario("a late answer", FREELY, Budget(2, takeovers=1, pauses=1))
    yield Trap("T1a", "grant only what is grantable", late, patches={"grantable": _granted_if_won})
    yield Trap("T1b", "judge expiry only with topics read to their ends", late, frozenset({"ends"}), costs=True)
    yield Trap("T1c", "the first value in the topic settles", late, patches={"complete": _newest_value})
    twice = _scenario("two takeovers", NEVER, Budget(2, takeovers=2))
    yield Trap("T2", "an older generation commits no turn", twice, frozenset({"fencing"}), costs=True)
    yield Trap("T3", "a store is never ahead of what its owner has folded", twice, frozenset({"stores"}), costs=True)
    once = _scenario("one takeover", NEVER, Budget(1, takeovers=1))
    yield Trap("T4", "grants are effects of a committed turn", once, frozenset({"effects"}), costs=True)
    failed = _scenario("a refusal", NEVER, Budget(2, failures=1, duplicates=1))
    yield Trap("T5", "callers told failed are kept", failed, engine=Forgetful)
    withdrawn = _scenario("a withdrawal", NEVER, Budget(1, duplicates=1), (CallWithdrawn(R, "c1"), ""))
    yield Trap("T6", "withdrawn calls leave a tombstone", withdrawn, engine=Traceless)
    resolved = _scenario("a resolution", NEVER, Budget(4, lost=2, resolutions=1, duplicates=1))
    yield Trap("T7", "a resolution names its attempt", resolved, engine=Generous, costs=True)
    refused = _scenario("a late refusal", WITH_KEY, Budget(3, takeovers=1, pauses=1, lost=1, retries=1))
    one_definite = _operation_by(lambda ours: all(attempt.out not in _DEFINITE for attempt in ours))
    yield Trap("T8", "one definite answer does not end an operation", refused, patches={"operation": one_definite}, costs=True)
    sleeping = _scenario("a sleeping request", WITH_KEY, Budget(3, takeovers=1, pauses=1, retries=1))
    newest = _operation_by(lambda ours: ours[-1].out not in _DEFINITE)
    yield Trap("T9", "the newest attempt's answer does not end an operation", sleeping, patches={"operation": newest}, costs=True)
    clocks = _scenario("a stall before the grant", WITH_KEY, Budget(3, takeovers=1, pauses=1, stalls=1))
    yield Trap("T10a", "a lease runs from before its claim", clocks, frozenset({"grant clock"}))
    beats = _scenario("renewals", WITH_KEY, Budget(5, takeovers=1, pauses=3, beats=1), ttl=2)
    yield Trap("T10b", "a renewal counts once it is acknowledged", beats, frozenset({"ack"}))
    yield Trap("T10c", "judge expiry only with heartbeats read to their end", beats, frozenset({"beats"}))
    yield Trap("T10d", "a renewal counts only if it is acknowledged before the lease is over", beats, frozenset({"late ack"}))
    returned = _scenario("a claim given back early", WITH_KEY, Budget(2, pauses=1, returns=1))
    yield Trap("T11", "a lease id is never used twice", returned, frozenset({"lease ids"}), costs=True)
    crash = _scenario("a crash before the grant", NEVER, Budget(1, crashes=1))
    yield Trap("T12", "a claim that no owner folded was never granted", crash, engine=Doubting)


TRAPS = tuple(_traps())
