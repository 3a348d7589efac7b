"""An input line of a run becomes a row with its key. Pure."""

from __future__ import annotations

from schemas import address
from schemas.canonical import InvalidJson, UncanonicalValue, parse_json
from schemas.events import AddedRow, CompiledPlay


class RowFault(ValueError):
    """An input line cannot be taken: the message names its position and field."""


def added_row(play: CompiledPlay, position: int, raw: bytes) -> AddedRow:
    """An input line with its row key. Raises ``RowFault``."""
    try:
        row = parse_json(raw)
        if not isinstance(row, dict):
            raise RowFault(f"row {position}: expected an object of fields")
        return AddedRow(position, address.row_key(play.dataset, play.key_columns, row), raw)
    except (address.Unaddressable, InvalidJson, UncanonicalValue) as error:
        raise RowFault(f"row {position}: {error}") from error
