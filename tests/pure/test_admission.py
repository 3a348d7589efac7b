"""How many rows of a run are open at a time: the others wait in the table, and none is lost, doubled or forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import CountersDue, RecoveryEnded
from schemas.events import Event, RowCounts, RunCancelled, ToolRequested
from schemas.states import SHARE, WAITING, RunShare, WaitingRows, record_key
from streams.engine import admission
from streams.engine.port import Outbox, Wake
from tests.support.given_rows import added, answer, asked, column, failed, opened, play, row, rows_table
from tests.support.memory import Table

LIMIT = 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "ROWS_MIN", 8 * LIMIT)
        patch.setattr(admission, "SHARE_MIN", 1)
        yield


def share(table: Table) -> RunShare:
    return msgspec.msgpack.decode(table.reader.data[record_key(SHARE, "run")], type=RunShare)


def waiting(table: Table) -> list[int]:
    """Positions of the rows that wait, in order."""
    chunks = table.reader.scan(record_key(WAITING, "run", ""))
    return [line.position for _, raw in chunks for line in msgspec.msgpack.decode(raw, type=WaitingRows).rows]


def chunk(first: int, count: int) -> Event:
    return added(*(row(position) for position in range(first, first + count)))


def position_of(request: ToolRequested) -> int:
    return int(request.call.split(":")[1].removeprefix("key"))


def test_G7_rows_beyond_the_limit_wait_in_chunks_as_they_came() -> None:
    table = rows_table()
    outbox = table.given(opened(), chunk(0, 5), chunk(5, 5), chunk(10, 5), chunk(15, 2))
    assert [position_of(request) for request in asked(outbox)] == list(range(10))
    assert waiting(table) == list(range(10, 17))
    assert (share(table).open_rows, share(table).waiting_first, share(table).waiting_next) == (10, 0, 2)
    assert share(table).rows.seen == 10


def test_G7_what_waits_is_let_in_once_there_is_room_again_and_in_order() -> None:
    table = rows_table()
    requests = asked(table.given(opened(), *(chunk(first, 4) for first in range(0, 20, 4))))
    assert len(requests) == LIMIT
    for request in requests[:3]:
        assert asked(table.given(answer(request, "v"))) == [], "more than half is open: a few at a time would cost turns"
    assert [position_of(request) for request in asked(table.given(answer(requests[3], "v")))] == [8, 9, 10, 11]
    assert waiting(table) == list(range(12, 20))


def test_G7_rows_that_need_nothing_do_not_fill_the_room() -> None:
    """A rerun of what stands goes through at once."""
    table = rows_table()
    requests = asked(table.given(opened("old"), *(added(row(position), run="old") for position in range(LIMIT))))
    for request in requests:
        table.given(answer(request, "v"))
    outbox = table.given(opened(), *(added(row(position)) for position in range(LIMIT)), chunk(LIMIT, 3))
    assert [position_of(request) for request in asked(outbox)] == [8, 9, 10]
    assert share(table).rows == RowCounts(seen=LIMIT + 3, reused=LIMIT)


def test_G5_rows_wait_for_bytes_too_and_one_chunk_is_let_in_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "BYTES_MAX", 1_000)
    table = rows_table()
    outbox = table.given(opened(), added(row(0, x="y" * 5_000)), added(row(1, x="z")))
    (large,) = asked(outbox)
    assert share(table).open_bytes == len(row(0, x="y" * 5_000).fields) + admission.ROW_BYTES
    assert waiting(table) == [1]
    (small,) = asked(table.given(answer(large, "v")))
    table.given(answer(small, "v"))
    assert (share(table).open_rows, share(table).open_bytes) == (0, 0)


def test_G7_there_is_room_for_what_the_providers_take_at_a_time() -> None:
    """A slow provider with many slots must not wait for rows."""
    wide = msgspec.structs.replace(column(), calls=1_000)
    table = rows_table()
    table.given(opened(of=play(wide)))
    assert admission.rows_max(share(table), 8) == admission.ROUNDS * 1_000 // 8
    assert admission.rows_max(RunShare(play=play()), 8) == LIMIT


def test_M15_rows_that_wait_are_skipped_when_their_run_is_cancelled() -> None:
    table = rows_table()
    table.given(opened(), *(chunk(first, 4) for first in range(0, 40, 4)))
    outbox = table.given(RunCancelled("run"))
    assert share(table).rows == RowCounts(seen=40, skipped=40)
    assert (share(table).open_rows, waiting(table)) == (0, [])
    assert asked(outbox) == []
    table.given(chunk(40, 4))
    assert share(table).rows == RowCounts(seen=44, skipped=44)


def test_G4_M15_a_cancelled_run_is_counted_to_its_end_in_turns_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TURN_MAX", 6)
    table = rows_table()
    table.given(opened(), *(chunk(first, 4) for first in range(0, 40, 4)))
    outbox, turns = table.given(RunCancelled("run")), 1
    while Wake(table.now_ms, CountersDue("run")) in outbox.effects:
        outbox, turns = table.given(CountersDue("run")), turns + 1
    assert share(table).rows == RowCounts(seen=40, skipped=40)
    assert (turns, waiting(table)) == (4, [])


def test_G4_a_turn_lets_in_so_many_and_says_when_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that stand need no room: without that, a rerun of a large dataset would be one turn."""
    table = rows_table()
    for request in asked(table.given(opened("old"), *(added(row(position), run="old") for position in range(LIMIT)))):
        table.given(answer(request, "v"))
    fresh = asked(table.given(opened(), chunk(50, LIMIT), *(chunk(first, 2) for first in range(0, LIMIT, 2))))
    assert waiting(table) == list(range(LIMIT))
    monkeypatch.setattr(admission, "TURN_MAX", 4)
    outbox = table.given(*(answer(request, "v") for request in fresh[:4]))
    assert Wake(table.now_ms, CountersDue("run")) in outbox.effects
    assert (share(table).rows.reused, waiting(table)) == (4, [4, 5, 6, 7])
    table.given(CountersDue("run"))
    assert (share(table).rows.reused, waiting(table)) == (8, [])


def test_G7_a_new_owner_goes_on_with_what_waits() -> None:
    """Also where nothing is open any more, so that no answer would bring it up."""
    table = rows_table()
    table.given(opened(), *(chunk(first, LIMIT) for first in range(0, 3 * LIMIT, LIMIT)))
    state = share(table)
    state.open_rows = state.open_bytes = 0
    table.reader.data[record_key(SHARE, "run")] = msgspec.msgpack.encode(state)
    assert [position_of(request) for request in asked(table.given(RecoveryEnded()))] == list(range(LIMIT, 2 * LIMIT))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=150),
    st.integers(0, 3),
)
def test_G7_M4_however_rows_come_and_end_each_ends_once_and_few_are_open(
    sizes: list[int], ends: list[tuple[int, bool]], doubled: int
) -> None:
    table, first, open_requests = rows_table(), 0, list[ToolRequested]()
    table.given(opened())

    def folded(outbox: Outbox) -> None:
        open_requests.extend(asked(outbox))
        assert share(table).open_rows == len(open_requests) < LIMIT + max(sizes)

    for size in sizes:
        folded(table.given(chunk(first, size)))
        first += size
    moves = iter(ends)
    while open_requests:
        place, well = next(moves, (0, True))
        request = open_requests.pop(place % len(open_requests))
        end = answer(request, "v") if well else failed(request)
        folded(table.given(end, *(end for _ in range(doubled))))
    state = share(table)
    assert (state.rows.seen, state.rows.settled) == (first, first)
    assert (state.open_rows, state.open_bytes, waiting(table)) == (0, 0, [])
