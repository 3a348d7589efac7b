"""The ``runs`` agent, and the judgement of what users publish: parsed, validated and compiled once, then written down.

The judgement looks at the providers file of this worker on this day; it becomes an event in the turn record before anything
follows from it, so that a replay need not look again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemas import address, requests
from schemas.canonical import INTEGER_DIGITS_MAX, InvalidJson, UncanonicalValue, canonical, dump_json, parse_json
from schemas.commands import CancelRequested, Misrouted, RowsAppended, RowsSealed, RunRequested
from schemas.envelope import EnvelopeError
from schemas.events import Event
from schemas.providers import Providers
from schemas.requests import CONTRACT_VERSION, PublicRequest
from streams.agents.operations import OPERATIONS, accepted, rejected
from streams.agents.sizes import NAME_CHARS_MAX, brief, excess, play_faults, row_faults
from streams.engine.compile import compile_play
from streams.engine.runs import RunsEngine
from streams.kafka.inbox import Delivery
from streams.turn import AgentSpec

_request: TypeAdapter[PublicRequest] = TypeAdapter(PublicRequest)
_KNOWN = frozenset(("run_requested", "rows_appended", "rows_sealed", "run_cancelled", *OPERATIONS))
PUBLIC_TOPICS = ("operations", "run-requests")


def runs_agent(providers: Providers, partitions: int, partition_check: bool = True) -> AgentSpec:
    """The single writer of runs, partitioned by run id."""

    def judge(delivery: Delivery, partition: int) -> Iterable[Event]:
        return judged(delivery, partition if partition_check else None, partitions, providers)

    return AgentSpec(
        "runs",
        ("operations", "row-progress", "run-requests"),
        RunsEngine(),
        judge,
        public_topics=PUBLIC_TOPICS,
        gather_seconds=0.03,
        gather_events=4,
    )


def judged(
    delivery: Delivery, partition: int | None, partitions: int, providers: Providers, clock: Callable[[], float] = time.time
) -> list[Event]:
    """Events that a public message means; ``clock`` is Unix time.

    Raises ``EnvelopeError`` where it cannot even be told which run it is about, or its type is unknown: it is parked.
    """
    events = _meaning_of(delivery, partition, partitions, providers, clock)
    for event in events:
        fault = excess(event, delivery.value)
        if fault is None:
            continue
        if isinstance(event, RunRequested | RowsAppended):
            return [_refused(event.run, event.digest, [fault])]
        raise EnvelopeError(f"{delivery.topic}: {fault}")
    return events


def _meaning_of(
    delivery: Delivery, partition: int | None, partitions: int, providers: Providers, clock: Callable[[], float]
) -> list[Event]:
    if delivery.value is None:
        raise EnvelopeError(f"{delivery.topic}: a message without a value")
    try:
        data = parse_json(delivery.value)
    except InvalidJson as error:
        return _unreadable(delivery, error)
    about = "receipt" if isinstance(data, dict) and data.get("type") == "receipt_forgotten" else "run"
    run = data.get(about) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(run, str) or not run or "\x00" in run:
        raise EnvelopeError(f"{delivery.topic}: expected a JSON object with the text field '{about}'")
    if len(run) > NAME_CHARS_MAX:
        raise EnvelopeError(f"{delivery.topic}: '{about}' has {len(run):,} characters; at most {NAME_CHARS_MAX:,} can be answered")
    if partition is not None and address.partition_of(run, partitions) != partition:
        return [Misrouted(run, delivery.topic, delivery.value)]
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise EnvelopeError(f"{delivery.topic}: unknown type {kind!r:.80}; known are {', '.join(sorted(_KNOWN))}")
    digest = hashlib.blake2b(delivery.value, digest_size=16).hexdigest()
    contract = data.get("contract", CONTRACT_VERSION)
    if contract != CONTRACT_VERSION:
        fault = f"contract: this worker speaks version {CONTRACT_VERSION}, the request has version {contract!r}"
        return [rejected(data, brief([fault])) if kind in OPERATIONS else _refused(run, digest, [fault])]
    try:
        request = _request.validate_python(data)
    except ValidationError as error:
        faults = list(faults_of(error))
        return [rejected(data, brief(faults)) if kind in OPERATIONS else _refused(run, digest, faults)]
    match request:
        case requests.RunRequested():
            return [_run(request, digest, providers, int(clock()))]
        case requests.RowsAppended():
            return [_rows(request, digest)]
        case requests.RowsSealed():
            return [RowsSealed(run, request.total)]
        case requests.RunCancelled():
            return [CancelRequested(run, request.who)]
        case requests.CellResolved() | requests.ReceiptForgotten():
            return [accepted(request)]


def faults_of(error: ValidationError) -> Iterable[str]:
    """Each fault of a request with the place of its field."""
    for fault in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in fault["loc"] if part not in _KNOWN)
        yield f"{place or 'request'}: {fault['msg']}"


def _run(request: requests.RunRequested, digest: str, providers: Providers, now_seconds: int) -> RunRequested:
    play, faults = compile_play(request.play, providers, request.org, now_seconds)
    rows, unfit = _as_json(request.rows or (), 0)
    faults += unfit
    if play is not None:
        faults += play_faults(play)
    return RunRequested(
        run=request.run,
        org=request.org,
        digest=_meaning(request, digest),
        play=None if faults else play,
        faults=brief(faults),
        rows=() if faults else tuple(rows),
        sealed=request.rows is not None,
        expected=request.expected_rows,
        force=request.force,
        force_tool_refresh=request.force_tool_refresh,
    )


def _as_json(rows: Iterable[dict[str, Any]], first: int) -> tuple[list[bytes], list[str]]:
    """Rows as exact JSON, and the faults of those that cannot be taken, by their positions."""
    texts: list[bytes] = []
    faults: list[str] = []
    for position, row in enumerate(rows, first):
        try:
            texts.append(dump_json(row))
        except UncanonicalValue as error:
            texts.append(b"")
            faults.append(f"row {position}: {error}")
    return texts, faults + row_faults(first, texts)


def _rows(request: requests.RowsAppended, digest: str) -> Event:
    rows, faults = _as_json(request.rows, request.first)
    if faults:
        return _refused(request.run, digest, faults)
    return RowsAppended(request.run, request.first, tuple(rows), _meaning(request, digest))


def _meaning(request: requests.RunRequested | requests.RowsAppended, digest: str) -> str:
    """Two requests are the same when they mean the same, however they were written (case I4); else ``digest``, of their bytes."""
    try:
        # Rows are taken as they are, for speed: pydantic would copy them first.
        meaning: object = request.rows if isinstance(request, requests.RowsAppended) else request.model_dump()
        return hashlib.blake2b(canonical(meaning), digest_size=16).hexdigest()
    except UncanonicalValue:
        return digest


def _refused(run: str, digest: str, faults: list[str]) -> RunRequested:
    return RunRequested(run=run, org="", digest=digest, play=None, faults=brief(faults))


def _unreadable(delivery: Delivery, error: InvalidJson) -> list[Event]:
    """A request that is no JSON is refused under its message key, where that names a run; else it is parked."""
    key = (delivery.key or b"").decode(errors="replace")
    if delivery.topic == "run-requests" and 0 < len(key) <= NAME_CHARS_MAX and "\x00" not in key:
        digest = hashlib.blake2b(delivery.value or b"", digest_size=16).hexdigest()
        return [_refused(key, digest, _uncarried(delivery.value or b"") or [str(error)])]
    raise EnvelopeError(f"{delivery.topic}: {error}")


class _Literal(str):
    """A number as it was written, which JSON cannot carry."""


def _uncarried(value: bytes) -> list[str]:
    """Row and column of every number that is the reason why a request is no JSON (case D3)."""
    try:
        data = json.loads(value, parse_constant=_Literal, parse_int=_whole, parse_float=_fraction)
    except (ValueError, RecursionError):
        return []
    rows = data.get("rows") if isinstance(data, dict) else None
    first = data.get("first") if isinstance(data, dict) else None
    return [
        f"row {index}, {name}: {literal:.40} is no number that JSON can carry"
        for index, row in enumerate(rows if isinstance(rows, list) else (), first if isinstance(first, int) else 0)
        for name, field in (row.items() if isinstance(row, dict) else ())
        for literal in _literals(field)
    ]


def _whole(text: str) -> int | _Literal:
    return int(text) if len(text.lstrip("-")) <= INTEGER_DIGITS_MAX else _Literal(text)


def _fraction(text: str) -> float | _Literal:
    number = float(text)
    return number if math.isfinite(number) else _Literal(text)


def _literals(value: object) -> Iterator[_Literal]:
    match value:
        case _Literal():
            yield value
        case dict():
            for member in value.values():
                yield from _literals(member)
        case list():
            for member in value:
                yield from _literals(member)
