"""How many rows of a run are open at a time (G2, G5, G7): the others wait in the table, in chunks, as they came.

Pure. An open row costs memory in a lane, a receipt and a task; a waiting one only a part of one record. So a run of a million rows
needs no more memory than one of some thousands, and the records of a row are still cached when it is touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schemas.commands import CountersDue
from schemas.events import AddedRow
from schemas.states import WAITING, RunShare, Task, WaitingRows, record_key
from streams.engine.port import Wake
from streams.engine.rowsturn import RowsTurn

#: Open rows of one run, over all partitions, at least ...
ROWS_MIN = 8_000
#: ... and so many times what its providers take at a time, so that none of them ever waits for rows.
ROUNDS = 6
#: Open rows of one run on one partition, at least.
SHARE_MIN = 100
#: Bytes of a run's open rows on one partition; one chunk is admitted whatever its size.
BYTES_MAX = 16 << 20
#: What a row takes beside its JSON (G5).
ROW_BYTES = 128
#: Rows that one turn admits; more are admitted in turns of their own.
TURN_MAX = 2_000

Add = Callable[[RowsTurn, str, RunShare, Sequence[AddedRow]], None]


def _name(run: str, number: int) -> bytes:
    return record_key(WAITING, run, f"{number:08x}")


def rows_max(share: RunShare, partitions: int) -> int:
    """Rows of a run that may be open on one partition."""
    assert share.play is not None
    wanted = max((column.calls for column in share.play.columns), default=0)
    return max(SHARE_MIN, max(ROWS_MIN, ROUNDS * wanted) // partitions)


def must_wait(turn: RowsTurn, share: RunShare) -> bool:
    """A chunk that comes now waits: behind others, or for room."""
    if share.play is None or share.cancelled:
        return False
    return share.waiting_first < share.waiting_next or not _has_room(turn, share)


def _has_room(turn: RowsTurn, share: RunShare) -> bool:
    return share.open_rows < rows_max(share, turn.context.partitions) and share.open_bytes < BYTES_MAX


def hold(turn: RowsTurn, run: str, share: RunShare, rows: tuple[AddedRow, ...]) -> None:
    """Let a chunk wait behind those that wait."""
    turn.records.put(_name(run, share.waiting_next), WaitingRows(rows))
    share.waiting_next += 1


def opened(share: RunShare, task: Task) -> None:
    """A row was admitted, and is not settled yet."""
    share.open_rows += 1
    share.open_bytes += len(task.row.fields) + ROW_BYTES


def settled(share: RunShare, row: AddedRow) -> None:
    """An open row needs nothing more."""
    share.open_rows -= 1
    share.open_bytes -= len(row.fields) + ROW_BYTES


def admit(turn: RowsTurn, run: str, share: RunShare, add: Add) -> None:
    """Let chunks in once half of the room is free, until there is none; those of a cancelled run in any case, to be counted.

    A few at a time would cost a turn here, and one of ``receipts``, for each few.
    """
    if share.waiting_first == share.waiting_next or share.play is None:
        return
    limit = rows_max(share, turn.context.partitions)
    if not share.cancelled and 2 * share.open_rows > limit:
        return
    admitted = 0
    while share.waiting_first < share.waiting_next and (share.cancelled or _has_room(turn, share)):
        if admitted >= TURN_MAX:
            turn.outbox.effects.append(Wake(turn.context.now_ms, CountersDue(run)))
            break
        name = _name(run, share.waiting_first)
        chunk = turn.records.get(name, WaitingRows)
        assert chunk is not None, f"run {run}: chunk {share.waiting_first} of its waiting rows is missing"
        share.waiting_first += 1
        turn.records.delete(name)
        add(turn, run, share, chunk.rows)
        admitted += len(chunk.rows)
