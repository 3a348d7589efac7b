"""The runs engine: takes run requests, sends rows down to their partitions, adds up what comes back, and ends each run once.

Pure. Requests arrive judged (valid and compiled, or refused with every fault), because compiling looks at the providers file of a
day. Progress is a sum of cumulative counters, so it never falls and never exceeds the total (I1 in the cases).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas import address
from schemas.commands import (
    CancelRequested,
    ForgettingRequested,
    Misrouted,
    ProgressDue,
    RecoveryEnded,
    ResolutionRequested,
    RowsAppended,
    RowsSealed,
    RunRequested,
)
from schemas.events import (
    AddedRow,
    CallCounts,
    Event,
    RetriesCounted,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosing,
    RunOpened,
)
from schemas.progress import Counts, FailedRow, MapProgress, RunEvent
from schemas.states import RUN, Run, RunStatus, Share, record_key
from streams.engine import operations
from streams.engine.inputlines import RowFault, added_row, appended_rows, parts
from streams.engine.port import Context, Outbox, PublicEvent, Records, Wake

PROGRESS_EVERY_MS = 250
HEARTBEAT_MS = 5_000
#: Faults that one refusal names.
FAULTS_MAX = 100

_RUNNING = (RunStatus.RUNNING, RunStatus.CLOSING)


@dataclass(slots=True)
class _Turn:
    records: Records
    outbox: Outbox
    context: Context
    touched: dict[str, Run] = field(default_factory=dict)

    def run(self, name: str) -> Run | None:
        """The run's record; it counts as changed."""
        key = record_key(RUN, name)
        run = self.records.get(key, Run)
        if run is not None:
            self.records.put(key, run)
            self.touched[name] = run
        return run


def _faults(number: int) -> str:
    return f"{number} fault{'s' * (number != 1)}"


def _sum(shares: Iterable[Share], kind: type[RowCounts] | type[CallCounts], part: str) -> dict[str, int]:
    values = [getattr(share, part) for share in shares]
    return {name: sum(getattr(value, name) for value in values) for name in kind.__struct_fields__}


def counts_of(run: Run) -> Counts:
    """The run's counters, summed over partitions."""
    shares = list(run.shares.values())
    rows = RowCounts(**_sum(shares, RowCounts, "rows"))
    calls = CallCounts(**_sum(shares, CallCounts, "calls"))
    return Counts(
        # Once announced it is fixed (case I1): a run that gets other rows than it announced fails.
        total=run.expected if run.expected is not None else run.total if run.sealed else None,
        received=run.total,
        completed=rows.completed,
        failed=rows.failed,
        skipped=rows.skipped,
        reused=rows.reused,
        duplicate=rows.duplicate,
        unknown=rows.unknown,
        calls_live=calls.live,
        calls_in_flight=calls.in_flight,
        calls_cache=calls.cache,
        retries=sum(run.retries.values()),
    )


