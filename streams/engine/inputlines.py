"""Input lines of a run become rows with their keys, in events that a message carries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schemas import address
from schemas.canonical import InvalidJson, UncanonicalValue, parse_json
from schemas.commands import RowsAppended
from schemas.envelope import BYTES_MAX
from schemas.events import AddedRow, CompiledPlay
from schemas.states import Run

#: Rows in one ``RowsAdded`` event.
ROWS_MAX = 250
#: Chunks of one run: its record names each, so that one that comes twice adds nothing, and must fit a message.
CHUNKS_MAX = 100_000
#: Characters of a fault: a refusal names many.
FAULT_CHARS_MAX = 1_000


class RowFault(ValueError):
    """An input line cannot be taken: the message names its position and field."""

    code = "bad_row"


class TooManyChunks(RowFault):
    """A run's input came in more chunks than its record can name."""

    code = "too_many_chunks"


def added_row(play: CompiledPlay, position: int, raw: bytes) -> AddedRow:
    """An input line with its row key. Raises ``RowFault``."""
    try:
        row = parse_json(raw)
        if not isinstance(row, dict):
            raise RowFault(f"row {position}: expected an object of fields")
        return AddedRow(position, address.row_key(play.dataset, play.key_columns, row), raw)
    except (address.Unaddressable, InvalidJson, UncanonicalValue) as error:
        raise RowFault(f"row {position}: {error}"[:FAULT_CHARS_MAX]) from error


def appended_rows(run: Run, event: RowsAppended) -> list[AddedRow]:
    """The rows of a chunk that comes next. Raises ``RowFault``."""
    if len(run.chunks) >= CHUNKS_MAX:
        raise TooManyChunks(
            f"row {event.first}: begins another chunk, and a run has at most {CHUNKS_MAX:,}; send more rows in each"
        )
    return [added_row(run.play, event.first + index, raw) for index, raw in enumerate(event.rows)]


def parts(rows: Sequence[AddedRow]) -> Iterator[tuple[AddedRow, ...]]:
    """Rows, in order, in as many as one event carries: some hundreds, of at most 1 MiB or one row."""
    if len(rows) <= ROWS_MAX and sum([len(row.fields) for row in rows]) <= BYTES_MAX:
        yield tuple(rows)
        return
    part: list[AddedRow] = []
    size = 0
    for row in rows:
        if part and (len(part) >= ROWS_MAX or size + len(row.fields) > BYTES_MAX):
            yield tuple(part)
            part, size = [], 0
        part.append(row)
        size += len(row.fields)
    if part:
        yield tuple(part)
