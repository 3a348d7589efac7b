"""The table: what a turn sees of its records, what the cache may serve, and what RocksDB keeps."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.states import ASK, VALUE, Ask, StoredValue, record_key
from streams.table import OFFSET_KEY, Reader, RecordCache, Store, StoreMemory, WorkingSet
from tests.support.memory import DictReader

A, B, C = (record_key(ASK, name) for name in "abc")


def raw(text: bytes) -> bytes:
    """An ``Ask`` as it is stored."""
    return msgspec.msgpack.encode(Ask(text))


class CountingReader(DictReader):
    """A store that is a dictionary and remembers which records were read from it."""

    def __init__(self, data: dict[bytes, bytes]) -> None:
        super().__init__()
        self.data = data
        self.asked: list[bytes] = []
        self.multi_gets = 0

    def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return super().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self.asked += keys
        self.multi_gets += 1
        return super().get_many(keys)


def commit(records: WorkingSet, reader: DictReader) -> None:
    """What the turn does: write the changes, then let the cache have them."""
    for key, value in (records.changes() | records.local_changes()).items():
        if value is None:
            reader.data.pop(key, None)
        else:
            reader.data[key] = value
    records.committed()


# --- the working set ----------------------------------------------------------------------------------------

KEYS = st.sampled_from([record_key(ASK, *parts) for parts in ((), ("a",), ("a", "b"), ("a", "c"), ("b",), ("é",))])
TEXTS = st.binary(max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, TEXTS),
    st.tuples(st.just("change"), KEYS, TEXTS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("prefetch"), st.lists(KEYS, max_size=4)),
    st.tuples(st.just("scan"), st.sampled_from([ASK, record_key(ASK, "a"), record_key(ASK, "a", "")]), st.none() | KEYS),
)
#: Turns of steps, each of which is committed or not.
TURNS = st.lists(st.tuples(st.lists(STEPS, max_size=12), st.booleans()), max_size=5)


def take(step: tuple[object, ...], records: WorkingSet, model: dict[bytes, bytes]) -> None:
    """One step of a turn, and what it must show."""
    match step:
        case ("put", bytes() as key, bytes() as text):
            records.put(key, Ask(text))
            model[key] = text
        case ("change", bytes() as key, bytes() as text):
            record = records.get(key, Ask)
            if record is not None:
                record.input = text
                records.put(key, record)
                model[key] = text
        case ("delete", bytes() as key):
            records.delete(key)
            model.pop(key, None)
        case ("get", bytes() as key):
            record = records.get(key, Ask)
            assert (None if record is None else record.input) == model.get(key)
        case ("prefetch", list() as keys):
            records.prefetch(keys)
        case ("scan", bytes() as prefix, bytes() | None as after):
            expected = [(key, model[key]) for key in sorted(model) if key.startswith(prefix) and (after is None or key > after)]
            assert [(key, record.input) for key, record in records.scan(prefix, Ask, after)] == expected


@settings(max_examples=60)
@given(st.dictionaries(KEYS, TEXTS), TURNS, st.sampled_from([None, 0, 2, 100]))
def test_a_turn_sees_its_own_changes_over_what_is_stored_in_key_order(
    stored: dict[bytes, bytes], turns: list[tuple[list[tuple[object, ...]], bool]], cached: int | None
) -> None:
    reader = DictReader()
    # Neighbours of other prefixes, which nothing here may show or touch.
    neighbours = {VALUE + b"a": msgspec.msgpack.encode(StoredValue(b"1")), b"a": b"?", OFFSET_KEY: b"?"}
    reader.data = {key: raw(text) for key, text in stored.items()} | neighbours
    cache = None if cached is None else RecordCache(cached)
    standing = dict(stored)
    for steps, committed in turns:
        records, model = WorkingSet(reader, cache), dict(standing)
        for step in steps:
            take(step, records, model)
        if committed:
            commit(records, reader)
            standing = model
        elif cache is not None:
            cache = RecordCache(cached or 0)  # a turn that fails takes the cache with it
        assert reader.data == {key: raw(text) for key, text in standing.items()} | neighbours


def test_a_scan_goes_on_while_what_it_shows_is_changed() -> None:
    reader = CountingReader({A: raw(b"1"), B: raw(b"2"), C: raw(b"3")})
    records = WorkingSet(reader)
    seen = []
    for key, record in records.scan(ASK, Ask):
        seen.append((key, record.input))
        records.delete(key)
        if key == A:
            records.put(C, Ask(b"4"))
    assert seen == [(A, b"1"), (B, b"2"), (C, b"4")]
    assert list(records.scan(ASK, Ask)) == []


def test_a_change_in_place_is_written_only_when_it_is_put() -> None:
    records = WorkingSet(CountingReader({A: raw(b"1")}))
    record = records.get(A, Ask)
    assert record is not None
    record.input = b"2"
    assert records.changes() == {}
    records.put(A, record)
    assert records.changes() == {A: raw(b"2")}


def test_changes_are_named_once_with_their_last_bytes_in_the_order_of_the_first_change() -> None:
    records = WorkingSet(CountingReader({}))
    records.put(B, Ask(b"1"))
    records.delete(A)
    records.put(B, Ask(b"2"))
    records.put(C, Ask(b"3"))
    records.delete(C)
    assert list(records.changes().items()) == [(B, raw(b"2")), (A, None), (C, None)]


def test_a_record_is_read_once_a_turn_and_is_the_same_object() -> None:
    reader = CountingReader({A: raw(b"1")})
    records = WorkingSet(reader)
    assert records.get(A, Ask) is records.get(A, Ask)
    assert records.get(B, Ask) is records.get(B, Ask) is None
    assert [key for key, _ in records.scan(ASK, Ask)] == [A]
    assert reader.asked == [A, B]


def test_prefetched_records_are_read_with_one_multi_get_missing_ones_too() -> None:
    reader = CountingReader({A: raw(b"1")})
    records = WorkingSet(reader)
    records.put(C, Ask(b"3"))
    records.prefetch([A, B, C, A])
    assert reader.asked == [A, B]
    assert records.get(A, Ask) == Ask(b"1")
    assert records.get(B, Ask) is None
    assert records.get(C, Ask) == Ask(b"3")
    assert (reader.asked, reader.multi_gets) == ([A, B], 1)


def test_a_record_of_another_kind_is_a_defect_that_names_the_key() -> None:
    with pytest.raises(AssertionError, match=r"b'ia' holds Ask"):
        WorkingSet(CountingReader({A: raw(b"1")})).get(A, StoredValue)


# --- the cache ----------------------------------------------------------------------------------------------


def test_what_a_committed_turn_changed_serves_the_next_without_the_store() -> None:
    reader, cache = CountingReader({B: raw(b"2")}), RecordCache()
    first = WorkingSet(reader, cache)
    changed = Ask(b"1")
    first.put(A, changed)
    assert first.get(B, Ask) == Ask(b"2")
    commit(first, reader)
    reader.asked.clear()
    second = WorkingSet(reader, cache)
    assert second.get(A, Ask) is changed
    assert reader.asked == []
    assert second.get(B, Ask) == Ask(b"2")
    assert reader.asked == [B]


def test_prefetch_and_scan_take_a_cached_record_instead_of_decoding_again() -> None:
    reader, cache = CountingReader({}), RecordCache()
    first = WorkingSet(reader, cache)
    changed = Ask(b"1")
    first.put(A, changed)
    commit(first, reader)
    second = WorkingSet(reader, cache)
    second.prefetch([A])
    assert second.get(A, Ask) is changed
    assert next(record for _, record in WorkingSet(reader, cache).scan(ASK, Ask)) is changed
    assert reader.asked == []


def test_what_a_committed_turn_deleted_is_gone_from_the_cache() -> None:
    reader, cache = CountingReader({}), RecordCache()
    for records in (WorkingSet(reader, cache), WorkingSet(reader, cache)):
        if records.get(A, Ask) is None:
            records.put(A, Ask(b"1"))
        else:
            records.delete(A)
        commit(records, reader)
    assert not any(cache.records.values())
    assert WorkingSet(reader, cache).get(A, Ask) is None


def test_a_turn_that_is_not_committed_leaves_nothing_in_the_cache() -> None:
    cache = RecordCache()
    WorkingSet(CountingReader({}), cache).put(A, Ask(b"1"))
    assert cache.records == {}


def test_a_full_cache_keeps_what_was_changed_last() -> None:
    cache = RecordCache(10)
    for number in range(100):
        cache.keep({bytes([number]): Ask(b"")})
        cache.keep({b"hot": Ask(b"")})
        assert len(cache.records) <= 10
        assert {bytes([number]), b"hot"} <= cache.records.keys()


def test_one_large_turn_does_not_exceed_the_bound_of_the_cache() -> None:
    cache = RecordCache(10)
    cache.keep({bytes([number]): Ask(b"") for number in range(100)})
    assert len(cache.records) <= 10
    assert bytes([99]) in cache.records


# --- the store ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def memory() -> StoreMemory:
    return StoreMemory(write_buffer_bytes=4 << 20, cache_bytes=1 << 20)


@pytest.fixture(params=["dictionary", "rocksdb"])
def reader(request: pytest.FixtureRequest, tmp_path: Path, memory: StoreMemory) -> Iterator[Reader]:
    """Every implementation of the port, with the same records."""
    records = {key: key.upper() for key in (b"a", b"i", b"i\x00", b"i\x00a", b"ia", b"ib", b"i\xff\xff", b"j", b"\xff")}
    if request.param == "dictionary":
        yield CountingReader(records)
        return
    with closing(Store(tmp_path / "0", memory)) as store:
        store.write(records, changelog_offset=0)
        yield store


def test_a_reader_finds_records_by_key_in_the_order_asked_for(reader: Reader) -> None:
    assert reader.get(b"ia") == b"IA"
    assert reader.get(b"nothing") is None
    assert reader.get_many([b"j", b"nothing", b"i", b"j"]) == [b"J", None, b"I", b"J"]
    assert reader.get_many([]) == []


def test_a_reader_scans_a_prefix_in_the_order_of_bytes(reader: Reader) -> None:
    assert [key for key, _ in reader.scan(b"i")] == [b"i", b"i\x00", b"i\x00a", b"ia", b"ib", b"i\xff\xff"]
    assert list(reader.scan(b"ib")) == [(b"ib", b"IB")]
    assert list(reader.scan(b"k")) == []
    assert list(reader.scan(b"\xff")) == [(b"\xff", b"\xff")]


def test_a_reader_scans_on_behind_a_key_that_need_not_exist(reader: Reader) -> None:
    assert [key for key, _ in reader.scan(b"i", b"i\x00a")] == [b"ia", b"ib", b"i\xff\xff"]
    assert [key for key, _ in reader.scan(b"i", b"i")] == [b"i\x00", b"i\x00a", b"ia", b"ib", b"i\xff\xff"]
    assert [key for key, _ in reader.scan(b"i", b"iab")] == [b"ib", b"i\xff\xff"]
    assert list(reader.scan(b"i", b"i\xff\xff")) == []


@settings(max_examples=6)
@given(
    st.lists(
        st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.none() | st.binary(max_size=3)), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_a_store_keeps_what_a_dictionary_would_also_over_reopening(
    memory: StoreMemory, batches: list[list[tuple[bytes, bytes | None]]]
) -> None:
    model: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for offset, batch in enumerate(batches):
            with closing(Store(Path(folder) / "0", memory)) as store:
                store.write(dict(batch), changelog_offset=offset)
            for key, value in batch:
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
        with closing(Store(Path(folder) / "0", memory)) as store:
            assert {key: value for key, value in store.scan(b"") if key != OFFSET_KEY} == model
            assert store.changelog_offset == len(batches) - 1


def test_a_new_store_has_no_offset_and_makes_its_folders(tmp_path: Path, memory: StoreMemory) -> None:
    with closing(Store(tmp_path / "tables" / "rows" / "7", memory)) as store:
        assert store.changelog_offset is None
        store.write({}, changelog_offset=2**40)
        assert store.changelog_offset == 2**40
    assert (tmp_path / "tables" / "rows" / "7").is_dir()


def test_a_second_opening_fails_and_names_the_folders_lock(tmp_path: Path, memory: StoreMemory) -> None:
    """Two owners of one database would each overwrite what the other wrote."""
    with closing(Store(tmp_path / "0", memory)) as store:
        store.write({A: b"1"}, changelog_offset=0)
        with pytest.raises(Exception, match=rf"lock.*{tmp_path / '0' / 'LOCK'}"):
            Store(tmp_path / "0", memory)
        assert store.get(A) == b"1"
    with closing(Store(tmp_path / "0", memory)) as store:
        assert store.get(A) == b"1"


def test_what_a_killed_process_leaves_is_as_old_as_its_offset_says(tmp_path: Path, memory: StoreMemory) -> None:
    """There is no write-ahead log: recovery reads the changelog behind the offset, so data and offset must be of one moment."""
    with closing(Store(tmp_path / "0", memory)) as store:
        store.write({A: b"1", B: b"1"}, changelog_offset=1)
    with closing(Store(tmp_path / "0", memory)) as store:
        store.write({A: b"2", B: None}, changelog_offset=2)
        shutil.copytree(tmp_path / "0", tmp_path / "killed", ignore=shutil.ignore_patterns("LOCK"))
    with closing(Store(tmp_path / "killed", memory)) as left:
        assert (left.changelog_offset, left.get(A), left.get(B)) in [(1, b"1", b"1"), (2, b"2", None)]


def test_a_closed_store_answers_nothing(tmp_path: Path, memory: StoreMemory) -> None:
    store = Store(tmp_path / "0", memory)
    store.close()
    with pytest.raises(Exception, match="closed"):
        store.get(A)


def test_a_working_set_folds_into_a_real_store(tmp_path: Path, memory: StoreMemory) -> None:
    with closing(Store(tmp_path / "0", memory)) as store:
        store.write({A: raw(b"1"), C: raw(b"3")}, changelog_offset=0)
        records = WorkingSet(store)
        records.put(B, Ask(b"2"))
        records.delete(C)
        assert [(key, record.input) for key, record in records.scan(ASK, Ask)] == [(A, b"1"), (B, b"2")]
        store.write(records.changes(), changelog_offset=1)
        assert list(store.scan(ASK)) == [(A, raw(b"1")), (B, raw(b"2"))]


def test_what_gathers_is_read_like_what_is_stored_and_is_lost_together_with_its_offset(tmp_path: Path, memory: StoreMemory) -> None:
    with closing(Store(tmp_path / "0", memory, pending_max=3)) as store:
        store.write({A: b"1", B: b"2"}, {C: b"local"}, changelog_offset=4)  # as many as may gather: stored
        store.write({A: b"3", B: None}, changelog_offset=7)  # gathers
        assert (store.get(A), store.get(B), store.get_many([C, B, A]), store.changelog_offset) == (
            b"3",
            None,
            [b"local", None, b"3"],
            7,
        )
        raw_offset = store._db.get(OFFSET_KEY)
        assert (store._db.get(A), store._db.get(B), int.from_bytes(raw_offset, "big")) == (b"1", b"2", 4)
        assert dict(store.scan(b"")) == {OFFSET_KEY: (7).to_bytes(8, "big"), A: b"3", C: b"local"}
    with closing(Store(tmp_path / "0", memory)) as store:
        assert (store.get(A), store.get(B), store.changelog_offset) == (b"3", None, 7)
