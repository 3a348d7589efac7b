"""What the tables hold: records under one-byte prefixes, newest value wins.

Records are changed only by the pure engines and written only by the turn. Keys are ``prefix + parts joined by NUL``; no part
may contain NUL.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from schemas.beside import DUPLICATES, LAST_ANSWER, DuplicateLines, LastAnswer
from schemas.counts import Hold as Hold
from schemas.counts import RunRetries as RunRetries
from schemas.events import AddedRow, CallCounts, CompiledPlay, Fault, Mark, Repeat, RetryBudget, RowCounts
from schemas.waiting import UnknownCell as UnknownCell
from schemas.waiting import WaitingRows as WaitingRows


def record_key(prefix: bytes, *parts: str) -> bytes:
    """Key of a record: its prefix and the NUL-joined parts."""
    return prefix + "\x00".join(parts).encode()


class Record(msgspec.Struct, array_like=True):
    """Base of all table records."""


# --- receipts -----------------------------------------------------------------------------------------------


class Flag(enum.StrEnum):
    """What a waiter was told so far (protocol.md)."""

    OPEN = "open"
    UNKNOWN = "unknown"
    FAILED = "failed"
    DONE = "done"
    WITHDRAWN = "withdrawn"


class Waiter(msgspec.Struct, array_like=True):
    """One call that wants this receipt: the epochs it needs, and what it was told."""

    run: str
    destination: int
    #: Epoch wanted of a value, and epoch wanted of any outcome.
    value_epoch: int = 0
    outcome_epoch: int = 0
    flag: Flag = Flag.OPEN
    #: The receipt had an outcome when this call first asked, so that what it gets is reused.
    late: bool = False
    #: What its run may spend on repeats on this lane.
    retries: RetryBudget | None = None


class Out(enum.StrEnum):
    """The end of an attempt, as far as the log knows."""

    AMBIGUOUS = "ambiguous"
    FAILED = "failed"
    RETRY = "retry"
    UNPAID = "unpaid"
    VALUE = "value"


class Attempt(msgspec.Struct, array_like=True):
    """One claim of a receipt and how it ended; an ``out`` may be known before its claim."""

    lease: str | None = None
    generation: int = 0
    epoch: int = 0
    op: int = 0
    batch: str = ""
    released: bool = False
    expired: bool = False
    out: Out | None = None
    fault: Fault | None = None
    not_before_ms: int = 0
    used_up: bool = False
    #: Digest of the value, and the value itself where it is small; a larger one is a record of its own.
    value: str | None = None
    output: bytes | None = None
    #: The provider's name of the job that does the work (P10): asking for it is free, so it may be asked for again.
    job: str | None = None
    #: Not repeated, because this budget of the run that would have paid was spent (P2).
    given_up: RetryBudget | None = None


class Receipt(Record):
    """A receipt: what is asked, by whom, and how it stands."""

    #: Somebody waits, or a call may be under way: the receipt stands in the index of open ones. First, so that recovery can read it
    #: off the encoded record.
    open: bool = False
    refreshes: list[str] = msgspec.field(default_factory=list)
    waiters: dict[str, Waiter] = msgspec.field(default_factory=dict)
    #: Waiters beyond the inline limit live in records of their own; this counts those not yet done.
    overflow: int = 0
    attempts: dict[int, Attempt] = msgspec.field(default_factory=dict)
    #: Epoch and attempt of the value that counts.
    current: tuple[int, int] | None = None
    #: Values that are not the first of their attempt: attempt and digest (salvage, S5).
    aside: list[tuple[int, str]] = msgspec.field(default_factory=list)
    #: What is asked; unknown until the first request was folded. A large input is a record of its own.
    repeat: Repeat | None = None
    lane: str = ""
    tool: str = ""
    run: str = ""
    input: bytes | None = None
    #: Only receipts with the same text here may share a call (B4).
    bucket: str = ""
    #: The receipt that keeps the first value, where this one is one call's own (Y2).
    kept_under: str = ""
    #: Who pays for the next attempt, or the one under way, where it is a repeat. The owner's bookkeeping: no part of the digest.
    retry: Hold | None = None


class Ask(Record):
    """A tool's input that is too large to be rewritten with its receipt."""

    input: bytes


