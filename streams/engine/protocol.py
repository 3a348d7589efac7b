"""The receipt protocol: one record, folded from three topics, and what follows from it.

The state machine of ``docs/protocol.md``, whole and in one file. Each part of the record is a fold of one topic alone (requests,
claims, completions), so neither the order between topics nor a repeated event changes the record; the status is derived, never
stored. An attempt is *live* from its claim to its end; the verdict says which end it was:

    value            -> OK         the receipt has its value
    failed           -> FAILED     refused, not billed
    retry            -> RETRY      refused for now, not billed
    unpaid           -> AGAIN      a person says that nothing was billed
    released         -> RELEASED   nothing was sent
    ambiguous or     -> UNKNOWN    may have been billed, and the tool may not be repeated
      expired        -> AGAIN      may have been billed, and the tool may be repeated
    none of these    -> LIVE       somebody may be calling

Told flags and ``late`` marks are no part of the digest.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from schemas.events import Mode, Repeat, ToolRequested
from schemas.states import Attempt, Flag, Out, Receipt, Waiter

_DEFINITE = frozenset((Out.FAILED, Out.RETRY, Out.UNPAID, Out.VALUE))


class Verdict(enum.Enum):
    """How an attempt stands."""

    LIVE = "live"
    OK = "ok"
    FAILED = "failed"
    RETRY = "retry"
    AGAIN = "again"
    RELEASED = "released"
    UNKNOWN = "unknown"


class Told(enum.Enum):
    """What a waiter gets."""

    WAITS = "waits"
    COMPLETED = "completed"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Need:
    """The attempt that a lane must claim next."""

    n: int
    epoch: int
    op: int
    not_before_ms: int
    #: The batch that must be repeated as it was, or ``""``.
    batch: str
    #: Attempts of this epoch that reached the provider, or may have, and brought nothing.
    tries: int = 0


# --- the fold -----------------------------------------------------------------------------------------------


def waiter_of(receipt: Receipt, request: ToolRequested) -> Waiter:
    """The waiter that a request adds; appends its refresh id when it is new."""
    if receipt.repeat is None:
        receipt.repeat = request.repeat
        receipt.lane = request.lane
    epoch = 0
    if request.refresh is not None:
        if request.refresh not in receipt.refreshes:
            receipt.refreshes.append(request.refresh)
        epoch = receipt.refreshes.index(request.refresh) + 1
    return Waiter(
        run=request.run,
        destination=request.destination,
        value_epoch=epoch if request.mode is Mode.FULL_REFRESH else 0,
        outcome_epoch=epoch if request.mode is not Mode.NORMAL else 0,
    )


def claim(receipt: Receipt, n: int, lease: str, generation: int, epoch: int, op: int, batch: str) -> bool:
    """Fold a claim; true when it won. The first claim of an attempt in the topic wins."""
    attempt = receipt.attempts.get(n)
    if attempt is None:
        attempt = receipt.attempts[n] = Attempt()
    elif attempt.lease is not None:
        return False
    attempt.lease, attempt.generation, attempt.epoch, attempt.op, attempt.batch = lease, generation, epoch, op, batch
    return True


def release(receipt: Receipt, n: int, lease: str) -> None:
    """Fold a release; it counts only under the attempt's own lease."""
    attempt = receipt.attempts.get(n)
    if attempt is not None and attempt.lease == lease:
        attempt.released = True


def expire(receipt: Receipt, n: int, lease: str) -> None:
    """Fold an expiry; it counts only under the attempt's own lease, and a release beats it."""
    attempt = receipt.attempts.get(n)
    if attempt is not None and attempt.lease == lease:
        attempt.expired = True


def complete(receipt: Receipt, n: int, epoch: int, value: str) -> bool:
    """Fold a value (its digest); true when it is new. The first value of an attempt counts, others are kept aside."""
    attempt = receipt.attempts.setdefault(n, Attempt())
    if attempt.out is not Out.VALUE:
        attempt.out, attempt.value = Out.VALUE, value
        if receipt.current is None or receipt.current[0] < epoch:
            receipt.current = (epoch, n)
        return True
    if attempt.value == value or (n, value) in receipt.aside:
        return False
    receipt.aside.append((n, value))
    return True


def end(receipt: Receipt, n: int, out: Out) -> Attempt | None:
    """Fold an end without a value; the attempt where it counts, else ``None``. The first definite end wins."""
    attempt = receipt.attempts.setdefault(n, Attempt())
    counts = attempt.out is None if out is Out.AMBIGUOUS else attempt.out in (None, Out.AMBIGUOUS)
    if not counts:
        return None
    attempt.out = out
    return attempt


