"""A caller that no longer waits: its tombstone stays, so that the same request does not come back to life (T6). Pure."""

from __future__ import annotations

from schemas.events import CallWithdrawn
from schemas.states import WAITER, Flag, Receipt, Waiter, record_key
from streams.engine.port import Records

#: Waiters kept inside the receipt's record; further ones get records of their own.
WAITERS_INLINE = 16


def withdraw(records: Records, receipt: Receipt, event: CallWithdrawn) -> None:
    """Fold a withdrawal into its receipt, also where its request is yet to come."""
    name = record_key(WAITER, event.receipt, event.call)
    tombstone = Waiter(run="", destination=0, flag=Flag.WITHDRAWN)
    waiter = receipt.waiters.get(event.call) or records.get(name, Waiter)
    if waiter is not None:
        tombstone = waiter
        waiter.flag = Flag.WITHDRAWN
    if event.call in receipt.waiters or (waiter is None and len(receipt.waiters) < WAITERS_INLINE):
        receipt.waiters[event.call] = tombstone
    else:
        receipt.overflow += waiter is None
        records.put(name, tombstone)
