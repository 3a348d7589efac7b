"""The message that tells callers of a receipt how it stands. Pure; who is told what is decided in ``receipts``."""

from __future__ import annotations

from schemas.events import Answer, CallsAnswered, Fault, Mark
from schemas.states import VALUE, Receipt, StoredValue, record_key
from streams.engine.budgets import fault_of
from streams.engine.port import Records
from streams.engine.protocol import Told

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


def output_of(records: Records, key: str, receipt: Receipt, n: int) -> bytes:
    """The value of attempt ``n``, which has one, as exact JSON."""
    output = receipt.attempts[n].output
    if output is None:
        stored = records.get(record_key(VALUE, key, str(n)), StoredValue)
        assert stored is not None, f"{key}: attempt {n} completed without a stored value"
        output = stored.output
    return output
