"""A table of rows and short forms of what it hears and says."""

from __future__ import annotations

import json
from typing import Any

from schemas.commands import CountersDue
from schemas.events import (
    AddedRow,
    Answer,
    CallsAnswered,
    CompiledColumn,
    CompiledPlay,
    Fault,
    Mark,
    Repeat,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunOpened,
    ToolRequested,
)
from schemas.progress import MapRow
from streams.engine.port import Outbox
from streams.engine.rows import RowsEngine
from streams.engine.rowsturn import COUNTERS_EVERY_MS
from tests.support.memory import Table

NO = Fault("refused", "the provider said no")
BROKEN = Fault("http_503", "the provider is closed", repairable=True)
LOST = Fault("lost", "the answer is lost")


def column(
    name: str = "check",
    template: Any = None,
    *,
    needs: tuple[str, ...] = (),
    extract: str | None = None,
    private_to: str | None = None,
) -> CompiledColumn:
    text = json.dumps({"x": "{{ row.x }}"} if template is None else template)
    return CompiledColumn(name, "p.t", "org/p", "1", "scope", Repeat.NEVER, text, needs, extract, private_to)


def play(*columns: CompiledColumn, revision: str = "rev") -> CompiledPlay:
    return CompiledPlay("play", "people", revision, (), columns or (column(),))


def opened(run: str = "run", *, force: bool = False, refresh: bool = False, of: CompiledPlay | None = None) -> RunOpened:
    return RunOpened(run, "org", play() if of is None else of, force, refresh)


def row(position: int, key: str | None = None, **fields: Any) -> AddedRow:
    return AddedRow(position, key or f"key{position}", json.dumps(fields or {"x": position}).encode())


def added(*rows: AddedRow, run: str = "run") -> RowsAdded:
    return RowsAdded(run, rows)


def rows_table() -> Table:
    return Table(RowsEngine())


def asked(outbox: Outbox) -> list[ToolRequested]:
    found = [event for (topic, _), events in outbox.events.items() if topic == "tool-requests" for event in events]
    return [event for event in found if isinstance(event, ToolRequested)]


def ask(outbox: Outbox) -> ToolRequested:
    (request,) = asked(outbox)
    return request


def counted(outbox: Outbox) -> list[RowsCounted]:
    return [
        event
        for (topic, _), events in outbox.events.items()
        if topic == "row-progress"
        for event in events
        if isinstance(event, RowsCounted)
    ]


def counts(outbox: Outbox) -> RowCounts:
    (event,) = counted(outbox)
    return event.rows


def later(table: Table, run: str = "run") -> Outbox:
    """What the timer of a run's counters brings when it is due."""
    table.now_ms += COUNTERS_EVERY_MS
    return table.given(CountersDue(run))


def sheet(outbox: Outbox) -> list[MapRow]:
    """The rows that were published, as a reader of ``map-rows`` gets them."""
    assert all(event.topic == "map-rows" for event in outbox.public)
    found = [MapRow.model_validate_json(event.data or b"") for event in outbox.public]
    assert [event.key for event in outbox.public] == [f"{shown.org}/{shown.dataset}/{shown.key}" for shown in found]
    return found


def answer(
    request: ToolRequested,
    output: Any = None,
    *,
    what: Answer = Answer.COMPLETED,
    fault: Fault | None = None,
    mark: Mark = Mark.LIVE,
    n: int = 1,
) -> CallsAnswered:
    text = json.dumps(output).encode() if what in (Answer.COMPLETED, Answer.NO_RESULT) else None
    return CallsAnswered(request.receipt, n, what, ((request.call, mark),), text, fault)


def failed(request: ToolRequested, fault: Fault = NO, mark: Mark = Mark.LIVE) -> CallsAnswered:
    return answer(request, what=Answer.FAILED, fault=fault, mark=mark)


def unknown(request: ToolRequested) -> CallsAnswered:
    return answer(request, what=Answer.UNKNOWN, fault=LOST)
