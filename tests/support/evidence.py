"""What stands in the internal topics and in the journal of turns: which claims were granted, when, and how they ended.

Read with a plain consumer and held against the provider's bill; nothing here asks a worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from schemas import envelope
from schemas.events import AttemptEnded, BatchClaimed, LeaseExpired, LeaseReleased
from schemas.states import TurnRecord
from streams.public.publiclog import PublicLog
from streams.settings import Settings


@dataclass
class Attempt:
    """One claimed attempt of a receipt; times are Unix milliseconds."""

    n: int
    lease: str
    claimed_ms: int
    #: When a turn of the claim's own generation folded it, which is what grants it; ``None`` where none did.
    granted_ms: int | None = None
    ended_ms: int | None = None
    expired_ms: int | None = None
    released_ms: int | None = None


@dataclass
class Evidence:
    """All attempts, by receipt and number; of two claims for one number the first in the topic."""

    attempts: dict[str, dict[int, Attempt]] = field(default_factory=dict)
    #: Completions as (time, event), in the order of their topic.
    ends: list[tuple[int, AttemptEnded]] = field(default_factory=list)

    def of(self, receipt: str) -> list[Attempt]:
        """Attempts of a receipt in order."""
        return [attempt for _, attempt in sorted(self.attempts.get(receipt, {}).items())]

    def lost_in_flight(self, receipt: str, kills_ms: Iterable[int]) -> bool:
        """An attempt of this receipt was granted and had not ended when a kill fell, and then expired."""
        kills = list(kills_ms)
        return any(
            attempt.granted_ms is not None
            and attempt.ended_ms is None
            and attempt.expired_ms is not None
            and any(attempt.granted_ms <= kill <= attempt.expired_ms for kill in kills)
            for attempt in self.of(receipt)
        )


async def read_evidence(settings: Settings) -> Evidence:
    """Everything that is committed now."""
    log = PublicLog(settings)
    evidence = Evidence()
    folded = await _folds(log)
    async for record in log.stored(log.all("receipt-claims")):
        for event in envelope.unpack("receipt-claims", record.value, record.headers):
            if isinstance(event, BatchClaimed):
                generation, at_ms = folded.get((record.partition, record.offset), (None, None))
                granted = at_ms if generation == event.generation else None
                for member in event.members:
                    numbered = evidence.attempts.setdefault(member.receipt, {})
                    numbered.setdefault(member.n, Attempt(member.n, event.lease, record.timestamp, granted))
            elif isinstance(event, LeaseExpired | LeaseReleased):
                for member in event.members:
                    attempt = evidence.attempts.get(member.receipt, {}).get(member.n)
                    if attempt is not None and attempt.lease == event.lease:
                        name = "expired_ms" if isinstance(event, LeaseExpired) else "released_ms"
                        setattr(attempt, name, getattr(attempt, name) or record.timestamp)
    async for record in log.stored(log.all("receipt-completions")):
        for event in envelope.unpack("receipt-completions", record.value, record.headers):
            if isinstance(event, AttemptEnded):
                evidence.ends.append((record.timestamp, event))
                attempt = evidence.attempts.get(event.receipt, {}).get(event.n)
                if attempt is not None and attempt.ended_ms is None:
                    attempt.ended_ms = record.timestamp
    return evidence


async def _folds(log: PublicLog) -> dict[tuple[int, int], tuple[int, int]]:
    """By partition and offset of ``receipt-claims``: generation and time of the turn that folded the message."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    async for record in log.stored(log.all("turns")):
        if record.key is None or not record.key.startswith(b"receipts/"):
            continue
        turn = msgspec.msgpack.decode(record.value, type=TurnRecord)
        for segment in turn.segments:
            if segment.topic == "receipt-claims":
                for offset in range(segment.first, segment.last + 1):
                    found[record.partition, offset] = (turn.generation, turn.at_ms)
    return found
