"""What a sweep drops of runs that have ended, given / when / then: a run must not grow the table of rows for ever (M12)."""

from __future__ import annotations

import json

import pytest

from schemas.commands import CountersDue, EndedRunsDue, RecoveryEnded
from schemas.events import (
    AttemptUnknown,
    CallsAnswered,
    CellResolved,
    Event,
    RowsAdded,
    RunCancelled,
    RunClosing,
)
from schemas.progress import OperationEvent
from schemas.states import CLOSED, SHARE, SHEET, TASK, UNKNOWN_CELL
from streams.app import run_sweep_policy
from streams.engine.port import Outbox, Wake
from streams.engine.rows import RowsEngine
from streams.engine.runsweep import PAUSE_MS, SHARES_MAX, TASKS_MAX, RunSweepPolicy
from streams.settings import Settings
from tests.support.given_rows import added, answer, ask, asked, counted, opened, row, rows_table, unknown
from tests.support.memory import Table

HOUR = 3_600_000
LATER = 10**12
POLICY = RunSweepPolicy(every_ms=HOUR, keep_ms=24 * HOUR)


def keys(table: Table, prefix: bytes) -> list[bytes]:
    return [key for key in table.reader.data if key[:1] == prefix]


def swept(table: Table, until_ms: int = LATER) -> list[Outbox]:
    """A sweep to its end, portion after portion, as its timers would."""
    outboxes = [table.given(EndedRunsDue(until_ms))]
    while (wake := next(iter(wakes(outboxes[-1])), None)) is not None and wake.command != EndedRunsDue(wake.at_ms - POLICY.keep_ms):
        table.now_ms = wake.at_ms
        outboxes.append(table.given(wake.command))
    return outboxes


def wakes(outbox: Outbox) -> list[Wake]:
    return [effect for effect in outbox.effects if isinstance(effect, Wake) and isinstance(effect.command, EndedRunsDue)]


def ended(table: Table, run: str, rows: int = 1) -> None:
    """A run over the same rows, all of which are settled."""
    outbox = table.given(opened(run), added(*[row(number) for number in range(rows)], run=run))
    for request in asked(outbox):
        table.given(answer(request, 1))
    table.given(RunClosing(run))


def test_M12_runs_over_the_same_rows_leave_a_marker_each_and_the_sheet() -> None:
    """Each run left a task for each row, reused ones too, and a share with its play, for ever; every new owner read all shares."""
    table = rows_table()
    for number in range(20):
        ended(table, f"run{number}", 50)
    assert (len(keys(table, TASK)), len(keys(table, SHARE)), len(keys(table, SHEET))) == (1000, 20, 50)
    sheet = {key: table.reader.data[key] for key in keys(table, SHEET)}
    swept(table)
    assert sorted(table.reader.data) == sorted([*sheet, *(CLOSED + f"run{number}".encode() for number in range(20))])
    assert {key: table.reader.data[key] for key in sheet} == sheet
    # A next run finds its rows standing.
    outbox = table.given(opened("next"), added(*[row(number) for number in range(50)], run="next"))
    assert asked(outbox) == []


def test_M12_what_goes_on_or_ended_a_moment_ago_stays() -> None:
    table = rows_table()
    request = ask(table.given(opened("open"), added(row(0, "a"), run="open")))
    ended(table, "young")
    before = dict(table.reader.data)
    swept(table, table.now_ms - 1)
    assert table.reader.data == before
    swept(table, table.now_ms)
    assert keys(table, SHARE) == [SHARE + b"open"]
    assert keys(table, TASK) == [TASK + b"open\x00a"]
    assert counted(table.given(answer(request, 1)))[0].rows.completed == 1


def doubted(table: Table) -> CallsAnswered:
    """A run that has ended with one row of two unknown; the answer that may still come."""
    first, second = asked(table.given(opened(), added(row(0), row(1))))
    table.given(answer(first, 1), AttemptUnknown(second.receipt, 1, 0, (second.call,)), unknown(second))
    table.given(RunClosing("run"))
    return answer(second, "late")


