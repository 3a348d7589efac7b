"""What may be dropped of old receipts, so that a table does not grow for ever: callers, batches, and at last receipts themselves.

Pure. Receipts stand in an index by the time at which their callers were answered; a sweep looks at what is old enough, one portion
a turn, by a command that names its limits, so that a replay drops the same. A dropped receipt leaves a stub with its highest
attempt and its refreshes: neither attempt numbers nor epochs are ever used twice. Nothing goes while open work refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from schemas.commands import SweepDue
from schemas.events import ReceiptForgotten
from schemas.progress import OperationEvent
from schemas.states import (
    ANSWERED,
    ASK,
    BATCH,
    RECEIPT,
    VALUE,
    WAITER,
    Answered,
    Ask,
    Attempt,
    Batch,
    Flag,
    Out,
    Receipt,
    StoredValue,
    Waiter,
    record_key,
)
from streams.engine import unknowns
from streams.engine.operations import tell
from streams.engine.port import Context, Outbox, Records, Wake

#: Stands for the lease in the attempt of a stub.
FORGOTTEN = "forgotten"
#: Receipts in one entry of the index.
ENTRY_MAX = 5_000
#: Entries that one turn looks at, and the wait until the next turn, so that calls come first.
PORTION_MAX = 4
PAUSE_MS = 200
#: Entries that were looked at once, and stay for the day on which receipts themselves may go, stand behind all others.
_SECOND = "~"


@dataclass(frozen=True, slots=True)
class SweepPolicy:
    """How often to look, and how long what is settled is kept; in milliseconds."""

    every_ms: int
    #: Callers and batches of runs that have ended.
    callers_keep_ms: int
    #: Receipts; 0 for ever.
    receipts_keep_ms: int = 0

    def next(self, now_ms: int) -> Wake:
        """The sweep that is due some time after ``now_ms``."""
        at_ms = now_ms + self.every_ms
        drop_ms = at_ms - self.receipts_keep_ms if self.receipts_keep_ms else 0
        return Wake(at_ms, SweepDue(drop_ms, at_ms - self.callers_keep_ms))


def finish(
    records: Records,
    outbox: Outbox,
    context: Context,
    answered: Iterable[str],
    due: Iterable[SweepDue | ReceiptForgotten],
    policy: SweepPolicy | None,
) -> None:
    """The end of a turn: index what was answered, then drop what is due or asked for."""
    index(records, context, answered)
    for event in due:
        if isinstance(event, SweepDue):
            sweep(records, outbox, context, event, policy)
        else:
            forget(records, outbox, context, event)


def index(records: Records, context: Context, receipts: Iterable[str]) -> None:
    """Put receipts whose callers were answered in this turn into the index."""
    left = list(receipts)
    for start in range(0, len(left), ENTRY_MAX):
        place = 0
        while records.get(name := _name("", context.now_ms, start + place), Answered) is not None:
            place += 1
        records.put(name, Answered(tuple(left[start : start + ENTRY_MAX])))


def sweep(records: Records, outbox: Outbox, context: Context, event: SweepDue, policy: SweepPolicy | None) -> None:
    """Look at one portion of what is old enough, and say when to look again."""
    again: dict[str, None] = {}
    looked = 0
    first = list(islice(_due(records, "", event.until_ms), PORTION_MAX))
    for name, entry in first:
        looked += 1
        kept = [key for key in entry.receipts if _shrunk(records, key, again)]
        records.delete(name)
        if kept:
            records.put(ANSWERED + _SECOND.encode() + name[1:], Answered(tuple(kept)))
    second = list(islice(_due(records, _SECOND, event.drop_before_ms), PORTION_MAX - looked)) if looked < PORTION_MAX else []
    for name, entry in second:
        looked += 1
        for key in entry.receipts:
            receipt = records.get(record_key(RECEIPT, key), Receipt)
            if receipt is None or is_stub(receipt):
                continue
            if in_use(records, key, receipt):
                again[key] = None
            else:
                drop(records, key, receipt)
        records.delete(name)
    if again:
        index(records, context, again)
    if looked == PORTION_MAX:
        outbox.effects.append(Wake(context.now_ms + PAUSE_MS, event))
    elif policy is not None:
        outbox.effects.append(policy.next(context.now_ms))


def forget(records: Records, outbox: Outbox, context: Context, event: ReceiptForgotten) -> None:
    """Drop a receipt because a person wants that, or say what forbids it."""
    receipt = records.get(record_key(RECEIPT, event.receipt), Receipt)
    code, message, n = "", "", 0
    if receipt is None:
        code, message = "unknown_receipt", f"there is no receipt {event.receipt} on this lane"
    elif reason := in_use(records, event.receipt, receipt):
        code, message = "in_use", reason
    else:
        n = max(receipt.attempts, default=0)
        if not is_stub(receipt):
            drop(records, event.receipt, receipt)
    told = OperationEvent(
        type="receipt.rejected" if code else "receipt.forgotten",
        operation=event.operation,
        at_ms=context.now_ms,
        receipt=event.receipt,
        n=n,
        code=code,
        message=message,
        who=event.who,
        why=event.why,
    )
    tell(outbox, context, told)


def is_stub(receipt: Receipt) -> bool:
    """All but its highest attempt number and its refreshes was dropped."""
    return len(receipt.attempts) == 1 and not receipt.waiters and next(iter(receipt.attempts.values())).lease == FORGOTTEN


def in_use(records: Records, key: str, receipt: Receipt) -> str:
    """What refers to a receipt so that it may not be dropped, in words; empty for nothing."""
    if receipt.open:
        return "it is queued or being called"
    if unknowns.attempt_in_doubt(receipt) is not None:
        return "its outcome is unknown; settle that first (paidonce cell resolve)"
    if doubtful(receipt):
        return "a call of it may have been billed and will be repeated under its key"
    for call, waiter in _waiters(records, key, receipt):
        if not _over(records, call, waiter):
            return f"run {call.partition(':')[0]} has not ended, or still listens"
    return ""


def doubtful(receipt: Receipt) -> bool:
    """Some call may have been billed without an outcome, and no value makes up for it: its key must not be lost."""
    current = -1 if receipt.current is None else receipt.current[0]
    return any(
        attempt.lease is not None and not attempt.released and attempt.out in (None, Out.AMBIGUOUS) and attempt.epoch > current
        for attempt in receipt.attempts.values()
    )


def drop(records: Records, key: str, receipt: Receipt) -> None:
    """Remove a receipt and all that belongs to it but for what must outlive it."""
    for attempt in receipt.attempts.values():
        if attempt.batch and _is_definite(records, attempt.batch, besides=key):
            records.delete(record_key(BATCH, attempt.batch))
    for call, _ in list(_waiters(records, key, receipt)):
        if call not in receipt.waiters:
            records.delete(record_key(WAITER, key, call))
    for name, _ in list(records.scan(record_key(VALUE, key, ""), StoredValue)):
        records.delete(name)
    if records.get(ASK + key.encode(), Ask) is not None:
        records.delete(ASK + key.encode())
    n = max(receipt.attempts, default=0)
    if not n and not receipt.refreshes:
        records.delete(record_key(RECEIPT, key))
        return
    # A released attempt asks for the next one, and no key of an operation is used again.
    last = receipt.attempts.get(n, Attempt())
    stub = Attempt(lease=FORGOTTEN, epoch=last.epoch, op=last.op, released=True)
    records.put(
        record_key(RECEIPT, key),
        Receipt(
            refreshes=receipt.refreshes,
            attempts={n: stub} if n else {},
            lane=receipt.lane,
            tool=receipt.tool,
            kept_under=receipt.kept_under,
        ),
    )


def _shrunk(records: Records, key: str, again: dict[str, None]) -> bool:
    """Drop callers and batches of a settled receipt; whether the receipt is still to go some day."""
    name = record_key(RECEIPT, key)
    receipt = records.get(name, Receipt)
    if receipt is None or is_stub(receipt):
        return False
    left = False
    changed = False
    for call, waiter in list(_waiters(records, key, receipt)):
        if not _over(records, call, waiter):
            left = True
        elif receipt.waiters.pop(call, None) is not None:
            changed = True
        else:
            records.delete(record_key(WAITER, key, call))
            receipt.overflow -= 1
            changed = True
    for attempt in receipt.attempts.values():
        batch = record_key(BATCH, attempt.batch)
        if attempt.batch and records.get(batch, Batch) is not None and _is_definite(records, attempt.batch):
            records.delete(batch)
    if changed:
        records.put(name, receipt)
    if left:
        # Its callers' runs go on; it comes again.
        again[key] = None
    return not left


def _is_definite(records: Records, batch: str, *, besides: str = "") -> bool:
    """No member of a batch will ever ask for the batch to be repeated as it was."""
    stored = records.get(record_key(BATCH, batch), Batch)
    members = [] if stored is None else [key for key, _, _ in stored.members if key != besides]
    receipts = (records.get(record_key(RECEIPT, key), Receipt) for key in members)
    return stored is not None and all(receipt is None or not (receipt.open or doubtful(receipt)) for receipt in receipts)


def _over(records: Records, call: str, waiter: Waiter) -> bool:
    """A caller needs nothing more and its run has ended, so that neither asks again under this name."""
    if waiter.flag in (Flag.OPEN, Flag.UNKNOWN):
        return False
    return unknowns.has_ended(records, call.partition(":")[0])


def _waiters(records: Records, key: str, receipt: Receipt) -> Iterator[tuple[str, Waiter]]:
    yield from receipt.waiters.items()
    if receipt.overflow:
        prefix = record_key(WAITER, key, "")
        for name, waiter in records.scan(prefix, Waiter):
            yield name[len(prefix) :].decode(), waiter


def _due(records: Records, stage: str, until_ms: int) -> Iterator[tuple[bytes, Answered]]:
    """Entries of the index up to a time, oldest first."""
    prefix = ANSWERED + stage.encode()
    for name, entry in records.scan(prefix, Answered):
        text = name[len(prefix) :].decode()
        if text.startswith(_SECOND) or int(text.partition(":")[0]) > until_ms:
            return
        yield name, entry


def _name(stage: str, at_ms: int, place: int) -> bytes:
    return ANSWERED + f"{stage}{at_ms:015d}:{place}".encode()
