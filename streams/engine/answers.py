"""The message that tells callers of a receipt how it stands. Pure; who is told what is decided in ``receipts``."""

from __future__ import annotations

from schemas.events import Answer, CallsAnswered, Fault, Mark
from schemas.states import VALUE, Receipt, StoredValue, record_key
from streams.engine.budgets import fault_of
from streams.engine.port import Records
from streams.engine.protocol import Told

#: Callers told in one turn; more are told in continuation turns.
CALLERS_MAX = 1000
#: A value travels once with all its callers on a partition, and each of them makes a record and a message of it in one turn of
#: ``rows``: more than this, together, and the one turn could not be committed, as the event with all of them could not.
COPIES_BYTES_MAX = 32 << 20
#: So many share an event whatever its size. The largest value leaves room for their names.
CALLERS_MIN = 8
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


def callers_max(records: Records, key: str, receipt: Receipt, what: Told, n: int) -> int:
    """How many callers one turn tells this of attempt ``n``: few where its value is large, the others in turns that follow."""
    if what is not _COMPLETED:
        return CALLERS_MAX
    return min(CALLERS_MAX, max(CALLERS_MIN, COPIES_BYTES_MAX // max(1, len(output_of(records, key, receipt, n)))))


def output_of(records: Records, key: str, receipt: Receipt, n: int) -> bytes:
    """The value of attempt ``n``, which has one, as exact JSON."""
    output = receipt.attempts[n].output
    if output is None:
        stored = records.get(record_key(VALUE, key, str(n)), StoredValue)
        assert stored is not None, f"{key}: attempt {n} completed without a stored value"
        output = stored.output
    return output
