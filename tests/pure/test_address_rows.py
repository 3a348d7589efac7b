"""Where rows and keys live: one row key for one row, and the partitions of Kafka's own clients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from aiokafka.partitioner import murmur2  # type: ignore[import-untyped]  # aiokafka ships no types
from hypothesis import given
from hypothesis import strategies as st

from schemas.address import (
    Unaddressable,
    call_id,
    partition_of,
    row_key,
    spread,
)
from schemas.canonical import UncanonicalValue
from tests.support.addresses import is_digest, names, texts

# --- rows --------------------------------------------------------------------------------------------------------------


@given(st.dictionaries(names, st.integers(0, 3) | names, min_size=1, max_size=3), st.data())
def test_a_row_with_key_columns_is_known_by_them_alone(row: dict[str, Any], data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, unique=True))
    key = row_key("dataset", columns, row)
    assert is_digest(key)
    assert key == row_key("dataset", columns[::-1], {**row, "another column": 1})
    assert key != row_key("another", columns, row)
    assert key != row_key("dataset", columns, {**row, columns[0]: "another value"})


@given(*itertools.repeat(st.dictionaries(texts, st.none() | st.integers(0, 3) | texts, max_size=3), 2))
def test_a_row_without_key_columns_is_known_by_all_of_it(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (row_key("dataset", [], left) == row_key("dataset", [], right)) == (left == right)


def test_text_and_number_are_two_keys_and_key_columns_count_by_name() -> None:
    assert row_key("d", ["id"], {"id": "1"}) != row_key("d", ["id"], {"id": 1})
    assert row_key("d", ["id"], {"id": 1}) == row_key("d", ["id"], {"id": 1.0})
    assert row_key("d", ["id"], {"id": 1}) != row_key("d", ["no"], {"no": 1})


@pytest.mark.parametrize(("row", "what"), [({"a": 1}, "missing in the row"), ({"id": None}, "null in the row")])
def test_a_row_without_its_key_is_an_error_that_names_the_field(row: dict[str, Any], what: str) -> None:
    with pytest.raises(Unaddressable, match=rf"^id: {what}") as refusal:
        row_key("contacts", ["id"], row)
    assert refusal.value.field == "id"


@pytest.mark.parametrize("columns", [["score"], []])
def test_case_D3_a_row_key_that_json_lacks_is_refused_by_its_column(columns: list[str]) -> None:
    with pytest.raises(UncanonicalValue, match=r"^\$\.score: inf"):
        row_key("contacts", columns, {"score": float("inf")})


# --- partitions --------------------------------------------------------------------------------------------------------


def test_partitions_are_those_of_kafkas_own_clients() -> None:
    for n in range(5000):
        for key in (f"run-{n}", "é" * (n % 7) + str(n * 7919), "x" * (n % 40)):
            assert partition_of(key, 8) == (murmur2(key.encode()) & 0x7FFF_FFFF) % 8


@given(st.binary(), st.integers(1, 1000))
def test_any_bytes_go_where_kafkas_own_clients_send_them(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFF_FFFF) % partitions


@given(texts, st.integers(1, 100))
def test_spread_stays_within_and_is_stable(key: str, partitions: int) -> None:
    assert 0 <= spread(key, partitions) < partitions
    assert spread(key, partitions) == spread(key, partitions)


def test_spread_is_even() -> None:
    counts = [0] * 8
    for n in range(8000):
        counts[spread(call_id("run", n, "email"), 8)] += 1
    assert min(counts) > 800


@pytest.mark.parametrize("route", [partition_of, spread])
def test_there_is_at_least_one_partition(route: Any) -> None:
    with pytest.raises(Unaddressable, match=r"^partitions: 0"):
        route("key", 0)
