"""Completions while the broker is away: ladder, breaker, salvage, and the same bytes once more (section 6), in virtual time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from schemas.events import AttemptEnded, BatchClaimed, CallsAnswered, LeaseExpired, LeaseReleased, LeasesRenewed, Value
from streams.calling.salvage import Salvaged, SalvageFile, Why
from streams.errors import PaidonceError, Unreachable
from tests.support.dispatch import World, story, world
from tests.support.scripted_caller import Hangs, value_of
from tests.support.virtual_time import play

AWAY = Unreachable("no broker")


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """What a person finds in the data folder."""
    path = folder / "salvage.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def journalled(it: World) -> list[str]:
    """Receipts in the journal."""
    return [event.receipt for _, events in it.journal.unpublished() for event in events]


def tries(it: World) -> list[float]:
    """Seconds from now at which completions are handed to the log, from now on."""
    began, at = it.time.now, list[float]()
    enqueue = it.log.enqueue

    def counted(topic: str, partition: int, events: Any) -> asyncio.Future[None]:
        if any(isinstance(event, AttemptEnded) for event in events):
            at.append(round(it.time.now - began, 3))
        return enqueue(topic, partition, events)

    it.log.enqueue = counted  # type: ignore[method-assign]
    return at


async def answered_while_away(it: World, name: str) -> None:
    """A call is under way; then the broker goes, and then the provider answers."""
    it.caller.scripts.append(hang := Hangs())
    await it.asks(name)
    await it.turn()
    it.log.trouble = AWAY
    hang.ended.set()
    await it.settles()


# --- S3: the ladder ---------------------------------------------------------------------------------------------


@story()
async def test_S3_a_completion_is_published_again_after_1_3_and_9_seconds_and_then_the_worker_ends(it: World) -> None:
    at = tries(it)
    await answered_while_away(it, "a")
    await it.passes(12.9)
    assert (at, it.failures) == ([0, 1, 4], [])
    await it.passes(20)
    assert at == [0, 1, 4, 13]
    assert set(it.failures) == {AWAY}
    assert it.log.renewed >= 3
    assert it.caller.asked == ["a"]
    it.failures.clear()


@story()
async def test_S3_a_broker_that_is_back_in_time_gets_the_same_bytes_and_nothing_has_failed(it: World) -> None:
    await answered_while_away(it, "a")
    assert journalled(it) == ["a"]
    await it.passes(2)
    it.log.trouble = None
    await it.passes(2.1)
    assert [(end.receipt, end.n, end.outcome) for end in it.ends] == [("a", 1, Value(value_of("a")))]
    assert journalled(it) == []


@story(broker_seconds=12.0)
async def test_S3_no_wait_is_begun_that_would_leave_less_than_ten_seconds(it: World) -> None:
    at = tries(it)
    await answered_while_away(it, "a")
    await it.passes(20)
    assert at == [0, 1]
    assert set(it.failures) == {AWAY}
    it.failures.clear()


@story()
async def test_S3_after_a_ladder_that_came_to_its_end_later_ones_are_cut_short_until_something_is_durable(it: World) -> None:
    it.caller.scripts += [late := Hangs(), later := Hangs(), last := Hangs()]
    await it.asks("abc")
    await it.turn()
    at = tries(it)
    it.log.trouble = AWAY
    late.ended.set()
    await it.passes(14)
    assert at == [0, 1, 4, 13]
    later.ended.set()
    await it.passes(5)
    assert at == [0, 1, 4, 13, 14]
    assert set(it.failures) == {AWAY}
    it.failures.clear()
    it.log.trouble = None
    last.ended.set()
    await it.settles()
    assert [end.receipt for end in it.ends] == ["c"]
    assert journalled(it) == ["a", "b", "c"]


# --- S4: doubt ----------------------------------------------------------------------------------------------------


@story(publish_seconds=5.0)
async def test_S4_what_is_not_acknowledged_is_published_again_and_the_fold_makes_that_harmless(it: World) -> None:
    """Both copies were durable all the time; only their acknowledgement was lost."""
    await it.asks("a")
    at = tries(it)
    it.log.acknowledges.clear()
    await it.turn()
    await it.passes(6.5)
    assert at == [0, 6]
    first, second = it.ends
    assert first == second
    await it.turn()
    assert [event.receipt for event in it.answers if isinstance(event, CallsAnswered)] == ["a"]
    it.log.acknowledges.set()
    await it.turns(0.1)
    assert [event.receipt for event in it.answers if isinstance(event, CallsAnswered)] == ["a"]
    assert (it.dispatcher.stale_values, it.caller.asked, journalled(it)) == (0, ["a"], [])


@story(publish_seconds=5.0)
async def test_S4_an_acknowledgement_that_comes_while_the_ladder_waits_ends_it(it: World) -> None:
    await it.asks("a")
    at = tries(it)
    it.log.acknowledges.clear()
    await it.turn()
    await it.passes(5.5)
    it.log.acknowledges.set()
    await it.passes(60)
    assert at == [0]
    assert not it.dispatcher.settlement.breaker.is_open


# --- S6: the breaker ----------------------------------------------------------------------------------------------


@story(pace={"concurrency": 2})
async def test_S6_the_first_failure_stops_calls_at_once_and_each_is_made_once_when_the_broker_is_back(it: World) -> None:
    it.caller.scripts += [first := Hangs(), Hangs()]
    await it.asks("ab")
    await it.turn()
    await it.asks("c")
    it.log.trouble = AWAY
    first.ended.set()
    await it.settles()
    breaker = it.dispatcher.settlement.breaker
    assert breaker.is_open
    await it.asks("d")
    assert it.caller.asked == ["a", "b"]
    assert it.claimed == ["a", "b"]
    it.log.trouble = None
    await it.turns(10)
    assert not breaker.is_open
    assert sorted(it.caller.asked) == ["a", "b", "c", "d"]


@story()
async def test_S6_a_call_that_was_granted_but_not_sent_is_given_back_counted_and_made_later(it: World) -> None:
    """Its claim is folded in a turn that was under way when the first failure came."""
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    await it.asks("b")
    it.log.trouble = AWAY
    hang.ended.set()
    await it.settles()
    await it.turn()
    assert it.caller.asked == ["a"]
    assert it.dispatcher.settlement.breaker.prevented == 1
    it.log.trouble = None
    await it.turns(10)
    assert it.released == ["b"]
    assert it.caller.asked == ["a", "b"]
    assert [end.n for end in it.ends if end.receipt == "b"] == [2]


# --- S5: salvage --------------------------------------------------------------------------------------------------


def test_S5_answers_that_stay_unpublished_are_readable_and_the_next_start_publishes_them(tmp_path: Path) -> None:
    async def ends_without_a_broker() -> None:
        it = World(tmp_path, grace_seconds=2.0)
        async with it:
            await answered_while_away(it, "a")
            await it.dispatcher.stop()
            assert not it.log.running

    async def next_start() -> None:
        async with world(tmp_path) as it:
            assert [(end.receipt, end.outcome) for end in it.ends] == [("a", Value(value_of("a")))]
            assert journalled(it) == []

    play(ends_without_a_broker())
    (line,) = lines_of(tmp_path)
    assert (line["why"], line["receipt"], line["tool"], line["attempt"]) == ("unpublished", "a", "p.never", 1)
    assert (line["output"], line["error"]) == ("a", "no broker")
    assert 0 < line["first_error_ms"] <= line["at_ms"]
    play(next_start())
    assert [(line["why"], line["receipt"], line["attempt"]) for line in lines_of(tmp_path)] == [
        ("unpublished", "a", 1),
        ("published", "a", 1),
    ]


@story()
async def test_S5_a_value_that_was_kept_aside_is_in_the_file_with_its_output(it: World) -> None:
    await it.asks("a")
    await it.turn()
    it.say("receipt-completions", AttemptEnded("a", 1, 0, "zombie", Value(b'{"other":1}')))
    await it.turn()
    (line,) = lines_of(it.settings.data)
    assert (line["why"], line["receipt"], line["tool"], line["attempt"]) == ("kept_aside", "a", "p.never", 1)
    assert line["output"] == {"other": 1}


def test_S5_the_file_says_clearly_from_where_on_it_is_capped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = SalvageFile(tmp_path / "salvage.jsonl", bytes_max=500)
    file.keep(Salvaged(Why.KEPT_ASIDE, 1, f"r{number}", "p.t", 1, output=Raw(b'"' + b"x" * 150 + b'"')) for number in range(9))
    lines = lines_of(tmp_path)
    assert [line["why"] for line in lines] == ["kept_aside", "kept_aside", "capped"]
    assert "500" in lines[-1]["error"]
    assert file.left_out == 7
    assert len([record for record in caplog.records if "left out" in record.message]) == 1


def test_S5_a_file_that_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SalvageFile(tmp_path / "missing" / "salvage.jsonl").keep([Salvaged(Why.KEPT_ASIDE, 1, "r1", attempt=3)])
    assert "receipt r1, attempt 3 is not in" in caplog.text


@story()
async def test_B11_a_defect_under_the_ladder_ends_the_worker_loudly(it: World) -> None:
    await it.asks("a")
    it.log.trouble = PaidonceError("a defect in publishing")
    await it.turn()
    await it.settles()
    assert [str(failure) for failure in it.failures] == ["a defect in publishing"]
    it.failures.clear()


# --- heartbeats while the broker is away --------------------------------------------------------------------------


@story(lease_seconds=3.0)
async def test_L1_a_lease_is_renewed_every_third_of_its_time(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    began, at = it.time.now, list[float]()
    it.log.before = lambda topic, _events: at.append(it.time.now - began) if topic == "lease-heartbeats" else None
    await it.turns(3.4)
    assert at == pytest.approx([1.0, 2.0, 3.0], abs=0.3)
    assert {beat.leases for beat in it.log.of("lease-heartbeats", LeasesRenewed)} == {(it.claims[0].lease,)}
    hang.ended.set()
    await it.settles()


@story(lease_seconds=3.0)
async def test_L5_a_heartbeat_that_cannot_be_published_is_tried_again_and_loses_nothing(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    it.log.trouble = AWAY
    await it.passes(5)
    it.log.trouble = None
    await it.turns(5)
    assert it.log.of("receipt-claims", LeaseExpired) == []
    assert it.log.of("lease-heartbeats", LeasesRenewed) != []
    hang.ended.set()
    await it.turns(0.1)
    assert [event.answer.value for event in it.answers if isinstance(event, CallsAnswered)] == ["completed"]


@story()
async def test_L5_a_heartbeat_that_is_read_after_its_completion_changes_nothing(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    hang.ended.set()
    await it.settles()
    it.say("lease-heartbeats", LeasesRenewed((it.claims[0].lease,)))
    await it.turns(8)
    assert it.log.of("receipt-claims", LeaseExpired) == []
    assert it.caller.asked == ["a"]
    assert [event.answer.value for event in it.answers if isinstance(event, CallsAnswered)] == ["completed"]


@story()
async def test_L7_a_release_never_overtakes_the_claim_that_could_not_be_published(it: World) -> None:
    """The claim fails; the partition is taken away, which gives the claim back; the broker returns: in that order in the log."""
    it.log.trouble = AWAY
    await it.asks("a")
    await it.settles()
    await it.revoked()
    it.log.trouble = None
    await it.passes(10)
    said = [event for topic, _, event in it.log.published if topic == "receipt-claims"]
    assert [type(event) for event in said] == [BatchClaimed, LeaseReleased]
    await it.returns()
    await it.turns(5)
    assert it.caller.asked == ["a"]


def test_S5_a_start_whose_broker_goes_again_ends_in_time_and_keeps_the_journal(tmp_path: Path) -> None:
    async def left_behind() -> None:
        it = World(tmp_path, grace_seconds=2.0)
        async with it:
            await answered_while_away(it, "a")
            await it.dispatcher.stop()

    async def start() -> None:
        it = World(tmp_path, broker_seconds=30.0)
        it.log.acknowledges.clear()
        began = it.time.now
        with pytest.raises(Unreachable, match="1 journalled answers were not acknowledged in 30 s"):
            await it.dispatcher.start()
        assert it.time.now == pytest.approx(began + 30)
        assert journalled(it) == ["a"]
        it.log.acknowledges.set()
        it.journal.close()

    play(left_behind())
    play(start())
