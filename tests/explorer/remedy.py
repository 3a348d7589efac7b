"""Rules that would mend what the explorer found, as functions in the place of those of ``protocol``; the engine does not use them.

Of a waiter's two epochs the first says which values it takes, the second which refusals. The protocol asks for the second in
three places where the first is meant, and looks at one attempt where it should look at the operation:

1. An unknown attempt of an epoch that the waiter would take a value of makes it unknown (was: of an epoch it would take a refusal
   of).
2. Where the provider honours keys, an operation that may have been billed is repeated, under its own epoch and key, before a new
   epoch is opened for a waiter that would take its value. No refusal counts meanwhile; one of the same operation makes it unknown.
3. A claim is grantable when some waiter would take its value.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.events import Repeat
from schemas.states import Attempt, Out, Receipt, Waiter
from streams.engine import protocol
from streams.engine.protocol import Need, Standing, Told, Verdict

_WAITS = (Told.WAITS, 0)


def _doubtful(receipt: Receipt, epoch: int) -> Attempt | None:
    """The newest attempt of this epoch or a later one that may have been billed, where it is to be repeated under its key."""
    if receipt.repeat is not Repeat.WITH_KEY:
        return None
    found = [
        (n, attempt)
        for n, attempt in receipt.attempts.items()
        if attempt.lease is not None and attempt.epoch >= epoch and not attempt.released and attempt.out in (None, Out.AMBIGUOUS)
    ]
    return max(found, key=lambda item: item[0])[1] if found else None


def told(receipt: Receipt, waiter: Waiter, stands: Standing) -> tuple[Told, int]:
    """What a waiter gets, and from which attempt."""
    current = receipt.current
    if current is not None and current[0] >= waiter.value_epoch:
        return Told.COMPLETED, current[1]
    n, latest = stands
    if not n or (latest is Verdict.LIVE and receipt.attempts[n].epoch >= waiter.value_epoch):
        return _WAITS
    unknown = failed = refused = 0
    doubtful = _doubtful(receipt, waiter.value_epoch)
    for number, attempt in receipt.attempts.items():
        if attempt.lease is None or attempt.epoch < waiter.value_epoch:
            continue
        how = protocol.verdict(attempt, receipt.repeat)
        if how is Verdict.UNKNOWN:
            unknown = max(unknown, number)
        elif how is Verdict.FAILED:
            if attempt.epoch >= waiter.outcome_epoch:
                failed = max(failed, number)
            if doubtful is not None and (attempt.epoch, attempt.op) == (doubtful.epoch, doubtful.op):
                refused = max(refused, number)
    if unknown or refused:
        return Told.UNKNOWN, max(unknown, refused)
    if failed and doubtful is None:
        return Told.FAILED, failed
    return _WAITS


def _waiting(receipt: Receipt, waiters: Iterable[Waiter], stands: Standing) -> list[Waiter]:
    return [waiter for waiter in waiters if protocol.stays(waiter) and told(receipt, waiter, stands)[0] is Told.WAITS]


def need(receipt: Receipt, waiters: Iterable[Waiter], stands: Standing) -> Need | None:
    """The attempt that the lane must claim."""
    waiting = [] if stands.live else _waiting(receipt, waiters, stands)
    if not waiting:
        return None
    n = stands.n + 1
    epoch = max(waiter.outcome_epoch for waiter in waiting)
    doubtful = _doubtful(receipt, max(waiter.value_epoch for waiter in waiting))
    if doubtful is not None:
        epoch = doubtful.epoch
    if not stands.n:
        return Need(n, epoch, n, 0, "")
    op = protocol.operation(receipt, epoch, n)
    attempt = receipt.attempts[stands.n]
    same = op != n and attempt.epoch == epoch and attempt.op == op
    tries = sum(other.epoch == epoch and not other.released and other.lease is not None for other in receipt.attempts.values())
    return Need(n, epoch, op, attempt.not_before_ms, attempt.batch if same else "", tries)


def grantable(receipt: Receipt, n: int, waiters: Iterable[Waiter], stands: Standing) -> bool:
    """Attempt ``n`` may be called for."""
    if n != stands.n or not stands.live:
        return False
    epoch = receipt.attempts[n].epoch
    return any(waiter.value_epoch <= epoch for waiter in _waiting(receipt, waiters, stands))


PATCHES = {"told": told, "need": need, "grantable": grantable}
