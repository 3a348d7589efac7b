"""The receipt policy *completed-cache* (Y2): a miss has no owner, and the first value is kept for later requests.

Each request asks under a receipt of its own, which one call alone ever asks for: nobody waits for anybody, and all that protocol.md
promises holds for it as for any receipt. The receipt's record names the shared one; when its value settles it is put there, where
the first one stays. A request that finds a value there is answered from it. The shared receipt is never claimed: its attempts are
values without a claim. Pure; both live on one lane, so in one partition.
"""

from __future__ import annotations

import msgspec

from schemas.events import Mode, ToolRequested
from schemas.states import ASK, RECEIPT, VALUE, WAITER, Ask, Attempt, Out, Receipt, StoredValue, Waiter, record_key
from streams.engine.receiptsturn import ReceiptsTurn


def placed(turn: ReceiptsTurn, request: ToolRequested) -> ToolRequested:
    """The request as it is to be folded: for the shared receipt where a value that it accepts is kept there, else for its own.

    A request that comes twice, or after its withdrawal, stays where it was folded first.
    """
    own = _look(turn, request.receipt)
    if own is not None and request.call in own.waiters:
        return request
    shared = _look(turn, request.kept_under)
    if shared is None:
        return _asked_for(turn, request)
    known = request.call in shared.waiters or (
        shared.overflow and turn.records.get(record_key(WAITER, request.kept_under, request.call), Waiter) is not None
    )
    if known or _has_a_value_for(shared, request):
        return msgspec.structs.replace(request, receipt=request.kept_under, kept_under="")
    return _asked_for(turn, request)


def keep(turn: ReceiptsTurn, key: str, own: Receipt, n: int, epoch: int, digest: str, output: bytes) -> None:
    """A value of a call's own receipt has settled: the first one is kept under the shared receipt, later ones change nothing.

    A refresh keeps the first value that was asked for by it, in the place of older ones (R2).
    """
    shared = turn.receipt(own.kept_under)
    kept_epoch = _kept_epoch(shared, own, epoch)
    if shared.current is not None and shared.current[0] >= kept_epoch:
        return
    if shared.repeat is None:
        shared.repeat, shared.lane, shared.tool, shared.bucket = own.repeat, own.lane, own.tool, own.bucket
        shared.run, shared.input = own.run, own.input
        asked = turn.records.get(ASK + key.encode(), Ask) if own.input is None else None
        if asked is not None:
            turn.records.put(ASK + own.kept_under.encode(), Ask(asked.input))
    # The number behind the last may be claimed already, where somebody needs one.
    place = max(shared.attempts, default=0) + 1 + shared.open
    inline = own.attempts[n].output
    shared.attempts[place] = Attempt(epoch=kept_epoch, out=Out.VALUE, value=digest, output=inline)
    if inline is None:
        turn.records.put(record_key(VALUE, own.kept_under, str(place)), StoredValue(output))
    shared.current = (kept_epoch, place)
    # The sweep finds it by the moment of its value, whether or not anybody ever asks for it.
    turn.for_sweep[own.kept_under] = None


def _asked_for(turn: ReceiptsTurn, request: ToolRequested) -> ToolRequested:
    """A full refresh takes its place among the others' now: their order is that of the requests, whichever value comes first."""
    if request.mode is Mode.FULL_REFRESH and request.refresh is not None:
        shared = turn.receipt(request.kept_under, calm=True)
        if request.refresh not in shared.refreshes:
            shared.refreshes.append(request.refresh)
    return request


def _look(turn: ReceiptsTurn, key: str) -> Receipt | None:
    """A receipt's record, which does not count as changed by that."""
    return turn.touched.get(key) or turn.records.get(RECEIPT + key.encode(), Receipt)


def _has_a_value_for(shared: Receipt, request: ToolRequested) -> bool:
    """A completed one is reused by all but a full refresh, which wants a value that it asked for itself (R2)."""
    if shared.current is None:
        return False
    if request.mode is not Mode.FULL_REFRESH:
        return True
    return request.refresh in shared.refreshes and shared.current[0] > shared.refreshes.index(request.refresh)


def _kept_epoch(shared: Receipt, own: Receipt, epoch: int) -> int:
    """The newest full refresh that a value answers, by its place in the shared receipt; 0 for none.

    A refresh of another kind has no place there, but answers the full ones that came before it.
    """
    if not 0 < epoch <= len(own.refreshes) or not any(waiter.value_epoch for waiter in own.waiters.values()):
        return 0
    answered = own.refreshes[:epoch]
    return max((place for place, refresh in enumerate(shared.refreshes, 1) if refresh in answered), default=0)
