"""The digest of a table's partition: what two copies of one state must agree on, whoever made them and in whatever order.

Pure. What a waiter was told, its ``late`` mark and who pays for the next repeat are no part of a receipt's state
(docs/protocol.md); turn records say how a state came about, and the index of open receipts follows from the receipts. An *exact*
digest leaves nothing out of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from schemas.states import OPEN, RECEIPT, RECORD_TYPES, TURN_KEY, WAITER, Flag, Receipt, Waiter

#: First bytes of the keys of all records that have a part in the digest.
IN_DIGEST: Final = frozenset(prefix[0] for prefix in RECORD_TYPES if prefix not in (TURN_KEY, OPEN))
_RECEIPT, _WAITER = RECEIPT[0], WAITER[0]
_encode = msgspec.msgpack.Encoder().encode
_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode
_decode_waiter = msgspec.msgpack.Decoder(Waiter).decode

Item = tuple[bytes, bytes]


def state_of(key: bytes, value: bytes) -> bytes:
    """A record without what is no part of its state. Attempts are sorted, since claims and completions are topics of their own."""
    if key[0] == _RECEIPT:
        receipt = _decode_receipt(value)
        for waiter in receipt.waiters.values():
            _untell(waiter)
        receipt.attempts = dict(sorted(receipt.attempts.items()))
        receipt.retry = None
        return _encode(receipt)
    if key[0] == _WAITER:
        waiter = _decode_waiter(value)
        _untell(waiter)
        return _encode(waiter)
    return value


def _untell(waiter: Waiter) -> None:
    waiter.late = False
    if waiter.flag is not Flag.WITHDRAWN:
        waiter.flag = Flag.OPEN


class Digests(NamedTuple):
    """What one partition of a table holds: its records, the digest of their state, and the digest of all their bytes."""

    records: int
    state: str
    exact: str


def digests_of(items: Iterable[Item]) -> Digests:
    """Digests of records that come sorted by key, each once; those that have no part in it are passed over."""
    state, exact = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    records = 0
    for key, value in items:
        if key[0] in IN_DIGEST:
            records += 1
            exact.update(_framed(key, value))
            state.update(_framed(key, state_of(key, value)))
    return Digests(records, state.hexdigest(), exact.hexdigest())


def _framed(key: bytes, value: bytes) -> bytes:
    # With their lengths, so that no two sequences of records are one sequence of bytes.
    return b"%d:%d:%b%b" % (len(key), len(value), key, value)


class Difference(NamedTuple):
    """One key under which two copies of a partition hold different records; ``None`` where one has none."""

    key: bytes
    mine: bytes | None
    theirs: bytes | None

    @property
    def in_state(self) -> bool:
        """Whether they differ in more than in what waiters were told."""
        if self.mine is None or self.theirs is None:
            return True
        return state_of(self.key, self.mine) != state_of(self.key, self.theirs)


def differences(mine: Iterable[Item], theirs: Iterable[Item]) -> Iterator[Difference]:
    """Every key whose records differ in any byte, in key order; both copies come sorted by key."""
    left, right = _counted(mine), _counted(theirs)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield Difference(one[0], one[1], None)
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield Difference(other[0], None, other[1])
            other = next(right, None)
        else:
            if one[1] != other[1]:
                yield Difference(one[0], one[1], other[1])
            one, other = next(left, None), next(right, None)


def _counted(items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if item[0][0] in IN_DIGEST)


def name_of(key: bytes) -> str:
    """A key in words: what it holds, and its parts."""
    kind = RECORD_TYPES.get(key[:1])
    parts = key[1:].decode(errors="backslashreplace").split("\x00")
    return f"{key[:1].decode(errors='backslashreplace') if kind is None else kind.__name__} {'/'.join(parts)}"
