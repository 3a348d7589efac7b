"""What a run request becomes before anything is published: checked against its play, and cut into messages.

Under ``client``. All rows are read and encoded first, into memory and then a temporary file, so that a fault
in the last row leaves nothing half-started. It knows no Kafka and no clock.
"""

from __future__ import annotations

import difflib
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from schemas.canonical import BYTES_KEY, UncanonicalValue, canonical, dump_json, normalize
from schemas.plays import Play, RetriesMax
from schemas.requests import ROW_BYTES_MAX, RunId, RunRequested
from streams.engine.program import TemplateError, fields_of
from streams.errors import InputError, UsageError

ROWS_INLINE_MAX = 200
CHUNK_ROWS_MAX = 500
CHUNK_BYTES_MAX = 700_000
MEMORY_BYTES_MAX = 64 << 20
NAMES_SHOWN_MAX = 20

_ALL_TEXT = frozenset({str})


@dataclass(frozen=True, slots=True)
class Request:
    """One message for ``run-requests``: its CloudEvents type and id, its JSON, and the rows in it."""

    type: str
    id: str
    value: bytes
    rows: int


def faults_of(errors: ValidationError, source: str) -> str:
    """Every fault of a pydantic validation in one line: ``source: columns.0.tool: Field required``."""
    return "; ".join(
        f"{source}: {'.'.join(map(str, fault['loc'])) + ': ' if fault['loc'] else ''}{fault['msg'].removeprefix('Value error, ')}"
        for fault in errors.errors(include_url=False)
    )


def check_run_id(run: str) -> None:
    """Raise ``UsageError`` for an id that no run can have."""
    try:
        TypeAdapter(RunId).validate_python(run)
    except ValidationError as error:
        expected = "expected at most 128 letters, digits, '_', '.' and '-', the first a letter or a digit"
        raise UsageError(f"run id {run!r}: {expected}") from error


def check_retries_max(retries_max: int) -> None:
    """Raise ``UsageError`` for a retry budget that no run can have."""
    try:
        TypeAdapter(RetriesMax).validate_python(retries_max, strict=True)
    except ValidationError as error:
        raise UsageError(f"run request: retries_max: {error.errors()[0]['msg']}, found {retries_max!r}") from error


def play_uses(play: Play, source: str) -> dict[str, list[str]]:
    """Input fields that a play uses, and the places in it that do.

    Raises ``InputError`` naming every fault of its templates.
    """
    uses: dict[str, list[str]] = {name: ["key"] for name in play.key}
    faults: list[str] = []
    earlier: set[str] = set()
    for index, column in enumerate(play.columns):
        place = f"columns.{index}.{column.input_field}"
        try:
            canonical(column.tool_input)
            used = dict.fromkeys(sorted(fields_of(column.tool_input, place)), place)
        except TemplateError as error:
            faults.append(f"{source}: {error}")
            continue
        except UncanonicalValue as error:
            faults.append(f"{source}: {place}{error.path[1:]}: {error.reason}")
            continue
        used |= dict.fromkeys(column.needs, f"columns.{index}.needs")
        for name, where in used.items():
            if name not in earlier:
                uses.setdefault(name, []).append(where)
        earlier.add(column.name)
    if faults:
        raise InputError("; ".join(faults))
    return uses


