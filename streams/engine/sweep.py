"""What may be dropped of old receipts, so that a table does not grow for ever: callers, batches, and at last receipts themselves.

Pure. Receipts stand in an index by the time at which their callers were answered; a sweep looks at what is old enough, one portion
a turn, by a command that names its limits, so that a replay drops the same. A dropped receipt leaves a stub with its highest
attempt and its refreshes: neither attempt numbers nor epochs are ever used twice. Nothing goes while open work refers to it, be it
that of another receipt that a batch carried along with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from schemas.commands import SweepDue, SweepGoesOn
from schemas.events import ReceiptForgotten
from schemas.progress import OperationEvent
from schemas.states import (
    ANSWERED,
    ASK,
    RECEIPT,
    VALUE,
    WAITER,
    Answered,
    Ask,
    Attempt,
    Flag,
    Receipt,
    Waiter,
    record_key,
)
from streams.engine import lastanswers, thinning, unknowns
from streams.engine.batches import Batches, doubtful
from streams.engine.operations import tell
from streams.engine.port import Context, Outbox, Records, Wake

#: Stands for the lease in the attempt of a stub.
FORGOTTEN = "forgotten"
#: Receipts in one entry of the index.
ENTRY_MAX = 5_000
#: Entries that one turn looks at, and the wait until the next turn, so that calls come first.
PORTION_MAX = 4
PAUSE_MS = 200
#: Callers, attempts and receipts that one turn looks at: some tens of milliseconds, in which no call can be claimed.
LOOKED_MAX = 5_000
#: A person's word drops a receipt in one turn, so it may not have more callers than this in records of their own.
FORGOTTEN_CALLERS_MAX = 20_000
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


@dataclass(slots=True)
class _Look:
    """What one turn of a sweep looks at."""

    records: Records
    batches: Batches
    #: What it may still look at, the members of batches aside.
    room: int = LOOKED_MAX
    looked: int = 0
    #: Receipts that are to come again.
    again: dict[str, None] = field(default_factory=dict)
    #: Receipts whose last day was put off, by the time under which they are to stand.
    behind: dict[int, list[str]] = field(default_factory=dict)

    @property
    def room_left(self) -> int:
        """What it may still look at; it may be less than nothing."""
        return self.room - self.batches.looked


class _Page(NamedTuple):
    """How a look at a receipt ended."""

    #: The receipt is still to go some day.
    kept: bool
    #: Callers are left whose runs go on, or who still listen.
    left: bool = False
    #: The caller behind which to go on in another turn; empty where all were looked at.
    stop: str = ""


def finish(
    records: Records,
    outbox: Outbox,
    context: Context,
    answered: Iterable[str],
    due: Iterable[SweepDue | SweepGoesOn | ReceiptForgotten],
    policy: SweepPolicy | None,
) -> None:
    """The end of a turn: index what was answered, then drop what is due or asked for."""
    index(records, context, answered)
    for event in due:
        if not isinstance(event, ReceiptForgotten):
            sweep(records, outbox, context, event, policy)
        else:
            forget(records, outbox, context, event)


def index(records: Records, context: Context, receipts: Iterable[str]) -> None:
    """Put receipts whose callers were answered in this turn into the index."""
    _put(records, "", context.now_ms, receipts)


def _put(records: Records, stage: str, at_ms: int, receipts: Iterable[str]) -> None:
    left = list(receipts)
    for start in range(0, len(left), ENTRY_MAX):
        place = 0
        while records.get(name := _name(stage, at_ms, start + place), Answered) is not None:
            place += 1
        records.put(name, Answered(tuple(left[start : start + ENTRY_MAX])))


def sweep(records: Records, outbox: Outbox, context: Context, event: SweepDue | SweepGoesOn, policy: SweepPolicy | None) -> None:
    """Look at one portion of what is old enough, and say when to look again."""
    look = _Look(records, Batches(records))
    due = SweepDue(event.drop_before_ms, event.until_ms)
    after = _callers(look, event)
    if after is None:
        _receipts(look, event)
    if look.again:
        index(records, context, look.again)
    for at_ms, receipts in look.behind.items():
        _put(records, _SECOND, at_ms, receipts)
    if after is not None or look.room_left <= 0 or look.looked == PORTION_MAX:
        outbox.effects.append(Wake(context.now_ms + PAUSE_MS, after or due))
    elif policy is not None:
        outbox.effects.append(policy.next(context.now_ms))


def _callers(look: _Look, event: SweepDue | SweepGoesOn) -> SweepGoesOn | None:
    """The first look at receipts: their callers go. Where it stops between two callers, the place from which to go on."""
    records = look.records
    for name, entry in list(islice(_due(records, "", event.until_ms), PORTION_MAX)):
        if look.room_left <= 0:
            return None
        look.looked += 1
        kept: list[str] = []
        rest: tuple[str, ...] = ()
        stopped = None
        for place, key in enumerate(entry.receipts):
            if look.room_left <= 0:
                rest = entry.receipts[place:]
                break
            before = event if isinstance(event, SweepGoesOn) and event.receipt == key else None
            page = _shrunk(look, key, "" if before is None else before.after)
            left = page.left or (before is not None and before.left)
            if page.stop:
                rest = entry.receipts[place:]
                stopped = SweepGoesOn(event.drop_before_ms, event.until_ms, key, page.stop, left)
                break
            if left:
                look.again[key] = None
            elif page.kept and lastanswers.met(records, key, _time_of("", name)):
                kept.append(key)
        _moved(records, name, rest, kept)
        if stopped is not None:
            return stopped
    return None


def _moved(records: Records, name: bytes, rest: tuple[str, ...], kept: list[str]) -> None:
    """Leave what is still to be looked at in its entry, and put what was looked at behind all others.

    So a new owner, who knows nothing of how far the last one came, goes on with it.
    """
    if rest:
        records.put(name, Answered(rest))
    else:
        records.delete(name)
    if kept:
        behind = ANSWERED + _SECOND.encode() + name[1:]
        before = records.get(behind, Answered)
        records.put(behind, Answered((() if before is None else before.receipts) + tuple(kept)))


def _receipts(look: _Look, event: SweepDue | SweepGoesOn) -> None:
    """The second look, on the day on which receipts themselves go."""
    records = look.records
    for name, entry in list(islice(_due(records, _SECOND, event.drop_before_ms), max(0, PORTION_MAX - look.looked))):
        if look.room_left <= 0:
            return
        look.looked += 1
        rest: tuple[str, ...] = ()
        for place, key in enumerate(entry.receipts):
            if look.room_left <= 0:
                rest = entry.receipts[place:]
                break
            look.room -= 1
            if not lastanswers.stands_at(records, key, _time_of(_SECOND, name)):
                continue
            receipt = records.get(record_key(RECEIPT, key), Receipt)
            if receipt is None or is_stub(receipt):
                lastanswers.over(records, key)
            elif receipt.waiters or receipt.overflow or in_use(look.records, look.batches, key, receipt):
                # Callers that came since the first look go by another one, in pages; that tells when they were answered, too.
                lastanswers.over(records, key)
                look.again[key] = None
            elif (behind_ms := lastanswers.put_behind(records, key, event.drop_before_ms)) is not None:
                look.behind.setdefault(behind_ms, []).append(key)
            else:
                look.room -= len(receipt.attempts)
                drop(records, look.batches, key, receipt)
        _moved(records, name, rest, [])


def forget(records: Records, outbox: Outbox, context: Context, event: ReceiptForgotten) -> None:
    """Drop a receipt because a person wants that, or say what forbids it."""
    receipt = records.get(record_key(RECEIPT, event.receipt), Receipt)
    code, message, n = "", "", 0
    batches = Batches(records)
    if receipt is None:
        code, message = "unknown_receipt", f"there is no receipt {event.receipt} on this lane"
    elif receipt.overflow > FORGOTTEN_CALLERS_MAX:
        code = "in_use"
        message = f"it has {receipt.overflow:,} callers; a sweep drops them some time after their runs have ended, forget it then"
    elif reason := in_use(records, batches, event.receipt, receipt):
        code, message = "in_use", reason
    else:
        n = max(receipt.attempts, default=0)
        if not is_stub(receipt):
            drop(records, batches, event.receipt, receipt)
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
    if len(receipt.attempts) != 1 or receipt.waiters or receipt.current is not None:
        # A late value of a dropped attempt is used like any other, and so it is dropped like any other.
        return False
    return next(iter(receipt.attempts.values())).lease == FORGOTTEN


def in_use(records: Records, batches: Batches, key: str, receipt: Receipt) -> str:
    """What refers to a receipt so that it may not be dropped, in words; empty for nothing."""
    if receipt.open:
        return "it is queued or being called"
    if unknowns.attempt_in_doubt(receipt) is not None:
        return "its outcome is unknown; settle that first (paidonce cell resolve)"
    if doubtful(receipt):
        return "a call of it may have been billed and will be repeated under its key"
    for attempt in receipt.attempts.values():
        # It does not ask itself: nothing of it is open or in doubt.
        if attempt.batch and (others := batches.asking(attempt.batch)):
            return f"its input is part of {attempt.batch}, which may be repeated or looked up as it was for receipt {others[0]}"
    for call, waiter in _waiters(records, key, receipt):
        if not _over(records, call, waiter, listens=False):
            return f"run {call.partition(':')[0]} has not ended, or still listens"
    return ""


def drop(records: Records, batches: Batches, key: str, receipt: Receipt) -> None:
    """Remove a receipt that is not in use, and all that belongs to it but for what must outlive it."""
    for attempt in receipt.attempts.values():
        batches.drop(attempt.batch)
    for call, _ in list(_waiters(records, key, receipt)):
        if call not in receipt.waiters:
            records.delete(record_key(WAITER, key, call))
    for n, attempt in receipt.attempts.items():
        if attempt.value is not None and attempt.output is None:
            records.delete(record_key(VALUE, key, str(n)))
    for n, digest in receipt.aside:
        records.delete(record_key(VALUE, key, str(n), digest))
    lastanswers.over(records, key)
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


def _shrunk(look: _Look, key: str, after: str) -> _Page:
    """Drop callers behind ``after``, and once all were looked at, batches and what nobody can be told any more."""
    records = look.records
    name = record_key(RECEIPT, key)
    receipt = records.get(name, Receipt)
    look.room -= 1
    if receipt is None or is_stub(receipt):
        return _Page(False)
    listens = doubtful(receipt) or unknowns.attempt_in_doubt(receipt) is not None
    left = changed = False
    if not after:
        for call, waiter in list(receipt.waiters.items()):
            if _over(records, call, waiter, listens=listens):
                del receipt.waiters[call]
                changed = True
            else:
                left = True
        look.room -= len(receipt.attempts)
    stop = ""
    if receipt.overflow:
        prefix = record_key(WAITER, key, "")
        page = list(islice(records.scan(prefix, Waiter, prefix + after.encode()), max(1, look.room_left)))
        look.room -= len(page)
        for place, waiter in page:
            call = place[len(prefix) :].decode()
            if look.room_left <= 0:
                stop = call
            if _over(records, call, waiter, listens=listens):
                records.delete(place)
                receipt.overflow -= 1
                changed = True
            else:
                left = True
    if not stop:
        for attempt in receipt.attempts.values():
            look.batches.drop(attempt.batch)
        changed = thinning.thin(records, key, receipt) or changed
    if changed:
        records.put(name, receipt)
    return _Page(True, left, stop)


def _over(records: Records, call: str, waiter: Waiter, *, listens: bool) -> bool:
    """A caller needs nothing more and its run has ended, so that neither asks again under this name.

    Who was told *unknown* listens for as long as anything is in doubt (``listens``).
    """
    if waiter.flag is Flag.OPEN or (waiter.flag is Flag.UNKNOWN and listens):
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
        if name.startswith(_SECOND.encode(), len(prefix)) or _time_of(stage, name) > until_ms:
            return
        yield name, entry


def _time_of(stage: str, name: bytes) -> int:
    return int(name[len(ANSWERED) + len(stage) :].partition(b":")[0])


def _name(stage: str, at_ms: int, place: int) -> bytes:
    return ANSWERED + f"{stage}{at_ms:015d}:{place}".encode()
