"""The dispatcher in virtual time: no paid call is made without end (P2, U1), whatever became of its worker or its tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.events import Repeat, ToolRequested
from schemas.states import RECEIPT, Receipt
from tests.support.dispatch import LANE, World, member, story, told, world
from tests.support.scripted_caller import doubtful, raises
from tests.support.virtual_time import play


@story()
async def test_U1_a_receipt_from_a_day_on_which_its_tool_might_be_repeated_is_called_once_under_todays_never(it: World) -> None:
    """The receipt keeps the *with-key* of its first request, and the end was judged by today's *never*, which named neither a wait
    nor a bound: 501 paid calls in five seconds.
    """
    it.caller.scripts.extend([doubtful] * 50)
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.never", Repeat.WITH_KEY, b"{}"))
    await it.turn()
    await it.turns(5.0)
    assert it.caller.asked == ["a"]
    assert told(it) == [("a", "unknown")]


@story()
async def test_U2_a_receipt_first_asked_for_as_never_stays_unknown_also_where_its_tool_may_be_repeated_today(it: World) -> None:
    it.caller.scripts.append(doubtful)
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.key", Repeat.NEVER, b"{}"))
    await it.turn()
    await it.turns(5.0)
    assert (it.caller.asked, told(it)) == (["a"], [("a", "unknown")])


@pytest.mark.parametrize(("tool", "asked", "times"), [("key", Repeat.WITH_KEY, 5), ("never", Repeat.WITH_KEY, 1)])
def test_P2_F1_a_call_that_takes_each_of_its_workers_down_is_given_up(tmp_path: Path, tool: str, asked: Repeat, times: int) -> None:
    """case_F1: each next owner waited for the lease and called again, for ever: an expiry set neither a bound nor a wait."""

    async def crashes() -> None:
        async with world(tmp_path) as it:
            it.caller.scripts.extend([raises] * 50)
            it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, f"p.{tool}", asked, b"{}"))
            for _ in range(times + 3):
                await it.turns(1.0, every=0.1)
                it.failures.clear()  # the worker ended, and whoever watches over it starts the next
                await it.revoked()
                await it.returns()
                await it.turns(9.0, every=0.1)
                it.failures.clear()
            assert it.caller.asked == ["a"] * times
            assert told(it) == [("a", "unknown")]
            receipt = it.owner.record_of(RECEIPT + b"a", Receipt)
            assert receipt is not None
            assert [n for n, attempt in receipt.attempts.items() if attempt.used_up] == [times]

    play(crashes())


@story()
async def test_L4_a_watched_receipt_that_is_gone_ends_no_worker(it: World) -> None:
    """What is judged may be of a receipt that somebody had forgotten meanwhile."""
    from schemas.events import LeaseExpired
    from streams.calling.leases import judgement

    command = judgement("L", [member("x")], it.owner, it.providers, it.settings.attempts_max)  # type: ignore[arg-type]
    outbox = it.table.turn([command])
    assert outbox.events[("receipt-claims", 0)] == [LeaseExpired("L", (member("x"),))]
