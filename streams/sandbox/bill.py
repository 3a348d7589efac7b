"""The provider's own bill: one line for each item it worked for, in memory and in a CSV file.

It is the judge of "paid once", so nothing is ever dropped from it, and a request's lines are in the file
(in the kernel's hands, so that a SIGKILL loses none) before the request is answered.
"""

import csv
import io
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from streams.sandbox.endpoints import Item, service_of

COLUMNS = (
    "sequence",
    "call",
    "time_ns",
    "endpoint",
    "idempotency_key",
    "request_id",
    "item_id",
    "item",
    "batch_size",
    "status",
)
EXAMPLES_MAX = 10


class BillLine(msgspec.Struct, frozen=True):
    """One billed item.

    `item_id` is JSON text, "" for a single. `status` is that of the answer, or the fault that spoiled it.
    """

    sequence: int
    call: int
    time_ns: int
    endpoint: str
    idempotency_key: str
    request_id: str
    item_id: str
    item: str
    batch_size: int
    status: str


class Summary(msgspec.Struct, frozen=True):
    """The bill and the traffic. `calls` did work; `requests` came to a paid path, whatever became of them."""

    calls: int
    billed_items: int
    distinct_items: int
    billed_twice: int
    billed_twice_examples: list[str]
    replayed_responses: int
    requests: int
    rejected_429: int
    in_flight: int
    in_flight_max: int


class Call(msgspec.Struct, frozen=True):
    """One request that did work, with its items as (id, content): smaller in memory than a line an item."""

    sequence: int
    call: int
    time_ns: int
    endpoint: str
    idempotency_key: str
    request_id: str
    batch_size: int
    status: str
    items: list[tuple[str, str]]

    def lines(self) -> Iterator[BillLine]:
        head = (self.call, self.time_ns, self.endpoint, self.idempotency_key, self.request_id)
        for offset, (item_id, item) in enumerate(self.items):
            yield BillLine(self.sequence + offset, *head, item_id, item, self.batch_size, self.status)


class Bill:
    """The lines, and the counts that follow from them. With a file that exists, it goes on from there."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._forget()
        if path is not None:
            self._take_up(path)

    def record(self, endpoint: str, key: str, request_id: str, items: list[Item], batch_size: int, status: str) -> None:
        """Bills the items of one request; on return they are in the file."""
        pairs = [(item.id, item.content) for item in items]
        call = Call(
            self.items + 1,
            self.calls + 1,
            time.time_ns(),
            endpoint,
            key,
            request_id,
            batch_size,
            status,
            pairs,
        )
        self._add(call)
        if self._file is not None:
            self._file.write(_rows(call))

    def lines(self) -> Iterator[BillLine]:
        """All lines, oldest first."""
        for call in self._calls:
            yield from call.lines()

    def counts(self) -> tuple[int, int, int, int, list[str]]:
        """Calls, billed items, distinct items, items billed more than once, and some of those by name."""
        examples = [f"{service}: {item}" for service, item in list(self._twice)[:EXAMPLES_MAX]]
        return self.calls, self.items, len(self._times), len(self._twice), examples

    def reset(self) -> None:
        """Empties the bill and its file."""
        self._forget()
        if self._file is not None:
            self._file.truncate(0)
            self._file.write(_text([COLUMNS]))

    def close(self) -> None:
        """Closes the file; the lines in memory stay readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        self.calls = 0
        self.items = 0
        self._calls: list[Call] = []
        self._times: dict[tuple[str, str], int] = {}
        self._twice: dict[tuple[str, str], None] = {}

    def _add(self, call: Call) -> None:
        self._calls.append(call)
        self.calls = call.call
        self.items += len(call.items)
        service = service_of(call.endpoint)
        for _, content in call.items:
            times = self._times.get((service, content), 0) + 1
            self._times[service, content] = times
            if times == 2:
                self._twice[service, content] = None

    def _take_up(self, path: Path) -> None:
        lines = read_bill(path) if path.exists() else []
        for _, of_call in groupby(lines, key=lambda line: line.call):
            self._add(_call(list(of_call)))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written anew: a kill within a write leaves half a line, and the next must not be glued to it.
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(_text([COLUMNS]) + b"".join(map(_rows, self._calls)))
        fresh.replace(path)
        self._file = path.open("ab", buffering=0)


def read_bill(path: Path) -> list[BillLine]:
    """The lines of a bill's file; one cut off by a kill was never answered for and is left out."""
    text = path.read_bytes().decode("utf-8", "replace")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if rows and not text.endswith("\n"):
        rows.pop()
    whole = [dict(zip(COLUMNS, row, strict=True)) for row in rows[1:] if len(row) == len(COLUMNS)]
    return msgspec.convert(whole, list[BillLine], strict=False)


def _call(lines: list[BillLine]) -> Call:
    one = lines[0]
    head = (one.sequence, one.call, one.time_ns, one.endpoint, one.idempotency_key, one.request_id)
    return Call(*head, one.batch_size, one.status, [(line.item_id, line.item) for line in lines])


def _rows(call: Call) -> bytes:
    return _text(msgspec.structs.astuple(line) for line in call.lines())


def _text(rows: Iterable[Iterable[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()
