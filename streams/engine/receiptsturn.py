"""What one turn of ``receipts`` gathers: the receipts it touches, and what is to be looked at when all is folded.

Pure. It finds records and says which have changed; what follows from them is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from schemas.commands import SweepDue, SweepGoesOn
from schemas.events import (
    AttemptEnded,
    BatchClaimed,
    Event,
    JobStarted,
    LeaseExpired,
    LeaseReleased,
    ReceiptForgotten,
    ToolRequested,
)
from schemas.states import RECEIPT, WAITER, Receipt, RunRetries, Waiter, record_key
from streams.engine.port import Context, Outbox, Records

_OF_ONE = (ToolRequested, AttemptEnded, JobStarted)
_OF_MANY = (BatchClaimed, LeaseReleased, LeaseExpired)


@dataclass(slots=True)
class ReceiptsTurn:
    """What one turn gathers while it folds."""

    records: Records
    outbox: Outbox
    context: Context
    #: Receipts to be looked at when all is folded, in order of first touch.
    touched: dict[str, Receipt] = field(default_factory=dict)
    #: Open receipts that a new owner looks at; not yet changed, unlike those that are touched.
    stock: dict[str, Receipt] = field(default_factory=dict)
    #: Leases of which attempts have ended, with their receipts.
    over: dict[str, list[str]] = field(default_factory=dict)
    claims: list[BatchClaimed] = field(default_factory=list)
    #: Receipts whose entry in the index of unknown ones must be worked out anew.
    reindex: set[str] = field(default_factory=set)
    #: Settled receipts, which the index of the sweep is to have.
    for_sweep: dict[str, None] = field(default_factory=dict)
    sweeps: list[SweepDue | SweepGoesOn | ReceiptForgotten] = field(default_factory=list)

    #: Receipts that a row asked for on the lane of its last answer (B1).
    continuing: set[str] = field(default_factory=set)
    #: Repeats of calls that were made in this turn, by run and lane.
    retries: dict[tuple[str, str], RunRetries] = field(default_factory=dict)
    #: Receipts that need no claim any more, by lane.
    resting: dict[str, list[str]] = field(default_factory=dict)
    #: Record keys by receipt, made once.
    names: dict[str, bytes] = field(default_factory=dict)
    #: Receipts whose every waiter must be evaluated anew, because an attempt changed.
    recheck_all: set[str] = field(default_factory=set)
    #: Waiters in records of their own that came in this turn.
    newcomers: dict[str, dict[str, Waiter]] = field(default_factory=dict)
    #: Receipts of which a page of answers is due, with the call that it begins with.
    pages: dict[str, str] = field(default_factory=dict)
    #: Receipts with more to answer than this turn may.
    unfinished: set[str] = field(default_factory=set)

    def prefetch(self, events: Sequence[Event]) -> None:
        """Load the receipts that events touch with one multi-get."""
        names = self.names
        for event in events:
            if isinstance(event, _OF_ONE):
                key = event.receipt
                if key not in names:
                    names[key] = RECEIPT + key.encode()
            elif isinstance(event, _OF_MANY):
                for member in event.members:
                    names[member.receipt] = RECEIPT + member.receipt.encode()
        self.records.prefetch(names.values())

    def receipt(self, key: str, *, calm: bool = False) -> Receipt:
        """The receipt's record, new where there is none; it counts as changed. ``calm``: nothing changes for those who wait."""
        receipt = self.touched.get(key)
        if receipt is None:
            name = self.names.get(key)
            if name is None:
                name = self.names[key] = RECEIPT + key.encode()
            receipt = self.touched[key] = self.records.change(name, Receipt)
        if not calm:
            self.recheck_all.add(key)
        return receipt

    def changed(self, key: str, receipt: Receipt) -> bytes:
        """A receipt has changed, perhaps one that was only looked at; returns its record's key."""
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = RECEIPT + key.encode()
        if key not in self.touched:
            self.records.put(name, receipt)
        return name

    def rest(self, lane: str, key: str) -> None:
        """A receipt needs no claim any more."""
        resting = self.resting.get(lane)
        if resting is None:
            resting = self.resting[lane] = []
        resting.append(key)

    def keep(self, key: str, receipt: Receipt, call: str, waiter: Waiter) -> None:
        """A waiter has changed."""
        self.changed(key, receipt)
        if call not in receipt.waiters:
            self.records.put(record_key(WAITER, key, call), waiter)

    def waiters(self, key: str, receipt: Receipt) -> Iterable[Waiter]:
        """All waiters of a receipt, the inline ones first."""
        if not receipt.overflow:
            return receipt.waiters.values()
        return (waiter for _, waiter in self._all_waiters(key, receipt))

    def calls(self, key: str, receipt: Receipt) -> Iterable[tuple[str, Waiter]]:
        """The same, with the calls that wait."""
        return receipt.waiters.items() if not receipt.overflow else self._all_waiters(key, receipt)

    def page(self, key: str, call: str) -> None:
        """Answers are to go on at this call; where two pages meet, at the earlier one."""
        self.pages[key] = min(call, self.pages.get(key, call))

    def due(self, key: str, receipt: Receipt) -> Iterable[tuple[str, Waiter]]:
        """Those who may have to be told something now: all, or without a cause for that the newcomers and those of a due page.

        The inline ones are always among them: they are few.
        """
        if not receipt.overflow:
            return receipt.waiters.items()
        return self._all_waiters(key, receipt) if key in self.recheck_all else self._few(key, receipt)

    def due_waiters(self, key: str, receipt: Receipt) -> Iterable[Waiter]:
        """The same without their calls."""
        return receipt.waiters.values() if not receipt.overflow else (waiter for _, waiter in self.due(key, receipt))

    def pages_on(self, key: str, receipt: Receipt) -> bool:
        """More pages of an open receipt's answers are still to come, and nothing in this turn concerns them."""
        return receipt.overflow > 0 and key not in self.recheck_all and key not in self.pages

    def _few(self, key: str, receipt: Receipt) -> Iterator[tuple[str, Waiter]]:
        yield from receipt.waiters.items()
        first = self.pages.get(key)
        newcomers = self.newcomers.get(key, {})
        # In the order of their keys, like all others.
        yield from ((call, newcomers[call]) for call in sorted(newcomers) if first is None or call < first)
        if first is None:
            return
        prefix = record_key(WAITER, key, "")
        start = record_key(WAITER, key, first)
        waiter = self.records.get(start, Waiter)
        if waiter is not None:
            yield first, waiter
        for name, waiter in self.records.scan(prefix, Waiter, start):
            yield name[len(prefix) :].decode(), waiter

    def _all_waiters(self, key: str, receipt: Receipt) -> Iterator[tuple[str, Waiter]]:
        yield from receipt.waiters.items()
        prefix = record_key(WAITER, key, "")
        for name, waiter in self.records.scan(prefix, Waiter):
            yield name[len(prefix) :].decode(), waiter
