"""Names made from what they name: alike in any process, never one name for two things (K1, K3 to K7)."""

import hashlib
import itertools
import subprocess
import sys
from typing import Any

import pytest
from aiokafka.partitioner import murmur2  # type: ignore[import-untyped]  # aiokafka ships no types
from hypothesis import given
from hypothesis import strategies as st

from schemas import address
from schemas.address import (
    ReceiptAddresser,
    RowScope,
    Unaddressable,
    auth_scope_digest,
    batch_key,
    batch_provider_key,
    call_id,
    child_run_id,
    partition_of,
    payload_digest,
    provider_key,
    receipt_key,
    refresh_id,
    request_id,
    request_id_without_receipt,
    revision,
    row_key,
    spread,
    window_index,
)
from schemas.canonical import UncanonicalValue, canonical

# Texts made of what a joining of fields could stumble over.
texts = st.text(st.sampled_from('ab:|,"[]%25A\\ 0'), max_size=6)
names = texts.filter(bool)

ASK: dict[str, Any] = {
    "org": "org",
    "scope": "play",
    "tool": "acme.verify",
    "input": {"email": "ada@example.com"},
    "auth_scope": "592ac73911dd397da1553134dd4e62016cd25d87",
    "action_version": "1",
    "window": None,
}
SCOPE: dict[str, Any] = {
    "provider": "acme",
    "base_url": "https://api.acme.test/v2",
    "secret_reference": "env:ACME_KEY",
    "account": None,
}
CHILD: dict[str, Any] = {
    "parent_run": "run",
    "parent_play": "p",
    "call_key": "k",
    "child_play": "c",
    "child_revision": "rev",
    "input": {"n": 1},
    "row_scope": RowScope("f", "0", "rk", "ns"),
}
RECEIPT = "ec898669477c7d40ec197527b3f0ad3f83ed183a"


def is_digest(name: str) -> bool:
    return len(name) == address.DIGEST_CHARS and set(name) <= set("0123456789abcdef")


def all_differ(names: list[str]) -> bool:
    return len(set(names)) == len(names)


# ---- golden values: a change here orphans every receipt ever stored


GOLDEN = {
    "auth_scope": (auth_scope_digest(**SCOPE), "592ac73911dd397da1553134dd4e62016cd25d87"),
    "receipt": (receipt_key(**ASK), "ec898669477c7d40ec197527b3f0ad3f83ed183a"),
    "provider": (provider_key(RECEIPT, 0, 1), "b7428a3c67e2696f8c3b686552a42c9e2fb50153"),
    "provider_forced": (
        provider_key(RECEIPT, 1, 2, invocation=("run", "run:0:email")),
        "0fe09c8eaecda4d44881f900bba3bf2e6dd333b9",
    ),
    "batch": (
        batch_key("acme.verify_many", [RECEIPT, RECEIPT]),
        "batch:d6e36a1d041822117aa91eb3280a241ee7248ae5",
    ),
    "payload": (payload_digest(b"{}"), "18e966ce709b2ee07741082d0f1ab9109bd30afc"),
    "batch_provider": (
        batch_provider_key("batch:b", ["k1", "k2"], "digest"),
        "2eec007eda1e4d8f0bf48920cd35f5676e56e30d",
    ),
    "child_run": (child_run_id(**CHILD), "9be24e99e872dc242e0d1fb929500f7dfc106a14"),
    "child_run_of_no_row": (
        child_run_id(**{**CHILD, "row_scope": None}),
        "b33af2eba372c3a74aa65b94b871d011c4d31c39",
    ),
    "revision": (revision({"columns": []}), "c977f313739152fd5bb3b982a40dbf7ab2c5074c"),
    "request": (request_id("key"), "777c113602dad2b18d0822039e26cb8df8b1fe98"),
    "request_without_receipt": (
        request_id_without_receipt("run", "tool", "run:0:c", 1),
        "1d368838bad751ef23570e27a55b5ec86b5b4789",
    ),
    "refresh_of_run": (refresh_id(run="run"), "d0ce0b911f7c889746eca959113bb8bc7616242b"),
    "refresh_of_call": (
        refresh_id(run="run", call="run:0:c", number=1),
        "4670ce746324615614fe5af9ea689d3628dc9e01",
    ),
    "row_by_key": (
        row_key("contacts", ["email"], {"email": "ada@example.com", "n": 1}),
        "8b5b19ee863429aaed0f8ee42fe87dc63c9c017c",
    ),
    "row_by_all": (
        row_key("contacts", [], {"email": "ada@example.com", "n": 1}),
        "6e7d7f5723fec3b38ed0bc5d366d404ab94beb75",
    ),
}


