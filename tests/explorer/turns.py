"""Turns of the real receipts engine over a table in memory, each computed once."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from schemas.commands import LeaseJudgedExpired
from schemas.events import (
    AttemptEnded,
    BatchClaimed,
    CallsAnswered,
    CallWithdrawn,
    Event,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    ReceiptResolved,
    ToolRequested,
)
from schemas.states import RECEIPT, Flag, Receipt, record_key
from streams.engine.port import Context, Effect, Engine, Outbox
from streams.table import WorkingSet
from tests.explorer.model import EMPTY, EVENTS, TABLES, R
from tests.support.memory import DictReader

RECEIPT_KEY = record_key(RECEIPT, R)
_decoder = msgspec.msgpack.Decoder(Receipt)


class Turned(NamedTuple):
    """What a turn leaves behind."""

    table: int
    #: Events for ``receipt-claims``.
    claims: tuple[int, ...]
    #: Call, answer and attempt.
    answers: tuple[tuple[str, str, int], ...]
    effects: tuple[Effect, ...]


class Turns:
    """The engine, driven by table, events and generation alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turned: dict[tuple[int, tuple[int, ...], int], Turned] = {}
        self._digests: dict[int, object] = {}
        self._folds: dict[tuple[tuple[int, ...], ...], object] = {}

    def turn(self, table: int, events: tuple[int, ...], generation: int) -> Turned:
        """Fold events in one turn of the owner of that generation."""
        key = (table, events, generation)
        turned = self._turned.get(key)
        if turned is None:
            turned = self._turned[key] = self._taken(table, events, generation)
        return turned

    def _taken(self, table: int, events: tuple[int, ...], generation: int) -> Turned:
        reader = DictReader()
        reader.data.update(TABLES[table])
        records, outbox = WorkingSet(reader), Outbox()
        self._engine.turn(records, [EVENTS[number] for number in events], outbox, Context(0, 1, generation, 0))
        for name, value in (records.changes() | records.local_changes()).items():
            if value is None:
                reader.data.pop(name, None)
            else:
                reader.data[name] = value
        answers = []
        for event in outbox.events.get(("tool-results", 0), ()):
            assert isinstance(event, CallsAnswered)
            answers += [(call, event.answer.value, event.n) for call, _ in event.calls]
        claims = tuple(EVENTS.of(event) for event in outbox.events.get(("receipt-claims", 0), ()))
        return Turned(TABLES.of(tuple(sorted(reader.data.items()))), claims, tuple(answers), tuple(outbox.effects))

    def digest(self, table: int) -> object:
        """The receipt's record as far as it is a fold of the topics: without told flags and late marks."""
        found = self._digests.get(table)
        if found is None:
            receipt = receipt_of(table)
            waiters = sorted(
                (call, waiter.value_epoch, waiter.outcome_epoch, waiter.flag is Flag.WITHDRAWN)
                for call, waiter in receipt.waiters.items()
            )
            attempts = sorted((n, msgspec.msgpack.encode(attempt)) for n, attempt in receipt.attempts.items())
            found = tuple(waiters), tuple(receipt.refreshes), tuple(attempts), receipt.current, tuple(receipt.aside)
            self._digests[table] = found
        return found

    def folded(self, requests: tuple[int, ...], claims: tuple[int, ...], completions: tuple[int, ...]) -> object:
        """The digest of the same events, folded topic by topic in one turn."""
        key = (requests, claims, completions)
        found = self._folds.get(key)
        if found is None:
            turned = self.turn(EMPTY, requests + claims + completions, 1) if requests or claims or completions else None
            found = self._folds[key] = self.digest(EMPTY if turned is None else turned.table)
        return found


_receipts: dict[int, Receipt] = {}


def receipt_of(table: int) -> Receipt:
    """The receipt's record; not to be changed."""
    found = _receipts.get(table)
    if found is None:
        raw = dict(TABLES[table]).get(RECEIPT_KEY)
        found = _receipts[table] = Receipt() if raw is None else _decoder.decode(raw)
    return found


def words(event: Event) -> str:
    """An event for a person."""
    match event:
        case ToolRequested():
            return f"request({event.call}, {event.mode.name.lower()}{'' if event.refresh is None else ', ' + event.refresh})"
        case CallWithdrawn():
            return f"withdraw({event.call})"
        case BatchClaimed():
            (member,) = event.members
            return f"claim(n={member.n}, {event.lease}, generation {event.generation}, epoch {member.epoch}, op {member.op})"
        case LeaseReleased():
            return f"release(n={event.members[0].n}, {event.lease})"
        case LeaseExpired():
            return f"expiry(n={event.members[0].n}, {event.lease})"
        case AttemptEnded():
            return f"{type(event.outcome).__name__.lower()}(n={event.n})"
        case ReceiptResolved():
            return f"resolution(n={event.n}, {'unpaid' if event.output is None else 'paid'})"
        case LeaseJudgedExpired():
            return f"its judgement of {event.lease}"
        case LeasesRenewed():
            return f"renewal({event.leases[0]})"
        case _:
            return type(event).__name__
