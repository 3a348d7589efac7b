"""The message that tells callers of a receipt how it stands. Pure; who is told what is decided in ``receipts``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schemas.events import Answer, CallsAnswered, Fault, Mark
from schemas.states import VALUE, Receipt, StoredValue, record_key
from streams.engine.budgets import fault_of
from streams.engine.port import Records
from streams.engine.protocol import Told

#: A value travels once with all its callers on a partition, and each of them makes a row's record and message of it in one turn ...
COPIES_BYTES_MAX = 64 << 20
#: ... but so many callers share it in any case: with the largest value alone for each of a thousand, neither side could write it.
CALLERS_MIN = 16
#: Up to here a thousand callers have room beside it.
VALUE_BYTES_LARGE = 1 << 20
_COMPLETED, _FAILED = Told.COMPLETED, Told.FAILED
_NO_RESULT, _ANSWERED = Answer.NO_RESULT, Answer.COMPLETED


def answer(records: Records, key: str, receipt: Receipt, what: Told, n: int, calls: tuple[tuple[str, Mark], ...]) -> CallsAnswered:
    """What callers are told of attempt ``n``: its value, why it failed, or why nobody knows."""
    if what is _COMPLETED:
        output = output_of(records, key, receipt, n)
        return CallsAnswered(key, n, _NO_RESULT if output == b"null" else _ANSWERED, calls, output=output)
    fault = fault_of(receipt.attempts[n])
    if what is _FAILED:
        return CallsAnswered(key, n, Answer.FAILED, calls, fault=fault)
    if fault is None:
        fault = Fault("lease_expired", "the worker that made this call went away before it recorded an answer")
    return CallsAnswered(key, n, Answer.UNKNOWN, calls, fault=fault)


def sendable(event: CallsAnswered) -> Sequence[CallsAnswered]:
    """The answer as events that can be carried and folded: with a large value, few callers in each."""
    size = len(event.output or b"")
    if size * len(event.calls) <= COPIES_BYTES_MAX and size <= VALUE_BYTES_LARGE:
        return (event,)
    most = max(CALLERS_MIN, COPIES_BYTES_MAX // size)
    return [msgspec.structs.replace(event, calls=event.calls[start : start + most]) for start in range(0, len(event.calls), most)]


def output_of(records: Records, key: str, receipt: Receipt, n: int) -> bytes:
    """The value of attempt ``n``, which has one, as exact JSON."""
    output = receipt.attempts[n].output
    if output is None:
        stored = records.get(record_key(VALUE, key, str(n)), StoredValue)
        assert stored is not None, f"{key}: attempt {n} completed without a stored value"
        output = stored.output
    return output
