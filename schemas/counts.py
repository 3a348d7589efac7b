"""What is counted for a run, as events and records carry it: its rows, its calls, and the repeats of calls that it may make.

Part of ``events`` and ``states``, which hand these on. This module holds no behaviour beyond their sums.
"""

from __future__ import annotations

import msgspec


class RowCounts(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one run by state; *seen* counts input lines, all others are disjoint parts of it."""

    seen: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    reused: int = 0
    duplicate: int = 0
    unknown: int = 0

    @property
    def settled(self) -> int:
        """Input lines that need nothing more."""
        return self.completed + self.failed + self.skipped + self.reused + self.duplicate + self.unknown


class CallCounts(msgspec.Struct, array_like=True, frozen=True):
    """Cells of one run by how their value came."""

    live: int = 0
    in_flight: int = 0
    cache: int = 0


class RetryBudget(msgspec.Struct, array_like=True, frozen=True):
    """How many repeats of provider calls a run may make: in all, and its share for one lane (P2)."""

    total: int
    share: int


class Hold(msgspec.Struct, array_like=True):
    """One repeat that a run pays for: attempt ``n``, which is yet to be claimed or under way, in its epoch."""

    run: str
    n: int
    epoch: int


class RunRetries(msgspec.Struct, array_like=True):
    """Repeats on one lane that a run pays for: those that were made, and those that are held for receipts (P2)."""

    made: int = 0
    held: int = 0
