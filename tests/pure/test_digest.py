"""The digest of a table: the same for one state however it came about, another for every other state."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.states import (
    OPEN,
    RECEIPT,
    RECORD_TYPES,
    SHEET,
    TASK,
    TURN_KEY,
    VALUE,
    WAITER,
    Attempt,
    Flag,
    OpenReceipt,
    Out,
    Receipt,
    TurnRecord,
    Waiter,
    record_key,
)
from streams.engine.digest import IN_DIGEST, Digests, Item, differences, digests_of, name_of
from streams.table import OFFSET_KEY

encode = msgspec.msgpack.encode
KEY = record_key(RECEIPT, "r")
TOLD = [Flag.OPEN, Flag.UNKNOWN, Flag.FAILED, Flag.DONE]
tables = st.dictionaries(
    st.builds(lambda kind, name: kind + name, st.sampled_from([SHEET, TASK, VALUE]), st.binary(max_size=4)), st.binary(max_size=6)
)


def receipt(flag: Flag = Flag.OPEN, *, late: bool = False, attempts: tuple[int, ...] = (1, 2), lease: str = "L") -> Receipt:
    return Receipt(
        waiters={"c": Waiter("run", 1, flag=flag, late=late)},
        attempts={n: Attempt(lease, 1, out=Out.RETRY if n == 1 else None) for n in attempts},
    )


def of(table: Mapping[bytes, bytes]) -> Digests:
    return digests_of(sorted(table.items()))


def one(record: msgspec.Struct, key: bytes = KEY) -> Digests:
    return of({key: encode(record)})


@given(tables, tables)
def test_V1_two_tables_have_one_digest_only_if_they_hold_the_same(mine: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> None:
    """V1: keys and values are framed, so that no bytes can move from one to the next."""
    assert (of(mine).state == of(theirs).state) is (mine == theirs)
    assert (of(mine) == of(theirs)) is (mine == theirs)
    assert of(mine).records == len(mine)


@given(st.sampled_from(TOLD), st.sampled_from(TOLD), st.booleans(), st.booleans())
def test_V1_what_a_waiter_was_told_and_its_mark_are_in_the_exact_digest_only(
    one_flag: Flag, other: Flag, late: bool, late_too: bool
) -> None:
    mine, theirs = one(receipt(one_flag, late=late)), one(receipt(other, late=late_too))
    assert mine.state == theirs.state
    assert (mine.exact == theirs.exact) is ((one_flag, late) == (other, late_too))
    key = record_key(WAITER, "r", "c17")
    mine, theirs = (one(Waiter("run", 1, flag=flag, late=mark), key) for flag, mark in ((one_flag, late), (other, late_too)))
    assert mine.state == theirs.state
    assert (mine.exact == theirs.exact) is ((one_flag, late) == (other, late_too))


@pytest.mark.parametrize("flag", TOLD)
def test_V1_a_withdrawn_waiter_is_another_state(flag: Flag) -> None:
    """T6: the tombstone keeps the call from coming back to life."""
    assert one(receipt(Flag.WITHDRAWN)).state != one(receipt(flag)).state


def test_V1_the_order_in_which_attempts_were_heard_of_is_no_state_but_everything_else_is() -> None:
    """Claims and completions come on topics of their own."""
    assert one(receipt(attempts=(1, 2))).state == one(receipt(attempts=(2, 1))).state
    assert one(receipt(attempts=(1, 2))).state != one(receipt(attempts=(1,))).state
    assert one(receipt(lease="L")).state != one(receipt(lease="M")).state


def test_V1_turn_records_local_records_and_the_stores_own_have_no_part() -> None:
    table = {KEY: encode(receipt())}
    more = {TURN_KEY: encode(TurnRecord(7)), record_key(OPEN, "r"): encode(OpenReceipt()), OFFSET_KEY: b"\x00" * 8}
    assert of({**table, **more}) == of(table)
    assert list(differences(sorted({**table, **more}.items()), sorted(table.items()))) == []
    assert {prefix for prefix in RECORD_TYPES if prefix[0] not in IN_DIGEST} == {TURN_KEY, OPEN}


@given(tables, tables)
def test_N6_every_key_under_which_two_tables_differ_is_found_in_order(mine: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> None:
    found = list(differences(sorted(mine.items()), sorted(theirs.items())))
    expected = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    assert [(each.key, each.mine, each.theirs) for each in found] == [(key, mine.get(key), theirs.get(key)) for key in expected]
    assert all(each.in_state for each in found)


def test_N6_a_difference_in_told_flags_is_told_from_one_in_state() -> None:
    def between(mine: Receipt, theirs: Receipt) -> list[bool]:
        pair: list[list[Item]] = [[(KEY, encode(mine))], [(KEY, encode(theirs))]]
        return [found.in_state for found in differences(*pair)]

    assert between(receipt(), receipt(Flag.DONE)) == [False]
    assert between(receipt(), receipt(Flag.WITHDRAWN)) == [True]
    assert between(receipt(), receipt()) == []


def test_N6_a_key_is_named_by_what_it_holds() -> None:
    assert name_of(record_key(RECEIPT, "abc")) == "Receipt abc"
    assert name_of(record_key(WAITER, "abc", "call")) == "Waiter abc/call"
    assert name_of(b"\xff\x01") == "\\xff \x01"
