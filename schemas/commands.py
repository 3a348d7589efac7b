"""Commands: judgements and timers of a partition's owner, journalled in its turn record.

Some of them are taken from the owner's clocks, others from what users publish; once they stand in a turn record they are facts
like all events. This module holds no behaviour.
"""

from __future__ import annotations

from schemas.events import ClaimedMember, CompiledPlay, Event


class RecoveryEnded(Event, frozen=True):
    """A new owner has read the table: take stock of what is open."""


class CountersDue(Event, frozen=True):
    """The counters of a run changed and were not published yet."""

    run: str


class ProgressDue(Event, frozen=True):
    """The progress of a run changed, or its heartbeat is due."""

    run: str


class LeaseJudgedExpired(Event, frozen=True):
    """No claim or heartbeat of this lease was seen for its time to live, with all topics read to their ends."""

    lease: str
    members: tuple[ClaimedMember, ...]
    #: See ``LeaseExpired``.
    not_before_ms: int = 0
    used_up: tuple[str, ...] = ()


class AnswersDue(Event, frozen=True):
    """A receipt has more waiters to answer than one turn takes: it goes on with the call ``after``."""

    receipt: str
    after: str


class WaitsDue(Event, frozen=True):
    """The wait of those that met a receipt's live call at this moment (Unix ms) is over.

    ``receipt_wait_ms`` tells those whose column has a wait of its own from the others that came with them.
    """

    receipt: str
    met_ms: int
    receipt_wait_ms: int | None = None


class RunRequested(Event, frozen=True):
    """A run request as judged once by its shell: valid and compiled, or refused with every fault."""

    run: str
    org: str
    digest: str
    play: CompiledPlay | None
    faults: tuple[str, ...] = ()
    #: Rows given inline as exact JSON objects.
    rows: tuple[bytes, ...] = ()
    sealed: bool = True
    expected: int | None = None
    force: bool = False
    force_tool_refresh: bool = False


class RowsAppended(Event, frozen=True):
    """A chunk of a run's input: position of its first row and the rows as exact JSON objects."""

    run: str
    first: int
    rows: tuple[bytes, ...]
    digest: str


class RowsSealed(Event, frozen=True):
    """A run's input is complete."""

    run: str
    total: int


class CancelRequested(Event, frozen=True):
    """A person wants a run to stop."""

    run: str
    who: str = ""


class ResolutionRequested(Event, frozen=True):
    """A person's word about a cell whose outcome is unknown, as judged once by the shell of ``runs``."""

    run: str
    row: str
    column: str
    output: bytes | None
    who: str = ""
    why: str = ""
    operation: str = ""
    faults: tuple[str, ...] = ()


class ForgettingRequested(Event, frozen=True):
    """A person wants a receipt to be forgotten, as judged once by the shell of ``runs``."""

    receipt: str
    lane: str
    who: str = ""
    why: str = ""
    operation: str = ""
    faults: tuple[str, ...] = ()


class SweepDue(Event, frozen=True):
    """Look for what may be dropped, one portion a turn; times are Unix time in milliseconds.

    Receipts that were answered up to ``drop_before_ms`` may go; of others, up to ``until_ms``, callers whose runs have ended.
    """

    drop_before_ms: int
    until_ms: int


class SweepGoesOn(Event, frozen=True):
    """A sweep of a receipt with very many callers: the next page of them, behind ``after``.

    ``left``: among those before it were some that stay. The times are those of ``SweepDue``.
    """

    drop_before_ms: int
    until_ms: int
    receipt: str
    after: str
    left: bool = False


class EndedRunsDue(Event, frozen=True):
    """Look for rows of runs that have ended, to be dropped, one portion a turn; runs that ended up to ``until_ms`` (Unix ms).

    ``run`` and ``row`` name what was looked at last.
    """

    until_ms: int
    run: str = ""
    row: str = ""


class Misrouted(Event, frozen=True):
    """Another client's partitioner put a request on a partition that is not its run's home: it is forwarded there."""

    run: str
    topic: str
    value: bytes


class Parked(Event, frozen=True):
    """A message was no event for the program of its day and went to ``dead-letters``; a later program may read it, a replay not."""

    topic: str
    offset: int


class PartlyParked(Event, frozen=True):
    """Elements of a message, by their places in it, were no events for the program of its day; the others were folded.

    A type of its own: a program from before it would take the whole message for parked, and fold something else.
    """

    topic: str
    offset: int
    places: tuple[int, ...]


Command = (
    RecoveryEnded
    | CountersDue
    | ProgressDue
    | LeaseJudgedExpired
    | AnswersDue
    | WaitsDue
    | RunRequested
    | RowsAppended
    | RowsSealed
    | CancelRequested
    | ResolutionRequested
    | ForgettingRequested
    | SweepDue
    | SweepGoesOn
    | EndedRunsDue
    | Misrouted
    | Parked
    | PartlyParked
)
