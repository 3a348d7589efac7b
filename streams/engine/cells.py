"""The constant parts of a column's cells: how their calls are named, addressed and rendered. Pure, and cached by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import msgspec

from schemas import address
from schemas.canonical import canonical, parse_json
from schemas.events import CallsAnswered, CompiledColumn, CompiledPlay, Event
from schemas.states import TASK, Task, record_key
from streams.engine.program import Renderer, compile_template, look_up

#: A longer bucket key is digested: it stands in every request and receipt.
BUCKET_BYTES_MAX = 40
#: Calls of one cell in one run, at most: it asks, asks again (R5), moves (P4), and asks again there.
CALLS_MAX = 4


@lru_cache(maxsize=1024)
def renderer(template: str) -> Renderer:
    """The compiled template of a column."""
    return compile_template(parse_json(template))


@dataclass(frozen=True, slots=True)
class Program:
    """A column made ready to compute the cells of many rows."""

    column: CompiledColumn
    render: Renderer
    #: From canonical input to receipt key (K1).
    address: Callable[[bytes], str]

    def receipt(self, text: bytes, run: str, row: str) -> str:
        """The receipt that a row's cell asks for, by its canonical input."""
        key = self.address(text)
        own = self.column.fresh or self.column.completed_cache
        return address.fresh_receipt_key(key, call_of(run, row, self.column.name, 0)) if own else key


def programs(org: str, play: CompiledPlay) -> tuple[Program, ...]:
    """The columns of a play, in order, made ready."""
    return tuple(_program(org, column) for column in play.columns)


@lru_cache(maxsize=1024)
def _program(org: str, column: CompiledColumn) -> Program:
    addresser = address.ReceiptAddresser(
        org=org,
        scope=column.private_to,
        tool=column.tool,
        auth_scope=column.scope,
        action_version=column.version,
        window=column.window,
    )
    return Program(column, renderer(column.template), addresser.key)


def kept_under(org: str, column: CompiledColumn, text: bytes) -> str:
    """The receipt that keeps the first value of this input for later requests, ``""`` where a column shares its calls (Y2)."""
    return _program(org, column).address(text) if column.completed_cache else ""


def moved(org: str, column: CompiledColumn, scope: str) -> Program:
    """The column with another auth scope, whose keys are others (P4)."""
    return _program(org, msgspec.structs.replace(column, scope=scope))


def next_column(task: Task) -> None:
    """Go on to the next column, whose calls are numbered anew: what was asked again was a cell, not the row (R5, P4)."""
    task.column += 1
    task.refreshed, task.again = 0, False


@lru_cache(maxsize=256)
def standing_of(org: str, play: CompiledPlay) -> str | None:
    """What a row of the sheet must carry to stand for this run (M2): the play's revision, and all that its receipts' keys hold.

    Whatever would give a cell another receipt (K1) keeps an earlier row from standing for it, input aside, which is compared as it
    is. ``None`` where nothing stands, because a column is always fresh (K8).
    """
    if any(column.fresh for column in play.columns):
        return None
    asked = [[column.tool, column.version, column.scope, column.private_to, column.window] for column in play.columns]
    return address.revision([org, play.revision, asked])


def bucket_of(path: str, value: object) -> str:
    """What tells apart the requests that may share a call: the text of what stands at ``path`` of an input (B4)."""
    text = canonical(look_up(value, path) if path else value)
    return text.decode() if len(text) <= BUCKET_BYTES_MAX else address.payload_digest(text)


@lru_cache(maxsize=1024)
def lane_partition(lane: str, partitions: int) -> int:
    """Partition of ``receipts`` that a lane lives on."""
    return address.spread(lane, partitions)


#: Run, row key, column and number of the refresh of a cell, and the key of its row's task.
CellPlace: TypeAlias = tuple[str, str, str, int, bytes]


def call_of(run: str, row: str, column: str, refreshed: int) -> str:
    """Name of a cell's call; run ids, row keys and column names hold neither ``:`` nor ``~``."""
    return f"{run}:{row}:{column}" if not refreshed else f"{run}:{row}:{column}~{refreshed}"


def cell_of(call: str) -> tuple[str, str, str, int]:
    """Run, row key, column and number of the refresh that a call's name holds."""
    run, row, column = call.split(":")
    if "~" not in column:
        return run, row, column, 0
    column, _, refreshed = column.partition("~")
    return run, row, column, int(refreshed)


def answered_cells(events: Sequence[Event]) -> dict[str, CellPlace]:
    """The cells that events answer, by the names of their calls."""
    found: dict[str, CellPlace] = {}
    for event in events:
        if isinstance(event, CallsAnswered):
            for call, _ in event.calls:
                run, row, column, refreshed = cell_of(call)
                found[call] = run, row, column, refreshed, record_key(TASK, run, row)
    return found
