"""Internal events, by the topic they travel on.

Each event is a fact or a wish that one agent hands to another through Kafka. They are never edited: a changed meaning is a
new event type or a new version of the topic's schema (see ``envelope``). This module holds no behaviour.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from schemas.counts import CallCounts as CallCounts
from schemas.counts import RetryBudget as RetryBudget
from schemas.counts import RowCounts as RowCounts
from schemas.outcomes import Ambiguous as Ambiguous
from schemas.outcomes import Failed as Failed
from schemas.outcomes import Fault as Fault
from schemas.outcomes import Outcome as Outcome
from schemas.outcomes import Retry as Retry
from schemas.outcomes import Value as Value


class Repeat(enum.StrEnum):
    """How a tool may be called again after an ambiguous end (U1)."""

    NEVER = "never"
    WITH_KEY = "with-key"
    FREELY = "freely"


class Mode(enum.IntEnum):
    """How much of what is already known a request accepts (R2); a stronger mode has a larger number."""

    NORMAL = 0
    FAILED_REFRESH = 1
    FULL_REFRESH = 2


class Event(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Base of all internal events: on the wire an array whose first element is the type's name."""


# --- row-work and row-control: runs -> rows -----------------------------------------------------------------


class CompiledColumn(msgspec.Struct, array_like=True, frozen=True):
    """One column of a play with everything that ``rows`` needs to ask for its cells."""

    name: str
    tool: str
    lane: str
    version: str
    scope: str
    repeat: Repeat
    #: Canonical JSON of the input template; strings in it may hold ``{{ row.field }}``.
    template: str
    #: Fields that must be present and not empty, or the cell is skipped.
    needs: tuple[str, ...] = ()
    #: Path into the output that becomes the cell's value, or, as a JSON object, what `streams.engine.getters` makes of it;
    #: ``None`` for all of it.
    extract: str | None = None
    #: Name of the play's dataset where receipts are private to it, ``None`` where they are shared.
    private_to: str | None = None
    #: Index of the staleness window that the run was accepted in; ``None`` where results never expire (K4).
    window: int | None = None
    #: Nothing is reused: each cell's call has a receipt of its own (P7, K8).
    fresh: bool = False
    #: Path into the input whose value tells which requests may share a call; ``None``: all may (B4).
    bucket: str | None = None
    #: Requests that the tool's provider takes at a time; 0: not known.
    calls: int = 0
    #: A miss has no owner: each cell's call has a receipt of its own, and the first value is kept for later requests (Y2).
    completed_cache: bool = False
    #: How long its requests follow another run's call; ``None``: as long as its tool, else the worker's setting says (R4).
    receipt_wait_ms: int | None = None
    #: How many repeats of calls on this lane the run pays for; ``None``: any number.
    retries: RetryBudget | None = None


class CompiledPlay(msgspec.Struct, array_like=True, frozen=True):
    """A validated play, bound to the providers' definitions that were valid when its run was accepted."""

    name: str
    dataset: str
    revision: str
    key_columns: tuple[str, ...]
    columns: tuple[CompiledColumn, ...]


class RunOpened(Event, frozen=True):
    """A run begins on this partition; always ahead of its rows in the same topic."""

    run: str
    org: str
    play: CompiledPlay
    force: bool = False
    force_tool_refresh: bool = False


class AddedRow(msgspec.Struct, array_like=True, frozen=True):
    """One input line: its position in the run's input, its row key and its fields as exact JSON."""

    position: int
    key: str
    fields: bytes


class RowsAdded(Event, frozen=True):
    """Input lines of a run whose row keys live on this partition."""

    run: str
    rows: tuple[AddedRow, ...]


class RunCancelled(Event, frozen=True):
    """Nothing new may be asked for by this run."""

    run: str


class RunClosing(Event, frozen=True):
    """All rows are accounted for: send the final counters and accept nothing more."""

    run: str


class CellResolved(Event, frozen=True):
    """A person says what became of a cell whose outcome is unknown (U3): as paid with the tool's output, or as unpaid."""

    run: str
    row: str
    column: str
    #: Exact JSON, or ``None`` where nothing was paid.
    output: bytes | None
    who: str = ""
    why: str = ""
    #: Chosen by the person's program, and repeated in what is told of this operation.
    operation: str = ""


# --- tool-requests: rows -> receipts ------------------------------------------------------------------------


class ToolRequested(Event, frozen=True):
    """One cell asks for one receipt (R1)."""

    receipt: str
    call: str
    run: str
    #: Partition of ``tool-results`` that gets the answer.
    destination: int
    lane: str
    tool: str
    repeat: Repeat
    input: bytes
    mode: Mode = Mode.NORMAL
    refresh: str | None = None
    #: Only requests with the same text here may share a call (B4). Behind the key it names the tool's version and whose account
    #: is asked, as the run was accepted; no worker calls for it under others (``engine.scopes``).
    bucket: str = ""
    #: It follows from an answer on the same lane, so that others like it come at the same moment (B1).
    continues: bool = False
    #: The receipt that keeps the first value for later requests, where this one asks under a receipt of its own (Y2).
    kept_under: str = ""
    #: Its column's own wait for a call of another run (R4).
    receipt_wait_ms: int | None = None
    #: What its run may spend on repeats of calls on this lane.
    retries: RetryBudget | None = None


class CallWithdrawn(Event, frozen=True):
    """The cell no longer waits for this receipt."""

    receipt: str
    call: str


