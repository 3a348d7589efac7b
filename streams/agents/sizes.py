"""What is too large to be taken, judged before anything starts from it.

Under the judgement of requests. A request that fits its topic may mean more than a message carries: a record of the journal, an
event with one of its rows, a refusal that names a million faults. What was taken and cannot be written would end every owner of its
partition, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schemas.events import CompiledPlay, Event
from schemas.requests import ROW_BYTES_MAX
from streams.turn import JUDGEMENT_BYTES_MAX

#: A bound play as it goes to every partition of its run, and stands in the run's records.
PLAY_BYTES_MAX = 1 << 20
#: Faults that a refusal keeps, and characters of each.
FAULTS_MAX = 1_000
FAULT_CHARS_MAX = 1_000
#: Characters of the run or receipt that a message says it is about. Beyond those of a valid one, so that what is refused names it.
NAME_CHARS_MAX = 1_000
#: A message below this size cannot mean too much: digits of a number grow to less than fourfold, and faults are cut.
ALWAYS_FITS_BYTES = 1 << 20

_encode = msgspec.msgpack.Encoder().encode


def row_faults(first: int, rows: Sequence[bytes]) -> list[str]:
    """The faults of rows that no event carries, by their positions."""
    if max(map(len, rows), default=0) <= ROW_BYTES_MAX:
        return []
    return [
        f"row {position}: has {len(row):,} bytes as JSON; a row has at most {ROW_BYTES_MAX:,}"
        for position, row in enumerate(rows, first)
        if len(row) > ROW_BYTES_MAX
    ]


def play_faults(play: CompiledPlay) -> list[str]:
    """The fault of a play that no event carries."""
    size = len(_encode(play))
    return [] if size <= PLAY_BYTES_MAX else [f"play: has {size:,} bytes; a play has at most {PLAY_BYTES_MAX:,}"]


def excess(event: Event, message: bytes | None) -> str | None:
    """Why a judgement fits into no turn record, which is written before anything follows from it; ``None`` where it does."""
    if message is None or len(message) < ALWAYS_FITS_BYTES:
        return None
    size = len(_encode(event))
    if size <= JUDGEMENT_BYTES_MAX:
        return None
    return f"request: has {size:,} bytes as it is written down; at most {JUDGEMENT_BYTES_MAX:,} are taken in one message"


def brief(faults: Sequence[str]) -> tuple[str, ...]:
    """Faults as a refusal carries them: each cut, and of very many the first."""
    kept = tuple(fault[:FAULT_CHARS_MAX] for fault in faults[:FAULTS_MAX])
    return kept if len(faults) <= FAULTS_MAX else (*kept, f"and {len(faults) - FAULTS_MAX:,} more faults")
