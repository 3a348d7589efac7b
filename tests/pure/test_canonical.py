"""Canonical JSON: one text for one value, as RFC 8785 writes it; exact reading and writing (K2)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import canonical as module
from schemas.canonical import (
    NESTING_MAX,
    InvalidJson,
    JsonValue,
    UncanonicalValue,
    canonical,
    dump_json,
    normalize,
    parse_json,
)
from tests.support.canonical_values import SAFE, Count, Level, Word, floats, json_values, keys, leaves, same, texts

rfc_values = json_values(leaves)
exact_values = json_values(leaves | st.integers(-(10**40), 10**40))


# --- RFC 8785 ----------------------------------------------------------------------------------------------------------


@given(rfc_values)
def test_K2_canonical_is_what_the_rfc8785_package_writes(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(st.dictionaries(keys, texts | st.booleans() | st.none() | st.integers(-SAFE, SAFE) | floats, max_size=6))
def test_K2_flat_rows_agree_with_rfc8785_on_either_path(row: dict[str, Any]) -> None:
    assert canonical(row) == rfc8785.dumps(row)


@given(rfc_values)
def test_K2_what_takes_the_fast_path_is_what_the_slow_path_writes(value: Any) -> None:
    slow = module._encode(module._arranged(normalize(value)))
    if module._is_plain(value, module._float_is_alike):
        fast = module._quick(module._encode_sorted, value)
        if fast is not None and module._is_alike(fast):
            assert fast == slow
    assert canonical(value) == slow


@given(st.floats(1e-4, 1e15).filter(lambda number: not number.is_integer()) | floats)
@example(1e-4)
@example(999999999999999.9)
@example(0.00010000000000000002)
def test_K2_a_float_that_msgspec_may_write_is_written_as_rfc8785(number: float) -> None:
    if module._float_is_alike(number):
        assert module._encode(number) == rfc8785.dumps(number)
    assert canonical([number]) == rfc8785.dumps([number])


def test_K2_every_code_point_of_plane_0_is_escaped_as_rfc8785_says() -> None:
    for start in [*range(0, 0xD800, 256), *range(0xE000, 0x1_0000, 256), *range(0x1_0000, 0x11_0000, 0x1000)]:
        chars = [f"a{chr(code)}b" for code in range(start, start + 256)]
        keyed = dict.fromkeys(chars, 0)
        assert canonical([chars, keyed]) == rfc8785.dumps([chars, keyed]), hex(start)


def test_K2_keys_are_ordered_by_utf16_units_as_in_section_3_2_3_of_the_rfc() -> None:
    shuffled = parse_json(
        r"""{"\u20ac": "Euro", "\r": "Return", "\ufb33": "Dalet With Dagesh", "1": "One",
        "\ud83d\ude00": "Grinning Face", "\u0080": "Control", "\u00f6": "O With Diaeresis"}"""
    )
    assert isinstance(shuffled, dict)
    written = json.loads(canonical(shuffled))
    assert list(written) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_K2_the_example_of_the_rfc() -> None:
    value = parse_json(
        r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
    )
    assert (
        canonical(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_K2_the_numbers_of_appendix_b_of_the_rfc(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text.encode()


def test_K2_key_order_number_form_and_escapes_change_nothing_absent_and_null_differ() -> None:
    assert (
        canonical(parse_json('{"b":1.0,"a":"\\u00e9"}')) == canonical(parse_json('{"a":"é","b":1}')) == '{"a":"é","b":1}'.encode()
    )
    assert canonical(1) == canonical(1.0) == canonical(parse_json("1e0")) == b"1"
    assert canonical(True) == b"true" != canonical(1)
    assert canonical({"a": None}) != canonical({})
    assert canonical("1") != canonical(1)


# --- reading and writing -----------------------------------------------------------------------------------------------


@given(exact_values)
def test_what_is_written_is_read_back_exactly(value: Any) -> None:
    for text in (dump_json(value), dump_json(value).decode()):
        assert same(parse_json(text), value)


@given(exact_values)
def test_canonical_text_is_a_fixed_point(value: Any) -> None:
    """An int and a float beyond 2**53 may share a text, as one number does; it stays what it is."""
    text = canonical(value)
    assert canonical(parse_json(text)) == text


@given(floats)
def test_a_float_is_read_back_bit_for_bit_on_either_path(number: float) -> None:
    assert same(parse_json(dump_json([number])), [number])
    assert same(parse_json(f"[{number!r}, 1111111111111111111]"), [number, 1111111111111111111])


@given(st.text(st.sampled_from('[]{}:,"\\u0d8c1234-+.eE truefalsn\x00é\U0001f600')) | rfc_values.map(json.dumps))
def test_the_fast_decoder_and_the_judge_agree_on_every_text(text: str) -> None:
    def outcome(read: Callable[[str], JsonValue]) -> str:
        try:
            return repr(read(text))
        except InvalidJson as error:
            return str(error)

    assert outcome(parse_json) == outcome(lambda text: module._parsed(module._decoded(text)))


def test_of_a_key_given_twice_the_last_wins_on_either_path() -> None:
    assert parse_json('{"a":1,"a":2}') == {"a": 2}
    assert parse_json('{"a":1,"a":20000000000000000000}') == {"a": 20000000000000000000}


def test_dump_json_keeps_the_order_of_keys_and_the_kind_of_numbers() -> None:
    assert dump_json({"b": 1.0, "a": [2**64, -0.0, None, True, "é\U0001f600"]}) == (
        '{"b":1.0,"a":[18446744073709551616,-0.0,null,true,"é\U0001f600"]}'.encode()
    )


@pytest.mark.parametrize(
    "value",
    [
        Decimal(1),
        {"a": (1,)},
        b"a",
        {"a": date(2024, 5, 1)},
        {"a": Level.HIGH},
        {Word("a"): 1},
        Count(1),
        {"a": [Word("a")]},
    ],
)
def test_dump_json_changes_nothing_so_python_objects_are_to_be_normalized_first(value: object) -> None:
    with pytest.raises(UncanonicalValue, match="normalize"):
        dump_json(value)
    dump_json(normalize(value))


def test_dump_json_carries_any_json_also_what_is_reserved_in_keys() -> None:
    assert dump_json({"$bytes": 1}) == b'{"$bytes":1}'


@pytest.mark.parametrize("write", [canonical, normalize, dump_json])
def test_a_lone_surrogate_is_refused_in_text_and_key(write: Callable[[object], object]) -> None:
    with pytest.raises(UncanonicalValue, match=r"^\$\.a\[1\]: text with the lone surrogate U\+D800") as refusal:
        write({"a": ["b", "é\ud800"]})
    assert refusal.value.path == "$.a[1]"
    with pytest.raises(UncanonicalValue, match=r"^\$: text with the lone surrogate U\+DC00"):
        write({"\udc00": 1})


@pytest.mark.parametrize("write", [canonical, normalize, dump_json])
def test_nesting_has_one_limit_for_all(write: Callable[[object], object]) -> None:
    def nested(levels: int, inner: object) -> object:
        for level in range(levels):
            inner = [inner] if level % 2 else {"a": inner}
        return inner

    for leaf in ("text", 1.0):
        write(nested(NESTING_MAX, leaf))
        with pytest.raises(UncanonicalValue, match="nested deeper than 200 levels"):
            write(nested(NESTING_MAX + 1, leaf))
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(UncanonicalValue, match="nested deeper"):
        write(cycle)
