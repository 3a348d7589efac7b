"""The world of one receipt: logs, committed table, two processes with owner and dispatcher each, and the provider's own bill.

A state is a tuple of tuples and numbers, so that it can be hashed; events and tables are kept once and named by numbers. Time is
what is left of each lease (``life``), on the caller's clock and on the owner's: one tick of the world takes one of all of them. A
caller may send while its own count is above 0, an owner may judge at 0; the count is set to the scenario's ``ttl``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from schemas.events import Event, Mode, Repeat, ToolRequested
from streams.engine.port import Effect
from streams.engine.protocol import Need

R, LANE, TOOL, RUN = "r", "org/p", "p.t", "run"
#: Nobody listens to this call any more; the provider may still bill it.
NOBODY = -1

T = TypeVar("T", bound=Hashable)


class Numbers(Generic[T]):
    """Values by number, each kept once."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, value: T) -> int:
        """The number of a value."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self._values[number]


#: Where a call stands: granted, sent after a last look at the clock, and how the provider has answered.
GRANTED, SENT, BILLED, FAILED, RETRY = range(5)


class Call(NamedTuple):
    """A granted call: in a process, on the wire, or at the provider."""

    n: int
    epoch: int
    op: int
    lease: str
    process: int
    stage: int
    life: int
    tries: int


class Claim(NamedTuple):
    """A claim that its dispatcher has published and not yet seen folded."""

    lease: str
    n: int
    epoch: int
    op: int
    life: int
    tries: int


class Watched(NamedTuple):
    """A live lease as an owner watches it."""

    lease: str
    n: int
    epoch: int
    op: int
    life: int


class Beat(NamedTuple):
    """A renewal on its way into the log; it counts from when it was sent."""

    lease: str
    process: int
    life: int


class Read(NamedTuple):
    """Next offsets to fold."""

    requests: int = 0
    claims: int = 0
    completions: int = 0
    beats: int = 0


class Process(NamedTuple):
    """A worker: the owner's part (generation 0 where it owns nothing) and the dispatcher's memory."""

    generation: int = 0
    #: Its first turn, which takes stock, is still to come.
    new: bool = False
    queued: Need | None = None
    pending: tuple[Claim, ...] = ()
    watch: tuple[Watched, ...] = ()
    #: Effects of a committed turn that it has not acted upon yet.
    mail: tuple[Effect, ...] = ()
    #: Its own table and offsets, only where an unfenced owner is let loose.
    view: tuple[int, Read] | None = None
    #: Its store claims to be ahead of the changelog (T3).
    ahead: bool = False


class Budget(NamedTuple):
    """How many faults may still happen: of all kinds together, and of each."""

    faults: int = 0
    crashes: int = 0
    takeovers: int = 0
    #: A time to live passes though somebody is in the middle of a call.
    pauses: int = 0
    duplicates: int = 0
    #: Answers that do not reach the caller.
    lost: int = 0
    #: The provider refuses for good, or for now.
    failures: int = 0
    retries: int = 0
    #: A lease is judged before its time, by a clock that runs away.
    early: int = 0
    beats: int = 0
    resolutions: int = 0
    #: A claim is given back before it was folded.
    returns: int = 0
    #: A process stands still between a committed turn and its effects.
    stalls: int = 0


class Scenario(NamedTuple):
    """What is explored: the tool's rule for repeating, what callers ask, and the bounds."""

    name: str
    repeat: Repeat
    budget: Budget
    #: Events of ``tool-requests``, each with the answer that its writer waits for (``call answer`` or "").
    script: tuple[tuple[Event, str], ...] = ()
    tries_max: int = 5
    #: Ticks of a lease.
    ttl: int = 1
    #: Rules that are switched off in the model.
    off: frozenset[str] = frozenset()
    #: Look at the bill alone, so that what is found is money lost.
    bill_only: bool = False
    #: Promises beyond those that protocol.md makes: see ``promises.answered`` and ``promises.check``.
    also: frozenset[str] = frozenset()


class World(NamedTuple):
    """One state."""

    requests: tuple[int, ...]
    claims: tuple[int, ...]
    completions: tuple[int, ...]
    beats: tuple[int, ...]
    asked: int
    table: int
    read: Read
    generation: int
    #: The process whose producers are not fenced.
    owner: int
    processes: tuple[Process, Process]
    calls: tuple[Call, ...]
    renewals: tuple[Beat, ...]
    #: The provider's bill: epoch and operation of each, in order.
    bills: tuple[tuple[int, int], ...]
    #: What each call was told, in order: call, answer, attempt.
    told: tuple[tuple[str, str, int], ...]
    #: Attempts with their leases that a committed turn of an unfenced owner granted.
    granted: tuple[tuple[int, str], ...]
    leases: int
    budget: Budget
    #: A promise that a step has broken.
    broken: str = ""


EVENTS: Numbers[Event] = Numbers()
TABLES: Numbers[tuple[tuple[bytes, bytes], ...]] = Numbers()
EMPTY = TABLES.of(())


def asked(call: str, repeat: Repeat, mode: Mode = Mode.NORMAL, refresh: str | None = None) -> ToolRequested:
    """A cell asks for the receipt."""
    return ToolRequested(R, call, RUN, 0, LANE, TOOL, repeat, b"{}", mode, refresh)


def beginning(scenario: Scenario) -> World:
    """The first state: the first request lies in its topic, and process 0 has just become the owner."""
    first = (EVENTS.of(scenario.script[0][0]),)
    return World(
        requests=first,
        claims=(),
        completions=(),
        beats=(),
        asked=1,
        table=EMPTY,
        read=Read(),
        generation=0,
        owner=0,
        processes=(Process(generation=1, new=True), Process()),
        calls=(),
        renewals=(),
        bills=(),
        told=(),
        granted=(),
        leases=0,
        budget=scenario.budget,
    )