# --- what follows -------------------------------------------------------------------------------------------


def verdict(attempt: Attempt, repeat: Repeat | None) -> Verdict:
    """How an attempt stands; the order of the rules is part of the protocol."""
    match attempt.out:
        case Out.VALUE:
            return Verdict.OK
        case Out.FAILED:
            return Verdict.FAILED
        case Out.RETRY:
            return Verdict.RETRY
        case Out.UNPAID:
            return Verdict.AGAIN
    if attempt.released:
        return Verdict.RELEASED
    if attempt.out is Out.AMBIGUOUS or attempt.expired:
        never = repeat is None or repeat is Repeat.NEVER or attempt.used_up
        return Verdict.UNKNOWN if never else Verdict.AGAIN
    return Verdict.LIVE


def claimed(receipt: Receipt) -> int:
    """The highest claimed attempt, 0 for none."""
    return max((n for n, attempt in receipt.attempts.items() if attempt.lease is not None), default=0)


def is_live(receipt: Receipt) -> bool:
    """Somebody may be calling for this receipt."""
    n = claimed(receipt)
    return n > 0 and verdict(receipt.attempts[n], receipt.repeat) is Verdict.LIVE


def told(receipt: Receipt, waiter: Waiter) -> tuple[Told, int]:
    """What a waiter gets, and from which attempt; the order of the rules is part of the protocol."""
    current = receipt.current
    if current is not None and current[0] >= waiter.value_epoch:
        return Told.COMPLETED, current[1]
    wanted = waiter.outcome_epoch
    unknown = failed = 0
    n = claimed(receipt)
    for number, attempt in receipt.attempts.items():
        if attempt.lease is None or attempt.epoch < wanted:
            continue
        match verdict(attempt, receipt.repeat):
            case Verdict.LIVE if number == n:
                return Told.WAITS, 0
            case Verdict.UNKNOWN:
                unknown = max(unknown, number)
            case Verdict.FAILED:
                failed = max(failed, number)
    if unknown:
        return Told.UNKNOWN, unknown
    if failed:
        return Told.FAILED, failed
    return Told.WAITS, 0


def stays(waiter: Waiter) -> bool:
    """The waiter is still to be evaluated: neither withdrawn nor answered for good."""
    return waiter.flag is not Flag.WITHDRAWN and waiter.flag is not Flag.DONE


def waiting_epochs(receipt: Receipt, waiters: Iterable[Waiter]) -> Iterator[int]:
    """The outcome epochs of those that wait."""
    for waiter in waiters:
        if stays(waiter) and told(receipt, waiter)[0] is Told.WAITS:
            yield waiter.outcome_epoch


def operation(receipt: Receipt, epoch: int, n: int) -> int:
    """The operation of attempt ``n``: kept as long as any call under it has no definite answer, so that no second key
    exists while a call under the first may still be billed; new after that, so that no old refusal is repeated (T8, T9).
    """
    ours = [
        (number, attempt)
        for number, attempt in receipt.attempts.items()
        if attempt.lease is not None and attempt.epoch == epoch and not attempt.released
    ]
    if not ours:
        return n
    op = max(ours, key=lambda pair: pair[0])[1].op
    doubtful = any(attempt.op == op and attempt.out not in _DEFINITE for _, attempt in ours)
    return op if doubtful else n


def need(receipt: Receipt, waiters: Iterable[Waiter]) -> Need | None:
    """The attempt that the lane must claim, or ``None`` when nobody waits or somebody may be calling."""
    if is_live(receipt):
        return None
    epoch = max(waiting_epochs(receipt, waiters), default=None)
    if epoch is None:
        return None
    last = claimed(receipt)
    n = last + 1
    op = operation(receipt, epoch, n)
    batch, not_before_ms = "", 0
    if last:
        attempt = receipt.attempts[last]
        not_before_ms = attempt.not_before_ms
        if op != n and attempt.epoch == epoch and attempt.op == op:
            batch = attempt.batch
    tries = sum(
        attempt.epoch == epoch and not attempt.released and attempt.lease is not None
        for attempt in receipt.attempts.values()
    )
    return Need(n, epoch, op, not_before_ms, batch, tries)


def grantable(receipt: Receipt, n: int, waiters: Iterable[Waiter]) -> bool:
    """Attempt ``n`` may be called for: it is the latest, it is live, and somebody waits for its epoch."""
    if n != claimed(receipt) or not is_live(receipt):
        return False
    epoch = receipt.attempts[n].epoch
    return any(wanted <= epoch for wanted in waiting_epochs(receipt, waiters))
