"""The index of open receipts follows from the receipts, and is read off their encoded form."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.states import ASK, OPEN, RECEIPT, OpenReceipt, Receipt, Waiter, local_record, record_key


@given(st.booleans(), st.integers(0, 3), st.binary(max_size=2000))
def test_an_open_receipt_has_an_entry_and_any_other_has_none(is_open: bool, waiters: int, text: bytes) -> None:
    receipt = Receipt(open=is_open, waiters={f"c{n}": Waiter("run", n) for n in range(waiters)}, lane="org/p", input=text)
    key = record_key(RECEIPT, "abc")
    local = local_record(key, msgspec.msgpack.encode(receipt))
    assert local is not None
    assert local[0] == record_key(OPEN, "abc")
    assert (local[1] is not None) is is_open
    if local[1] is not None:
        assert msgspec.msgpack.decode(local[1], type=OpenReceipt) == OpenReceipt()


def test_a_removed_receipt_has_no_entry_and_other_records_have_nothing_to_do_with_it() -> None:
    assert local_record(record_key(RECEIPT, "abc"), None) == (record_key(OPEN, "abc"), None)
    assert local_record(record_key(ASK, "abc"), b"\x91\xc3") is None
