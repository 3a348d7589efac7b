"""Row files: in comes CSV, character for character, or JSON lines with exact numbers; out goes a sheet.

Streams in both directions. It judges the file, never its rows: what they must hold is for the play to say.

The rules for CSV:

- UTF-8, with or without a byte order mark at its start. Comma, double quotes, a quote inside quotes doubled
  (RFC 4180); lines end with LF or CRLF. A line break inside quotes belongs to the value, as it was written.
  Every value is text: ``007`` stays ``007``.
- The first line names the columns. Names keep their capitals, spaces and accents. A name that comes twice is
  refused, naming both columns. A column at the end without a name is dropped while all its values are empty,
  since spreadsheets write such columns; any other column without a name is refused.
- Every line has as many fields as the header. A blank line is no row; a lone empty value is ``""``.
- NUL, bytes that are no UTF-8, a carriage return outside quotes that ends no line, a quote that is never
  closed and an empty file are refused. A refusal names file and line.

JSON lines (names that end with ``.jsonl`` or ``.ndjson``): one object a line, blank lines ignored. Integers
keep all their digits; NaN and what no reader could carry is refused with line and column.

An export has the input's columns in their order, then for each computed column ``c`` the four columns ``c``,
``c_status``, ``c_error`` and ``c_run`` (the run that made the value), empty where the cell was not computed;
where such a name is taken, ``_`` is appended until it is not. In CSV text stands as it is, null is empty, and
all else is compact JSON.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from schemas.canonical import InvalidJson, UncanonicalValue, dump_json, normalize, parse_json
from schemas.progress import RowCell
from streams.errors import InputError, UsageError

LINE_BYTES_MAX = 16 << 20
#: Where a quote is never closed, the rest of the file would become one field.
FIELD_CHARACTERS_MAX = 4 << 20
BOM = b"\xef\xbb\xbf"
JSON_LINES = (".jsonl", ".ndjson")

#: What Python's csv module says, and what it means to the owner of the file.
_CSV_FAULTS = (
    ("unexpected end of data", "a quote opened in the row that begins here is never closed"),
    (
        "field larger than",
        f"a field has more than {FIELD_CHARACTERS_MAX:,} characters; is a quote never closed?",
    ),
    ("new-line character", "a carriage return outside quotes that ends no line; expected LF or CRLF"),
    ("',' expected after", 'text follows a closing quote; a quote inside quotes is written ""'),
)
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')

#: One line of an export: the input's fields, and the cells by column.
ExportLine = tuple[Mapping[str, Any], Mapping[str, RowCell]]


def is_json_lines(path: Path) -> bool:
    """Whether a file's name says that it holds JSON lines."""
    return path.suffix.lower() in JSON_LINES


def read_rows(path: Path) -> Generator[dict[str, Any], None, None]:
    """The rows of a file, in order. Raises ``InputError`` naming file, line and column."""
    # Closed here, whoever stops reading and why: a reader inside would keep the file open until it is collected.
    with contextlib.closing(_lines(path)) as lines:
        yield from _read_json_lines(path, lines) if is_json_lines(path) else _read_csv(path, lines)


