"""The bulk table: one RocksDB database a partition, written once a turn, and the working set that a turn folds into.

The place under the engines and the turn. It decides nothing about receipts, rows or runs, and it never talks to Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteBufferManager, WriteOptions

from schemas.states import RECORD_TYPES

OFFSET_KEY: Final = b"\x00changelog-offset"
#: What gathers in memory before it is handed to RocksDB: records and bytes of one database, and bytes of all together.
PENDING_MAX: Final = 40_000
PENDING_BYTES_MAX: Final = 16 << 20
PENDING_BYTES_TOTAL: Final = 48 << 20
#: What a record takes beside its value.
RECORD_BYTES: Final = 200
_UNREAD: Final = object()
_NOTHING: Final[Mapping[bytes, bytes | None]] = {}
encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final = {prefix: msgspec.msgpack.Decoder(kind) for prefix, kind in RECORD_TYPES.items()}

S = TypeVar("S", bound=msgspec.Struct)


class StoreMemory:
    """Write buffers and block cache shared by all databases of a process; RocksDB's defaults would be a set for each."""

    def __init__(self, *, write_buffer_bytes: int = 96 << 20, cache_bytes: int = 64 << 20) -> None:
        self.cache = Cache(cache_bytes)
        self.buffers = WriteBufferManager(write_buffer_bytes, False)
        #: Bytes that gather in front of all databases.
        self.pending_bytes = 0

    def options(self) -> Options:
        """Options of one database in raw mode (keys and values are bytes)."""
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self.buffers)
        # A small memtable stays in the processor's cache: an insertion takes half the time that it takes with the default 64 MiB.
        options.set_write_buffer_size(8 << 20)
        options.set_allow_concurrent_memtable_write(False)
        options.set_max_open_files(64)
        options.set_keep_log_file_num(1)
        options.set_max_background_jobs(2)
        return options


