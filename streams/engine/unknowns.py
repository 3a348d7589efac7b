"""Receipts whose outcome is unknown (U2, U3, U5): the index of them, and what a person's word or a run's end changes around them.

Pure. Beside ``receipts``; the fold itself is in ``protocol``. A caller that was told *unknown* stays, so that a later value reaches
it, but once its run has ended nothing is called on its behalf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.events import AttemptUnknown, Mark, ReceiptResolved
from schemas.states import CLOSED, UNKNOWN, Attempt, ClosedRun, Flag, Out, Receipt, Unknown, Waiter
from streams.engine import protocol
from streams.engine.effects import UnknownOver, UnknownSeen
from streams.engine.port import Context, Outbox, Records
from streams.engine.protocol import Verdict


def attempt_in_doubt(receipt: Receipt) -> tuple[int, Attempt] | None:
    """The highest attempt that may have been billed and has no outcome, unless a value of its epoch or a later one is there."""
    current = -1 if receipt.current is None else receipt.current[0]
    for n in sorted(receipt.attempts, reverse=True):
        attempt = receipt.attempts[n]
        if attempt.lease is None or attempt.epoch <= current:
            continue
        how = protocol.verdict(attempt, receipt.repeat)
        if how is Verdict.UNKNOWN:
            return n, attempt
        if how is Verdict.FAILED and (doubtful := protocol.in_doubt(receipt, attempt.epoch)):
            found = receipt.attempts[doubtful]
            if doubtful < n and protocol.same_operation(found, attempt):
                return doubtful, found
    return None


def tell(outbox: Outbox, destination: int, key: str, receipt: Receipt, n: int, calls: Iterable[tuple[str, Mark]]) -> None:
    """Say which attempt callers should name who know what became of it, ahead of the answer *unknown* itself."""
    attempt = receipt.attempts[n]
    if protocol.verdict(attempt, receipt.repeat) is not Verdict.UNKNOWN:
        # A refusal behind an attempt of the same operation that is in doubt: it is the doubt that must be settled.
        n = protocol.in_doubt(receipt, attempt.epoch)
    told = AttemptUnknown(key, n, receipt.attempts[n].epoch, tuple([call for call, _ in calls]))
    outbox.send("tool-results", destination, told)


def waits_again(records: Records, waiter: Waiter) -> bool:
    """A waiter that was told *unknown* waits again, and hears of what comes, unless its run has ended: then it only listens."""
    if waiter.flag is not Flag.UNKNOWN or has_ended(records, waiter.run):
        return False
    waiter.flag = Flag.OPEN
    return True


def waiting_again(records: Records, calls: Iterable[tuple[str, Waiter]]) -> Iterator[tuple[str, Waiter]]:
    """Those that wait again, after a person has said what became of an attempt; or are told of another one in doubt."""
    return ((call, waiter) for call, waiter in calls if waits_again(records, waiter))


def unpaid(outbox: Outbox, context: Context, event: ReceiptResolved, receipt: Receipt) -> None:
    """A person's *unpaid* is about an operation; where it was refused behind the doubt, its earlier attempts are settled alike."""
    resolved = receipt.attempts[event.n]
    ours = {n: attempt for n, attempt in receipt.attempts.items() if protocol.same_operation(attempt, resolved)}
    if not any(attempt.out is Out.FAILED for attempt in ours.values()):
        return
    for n, attempt in ours.items():
        if attempt.lease is not None and not attempt.released and attempt.out in (None, Out.AMBIGUOUS):
            again = ReceiptResolved(event.receipt, n, attempt.epoch, None, event.who, event.why)
            outbox.send("receipt-completions", context.partition, again)


def index(records: Records, outbox: Outbox, context: Context, key: str, receipt: Receipt) -> None:
    """Put a receipt into the index, or take it out, as it stands now; tell the dispatcher."""
    name = UNKNOWN + key.encode()
    known = records.get(name, Unknown)
    found = attempt_in_doubt(receipt)
    if found is None:
        if known is not None:
            records.delete(name)
            outbox.effects.append(UnknownOver(key))
        return
    n, attempt = found
    if known is not None and known.n == n:
        return
    entry = Unknown(n, attempt.epoch, attempt.op, receipt.tool, receipt.lane, context.now_ms)
    records.put(name, entry)
    outbox.effects.append(seen(key, entry))


def seen(key: str, entry: Unknown) -> UnknownSeen:
    """What the dispatcher hears of an entry of the index."""
    return UnknownSeen(key, entry.lane, entry.tool, entry.n, entry.epoch, entry.op, entry.since_ms)


def take_stock(records: Records, outbox: Outbox) -> None:
    """A new owner: tell the dispatcher of every receipt in the index."""
    for name, entry in records.scan(UNKNOWN, Unknown):
        outbox.effects.append(seen(name[1:].decode(), entry))


def has_ended(records: Records, run: str) -> bool:
    """Whether a run's end was heard of here."""
    return records.get(CLOSED + run.encode(), ClosedRun) is not None


def run_ended(records: Records, context: Context, run: str) -> None:
    """A run has ended; heard of again, it changes nothing."""
    if not has_ended(records, run):
        records.put(CLOSED + run.encode(), ClosedRun(context.now_ms))


def demanding(records: Records, waiters: Iterable[Waiter]) -> Iterator[Waiter]:
    """Waiters but for those on whose behalf nothing is called (M15): who was told *failed*, which is final for its row, and who
    only listens, told *unknown* and of a run that has ended since.
    """
    for waiter in waiters:
        if waiter.flag is not Flag.FAILED and (waiter.flag is not Flag.UNKNOWN or not has_ended(records, waiter.run)):
            yield waiter
