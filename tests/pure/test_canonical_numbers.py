"""Canonical JSON keeps numbers that other codecs change (case_D3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import canonical as module
from schemas.canonical import (
    INTEGER_DIGITS_MAX,
    InvalidJson,
    UncanonicalValue,
    canonical,
    dump_json,
    normalize,
    parse_json,
)


@pytest.mark.parametrize("digits", [str(n) for n in (2**53 + 1, 2**63, 2**64, 19933688932870350000, -(2**63) - 1)])
def test_case_D3_integers_keep_every_digit_from_text_to_key_and_back(digits: str) -> None:
    value = parse_json(f'{{"n":{digits}}}')
    assert value == {"n": int(digits)}
    assert canonical(value) == dump_json(value) == f'{{"n":{digits}}}'.encode()


@given(st.integers(-(10**60), 10**60), st.integers(-(10**60), 10**60))
def test_case_D3_two_integers_share_a_text_only_if_they_are_one(left: int, right: int) -> None:
    assert (canonical(left) == canonical(right)) == (left == right)


def test_case_D3_minus_zero_is_zero_and_a_sum_keeps_its_last_digit() -> None:
    assert canonical([-0.0, 0, 0.1 + 0.2]) == b"[0,0,0.30000000000000004]"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")])
@pytest.mark.parametrize("write", [canonical, normalize, dump_json])
def test_case_D3_what_is_no_number_is_refused_by_path_and_never_null(number: object, write: Callable[[object], object]) -> None:
    with pytest.raises(UncanonicalValue, match=r"^\$\.row\.score: .* is no JSON number") as refusal:
        write({"row": {"name": "Ada", "score": number}})
    assert refusal.value.path == "$.row.score"


@pytest.mark.parametrize("write", [canonical, normalize, dump_json])
def test_case_D3_an_integer_too_long_for_text_is_refused_the_longest_is_not(
    write: Callable[[object], object],
) -> None:
    longest = 10**INTEGER_DIGITS_MAX - 1
    for sign in (1, -1):
        write({"n": sign * longest})
        for beyond in (sign * (longest + 1), sign * 10**5000):
            with pytest.raises(UncanonicalValue, match=r"^\$\.n: an integer of more than 4300 digits"):
                write({"n": beyond})
    assert canonical(longest) == b"9" * INTEGER_DIGITS_MAX


def test_case_D3_the_limit_on_digits_is_ours_whatever_the_interpreter_allows() -> None:
    """Under another interpreter setting msgspec writes more digits than we carry; its output shows them."""
    many = b"1" * (INTEGER_DIGITS_MAX + 1)
    assert module._quick(lambda value: many, 0) is None
    assert module._quick(lambda value: many[1:], 0) == many[1:]


def test_case_D3_a_long_run_of_digits_inside_a_text_is_only_text() -> None:
    value = {"b": "1" * 5000, "a": 1.5}
    assert canonical(value) == b'{"a":1.5,"b":"' + b"1" * 5000 + b'"}'
    assert dump_json(value) == b'{"b":"' + b"1" * 5000 + b'","a":1.5}'
    assert parse_json(dump_json(value)) == value


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("NaN", 0, "NaN is no JSON number"),
        ('{"NaN": [1, NaN]}', 12, "NaN is no JSON number"),
        ('["Infinity", Infinity]', 13, "Infinity is no JSON number"),
        ("[-Infinity]", 1, "-Infinity is no JSON number"),
        ('["1e400", 1e400-5]', 10, "a number beyond the range of a double"),
        ("-1e400", 0, "a number beyond the range of a double"),
        ("[" + "1" * 4301 + "]", 1, "an integer of more than 4300 digits"),
        ("[-" + "1" * 4301 + "]", 1, "an integer of more than 4300 digits"),
        ("", 0, "Expecting value"),
        ("[1,", 3, "Expecting value"),
        ('{"a":1} x', 8, "Extra data"),
        ("[1,]", 3, "Expecting value"),
        ("'a'", 0, "Expecting value"),
        ('["\n"]', 2, "Invalid control character at"),
        ("\ufeff1", 0, "Unexpected UTF-8 BOM"),
        ('["\\\\\\ud83d\\ude00", "\\\\ud800", "\\ud800"]', 31, "\\ud800 is a lone surrogate"),
        ('"\\udc00"', 1, "\\udc00 is a lone surrogate"),
        ('["é", "\ud800"]', 7, "a lone surrogate"),
        (b'["\xc3\xa9", "\xff"]', 7, "not UTF-8 text"),
        (b'"\xed\xa0\x80"', 1, "not UTF-8 text"),
        ('"é"'.encode("utf-16"), 0, "not UTF-8 text"),
        ("[" * 100_000, 0, "nested too deeply"),
    ],
)
def test_case_D3_what_is_no_json_is_refused_with_its_position(text: str | bytes, position: int, reason: str) -> None:
    with pytest.raises(InvalidJson) as refusal:
        parse_json(text)
    assert refusal.value.position == position
    assert refusal.value.reason.startswith(reason)
    assert str(refusal.value) == f"invalid JSON at character {position}: {refusal.value.reason}"


def test_case_D3_long_negative_integers_up_to_the_limit_are_read() -> None:
    assert parse_json(b"-" + b"9" * INTEGER_DIGITS_MAX) == -(10**INTEGER_DIGITS_MAX - 1)
