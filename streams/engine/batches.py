"""Batches that may have to be repeated, or looked up, as they were (K6): who asks for that, and which of them can go.

Pure; for the sweep. A repeat needs the inputs of all members, also of those that have settled: under the batch's key the provider
must get the same bytes again, or the call is another operation, and paid again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.states import BATCH, RECEIPT, Attempt, Batch, Out, Receipt, record_key
from streams.engine.port import Records


def doubtful(receipt: Receipt) -> bool:
    """Some call may have been billed without an outcome, and no value makes up for it: its key must not be lost."""
    current = -1 if receipt.current is None else receipt.current[0]
    return any(_has_no_end(attempt) and attempt.epoch > current for attempt in receipt.attempts.values())


def asks(receipt: Receipt, batch: str) -> bool:
    """A member may ask for this batch as it was: an attempt that was made in it is under way, or in doubt."""
    current = -1 if receipt.current is None else receipt.current[0]
    return any(
        attempt.batch == batch and _has_no_end(attempt) and (receipt.open or attempt.epoch > current)
        for attempt in receipt.attempts.values()
    )


@dataclass(slots=True)
class Batches:
    """The batches of a partition as one sweep sees them: nothing that it drops changes who asks for one."""

    records: Records
    #: Members that were looked at.
    looked: int = 0
    _asking: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def asking(self, batch: str) -> tuple[str, ...]:
        """Receipts that may ask for a batch as it was; none where it has gone already."""
        found = self._asking.get(batch)
        if found is None:
            stored = self.records.get(record_key(BATCH, batch), Batch)
            names = () if stored is None else tuple(name for name, _, _ in stored.members)
            self.looked += len(names)
            self.records.prefetch(record_key(RECEIPT, name) for name in names)
            receipts = ((name, self.records.get(record_key(RECEIPT, name), Receipt)) for name in names)
            found = tuple(name for name, receipt in receipts if receipt is not None and asks(receipt, batch))
            self._asking[batch] = found
        return found

    def drop(self, batch: str) -> None:
        """Drop a batch unless somebody may ask for it."""
        name = record_key(BATCH, batch)
        if batch and not self.asking(batch) and self.records.get(name, Batch) is not None:
            self.records.delete(name)


def _has_no_end(attempt: Attempt) -> bool:
    return attempt.lease is not None and not attempt.released and attempt.out in (None, Out.AMBIGUOUS)
