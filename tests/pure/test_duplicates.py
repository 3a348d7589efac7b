"""Very many input lines with one row's key (M5): each counts once, and none costs more than the first."""

from __future__ import annotations

import msgspec
import pytest

from schemas.beside import DUPLICATES, LINES_A_PAGE
from schemas.events import RunCancelled, RunClosing
from schemas.states import TASK, Task, record_key
from streams.engine.duplicates import INLINE_MAX
from tests.pure.test_runsweep import swept
from tests.support.given_rows import added, answer, ask, counts, later, opened, row, rows_table, unknown
from tests.support.memory import Table

TASK_KEY = record_key(TASK, "run", "k")
#: Lines beyond those that a task keeps itself, in three pages.
MANY = range(1, 2 * LINES_A_PAGE + 100)


def begun(lines: range = MANY) -> Table:
    table = rows_table()
    table.given(opened(), added(row(0, "k")))
    table.given(added(*[row(position, "k") for position in lines]))
    return table


def pages(table: Table) -> list[bytes]:
    return [key for key in table.reader.data if key[:1] == DUPLICATES]


def size(table: Table) -> int:
    return sum(len(value) for key, value in table.reader.data.items() if key[:1] in (TASK, DUPLICATES))


def test_M5_lines_of_one_key_cost_the_same_however_many_there_were() -> None:
    """M5: all lines of a key stood in its task, which was searched for each line and rewritten in each turn: behind a million of
    them, which an empty text in the key column brings about easily, a chunk took eight seconds and the task had five megabytes.
    """
    table = begun(range(1, 20_000))
    task = len(table.reader.data[TASK_KEY])
    assert task < 500
    assert size(table) < 20_000 // 8 + 2_000
    before = dict(table.reader.data)
    table.given(added(*[row(position, "k") for position in range(20_000, 20_250)]))
    changed = {key for key, value in table.reader.data.items() if before.get(key) != value}
    # Its share aside, the turn writes the one page that its lines stand in.
    assert TASK_KEY not in changed
    assert len([key for key in changed if key[:1] == DUPLICATES]) == 1


def test_M5_each_line_counts_once_however_often_it_comes_and_in_whatever_order() -> None:
    table = begun()
    before = {key: value for key, value in table.reader.data.items() if key[:1] in (TASK, DUPLICATES)}
    table.given(added(*[row(position, "k") for position in reversed(MANY)]), added(row(0, "k")))
    assert {key: value for key, value in table.reader.data.items() if key[:1] in (TASK, DUPLICATES)} == before
    rows = counts(later(table))
    assert (rows.seen, rows.duplicate) == (len(MANY) + 1, len(MANY))


@pytest.mark.parametrize("lines", [INLINE_MAX - 1, INLINE_MAX])
def test_M5_a_few_lines_stand_with_their_task(lines: int) -> None:
    table = begun(range(1, lines + 1))
    assert pages(table) == []
    assert msgspec.msgpack.decode(table.reader.data[TASK_KEY], type=Task).duplicates == tuple(range(1, lines + 1))


def test_M5_N6_a_task_of_before_becomes_what_a_replay_makes_of_it() -> None:
    """Old tables hold tasks with all their lines; the next line of the key moves them, to the state that a replay folds."""
    table, old = begun(), begun(range(1, 2))
    task = msgspec.msgpack.decode(old.reader.data[TASK_KEY], type=Task)
    task.duplicates = tuple(MANY)
    old.reader.data[TASK_KEY] = msgspec.msgpack.encode(task)
    for one in (table, old):
        one.given(added(row(MANY.stop, "k")))
    kept = [{key: value for key, value in one.reader.data.items() if key[:1] in (TASK, DUPLICATES)} for one in (table, old)]
    assert kept[0] == kept[1]


def test_M12_what_tells_of_lines_goes_with_their_task() -> None:
    table = rows_table()
    table.given(opened())
    request = ask(table.given(added(row(0, "k"))))
    table.given(added(*[row(position, "k") for position in MANY]), added(row(MANY.stop, "k2")))
    assert len(pages(table)) == 3
    table.given(answer(request, "v"), RunCancelled("run"), RunClosing("run"))
    swept(table)
    assert [key for key in table.reader.data if key[:1] in (TASK, DUPLICATES)] == []


def test_M15_a_cancelled_run_rewrites_no_row_that_is_unknown() -> None:
    """Cost: each row in doubt was written again, unchanged, in the one turn that cancels a run."""
    table = rows_table()
    request = ask(table.given(opened(), added(row(0, "k"))))
    table.given(unknown(request))
    kept = table.reader.data[TASK_KEY]
    table.given(RunCancelled("run"))
    # Not only the same bytes: none were written.
    assert table.reader.data[TASK_KEY] is kept
