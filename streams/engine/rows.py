"""The rows engine: gives each row its disposition, computes its columns one after the other, and keeps the sheet.

Pure. It asks for receipts and never calls a provider; it counts rows for ``runs``, cumulatively, so that a count that comes twice
changes nothing. For one call the first of completed and failed is final; unknown may be replaced by either (protocol.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from schemas import address
from schemas.canonical import UncanonicalValue, canonical, parse_json
from schemas.commands import CountersDue, RecoveryEnded
from schemas.envelope import EVENT_BYTES_MAX
from schemas.events import (
    AddedRow,
    Answer,
    CallCounts,
    CallsAnswered,
    CallWithdrawn,
    CompiledColumn,
    Event,
    Fault,
    Mark,
    Mode,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosing,
    RunOpened,
    ToolRequested,
)
from schemas.states import (
    SHARE,
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
from streams.engine.cells import addresser, call_of, cell_of, lane_partition, renderer, tasks_of
from streams.engine.getters import extracted
from streams.engine.port import Context, Outbox, Records, Wake
from streams.engine.program import MissingField
from streams.engine.sheet import published

#: Counters are published at most this often while rows are open.
COUNTERS_EVERY_MS = 100
SAMPLES_MAX = 3
#: A tool's input travels in one event.
INPUT_BYTES_MAX = EVENT_BYTES_MAX - (64 << 10)
# Members of enums, bound once: see ``protocol``.
_OPEN, _UNKNOWN, _COMPLETED, _FAILED = RowStatus.OPEN, RowStatus.UNKNOWN, RowStatus.COMPLETED, RowStatus.FAILED
_RUNNING, _SKIPPED, _CELL_UNKNOWN = CellStatus.RUNNING, CellStatus.SKIPPED, CellStatus.UNKNOWN
_CACHE = Mark.CACHE


_MARK_NAMES = {mark: mark.value for mark in Mark}
_STATUS_NAMES = {status: status.value for status in RowStatus}


@dataclass(slots=True)
class _Turn:
    records: Records
    outbox: Outbox
    context: Context
    #: Changes of counters in this turn, by run.
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    calls: dict[str, dict[str, int]] = field(default_factory=dict)
    shares: dict[str, RunShare] = field(default_factory=dict)

    def share(self, run: str) -> RunShare:
        """What this partition knows of a run; new where nothing is known."""
        share = self.shares.get(run)
        if share is None:
            share = self.records.get(record_key(SHARE, run), RunShare) or RunShare()
            self.shares[run] = share
        return share

    def count(self, run: str, state: str, change: int = 1) -> None:
        """Change a row counter."""
        counts = self.rows.get(run)
        if counts is None:
            counts = self.rows[run] = {}
        counts[state] = counts.get(state, 0) + change

    def called(self, run: str, mark: Mark) -> None:
        """Count a cell by how its value came."""
        counts = self.calls.get(run)
        if counts is None:
            counts = self.calls[run] = {}
        name = _MARK_NAMES[mark]
        counts[name] = counts.get(name, 0) + 1


class RowsEngine:
    """The engine of the ``rows`` table."""

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Fold all events, then publish the counters of the runs that changed."""
        turn = _Turn(records, outbox, context)
        records.prefetch(tasks_of(events))
        for event in events:
            self._fold(turn, event)
        for run, share in turn.shares.items():
            self._report(turn, run, share)

    def _fold(self, turn: _Turn, event: Event) -> None:
        match event:
            case RowsAdded():
                self._add(turn, event)
            case CallsAnswered():
                for call, mark in event.calls:
                    self._answered(turn, call, mark, event)
            case RunOpened():
                share = turn.share(event.run)
                share.org, share.play = event.org, event.play
                share.force, share.force_tool_refresh = event.force, event.force_tool_refresh
                share.dirty = True
            case RunCancelled():
                self._cancel(turn, event.run)
            case RunClosing():
                share = turn.share(event.run)
                share.closing = share.dirty = True
            case CountersDue():
                turn.share(event.run)
            case RecoveryEnded():
                for key, share in turn.records.scan(SHARE, RunShare):
                    if not share.closed:
                        share.dirty = True
                        share.published_ms = 0
                        turn.shares[key[1:].decode()] = share

    # --- rows ------------------------------------------------------------------------------------------------

    def _add(self, turn: _Turn, event: RowsAdded) -> None:
        share = turn.share(event.run)
        if share.play is None or share.closed:
            return
        tasks, sheets = record_key(TASK, event.run, ""), record_key(SHEET, share.play.dataset, "")
        turn.records.prefetch([sheets + row.key.encode() for row in event.rows])
        for row in event.rows:
            name = tasks + row.key.encode()
            task = turn.records.get(name, Task)
            if task is not None:
                if row.position != task.row.position and row.position not in task.duplicates:
                    task.duplicates = (*task.duplicates, row.position)
                    turn.records.put(name, task)
                    turn.count(event.run, "seen")
                    turn.count(event.run, "duplicate")
                continue
            turn.count(event.run, "seen")
            task = Task(row=row, cells={})
            sheet = turn.records.get(sheets + row.key.encode(), SheetRow)
            if share.cancelled:
                task.status = RowStatus.SKIPPED
                turn.count(event.run, "skipped")
            elif sheet is not None and self._stands(share, sheet, row):
                task.status, task.reused = sheet.status, True
                turn.count(event.run, "reused")
            else:
                self._advance(turn, event.run, share, task)
            turn.records.put(name, task)

    def _stands(self, share: RunShare, sheet: SheetRow, row: AddedRow) -> bool:
        """An earlier run's result is this run's too: same play revision, same input, not forced (M2)."""
        assert share.play is not None
        settled = sheet.status in (RowStatus.COMPLETED, RowStatus.SKIPPED)
        forced = share.force or share.force_tool_refresh
        return settled and not forced and sheet.revision == share.play.revision and sheet.fields == row.fields

    def _advance(self, turn: _Turn, run: str, share: RunShare, task: Task) -> None:
        """Compute the next columns of a row until one must be asked for, or the row is settled."""
        assert share.play is not None
        columns = share.play.columns
        values: dict[str, Any] | None = None
        while task.column < len(columns):
            column = columns[task.column]
            if values is None:
                values = self._values(task)
            if column.needs and any(values.get(name) in (None, "") for name in column.needs):
                task.cells[column.name] = Cell(CellStatus.SKIPPED, run=run)
                values[column.name] = None
                task.column += 1
                continue
            try:
                text = canonical(renderer(column.template)(values))
            except (MissingField, UncanonicalValue) as error:
                fault = Fault("bad_input", f"column {column.name}: {error}")
                task.cells[column.name] = Cell(CellStatus.FAILED, fault=fault, run=run)
                self._settle(turn, run, share, task, RowStatus.FAILED)
                return
            if len(text) > INPUT_BYTES_MAX:
                message = f"column {column.name}: its input has {len(text):,} bytes; at most {INPUT_BYTES_MAX:,} can be asked for"
                task.cells[column.name] = Cell(CellStatus.FAILED, fault=Fault("input_too_large", message), run=run)
                self._settle(turn, run, share, task, RowStatus.FAILED)
                return
            if share.cancelled or share.closing:
                # A value that came after the run's end is kept in the sheet; nothing more is asked for.
                self._settle(turn, run, share, task, RowStatus.UNKNOWN)
                return
            receipt = addresser(share.org, column).key(text)
            task.cells[column.name] = Cell(CellStatus.RUNNING, receipt=receipt, run=run)
            self._ask(turn, run, share, task, column, receipt, text)
            return
        computed = any(cell.status is not _SKIPPED for cell in task.cells.values())
        self._settle(turn, run, share, task, RowStatus.COMPLETED if computed else RowStatus.SKIPPED)

    def _values(self, task: Task) -> dict[str, Any]:
        values: dict[str, Any] = parse_json(task.row.fields)  # type: ignore[assignment]
        for name, cell in task.cells.items():
            values[name] = None if cell.value is None else parse_json(cell.value)
        return values

    def _ask(
        self,
        turn: _Turn,
        run: str,
        share: RunShare,
        task: Task,
        column: CompiledColumn,
        receipt: str,
        text: bytes,
    ) -> None:
        mode, refresh = Mode.NORMAL, None
        if share.force_tool_refresh:
            mode, refresh = Mode.FULL_REFRESH, address.refresh_id(run=run)
        elif share.force or task.refreshed:
            mode, refresh = Mode.FAILED_REFRESH, address.refresh_id(run=run)
        request = ToolRequested(
            receipt=receipt,
            call=call_of(run, task.row.key, column.name, task.refreshed),
            run=run,
            destination=turn.context.partition,
            lane=column.lane,
            tool=column.tool,
            repeat=column.repeat,
            input=text,
            mode=mode,
            refresh=refresh,
        )
        turn.outbox.send("tool-requests", lane_partition(column.lane, turn.context.partitions), request)

    def _answered(self, turn: _Turn, call: str, mark: Mark, event: CallsAnswered) -> None:
        run, row, column, refreshed = cell_of(call)
        name = record_key(TASK, run, row)
        task = turn.records.get(name, Task)
        share = turn.share(run)
        # A cancelled run gets no cell from what was in flight: the receipt keeps the value (M15).
        if task is None or share.play is None or task.refreshed != refreshed or share.cancelled:
            return
        cell = task.cells.get(column)
        if cell is None or cell.status not in (_RUNNING, _CELL_UNKNOWN):
            return
        turn.records.put(name, task)
        if self._asks_again(turn, run, share, task, mark, event):
            return
        if event.answer is not Answer.UNKNOWN:
            turn.called(run, mark)
        cell.mark, cell.fault = mark, event.fault
        match event.answer:
            case Answer.COMPLETED | Answer.NO_RESULT:
                cell.status = CellStatus.CACHED if mark is _CACHE else CellStatus.COMPLETED
                cell.value = self._extracted(share.play.columns[task.column], event.output or b"null")
                cell.fault = None
                task.column += 1
                self._advance(turn, run, share, task)
            case Answer.FAILED:
                cell.status = CellStatus.FAILED
                self._settle(turn, run, share, task, RowStatus.FAILED)
            case Answer.UNKNOWN:
                cell.status = CellStatus.UNKNOWN
                self._settle(turn, run, share, task, RowStatus.UNKNOWN)
            case _:
                assert_never(event.answer)

    def _asks_again(self, turn: _Turn, run: str, share: RunShare, task: Task, mark: Mark, event: CallsAnswered) -> bool:
        """A repairable failure of an earlier run is asked for again, once, as a refresh of this run's own (R5)."""
        repairable = event.answer is Answer.FAILED and event.fault is not None and event.fault.repairable
        if not (repairable and mark is Mark.CACHE and task.refreshed == 0) or share.play is None:
            return False
        task.refreshed = 1
        column = share.play.columns[task.column]
        text = canonical(renderer(column.template)(self._values(task)))
        self._ask(turn, run, share, task, column, event.receipt, text)
        return True

    def _extracted(self, column: CompiledColumn, output: bytes) -> bytes:
        return output if column.extract is None else extracted(output, column.extract)

    def _settle(self, turn: _Turn, run: str, share: RunShare, task: Task, status: RowStatus) -> None:
        """A row needs nothing more: count it, and write it to the sheet."""
        assert share.play is not None
        if task.status is not status:
            if task.status is _UNKNOWN:
                # Until here it counted as unknown, however many columns it still had to compute: progress never falls (O3).
                turn.count(run, "unknown", -1)
            task.status = status
            turn.count(run, _STATUS_NAMES[status])
        if status is RowStatus.FAILED and len(share.samples) < SAMPLES_MAX:
            column, fault = next((name, cell.fault) for name, cell in task.cells.items() if cell.fault)
            share.samples = (*share.samples, (task.row.position, column, fault.message if fault else ""))
        dataset = share.play.dataset
        cells = task.cells
        if status is _UNKNOWN:
            # The task goes on with its cells.
            cells = {name: msgspec.structs.replace(cell) for name, cell in cells.items()}
        sheet = SheetRow(
            position=task.row.position,
            fields=task.row.fields,
            cells=cells,
            status=status,
            run=run,
            revision=share.play.revision,
        )
        turn.records.put(record_key(SHEET, dataset, task.row.key), sheet)
        turn.outbox.public.append(published(dataset, task.row.key, sheet, turn.context.now_ms))
        if status is not RowStatus.UNKNOWN:
            # The sheet has it all; of the task only its identity is needed from here on.
            task.row, task.cells = AddedRow(task.row.position, task.row.key, b""), {}

    def _cancel(self, turn: _Turn, run: str) -> None:
        """Nothing more for this run: its open rows are skipped, what they wait for is withdrawn; calls in flight go on (M15)."""
        share = turn.share(run)
        if share.cancelled:
            return
        share.cancelled = share.dirty = True
        for name, task in turn.records.scan(record_key(TASK, run, ""), Task):
            if task.status not in (_OPEN, _UNKNOWN) or share.play is None:
                continue
            column = share.play.columns[task.column]
            cell = task.cells[column.name]
            if cell.status is _RUNNING:
                partition = lane_partition(column.lane, turn.context.partitions)
                call = call_of(run, task.row.key, column.name, task.refreshed)
                turn.outbox.send("tool-requests", partition, CallWithdrawn(cell.receipt or "", call))
                cell.status = _SKIPPED
            if task.status is _OPEN:
                task.status = RowStatus.SKIPPED
                turn.count(run, "skipped")
            turn.records.put(name, task)

    # --- counters --------------------------------------------------------------------------------------------

    def _report(self, turn: _Turn, run: str, share: RunShare) -> None:
        """Apply this turn's counts, and publish the sum when it is due."""
        changed = turn.rows.get(run)
        if changed:
            share.rows = RowCounts(
                **{name: getattr(share.rows, name) + changed.get(name, 0) for name in RowCounts.__struct_fields__}
            )
            share.dirty = True
        calls = turn.calls.get(run)
        if calls:
            share.calls = CallCounts(
                **{name: getattr(share.calls, name) + calls.get(name, 0) for name in CallCounts.__struct_fields__}
            )
            share.dirty = True
        turn.records.put(record_key(SHARE, run), share)
        if not share.dirty or share.play is None:
            return
        now_ms = turn.context.now_ms
        due_ms = share.published_ms + COUNTERS_EVERY_MS
        idle = share.rows.settled >= share.rows.seen
        if now_ms < due_ms and not idle and not share.closing:
            turn.outbox.effects.append(Wake(due_ms, CountersDue(run)))
            return
        share.sequence += 1
        share.published_ms, share.dirty = now_ms, False
        share.closed = share.closed or share.closing
        counted = RowsCounted(
            run=run,
            partition=turn.context.partition,
            sequence=share.sequence,
            rows=share.rows,
            calls=share.calls,
            final=share.closed,
            samples=share.samples,
        )
        turn.outbox.send("row-progress", address.partition_of(run, turn.context.partitions), counted)
