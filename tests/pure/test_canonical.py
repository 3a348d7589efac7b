"""Canonical JSON: one text for one value, wherever it is written; exact reading and writing (K2)."""

import enum
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import canonical as module
from schemas.canonical import (
    INTEGER_DIGITS_MAX,
    NESTING_MAX,
    InvalidJson,
    JsonValue,
    UncanonicalValue,
    canonical,
    dump_json,
    normalize,
    parse_json,
)

SAFE = 2**53 - 1
# Texts that tell the two orders of keys apart, and every kind of escape, come up often.
texts = st.text(st.sampled_from('ab"\\/\b\f\n\r\t\0\x1f\x7f\u2028\ud7ff\ue000\uffff\U00010000\U0001f600$')) | st.text()
floats = st.floats(allow_nan=False, allow_infinity=False)
keys = texts.filter(lambda text: text != "$bytes")  # reserved: it has tests of its own
leaves = st.none() | st.booleans() | st.integers(-SAFE, SAFE) | floats | texts


def json_values(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12)


rfc_values = json_values(leaves)
exact_values = json_values(leaves | st.integers(-(10**40), 10**40))
python_leaves = (
    leaves
    | st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9)
    | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))])).filter(
        lambda moment: 2 < moment.year < 9998
    )
    | st.dates()
    | st.binary()
    | st.uuids()
)
python_values = json_values(python_leaves)


class Colour(enum.Enum):
    RED = "red"
    MOMENT = datetime(2024, 5, 1, tzinfo=UTC)


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    def __str__(self) -> str:
        return "something else"


class Loose(str):
    """Text that never equals another, so that a dict can hold it twice."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = str.__hash__


class Count(int):
    pass


class Point(NamedTuple):
    x: int
    y: int


def same(left: object, right: object) -> bool:
    """Equality that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    return repr(left) == repr(right)


# ---- RFC 8785


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


# ---- case_D3: numbers that codecs change


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


# ---- reading and writing


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


# ---- case_D5: Python objects


@given(python_values)
def test_case_D5_client_worker_and_replay_have_one_key(value: Any) -> None:
    at_the_client = canonical(value)
    sent = dump_json(normalize(value))
    at_the_worker = canonical(parse_json(sent))
    at_a_replay = canonical(parse_json(at_the_worker))
    assert at_the_client == at_the_worker == at_a_replay == canonical(normalize(value))


@given(python_values)
def test_case_D5_normalize_is_idempotent_and_gives_pure_json(value: Any) -> None:
    pure = normalize(value)
    assert same(normalize(pure), pure)
    assert same(json.loads(json.dumps(pure)), pure)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1.10"), "1.1"),
        (Decimal("1.1"), "1.1"),
        (Decimal("-0.00"), "0"),
        (Decimal("0E+9999"), "0"),
        (Decimal("100"), "100"),
        (Decimal("1.00"), "1"),
        (Decimal("1E+2"), "100"),
        (Decimal("1E+25"), "1" + "0" * 25),
        (Decimal("123456789012345678901234567890.000"), "123456789012345678901234567890"),
        (Decimal("0.000001"), "0.000001"),
        (Decimal("-5E-7"), "-5e-7"),
        (Decimal("9.95"), "9.95"),
        (datetime(2024, 5, 1, 12, 0, tzinfo=UTC), '"2024-05-01T12:00:00Z"'),
        (datetime(2024, 5, 1, 14, 0, tzinfo=timezone(timedelta(hours=2))), '"2024-05-01T12:00:00Z"'),
        (datetime(2024, 5, 1, 12, 0, 0, 500, tzinfo=UTC), '"2024-05-01T12:00:00.000500Z"'),
        (date(2024, 5, 1), '"2024-05-01"'),
        (UUID("12345678-1234-5678-1234-56781234ABCD"), '"12345678-1234-5678-1234-56781234abcd"'),
        (Colour.RED, '"red"'),
        (Colour.MOMENT, '"2024-05-01T00:00:00Z"'),
        (Level.HIGH, "3"),
        ((1, (2, "a")), '[1,[2,"a"]]'),
        (Point(1, 2), "[1,2]"),
        (b"abc", '{"$bytes":"YWJj"}'),
        (bytearray(b""), '{"$bytes":""}'),
        (Word("word"), '"word"'),
        ({Word("word"): Count(3)}, '{"word":3}'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        ([True, False, None], "[true,false,null]"),
    ],
)
def test_case_D5_each_python_type_has_one_documented_form(value: object, text: str) -> None:
    assert canonical(value) == text.encode()
    assert canonical({"v": [value]}) == f'{{"v":[{text}]}}'.encode()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (datetime(2024, 5, 1), "naive datetime"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "outside the years"),
        ({1, 2}, "a set has no order"),
        (frozenset(), "a set has no order"),
        (Decimal("0.10000000000000000555"), "more digits than a double keeps"),
        (Decimal("1E-400"), "more digits than a double keeps"),
        (Decimal("1" * 400 + ".5"), "more digits than a double keeps"),
        (Decimal("1E+4300"), "a number of more than 4300 digits"),
        (Decimal("1E+999999"), "a number of more than 4300 digits"),
        (time(12, 0), "datetime.time has no JSON form"),
        (object(), "builtins.object has no JSON form"),
        (1j, "builtins.complex has no JSON form"),
        ({1: "a"}, "an object key is int 1, expected text"),
        ({None: "a"}, "an object key is NoneType None, expected text"),
        ({Loose("a"): 1, Loose("a"): 2}, "two keys are both the text 'a'"),
    ],
)
@pytest.mark.parametrize("write", [canonical, normalize, dump_json])
def test_case_D5_what_has_no_one_form_is_refused_by_path(value: object, reason: str, write: Callable[[object], object]) -> None:
    with pytest.raises(UncanonicalValue, match=r"^\$\.a\[0\]: ") as refusal:
        write({"a": [value]})
    assert refusal.value.path == "$.a[0]"
    assert reason in refusal.value.reason


def test_case_D5_a_path_quotes_keys_that_are_no_names() -> None:
    with pytest.raises(UncanonicalValue) as refusal:
        canonical([0, {"first name": {'"': {"": {1}}}}])
    assert refusal.value.path == '$[1]["first name"]["\\""][""]'


@given(st.binary(), texts)
def test_case_D5_bytes_never_collide_with_text(data: bytes, text: str) -> None:
    assert canonical(data) != canonical(text)
    assert canonical(data) != canonical(data.decode("latin-1"))


def test_case_D5_an_object_in_the_form_of_bytes_is_those_bytes() -> None:
    assert normalize({"$bytes": "YWJj"}) == normalize(b"abc")
    assert canonical({"$bytes": "YWJj"}) == canonical(b"abc")


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": 1},
        {"$bytes": "YWJj", "more": 1},
        {"$bytes": "YWJ"},
        {"$bytes": "YWJk\n"},
        {"$bytes": "YR=="},  # another spelling of what "YQ==" says
        {"$bytes": "é"},
    ],
)
def test_case_D5_the_reserved_key_is_refused_where_it_is_not_the_form_of_bytes(
    value: dict[str, object],
) -> None:
    for refused in (value, {"row": value}):
        with pytest.raises(UncanonicalValue, match=r'the key "\$bytes" is reserved'):
            canonical(refused)


def test_case_D5_a_text_with_the_reserved_word_or_a_price_is_only_text() -> None:
    assert canonical({"a": "$5", "b": "$bytes", "c": '"$bytes":'}) == b'{"a":"$5","b":"$bytes","c":"\\"$bytes\\":"}'
