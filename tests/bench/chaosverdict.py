"""What must hold after a chaos run, whatever was done to it; pure, over what was read at the end.

Each check gives lines of text that name run, row, item or receipt; no line at all is a pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from schemas.events import Ambiguous, Value
from schemas.progress import MapProgress, MapRow, RowCell, RunEvent
from streams.public.sheet import SheetLine
from streams.sandbox.bill import BillLine
from streams.sandbox.endpoints import service_of
from tests.bench.chaosplan import Asked
from tests.support.evidence import Evidence

FINAL = ("completed", "failed", "skipped")
#: Columns of every play, with the field that a cell asks for.
COLUMNS = ("batched", "single")
#: Ways in which a worker may end: told to, also before it listens to that, killed, no broker. All others are defects.
ENDS = (0, -15, -9, 69)


@dataclass(frozen=True)
class RunFound:
    """All that is there of one run."""

    name: str
    asked: Asked
    ledger: Sequence[RunEvent]
    samples: Sequence[MapProgress]
    lines: Sequence[SheetLine]


@dataclass(frozen=True)
class Found:
    """All that is there at the end."""

    runs: Sequence[RunFound]
    #: Messages of ``map-rows`` by key, in their order.
    rows: Mapping[str, Sequence[MapRow]]
    bill: Sequence[BillLine]
    evidence: Evidence
    ends: Sequence[int] = ()
    #: Lines of the workers' logs that tell of a defect.
    defects: Sequence[str] = ()


@dataclass
class _Receipts:
    """Receipts by how their attempts ended."""

    valued: set[str] = field(default_factory=set)
    #: An attempt was granted and has no definite end.
    doubtful: set[str] = field(default_factory=set)


def violations(found: Found) -> list[str]:
    """Everything that is not as it must be."""
    receipts = _receipts(found.evidence)
    wrong = [line for run in found.runs for line in _of_run(run)]
    wrong += _of_rows(found.rows)
    wrong += _of_bill(found.bill)
    wrong += _of_receipts(found, receipts)
    wrong += [f"a worker ended with {code}" for code in found.ends if code not in ENDS]
    return [*wrong, *found.defects]


def item_of(column: str, index: int, *, keyed: bool) -> str:
    """What the cell of a row asks for; no two cells ask for the same."""
    if keyed:
        return f"{column[0]}{index}@example.com"
    return f"+49 30 {index:07d}{COLUMNS.index(column)}"


def _receipts(evidence: Evidence) -> _Receipts:
    definite: set[tuple[str, int]] = set()
    receipts = _Receipts()
    for _, event in evidence.ends:
        if isinstance(event.outcome, Value):
            receipts.valued.add(event.receipt)
        if not isinstance(event.outcome, Ambiguous):
            definite.add((event.receipt, event.n))
    for receipt, attempts in evidence.attempts.items():
        for n, attempt in attempts.items():
            if attempt.granted_ms is not None and attempt.released_ms is None and (receipt, n) not in definite:
                receipts.doubtful.add(receipt)
    return receipts


def _of_run(run: RunFound) -> Iterator[str]:
    terminal = [event for event in run.ledger if event.terminal]
    if len(terminal) != 1:
        yield f"{run.name} has {len(terminal)} terminal events: {[event.type for event in terminal]}"
    rows = run.asked.last - run.asked.first
    if len(run.lines) != rows:
        yield f"{run.name} gives {len(run.lines)} lines for {rows} rows"
    for line in run.lines:
        status = "none" if line.row is None else line.row.status
        if status not in (*FINAL, "unknown"):
            yield f"{run.name}: row {line.position} is {status}"
    for event in terminal:
        counts = event.counts
        if event.type != "run.completed" or counts is None:
            yield f"{run.name} ended as {event.type} {event.code}: {event.message}"
        elif counts.total != rows or counts.done != rows:
            yield f"{run.name} counts {counts.done} of {counts.total} rows, and had {rows}"
    done = [sample.counts.done for sample in run.samples]
    if done != sorted(done) or max(done, default=0) > rows:
        yield f"{run.name} counted backwards or beyond its {rows} rows: {done}"


def _of_rows(rows: Mapping[str, Sequence[MapRow]]) -> Iterator[str]:
    for key, states in rows.items():
        for before, after in pairwise(states):
            # Unknown may be settled by a late value; what is completed stays so in every run that comes after.
            changed = before.status in FINAL and after.status != before.status
            if changed and (before.run == after.run or before.status == "completed"):
                yield f"row {key} went from {before.status} ({before.run}) to {after.status} ({after.run})"


def _of_bill(bill: Sequence[BillLine]) -> Iterator[str]:
    by_item = Counter((service_of(line.endpoint), line.item) for line in bill)
    yield from (f"{item} was billed {count} times" for (_, item), count in by_item.items() if count > 1)
    keyed = [line for line in bill if service_of(line.endpoint) == "email"]
    by_key = Counter((line.idempotency_key, line.item_id, line.item) for line in keyed)
    yield from (f"{item} was billed {count} times under key {key}" for (key, _, item), count in by_key.items() if count > 1)


def _of_receipts(found: Found, receipts: _Receipts) -> Iterator[str]:
    cells: dict[str, list[RowCell]] = defaultdict(list)
    for run in found.runs:
        for line in run.lines:
            for column in COLUMNS:
                cell = None if line.row is None else line.row.cells.get(column)
                if cell is not None:
                    cells[item_of(column, run.asked.first + line.position, keyed=run.asked.keyed)].append(cell)
    billed = {line.item for line in found.bill}
    for item, its in cells.items():
        keys = {cell.receipt for cell in its if cell.receipt is not None}
        if len(keys) > 1:
            yield f"{item} has the receipts {sorted(keys)}"
        statuses = {cell.status for cell in its}
        if item in billed and not keys & (receipts.valued | receipts.doubtful):
            yield f"{item} was billed, and its receipts {sorted(keys)} have neither a value nor a call in doubt"
        if statuses & {"completed", "cached"} and item not in billed:
            yield f"{item} has a value that nobody billed"
        if "unknown" in statuses and not keys & receipts.doubtful:
            yield f"{item} is unknown, and no call for {sorted(keys)} was granted that has no end"
        if "unknown" in statuses and keys & receipts.valued:
            yield f"{item} is unknown, and {sorted(keys)} has a value"
    yield from (f"{item} was billed, and no row has a cell for it" for item in billed if item not in cells)
