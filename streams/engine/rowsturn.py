"""What one turn of ``rows`` gathers: the runs it touches, their counters, and their columns made ready.

Pure. Counters are cumulative and published with a sequence number, so that one that comes twice or late changes nothing (I1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas import address
from schemas.commands import CountersDue, EndedRunsDue
from schemas.events import CallCounts, Mark, RowCounts, RowsCounted
from schemas.states import CLOSED, SHARE, ClosedRun, RunShare, Task, record_key
from streams.engine.cells import CellPlace, Program, moved, programs, standing_of
from streams.engine.port import Context, Outbox, Records, Wake

#: Counters are published at most this often while rows are open.
COUNTERS_EVERY_MS = 250
_MARK_NAMES = {mark: mark.value for mark in Mark}


@dataclass(slots=True)
class RowsTurn:
    """Records, outputs and counters of one turn."""

    records: Records
    outbox: Outbox
    context: Context
    #: Changes of counters in this turn, by run.
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    calls: dict[str, dict[str, int]] = field(default_factory=dict)
    shares: dict[str, RunShare] = field(default_factory=dict)
    #: The cells whose answers this turn folds, by call.
    answered: dict[str, CellPlace] = field(default_factory=dict)
    ready: dict[str, tuple[Program, ...]] = field(default_factory=dict)
    standings: dict[str, str | None] = field(default_factory=dict)
    #: Lane whose provider gave the answer that is being folded: what its row asks there next continues it (B1).
    answered_lane: str | None = None
    sweeps: list[EndedRunsDue] = field(default_factory=list)

    def share(self, run: str) -> RunShare:
        """What this partition knows of a run; new where nothing is known, and without a play where only its marker is left."""
        share = self.shares.get(run)
        if share is None:
            share = self.records.get(record_key(SHARE, run), RunShare)
            if share is None:
                over = self.records.get(record_key(CLOSED, run), ClosedRun) is not None
                share = RunShare(closing=over, closed=over)
            self.shares[run] = share
        return share

    def take_stock(self) -> None:
        """A new owner: the counters of runs that go on are told again."""
        for key, share in self.records.scan(SHARE, RunShare):
            if not share.closed:
                share.dirty = True
                share.published_ms = 0
                self.shares[key[1:].decode()] = share

    def programs(self, run: str, share: RunShare) -> tuple[Program, ...]:
        """The columns of a run's play, made ready once a turn."""
        found = self.ready.get(run)
        if found is None:
            assert share.play is not None
            found = self.ready[run] = programs(share.org, share.play)
        return found

    def standing(self, run: str, share: RunShare) -> str | None:
        """What a row of the sheet must carry to stand for this run, worked out once a turn; see ``cells.standing_of``."""
        if run not in self.standings:
            assert share.play is not None
            self.standings[run] = standing_of(share.org, share.play)
        return self.standings[run]

    def program(self, run: str, share: RunShare, task: Task) -> Program:
        """The column that a row computes, under the auth scope that it asks with."""
        program = self.programs(run, share)[task.column]
        scope = task.moved.get(task.column)
        return program if scope is None else moved(share.org, program.column, scope)

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

    def report(self, run: str, share: RunShare) -> None:
        """Apply this turn's counts, and publish the sum when it is due."""
        if share.closed and share.play is None:
            # Its rows were dropped long ago: what comes now is late, and changes nothing.
            return
        changed = self.rows.get(run)
        if changed:
            share.rows = RowCounts(
                **{name: getattr(share.rows, name) + changed.get(name, 0) for name in RowCounts.__struct_fields__}
            )
            share.dirty = True
        calls = self.calls.get(run)
        if calls:
            share.calls = CallCounts(
                **{name: getattr(share.calls, name) + calls.get(name, 0) for name in CallCounts.__struct_fields__}
            )
            share.dirty = True
        self.records.put(record_key(SHARE, run), share)
        if not share.dirty or share.play is None:
            return
        now_ms = self.context.now_ms
        due_ms = share.published_ms + COUNTERS_EVERY_MS
        idle = share.rows.settled >= share.rows.seen
        if now_ms < due_ms and not idle and not share.closing:
            self.outbox.effects.append(Wake(due_ms, CountersDue(run)))
            return
        share.sequence += 1
        share.published_ms, share.dirty = now_ms, False
        share.closed = share.closed or share.closing
        counted = RowsCounted(
            run=run,
            partition=self.context.partition,
            sequence=share.sequence,
            rows=share.rows,
            calls=share.calls,
            final=share.closed,
            samples=share.samples,
        )
        self.outbox.send("row-progress", address.partition_of(run, self.context.partitions), counted)
