"""Canonical JSON: the one text of a value, from which every key is made (K2).

It stands between whatever a caller holds (Python objects, JSON from any producer) and the digests of
`address`. It must not round, guess or drop: what JSON cannot carry exactly is refused by name, never written
as null.

The rules, the same at the client, at the worker and in a replay (case_D5; a client sends
`dump_json(normalize(x))`, a worker reads it by `parse_json`):

- None, bool, str, list, dict with text keys: themselves, subclasses too. A bool is never a number.
- int: digit for digit up to 4300 digits, also beyond 2**53, where RFC 8785 would round (case_D3).
- float: as RFC 8785 writes it, `1.0` is `1`, `-0.0` is `0`, `1e21` is `1e+21`. NaN, infinities: refused.
- Decimal: its number, without trailing zeros. A whole one is an int: `Decimal("1E+25")` has 26 digits and no
  exponent. A fraction is the float whose shortest text is that number, else refused, since every reader
  would round it: a fraction in JSON text is a double, and `0.10000000000000001` is `0.1`.
- datetime: RFC 3339 in UTC with `Z`, six digits of fraction or none. A naive one names no instant: refused.
- date: `YYYY-MM-DD`. UUID: its lower-case text. Enum: what its value becomes. tuple: array.
- bytes, bytearray: `{"$bytes": "<base64>"}`, which no text can be. The key `$bytes` is reserved for this: an
  object that has it and is not exactly this form is refused.
- set, and all else: refused. An absent key and a null differ.
"""

import base64
import binascii
import enum
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

import msgspec
import rfc8785

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

INTEGER_DIGITS_MAX = 4300  # Python's default for int <-> text; ours moves with no interpreter's setting
NESTING_MAX = 200  # the same on every machine, and well inside Python's and msgspec's recursion limits
_TEXT_TOO_DEEP = "nested too deeply"
_VALUE_TOO_DEEP = f"nested deeper than {NESTING_MAX} levels"
NESTED = frozenset((_TEXT_TOO_DEEP, _VALUE_TOO_DEEP))  # the reasons that say so
BYTES_KEY = "$bytes"

_INTEGER_END = 10**INTEGER_DIGITS_MAX
_DOLLAR = ord("$")  # looked for first: one byte is found seven times faster than a string of them
_BYTES_MARK = b'"$bytes"'
_TEXT_ONLY = frozenset({str})
_ALIKE = frozenset({str, bool, NoneType, int})  # what msgspec and RFC 8785 write alike
_IN_PLANE_0 = bytes(range(0xF0))  # the bytes of UTF-8 below U+10000
# Digits and points become `0`, all else a blank: a run of zeros is a number, or a text, for the slower way.
_DIGITS_TO_ZERO = bytes(0x30 if chr(byte) in "0123456789." else 0x20 for byte in range(256))
_TOO_LONG = b"0" * (INTEGER_DIGITS_MAX + 1)
_LONG_NUMBER = b"0" * 19
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode

# A place inside a value: (place of the parent, key or index); None is the top. Only a refusal writes it.
_Place: TypeAlias = "tuple[_Place, str | int] | None"


class UncanonicalValue(ValueError):
    """The caller gave a value that JSON cannot carry exactly; mend the value at `path`, as `reason` says.

    `path` is like `$.row.score` or `$.items[3]`.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class InvalidJson(ValueError):
    """The producer sent text that is not JSON, or a number that cannot be carried.

    `position` counts characters from 0.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"invalid JSON at character {position}: {reason}")
        self.position = position
        self.reason = reason


def canonical(value: object) -> bytes:
    """Write the one canonical JSON text of a value, as UTF-8.

    Takes JSON values and the Python types of the rules above. Raises UncanonicalValue with the path of what
    cannot be carried. RFC 8785 exactly, save that integers beyond 2**53 keep all their digits (case_D3).
    """
    if _is_plain(value, _float_is_alike):
        text = _quick(_encode_sorted, value)
        if text is not None and _is_alike(text):
            return text
    return _encode(_arranged(normalize(value)))


def normalize(value: object) -> JsonValue:
    """Turn Python objects into pure JSON values by the rules above, so that their JSON gets their key.

    Idempotent; `canonical(normalize(x)) == canonical(x)`. Raises UncanonicalValue with the path of what is
    refused.
    """
    return _normal(value, None, 0)


