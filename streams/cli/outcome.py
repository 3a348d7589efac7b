"""What a demo came to: its counts, the exported rows and the provider's bill, held against each other.

The provider's bill is the judge of "paid once"; our own counters are only compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.progress import Counts, RunEvent
from streams.cli.stage import PRICE_PER_RESULT
from streams.cli.terminal import put, put_table, say
from streams.public.rowfile import ExportLine
from streams.public.sheet import SheetLine

if TYPE_CHECKING:
    from streams.sandbox import Summary


@dataclass
class Tally:
    """What the exported lines hold, counted as they pass."""

    lines: int = 0
    missing: int = 0
    receipts: set[str] = field(default_factory=set)
    values: Counter[str] = field(default_factory=Counter)

    def passing(self, sheet: Iterable[SheetLine]) -> Iterator[ExportLine]:
        """The lines as the export wants them."""
        for line in sheet:
            self.lines += 1
            cells = {} if line.row is None else line.row.cells
            self.missing += line.row is None
            for cell in cells.values():
                if cell.status in ("completed", "cached"):
                    self.values[str(cell.value)] += 1
                    if cell.receipt is not None:
                        self.receipts.add(cell.receipt)
            yield line.fields, cells


@dataclass(frozen=True)
class Outcome:
    """Everything that a demo reports."""

    rows: int
    #: The folder was new, so that the bill is this demo's alone.
    fresh: bool
    last: RunEvent
    counts: Counts
    tally: Tally
    bill: Summary
    kills: int
    seconds: float
    export: Path
    batch_size_max: int

    @property
    def left_alone(self) -> int:
        """Rows that needed no call: nothing to check, or settled before."""
        return self.counts.skipped + self.counts.reused + self.counts.duplicate

    @property
    def faults(self) -> list[str]:
        """What went wrong; bad contacts are no fault."""
        counts, bill, tally = self.counts, self.bill, self.tally
        accounted = counts.completed + counts.failed + self.left_alone + counts.unknown
        checks = (
            (self.last.type != "run.completed", f"the run ended as {self.last.type}: {self.last.message}"),
            (accounted != self.rows, f"{accounted:,} of {self.rows:,} rows are accounted for"),
            (tally.lines != self.rows, f"{tally.lines:,} of {self.rows:,} rows were exported"),
            (tally.missing > 0, f"{tally.missing:,} exported rows have no result"),
            (bill.billed_twice > 0, f"billed twice: {', '.join(bill.billed_twice_examples)}"),
            (
                self.fresh and not counts.unknown and bill.billed_items != len(tally.receipts),
                f"{bill.billed_items:,} items billed, but {len(tally.receipts):,} receipts",
            ),
        )
        return [text for wrong, text in checks if wrong]

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints."""
        return {
            "rows": self.rows,
            "completed": self.counts.completed,
            "failed": self.counts.failed,
            "skipped": self.left_alone,
            "unknown": self.counts.unknown,
            "provider_calls": self.bill.requests,
            "retries": self.counts.retries,
            "billed_items": self.bill.billed_items,
            "billed_twice": self.bill.billed_twice,
            "receipts": len(self.tally.receipts),
            "worker_kills": self.kills,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows / self.seconds, 1),
            "export": str(self.export),
        }


def show_outcome(outcome: Outcome) -> None:
    """Print it as a table, and say what to try next."""
    counts, bill, tally = outcome.counts, outcome.bill, outcome.tally
    fill = bill.billed_items / bill.calls if bill.calls else 0.0
    pace = outcome.rows / outcome.seconds
    spent = counts.calls_live * PRICE_PER_RESULT
    saved = (counts.calls_in_flight + counts.calls_cache + counts.reused) * PRICE_PER_RESULT
    put_table(
        "",
        ("what", "figure"),
        [
            ("rows", f"{outcome.rows:,} in {outcome.seconds:.1f} s, {pace:,.0f} a second"),
            (
                "rows by state",
                f"{counts.completed:,} completed, {counts.failed:,} failed, {counts.unknown:,} unknown",
            ),
            (
                "rows left alone",
                f"{counts.skipped:,} without an address, {counts.reused:,} known from before",
            ),
            ("results", ", ".join(f"{number:,} {value}" for value, number in sorted(tally.values.items()))),
            (
                "provider calls",
                f"{bill.requests:,}, of which {bill.replayed_responses:,} were repeats it knew",
            ),
            ("retries", f"{counts.retries:,} items asked for again"),
            ("batch fill", f"{fill:.1f} of {outcome.batch_size_max} items a call"),
            ("shared results", f"{counts.calls_in_flight:,} coalesced, {counts.calls_cache:,} reused"),
            ("spend", f"${spent:,.2f}; ${saved:,.2f} saved by sharing"),
            ("worker killed", "once with SIGKILL" if outcome.kills else "no: it was over before"),
            ("provider's bill", f"{bill.billed_items:,} items, {bill.billed_twice:,} of them billed twice"),
            ("our receipts", f"{len(tally.receipts):,}"),
        ],
    )
    put(f"results: {outcome.export}")
    folder = outcome.export.parent
    say("Next:")
    say(f"  paidonce demo --rows {outcome.rows} --folder {folder}   the same again: nothing is paid for twice")
    say("  paidonce dev   a broker, the sandbox and a worker stay up, to try a play of your own")
    say(f"  {folder}/play.toml and providers.toml show how a play and a provider are written")
