"""The bulk table: one RocksDB database a partition, written once a turn, and the working set that a turn folds into.

The place under the engines and the turn. It decides nothing about receipts, rows or runs, and it never talks to Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

import msgspec
from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteBufferManager, WriteOptions

from schemas.states import RECORD_TYPES

OFFSET_KEY: Final = b"\x00changelog-offset"
_encoder = msgspec.msgpack.Encoder()
_decoders: Final = {prefix: msgspec.msgpack.Decoder(kind) for prefix, kind in RECORD_TYPES.items()}

S = TypeVar("S", bound=msgspec.Struct)


class StoreMemory:
    """Write buffers and block cache shared by all databases of a process; RocksDB's defaults would be a set for each."""

    def __init__(self, *, write_buffer_bytes: int = 96 << 20, cache_bytes: int = 64 << 20) -> None:
        self.cache = Cache(cache_bytes)
        self.buffers = WriteBufferManager(write_buffer_bytes, False)

    def options(self) -> Options:
        """Options of one database in raw mode (keys and values are bytes)."""
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self.buffers)
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
    """The database of one table's partition. Closed explicitly: a kept handle would hold RocksDB's lock."""

    def __init__(self, folder: Path, memory: StoreMemory) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._db = Rdict(str(folder), memory.options())
        # The changelog is the log: a write-ahead log of RocksDB's own would say the same again. What a killed process had only
        # in its memtable is read from the changelog, behind the offset that was flushed together with the data.
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True

    def get(self, key: bytes) -> bytes | None:
        """The record's bytes, or ``None``."""
        return cast(bytes | None, self._db.get(key))

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The records' bytes in the order of ``keys``."""
        return cast(list[bytes | None], self._db.get(keys)) if keys else []

    def scan(self, prefix: bytes, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Records under ``prefix`` in key order, those behind ``after`` only."""
        start = prefix if after is None else after + b"\x00"
        for key, value in self._db.items(from_key=start):
            if not cast(bytes, key).startswith(prefix):
                return
            yield cast(bytes, key), cast(bytes, value)

    def write(self, changes: Iterable[tuple[bytes, bytes | None]], *, changelog_offset: int) -> None:
        """Apply changes and the changelog offset that they reach in one atomic step."""
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(OFFSET_KEY, changelog_offset.to_bytes(8, "big"))
        self._db.write(batch, self._unlogged)

    @property
    def changelog_offset(self) -> int | None:
        """Offset of the last changelog record in this database, ``None`` for a new one."""
        raw = self.get(OFFSET_KEY)
        return None if raw is None else int.from_bytes(raw, "big")

    def close(self) -> None:
        """Flush, and release the database and its lock."""
        self._db.flush()
        self._db.close()


class RecordCache:
    """Decoded records of one partition that committed turns used last, so that a hot record is decoded once.

    Bounded by number; the oldest half goes when it is full. A turn changes records in place, so a turn that fails must take the
    cache with it.
    """

    def __init__(self, records_max: int = 20_000) -> None:
        self.records: dict[bytes, msgspec.Struct] = {}
        self._records_max = records_max

    def keep(self, records: Iterable[tuple[bytes, msgspec.Struct | None]]) -> None:
        """Remember what a turn used."""
        cached = self.records
        for key, record in records:
            cached.pop(key, None)
            if record is not None:
                cached[key] = record
        if len(cached) > self._records_max:
            for key in list(cached)[: len(cached) - self._records_max // 2]:
                del cached[key]


class WorkingSet:
    """The records that one turn reads and changes, decoded once and encoded once.

    Engines get records as objects, change them and ``put`` them back; nothing reaches the store before the turn is committed.
    """

    def __init__(self, reader: Reader, cache: RecordCache | None = None) -> None:
        self._reader = reader
        self._cache = cache
        self._cached: dict[bytes, msgspec.Struct] = {} if cache is None else cache.records
        self._records: dict[bytes, msgspec.Struct | None] = {}
        self._changed: dict[bytes, None] = {}

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load records with one multi-get; only an optimisation, ``get`` loads what is missing."""
        records, cached = self._records, self._cached
        wanted: list[bytes] = []
        for key in keys:
            if key in records:
                continue
            record = records[key] = cached.get(key)
            if record is None:
                wanted.append(key)
        for key, raw in zip(wanted, self._reader.get_many(wanted), strict=True):
            if raw is not None:
                records[key] = _decoders[key[:1]].decode(raw)

    def committed(self) -> None:
        """The turn is committed: what it changed may serve the next one, which most often goes on with just that."""
        if self._cache is not None:
            records = self._records
            self._cache.keep([(key, records[key]) for key in self._changed])

    def get(self, key: bytes, kind: type[S]) -> S | None:
        """The record as this turn sees it, or ``None``."""
        try:
            record = self._records[key]
        except KeyError:
            record = self._cached.get(key)
            if record is None:
                raw = self._reader.get(key)
                record = None if raw is None else _decoders[key[:1]].decode(raw)
            self._records[key] = record
        assert record is None or type(record) is kind, f"{key!r} holds {type(record).__name__}"
        return record

    def put(self, key: bytes, record: msgspec.Struct) -> None:
        """Set a record; also needed after a change in place."""
        self._records[key] = record
        self._changed[key] = None

    def delete(self, key: bytes) -> None:
        """Remove a record."""
        self._records[key] = None
        self._changed[key] = None

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
        if key not in self._records:
            cached = self._cached.get(key)
            self._records[key] = _decoders[key[:1]].decode(raw) if cached is None else cached
        record = self.get(key, kind)
        if record is not None:
            yield key, record

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and new bytes of all that was changed; ``None`` is a removal."""
        records = self._records
        encode = _encoder.encode
        return [(key, None if (record := records[key]) is None else encode(record)) for key in self._changed]
