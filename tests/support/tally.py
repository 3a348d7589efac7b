"""A trivial engine for tests of the turn: it counts marks and echoes each with its count and its owner's generation."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.events import Event, Probed
from schemas.states import VALUE, StoredValue, record_key
from streams.engine.port import Context, Outbox, Records
from streams.turn import AgentSpec

#: Read in this order of precedence; each may carry marks.
SOURCES = ("lane-control", "receipt-claims")
ECHOES = "lease-heartbeats"


def counter_key(mark: str) -> bytes:
    """Key of a mark's counter."""
    return record_key(VALUE, mark)


class Tally:
    """Counts ``Probed`` events by name; each count is echoed on ``lease-heartbeats`` as ``mark=count@generation``."""

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Add one to the counter of each mark."""
        for event in events:
            if isinstance(event, Probed):
                key = counter_key(event.probe)
                stored = records.get(key, StoredValue)
                count = (0 if stored is None else int(stored.output)) + 1
                records.put(key, StoredValue(str(count).encode()))
                outbox.send(ECHOES, context.partition, Probed(f"{event.probe}={count}@{context.generation}"))


SPEC = AgentSpec("tally", SOURCES, Tally())