class RunsEngine:
    """The engine of the ``runs`` table."""

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Fold all events, then move each run on and publish its progress when due."""
        turn = _Turn(records, outbox, context)
        for event in events:
            self._fold(turn, event)
        for name, run in turn.touched.items():
            self._move(turn, name, run)
            self._report(turn, name, run)

    def _fold(self, turn: _Turn, event: Event) -> None:
        match event:
            case RunRequested():
                self._request(turn, event)
            case RowsAppended():
                self._append(turn, event)
            case RowsSealed():
                self._seal(turn, event)
            case RowsCounted():
                self._counted(turn, event)
            case RetriesCounted():
                run = turn.run(event.run)
                if run is not None and run.status in _RUNNING and event.retries > run.retries.get(event.lane, 0):
                    run.retries[event.lane] = event.retries
                    run.dirty = True
            case CancelRequested():
                run = turn.run(event.run)
                if run is not None and run.status is RunStatus.RUNNING and not run.cancel_requested:
                    run.cancel_requested = run.sealed = True
                    self._send_all(turn, run, RunCancelled(event.run))
            case ResolutionRequested():
                operations.resolve(turn.records, turn.outbox, turn.context, event)
            case ForgettingRequested():
                operations.forget(turn.outbox, turn.context, event)
            case ProgressDue():
                turn.run(event.run)
            case Misrouted():
                home = address.partition_of(event.run, turn.context.partitions)
                forwarded = PublicEvent(event.topic, event.run, "paidonce.forwarded", event.value, f"{event.run}/forwarded", home)
                turn.outbox.public.append(forwarded)
            case RecoveryEnded():
                for key, run in turn.records.scan(RUN, Run):
                    if run.status in _RUNNING:
                        run.dirty = True
                        turn.records.put(key, run)
                        turn.touched[key[1:].decode()] = run

    # --- what is asked for -----------------------------------------------------------------------------------

    def _request(self, turn: _Turn, event: RunRequested) -> None:
        run = turn.records.get(record_key(RUN, event.run), Run)
        if run is not None:
            if run.digest != event.digest:
                self._reject(turn, event)
            return
        faults = list(event.faults)
        rows: list[AddedRow] = []
        if event.play is not None:
            for position, raw in enumerate(event.rows):
                try:
                    rows.append(added_row(event.play, position, raw))
                except RowFault as fault:
                    faults.append(str(fault))
            if event.sealed and event.expected is not None and event.expected != len(event.rows):
                faults.append(f"expected_rows: {event.expected:,}, but the request has {len(event.rows):,} rows")
        if faults or event.play is None:
            self._tell(
                turn,
                event.run,
                RunEvent(
                    type="run.refused",
                    run=event.run,
                    at_ms=turn.context.now_ms,
                    code="invalid_request",
                    message=f"the run request has {_faults(len(faults))}",
                    faults=tuple(faults[:FAULTS_MAX]),
                ),
                f"refused/{event.digest}",
            )
            return
        run = Run(
            digest=event.digest,
            org=event.org,
            play=event.play,
            status=RunStatus.RUNNING,
            total=0,
            sealed=event.sealed,
            shares={},
            started_ms=turn.context.now_ms,
            force=event.force,
            force_tool_refresh=event.force_tool_refresh,
            dirty=True,
            expected=event.expected,
        )
        turn.records.put(record_key(RUN, event.run), run)
        turn.touched[event.run] = run
        self._ledger(turn, event.run, run, "run.started")
        self._send_rows(turn, event.run, run, rows)

    def _reject(self, turn: _Turn, event: RunRequested) -> None:
        """A request that cannot be taken under the id of a run that exists and goes on unharmed (case I4)."""
        code, message = "run_id_in_use", f"run {event.run!r} exists with another request; choose another run id"
        if event.faults:
            code, message = "invalid_request", f"a request for run {event.run!r} has {_faults(len(event.faults))}"
        rejected = RunEvent(
            type="run.rejected",
            run=event.run,
            at_ms=turn.context.now_ms,
            code=code,
            message=message,
            faults=event.faults[:FAULTS_MAX],
        )
        self._tell(turn, event.run, rejected, f"rejected/{event.digest}")

    def _append(self, turn: _Turn, event: RowsAppended) -> None:
        run = turn.run(event.run)
        if run is None or run.status is not RunStatus.RUNNING or run.sealed:
            return
        known = run.chunks.get(event.first)
        if known is not None:
            if known[1] != event.digest:
                self._fail(turn, event.run, run, "rows_conflict", f"two different chunks begin at row {event.first}")
            return
        if event.first != run.total:
            message = f"a chunk begins at row {event.first:,}, expected {run.total:,}: rows are missing or came twice"
            self._fail(turn, event.run, run, "rows_out_of_order", message)
            return
        if run.expected is not None and event.first + len(event.rows) > run.expected:
            message = f"{event.first + len(event.rows):,} rows came, but {run.expected:,} were announced"
            self._fail(turn, event.run, run, "too_many_rows", message)
            return
        try:
            rows = appended_rows(run, event)
        except RowFault as fault:
            self._fail(turn, event.run, run, fault.code, str(fault))
            return
        run.chunks[event.first] = (len(rows), event.digest)
        self._send_rows(turn, event.run, run, rows)

    def _seal(self, turn: _Turn, event: RowsSealed) -> None:
        run = turn.run(event.run)
        if run is None or run.status is not RunStatus.RUNNING or run.sealed:
            return
        if run.total != event.total or run.expected not in (None, event.total):
            announced = "" if run.expected is None else f" and {run.expected:,} were announced"
            message = f"sealed with {event.total:,} rows, but {run.total:,} came{announced}"
            self._fail(turn, event.run, run, "rows_missing", message)
            return
        run.sealed = run.dirty = True

    def _send_rows(self, turn: _Turn, name: str, run: Run, rows: Sequence[AddedRow]) -> None:
        homes: dict[int, list[AddedRow]] = {}
        partitions = turn.context.partitions
        for row in rows:
            homes.setdefault(address.spread(row.key, partitions), []).append(row)
        for partition, added in homes.items():
            share = run.shares.get(partition)
            if share is None:
                share = run.shares[partition] = Share()
                opened = RunOpened(name, run.org, run.play, run.force, run.force_tool_refresh)
                turn.outbox.send("row-work", partition, opened)
            share.sent += len(added)
            for part in parts(added):
                turn.outbox.send("row-work", partition, RowsAdded(name, part))
        run.total += len(rows)

    def _send_all(self, turn: _Turn, run: Run, event: Event) -> None:
        for partition in run.shares:
            turn.outbox.send("row-control", partition, event)

    # --- what comes back -------------------------------------------------------------------------------------

    def _counted(self, turn: _Turn, event: RowsCounted) -> None:
        run = turn.run(event.run)
        if run is None or run.status not in _RUNNING:
            return
        share = run.shares.get(event.partition)
        if share is None or event.sequence <= share.sequence:
            return
        share.sequence, share.rows, share.calls = event.sequence, event.rows, event.calls
        share.samples, share.final = event.samples, event.final
        run.dirty = True

    def _move(self, turn: _Turn, name: str, run: Run) -> None:
        """Close a run whose rows are all accounted for; end it when every partition has sent its final counters (M9)."""
        if run.status is RunStatus.RUNNING and run.sealed:
            settled = sum(share.rows.settled for share in run.shares.values())
            if settled == run.total and all(share.rows.seen == share.sent for share in run.shares.values()):
                run.status = RunStatus.CLOSING
                self._send_all(turn, run, RunClosing(name))
        if run.status is RunStatus.CLOSING and all(share.final for share in run.shares.values()):
            counts = counts_of(run)
            if run.cancel_requested:
                self._end(turn, name, run, RunStatus.CANCELLED, "cancelled", "cancelled on request")
            elif counts.failed and counts.failed == counts.done - counts.duplicate:
                self._end(turn, name, run, RunStatus.FAILED, "all_rows_failed", "all rows failed")
            else:
                code = "unknown_outcomes" if counts.unknown else "partial_failures" if counts.failed else ""
                self._end(turn, name, run, RunStatus.COMPLETED, code, message_of(counts))

    def _fail(self, turn: _Turn, name: str, run: Run, code: str, message: str) -> None:
        """End a run whose input contradicts itself; what was sent down is cancelled."""
        self._send_all(turn, run, RunCancelled(name))
        self._send_all(turn, run, RunClosing(name))
        self._end(turn, name, run, RunStatus.FAILED, code, message)

    def _end(self, turn: _Turn, name: str, run: Run, status: RunStatus, code: str, message: str) -> None:
        run.status, run.ended_ms, run.dirty = status, turn.context.now_ms, True
        kind = {
            RunStatus.COMPLETED: "run.completed",
            RunStatus.FAILED: "run.failed",
            RunStatus.CANCELLED: "run.cancelled",
        }[status]
        # Progress comes before the terminal event, which is the last word (O2).
        self._publish_progress(turn, name, run)
        self._ledger(turn, name, run, kind, code, message)
        operations.close(turn.outbox, turn.context, name, run.play)

    # --- what is told ----------------------------------------------------------------------------------------

    def _report(self, turn: _Turn, name: str, run: Run) -> None:
        if run.status not in _RUNNING:
            return
        now_ms = turn.context.now_ms
        quiet_ms = now_ms - run.published_ms
        if (run.dirty and quiet_ms >= PROGRESS_EVERY_MS) or quiet_ms >= HEARTBEAT_MS:
            self._publish_progress(turn, name, run)
        next_ms = run.published_ms + (PROGRESS_EVERY_MS if run.dirty else HEARTBEAT_MS)
        turn.outbox.effects.append(Wake(next_ms, ProgressDue(name)))

    def _publish_progress(self, turn: _Turn, name: str, run: Run) -> None:
        now_ms = turn.context.now_ms
        counts = counts_of(run)
        progress = MapProgress(
            run=name,
            status=run.status.value,
            counts=counts,
            message=message_of(counts),
            started_ms=run.started_ms,
            updated_ms=now_ms,
            ended_ms=run.ended_ms or None,
        )
        run.published_ms, run.dirty = now_ms, False
        turn.outbox.public.append(
            PublicEvent(
                "map-progress",
                name,
                "paidonce.map.progress",
                progress.model_dump_json(exclude_none=True).encode(),
                f"{name}/progress/{now_ms}",
            )
        )

    def _ledger(self, turn: _Turn, name: str, run: Run, kind: str, code: str = "", message: str = "") -> None:
        samples = [
            FailedRow(position=position, column=column, message=text)
            for share in run.shares.values()
            for position, column, text in share.samples
        ]
        run.ledger += 1
        event = RunEvent(
            type=kind,
            run=name,
            sequence=run.ledger,
            at_ms=turn.context.now_ms,
            play=run.play.name,
            dataset=run.play.dataset,
            code=code,
            message=message,
            counts=counts_of(run),
            failed_samples=tuple(sorted(samples, key=lambda sample: sample.position)[:3]),
        )
        self._tell(turn, name, event, str(run.ledger))

    def _tell(self, turn: _Turn, name: str, event: RunEvent, identity: str) -> None:
        data = event.model_dump_json(exclude_none=True).encode()
        turn.outbox.public.append(PublicEvent("run-events", name, f"paidonce.{event.type}", data, f"{name}/{identity}"))


def message_of(counts: Counts) -> str:
    """Progress in words for people (O1)."""
    total = f"{counts.total:,}" if counts.total is not None else "?"
    notes = [
        f"{number:,} {word}"
        for number, word in (
            (counts.failed, "failed"),
            (counts.unknown, "unknown"),
            (counts.reused, "reused"),
            (counts.duplicate, "duplicate"),
            (counts.skipped, "skipped"),
        )
        if number
    ]
    return f"{counts.done:,} / {total} rows processed" + (f" ({', '.join(notes)})" if notes else "")