@pytest.mark.parametrize(("name", "golden"), GOLDEN.values(), ids=GOLDEN)
def test_golden_every_name_is_what_it_always_was(name: str, golden: str) -> None:
    assert name == golden


def test_golden_a_name_can_be_made_by_hand_from_what_the_module_says() -> None:
    preimage = b'["receipt","org","play","acme.verify","' + ASK["auth_scope"].encode() + b'","1",null,{"email":"ada@example.com"}]'
    assert hashlib.blake2b(preimage, digest_size=20).hexdigest() == RECEIPT
    for name, by_hand in {
        "provider_forced": f'["provider","{RECEIPT}",1,2,"run","run:0:email"]',
        "batch_provider": '["batch-provider","batch:b",["k1","k2"],"digest"]',
        "child_run": '["child-run","run","p","k","c","rev",{"n":1},["f","0","rk","ns"]]',
        "row_by_key": '["row-key","contacts",{"email":"ada@example.com"}]',
        "row_by_all": '["row","contacts",{"email":"ada@example.com","n":1}]',
        "payload": '["payload"]{}',
    }.items():
        assert hashlib.blake2b(by_hand.encode(), digest_size=20).hexdigest() == GOLDEN[name][0]


def test_golden_partitions_are_what_they_always_were() -> None:
    assert [partition_of(f"run-{n}", 8) for n in range(10)] == [1, 5, 1, 1, 3, 4, 2, 4, 4, 2]
    assert [spread(f"run-{n}", 8) for n in range(10)] == [5, 3, 1, 7, 4, 2, 0, 6, 7, 1]


def test_K1_another_process_with_another_hash_seed_makes_the_same_key() -> None:
    program = f"from schemas.address import receipt_key; print(receipt_key(**{ASK!r}))"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert done.stdout.strip() == RECEIPT, done.stderr


# ---- K1: receipts

asks = st.fixed_dictionaries(
    {
        "org": names,
        "scope": st.none() | names,
        "tool": names,
        "input": st.dictionaries(texts, texts, max_size=2),
        "auth_scope": names,
        "action_version": names,
        "window": st.none() | st.integers(0, 3),
    }
)


