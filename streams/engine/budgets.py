"""Retry budgets (P2, G3): who pays for a repeat of a call, how many were made, and what becomes of a receipt nobody pays for.

Pure; beside ``receipts``, and only for receipts that were called before: one that is called once never comes here. A repeat is an
attempt of an epoch in which another one was made before, unless it asks for a job that is known: that is no call. It is *held*,
which uses up budget, before its lane may claim it, and stays so while claims of it are given back; it counts as *made* once it has
ended. A lane's owner is the only one who spends its share, so the shares of all lanes together are never overspent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas import address
from schemas.events import Fault, RetriesCounted, RetryBudget
from schemas.states import RETRIES, Attempt, Flag, Hold, Out, Receipt, RunRetries, Waiter, record_key
from streams.engine import protocol
from streams.engine.protocol import Need, Verdict
from streams.engine.receiptsturn import ReceiptsTurn

#: Code of the failure of a call that is not repeated because of its run's budget.
SPENT = "retry_budget_spent"
_ASKED_FOR_AGAIN = (Verdict.RETRY, Verdict.AGAIN)


def shares(total: int, lanes: Iterable[str]) -> dict[str, RetryBudget]:
    """A run's budget, divided evenly among its lanes; what is left over goes to the first, one each."""
    names = list(dict.fromkeys(lanes))
    each, left = divmod(total, max(1, len(names)))
    return {name: RetryBudget(total, each + (place < left)) for place, name in enumerate(names)}


def fault_of(attempt: Attempt) -> Fault | None:
    """Why an attempt brought nothing, and where it is not repeated for lack of budget, that too: repairable by a next run."""
    fault, budget = attempt.fault, attempt.given_up
    if budget is None or attempt.out is Out.FAILED:
        return fault
    spent = f"retry budget of {budget.total:,} spent"
    if budget.share != budget.total:
        spent += f" (this lane's share: {budget.share:,})"
    if attempt.out is Out.RETRY or attempt.out is Out.UNPAID:
        return Fault(SPENT, spent if fault is None else f"{spent}; before it: {fault.message}", True)
    if fault is None:
        fault = Fault("lease_expired", "the worker that made this call went away before it recorded an answer")
    return Fault(fault.code, f"{fault.message}; not asked again: {spent}", fault.repairable)


def may_need(turn: ReceiptsTurn, key: str, receipt: Receipt, need: Need | None) -> bool:
    """Reserve or free what the next repeat costs; false where no run can pay for it, and the receipt is given up."""
    repeats = need is not None and need.tries > 0 and protocol.job_of(receipt, need.epoch, need.op) is None
    if (hold := receipt.retry) is not None:
        if (attempt := _called(receipt, hold)) is not None:
            if protocol.verdict(attempt, receipt.repeat) is Verdict.LIVE:
                return True
            _end(turn, key, receipt, hold, made=attempt.epoch == hold.epoch)
        elif need is not None and repeats:
            _hold(turn, key, receipt, Hold(hold.run, need.n, need.epoch))
            return True
        else:
            _end(turn, key, receipt, hold, made=False)
    if need is None or not repeats:
        return True
    return _pays(turn, key, receipt, need.n, need.epoch)


def may_call(turn: ReceiptsTurn, key: str, receipt: Receipt, n: int) -> bool:
    """Whether attempt ``n``, which was just claimed, is paid for: where it was needed before, and needs no other epoch, it is."""
    attempt = receipt.attempts[n]
    if attempt.job is not None or not _repeats(receipt, n):
        return True
    if (hold := receipt.retry) is not None:
        if hold.n == n or _called(receipt, hold) is None:
            _hold(turn, key, receipt, Hold(hold.run, n, attempt.epoch))
            return True
        _end(turn, key, receipt, hold, made=True)
    return _pays(turn, key, receipt, n, attempt.epoch)


def report(turn: ReceiptsTurn) -> None:
    """Tell the runs how many repeats were made for them; in the same turn as the answers, so that their ends know it all."""
    for (run, lane), retries in turn.retries.items():
        home = address.partition_of(run, turn.context.partitions)
        turn.outbox.send("row-progress", home, RetriesCounted(run, lane, retries.made))


def _repeats(receipt: Receipt, n: int) -> bool:
    epoch = receipt.attempts[n].epoch
    return any(
        number < n and attempt.epoch == epoch and attempt.lease is not None and not attempt.released
        for number, attempt in receipt.attempts.items()
    )


def _called(receipt: Receipt, hold: Hold) -> Attempt | None:
    """The attempt that a hold is for, once it was claimed and not given back."""
    attempt = receipt.attempts.get(hold.n)
    if attempt is None or attempt.lease is None or protocol.verdict(attempt, receipt.repeat) is Verdict.RELEASED:
        return None
    return attempt


def _pays(turn: ReceiptsTurn, key: str, receipt: Receipt, n: int, epoch: int) -> bool:
    """Let the first run that waits and has budget left pay; else give the receipt up."""
    asked: dict[str, RetryBudget] = {}
    for waiter in _in_turn(turn, key, receipt):
        if waiter.run in asked:
            continue
        name = record_key(RETRIES, waiter.run, receipt.lane)
        spent = turn.records.get(name, RunRetries) or RunRetries()
        budget = waiter.retries
        if budget is None or spent.made + spent.held < budget.share:
            spent.held += 1
            turn.records.put(name, spent)
            _hold(turn, key, receipt, Hold(waiter.run, n, epoch))
            return True
        asked[waiter.run] = budget
    for attempt in receipt.attempts.values():
        if asked and attempt.epoch == epoch and protocol.verdict(attempt, receipt.repeat) in _ASKED_FOR_AGAIN:
            attempt.given_up = next(iter(asked.values()))
    # It may be in doubt although its last attempt is not.
    turn.reindex.add(key)
    turn.changed(key, receipt)
    return False


def _in_turn(turn: ReceiptsTurn, key: str, receipt: Receipt) -> Iterator[Waiter]:
    """Those that may pay, in the order in which they asked; those that were told something come last."""
    yield from (waiter for waiter in turn.waiters(key, receipt) if waiter.flag is Flag.OPEN)
    yield from (waiter for waiter in turn.waiters(key, receipt) if waiter.flag is not Flag.OPEN and protocol.stays(waiter))


def _hold(turn: ReceiptsTurn, key: str, receipt: Receipt, hold: Hold) -> None:
    if receipt.retry != hold:
        receipt.retry = hold
        turn.changed(key, receipt)


def _end(turn: ReceiptsTurn, key: str, receipt: Receipt, hold: Hold, *, made: bool) -> None:
    """What was held is no longer: the repeat was made, or is not needed."""
    name = record_key(RETRIES, hold.run, receipt.lane)
    spent = turn.records.get(name, RunRetries) or RunRetries()
    spent.held -= 1
    if made:
        spent.made += 1
        turn.retries[hold.run, receipt.lane] = spent
    turn.records.put(name, spent)
    receipt.retry = None
    turn.changed(key, receipt)
