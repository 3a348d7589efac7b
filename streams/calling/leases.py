"""Leases as the owner of a partition watches them: when was each last seen, and which has run out.

Judged on CLOCK_BOOTTIME, from when *this* owner last folded a claim or heartbeat, and only once all that was published before was
folded (owner's rule 4 of the protocol): a mark of our own, read back from each topic, proves that. Never for a call of our own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from schemas.commands import LeaseJudgedExpired
from schemas.events import ClaimedMember
from schemas.providers import Providers
from schemas.states import RECEIPT, Receipt, record_key
from streams.engine import lostleases
from streams.turn import Actor

#: Part of the time to live that clocks may differ by.
MARGIN = 0.1


def steady_clock() -> float:
    """Seconds of a clock that neither steps nor stops while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def judgement(
    lease: str, members: Sequence[ClaimedMember], actor: Actor, providers: Providers, tries_max: int
) -> LeaseJudgedExpired:
    """The judgement that a lease has run out, with what the owner's records say of the tries behind it."""
    found = [actor.record_of(record_key(RECEIPT, member.receipt), Receipt) or Receipt() for member in members]
    tool = providers.tool(found[0].tool) if found else None
    repeat = None if tool is None else tool[1].repeat
    lost = zip(members, found, strict=True)
    return lostleases.judged(lease, lost, repeat, tries_max, int(time.time() * 1000), random.random())


@dataclass(slots=True)
class Watched:
    """A live lease: its lane, its members that have not ended, and when it was last seen."""

    lane: str
    members: dict[str, ClaimedMember]
    seen_at: float
    #: Claimed by another process or an earlier owner; it counts against the lane's ceiling until it is over.
    foreign: bool


@dataclass(slots=True)
class LeaseWatch:
    """The live leases of one partition."""

    lease_seconds: float
    clock: Callable[[], float]
    leases: dict[str, Watched] = field(default_factory=dict)

    def claimed(self, lane: str, lease: str, members: Iterable[ClaimedMember], *, foreign: bool) -> bool:
        """A claim was folded: its clock starts. True when the lease is new here."""
        watched = self.leases.get(lease)
        if watched is None:
            found = {member.receipt: member for member in members}
            self.leases[lease] = Watched(lane, found, self.clock(), foreign)
            return True
        watched.seen_at = self.clock()
        watched.members.update({member.receipt: member for member in members})
        return False

    def renewed(self, leases: Iterable[str]) -> None:
        """Heartbeats were folded: their clocks start again."""
        now = self.clock()
        for lease in leases:
            watched = self.leases.get(lease)
            if watched is not None:
                watched.seen_at = now

    def over(self, lease: str, receipts: Iterable[str]) -> Watched | None:
        """Attempts ended; the lease, where it is over by that."""
        watched = self.leases.get(lease)
        if watched is None:
            return None
        for receipt in receipts:
            watched.members.pop(receipt, None)
        if watched.members:
            return None
        return self.leases.pop(lease)

    def run_out(self, in_flight: Callable[[str], bool]) -> list[tuple[str, tuple[ClaimedMember, ...]]]:
        """Leases that were not seen for their time to live and a margin, those of calls in flight here excepted."""
        limit = self.clock() - self.lease_seconds * (1 + MARGIN)
        return [
            (lease, tuple(watched.members.values()))
            for lease, watched in self.leases.items()
            if watched.seen_at < limit and not in_flight(lease)
        ]
