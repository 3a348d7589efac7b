"""A trivial engine for tests of the turn: it counts marks and echoes each with its count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.events import Event, Probed
from schemas.states import VALUE, StoredValue, record_key
from streams.engine.port import Context, Outbox, Records
from streams.turn import AgentSpec


class Tally:
    """Counts ``Probed`` events by name; each count is echoed on ``lease-heartbeats``."""

    def keys(self, event: Event) -> Iterable[bytes]:
        """The counter of a mark."""
        return (record_key(VALUE, event.probe),) if isinstance(event, Probed) else ()

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Add one to the counter of each mark."""
        for event in events:
            if isinstance(event, Probed):
                key = record_key(VALUE, event.probe)
                stored = records.get(key, StoredValue)
                count = (0 if stored is None else int(stored.output)) + 1
                records.put(key, StoredValue(str(count).encode()))
                outbox.send("lease-heartbeats", context.partition, Probed(f"{event.probe}={count}"))


SPEC = AgentSpec("tally", ("lane-control",), Tally())
