"""Values for tests of canonical JSON: what JSON carries, what Python adds, and when two of them are the same."""

from __future__ import annotations

import enum
from typing import Any

from hypothesis import strategies as st

SAFE = 2**53 - 1
# Texts that tell the two orders of keys apart, and every kind of escape, come up often.
texts = st.text(st.sampled_from('ab"\\/\b\f\n\r\t\0\x1f\x7f\u2028\ud7ff\ue000\uffff\U00010000\U0001f600$')) | st.text()
floats = st.floats(allow_nan=False, allow_infinity=False)
keys = texts.filter(lambda text: text != "$bytes")  # reserved: it has tests of its own
leaves = st.none() | st.booleans() | st.integers(-SAFE, SAFE) | floats | texts


def json_values(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12)


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    def __str__(self) -> str:
        return "something else"


class Count(int):
    pass


def same(left: object, right: object) -> bool:
    """Equality that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    return repr(left) == repr(right)
