"""The sheet as users see it: the JSON of one row on ``map-rows``.

Pure. Encoded from structs, since every row passes here; ``schemas.progress.MapRow`` is what readers validate it with.
"""

from __future__ import annotations

import msgspec

from schemas.events import Mark
from schemas.states import Cell, CellStatus, RowStatus, SheetRow
from streams.engine.port import PublicEvent

_encode = msgspec.json.Encoder().encode


class _PublishedCell(msgspec.Struct, omit_defaults=True):
    status: CellStatus
    run: str
    value: msgspec.Raw | None = None
    receipt: str | None = None
    mark: Mark | None = None
    code: str | None = None
    error: str | None = None


class _PublishedRow(msgspec.Struct):
    org: str
    dataset: str
    key: str
    status: RowStatus
    run: str
    position: int
    fields: msgspec.Raw
    cells: dict[str, _PublishedCell]
    updated_ms: int


def _cell(cell: Cell) -> _PublishedCell:
    value = None if cell.value is None else msgspec.Raw(cell.value)
    shown = _PublishedCell(cell.status, cell.run, value, cell.receipt, cell.mark)
    if cell.fault is not None:
        shown.code, shown.error = cell.fault.code, cell.fault.message
    return shown


def published(org: str, dataset: str, key: str, sheet: SheetRow, now_ms: int) -> PublicEvent:
    """The event that tells a row's newest state, keyed so that compaction keeps one of each row."""
    row = _PublishedRow(
        org,
        dataset,
        key,
        sheet.status,
        sheet.run,
        sheet.position,
        msgspec.Raw(sheet.fields),
        {name: _cell(cell) for name, cell in sheet.cells.items()},
        now_ms,
    )
    return PublicEvent("map-rows", f"{org}/{dataset}/{key}", "paidonce.row.updated", _encode(row), f"{sheet.run}/{key}")