@pytest.mark.parametrize("cancelled", [False, True])
def test_U3_a_row_in_doubt_outlives_the_sweep_until_somebody_knows(cancelled: bool) -> None:
    table = rows_table()
    late = doubted(table)
    if cancelled:
        table.given(RunCancelled("run"))
    swept(table)
    assert keys(table, TASK) == [TASK + b"run\x00key1"]
    assert len(keys(table, SHARE)) == len(keys(table, UNKNOWN_CELL)) == 1
    # What was looked through, and has not changed, is not looked through again.
    before = dict(table.reader.data)
    swept(table)
    assert table.reader.data == before
    assert table.given(CellResolved("run", "key1", "check", b'"late"', "ann")).events
    table.now_ms += 1
    (shown,) = [event for event in table.given(late).public if event.topic == "map-rows"]
    assert json.loads(shown.data or b"")["cells"]["check"]["value"] == "late"
    swept(table)
    assert (keys(table, TASK), keys(table, SHARE), keys(table, UNKNOWN_CELL), keys(table, CLOSED)) == (
        [],
        [],
        [],
        [CLOSED + b"run"],
    )


def test_U3_a_doubt_that_nothing_waits_for_any_more_goes_with_its_run() -> None:
    """The attempt was named, the run was cancelled, and only then came the answer: the note of the attempt stayed behind."""
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    table.given(AttemptUnknown(request.receipt, 1, 0, (request.call,)))
    table.given(RunCancelled("run"))
    table.given(unknown(request), RunClosing("run"))
    assert len(keys(table, UNKNOWN_CELL)) == 1
    swept(table)
    assert list(table.reader.data) == [CLOSED + b"run"]


LATE: list[Event] = [
    opened(),
    added(row(0), row(7)),
    RunClosing("run"),
    RunCancelled("run"),
    CountersDue("run"),
    AttemptUnknown("9f" * 20, 1, 0, ("run:key0:check",)),
    RecoveryEnded(),
]


@pytest.mark.parametrize("event", LATE, ids=lambda event: type(event).__name__)
def test_M12_what_comes_late_for_a_run_that_was_dropped_changes_nothing(event: Event) -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    table.given(answer(request, 1), RunClosing("run"))
    swept(table)
    before = dict(table.reader.data)
    for events in ([event], [event, event], LATE, [answer(request, 2), unknown(request)]):
        outbox = table.turn(events)
        assert (outbox.events, outbox.public) == ({}, [])
    assert table.reader.data == before


def test_U3_a_word_about_a_row_that_was_dropped_is_told_that_nothing_is_in_doubt() -> None:
    table = rows_table()
    ended(table, "run")
    swept(table)
    before = dict(table.reader.data)
    outbox = table.given(CellResolved("run", "key0", "check", b"1", "ann", "bill", "op"))
    (event,) = outbox.public
    told = OperationEvent.model_validate_json(event.data or b"")
    assert (told.type, told.code, told.operation, outbox.events) == ("cell.rejected", "not_unknown", "op", {})
    assert told.message == "run run has ended, and no row with the key key0 is in doubt there"
    assert table.reader.data == before


def cancelled(table: Table, run: str, rows: int) -> None:
    """A run that has ended with many tasks."""
    table.given(opened(run), RunCancelled(run))
    table.given(RowsAdded(run, tuple(row(number, f"{number:08}") for number in range(rows))), RunClosing(run))


