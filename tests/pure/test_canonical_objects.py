"""Canonical JSON of Python objects: client, worker and replay have one key (case_D5)."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import (
    UncanonicalValue,
    canonical,
    dump_json,
    normalize,
    parse_json,
)
from tests.support.canonical_values import Count, Level, Word, json_values, leaves, same, texts

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


class Loose(str):
    """Text that never equals another, so that a dict can hold it twice."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = str.__hash__


class Point(NamedTuple):
    x: int
    y: int


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
