"""The clean-up at a worker's end (S8): are the leases given back that it needs no more, and is that said either way.

No run ends over a persistence failure: its open rows wait for the next worker (docs/decisions.md). What can be cleaned up is the
leases, so that this worker need not wait for them to expire. A call that was sent holds its lease until its end is in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.events import AttemptEnded, Event, LeaseReleased

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CleanUp:
    """Leases on their way back: to be given back, and given back since the worker began to stop."""

    #: Releases that are not acknowledged yet, by lease.
    waiting: dict[str, int] = field(default_factory=dict)
    given: int = 0

    def begins(self) -> None:
        """The worker stops: from here on what is given back is counted."""
        self.given = 0

    def giving(self, events: Iterable[Event]) -> None:
        """Releases are about to be published."""
        for event in events:
            if isinstance(event, LeaseReleased):
                self.waiting[event.lease] = len(event.members)

    def gave(self, events: Iterable[Event]) -> None:
        """They are acknowledged."""
        for event in events:
            if isinstance(event, LeaseReleased) and self.waiting.pop(event.lease, None) is not None:
                self.given += 1

    def tell(self, unpublished: Iterable[Sequence[AttemptEnded]], lease_seconds: float) -> None:
        """Log whether it worked; ``unpublished`` are the ends of calls that did not get into the log."""
        ended = {end.lease for ends in unpublished for end in ends}
        if not self.waiting and not ended:
            log.info("clean-up done: %d leases were given back, and none is held for what has ended or was not sent", self.given)
            return
        log.error(
            "clean-up failed: %d leases of calls that were not sent could not be given back, and %d calls have ended without the "
            "log knowing; their leases expire after %g s, their rows stay open, and the next worker goes on with them",
            len(self.waiting),
            len(ended),
            lease_seconds,
        )