@given(asks, asks)
def test_K1_two_asks_share_a_key_only_if_they_are_one(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (receipt_key(**left) == receipt_key(**right)) == (left == right)


@given(asks)
def test_K1_the_addresser_and_canonical_input_give_the_same_key(ask: dict[str, Any]) -> None:
    text = canonical(ask["input"])
    constant = {field: fact for field, fact in ask.items() if field != "input"}
    addresser = ReceiptAddresser(**constant)
    assert addresser.key(text) == addresser.key(text) == receipt_key(**ask) == receipt_key(**{**ask, "input": text})
    assert is_digest(addresser.key(text))


@pytest.mark.parametrize("field", ["org", "tool", "auth_scope", "action_version", "scope"])
def test_K1_an_empty_field_is_an_error_that_names_it(field: str) -> None:
    with pytest.raises(Unaddressable, match=rf"^{field}: empty") as refusal:
        receipt_key(**{**ASK, field: ""})
    assert refusal.value.field == field


def test_K2_one_input_in_two_spellings_has_one_key() -> None:
    assert receipt_key(**{**ASK, "input": {"b": 1, "a": 2.0}}) == receipt_key(**{**ASK, "input": {"a": 2, "b": 1.0}})


def test_case_D3_integers_beyond_a_double_have_keys_of_their_own() -> None:
    numbers: list[object] = [
        2**53,
        2**53 + 1,
        2**63,
        2**64,
        19933688932870350000,
        -(2**63) - 1,
        0,
        0.1 + 0.2,
        None,
        "0",
    ]
    assert all_differ([receipt_key(**{**ASK, "input": {"n": number}}) for number in numbers])
    with pytest.raises(UncanonicalValue, match=r"^\$\.n: nan"):
        receipt_key(**{**ASK, "input": {"n": float("nan")}})


def test_case_D6_all_that_changes_the_answer_or_the_tenant_changes_the_key() -> None:
    def key(scope: dict[str, Any], ask: dict[str, Any]) -> str:
        return receipt_key(**{**ASK, "auth_scope": auth_scope_digest(**{**SCOPE, **scope}), **ask})

    assert all_differ(
        [
            key({}, {}),
            key({}, {"action_version": "2"}),
            key({}, {"input": {"email": "ada@example.com", "model": "large"}}),
            key({}, {"tool": "acme.find"}),
            key({}, {"scope": None}),
            key({}, {"org": "another"}),
            key({}, {"window": 0}),
            key({"base_url": "https://eu.acme.test/v2"}, {}),
            key({"secret_reference": "env:ACME_KEY_B"}, {}),
            key({"account": "tenant-b"}, {}),
            key({"provider": "acme2"}, {}),
        ]
    )


def test_case_D6_run_row_pace_batch_and_the_secrets_value_have_no_way_into_the_key() -> None:
    """What must not matter is no parameter at all, so it cannot be passed by mistake."""
    allowed = {"org", "scope", "tool", "input", "auth_scope", "action_version", "window"}
    assert set(receipt_key.__annotations__) - {"return"} == allowed
    assert set(auth_scope_digest.__annotations__) - {"return"} == {
        "provider",
        "base_url",
        "secret_reference",
        "account",
    }


# ---- K3: auth scopes

scopes = st.fixed_dictionaries(
    {
        "provider": names,
        "base_url": st.sampled_from(["https://a.test", "https://b.test/v1"]),
        "secret_reference": st.none() | names,
        "account": names,
    }
)


@given(scopes, scopes)
def test_K3_two_scopes_share_a_name_only_if_they_are_one(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (auth_scope_digest(**left) == auth_scope_digest(**right)) == (left == right)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"secret_reference": None}, "auth_scope"),
        ({"secret_reference": ""}, "auth_scope"),
        ({"secret_reference": "", "account": "a"}, "secret_reference"),
        ({"account": ""}, "account"),
        ({"provider": ""}, "provider"),
        ({"base_url": ""}, "base_url"),
        ({"base_url": "api.acme.test"}, "base_url"),
        ({"base_url": "https:///v2"}, "base_url"),
        ({"base_url": "https://[::1"}, "base_url"),
        ({"base_url": "https://acme.test:port"}, "base_url"),
        ({"base_url": "https://acme.test:99999"}, "base_url"),
        ({"base_url": "https://ada:hush@acme.test"}, "base_url"),
        ({"base_url": "https://acme.test?key=hush"}, "base_url"),
        ({"base_url": "https://acme.test#hush"}, "base_url"),
    ],
)
def test_K3_an_unknown_scope_is_an_error_that_repeats_no_secret(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Unaddressable) as refusal:
        auth_scope_digest(**{**SCOPE, **change})
    assert refusal.value.field == field
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("HTTPS://Api.Acme.Test/v2", "https://api.acme.test/v2/"),
        ("https://acme.test:443", "https://acme.test/"),
        ("http://acme.test:80/a", "http://acme.test/a"),
        ("http://[::1]:80/a", "http://[::1]/a"),
        ("python:acme.tools", "python:acme.tools"),
    ],
)
def test_K3_one_service_in_two_spellings_is_one_scope(left: str, right: str) -> None:
    assert auth_scope_digest(**{**SCOPE, "base_url": left}) == auth_scope_digest(**{**SCOPE, "base_url": right})


def test_K3_path_case_port_and_scheme_tell_services_apart() -> None:
    urls = [
        "https://a.test/v",
        "https://a.test/V",
        "https://a.test:80/v",
        "http://a.test/v",
        "http://a.test:443/v",
        "python:a",
    ]
    assert all_differ([auth_scope_digest(**{**SCOPE, "base_url": url}) for url in urls])


# ---- K4: windows


def test_K4_the_window_changes_at_its_edge_and_absent_never_does() -> None:
    assert [window_index(second, 60) for second in (0, 59, 60, 119, 120)] == [0, 0, 1, 1, 2]
    assert window_index(10**10, None) is None


@pytest.mark.parametrize("stale_after_seconds", [0, -1])
def test_K4_always_fresh_has_no_window(stale_after_seconds: int) -> None:
    with pytest.raises(Unaddressable, match=r"^stale_after_seconds: "):
        window_index(0, stale_after_seconds)


# ---- K5, K6: idempotency keys

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


# ---- K7: derived ids


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


# ---- rows


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


# ---- partitions


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


@given(st.text(st.sampled_from("0123456789abcdefZ"), min_size=1, max_size=40), st.integers(0, 9), st.integers(1, 2**70))
def test_K5_K7_names_written_out_for_speed_are_those_of_the_canonical_text(receipt: str, epoch: int, op: int) -> None:
    def digest(fields: list[object]) -> str:
        return hashlib.blake2b(canonical(fields), digest_size=20).hexdigest()

    assert provider_key(receipt, epoch, op) == digest(["provider", receipt, epoch, op, None, None])
    assert request_id(receipt) == digest(["request", receipt])
