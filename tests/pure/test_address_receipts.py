"""Names of receipts: all that changes an answer or its tenant changes the key, and nothing else does (K1, K3, K4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.address import (
    ReceiptAddresser,
    Unaddressable,
    auth_scope_digest,
    receipt_key,
    window_index,
)
from schemas.canonical import UncanonicalValue, canonical
from tests.support.addresses import ASK, SCOPE, all_differ, is_digest, names, texts

# --- K1: receipts ------------------------------------------------------------------------------------------------------


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


# --- K3: auth scopes ---------------------------------------------------------------------------------------------------


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


# --- K4: windows -------------------------------------------------------------------------------------------------------


def test_K4_the_window_changes_at_its_edge_and_absent_never_does() -> None:
    assert [window_index(second, 60) for second in (0, 59, 60, 119, 120)] == [0, 0, 1, 1, 2]
    assert window_index(10**10, None) is None


@pytest.mark.parametrize("stale_after_seconds", [0, -1])
def test_K4_always_fresh_has_no_window(stale_after_seconds: int) -> None:
    with pytest.raises(Unaddressable, match=r"^stale_after_seconds: "):
        window_index(0, stale_after_seconds)
