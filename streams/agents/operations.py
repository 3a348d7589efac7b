"""The judgement of operations on cells and receipts: read once, written down as commands of the ``runs`` agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.canonical import UncanonicalValue, dump_json
from schemas.commands import ForgettingRequested, ResolutionRequested
from schemas.envelope import EVENT_BYTES_MAX
from schemas.requests import CellResolved, ReceiptForgotten

#: Types of requests that are answered by an operation's event, never by a run's.
OPERATIONS = frozenset(("cell_resolved", "receipt_forgotten"))
#: A value travels in one event, with its names.
VALUE_BYTES_MAX = EVENT_BYTES_MAX - (64 << 10)

Judged = ResolutionRequested | ForgettingRequested


def accepted(request: CellResolved | ReceiptForgotten) -> Judged:
    """The command that a valid request means; a value that cannot be carried is a fault of it."""
    if isinstance(request, ReceiptForgotten):
        return ForgettingRequested(request.receipt, request.lane, request.who, request.reason, request.operation)
    output: bytes | None = None
    faults: list[str] = []
    if request.outcome == "paid":
        try:
            output = dump_json(request.value)
        except UncanonicalValue as error:
            faults.append(f"value: {error}")
        if output is not None and len(output) > VALUE_BYTES_MAX:
            faults.append(f"value: has {len(output):,} bytes; at most {VALUE_BYTES_MAX:,} can be carried")
            output = None
    return ResolutionRequested(
        request.run, request.row, request.column, output, request.who, request.reason, request.operation, tuple(faults)
    )


def rejected(data: Mapping[str, Any], faults: Sequence[str]) -> Judged:
    """The command that a request with faults becomes: it is answered, and changes nothing."""
    operation = _text(data, "operation")
    if data.get("type") == "receipt_forgotten":
        return ForgettingRequested(_text(data, "receipt"), "", operation=operation, faults=tuple(faults))
    return ResolutionRequested(
        _text(data, "run"), _text(data, "row"), _text(data, "column"), None, operation=operation, faults=tuple(faults)
    )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value[:200] if isinstance(value, str) else ""
