"""What ``rows`` drops of runs that have ended, so that its table does not grow with each run for ever.

Pure. A run leaves a task for each of its rows, reused ones included, though the sheet has all that counts: a task only tells a row
that comes twice, or an answer, where it belongs, and nothing of that comes once the run is closed. A cell that is unknown still
waits for somebody's word (U3), so its task stays. A share goes when no task is left, and leaves a marker, by which whatever comes
later for the run is known to be late. It is a command that names its limit, so that a replay drops the same, one portion a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from schemas.commands import EndedRunsDue
from schemas.states import (
    CLOSED,
    SHARE,
    TASK,
    UNKNOWN_CELL,
    WAITING,
    CellStatus,
    ClosedRun,
    RowStatus,
    RunShare,
    Task,
    UnknownCell,
    WaitingRows,
    record_key,
)
from streams.engine import duplicates
from streams.engine.port import Context, Outbox, Records, Wake

#: Tasks and shares that one turn looks at, at most, and the wait until the next turn, so that rows come first.
TASKS_MAX = 2_000
SHARES_MAX = 500
PAUSE_MS = 200
#: Cells of a task that still waits for something.
_WAITING = (CellStatus.RUNNING, CellStatus.UNKNOWN)


@dataclass(frozen=True, slots=True)
class RunSweepPolicy:
    """How often to look, and how long the rows of a run that has ended are kept; in milliseconds."""

    every_ms: int
    keep_ms: int

    def next(self, now_ms: int) -> Wake:
        """The sweep that is due some time after ``now_ms``."""
        at_ms = now_ms + self.every_ms
        return Wake(at_ms, EndedRunsDue(at_ms - self.keep_ms))


def sweep(records: Records, outbox: Outbox, context: Context, event: EndedRunsDue, policy: RunSweepPolicy | None) -> None:
    """Look at one portion of the runs that ended long enough ago, and say when to look again."""
    following = _swept(records, context, event)
    if following is not None:
        outbox.effects.append(Wake(context.now_ms + PAUSE_MS, following))
    elif policy is not None:
        outbox.effects.append(policy.next(context.now_ms))


def _swept(records: Records, context: Context, event: EndedRunsDue) -> EndedRunsDue | None:
    """Drop what may go of one portion; where to go on, ``None`` at the end."""
    left = TASKS_MAX
    shares = list(islice(_shares(records, event), SHARES_MAX))
    run = event.run
    for name, share in shares:
        run = name[1:].decode()
        if _is_due(share, event.until_ms):
            tasks = _tasks(records, run, event.row if run == event.run else "", left)
            left -= len(tasks)
            if not left:
                return EndedRunsDue(event.until_ms, run, tasks[-1])
            _end(records, context, name, run, share)
    return EndedRunsDue(event.until_ms, run) if len(shares) == SHARES_MAX else None


def _shares(records: Records, event: EndedRunsDue) -> Iterator[tuple[bytes, RunShare]]:
    """Shares in the order of their keys: the one in whose tasks the last portion ended, then those behind it."""
    name = record_key(SHARE, event.run)
    if event.row and (share := records.get(name, RunShare)) is not None:
        yield name, share
    yield from records.scan(SHARE, RunShare, after=name if event.run else None)


def _is_due(share: RunShare, until_ms: int) -> bool:
    """It ended long enough ago, and something has changed in it since its rows were last looked through."""
    return share.closed and share.published_ms <= until_ms and share.swept_ms != share.published_ms


def _tasks(records: Records, run: str, row: str, limit: int) -> list[str]:
    """Drop tasks of a run behind a row, but for those that still wait; the rows that were looked at."""
    prefix = record_key(TASK, run, "")
    rows = []
    for name, task in list(islice(records.scan(prefix, Task, after=prefix + row.encode() if row else None), limit)):
        rows.append(name[len(prefix) :].decode())
        if task.status is not RowStatus.OPEN and not any(cell.status in _WAITING for cell in task.cells.values()):
            duplicates.dropped(records, name, task)
            records.delete(name)
    return rows


def _end(records: Records, context: Context, name: bytes, run: str, share: RunShare) -> None:
    """All tasks of a run were looked at: keep its share for those that stay, else leave the marker alone."""
    if next(records.scan(record_key(TASK, run, ""), Task), None) is not None:
        share.swept_ms = share.published_ms
        records.put(name, share)
        return
    # Nothing of these should be left; what is would never be found again.
    left = [key for key, _ in records.scan(record_key(UNKNOWN_CELL, run, ""), UnknownCell)]
    left += [key for key, _ in records.scan(record_key(WAITING, run, ""), WaitingRows)]
    for key in (*left, name):
        records.delete(key)
    records.put(record_key(CLOSED, run), ClosedRun(context.now_ms))
