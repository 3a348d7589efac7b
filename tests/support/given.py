"""Short forms of events for tests of the receipt protocol."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from schemas.events import (
    Ambiguous,
    AttemptEnded,
    BatchClaimed,
    CallWithdrawn,
    ClaimedMember,
    Event,
    Failed,
    Fault,
    LeaseExpired,
    LeaseReleased,
    Mode,
    ReceiptResolved,
    Repeat,
    Retry,
    ToolRequested,
    Value,
)
from schemas.states import RECEIPT, Receipt, record_key
from streams.engine.effects import Queued
from streams.engine.port import Outbox
from streams.engine.protocol import Need
from streams.engine.receipts import ReceiptsEngine
from tests.support.memory import Table

R = "r"
FAULT = Fault("refused", "no")


def request(
    call: str = "c1", refresh: str | None = None, mode: Mode = Mode.NORMAL, repeat: Repeat = Repeat.WITH_KEY, run: str = "run"
) -> ToolRequested:
    """A cell asks for the receipt."""
    return ToolRequested(R, call, run, 0, "org/p", "p.t", repeat, b"{}", mode, refresh)


def claim(n: int, lease: str, *, generation: int = 1, epoch: int = 0, op: int = 1) -> BatchClaimed:
    """A claim of attempt ``n``."""
    return BatchClaimed("org/p", "p.t", "", lease, generation, (ClaimedMember(R, n, epoch, op),))


def release(n: int, lease: str) -> LeaseReleased:
    """Nothing was sent under this lease."""
    return LeaseReleased(lease, (ClaimedMember(R, n, 0, 1),))


def expiry(n: int, lease: str) -> LeaseExpired:
    """The lease was judged expired."""
    return LeaseExpired(lease, (ClaimedMember(R, n, 0, 1),))


def value(n: int, text: str = '"v"', *, epoch: int = 0, lease: str = "L") -> AttemptEnded:
    """The provider's answer for attempt ``n``."""
    return AttemptEnded(R, n, epoch, lease, Value(text.encode()))


def failed(n: int, *, epoch: int = 0) -> AttemptEnded:
    """A definite refusal."""
    return AttemptEnded(R, n, epoch, "L", Failed(FAULT))


def retry(n: int, *, epoch: int = 0, not_before_ms: int = 0) -> AttemptEnded:
    """Not billed, to be tried again."""
    return AttemptEnded(R, n, epoch, "L", Retry(FAULT, not_before_ms))


def ambiguous(n: int, *, epoch: int = 0, used_up: bool = False) -> AttemptEnded:
    """The answer is lost."""
    return AttemptEnded(R, n, epoch, "L", Ambiguous(FAULT, 0, used_up))


def resolved(n: int, output: bytes | None = None) -> ReceiptResolved:
    """A person's word about attempt ``n``."""
    return ReceiptResolved(R, n, 0, output, "somebody")


def withdrawn(call: str = "c1") -> CallWithdrawn:
    """The cell no longer waits."""
    return CallWithdrawn(R, call)


def receipts() -> Table:
    """An empty partition of the receipts table, of generation 1."""
    return Table(ReceiptsEngine())


def state(table: Table) -> Receipt:
    """The receipt's record."""
    from streams.table import WorkingSet

    receipt = WorkingSet(table.reader).get(record_key(RECEIPT, R), Receipt)
    assert receipt is not None
    return receipt


S = TypeVar("S")


def decoded(raw: bytes, kind: type[S]) -> S:
    """A record as the table keeps it."""
    return msgspec.msgpack.decode(raw, type=kind)


def needs(outbox: Outbox) -> list[Need]:
    """The attempts that the lanes are told to claim."""
    return [effect.need for effect in outbox.effects if isinstance(effect, Queued)]


TOPIC_OF: dict[type[Event], str] = {
    ToolRequested: "tool-requests",
    CallWithdrawn: "tool-requests",
    BatchClaimed: "receipt-claims",
    LeaseReleased: "receipt-claims",
    LeaseExpired: "receipt-claims",
    AttemptEnded: "receipt-completions",
    ReceiptResolved: "receipt-completions",
}