def parse_json(data: bytes | str) -> JsonValue:
    """Read JSON text exactly: integers digit for digit up to 4300 digits, fractions as the nearest double.

    Bytes are UTF-8 without a byte order mark. Of a key given twice the last wins. Raises InvalidJson with the
    position: for NaN and infinities in any spelling, `1e400`, lone surrogates, and nesting beyond Python's
    recursion limit.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        # msgspec's decoder gave other numbers for some 65-bit integers (msgspec#701): it gets no long ones.
        if _LONG_NUMBER not in raw.translate(_DIGITS_TO_ZERO):
            plain: JsonValue = msgspec.json.decode(raw)
            return plain
    except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        pass  # the slow path is the judge, and says where
    return _parsed(_decoded(data))


def dump_json(value: object) -> bytes:
    """Write a pure JSON value as compact UTF-8 JSON, its keys in their own order, integers digit for digit.

    Raises UncanonicalValue for NaN, infinities, lone surrogates, integers beyond 4300 digits, and Python
    objects that were not normalized: nothing is changed on the way, and null stands for None alone.
    """
    if _is_plain(value, math.isfinite):
        text = _quick(_encode, value)
        if text is not None:
            return text
        normalize(value)  # says what is wrong; else it is only a long run of digits inside a text
        return _encode(value)
    normalize(value)
    raise UncanonicalValue("$", "holds Python objects that are no JSON values: normalize() it first")


def _float_is_alike(number: float) -> bool:
    """Tell whether msgspec and RFC 8785 write a float alike: shortest digits, no exponent, no `.0`."""
    return 1e-4 <= abs(number) < 1e15 and not number.is_integer()


def _is_plain(value: Any, float_fits: Callable[[float], bool], depth: int = 0) -> bool:
    """Tell whether msgspec may write it; it has forms of its own for sets, bytes, dates and NaN."""
    kind = type(value)
    if kind is dict:
        if not _TEXT_ONLY.issuperset(map(type, value)):
            return False
        members = value.values()
    elif kind is list:
        members = value
    else:
        members = (value,)
    if _ALIKE.issuperset(map(type, members)):
        return True
    for member in members:
        kind = type(member)
        if kind is float:
            fits = float_fits(member)
        elif kind is dict or kind is list:
            fits = depth + 1 < NESTING_MAX and _is_plain(member, float_fits, depth + 1)
        else:
            fits = kind in _ALIKE
        if not fits:
            return False
    return True


def _quick(encode: Callable[[object], bytes], value: object) -> bytes | None:
    """Write a plain value by msgspec; None for a lone surrogate and for what may be a too long integer."""
    try:
        text = encode(value)
    except ValueError:
        return None
    if len(text) > INTEGER_DIGITS_MAX and _TOO_LONG in text.translate(_DIGITS_TO_ZERO):
        return None
    return text


def _is_alike(text: bytes) -> bool:
    """Tell whether a plain value's text by msgspec is canonical: no reserved key, nothing above U+FFFF.

    The escapes are the same at every code point (tested). Below U+10000 the order of keys by code points,
    msgspec's, is that by UTF-16 units.
    """
    if _DOLLAR in text and _BYTES_MARK in text:
        return False
    return text.isascii() or not text.translate(None, _IN_PLANE_0)


def _arranged(value: JsonValue) -> Any:
    """Put a normalized value's keys in RFC 8785 order and its floats in its form, for msgspec to write so."""
    if isinstance(value, dict):
        # The order of UTF-16 units; the plain order of code points is the same for ASCII, and much faster.
        order = sorted(value) if "".join(value).isascii() else sorted(value, key=_utf16_units)
        return {key: _arranged(member) if type(member := value[key]) is not str else member for key in order}
    if isinstance(value, list):
        return [_arranged(member) for member in value]
    if isinstance(value, float):
        if abs(value) < 2**53 and value.is_integer():
            return int(value)
        return msgspec.Raw(rfc8785.dumps(value))
    return value


def _utf16_units(key: str) -> bytes:
    return key.encode("utf-16-be")


def _normal(value: object, place: _Place, depth: int) -> JsonValue:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, enum.Enum):  # before str and int: an enum may be one
        return _normal(value.value, place, depth)
    if isinstance(value, str):
        return _normal_text(value, place)
    if isinstance(value, int):
        return _normal_integer(int(value), place)
    if isinstance(value, float):
        if not math.isfinite(value):
            _refuse(place, f"{value!r} is no JSON number")
        return float(value)
    if isinstance(value, dict | list | tuple):
        if depth >= NESTING_MAX:
            _refuse(place, _VALUE_TOO_DEEP)
        if isinstance(value, dict):
            return _normal_object(value, place, depth + 1)
        return [_normal(member, (place, index), depth + 1) for index, member in enumerate(value)]
    return _normal_scalar(value, place)


def _normal_text(value: str, place: _Place) -> str:
    text = str.__str__(value)  # of a subclass too the characters, not what its __str__ says
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            _refuse(place, f"text with the lone surrogate U+{ord(text[error.start]):04X}, not UTF-8")
    return text


def _normal_integer(number: int, place: _Place) -> int:
    if not -_INTEGER_END < number < _INTEGER_END:
        _refuse(place, f"an integer of more than {INTEGER_DIGITS_MAX} digits; send it as text")
    return number


