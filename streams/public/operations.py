"""Operations of a person on cells and receipts, through the public topics: ask, and hear what became of it.

Beside ``client``. An operation is durable once it is sent; its answer comes from whichever worker owns what it is about.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

from aiokafka import ConsumerRecord
from pydantic import ValidationError

from schemas.address import DIGEST_CHARS
from schemas.canonical import UncanonicalValue, dump_json
from schemas.progress import OperationEvent
from schemas.requests import CellResolved, ReceiptForgotten, RunRequested
from streams.agents.operations import VALUE_BYTES_MAX
from streams.client import headers_of, user_name
from streams.errors import UsageError
from streams.public.publiclog import PublicLog, broker_errors
from streams.public.runview import Views
from streams.public.sheet import RunSheet
from streams.public.submission import faults_of
from streams.settings import Settings

#: How long the answer to an operation is waited for; a worker that is away answers later, and nobody listens then.
ANSWER_SECONDS = 20.0
#: A longer number is no position of any input.
POSITION_DIGITS_MAX = 12
ANY_KEY = "0" * DIGEST_CHARS
HEX_DIGITS = frozenset("0123456789abcdef")


class Operations:
    """A connection to one system for operations; an async context manager. Raises what ``Client`` raises."""

    def __init__(self, settings: Settings) -> None:
        self.log = PublicLog(settings)

    async def __aenter__(self) -> Operations:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.log.close()

    async def resolve(
        self, run: str, row: str, column: str, outcome: str, value: object = None, *, who: str | None = None, reason: str = ""
    ) -> OperationEvent | None:
        """Say that an unknown cell was ``paid``, with the tool's output, or ``unpaid``; ``None`` where nobody answers in time.

        ``row`` is the row's key or its input position. Raises ``UsageError`` for a row that the run does not have, and for what
        cannot be in such a request.
        """
        said: dict[str, object] = {"run": run, "row": row, "column": column, "outcome": outcome, "who": _who(who), "reason": reason}
        if outcome == "paid":
            said["value"] = value
            _check_value(value)
        # What can be found wrong here is told before anybody is asked.
        _checked(CellResolved, said | {"row": ANY_KEY})
        await self.log.ready()
        return await self._asked(run, _checked(CellResolved, said | {"row": await self.row_key(run, row)}))

    async def forget(self, receipt: str, lane: str, *, who: str | None = None, reason: str = "") -> OperationEvent | None:
        """Ask for a receipt to be dropped; ``None`` where nobody answers in time. Raises ``UsageError``."""
        said = {"receipt": receipt, "lane": lane, "who": _who(who), "reason": reason}
        request = _checked(ReceiptForgotten, said)
        await self.log.ready()
        return await self._asked(receipt, request)

    async def row_key(self, run: str, row: str) -> str:
        """The key of a row by its key or its input position (from 0). Raises ``UsageError``."""
        if is_digest(row):
            return row
        if not row.isascii() or not row.isdecimal() or len(row) > POSITION_DIGITS_MAX:
            shown = row if len(row) <= DIGEST_CHARS else row[:DIGEST_CHARS] + "..."
            raise UsageError(
                f"row {shown!r}: expected the row's position in the input (from 0) or its key of {DIGEST_CHARS} digits"
            )
        with await self.input_of(run) as sheet:
            if int(row) >= len(sheet):
                raise UsageError(f"row {row}: run {run!r} has {len(sheet):,} rows here; the first is 0")
            return sheet.key_at(int(row))

    async def check_row(self, run: str, key: str) -> None:
        """Raise ``UsageError`` where no input line of the run has this row key."""
        with await self.input_of(run) as sheet:
            if key not in sheet:
                raise UsageError(f"row {key}: none of the {len(sheet):,} rows of run {run!r} has this key")

    async def request_of(self, run: str) -> RunRequested:
        """The request that a run came from, without its rows. Raises ``UsageError``."""
        with await self.input_of(run, with_rows=False) as sheet:
            if sheet.request is None:
                raise UsageError(f"no run {run!r} was ever asked for here; paidonce run list shows what there is")
            try:
                return RunRequested.model_validate_json(sheet.request).model_copy(update={"rows": None})
            except ValidationError as error:
                raise UsageError(f"the request that run {run!r} came from cannot be read: {faults_of(error, 'request')}") from error

    async def input_of(self, run: str, *, with_rows: bool = True) -> RunSheet:
        """The input lines of a run without the states of its rows; close it."""
        views = Views()
        async for record in self.log.stored([self.log.home(run, "run-events")]):
            if record.key == run.encode():
                views.take("run-events", record.value)
        view = views.get(run)
        sheet = RunSheet(run, refused=0 if view is None else view.refused, with_rows=with_rows)
        async for record in self.log.stored([self.log.home(run, "run-requests")]):
            if record.key == run.encode() and record.value is not None:
                sheet.take_request(record.value)
        return sheet

    async def _asked(self, target: str, request: CellResolved | ReceiptForgotten) -> OperationEvent | None:
        ledger = self.log.home(target, "run-events")
        headers = headers_of(request.type, f"{target}/{request.type}/{request.operation}")
        value = request.model_dump_json().encode()
        with broker_errors(self.log.address):
            async with self.log.consumer([ledger]) as consumer:
                consumer.seek(ledger, (await consumer.end_offsets([ledger]))[ledger])
                await (await self.log.send("operations", target, value, headers))
                deadline = time.monotonic() + ANSWER_SECONDS
                while (left := deadline - time.monotonic()) > 0:
                    fetched = await consumer.getmany(timeout_ms=int(left * 1000))
                    for event in _told(fetched.get(ledger, ())):
                        if event.operation == request.operation:
                            return event
        return None


def _told(records: Iterable[ConsumerRecord]) -> Iterable[OperationEvent]:
    for record in records:
        try:
            yield OperationEvent.model_validate_json(record.value or b"")
        except ValidationError:
            continue  # a run's own event, or anyone's


def is_digest(text: str) -> bool:
    """Whether a text can be the key of a row or a receipt."""
    return len(text) == DIGEST_CHARS and set(text) <= HEX_DIGITS


R = TypeVar("R", CellResolved, ReceiptForgotten)


def _checked(kind: type[R], said: Mapping[str, object]) -> R:
    try:
        return kind.model_validate({**said, "operation": secrets.token_hex(8)})
    except ValidationError as error:
        raise UsageError(faults_of(error, "operation")) from error


def _check_value(value: object) -> None:
    """Raise ``UsageError`` for a value that no worker would take, here, where its place is known."""
    try:
        output = dump_json(value)
    except UncanonicalValue as error:
        raise UsageError(f"value: {error.reason}") from error
    if len(output) > VALUE_BYTES_MAX:
        raise UsageError(f"value: has {len(output):,} bytes; at most {VALUE_BYTES_MAX:,} can be carried")


def _who(given: str | None) -> str:
    return user_name() if given is None else given