# --- lane-control: runs -> receipts -------------------------------------------------------------------------


class RunClosed(Event, frozen=True):
    """A run has ended: no call is made on its behalf any more, and its callers may be forgotten after a while."""

    run: str


class ReceiptForgotten(Event, frozen=True):
    """A person wants a receipt to be dropped, so that the next request pays for it again."""

    receipt: str
    who: str = ""
    why: str = ""
    operation: str = ""


# --- receipt-claims: dispatcher and receipts -> receipts -----------------------------------------------------


class ClaimedMember(msgspec.Struct, array_like=True, frozen=True):
    """One receipt in a claim: attempt number, the epoch it serves and its operation (protocol.md)."""

    receipt: str
    n: int
    epoch: int
    op: int


class BatchClaimed(Event, frozen=True):
    """The dispatcher wants to make one provider call for these receipts under one lease."""

    lane: str
    tool: str
    batch: str
    #: A claim without one is no claim: it is parked with the dead letters (R1).
    lease: Annotated[str, msgspec.Meta(min_length=1)]
    generation: int
    members: tuple[ClaimedMember, ...]
    #: The batch in payload order. It differs from ``members`` only for a repeated batch of which a part has settled.
    payload: tuple[ClaimedMember, ...] = ()
    #: The job of an earlier attempt that this one will ask for; it submits nothing (P10).
    job: str | None = None


class LeaseReleased(Event, frozen=True):
    """The owner gives attempts back: nothing was sent under this lease for these members."""

    lease: str
    members: tuple[ClaimedMember, ...]


class LeaseExpired(Event, frozen=True):
    """The partition's owner judged that nobody renews this lease any more."""

    lease: str
    members: tuple[ClaimedMember, ...]
    #: When those that may be repeated are (Unix time, milliseconds), and receipts whose budget of repeats is spent (P2): as in
    #: ``Ambiguous``.
    not_before_ms: int = 0
    used_up: tuple[str, ...] = ()


class JobStarted(Event, frozen=True):
    """The provider took the work of an attempt as a job, which can be asked for its state any number of times (P10).

    Published before the first such question, so that whoever comes next asks on, and submits nothing again.
    """

    receipt: str
    n: int
    lease: str
    job: str


class Probed(Event, frozen=True):
    """A mark its writer reads back to know that it has folded all that came before it; changes nothing."""

    probe: str


# --- lease-heartbeats ---------------------------------------------------------------------------------------


class LeasesRenewed(Event, frozen=True):
    """The calls under these leases are alive."""

    leases: tuple[str, ...]


# --- receipt-completions ------------------------------------------------------------------------------------


class AttemptEnded(Event, frozen=True):
    """How attempt ``n`` of a receipt ended."""

    receipt: str
    n: int
    epoch: int
    lease: str
    outcome: Outcome


class ReceiptResolved(Event, frozen=True):
    """A person, or the tool's look-up, settled an unknown attempt (U3): as paid with its value, or as unpaid."""

    receipt: str
    n: int
    epoch: int
    output: bytes | None
    who: str
    why: str = ""


# --- tool-results: receipts -> rows -------------------------------------------------------------------------


class Answer(enum.StrEnum):
    """What a caller is told about its receipt."""

    COMPLETED = "completed"
    NO_RESULT = "no_result"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Mark(enum.StrEnum):
    """How a value came to its caller (R8)."""

    LIVE = "live"
    IN_FLIGHT = "in_flight"
    CACHE = "cache"


class CallsAnswered(Event, frozen=True):
    """One receipt's outcome for callers on one partition."""

    receipt: str
    n: int
    answer: Answer
    calls: tuple[tuple[str, Mark], ...]
    output: bytes | None = None
    fault: Fault | None = None


class AttemptUnknown(Event, frozen=True):
    """Beside the answer *unknown*: which attempt it is about, so that a person's word can name it (T7)."""

    receipt: str
    n: int
    epoch: int
    calls: tuple[str, ...]


# --- row-progress: rows and receipts -> runs ----------------------------------------------------------------


class RowsCounted(Event, frozen=True):
    """Cumulative counters of one run on one partition; the newest replaces the older ones (I1)."""

    run: str
    partition: int
    #: Grows with each publication, so that an older one that comes late changes nothing.
    sequence: int
    rows: RowCounts
    calls: CallCounts
    final: bool = False
    #: The first failed rows of this partition: position, cell and message (M13).
    samples: tuple[tuple[int, str, str], ...] = ()


class RetriesCounted(Event, frozen=True):
    """Repeats of provider calls on one lane that were made for a run so far; it only grows, so the largest counts (P2)."""

    run: str
    lane: str
    retries: int


EVENTS_BY_TOPIC: Final[dict[str, tuple[type[Event], ...]]] = {
    "row-work": (RunOpened, RowsAdded),
    "row-control": (RunCancelled, RunClosing, CellResolved),
    "tool-requests": (ToolRequested, CallWithdrawn),
    "lane-control": (Probed, RunClosed, ReceiptForgotten),
    "receipt-claims": (BatchClaimed, LeaseReleased, LeaseExpired, Probed, JobStarted),
    "lease-heartbeats": (LeasesRenewed, Probed),
    "receipt-completions": (AttemptEnded, ReceiptResolved, Probed),
    "tool-results": (CallsAnswered, AttemptUnknown),
    "row-progress": (RowsCounted, RetriesCounted),
}
