"""When receipts were answered last, for the sweep: of all answerings the newest decides how long a receipt is kept.

Pure. A receipt that is used each day stands once in the index of those that wait for their last day, where it stood when it was
looked at first. That entry comes up when it is old; the record here says whether the receipt was used since, and then it is put
behind. A record says where that one entry is, so that others, of before there were such records, count for nothing.
"""

from __future__ import annotations

from schemas.beside import LAST_ANSWER, LastAnswer
from schemas.states import record_key
from streams.engine.port import Records

#: Receipts that are put behind share entries, which are this far apart.
APART_MS = 3_600_000


def met(records: Records, key: str, at_ms: int) -> bool:
    """A receipt that was answered at ``at_ms`` was looked at; whether it is to be put into the index under that time."""
    name = record_key(LAST_ANSWER, key)
    last = records.get(name, LastAnswer)
    if last is None:
        records.put(name, LastAnswer(at_ms, at_ms))
        return True
    if last.at_ms < at_ms:
        last.at_ms = at_ms
        records.put(name, last)
    return False


def stands_at(records: Records, key: str, indexed_ms: int) -> bool:
    """The entry of this time is the receipt's; also where nothing is known, as of entries of before."""
    last = records.get(record_key(LAST_ANSWER, key), LastAnswer)
    return last is None or last.indexed_ms == indexed_ms


def put_behind(records: Records, key: str, until_ms: int) -> int | None:
    """The time under which a receipt is to stand that was answered later than ``until_ms``; ``None`` where it was not."""
    name = record_key(LAST_ANSWER, key)
    last = records.get(name, LastAnswer)
    if last is None or last.at_ms <= until_ms:
        return None
    last.indexed_ms = -(-last.at_ms // APART_MS) * APART_MS
    records.put(name, last)
    return last.indexed_ms


def over(records: Records, key: str) -> None:
    """The receipt stands in that index no more."""
    name = record_key(LAST_ANSWER, key)
    if records.get(name, LastAnswer) is not None:
        records.delete(name)
