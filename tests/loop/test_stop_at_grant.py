"""A worker that stops while a call is about to be made: what was not sent is given back, in whatever moment that was (L7)."""

from __future__ import annotations

import asyncio
from typing import Any

from schemas.events import BatchClaimed, Repeat, ToolRequested
from tests.loop.test_dispatcher_leases import renews
from tests.support.dispatch import LANE, World, member, story


@story(pace={"concurrency": 1})
async def test_L7_a_call_that_is_granted_in_the_very_moment_of_the_stop_is_given_back(it: World) -> None:
    """L7: the stop's task was ready when the turn's effects came. The call then waited for its place, of which nobody tells a
    worker that stops; it was cut off after the grace time, kept its lease, and ended as unknown, though nothing was sent.
    """
    await it.asks("a")
    it.say("receipt-claims", BatchClaimed(LANE, "p.never", "", "theirs", 1, (member("z"),)))
    it.say("tool-requests", ToolRequested("z", "run:z", "run", 0, LANE, "p.never", Repeat.NEVER, b"{}"))
    effects, stops = it.dispatcher.effects, []

    def then_stop(*args: Any) -> None:
        stops.append(asyncio.create_task(it.dispatcher.stop()))
        effects(*args)

    it.dispatcher.effects = then_stop  # type: ignore[method-assign]
    began = it.time.now
    await it.turn()
    await stops[0]
    assert (it.released, it.caller.asked) == (["a"], [])
    assert it.time.now - began < it.settings.grace_seconds, "nobody waited for the grace time to pass"


@story(grace_seconds=0.01)
async def test_L7_a_call_that_is_cut_off_before_it_was_sent_is_given_back(it: World) -> None:
    """It waited for a renewal that nobody acknowledged when the grace time was over."""
    await renews(it)
    assert it.dispatcher.calls.in_flight(), "it waits for its renewal"
    it.log.before = lambda topic, _: it.log.acknowledges.set() if topic == "receipt-claims" else None
    await it.dispatcher.stop()
    assert (it.released, it.caller.asked) == (["a"], [])
