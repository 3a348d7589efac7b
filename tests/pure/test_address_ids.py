"""Idempotency keys and derived ids: alike in any process, never one name for two things (K5 to K7)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import address
from schemas.address import (
    RowScope,
    Unaddressable,
    batch_key,
    batch_provider_key,
    call_id,
    child_run_id,
    payload_digest,
    provider_key,
    refresh_id,
    request_id,
    request_id_without_receipt,
    revision,
    row_key,
)
from schemas.canonical import canonical
from tests.support.addresses import CHILD, all_differ, is_digest, names, texts

# --- K5, K6: idempotency keys ------------------------------------------------------------------------------------------


operations = st.tuples(names, st.integers(0, 3), st.integers(0, 3), st.none() | st.tuples(names, names))


@given(operations, operations)
def test_K5_two_operations_share_a_key_only_if_they_are_one(left: Any, right: Any) -> None:
    def key(operation: Any) -> str:
        return provider_key(*operation[:3], invocation=operation[3])

    assert (key(left) == key(right)) == (left == right)
    assert is_digest(key(left))


batches = st.tuples(names, st.lists(names, min_size=1, max_size=3))


@given(batches, batches)
def test_K6_a_batch_is_its_operation_and_its_members_in_order(left: Any, right: Any) -> None:
    assert (batch_key(*left) == batch_key(*right)) == (left == right)
    of_calls = [batch_provider_key(operation, keys, "digest") for operation, keys in (left, right)]
    assert (of_calls[0] == of_calls[1]) == (left == right)
    assert batch_key(*left).startswith("batch:")
    assert is_digest(batch_key(*left).removeprefix("batch:"))


def test_K6_a_batch_call_depends_on_its_payload_and_no_batch_is_empty() -> None:
    keys = [batch_provider_key("batch:b", ["k"], payload_digest(payload)) for payload in (b"", b"{}", b"[]")]
    assert all_differ(keys)
    with pytest.raises(Unaddressable, match=r"^members: "):
        batch_key("operation", [])
    with pytest.raises(Unaddressable, match=r"^members: "):
        batch_provider_key("batch:b", [], "digest")


# --- K7: derived ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", CHILD)
def test_K7_a_child_run_depends_on_each_fact(field: str) -> None:
    """The same facts name the same child in a replay."""
    assert child_run_id(**CHILD) == child_run_id(**CHILD)
    assert child_run_id(**{**CHILD, field: None if field == "row_scope" else "other"}) != child_run_id(**CHILD)


def test_K7_a_row_scope_depends_on_each_part() -> None:
    scope = RowScope("f", "0", "rk", "ns")
    changed = [scope, *(scope._replace(**{part: "other"}) for part in RowScope._fields)]
    assert all_differ([child_run_id(**{**CHILD, "row_scope": each}) for each in changed])


calls = st.tuples(names, names, names, st.integers(1, 3))


@given(calls, calls)
def test_K7_request_ids_tell_requests_apart(left: Any, right: Any) -> None:
    assert (request_id_without_receipt(*left) == request_id_without_receipt(*right)) == (left == right)
    assert (request_id(left[0]) == request_id(right[0])) == (left[0] == right[0])


cells = st.tuples(texts, st.integers(0, 30), texts)


@given(cells, cells)
def test_K7_two_cells_share_a_call_id_only_if_they_are_one(left: Any, right: Any) -> None:
    assert (call_id(*left) == call_id(*right)) == (left == right)


def test_K7_a_call_id_can_be_read() -> None:
    assert call_id("run", 12, "email:best") == "run:12:email:best"
    assert call_id("a:b%", 0, "c") == "a%3Ab%25:0:c"
    with pytest.raises(Unaddressable, match=r"^position: -1"):
        call_id("run", -1, "c")


refreshes = st.fixed_dictionaries({"run": names, "call": st.none() | names, "number": st.integers(0, 3)})


@given(refreshes, refreshes)
def test_K7_refresh_ids_tell_demands_apart(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (refresh_id(**left) == refresh_id(**right)) == (left == right)


def test_names_of_different_kinds_never_meet() -> None:
    """Every kind over one and the same field: the kind alone keeps them apart."""
    name = "x"
    assert all_differ(
        [
            request_id(name),
            revision(name),
            payload_digest(canonical(name)),
            row_key(name, [], {}),
            row_key(name, ["a"], {"a": 1}),
            row_key(name, [], {"a": 1}),
            refresh_id(run=name),
            batch_key(name, [name]),
            batch_provider_key(name, [name], name),
            provider_key(name, 1, 1),
            request_id_without_receipt(name, name, name, 1),
        ]
    )
    # What the batch's name is made of would be the same array as another kind's, but for the kind.
    assert batch_key(name, [name]).removeprefix("batch:") != address._digest("batch-provider", name, [name])


# --- partitions --------------------------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("0123456789abcdefZ"), min_size=1, max_size=40), st.integers(0, 9), st.integers(1, 2**70))
def test_K5_K7_names_written_out_for_speed_are_those_of_the_canonical_text(receipt: str, epoch: int, op: int) -> None:
    def digest(fields: list[object]) -> str:
        return hashlib.blake2b(canonical(fields), digest_size=20).hexdigest()

    assert provider_key(receipt, epoch, op) == digest(["provider", receipt, epoch, op, None, None])
    assert request_id(receipt) == digest(["request", receipt])