class Reader(Protocol):
    """Reads records of one partition: what a working set needs from a store."""

    def get(self, key: bytes) -> bytes | None:
        """The record's bytes, or ``None``."""
        ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The records' bytes in the order of ``keys``."""
        ...

    def scan(self, prefix: bytes, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Records under ``prefix`` in key order, those behind ``after`` only."""
        ...


class Store:
    """The database of one table's partition. Closed explicitly: a kept handle would hold RocksDB's lock.

    Writes of several turns gather in memory and go to RocksDB as one batch: most records are written again soon. That risks
    nothing, because there is no write-ahead log: the changelog is the log, and what a killed process had only in memory is read
    from it, behind the offset that was written together with the data.
    """

    def __init__(self, folder: Path, memory: StoreMemory, *, pending_max: int = PENDING_MAX) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._db = Rdict(str(folder), memory.options())
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True
        self._pending: dict[bytes, bytes | None] = {}
        self._pending_bytes = 0
        self._pending_max = pending_max
        self._memory = memory
        raw = self._db.get(OFFSET_KEY)
        self._offset = None if raw is None else int.from_bytes(cast(bytes, raw), "big")
        self._stored_offset = self._offset

    def get(self, key: bytes) -> bytes | None:
        """The record's bytes, or ``None``."""
        try:
            return self._pending[key]
        except KeyError:
            return self._db.get(key)  # type: ignore[no-any-return]

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The records' bytes in the order of ``keys``."""
        found: list[Any] = list(map(self._pending.get, keys, repeat(_UNREAD)))
        unread = [place for place, value in enumerate(found) if value is _UNREAD]
        if unread:
            for place, value in zip(unread, self._db.get([keys[place] for place in unread]), strict=True):
                found[place] = value
        return found

    def scan(self, prefix: bytes, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Records under ``prefix`` in key order, those behind ``after`` only."""
        self.flush()
        start = prefix if after is None else after + b"\x00"
        for key, value in self._db.items(from_key=start):
            if not cast(bytes, key).startswith(prefix):
                return
            yield cast(bytes, key), cast(bytes, value)

    def write(
        self,
        changes: Mapping[bytes, bytes | None],
        local_changes: Mapping[bytes, bytes | None] = _NOTHING,
        *,
        changelog_offset: int,
    ) -> None:
        """Apply changes and the changelog offset that they reach in one atomic step."""
        self._pending.update(changes)
        self._pending.update(local_changes)
        self._offset = changelog_offset
        size = sum(map(len, filter(None, changes.values()))) + RECORD_BYTES * (len(changes) + len(local_changes))
        self._pending_bytes += size
        self._memory.pending_bytes += size
        if (
            len(self._pending) >= self._pending_max
            or self._pending_bytes >= PENDING_BYTES_MAX
            or self._memory.pending_bytes >= PENDING_BYTES_TOTAL
        ):
            self.flush()

    def flush(self) -> None:
        """Hand what gathered to RocksDB, in one batch with its changelog offset."""
        if self._offset == self._stored_offset or self._offset is None:
            return
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in self._pending.items():
            if value is None:
                batch.delete(key)
            else:
                put(key, value)
        put(OFFSET_KEY, self._offset.to_bytes(8, "big"))
        self._db.write(batch, self._unlogged)
        self._pending.clear()
        self._memory.pending_bytes -= self._pending_bytes
        self._pending_bytes = 0
        self._stored_offset = self._offset

    @property
    def changelog_offset(self) -> int | None:
        """Offset of the last changelog record in this database, ``None`` for a new one."""
        return self._offset

    def close(self) -> None:
        """Write and flush everything, and release the database and its lock."""
        self.flush()
        self._db.flush()
        self._db.close()


class RecordCache:
    """Decoded records of one partition that committed turns used last, so that a hot record is decoded once.

    Bounded by number; the oldest half goes when it is full. A turn changes records in place, so a turn that fails must take the
    cache with it.
    """

    def __init__(self, records_max: int = 20_000) -> None:
        self.records: dict[bytes, msgspec.Struct | None] = {}
        self._records_max = records_max

    def keep(self, records: Mapping[bytes, msgspec.Struct | None]) -> None:
        """Remember what a turn changed; ``None``, for what it removed, is no answer: the store is asked."""
        cached = self.records
        cached.update(records)
        if len(cached) > self._records_max:
            # Rebuilt by one call in C; the dictionary itself stays, for working sets hold on to it.
            newest = dict(islice(cached.items(), len(cached) - self._records_max // 2, None))
            cached.clear()
            cached.update(newest)
            if len(records) <= self._records_max // 2:
                cached.update(records)


class WorkingSet:
    """The records that one turn reads and changes, decoded once and encoded once.

    Engines get records as objects, change them and ``put`` them back; nothing reaches the store before the turn is committed.
    """

    def __init__(self, reader: Reader, cache: RecordCache | None = None) -> None:
        self._reader = reader
        self._cache = cache
        self._cached: dict[bytes, msgspec.Struct | None] = {} if cache is None else cache.records
        self._read: dict[bytes, msgspec.Struct | None] = {}
        self._changed: dict[bytes, msgspec.Struct | None] = {}
        self._local: dict[bytes, msgspec.Struct | None] = {}

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load records with one multi-get; only an optimisation, ``get`` loads what is missing."""
        read, changed, cached = self._read, self._changed, self._cached
        wanted: list[bytes] = []
        for key in keys:
            if key in read or key in changed:
                continue
            record = read[key] = cached.get(key)
            if record is None:
                wanted.append(key)
        if not wanted:
            return
        for key, raw in zip(wanted, self._reader.get_many(wanted), strict=True):
            if raw is not None:
                read[key] = _decoders[key[:1]].decode(raw)

    def committed(self) -> None:
        """The turn is committed: what it changed may serve the next one, which most often goes on with just that."""
        if self._cache is not None:
            self._cache.keep(self._changed)

    def keep(self) -> None:
        """What was read, and not changed, may serve a turn to come."""
        if self._cache is not None:
            self._cache.keep(self._read)

    def get(self, key: bytes, kind: type[S]) -> S | None:
        """The record as this turn sees it, or ``None``."""
        record: Any = self._changed.get(key, _UNREAD)
        if record is _UNREAD:
            record = self._read.get(key, _UNREAD)
            if record is _UNREAD:
                record = self._read[key] = self._load(key)
        assert record is None or type(record) is kind, f"{key!r} holds {type(record).__name__}"
        found: S | None = record
        return found

    def change(self, key: bytes, kind: type[S]) -> S:
        """The record to be changed in place, new where there is none; it is put back already."""
        record = self._changed.get(key)
        if record is None:
            # A record that this turn deleted begins anew.
            record = None if key in self._changed else self._read[key] if key in self._read else self._load(key)
            record = self._changed[key] = kind() if record is None else record
        assert type(record) is kind, f"{key!r} holds {type(record).__name__}"
        return record

    def _load(self, key: bytes) -> msgspec.Struct | None:
        record = self._cached.get(key)
        if record is None:
            raw = self._reader.get(key)
            record = None if raw is None else _decoders[key[:1]].decode(raw)
        return record

    def put(self, key: bytes, record: msgspec.Struct) -> None:
        """Set a record; also needed after a change in place."""
        self._changed[key] = record

    def delete(self, key: bytes) -> None:
        """Remove a record."""
        self._changed[key] = None

    def put_local(self, key: bytes, record: msgspec.Struct | None) -> None:
        """Set or remove a record that follows from others: it is on no changelog, and this turn will not ask for it."""
        self._local[key] = record

    def scan(self, prefix: bytes, kind: type[S], after: bytes | None = None) -> Iterator[tuple[bytes, S]]:
        """Records under ``prefix`` in key order as this turn sees them."""
        mine = sorted(key for key in self._changed if key.startswith(prefix) and (after is None or key > after))
        stored = self._reader.scan(prefix, after)
        pending = next(stored, None)
        for key in mine:
            while pending is not None and pending[0] < key:
                yield from self._seen(pending, kind)
                pending = next(stored, None)
            if pending is not None and pending[0] == key:
                pending = next(stored, None)
            record = self.get(key, kind)
            if record is not None:
                yield key, record
        while pending is not None:
            yield from self._seen(pending, kind)
            pending = next(stored, None)

    def _seen(self, item: tuple[bytes, bytes], kind: type[S]) -> Iterator[tuple[bytes, S]]:
        key, raw = item
        if key not in self._read:
            cached = self._cached.get(key)
            self._read[key] = _decoders[key[:1]].decode(raw) if cached is None else cached
        record = self.get(key, kind)
        if record is not None:
            yield key, record

    def changes(self) -> dict[bytes, bytes | None]:
        """Keys and new bytes of all that was changed, in that order; ``None`` is a removal."""
        return encoded(self._changed)

    def local_changes(self) -> dict[bytes, bytes | None]:
        """The same of the records that follow from others."""
        return encoded(self._local)


def decoded(key: bytes, raw: bytes) -> msgspec.Struct:
    """The record under a key."""
    record: msgspec.Struct = _decoders[key[:1]].decode(raw)
    return record


def encoded(records: Mapping[bytes, msgspec.Struct | None]) -> dict[bytes, bytes | None]:
    """Records as they are stored; ``None`` is a removal."""
    encode = encoder.encode
    return {key: None if record is None else encode(record) for key, record in records.items()}
