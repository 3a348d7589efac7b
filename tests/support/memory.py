"""Records in memory for tests of engines: the real working set over a dictionary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from schemas.events import Event
from streams.engine.port import Context, Engine, Outbox
from streams.table import WorkingSet


class DictReader:
    """A store that is a dictionary."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The record's bytes."""
        return self.data.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The records' bytes."""
        return [self.data.get(key) for key in keys]

    def scan(self, prefix: bytes, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Records under a prefix."""
        for key in sorted(self.data):
            if key.startswith(prefix) and (after is None or key > after):
                yield key, self.data[key]


class DictStore(DictReader):
    """A store that can be written, too."""

    def write(
        self,
        changes: Mapping[bytes, bytes | None],
        local_changes: Mapping[bytes, bytes | None] = MappingProxyType({}),
        *,
        changelog_offset: int,
    ) -> None:
        """Apply changes."""
        for key, value in (*changes.items(), *local_changes.items()):
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value

    def close(self) -> None:
        """Nothing to release."""


class Table:
    """One partition of an engine's table: give it events, look at its outputs."""

    def __init__(self, engine: Engine, *, partition: int = 0, partitions: int = 8) -> None:
        self.engine = engine
        self.reader = DictReader()
        self.partition, self.partitions = partition, partitions
        self.generation = 1
        self.now_ms = 1_000_000

    def given(self, *events: Event) -> Outbox:
        """Fold events in one turn."""
        return self.turn(events)

    def turn(self, events: Sequence[Event]) -> Outbox:
        """Fold events in one turn and return what it owes."""
        records, outbox = WorkingSet(self.reader), Outbox()
        self.engine.turn(records, events, outbox, Context(self.partition, self.partitions, self.generation, self.now_ms))
        for key, value in (records.changes() | records.local_changes()).items():
            if value is None:
                self.reader.data.pop(key, None)
            else:
                self.reader.data[key] = value
        return outbox
