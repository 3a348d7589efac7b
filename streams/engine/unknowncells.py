"""Cells whose outcome is unknown, as ``rows`` sees them: which attempt is in doubt, and what a person says about it (U3).

Pure. A person's word goes to the owner of the receipt as an event that names its attempt (T7); the answer to the cell comes back
the usual way. After the run's end the sheet changes, its ledger does not.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.events import AttemptUnknown, CellResolved, Fault, ReceiptResolved
from schemas.progress import OperationEvent
from schemas.states import SHEET, TASK, UNKNOWN_CELL, CellStatus, RowStatus, RunShare, SheetRow, Task, UnknownCell, record_key
from streams.engine.cells import cell_of, lane_partition
from streams.engine.operations import tell
from streams.engine.rowsturn import RowsTurn

#: Settles a row: run, its share, the task, and the row's new status.
Settle = Callable[[RowsTurn, str, RunShare, Task, RowStatus], None]
#: Cells that still wait for an answer.
_IN_DOUBT = (CellStatus.RUNNING, CellStatus.UNKNOWN)


def note(turn: RowsTurn, event: AttemptUnknown) -> None:
    """Write down which attempt of its receipt a cell's doubt is about; the answer *unknown* comes right behind."""
    for call in event.calls:
        run, row, column, refreshed = cell_of(call)
        task = turn.records.get(record_key(TASK, run, row), Task)
        cell = None if task is None or task.refreshed != refreshed else task.cells.get(column)
        if cell is not None and cell.status in _IN_DOUBT:
            turn.records.put(record_key(UNKNOWN_CELL, run, row, column), UnknownCell(event.receipt, event.n, event.epoch))


def over(turn: RowsTurn, run: str, row: str, column: str) -> None:
    """A cell was answered for good."""
    turn.records.delete(record_key(UNKNOWN_CELL, run, row, column))


def resolve(turn: RowsTurn, event: CellResolved, settle: Settle) -> None:
    """Hand a person's word to the receipt's owner; rejected where this cell is in no doubt, which changes nothing."""
    share = turn.share(event.run)
    task = turn.records.get(record_key(TASK, event.run, event.row), Task)
    unknown = turn.records.get(record_key(UNKNOWN_CELL, event.run, event.row, event.column), UnknownCell)
    if share.closed and task is None:
        _tell(turn, event, "not_unknown", f"run {event.run} has ended, and no row with the key {event.row} is in doubt there")
        return
    if share.play is None or task is None:
        _tell(turn, event, "unknown_row", f"run {event.run} has no row with the key {event.row}")
        return
    cell = task.cells.get(event.column)
    if unknown is not None and (cell is None or cell.status not in _IN_DOUBT):
        # Of before: a cell that had moved to other keys while its call was in doubt was answered there.
        over(turn, event.run, event.row, event.column)
        unknown = None
    if unknown is None or cell is None:
        _tell(turn, event, "not_unknown", f"column {event.column} of this row is {_state(turn, share, task, event)}")
        return
    column = next(column for column in share.play.columns if column.name == event.column)
    resolved = ReceiptResolved(unknown.receipt, unknown.n, unknown.epoch, event.output, event.who, event.why)
    turn.outbox.send("receipt-completions", lane_partition(column.lane, turn.context.partitions), resolved)
    _tell(turn, event, "", "", unknown)
    if event.output is None and (share.closing or share.cancelled):
        # Nobody is left in this run who could ask again: that is for the next one.
        cell.status = CellStatus.FAILED
        said = f": {event.why}" if event.why else ""
        cell.fault = Fault(
            "resolved_unpaid", f"resolved as unpaid by {event.who or 'somebody'}{said}; a next run calls again", True
        )
        over(turn, event.run, event.row, event.column)
        settle(turn, event.run, share, task, RowStatus.FAILED)
        turn.records.put(record_key(TASK, event.run, event.row), task)


def _state(turn: RowsTurn, share: RunShare, task: Task, event: CellResolved) -> str:
    """How a cell stands, for people."""
    cell = task.cells.get(event.column)
    if cell is None and share.play is not None:
        sheet = turn.records.get(record_key(SHEET, share.org, share.play.dataset, event.row), SheetRow)
        cell = None if sheet is None else sheet.cells.get(event.column)
    return "not asked for yet" if cell is None else f"{cell.status.value}, not unknown"


def _tell(turn: RowsTurn, event: CellResolved, code: str, message: str, unknown: UnknownCell | None = None) -> None:
    taken = unknown is not None
    told = OperationEvent(
        type="cell.resolved" if taken else "cell.rejected",
        operation=event.operation,
        at_ms=turn.context.now_ms,
        run=event.run,
        row=event.row,
        column=event.column,
        receipt=unknown.receipt if unknown is not None else "",
        n=unknown.n if unknown is not None else 0,
        code=("unpaid" if event.output is None else "paid") if taken else code,
        message=message,
        who=event.who,
        why=event.why,
    )
    tell(turn.outbox, turn.context, told)
