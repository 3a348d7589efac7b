"""Receipts as people see them, folded from the changelog of the ``receipts`` table with a plain reader.

It reads what is committed and changes nothing; what a receipt's state means is said by the engine's own rules.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, cast

import msgspec
from aiokafka import ConsumerRecord, TopicPartition

from schemas.canonical import parse_json
from schemas.states import ASK, RECEIPT, UNKNOWN, VALUE, WAITER, Ask, Attempt, Receipt, StoredValue, Unknown, Waiter
from streams.engine import protocol, unknowns
from streams.engine.protocol import Verdict
from streams.public.publiclog import PublicLog
from streams.settings import Settings

STATES = ("pending", "queued", "running", "completed", "failed", "unknown")
_receipt = msgspec.msgpack.Decoder(Receipt)
_unknown = msgspec.msgpack.Decoder(Unknown)


def state_of(receipt: Receipt) -> str:
    """How a receipt stands, in the words of the specification."""
    stands = protocol.standing(receipt)
    if stands.live:
        return "running"
    if receipt.open:
        return "queued"
    if unknowns.attempt_in_doubt(receipt) is not None:
        return "unknown"
    if receipt.current is not None:
        return "completed"
    return "failed" if stands.verdict is Verdict.FAILED else "pending"


class Line(NamedTuple):
    """One receipt in a list."""

    receipt: str
    state: str
    tool: str
    lane: str
    #: Highest attempt number.
    n: int
    #: The run that asked first.
    run: str
    #: Unix time in milliseconds: since when it is unknown, else when its record last changed.
    since_ms: int


class Detail(msgspec.Struct):
    """All records of one receipt."""

    receipt: Receipt | None = None
    #: Unix time in milliseconds at which the record last changed.
    changed_ms: int = 0
    unknown: Unknown | None = None
    ask: bytes | None = None
    waiters: dict[str, Waiter] = msgspec.field(default_factory=dict)
    values: dict[str, bytes] = msgspec.field(default_factory=dict)


async def lines(settings: Settings, wanted: str | None = None) -> list[Line]:
    """All receipts, or those in one state, oldest first. Raises ``Unreachable`` and ``TopicsError``."""
    found: dict[bytes, Line] = {}
    since: dict[bytes, int] = {}
    async for record in _changelog(settings):
        key = cast(bytes, record.key)
        name = key[1:]
        if key[:1] == UNKNOWN:
            if record.value is None:
                since.pop(name, None)
            else:
                since[name] = _unknown.decode(record.value).since_ms
        elif key[:1] == RECEIPT:
            line = None if record.value is None else _line(name, _receipt.decode(record.value), record.timestamp)
            if line is None or (wanted is not None and line.state != wanted):
                found.pop(name, None)
            else:
                found[name] = line
    listed = [line._replace(since_ms=since.get(name, line.since_ms)) for name, line in found.items()]
    return sorted(listed, key=lambda line: line.since_ms)


async def detail(settings: Settings, receipt: str) -> Detail | None:
    """All that stands of one receipt, ``None`` where there is nothing. Raises ``Unreachable`` and ``TopicsError``."""
    name = receipt.encode()
    found = Detail()
    async for record in _changelog(settings):
        key = cast(bytes, record.key)
        of, _, rest = key[1:].partition(b"\x00")
        if of == name:
            _take(found, key[:1], rest.decode(), record.value, record.timestamp)
    return None if found.receipt is None else found


def _take(found: Detail, prefix: bytes, rest: str, value: bytes | None, at_ms: int) -> None:
    if prefix == RECEIPT:
        found.receipt = None if value is None else _receipt.decode(value)
        found.changed_ms = at_ms
    elif prefix == UNKNOWN:
        found.unknown = None if value is None else _unknown.decode(value)
    elif prefix == ASK:
        found.ask = None if value is None else msgspec.msgpack.decode(value, type=Ask).input
    elif prefix == WAITER:
        found.waiters.pop(rest, None)
        if value is not None:
            found.waiters[rest] = msgspec.msgpack.decode(value, type=Waiter)
    elif prefix == VALUE:
        found.values.pop(rest, None)
        if value is not None:
            found.values[rest] = msgspec.msgpack.decode(value, type=StoredValue).output


def as_json(receipt: str, found: Detail) -> dict[str, Any]:
    """A receipt with its attempts and callers as JSON."""
    record = found.receipt
    assert record is not None
    asked = record.input if record.input is not None else found.ask
    return {
        "receipt": receipt,
        "state": state_of(record),
        "tool": record.tool,
        "lane": record.lane,
        "repeat": None if record.repeat is None else record.repeat.value,
        "input": None if asked is None else parse_json(asked),
        "first_run": record.run,
        "kept_under": record.kept_under or None,
        "changed_ms": found.changed_ms,
        "unknown_since_ms": None if found.unknown is None else found.unknown.since_ms,
        "attempts": [_attempt(n, attempt, record, found) for n, attempt in sorted(record.attempts.items())],
        "current": None if record.current is None else {"epoch": record.current[0], "n": record.current[1]},
        "aside": [{"n": n, "digest": digest} for n, digest in record.aside],
        "callers": [
            {"call": call, "run": waiter.run, "told": waiter.flag.value}
            for call, waiter in sorted((record.waiters | found.waiters).items())
        ],
    }


def _attempt(n: int, attempt: Attempt, record: Receipt, found: Detail) -> dict[str, Any]:
    output = attempt.output if attempt.output is not None else found.values.get(str(n))
    return {
        "n": n,
        "verdict": protocol.verdict(attempt, record.repeat).value,
        "lease": attempt.lease,
        "generation": attempt.generation,
        "epoch": attempt.epoch,
        "operation": attempt.op,
        "batch": attempt.batch or None,
        "fault": None if attempt.fault is None else {"code": attempt.fault.code, "message": attempt.fault.message},
        "output": None if output is None else parse_json(output),
    }


def _line(name: bytes, receipt: Receipt, at_ms: int) -> Line:
    highest = max(receipt.attempts, default=0)
    return Line(name.decode(), state_of(receipt), receipt.tool, receipt.lane, highest, receipt.run, at_ms)


async def _changelog(settings: Settings) -> AsyncIterator[ConsumerRecord]:
    log = PublicLog(settings)
    await log.ready()
    topic = f"{settings.app}-receipts-changelog"
    async for record in log.stored([TopicPartition(topic, number) for number in range(settings.partitions)]):
        if record.key is not None:
            yield record