class OpenReceipt(Record):
    """Entry of the index of open receipts. It follows from the receipts alone, so it is kept locally and not on the changelog."""


class Followers(Record):
    """Calls that met a live call of another run in one turn, under the receipt, that turn's moment, and their own wait (R4)."""

    tool: str
    calls: list[str]


class StoredValue(Record):
    """A provider's answer as exact JSON."""

    output: bytes


class Unknown(Record):
    """Entry of the index of receipts whose outcome is unknown: the attempt in doubt, and since when (Unix time, milliseconds)."""

    n: int
    epoch: int
    op: int
    tool: str
    lane: str
    since_ms: int


class ClosedRun(Record):
    """A run that has ended, and when its end was heard of (Unix time, milliseconds)."""

    at_ms: int


class Answered(Record):
    """Entry of the index by time: receipts whose callers were answered in one turn, for the sweep to look at when they are old."""

    receipts: tuple[str, ...]


class Batch(Record):
    """A provider call: its tool and its members in payload order, so that it can be repeated as it was (K6)."""

    tool: str
    lane: str
    #: Receipt, epoch and operation of each member.
    members: tuple[tuple[str, int, int], ...]


# --- rows ---------------------------------------------------------------------------------------------------


class CellStatus(enum.StrEnum):
    """State of one cell (M14)."""

    RUNNING = "running"
    COMPLETED = "completed"
    CACHED = "cached"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


class Cell(msgspec.Struct, array_like=True):
    """One computed cell: its status, its value as exact JSON, and where it came from."""

    status: CellStatus
    value: bytes | None = None
    receipt: str | None = None
    fault: Fault | None = None
    mark: Mark | None = None
    run: str = ""


class RowStatus(enum.StrEnum):
    """State of a row in a run or in the sheet."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


class Task(Record):
    """A row being computed by one run."""

    row: AddedRow
    cells: dict[str, Cell]
    #: Index of the column being computed.
    column: int = 0
    status: RowStatus = RowStatus.OPEN
    #: Positions of later input lines with the same row key (M5).
    duplicates: tuple[int, ...] = ()
    reused: bool = False
    #: Number of the call that the column being computed waits for: 0, and one more for each time that it asked again.
    refreshed: int = 0
    #: The column being computed asks again after a repairable failure of an earlier run (R5).
    again: bool = False
    #: Auth scopes under which columns asked that are not the run's own, by the columns' places (P4).
    moved: dict[int, str] = msgspec.field(default_factory=dict)


class SheetRow(Record):
    """The newest state of a row of a dataset, shared by all runs on it."""

    position: int
    fields: bytes
    cells: dict[str, Cell]
    status: RowStatus
    run: str
    revision: str


class RunShare(Record):
    """What one rows partition knows of one run."""

    org: str = ""
    play: CompiledPlay | None = None
    force: bool = False
    force_tool_refresh: bool = False
    rows: RowCounts = RowCounts()
    calls: CallCounts = CallCounts()
    sequence: int = 0
    published_ms: int = 0
    dirty: bool = False
    cancelled: bool = False
    closing: bool = False
    closed: bool = False
    samples: tuple[tuple[int, str, str], ...] = ()
    #: Rows that were admitted and are not settled, and their bytes (G5).
    open_rows: int = 0
    open_bytes: int = 0
    #: Numbers of the chunks that wait: the first, and the one behind the last.
    waiting_first: int = 0
    waiting_next: int = 0
    #: ``published_ms`` as it was when the rows of the run, which had ended, were last looked through for what may be dropped.
    swept_ms: int = 0


# --- runs ---------------------------------------------------------------------------------------------------


class RunStatus(enum.StrEnum):
    """Life of a run."""

    RUNNING = "running"
    CLOSING = "closing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Share(msgspec.Struct, array_like=True):
    """What ``runs`` sent to one partition and heard back from it."""

    sent: int = 0
    sequence: int = -1
    rows: RowCounts = RowCounts()
    calls: CallCounts = CallCounts()
    final: bool = False
    samples: tuple[tuple[int, str, str], ...] = ()


class Run(Record):
    """One run: what was asked, what was sent down, what came back."""

    digest: str
    org: str
    play: CompiledPlay
    status: RunStatus
    total: int
    sealed: bool
    shares: dict[int, Share]
    started_ms: int
    force: bool = False
    force_tool_refresh: bool = False
    ended_ms: int = 0
    cancel_requested: bool = False
    published_ms: int = 0
    dirty: bool = False
    #: Digests of appended chunks by first position, so that a chunk that comes twice adds nothing.
    chunks: dict[int, tuple[int, str]] = msgspec.field(default_factory=dict)
    expected: int | None = None
    #: Sequence of the run's ledger entries.
    ledger: int = 0
    #: Repeats of provider calls made for it, by lane.
    retries: dict[str, int] = msgspec.field(default_factory=dict)


# --- turns --------------------------------------------------------------------------------------------------


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive messages of one topic that a turn folded, in fold order: first and last offset."""

    topic: str
    first: int
    last: int


