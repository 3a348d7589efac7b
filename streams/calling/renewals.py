"""How much is left of the leases of this process's calls, and renewing them (L5).

A lease runs from the clock read before its claim was published. A heartbeat lets it run from the moment at which that was sent, but
only once it is acknowledged, and only where the acknowledgement came while the lease still ran: later, somebody else may have
judged it over already (rule 2 of the dispatcher in docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streams.calling.calls import Flight
from streams.calling.settlement import Settlement

#: With less of the lease left than this, a call is not started.
START_MARGIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Renewals:
    """Heartbeats of calls, and what they are worth."""

    lease_seconds: float
    settlement: Settlement
    clock: Callable[[], float]

    def left(self, flight: Flight) -> float:
        """Seconds for which the call's lease surely runs; none or less where it is over."""
        return max(flight.claimed_at, flight.renewed_at) + self.lease_seconds - self.clock()

    def suffices(self, flight: Flight) -> bool:
        """A call may be started under what is left."""
        return self.left(flight) > START_MARGIN_SECONDS

    async def beat(self, partition: int, flights: Iterable[Flight]) -> None:
        """Renew the leases of calls on one partition."""
        await self._renew(partition, tuple(flights), None)

    async def ensure(self, flight: Flight) -> bool:
        """Enough is left to start the call, by a renewal where it must be; false where that cannot be had in time."""
        if not self.suffices(flight) and (left := self.left(flight)) > 0:
            await self._renew(flight.partition, (flight,), left)
        return self.suffices(flight)

    async def _renew(self, partition: int, flights: tuple[Flight, ...], seconds: float | None) -> None:
        sent_at = self.clock()
        if not await self.settlement.beat(partition, [flight.lease for flight in flights], seconds):
            return
        for flight in flights:
            if self.left(flight) > 0:
                flight.renewed_at = max(flight.renewed_at, sent_at)
