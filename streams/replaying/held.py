"""The records that a fold works on: as objects while they are in use, and in RocksDB once too many of them are held.

A replay folds turn after turn and can fail none of them, so what an engine changes is changed at once; a record is encoded when it
leaves memory, not in every turn that touches it. Knows no Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec

from streams.engine.digest import IN_DIGEST, Digests, Item, digests_of, digests_of_records
from streams.table import Store, decoded, encoded, encoder

#: Changed records that are held before they are written out; as many again stay readable in memory.
HELD_MAX: Final = 100_000
_UNREAD: Final = object()

S = TypeVar("S", bound=msgspec.Struct)


class HeldRecords:
    """The records of one partition. The store is opened when it is first needed: most partitions fit in memory."""

    def __init__(self, open_store: Callable[[], Store], *, held_max: int = HELD_MAX) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self._held_max = held_max
        self._writes = 0
        #: What the store does not have yet; ``None`` is a removal. Then what it has, too, or was read from it.
        self._changed: dict[bytes, Any] = {}
        self._stored: dict[bytes, Any] = {}

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load records with one multi-get; only an optimisation, ``get`` loads what is missing."""
        if self._store is None:
            return
        changed, stored = self._changed, self._stored
        wanted = [key for key in keys if key not in changed and key not in stored]
        for key, raw in zip(wanted, self._store.get_many(wanted), strict=True):
            stored[key] = None if raw is None else decoded(key, raw)

    def get(self, key: bytes, kind: type[S]) -> S | None:
        """The record, or ``None``."""
        record = self._changed.get(key, _UNREAD)
        if record is _UNREAD:
            record = None if self._store is None else self._read(self._store, key)
        assert record is None or type(record) is kind, f"{key!r} holds {type(record).__name__}"
        found: S | None = record
        return found

    def _read(self, store: Store, key: bytes) -> Any:
        record = self._stored.get(key, _UNREAD)
        if record is _UNREAD:
            raw = store.get(key)
            record = self._stored[key] = None if raw is None else decoded(key, raw)
        return record

    def change(self, key: bytes, kind: type[S]) -> S:
        """The record to be changed in place, new where there is none; it is put back already."""
        record = self._changed.get(key)
        if record is None:
            record = self._changed[key] = self.get(key, kind) or kind()
        assert type(record) is kind, f"{key!r} holds {type(record).__name__}"
        return record

    def put(self, key: bytes, record: msgspec.Struct) -> None:
        """Set the record; also after a change in place."""
        self._changed[key] = record

    def delete(self, key: bytes) -> None:
        """Remove the record."""
        if self._store is None:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def put_local(self, key: bytes, record: msgspec.Struct | None) -> None:
        """Set or remove a record that follows from others."""
        if record is None:
            self.delete(key)
        else:
            self._changed[key] = record

    def scan(self, prefix: bytes, kind: type[S], after: bytes | None = None) -> Iterator[tuple[bytes, S]]:
        """Records under ``prefix`` in key order, as they are when they come up."""
        mine = sorted(key for key in self._changed if key.startswith(prefix) and (after is None or key > after))
        stored = () if self._store is None else (key for key, _ in self._store.scan(prefix, after))
        for key, _ in groupby(merge(mine, stored)):
            record = self.get(key, kind)
            if record is not None:
                yield key, record

    def turn_over(self) -> None:
        """A turn is folded: what is held may be written out."""
        if len(self._changed) >= self._held_max:
            self._write()
        elif len(self._stored) > 2 * self._held_max:
            self._stored = {}

    def _write(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
        self._writes += 1
        self._store.write(encoded(self._changed), changelog_offset=self._writes)
        self._stored, self._changed = self._changed, {}
        return self._store

    def items(self) -> Iterator[Item]:
        """All records that have a part in a digest, sorted by key."""
        if self._store is None:
            return ((key, encoder.encode(record)) for key, record in self._in_memory())
        return (item for item in self._write().scan(b"") if item[0][0] in IN_DIGEST)

    def digests(self, *, exact: bool = True) -> Digests:
        """Digests of all records; the exact one takes as long again."""
        if self._store is None:
            return digests_of_records(self._in_memory(), exact=exact)
        return digests_of(self.items(), exact=exact)

    def _in_memory(self) -> Iterator[tuple[bytes, msgspec.Struct]]:
        changed = self._changed
        for key in sorted(key for key in changed if key[0] in IN_DIGEST):
            yield key, changed[key]

    def close(self) -> None:
        """Release the store."""
        if self._store is not None:
            self._store.close()
