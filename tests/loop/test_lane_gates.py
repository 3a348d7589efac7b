"""A provider that wants all to wait, in virtual time (P3): from when its answer is read, over takeovers and restarts."""

from __future__ import annotations

import asyncio

from schemas.events import Fault, Repeat, ToolRequested
from streams.calling.gates import Gates
from streams.tools.port import CallReport, NotDone, ProviderCall
from tests.support.dispatch import LANE, World, story
from tests.support.scripted_caller import BUSY, Hangs, busy, each

long_busy = each(lambda _: NotDone(BUSY, 600.0), pause=600.0)


async def slow_busy(call: ProviderCall) -> CallReport:
    await asyncio.sleep(0.2)
    answer = busy(call)
    assert isinstance(answer, CallReport)
    return answer


@story(pace={"concurrency": 3})
async def test_P3_a_lane_waits_from_when_the_answer_is_read_and_not_from_its_publication(it: World) -> None:
    """While the broker was slow to acknowledge the 429, granted calls of the same provider left all the same."""
    it.caller.scripts.extend([slow_busy, Hangs()])
    await it.asks("a")
    await it.turn()
    await it.asks("b")
    await it.passes(0.15)
    it.log.acknowledges.clear()
    await it.passes(0.2)
    await it.turn()
    await it.passes(1.0)
    assert it.caller.asked == ["a"]
    it.log.acknowledges.set()
    await it.passes(0.1)
    assert it.caller.asked == ["a"]


@story(pace={"concurrency": 3})
async def test_P3_a_pause_outlives_a_rebalance(it: World) -> None:
    """A lane of a new owner began without one: a rebalance, and a provider that had asked for ten minutes was called at once."""
    it.caller.scripts.append(long_busy)
    await it.asks("a")
    await it.turn()
    await it.turn()
    await it.revoked()
    await it.returns()
    await it.asks("bcdefg")
    await it.turns(2.0, every=0.1)
    assert it.caller.asked == ["a"]
    await it.turns(590.0, every=5.0)
    assert it.caller.asked == ["a"]
    await it.turns(15.0, every=0.1)
    assert sorted(set(it.caller.asked)) == list("abcdefg")
    assert min(it.caller.at[1:]) >= it.caller.at[0] + 600.0


@story(pace={"concurrency": 3})
async def test_P3_a_pause_outlives_the_process_by_what_is_in_the_log(it: World) -> None:
    it.caller.scripts.append(long_busy)
    await it.asks("a")
    await it.turn()
    await it.turn()
    await it.revoked()
    it.dispatcher._gates = Gates(it.time.time)  # what only the process that is gone knew
    await it.returns()
    await it.asks("bcdefg")
    await it.turns(2.0, every=0.1)
    assert it.caller.asked == ["a"]
    assert it.dispatcher._partitions[0].lanes[LANE].gate > it.time.now + 500.0


@story(pace={"concurrency": 3})
async def test_P3_an_answer_to_a_call_of_an_earlier_owner_pauses_the_lane_of_the_new_one(it: World) -> None:
    it.caller.scripts.append(slow_busy)
    await it.asks("a")
    await it.turn()
    await it.revoked()
    await it.returns()
    await it.passes(0.3)
    it.say("tool-requests", ToolRequested("b", "run:b", "run", 0, LANE, "p.never", Repeat.NEVER, b"{}"))
    await it.turn()
    await it.turns(0.5)
    assert it.caller.asked == ["a"]


@story(pace={"concurrency": 3})
async def test_P3_a_wait_of_our_own_pauses_nobody_else(it: World) -> None:
    it.caller.scripts.append(each(lambda _: NotDone(Fault("unreachable", "nobody listens", True))))
    await it.asks("a")
    await it.turn()
    await it.asks("b")
    await it.turns(0.1)
    assert it.caller.asked[:2] == ["a", "b"]
