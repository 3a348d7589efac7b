"""The rows engine: gives each row its disposition, computes its columns one after the other, and keeps the sheet.

Pure. It asks for receipts and never calls a provider; it counts rows for ``runs``, cumulatively, so that a count that comes twice
changes nothing. For one call the first of completed and failed is final; unknown may be replaced by either (protocol.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, assert_never

import msgspec

from schemas import address
from schemas.canonical import UncanonicalValue, canonical, parse_json
from schemas.commands import CountersDue, EndedRunsDue, RecoveryEnded
from schemas.envelope import EVENT_BYTES_MAX
from schemas.events import (
    AddedRow,
    Answer,
    AttemptUnknown,
    CallsAnswered,
    CallWithdrawn,
    CellResolved,
    CompiledColumn,
    Event,
    Fault,
    Mark,
    Mode,
    RowsAdded,
    RunCancelled,
    RunClosing,
    RunOpened,
    ToolRequested,
)
from schemas.states import (
    SHEET,
    TASK,
    Cell,
    CellStatus,
    RowStatus,
    RunShare,
    SheetRow,
    Task,
    record_key,
)
from streams.engine import admission, duplicates, rowsize, runsweep, unknowncells
from streams.engine.cells import Program, answered_cells, bucket_of, call_of, kept_under, lane_partition, next_column
from streams.engine.getters import extracted
from streams.engine.port import Context, Outbox, Records
from streams.engine.program import MissingField
from streams.engine.rowsturn import RowsTurn
from streams.engine.runsweep import RunSweepPolicy
from streams.engine.scopes import bound, in_doubt, scope_in, too_late, unmoved
from streams.engine.sheet import published

SAMPLES_MAX = 3
#: A tool's input travels in one event.
INPUT_BYTES_MAX = EVENT_BYTES_MAX - (64 << 10)
# Members of enums, bound once: see ``protocol``.
_OPEN, _UNKNOWN, _COMPLETED, _FAILED = RowStatus.OPEN, RowStatus.UNKNOWN, RowStatus.COMPLETED, RowStatus.FAILED
_RUNNING, _SKIPPED, _CELL_UNKNOWN = CellStatus.RUNNING, CellStatus.SKIPPED, CellStatus.UNKNOWN
_CACHED, _CELL_COMPLETED = CellStatus.CACHED, CellStatus.COMPLETED
_CACHE, _NORMAL = Mark.CACHE, Mode.NORMAL
_ANSWERED: Final = Answer.COMPLETED
_NO_RESULT: Final = Answer.NO_RESULT
_STILL_UNKNOWN: Final = Answer.UNKNOWN

_STATUS_NAMES = {status: status.value for status in RowStatus}


class RowsEngine:
    """The engine of the ``rows`` table; without ``sweep`` it drops nothing by itself."""

    def __init__(self, sweep: RunSweepPolicy | None = None) -> None:
        self._sweep = sweep

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Fold all events, then publish the counters of the runs that changed."""
        turn = RowsTurn(records, outbox, context)
        turn.answered = answered_cells(events)
        records.prefetch([place[-1] for place in turn.answered.values()])
        for event in events:
            self._fold(turn, event)
        for run, share in turn.shares.items():
            admission.admit(turn, run, share, self._add)
            turn.report(run, share)
        for due in turn.sweeps:
            runsweep.sweep(records, outbox, context, due, self._sweep)

    def _fold(self, turn: RowsTurn, event: Event) -> None:
        match event:
            case RowsAdded():
                share = turn.share(event.run)
                if admission.must_wait(turn, share):
                    admission.hold(turn, event.run, share, event.rows)
                else:
                    self._add(turn, event.run, share, event.rows)
            case CallsAnswered():
                for call, mark in event.calls:
                    self._answered(turn, call, mark, event)
            case RunOpened() if not turn.share(event.run).closed:
                share = turn.share(event.run)
                share.org, share.play = event.org, event.play
                share.force, share.force_tool_refresh = event.force, event.force_tool_refresh
                # Its first counters wait as long as all others: so early they say nothing, and the first rows are in a hurry.
                share.dirty, share.published_ms = True, turn.context.now_ms
            case AttemptUnknown():
                unknowncells.note(turn, event)
            case CellResolved():
                unknowncells.resolve(turn, event, self._settle)
            case RunCancelled():
                self._cancel(turn, event.run)
            case RunClosing():
                share = turn.share(event.run)
                share.closing = share.dirty = True
            case CountersDue():
                turn.share(event.run)
            case RecoveryEnded():
                turn.take_stock()
                if self._sweep is not None:
                    turn.outbox.effects.append(self._sweep.next(turn.context.now_ms))
            case EndedRunsDue():
                turn.sweeps.append(event)

    # --- rows ------------------------------------------------------------------------------------------------

    def _add(self, turn: RowsTurn, run: str, share: RunShare, rows: Sequence[AddedRow]) -> None:
        if share.play is None or share.closed:
            return
        tasks, sheets = record_key(TASK, run, ""), record_key(SHEET, share.org, share.play.dataset, "")
        records, seen = turn.records, 0
        names = [row.key.encode() for row in rows]
        records.prefetch([tasks + name for name in names] + [sheets + name for name in names])
        for row, key in zip(rows, names, strict=True):
            name = tasks + key
            task = records.get(name, Task)
            if task is not None:
                if row.position != task.row.position and duplicates.added(records, name, task, row.position):
                    turn.count(run, "seen")
                    turn.count(run, "duplicate")
                continue
            seen += 1
            task = Task(row, {})
            sheet = records.get(sheets + key, SheetRow)
            if share.cancelled:
                task.status = RowStatus.SKIPPED
                turn.count(run, "skipped")
            elif sheet is not None and self._stands(turn, run, share, sheet, row):
                task.status, task.reused = sheet.status, True
                turn.count(run, "reused")
            else:
                admission.opened(share, task)
                self._advance(turn, run, share, task)
            records.put(name, task)
        if seen:
            turn.count(run, "seen", seen)

    def _stands(self, turn: RowsTurn, run: str, share: RunShare, sheet: SheetRow, row: AddedRow) -> bool:
        """An earlier run's result is this run's too: same play and keys of what it asks, same input, not forced (M2)."""
        assert share.play is not None
        settled = sheet.status in (RowStatus.COMPLETED, RowStatus.SKIPPED)
        forced = share.force or share.force_tool_refresh
        return settled and not forced and sheet.revision == turn.standing(run, share) and sheet.fields == row.fields

    def _advance(self, turn: RowsTurn, run: str, share: RunShare, task: Task) -> None:
        """Compute the next columns of a row until one must be asked for, or the row is settled."""
        programs = turn.programs(run, share)
        if task.column < len(programs):
            values = self._values(task)
            while task.column < len(programs):
                program = programs[task.column]
                if not self._skips(run, task, program.column, values):
                    self._compute(turn, run, share, task, program, values)
                    return
        computed = False
        for cell in task.cells.values():
            if cell.status is not _SKIPPED:
                computed = True
                break
        self._settle(turn, run, share, task, _COMPLETED if computed else RowStatus.SKIPPED)

    def _skips(self, run: str, task: Task, column: CompiledColumn, values: dict[str, Any]) -> bool:
        """Skip a column that lacks what it needs (C3)."""
        for needed in column.needs:
            if values.get(needed) in (None, ""):
                task.cells[column.name] = Cell(_SKIPPED, run=run)
                values[column.name] = None
                next_column(task)
                return True
        return False

    def _compute(self, turn: RowsTurn, run: str, share: RunShare, task: Task, program: Program, values: dict[str, Any]) -> None:
        """Ask for a cell, or settle the row where that cannot be done."""
        column = program.column
        try:
            text = canonical(program.render(values))
        except (MissingField, UncanonicalValue) as error:
            self._cannot(turn, run, share, task, column, Fault("bad_input", f"column {column.name}: {error}"))
            return
        if len(text) > INPUT_BYTES_MAX:
            message = f"column {column.name}: its input has {len(text):,} bytes; at most {INPUT_BYTES_MAX:,} can be asked for"
            self._cannot(turn, run, share, task, column, Fault("input_too_large", message))
            return
        if share.cancelled or share.closing:
            # A value that came after the run's end is kept in the sheet; nothing more is asked for.
            self._settle(turn, run, share, task, _UNKNOWN)
            return
        receipt = program.receipt(text, run, task.row.key)
        task.cells[column.name] = Cell(_RUNNING, None, receipt, None, None, run)
        self._ask(turn, run, share, task, column, receipt, text)

    def _cannot(self, turn: RowsTurn, run: str, share: RunShare, task: Task, column: CompiledColumn, fault: Fault) -> None:
        task.cells[column.name] = Cell(CellStatus.FAILED, fault=rowsize.brief(fault), run=run)
        self._settle(turn, run, share, task, _FAILED)

    def _values(self, task: Task) -> dict[str, Any]:
        values: dict[str, Any] = parse_json(task.row.fields)  # type: ignore[assignment]
        for name, cell in task.cells.items():
            values[name] = None if cell.value is None else parse_json(cell.value)
        return values

    def _ask(
        self,
        turn: RowsTurn,
        run: str,
        share: RunShare,
        task: Task,
        column: CompiledColumn,
        receipt: str,
        text: bytes,
    ) -> None:
        mode, refresh = _NORMAL, None
        if share.force_tool_refresh:
            mode, refresh = Mode.FULL_REFRESH, address.refresh_id(run=run)
        elif share.force or task.again:
            mode, refresh = Mode.FAILED_REFRESH, address.refresh_id(run=run)
        request = ToolRequested(
            receipt,
            call_of(run, task.row.key, column.name, task.refreshed),
            run,
            turn.context.partition,
            column.lane,
            column.tool,
            column.repeat,
            text,
            mode,
            refresh,
            bound("" if column.bucket is None else bucket_of(column.bucket, parse_json(text)), column),
            column.lane == turn.answered_lane,
            kept_under=kept_under(share.org, column, text),
            receipt_wait_ms=column.receipt_wait_ms,
            retries=column.retries,
        )
        turn.outbox.send("tool-requests", lane_partition(column.lane, turn.context.partitions), request)

    def _answered(self, turn: RowsTurn, call: str, mark: Mark, event: CallsAnswered) -> None:
        run, row, column, refreshed, name = turn.answered[call]
        task = turn.records.get(name, Task)
        share = turn.share(run)
        if task is None or share.play is None or task.refreshed != refreshed:
            return
        cell = task.cells.get(column)
        # A cancel has made cells that were running *skipped*: the receipt keeps their values (M15). One that was unknown before is
        # settled all the same: people look at it, and say what became of it (U3).
        if cell is None or cell.status not in (_RUNNING, _CELL_UNKNOWN):
            return
        turn.records.put(name, task)
        answer = event.answer
        if cell.status is _CELL_UNKNOWN and answer is not _STILL_UNKNOWN:
            unknowncells.over(turn, run, row, column)
        if answer is _ANSWERED or answer is _NO_RESULT:
            turn.called(run, mark)
            value = self._extracted(share.play.columns[task.column], event.output or b"null")
            # Of a call that has a receipt of its own it may be another's value (Y2).
            cell.mark, cell.fault, cell.receipt = mark, rowsize.excess(task, column, value), event.receipt
            if cell.fault is not None:
                cell.status = CellStatus.FAILED
                self._settle(turn, run, share, task, _FAILED)
                return
            cell.status, cell.value = _CACHED if mark is _CACHE else _CELL_COMPLETED, value
            if mark is not _CACHE:
                turn.answered_lane = share.play.columns[task.column].lane
            next_column(task)
            self._advance(turn, run, share, task)
            turn.answered_lane = None
            return
        fault = event.fault
        ended = share.cancelled or share.closing
        if fault is not None and (scope := scope_in(fault.code)) is not None:
            # What an earlier worker said of its providers file may be out of date: this run asks, and moves by what it hears then.
            if answer is _STILL_UNKNOWN:
                fault = in_doubt(fault)
            elif not ended and (
                self._asks_again(turn, run, share, task, mark, event) or self._moves(turn, run, share, task, scope)
            ):
                return
            else:
                fault = too_late(fault) if ended else unmoved(fault)
        if not ended and self._asks_again(turn, run, share, task, mark, event):
            return
        cell.mark, cell.fault = mark, rowsize.brief(fault)
        match answer:
            case Answer.FAILED:
                turn.called(run, mark)
                cell.status = CellStatus.FAILED
                self._settle(turn, run, share, task, RowStatus.FAILED)
            case Answer.UNKNOWN:
                cell.status = CellStatus.UNKNOWN
                self._settle(turn, run, share, task, RowStatus.UNKNOWN)
            case _:
                assert_never(answer)

    def _asks_again(self, turn: RowsTurn, run: str, share: RunShare, task: Task, mark: Mark, event: CallsAnswered) -> bool:
        """A repairable failure of an earlier run is asked for again, once, as a refresh of this run's own (R5)."""
        repairable = event.answer is Answer.FAILED and event.fault is not None and event.fault.repairable
        if not (repairable and mark is Mark.CACHE and not task.again):
            return False
        task.refreshed += 1
        task.again = True
        program = turn.program(run, share, task)
        text = canonical(program.render(self._values(task)))
        self._ask(turn, run, share, task, program.column, event.receipt, text)
        return True

    def _moves(self, turn: RowsTurn, run: str, share: RunShare, task: Task, scope: str) -> bool:
        """Ask under the keys of another auth scope, once (P4); false where the keys would be the same. The old receipt is left."""
        if task.column in task.moved or scope == turn.program(run, share, task).column.scope:
            return False
        task.refreshed += 1
        # What was met under the old keys says nothing of the receipt that is asked for now.
        task.moved[task.column], task.again = scope, False
        there = turn.program(run, share, task)
        text = canonical(there.render(self._values(task)))
        receipt = there.receipt(text, run, task.row.key)
        task.cells[there.column.name].receipt = receipt
        self._ask(turn, run, share, task, there.column, receipt, text)
        return True

    def _extracted(self, column: CompiledColumn, output: bytes) -> bytes:
        return output if column.extract is None else extracted(output, column.extract)

    def _settle(self, turn: RowsTurn, run: str, share: RunShare, task: Task, status: RowStatus) -> None:
        """A row needs nothing more: count it, and write it to the sheet."""
        assert share.play is not None
        if task.status is not status:
            if task.status is _UNKNOWN:
                # Until here it counted as unknown, however many columns it still had to compute: progress never falls (O3).
                turn.count(run, "unknown", -1)
            elif task.status is _OPEN:
                admission.settled(share, task.row)
            task.status = status
            turn.count(run, _STATUS_NAMES[status])
        if status is _FAILED and len(share.samples) < SAMPLES_MAX:
            column, fault = next((name, cell.fault) for name, cell in task.cells.items() if cell.fault)
            share.samples = (*share.samples, (task.row.position, column, fault.message if fault else ""))
        dataset = share.play.dataset
        cells = task.cells
        if status is _UNKNOWN:
            # The task goes on with its cells.
            cells = {name: msgspec.structs.replace(cell) for name, cell in cells.items()}
        row = task.row
        # A cell that has moved holds what another account got: such a row stands for no run that is bound as this one was.
        standing = None if task.moved else turn.standing(run, share)
        sheet = SheetRow(row.position, row.fields, cells, status, run, standing or share.play.revision)
        name = record_key(SHEET, share.org, dataset, row.key)
        newer = turn.records.get(name, SheetRow) if share.closed else None
        if newer is None or newer.run == run:
            # What comes after a run's end does not undo what a later run has made of the row.
            turn.records.put(name, sheet)
            turn.outbox.publish(published, share.org, dataset, row.key, sheet, turn.context.now_ms)
        if status is not _UNKNOWN:
            # The sheet has it all; of the task only its identity is needed from here on.
            task.row, task.cells = AddedRow(row.position, row.key, b""), {}

    def _cancel(self, turn: RowsTurn, run: str) -> None:
        """Nothing more for this run: its open rows are skipped, what they wait for is withdrawn; calls in flight go on (M15)."""
        share = turn.share(run)
        if share.cancelled:
            return
        share.cancelled = share.dirty = True
        for name, task in turn.records.scan(record_key(TASK, run, ""), Task):
            if task.status not in (_OPEN, _UNKNOWN) or share.play is None:
                continue
            column = share.play.columns[task.column]
            cell = task.cells.get(column.name)
            if cell is not None and cell.status is _RUNNING:
                partition = lane_partition(column.lane, turn.context.partitions)
                call = call_of(run, task.row.key, column.name, task.refreshed)
                turn.outbox.send("tool-requests", partition, CallWithdrawn(cell.receipt or "", call))
                cell.status = _SKIPPED
                turn.records.put(name, task)
            if task.status is _OPEN:
                task.status = RowStatus.SKIPPED
                turn.count(run, "skipped")
                admission.settled(share, task.row)
                turn.records.put(name, task)
