"""What a request meets at its receipt, in one word (R1): derived from the record like all else about it, never stored.

Pure. Errors that end a wait name it, so that a person knows what stood in the way.
"""

from __future__ import annotations

import enum

from schemas.states import Receipt, Waiter
from streams.engine.protocol import Standing, Told, told


class Disposition(enum.StrEnum):
    """What a request meets."""

    #: Nobody calls: the lane's next attempt is for this request.
    CLAIMED = "claimed"
    #: Complete, and good enough for it.
    REUSED = "reused"
    #: Somebody calls, and it would take the value.
    RUNNING = "running"
    #: Somebody calls, and the value is older than what it asks for: it may claim once that call has ended (R3).
    BLOCKED_ACTIVE_LEASE = "blocked_active_lease"
    FAILED = "failed"
    UNKNOWN = "unknown"


_ENDED = {Told.COMPLETED: Disposition.REUSED, Told.FAILED: Disposition.FAILED, Told.UNKNOWN: Disposition.UNKNOWN}


def disposition(receipt: Receipt, waiter: Waiter, stands: Standing) -> Disposition:
    """What this request meets as the receipt stands."""
    ended = _ENDED.get(told(receipt, waiter, stands)[0])
    if ended is not None:
        return ended
    if not stands.live:
        return Disposition.CLAIMED
    serves = receipt.attempts[stands.n].epoch >= waiter.value_epoch
    return Disposition.RUNNING if serves else Disposition.BLOCKED_ACTIVE_LEASE