def _normal_object(value: dict[Any, Any], place: _Place, depth: int) -> dict[str, JsonValue]:
    result: dict[str, JsonValue] = {}
    for key, member in value.items():
        if not isinstance(key, str):
            _refuse(place, f"an object key is {type(key).__name__} {key!r:.80}, expected text")
        name = _normal_text(key, place)
        if name in result:
            _refuse(place, f"two keys are both the text {name!r:.80}")
        quick = type(member) is str and member.isascii()
        result[name] = member if quick else _normal(member, (place, name), depth)
    if BYTES_KEY in result and not _is_bytes_form(result):
        _refuse(place, f'the key "{BYTES_KEY}" is reserved for bytes, {{"{BYTES_KEY}": "<base64>"}}')
    return result


def _is_bytes_form(value: dict[str, JsonValue]) -> bool:
    """Tell whether an object is exactly what bytes become, so that no two objects can mean the same bytes."""
    text = value[BYTES_KEY]
    if len(value) != 1 or not isinstance(text, str):
        return False
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return False


def _normal_scalar(value: object, place: _Place) -> JsonValue:
    match value:
        case Decimal():
            return _normal_decimal(value, place)
        case datetime():  # before date: a datetime is one
            return _normal_datetime(value, place)
        case date():
            return value.isoformat()
        case bytes() | bytearray():
            return {BYTES_KEY: base64.b64encode(value).decode()}
        case UUID():
            return str(value)
        case set() | frozenset():
            _refuse(place, "a set has no order, so no one text; send a sorted list")
        case _:
            kind = type(value)
            _refuse(place, f"{kind.__module__}.{kind.__qualname__} has no JSON form; expected a JSON value")


def _normal_decimal(value: Decimal, place: _Place) -> int | float:
    if not value.is_finite():
        _refuse(place, f"{value!r} is no JSON number")
    if not value:
        return 0
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if value.adjusted() >= INTEGER_DIGITS_MAX:
        _refuse(place, f"a number of more than {INTEGER_DIGITS_MAX} digits; send it as text")
    if exponent >= 0 or not any(digits[exponent:]):
        return int(value)
    nearest = float(value)
    if not math.isfinite(nearest) or Decimal(repr(nearest)) != value:
        _refuse(place, f"{value!r:.80} has more digits than a double keeps; round it or send it as text")
    return nearest


def _normal_datetime(value: datetime, place: _Place) -> str:
    if value.utcoffset() is None:
        _refuse(place, f"{value!r} is a naive datetime, which names no instant; give it a time zone")
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        _refuse(place, f"{value!r} lies outside the years 1 to 9999 in UTC")
    return instant.replace(tzinfo=None).isoformat() + "Z"


def _refuse(place: _Place, reason: str) -> NoReturn:
    parts: list[str] = []
    while place is not None:
        place, step = place
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]")
    raise UncanonicalValue("".join(["$", *reversed(parts)]), reason)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?', re.DOTALL)
_SURROGATE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


class _Uncarried(Exception):
    """A number literal that must be refused; its place is looked up afterwards."""

    def __init__(self, literal: str, reason: str) -> None:
        super().__init__(literal)
        self.literal = literal
        self.reason = reason


def _decoded(data: bytes | str) -> str:
    try:
        if isinstance(data, bytes):
            return data.decode()
        data.encode()
        return data
    except UnicodeDecodeError as error:
        raise InvalidJson(len(error.object[: error.start].decode()), "not UTF-8 text") from None
    except UnicodeEncodeError as error:
        raise InvalidJson(error.start, "a lone surrogate, which has no UTF-8 form") from None


def _parsed(text: str) -> JsonValue:
    """Read JSON by the standard library, under our rules for numbers and surrogates: the judge."""
    try:
        value: JsonValue = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise InvalidJson(error.pos, error.msg) from None
    except _Uncarried as error:
        found = next(token for token in _TOKEN.finditer(text) if token[0] == error.literal)
        raise InvalidJson(found.start(), error.reason) from None
    except RecursionError:
        raise InvalidJson(0, _TEXT_TOO_DEEP) from None
    for escape in _SURROGATE.finditer(text):
        if escape[1]:
            raise InvalidJson(escape.start(), f"\\{escape[1]} is a lone surrogate, which has no UTF-8 form")
    return value


def _integer(literal: str) -> int:
    if len(literal) - literal.startswith("-") > INTEGER_DIGITS_MAX:
        raise _Uncarried(literal, f"an integer of more than {INTEGER_DIGITS_MAX} digits")
    return int(literal)


def _float(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise _Uncarried(literal, "a number beyond the range of a double")
    return number


def _constant(literal: str) -> NoReturn:
    raise _Uncarried(literal, f"{literal} is no JSON number")
