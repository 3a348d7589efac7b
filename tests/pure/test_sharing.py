"""Which requests may share a call, and how many calls may be batches: bucket keys (B4), joining (B1), parallelism (B9)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import (
    AddedRow,
    Answer,
    CallsAnswered,
    CompiledColumn,
    CompiledPlay,
    Mark,
    Repeat,
    RowsAdded,
    RunOpened,
    ToolRequested,
)
from schemas.providers import Providers
from streams.engine.buckets import JOIN_SECONDS, ToolForm
from streams.engine.cells import BUCKET_BYTES_MAX, bucket_of
from streams.engine.effects import Queued
from streams.engine.lanes import Departure, Lane, LanePace, pace_of
from streams.engine.port import Outbox
from streams.engine.protocol import Need
from streams.engine.rows import RowsEngine
from streams.engine.scopes import bound
from tests.support import given as g
from tests.support.memory import Table

FORMS = {"p.batch": ToolForm(4, 0.25), "p.other": ToolForm(4, 0.25)}


def lane(pace: LanePace | None = None) -> Lane:
    return Lane(LanePace(concurrency=1000) if pace is None else pace, FORMS, 0.0)


def queue(
    it: Lane, names: str, now: float = 0.0, *, bucket: str = "", tool: str = "p.batch", continues: bool = False, batch: str = ""
) -> None:
    for name in names:
        it.queue(name, tool, "run", Need(1, 0, 1, 0, batch), now, now, bucket, continues)


def left(departures: list[Departure]) -> list[str]:
    return sorted("".join(entry.receipt for entry in departure.entries) for departure in departures)


# --- bucket keys --------------------------------------------------------------------------------------------


def test_B4_only_requests_with_the_same_bucket_key_share_a_call() -> None:
    it = lane()
    for name, bucket in zip("abcdefg", ("de", "fr", "de", "fr", "de", "fr", "fr"), strict=True):
        queue(it, name, bucket=bucket)
    departures, again = it.plan(0.0)
    assert (left(departures), again) == (["bdfg"], 0.25)  # B2: the one that is full leaves at once
    assert left(it.plan(0.25)[0]) == ["ace"]


def test_B4_B1_each_bucket_has_a_window_of_its_own() -> None:
    it = lane()
    queue(it, "a", 0.0, bucket="de")
    queue(it, "b", 0.1, bucket="fr")
    assert it.plan(0.1) == ([], 0.25)
    departures, again = it.plan(0.25)
    assert (left(departures), again) == (["a"], pytest.approx(0.35))


def test_B4_what_is_withdrawn_leaves_no_empty_bucket_behind() -> None:
    it = lane()
    queue(it, "a", bucket="de")
    it.unqueue("a")
    assert it.plan(1.0) == ([], None)
    queue(it, "b", 2.0, bucket="de")
    assert it.plan(2.0) == ([], 2.25)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(("p.batch", "p.other"))), min_size=1, max_size=30))
def test_B4_no_departure_ever_mixes_buckets_or_tools_and_all_leave(asked: list[tuple[str, str]]) -> None:
    it = lane()
    for number, (bucket, tool) in enumerate(asked):
        it.queue(f"r{number}", tool, "run", Need(1, 0, 1, 0, ""), 0.0, 0.0, bucket)
    departures = it.plan(1.0)[0]
    for departure in departures:
        assert len({entry.place for entry in departure.entries}) == 1
        assert len(departure.entries) <= 4
    assert sorted(entry.receipt for departure in departures for entry in departure.entries) == sorted(
        f"r{number}" for number in range(len(asked))
    )
    assert len(departures) == sum(-(-asked.count(place) // 4) for place in set(asked))


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [("country", {"country": "de"}, '"de"'), ("a.b", {"a": {"b": 1.0}}, "1"), ("country", {}, "null"), ("a", {"a": [1]}, "[1]")],
)
def test_B4_a_bucket_key_is_what_stands_at_the_path_of_the_input(path: str, value: Any, text: str) -> None:
    assert bucket_of(path, value) == text


def test_B4_a_long_bucket_key_is_digested() -> None:
    long, other = bucket_of("a", {"a": "x" * 5_000}), bucket_of("a", {"a": "x" * 5_001})
    assert len(long) == len(other) == BUCKET_BYTES_MAX
    assert long != other


def column(name: str = "c", *, lane: str = "org/p", bucket: str | None = None) -> CompiledColumn:
    template = '{"country":"{{ row.country }}","column":"' + name + '"}'
    return CompiledColumn(name, "p.batch", lane, "1", "scope", Repeat.NEVER, template, bucket=bucket)


def opened(*columns: CompiledColumn) -> RunOpened:
    return RunOpened("run", "org", CompiledPlay("play", "people", "rev", (), columns))


def requests(outbox: Outbox) -> list[ToolRequested]:
    return [event for events in outbox.events.values() for event in events if isinstance(event, ToolRequested)]


def test_B4_a_cell_asks_with_its_bucket_key_and_the_receipt_hands_it_to_the_lane_also_after_a_takeover() -> None:
    from schemas.commands import RecoveryEnded

    (asked,) = requests(
        Table(RowsEngine()).given(opened(column(bucket="country")), RowsAdded("run", (AddedRow(0, "k", b'{"country":"de"}'),)))
    )
    assert asked.bucket == bound('"de"', column(bucket="country"))
    table = g.receipts()
    for turn in ((asked,), (RecoveryEnded(),)):
        (queued,) = [effect for effect in table.given(*turn).effects if isinstance(effect, Queued)]
        assert queued.bucket == asked.bucket


def test_B4_the_bucket_is_fixed_when_the_run_is_accepted() -> None:
    from schemas.plays import Play
    from streams.engine.compile import compile_play

    batch = {"size_max": 5, "bucket": "address.country"}
    tool = {"path": "/t", "batch": batch}
    providers = Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": tool}}}})
    play = Play.model_validate({"name": "play", "columns": [{"name": "c", "tool": "p.t", "input": {"x": 1}}]})
    compiled, _ = compile_play(play, providers, "org")
    assert compiled is not None
    assert compiled.columns[0].bucket == "address.country"


# --- joining ------------------------------------------------------------------------------------------------


def test_B1_what_continues_on_an_idle_lane_waits_5_ms_for_those_who_come_with_it() -> None:
    it = lane()
    queue(it, "a", 1.0, continues=True)
    queue(it, "b", 1.003)
    assert it.plan(1.003) == ([], 1.0 + JOIN_SECONDS)
    assert left(it.plan(1.0 + JOIN_SECONDS)[0]) == ["ab"]


def test_B1_while_a_call_is_under_way_its_rows_may_join_so_the_window_is_whole() -> None:
    it = lane()
    it.in_flight = 1
    queue(it, "a", 1.0, continues=True)
    assert it.plan(1.1) == ([], 1.25)
    it.in_flight = 0
    assert left(it.plan(1.1)[0]) == ["a"]


def test_B1_the_first_request_decides_about_the_window_and_joining_does_not_shorten_it() -> None:
    it = lane()
    queue(it, "a", 1.0)
    queue(it, "b", 1.1, continues=True)
    assert it.plan(1.2) == ([], 1.25)


@pytest.mark.parametrize(
    ("second_lane", "mark", "continues"),
    [("org/p", Mark.LIVE, True), ("org/p", Mark.IN_FLIGHT, True), ("org/p", Mark.CACHE, False), ("org/q", Mark.LIVE, False)],
)
def test_B1_a_cell_continues_where_its_rows_last_answer_came_from_a_call_on_the_same_lane(
    second_lane: str, mark: Mark, continues: bool
) -> None:
    table = Table(RowsEngine())
    outbox = table.given(
        opened(column("a"), column("b", lane=second_lane)),
        RowsAdded("run", (AddedRow(0, "k0", b'{"country":"de"}'), AddedRow(1, "k1", b'{"country":"fr"}'))),
    )
    first, other = requests(outbox)
    assert not first.continues
    (second,) = requests(table.given(CallsAnswered(first.receipt, 1, Answer.COMPLETED, ((first.call, mark),), b"1")))
    assert second.continues is continues
    (later,) = requests(table.given(CallsAnswered(other.receipt, 1, Answer.COMPLETED, ((other.call, Mark.CACHE),), b"1")))
    assert not later.continues


def test_B1_a_row_that_only_begins_in_the_same_turn_continues_nothing() -> None:
    table = Table(RowsEngine())
    row = AddedRow(0, "k0", b'{"country":"de"}')
    (first,) = requests(table.given(opened(column("a"), column("b")), RowsAdded("run", (row,))))
    answer = CallsAnswered(first.receipt, 1, Answer.COMPLETED, ((first.call, Mark.LIVE),), b"1")
    second, began = requests(table.given(answer, RowsAdded("run", (AddedRow(1, "k1", b'{"country":"fr"}'),))))
    assert (second.continues, began.continues) == (True, False)


def test_B1_the_lane_is_told_in_the_turn_that_asks_and_not_when_it_is_asked_again() -> None:
    from schemas.commands import RecoveryEnded

    table = g.receipts()
    request = ToolRequested(g.R, "c", "run", 0, "org/p", "p.t", Repeat.NEVER, b"{}", continues=True)
    told = [[e.continues for e in table.given(event).effects if isinstance(e, Queued)] for event in (request, RecoveryEnded())]
    assert told == [[True], [False]]


# --- parallelism --------------------------------------------------------------------------------------------


def paced(**pace: Any) -> LanePace:
    described = {"base_url": "https://p.example", "pace": pace, "tools": {"t": {"path": "/t"}}}
    return pace_of(Providers.model_validate({"providers": {"p": described}}), "org/p")


@pytest.mark.parametrize(("pace", "ceiling", "batches"), [({}, 50, 4), ({"concurrency": 7}, 7, 7), ({"concurrency": 80}, 80, 80)])
def test_B9_pace_suggests_how_many_calls_and_batches_are_under_way(pace: dict[str, Any], ceiling: int, batches: int) -> None:
    assert (paced(**pace).concurrency, paced(**pace).batches) == (ceiling, batches)


def test_B9_four_batches_and_no_more_where_nothing_is_said_while_single_calls_go_on() -> None:
    it = lane(paced())
    for number in range(6):
        queue(it, f"{number}abc"[0], bucket=str(number))
        it.queue(f"m{number}", "p.batch", "run", Need(1, 0, 1, 0, ""), 0.0, 0.0, str(number))
    for number in range(60):
        it.queue(f"s{number}", "p.single", "run", Need(1, 0, 1, 0, ""), 0.0, 0.0)
    departures, _ = it.plan(0.25)
    assert sum(len(departure.entries) == 2 for departure in departures) == 4
    assert len(departures) == 50
    # A batch lands: the next one goes.
    it.claimed, it.batches = 30, 3
    assert sum(len(departure.entries) == 2 for departure in it.plan(0.25)[0]) == 1


def test_B9_a_batch_to_be_repeated_counts_too_and_is_not_forgotten() -> None:
    it = lane(LanePace(concurrency=10, batches=1))
    queue(it, "ab", batch="batch:1")
    queue(it, "cd")
    assert left(it.plan(0.3)[0]) == ["ab"]
    assert it.plan(0.3)[0] == []
    it.batches = it.claimed = 0
    assert left(it.plan(0.3)[0]) == ["cd"]
