"""The rows engine, given / when / then: cancelled rows, and counters that agree whatever comes twice."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from schemas import address
from schemas.commands import CountersDue, ProgressDue, RecoveryEnded
from schemas.events import (
    CallWithdrawn,
    Event,
    Mark,
    RowCounts,
    RunCancelled,
    RunClosing,
)
from streams.engine.port import Outbox, Wake
from streams.engine.rowsturn import COUNTERS_EVERY_MS
from tests.support.given_rows import (
    BROKEN,
    added,
    answer,
    ask,
    asked,
    column,
    counted,
    counts,
    failed,
    later,
    opened,
    play,
    row,
    rows_table,
    unknown,
)
from tests.support.memory import Table


def withdrawn(outbox: Outbox) -> list[CallWithdrawn]:
    found = [event for (topic, _), events in outbox.events.items() if topic == "tool-requests" for event in events]
    return [event for event in found if isinstance(event, CallWithdrawn)]


# --- cancel ------------------------------------------------------------------------------------------------------------


def test_M15_cancel_withdraws_what_is_asked_for_and_skips_the_open_rows() -> None:
    table = rows_table()
    one, two, three = asked(table.given(opened(), added(row(0), row(1), row(2))))
    table.given(answer(one, "v"), failed(two))
    outbox = table.given(RunCancelled("run"))
    assert withdrawn(outbox) == [CallWithdrawn(three.receipt, three.call)]
    assert counts(outbox) == RowCounts(seen=3, completed=1, failed=1, skipped=1)
    again = table.given(RunCancelled("run"))
    assert (withdrawn(again), counted(again)) == ([], [])


def test_case_I3_a_cancelled_run_gets_no_cell_from_a_call_that_was_in_flight() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    table.given(RunCancelled("run"))
    outbox = table.given(answer(request, "v"))
    assert (asked(outbox), counted(outbox), outbox.public) == ([], [], [])


def test_M15_a_row_that_was_asked_for_again_is_withdrawn_under_its_second_name() -> None:
    table = rows_table()
    request = ask(table.given(opened(), added(row(0))))
    again = ask(table.given(failed(request, BROKEN, Mark.CACHE)))
    assert withdrawn(table.given(RunCancelled("run"))) == [CallWithdrawn(again.receipt, again.call)]


def test_M15_an_unknown_row_that_went_on_to_its_next_column_is_withdrawn_too() -> None:
    table = rows_table()
    first = ask(table.given(opened(of=play(column("first"), column("second"))), added(row(0))))
    table.given(unknown(first))
    second = ask(table.given(answer(first, "late")))
    outbox = table.given(RunCancelled("run"))
    assert withdrawn(outbox) == [CallWithdrawn(second.receipt, second.call)]
    assert counts(outbox) == RowCounts(seen=1, unknown=1)


def test_M15_rows_that_come_after_the_cancel_are_skipped_even_if_it_overtook_the_opening() -> None:
    table = rows_table()
    outbox = table.given(RunCancelled("run"))
    assert outbox.events == {}
    outbox = table.given(opened(), added(row(0), row(1)))
    assert asked(outbox) == []
    assert counts(outbox) == RowCounts(seen=2, skipped=2)


# --- counters ----------------------------------------------------------------------------------------------------------


def test_counters_go_to_the_runs_home_cumulatively_and_with_a_growing_sequence() -> None:
    table = rows_table()
    one, two = asked(table.given(opened(), added(row(0), row(1))))
    sequences = []
    for event, rows in ((answer(one, 1), RowCounts(seen=2, completed=1)), (answer(two, 2), RowCounts(seen=2, completed=2))):
        table.now_ms += COUNTERS_EVERY_MS
        outbox = table.given(event)
        assert ("row-progress", address.partition_of("run", 8)) in outbox.events
        (published,) = counted(outbox)
        assert published.rows == rows
        assert (published.partition, published.final) == (0, False)
        sequences.append(published.sequence)
    assert sequences == sorted(set(sequences))


def test_counters_are_published_at_most_every_250_ms_but_at_once_when_nothing_is_open() -> None:
    table = rows_table()
    one, two, three = asked(table.given(opened(), added(row(0), row(1), row(2))))
    table.now_ms += 40
    outbox = table.given(answer(one, 1))
    assert counted(outbox) == []
    assert [effect for effect in outbox.effects if isinstance(effect, Wake)] == [Wake(1_000_250, CountersDue("run"))]
    table.now_ms = 1_000_250
    assert counts(table.given(CountersDue("run"))) == RowCounts(seen=3, completed=1)
    table.now_ms += 1
    assert counted(table.given(answer(two, 2))) == []
    table.now_ms += 1
    assert counts(table.given(answer(three, 3))) == RowCounts(seen=3, completed=3)


def test_a_timer_with_nothing_new_publishes_nothing() -> None:
    table = rows_table()
    table.given(opened(), added(row(0)))
    assert counts(later(table)) == RowCounts(seen=1)
    assert counted(later(table)) == []
    assert table.given(CountersDue("nobody")).events == {}


def test_a_run_that_closes_gets_its_final_counters_at_once_and_takes_no_more_rows() -> None:
    table = rows_table()
    table.given(answer(ask(table.given(opened(), added(row(0)))), 1))
    (final,) = counted(table.given(RunClosing("run")))
    assert final.final
    assert final.rows == RowCounts(seen=1, completed=1)
    outbox = table.given(added(row(1)))
    assert (asked(outbox), counted(outbox)) == ([], [])


def test_a_closing_that_overtook_the_opening_is_answered_once_the_run_is_known() -> None:
    table = rows_table()
    assert table.given(RunClosing("run")).events == {}
    (final,) = counted(table.given(opened()))
    assert (final.final, final.rows) == (True, RowCounts())


def test_a_new_owner_publishes_the_counters_of_every_run_that_is_not_closed() -> None:
    table = rows_table()
    table.given(opened("one"), added(row(0), run="one"), opened("two"), opened("three"), RunClosing("three"))
    outbox = table.given(RecoveryEnded())
    assert sorted(event.run for event in counted(outbox)) == ["one", "two"]


def test_what_is_not_for_rows_changes_nothing() -> None:
    table = rows_table()
    outbox = table.given(ProgressDue("run"))
    assert (outbox.events, table.reader.data) == ({}, {})


def test_several_runs_in_one_turn_have_counters_of_their_own() -> None:
    table = rows_table()
    table.given(opened("one"), opened("two"), added(row(0), run="one"), added(row(0), row(1, "k"), run="two"))
    assert {event.run: event.rows.seen for run in ("one", "two") for event in counted(later(table, run))} == {"one": 1, "two": 2}


# --- laws --------------------------------------------------------------------------------------------------------------


def story(table: Table, outcomes: Sequence[str]) -> list[Event]:
    """Events that a partition gets for rows with these outcomes, found by playing them."""
    events: list[Event] = [opened(), added(*(row(position) for position in range(len(outcomes))))]
    outbox = table.turn(events)
    for request, outcome in zip(asked(outbox), outcomes, strict=True):
        match outcome:
            case "completed":
                events.append(answer(request, "v"))
            case "failed":
                events.append(failed(request))
            case "unknown":
                events.append(unknown(request))
            case _:
                events += [unknown(request), answer(request, "late")]
    return events


outcomes_of_rows = st.lists(st.sampled_from(("completed", "failed", "unknown", "late")), min_size=1, max_size=6)


@given(outcomes_of_rows, st.data())
def test_case_I1_every_event_twice_and_in_turns_of_any_size_gives_the_same_counts(outcomes: list[str], data: st.DataObject) -> None:
    events = [event for event in story(rows_table(), outcomes) for _ in range(2)]
    table = rows_table()
    done = 0
    while events:
        size = data.draw(st.integers(1, len(events)))
        table.now_ms += data.draw(st.sampled_from((1, 200)))
        for event in counted(table.turn(events[:size])):
            assert done <= event.rows.settled <= event.rows.seen <= len(outcomes)
            done = event.rows.settled
        del events[:size]
    (final,) = counted(table.given(RunClosing("run")))
    assert final.rows == RowCounts(
        seen=len(outcomes),
        completed=outcomes.count("completed") + outcomes.count("late"),
        failed=outcomes.count("failed"),
        unknown=outcomes.count("unknown"),
    )
