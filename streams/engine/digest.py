"""The digest of a table's partition: what two copies of one state must agree on, whoever made them and in whatever order.

Pure. What a waiter was told, its ``late`` mark and who pays for the next repeat are no part of a receipt's state
(docs/protocol.md); turn records say how a state came about, and the index of open receipts follows from the receipts. An *exact*
digest leaves nothing out of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Final, NamedTuple

import msgspec

from schemas.states import OPEN, RECEIPT, RECORD_TYPES, TURN_KEY, WAITER, Flag, Receipt, Waiter

#: First bytes of the keys of all records that have a part in the digest.
IN_DIGEST: Final = frozenset(prefix[0] for prefix in RECORD_TYPES if prefix not in (TURN_KEY, OPEN))
#: Hexadecimal digits of a digest that are shown and compared: 128 bits.
DIGEST_CHARS: Final = 32
_RECEIPT, _WAITER = RECEIPT[0], WAITER[0]
_encode = msgspec.msgpack.Encoder().encode
_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode
_decode_waiter = msgspec.msgpack.Decoder(Waiter).decode

Item = tuple[bytes, bytes]


def state_of(key: bytes, value: bytes) -> bytes:
    """A record without what is no part of its state."""
    if key[0] == _RECEIPT:
        return _encode(_state(_decode_receipt(value)))
    return _encode(_state(_decode_waiter(value))) if key[0] == _WAITER else value


def _state(record: msgspec.Struct) -> msgspec.Struct:
    """The same of a decoded record, which stays as it is."""
    if isinstance(record, Waiter):
        return _untold(record)
    if not isinstance(record, Receipt):
        return record
    state = copy(record)
    state.waiters = {call: _untold(waiter) for call, waiter in record.waiters.items()}
    if len(record.attempts) > 1:
        # Claims and completions are topics of their own.
        state.attempts = dict(sorted(record.attempts.items()))
    state.retry = None
    return state


def _untold(waiter: Waiter) -> Waiter:
    state = copy(waiter)
    state.late = False
    if state.flag is not Flag.WITHDRAWN:
        state.flag = Flag.OPEN
    return state


class Digests(NamedTuple):
    """What a partition of a table holds: its records, the digest of their state and, where asked for, that of all their bytes."""

    records: int
    state: str
    exact: str | None


def digests_of(items: Iterable[Item], *, exact: bool = True) -> Digests:
    """Digests of records that come sorted by key, each once; those that have no part in it are passed over."""
    known = ((key, value) for key, value in items if key[0] in IN_DIGEST)
    return _digests(((key, value, state_of(key, value)) for key, value in known), exact=exact)


def digests_of_records(records: Iterable[tuple[bytes, msgspec.Struct]], *, exact: bool = True) -> Digests:
    """The same of decoded records."""
    known = ((key, record) for key, record in records if key[0] in IN_DIGEST)
    return _digests(((key, _encode(record) if exact else b"", _encode(_state(record))) for key, record in known), exact=exact)


def _digests(items: Iterable[tuple[bytes, bytes, bytes]], *, exact: bool) -> Digests:
    """Digests of keys, values and states."""
    # Processors have instructions for it, unlike for BLAKE2, which takes three times as long.
    of_states, of_values = hashlib.sha256(), hashlib.sha256()
    records = 0
    for key, value, state in items:
        records += 1
        of_states.update(_framed(key, state))
        if exact:
            of_values.update(_framed(key, value))
    return Digests(records, of_states.hexdigest()[:DIGEST_CHARS], of_values.hexdigest()[:DIGEST_CHARS] if exact else None)


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