def test_M12_a_long_run_goes_by_the_portion_and_rows_come_first() -> None:
    table = rows_table()
    cancelled(table, "a", TASKS_MAX + 5)
    cancelled(table, "b", TASKS_MAX - 5)
    (first,) = wakes(table.given(EndedRunsDue(LATER)))
    assert first == Wake(table.now_ms + PAUSE_MS, EndedRunsDue(LATER, "a", f"{TASKS_MAX - 1:08}"))
    assert len(keys(table, TASK)) == TASKS_MAX
    assert len(keys(table, SHARE)) == 2
    (second,) = wakes(table.given(first.command))
    assert second.command == EndedRunsDue(LATER, "b", f"{TASKS_MAX - 6:08}")
    assert keys(table, TASK) == []
    assert keys(table, SHARE) == [SHARE + b"b"]
    assert wakes(table.given(second.command)) == []
    assert sorted(table.reader.data) == [CLOSED + b"a", CLOSED + b"b"]


def test_M12_many_runs_go_by_the_portion() -> None:
    table = rows_table()
    names = [f"{number:05}" for number in range(SHARES_MAX + 1)]
    table.turn([event for name in names for event in (opened(name), RunClosing(name))])
    outboxes = swept(table)
    assert len(outboxes) == 2
    assert wakes(outboxes[0])[0].command == EndedRunsDue(LATER, names[SHARES_MAX - 1])
    assert (keys(table, SHARE), len(keys(table, CLOSED))) == ([], SHARES_MAX + 1)


def test_M12_a_run_that_changes_between_two_portions_waits_for_the_next_sweep() -> None:
    table = rows_table()
    late = doubted(table)
    end = table.now_ms
    cancelled(table, "a", TASKS_MAX)
    (wake,) = wakes(table.given(EndedRunsDue(end)))
    table.now_ms += HOUR
    table.given(late)
    table.given(wake.command)
    assert keys(table, SHARE) == [SHARE + b"run"]
    assert len(keys(table, TASK)) == 2
    swept(table)
    assert sorted(table.reader.data)[-2:] == [CLOSED + b"a", CLOSED + b"run"]
    assert keys(table, TASK) == []


def test_M12_a_portion_whose_run_is_gone_meanwhile_goes_on_behind_it() -> None:
    """The row where it was to go on is that run's alone: the next run's rows before it would never be looked at again."""
    table = rows_table()
    ended(table, "b")
    table.given(EndedRunsDue(LATER, "a", "key9"))
    assert keys(table, SHARE) == []


def test_N6_a_replay_drops_the_same_though_it_has_no_policy() -> None:
    tables = [Table(RowsEngine(POLICY)), Table(RowsEngine())]
    for table in tables:
        doubted(table)
        cancelled(table, "b", TASKS_MAX)
        for command in (EndedRunsDue(LATER), EndedRunsDue(LATER, "b", f"{TASKS_MAX - 1:08}")):
            table.given(command)
    assert tables[0].reader.data == tables[1].reader.data
    assert keys(tables[0], TASK) == [TASK + b"run\x00key1"]


def test_M12_sweeps_follow_each_other_and_a_new_owner_begins_with_one() -> None:
    table = Table(RowsEngine(POLICY))
    assert wakes(table.given(RecoveryEnded())) == [Wake(table.now_ms + HOUR, EndedRunsDue(table.now_ms - 23 * HOUR))]
    ended(table, "run")
    table.now_ms += 25 * HOUR
    outbox = table.given(EndedRunsDue(table.now_ms - 24 * HOUR))
    assert wakes(outbox) == [POLICY.next(table.now_ms)]
    assert keys(table, SHARE) == []
    assert wakes(rows_table().given(RecoveryEnded())) == []


def test_M12_a_new_owner_tells_the_counters_of_runs_that_go_on_alone() -> None:
    table = rows_table()
    ended(table, "over")
    ended(table, "dropped")
    table.given(opened("open"), added(row(9, "z"), run="open"))
    swept(table)
    outbox = table.given(RecoveryEnded())
    assert [event.run for event in counted(outbox)] == ["open"]


def test_the_rows_of_a_run_are_kept_as_long_as_its_callers() -> None:
    assert run_sweep_policy(Settings(callers_keep_hours=2.5, sweep_seconds=60)) == RunSweepPolicy(60_000, 9_000_000)