def _lines(path: Path) -> Generator[str, None, None]:
    """The physical lines as text, with their ends."""
    try:
        with path.open("rb") as file:
            yield from _decoded(path, file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(path: Path, file: IO[bytes]) -> Iterator[str]:
    number = 0
    while raw := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        dropped = len(BOM) if number == 1 and raw.startswith(BOM) else 0
        if len(raw) > LINE_BYTES_MAX:
            raise InputError(f"{path}: line {number}: longer than {LINE_BYTES_MAX:,} bytes")
        try:
            text = raw[dropped:].decode()
        except UnicodeDecodeError as error:
            place = error.start + dropped
            raise InputError(
                f"{path}: line {number}, byte {place + 1}: 0x{raw[place]:02x} is not UTF-8; save it as UTF-8"
            ) from error
        if "\0" in text:
            raise InputError(f"{path}: line {number}, character {text.index(chr(0)) + 1}: a NUL character")
        yield text
    if number == 0:
        raise InputError(f"{path}: the file is empty; expected a line that names the columns, then rows")


def _read_csv(path: Path, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(FIELD_CHARACTERS_MAX)  # one for the process, as the module has it
    reader = csv.reader(lines, strict=True)
    line = 1
    columns: list[str] = []
    width = 0
    try:
        for record in reader:
            if not width:
                columns, width = _header(path, record), len(record)
            elif record:
                if len(record) != width:
                    raise InputError(f"{path}: line {line}: {_fields(len(record))}, expected {width} as in line 1")
                if width != len(columns) and any(record[len(columns) :]):
                    raise InputError(f"{path}: line {line}: a value in a column that has no name in line 1")
                yield dict(zip(columns, record, strict=False))
            line = reader.line_num + 1
    except csv.Error as error:
        said = str(error)
        meant = next((words for start, words in _CSV_FAULTS if said.startswith(start)), said)
        raise InputError(f"{path}: line {line}: {meant}") from error


def _fields(number: int) -> str:
    return f"{number} field" + "s" * (number != 1)


def _header(path: Path, names: Sequence[str]) -> list[str]:
    columns = list(names)
    while columns and not columns[-1]:
        columns.pop()
    if not columns:
        raise InputError(f"{path}: line 1: no header; expected the names of the columns")
    first: dict[str, int] = {}
    for number, name in enumerate(columns, start=1):
        if not name:
            raise InputError(f"{path}: line 1: column {number} has no name")
        if name in first:
            raise InputError(f"{path}: line 1: columns {first[name]} and {number} are both named {name!r}")
        first[name] = number
    return columns


def _read_json_lines(path: Path, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(lines, start=1):
        if not text.strip(" \t\r\n"):
            continue
        try:
            row = normalize(parse_json(text))
        except InvalidJson as error:
            column = _column_at(text, error.position)
            place = f"column {column!r}" if column is not None else f"character {error.position + 1}"
            raise InputError(f"{path}: line {number}, {place}: {error.reason}") from error
        except UncanonicalValue as error:
            raise InputError(f"{path}: line {number}, {error.path}: {error.reason}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number}: expected an object of columns, found {text.strip():.40}")
        yield row


def _column_at(text: str, position: int) -> str | None:
    """The key of the top-level member that a character of an object's text stands in."""
    depth = 0
    last = column = None
    for token in _JSON_TOKEN.finditer(text, 0, position):
        match token[0]:
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
            case ":" if depth == 1:
                column = last
            case "," if depth == 1:
                column = None
            case string:
                last = string[1:-1]
    return column


def check_export_name(path: Path) -> None:
    """Raise ``UsageError`` for a name that does not say what the export is to be."""
    if not is_json_lines(path) and path.suffix.lower() != ".csv":
        raise UsageError(f"{path}: the name of an export ends with .csv or .jsonl")


def export_names(fields: Sequence[str], computed: Sequence[str]) -> dict[str, tuple[str, str, str, str]]:
    """For each computed column the names of its value, status, error and run in an export."""
    taken = set(fields)

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    values = {column: free(column) for column in computed}
    return {
        column: (value, free(f"{column}_status"), free(f"{column}_error"), free(f"{column}_run"))
        for column, value in values.items()
    }


def write_export(path: Path, fields: Sequence[str], computed: Sequence[str], lines: Iterable[ExportLine]) -> int:
    """Write an export, CSV or JSON lines by the file's name; returns the number of lines.

    The file appears whole or not at all. Raises ``UsageError`` where its name or its folder will not do.
    """
    check_export_name(path)
    part = path.with_name(path.name + ".part")
    write = _write_json_lines if is_json_lines(path) else _write_csv
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            count = write(file, fields, export_names(fields, computed), lines)
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def write_rows(path: Path, fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as a CSV that ``read_rows`` reads back; returns their number."""
    return write_export(path, fields, (), ((row, {}) for row in rows))


def _write_csv(
    file: IO[str],
    fields: Sequence[str],
    names: Mapping[str, tuple[str, str, str, str]],
    lines: Iterable[ExportLine],
) -> int:
    # CRLF as in RFC 4180. For another line end Python's writer would not quote a lone CR.
    write = csv.writer(file, lineterminator="\r\n").writerow
    header = [*fields, *(name for group in names.values() for name in group)]
    if header and header[0].startswith("\ufeff"):  # bare at the start of the file it would be taken for a byte order mark
        csv.writer(file, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerow(header)
    else:
        write(header)
    count = 0
    for row, cells in lines:
        record = [_text(row.get(field)) for field in fields]
        for column in names:
            cell = cells.get(column)
            record += ("", "", "", "") if cell is None else (_text(cell.value), cell.status, cell.error or "", cell.run)
        write(record)
        count += 1
    return count


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else dump_json(value).decode()


def _write_json_lines(
    file: IO[str],
    _fields: Sequence[str],
    names: Mapping[str, tuple[str, str, str, str]],
    lines: Iterable[ExportLine],
) -> int:
    count = 0
    for row, cells in lines:
        line = dict(row)
        for column, group in names.items():
            cell = cells.get(column)
            known = (None,) * 4 if cell is None else (cell.value, cell.status, cell.error, cell.run or None)
            line |= zip(group, known, strict=True)
        file.write(dump_json(line).decode() + "\n")
        count += 1
    return count