class TurnRecord(Record):
    """What a turn folded, and by which owner: the source of exactly-once folding and of replay (docs/design.md)."""

    turn: int = 0
    generation: int = 0
    owner: str = ""
    at_ms: int = 0
    #: Next offset to fold, by topic.
    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    #: Judgements taken in this turn, in order, so that a replay need not take them again.
    judged: tuple[bytes, ...] = ()
    #: Ends of recovery, timers and pages: turns with nothing to read.
    occasion: str = "messages"


TURN_KEY: Final = b"t"
RECEIPT: Final = b"s"
ASK: Final = b"i"
WAITER: Final = b"w"
OPEN: Final = b"o"
VALUE: Final = b"v"
BATCH: Final = b"b"
UNKNOWN: Final = b"u"
CLOSED: Final = b"x"
ANSWERED: Final = b"g"
FOLLOWERS: Final = b"f"
RETRIES: Final = b"y"
TASK: Final = b"k"
UNKNOWN_CELL: Final = b"d"
SHEET: Final = b"h"
SHARE: Final = b"c"
WAITING: Final = b"q"
RUN: Final = b"r"

_OPEN_ENTRY: Final = msgspec.msgpack.encode(OpenReceipt())
_TRUE: Final = 0xC3


def local_record(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None] | None:
    """The local record that follows from a record of the changelog, ``None`` where none does."""
    if key[:1] != RECEIPT:
        return None
    # An encoded receipt is an array of fewer than sixteen elements, the first of which is ``open``.
    is_open = value is not None and value[1] == _TRUE
    return OPEN + key[1:], _OPEN_ENTRY if is_open else None


RECORD_TYPES: Final[dict[bytes, type[msgspec.Struct]]] = {
    TURN_KEY: TurnRecord,
    RECEIPT: Receipt,
    ASK: Ask,
    WAITER: Waiter,
    OPEN: OpenReceipt,
    VALUE: StoredValue,
    BATCH: Batch,
    UNKNOWN: Unknown,
    CLOSED: ClosedRun,
    ANSWERED: Answered,
    LAST_ANSWER: LastAnswer,
    FOLLOWERS: Followers,
    RETRIES: RunRetries,
    TASK: Task,
    DUPLICATES: DuplicateLines,
    UNKNOWN_CELL: UnknownCell,
    SHEET: SheetRow,
    SHARE: RunShare,
    WAITING: WaitingRows,
    RUN: Run,
}