@dataclass
class Submission:
    """A run request in the making: ``add`` every row, then take its ``requests``; a context manager.

    ``source`` and ``play_source`` are what messages call the rows and the play; ``retries_max`` counts instead of the play's.
    """

    play: Play
    run: str
    org: str = "default"
    force: bool = False
    force_tool_refresh: bool = False
    retries_max: int | None = None
    source: str = "the rows"
    play_source: str = "the play"
    total: int = 0
    _uses: dict[str, list[str]] = field(init=False)
    _request: RunRequested = field(init=False)
    _fields: dict[str, None] = field(init=False, default_factory=dict)
    #: Key columns that a row lacks, and the first such row.
    _lacking: dict[str, str] = field(init=False, default_factory=dict)
    _last: Any = field(init=False, default=None)
    _rows: list[bytes] = field(init=False, default_factory=list)
    _bytes: int = field(init=False, default=0)
    _first: int = field(init=False, default=0)
    _spool: IO[bytes] = field(init=False)

    def __post_init__(self) -> None:
        check_run_id(self.run)
        if self.retries_max is not None:
            check_retries_max(self.retries_max)
            self.play = self.play.model_copy(update={"retries_max": self.retries_max})
        self._uses = play_uses(self.play, self.play_source)
        try:
            self._request = RunRequested(
                run=self.run,
                org=self.org,
                play=self.play,
                force=self.force,
                force_tool_refresh=self.force_tool_refresh,
            )
        except ValidationError as error:
            raise UsageError(faults_of(error, "run request")) from error
        self._digest = hashlib.blake2b(digest_size=16)
        self._spool = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._spool.close()

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the next row. Raises ``InputError`` naming row and column of what cannot be taken."""
        if row.keys() != self._last:
            self._meet(row)
        try:
            plain = type(row) is dict and _ALL_TEXT.issuperset(map(type, row.values()))
            text = dump_json(row if plain else self._exact(row))
        except UncanonicalValue as error:
            raise InputError(f"{self._place()}, {error.path[1:].lstrip('.') or 'row'}: {error.reason}") from error
        if len(text) > ROW_BYTES_MAX:
            raise InputError(f"{self._place()}: {len(text):,} bytes as JSON, at most {ROW_BYTES_MAX:,} fit a message")
        # The first rows are held back, to travel in the request itself if no more come.
        if len(self._rows) >= CHUNK_ROWS_MAX or self._bytes + len(text) > CHUNK_BYTES_MAX:
            self._cut()
        self._rows.append(text)
        self._bytes += len(text) + 1
        self.total += 1

    def requests(self) -> Iterator[Request]:
        """The messages, in the order in which they must be published.

        Raises ``InputError`` naming every field that is used and that the rows lack.
        """
        self._check_fields()
        return self._requests()

    def _requests(self) -> Iterator[Request]:
        inline = self._first == 0 and len(self._rows) <= ROWS_INLINE_MAX
        if inline:
            yield self._head(self._rows)
            return
        self._cut()
        yield self._head(None)
        self._spool.seek(0)
        first = 0
        while size := self._spool.read(8):
            rows = int.from_bytes(size[4:], "big")
            value = self._spool.read(int.from_bytes(size[:4], "big"))
            yield Request("rows_appended", f"{self.run}/rows_appended/{first}", value, rows)
            first += rows
        sealed = {
            "type": "rows_sealed",
            "run": self.run,
            "contract": self._request.contract,
            "total": self.total,
        }
        yield Request("rows_sealed", f"{self.run}/rows_sealed", dump_json(sealed), 0)

    def _head(self, rows: list[bytes] | None) -> Request:
        event = self._request.model_dump(mode="json", exclude={"rows"}) | {"expected_rows": self.total}
        if rows is None:
            event["rows_digest"] = self._digest.hexdigest()
        listed = b"null" if rows is None else b"[" + b",".join(rows) + b"]"
        value = dump_json(event)[:-1] + b',"rows":' + listed + b"}"
        return Request("run_requested", f"{self.run}/run_requested", value, len(rows or ()))

    def _cut(self) -> None:
        """Put the rows at hand aside as one chunk."""
        if not self._rows:
            return
        head = {
            "type": "rows_appended",
            "run": self.run,
            "contract": self._request.contract,
            "first": self._first,
        }
        value = dump_json(head)[:-1] + b',"rows":[' + b",".join(self._rows) + b"]}"
        self._digest.update(value)
        self._spool.write(len(value).to_bytes(4, "big") + len(self._rows).to_bytes(4, "big") + value)
        self._first += len(self._rows)
        self._rows, self._bytes = [], 0

    def _meet(self, row: Mapping[str, Any]) -> None:
        """Look at the names of a row that has others than the one before it."""
        if not all(isinstance(name, str) for name in row):
            raise InputError(f"{self._place()}: names of fields must be text")
        if BYTES_KEY in row:
            raise InputError(f"{self._place()}: the name {BYTES_KEY!r} is reserved for bytes")
        for name in self.play.key:
            if name not in row:
                self._lacking.setdefault(name, self._place())
        self._fields |= dict.fromkeys(row)
        self._last = row.keys()

    def _exact(self, row: Mapping[str, Any]) -> Any:
        for name in self.play.key:
            if name in row and row[name] is None:
                raise InputError(f"{self._place()}: the key column {name!r} is null")
        return normalize(dict(row))

    def _place(self) -> str:
        return f"{self.source}: row {self.total} (the first is 0)"

    def _check_fields(self) -> None:
        if not self.total:
            return
        faults = [
            f"{self.source}: no column {name!r}, which {self.play_source}: {', '.join(places)} "
            f"{'uses' if len(places) == 1 else 'use'}{_nearest(name, self._fields)}"
            for name, places in self._uses.items()
            if name not in self._fields
        ]
        faults += [
            f"{place}: no field {name!r}, which {self.play_source}: key uses"
            for name, place in self._lacking.items()
            if name in self._fields
        ]
        faults += [
            f"{self.play_source}: columns.{index}.name: {column.name!r} is also a column of {self.source}; "
            "name the computed column otherwise"
            for index, column in enumerate(self.play.columns)
            if column.name in self._fields
        ]
        if faults:
            raise InputError("; ".join(faults))


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1) or [other for other in names if other.lower() == name.lower()]
    shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", ..." if len(names) > NAMES_SHOWN_MAX else "")
    return (f"; did you mean {near[0]!r}?" if near else ";") + f" Found: {shown}"
