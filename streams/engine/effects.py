"""What a committed turn of ``receipts`` tells the dispatcher in its process.

Effects are hints about committed state: losing one costs time, never money, since a new owner takes stock of all that is open.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.events import ClaimedMember
from streams.engine.port import Effect
from streams.engine.protocol import Need


class Queued(Effect, frozen=True):
    """A receipt needs attempt ``n``: the lane may claim it from ``not_before_ms`` on."""

    receipt: str
    lane: str
    tool: str
    run: str
    need: Need
    #: Only receipts with the same text here may share a call (B4).
    bucket: str = ""
    #: Asked for by a row whose last answer came on the same lane (B1).
    continues: bool = False


class Unqueued(Effect, frozen=True):
    """Receipts of a lane that need no claim now."""

    lane: str
    receipts: tuple[str, ...]


class ClaimFolded(Effect, frozen=True):
    """A claim of this owner was folded: call for ``granted``, forget ``lost``."""

    lane: str
    lease: str
    granted: tuple[str, ...]
    lost: tuple[str, ...]

    def unanswered(self, members: Iterable[ClaimedMember]) -> list[str]:
        """Receipts of a claim that this answer says nothing of: a defect (R1)."""
        answered = {*self.granted, *self.lost}
        return [member.receipt for member in members if member.receipt not in answered]


class LeaseSeen(Effect, frozen=True):
    """A live lease whose clock starts now."""

    lane: str
    lease: str
    members: tuple[ClaimedMember, ...]


class LeasesSeen(Effect, frozen=True):
    """Heartbeats were read: their leases' clocks start again."""

    leases: tuple[str, ...]


class LeaseOver(Effect, frozen=True):
    """Attempts under this lease have ended."""

    lease: str
    receipts: tuple[str, ...]


class ProbeSeen(Effect, frozen=True):
    """All that came before this mark was folded."""

    probe: str


class LanePaused(Effect, frozen=True):
    """The provider wants all calls of a lane to wait until then (Unix time)."""

    lane: str
    until_ms: int


class UnknownSeen(Effect, frozen=True):
    """The outcome of attempt ``n`` is unknown since ``since_ms`` (Unix time); told again to a new owner."""

    receipt: str
    lane: str
    tool: str
    n: int
    epoch: int
    op: int
    since_ms: int


class UnknownOver(Effect, frozen=True):
    """A receipt is no longer unknown."""

    receipt: str


class KeptAside(Effect, frozen=True):
    """A value arrived that is not the first of its attempt, or of its receipt (salvage)."""

    receipt: str
    n: int
    tool: str
    output: bytes
