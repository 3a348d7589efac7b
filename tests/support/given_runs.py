"""A table of runs and short forms of what it hears and says."""

from __future__ import annotations

import json

from schemas.commands import (
    RowsAppended,
    RunRequested,
)
from schemas.events import (
    AddedRow,
    CallCounts,
    CompiledColumn,
    CompiledPlay,
    Event,
    Repeat,
    RowCounts,
    RowsAdded,
    RowsCounted,
)
from schemas.progress import MapProgress, RunEvent
from streams.engine.port import Outbox
from streams.engine.runs import RunsEngine
from tests.support.memory import Table

PARTITIONS = 8
COLUMN = CompiledColumn("check", "p.t", "org/p", "1", "scope", Repeat.NEVER, '{"x":"{{ row.x }}"}')
PLAY = CompiledPlay("play", "people", "rev", (), (COLUMN,))


def raw(number: int) -> bytes:
    return json.dumps({"x": number}).encode()


def requested(
    rows: int | None = 3,
    *,
    run: str = "run",
    digest: str = "d",
    play: CompiledPlay | None = PLAY,
    faults: tuple[str, ...] = (),
    expected: int | None = None,
    force: bool = False,
) -> RunRequested:
    lines = tuple(raw(number) for number in range(rows or 0))
    return RunRequested(run, "org", digest, play, faults, lines, rows is not None, expected, force)


def chunk(first: int, size: int, *, digest: str = "") -> RowsAppended:
    rows = tuple(raw(number) for number in range(first, first + size))
    return RowsAppended("run", first, rows, digest or f"{first}+{size}")


def runs_table() -> Table:
    return Table(RunsEngine(), partitions=PARTITIONS)


def ledger(outbox: Outbox) -> list[RunEvent]:
    """Run events as a reader gets them."""
    return [RunEvent.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "run-events"]


def progress(outbox: Outbox) -> list[MapProgress]:
    """Progress as a reader gets it."""
    return [MapProgress.model_validate_json(event.data or b"") for event in outbox.public if event.topic == "map-progress"]


def types(outbox: Outbox) -> list[str]:
    return [event.type for event in ledger(outbox)]


def sent(outbox: Outbox, topic: str) -> dict[int, list[Event]]:
    return {partition: events for (name, partition), events in outbox.events.items() if name == topic}


def rows_of(outbox: Outbox) -> dict[int, list[AddedRow]]:
    """Rows that were sent down, by partition."""
    return {
        partition: [row for event in events if isinstance(event, RowsAdded) for row in event.rows]
        for partition, events in sent(outbox, "row-work").items()
    }


def sizes(outbox: Outbox) -> dict[int, int]:
    return {partition: len(rows) for partition, rows in rows_of(outbox).items()}


def counted(partition: int, sequence: int = 1, *, final: bool = False, calls: CallCounts | None = None, **rows: int) -> RowsCounted:
    counts = RowCounts(**({"seen": sum(rows.values())} | rows))
    return RowsCounted("run", partition, sequence, counts, calls or CallCounts(live=counts.completed), final)


def settles(table: Table, shares: dict[int, int], **states: int) -> Outbox:
    """All partitions settle their rows: as many as ``states`` say in these, the rest completed; then they close."""
    left = dict(states)
    reports: dict[int, dict[str, int]] = {}
    for partition, size in shares.items():
        rows = reports[partition] = {}
        for name in left:
            rows[name] = min(left[name], size - sum(rows.values()))
            left[name] -= rows[name]
        rows["completed"] = size - sum(rows.values())
    table.given(*(counted(partition, **rows) for partition, rows in reports.items()))
    return table.given(*(counted(partition, 2, final=True, **rows) for partition, rows in reports.items()))
