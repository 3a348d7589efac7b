"""The time line of one cell, read off the topics with a plain reader: what was asked, claimed, called, answered and resolved.

For ``paidonce cell show``. It follows the call to its receipt and the receipt to its attempts; it reads, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition
from pydantic import ValidationError

from schemas import envelope
from schemas.address import spread
from schemas.canonical import parse_json
from schemas.events import (
    Ambiguous,
    AttemptEnded,
    BatchClaimed,
    CallsAnswered,
    CallWithdrawn,
    Event,
    Failed,
    LeaseExpired,
    LeaseReleased,
    ReceiptForgotten,
    ReceiptResolved,
    Retry,
    ToolRequested,
    Value,
)
from schemas.progress import MapRow
from schemas.requests import RunRequested
from streams.engine.cells import CALLS_MAX, call_of
from streams.engine.compile import lane_of
from streams.errors import UsageError
from streams.public.publiclog import PublicLog
from streams.public.submission import faults_of

#: Longest text of a value in a time line; the receipt has all of it.
SHOWN_MAX = 200


@dataclass(frozen=True)
class Step:
    """One thing that happened; ``at_ms`` is Unix time as the broker has it."""

    at_ms: int
    what: str
    details: str
    receipt: str = ""
    n: int = 0


@dataclass
class History:
    """What is known of a cell, and its time line."""

    run: str
    row: str
    column: str
    tool: str
    lane: str
    status: str = ""
    receipts: list[str] = field(default_factory=list)
    input: Any = None
    cell: dict[str, Any] | None = None
    #: Other calls that share its receipts.
    shared_with: int = 0
    steps: list[Step] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """What is known, by name; without the time line."""
        names = ("run", "row", "column", "tool", "lane", "status", "receipts", "input", "cell", "shared_with")
        return {name: value for name in names if (value := getattr(self, name)) not in ("", None, [])}

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        steps = [vars(step) for step in self.steps]
        return {**self.facts(), "status": self.status, "steps": steps}


async def history(log: PublicLog, partitions: int, request: RunRequested, row: str, column: str) -> History:
    """The time line of a cell of the run that was requested. Raises ``UsageError`` for a column that it does not compute."""
    found = next((one for one in request.play.columns if one.name == column), None)
    if found is None:
        names = ", ".join(one.name for one in request.play.columns)
        raise UsageError(f"run {request.run!r} computes no column {column!r}; it has {names}")
    lane = lane_of(request.org, found.tool_name.partition(".")[0])
    cell = History(request.run, row, column, found.tool_name, lane)
    calls = {call_of(request.run, row, column, number) for number in range(CALLS_MAX)}
    here, home = spread(lane, partitions), spread(row, partitions)
    await _requests(log, here, cell, calls)
    wanted = set(cell.receipts)
    for topic in ("receipt-claims", "receipt-completions", "lane-control"):
        async for at_ms, event in _events(log, topic, here, cell):
            cell.steps += _of_receipts(at_ms, event, wanted)
    async for at_ms, event in _events(log, "tool-results", home, cell):
        if isinstance(event, CallsAnswered) and event.receipt in wanted:
            cell.steps += [_answered(at_ms, event, call, mark.value) for call, mark in event.calls if call in calls]
    await _sheet(log, home, cell, f"{request.org}/{request.play.dataset_name}/{row}".encode())
    cell.steps.sort(key=lambda step: step.at_ms)
    return cell


async def _requests(log: PublicLog, partition: int, cell: History, calls: set[str]) -> None:
    others: dict[str, int] = {}
    async for at_ms, event in _events(log, "tool-requests", partition, cell):
        if isinstance(event, ToolRequested) and event.call in calls:
            cell.receipts += [name for name in (event.receipt, event.kept_under) if name and name not in cell.receipts]
            cell.input = parse_json(event.input)
            force = f", {event.mode.name.lower()}" if event.refresh is not None else ""
            cell.steps.append(Step(at_ms, "asked", f"{event.tool}, may be repeated: {event.repeat.value}{force}", event.receipt))
        elif isinstance(event, CallWithdrawn) and event.call in calls:
            cell.steps.append(Step(at_ms, "withdrawn", "the cell no longer waits", event.receipt))
        elif isinstance(event, ToolRequested):
            shared = event.kept_under or event.receipt
            others[shared] = others.get(shared, 0) + 1
    cell.shared_with = sum(others.get(receipt, 0) for receipt in cell.receipts)


def _of_receipts(at_ms: int, event: Event, wanted: set[str]) -> list[Step]:
    match event:
        case BatchClaimed():
            batch = f", batch {event.batch} of {len(event.payload or event.members)}" if event.batch else ""
            return [
                Step(
                    at_ms,
                    "claimed",
                    f"attempt {member.n}, operation {member.op}, lease {event.lease}, owner generation {event.generation}{batch}",
                    member.receipt,
                    member.n,
                )
                for member in event.members
                if member.receipt in wanted
            ]
        case LeaseReleased() | LeaseExpired():
            what = "released: nothing was sent" if isinstance(event, LeaseReleased) else "expired: nobody renewed the lease"
            return [
                Step(at_ms, what.partition(":")[0], f"attempt {member.n}, lease {event.lease}: {what}", member.receipt, member.n)
                for member in event.members
                if member.receipt in wanted
            ]
        case AttemptEnded() if event.receipt in wanted:
            return [Step(at_ms, *_ended(event), event.receipt, event.n)]
        case ReceiptResolved() if event.receipt in wanted:
            how = "unpaid" if event.output is None else f"paid: {_short(event.output)}"
            return [Step(at_ms, "resolved", f"attempt {event.n}, by {event.who} ({event.why}), {how}", event.receipt, event.n)]
        case ReceiptForgotten() if event.receipt in wanted:
            return [Step(at_ms, "to be forgotten", f"by {event.who} ({event.why})", event.receipt)]
    return []


def _ended(event: AttemptEnded) -> tuple[str, str]:
    head = f"attempt {event.n}, lease {event.lease}"
    match event.outcome:
        case Value(output=output):
            return "completed", f"{head}: {_short(output)}"
        case Failed(fault=fault):
            return "failed", f"{head}: {fault.code}: {fault.message}"
        case Retry(fault=fault):
            return "to be tried again", f"{head}: {fault.code}: {fault.message}"
        case Ambiguous(fault=fault):
            return "answer lost", f"{head}: {fault.code}: {fault.message}"


def _answered(at_ms: int, event: CallsAnswered, call: str, mark: str) -> Step:
    why = "" if event.fault is None else f": {event.fault.code}: {event.fault.message}"
    return Step(at_ms, "told", f"{event.answer.value} ({mark}), from attempt {event.n}{why}", event.receipt, event.n)


async def _sheet(log: PublicLog, partition: int, cell: History, key: bytes) -> None:
    newest = None
    async for record in log.stored([_of(log, "map-rows", partition)]):
        if record.key == key:
            newest = record
    if newest is not None and newest.value is not None:
        try:
            read = MapRow.model_validate_json(newest.value)
        except ValidationError as error:
            cell.steps.append(_unreadable(newest, f"is no state of a row: {faults_of(error, 'map-rows')}"))
            return
        found = read.cells.get(cell.column)
        cell.cell = None if found is None else found.model_dump(exclude_none=True)
        cell.status = "" if found is None else found.status


async def _events(log: PublicLog, topic: str, partition: int, cell: History) -> AsyncIterator[tuple[int, Event]]:
    async for record in log.stored([_of(log, topic, partition)]):
        try:
            events, unread = envelope.unpack(topic, record.value, record.headers), {}
        except envelope.EnvelopeError as error:
            events, unread = [], {0: str(error)}
            with contextlib.suppress(envelope.EnvelopeError):
                events, unread = envelope.unpack_partly(topic, record.value, record.headers)
        if unread:
            why = "; ".join(dict.fromkeys(unread.values()))
            cell.steps.append(_unreadable(record, f"is with the dead letters for what no worker has folded: {why}"))
        for event in events:
            yield record.timestamp, event


def _unreadable(record: ConsumerRecord, why: str) -> Step:
    return Step(record.timestamp, "unreadable", f"the message {record.topic}/{record.partition}@{record.offset} {why}")


def _of(log: PublicLog, topic: str, partition: int) -> TopicPartition:
    return log.all(topic)[partition]


def _short(output: bytes) -> str:
    text = output.decode()
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(output):,} bytes)"
