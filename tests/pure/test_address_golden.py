"""Names made from what they name stay what they always were: a change here orphans every receipt ever stored (K1, K3 to K7)."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from schemas.address import (
    auth_scope_digest,
    batch_key,
    batch_provider_key,
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
)
from tests.support.addresses import ASK, CHILD, SCOPE

RECEIPT = "ec898669477c7d40ec197527b3f0ad3f83ed183a"

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
