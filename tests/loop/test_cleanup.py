"""The clean-up at a worker's end (S8), with a broker that is away or back in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.errors import Unreachable
from tests.support.dispatch import World, world
from tests.support.scripted_caller import Hangs
from tests.support.virtual_time import play

AWAY = Unreachable("no broker")


def clean_ups(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was said of it: level and words, and that it was said last."""
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines[-1][1].startswith("clean-up")
    return [(level, text) for level, text in lines if text.startswith("clean-up")]


async def granted_and_claimed(it: World) -> Hangs:
    """One call is under way and another, claimed ahead of its turn, is not granted yet."""
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    await it.asks("b")
    return hang


def test_S8_S7_a_worker_without_its_broker_says_which_leases_it_could_not_give_back_and_ends_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="streams")

    async def ends_without_a_broker() -> None:
        it = World(tmp_path, grace_seconds=2.0)
        async with it:
            hang = await granted_and_claimed(it)
            it.log.trouble = AWAY
            hang.ended.set()
            await it.settles()
            await it.dispatcher.stop()
            assert it.released == []
            # Neither an outcome nor an answer was made up, and the provider was not called again.
            assert (it.ends, it.answers, it.caller.asked) == ([], [], ["a"])
            await it.turn()
            assert it.table_is_open("a", "b")

    play(ends_without_a_broker())
    ((level, text),) = clean_ups(caplog)
    assert level == "ERROR"
    assert text == (
        "clean-up failed: 1 leases of calls that were not sent could not be given back, and 1 calls have ended without the log "
        "knowing; their leases expire after 3 s, their rows stay open, and the next worker goes on with them"
    )


def test_S8_a_worker_whose_broker_is_back_in_time_says_that_its_leases_were_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="streams")

    async def ends_with_a_broker() -> None:
        it = World(tmp_path, grace_seconds=10.0)
        async with it:
            hang = await granted_and_claimed(it)
            it.log.trouble = AWAY
            hang.ended.set()
            await it.settles()
            stopping = asyncio.create_task(it.dispatcher.stop())
            await it.settles()
            it.log.trouble = None
            await stopping
            assert it.released == ["b"]
            assert [end.receipt for end in it.ends] == ["a"]

    play(ends_with_a_broker())
    assert clean_ups(caplog) == [
        ("INFO", "clean-up done: 1 leases were given back, and none is held for what has ended or was not sent")
    ]


def test_S8_a_worker_that_holds_nothing_says_so_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="streams")

    async def idles() -> None:
        async with world(tmp_path):
            pass

    play(idles())
    ((level, text),) = clean_ups(caplog)
    assert (level, text.partition(",")[0]) == ("INFO", "clean-up done: 0 leases were given back")
