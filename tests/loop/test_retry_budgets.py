"""Retry budgets with a dispatcher and a scripted provider in virtual time: what is called again, and what is not."""

from __future__ import annotations

from schemas.events import CallsAnswered, Fault, RetriesCounted, RetryBudget, ToolRequested
from schemas.states import RETRIES, RunRetries, record_key
from streams.tools.port import NotDone
from tests.loop.test_dispatcher import story, told
from tests.support.dispatch import LANE, REPEATS, World
from tests.support.scripted_caller import Hangs, doubtful, each

closed = each(lambda _: NotDone(Fault("http_503", "closed for now", True), 1.0))


async def asks(it: World, names: str, tool: str, budget: int | None, *, run: str = "run") -> None:
    retries = None if budget is None else RetryBudget(budget, budget)
    for name in names:
        it.say(
            "tool-requests",
            ToolRequested(name, f"{run}:{name}", run, 0, LANE, f"p.{tool}", REPEATS[tool], b"{}", retries=retries),
        )
    await it.turn()


def retries(it: World, run: str = "run") -> RunRetries:
    return it.owner.record_of(record_key(RETRIES, run, LANE), RunRetries) or RunRetries()


def faults(it: World) -> list[str]:
    return [event.fault.message for event in it.answers if isinstance(event, CallsAnswered) and event.fault is not None]


@story(attempts_max=4)
async def test_P2_each_503_that_is_tried_again_is_charged_to_its_run(it: World) -> None:
    it.caller.scripts.extend([closed] * 3)
    await asks(it, "a", "never", None)
    await it.turns(12.0, every=0.2)
    assert it.caller.asked == ["a"] * 4
    assert told(it) == [("a", "completed")]
    assert retries(it) == RunRetries(made=3, held=0)
    assert it.log.of("row-progress") == [RetriesCounted("run", LANE, made) for made in (1, 2, 3)]


@story(attempts_max=9)
async def test_P2_G3_a_spent_budget_ends_what_it_does_not_pay_for_and_disturbs_nothing_in_flight(it: World) -> None:
    hangs = Hangs()
    it.caller.scripts.extend([hangs, *[closed] * 20])
    await asks(it, "abcdef", "never", 3)
    await it.turns(12.0, every=0.2)
    # Six calls, one of which hangs, and three repeats.
    assert len(it.caller.calls) == 6 + 3
    assert len(told(it)) == 5
    assert {answer for _, answer in told(it)} == {"failed"}
    assert set(faults(it)) == {"retry budget of 3 spent; before it: closed for now"}
    assert retries(it) == RunRetries(made=3, held=0)
    hangs.ended.set()
    await it.turns(1.0)
    assert told(it)[-1] == ("a", "completed")
    # Nothing was claimed that nobody pays for, and the lane is free for others.
    assert (len(it.claims), it.released) == (9, [])
    await asks(it, "g", "never", 0, run="next")
    it.caller.scripts.clear()
    await it.turns(1.0)
    assert told(it)[-1] == ("g", "completed")


@story()
async def test_P2_U2_a_lost_answer_that_nobody_pays_to_ask_for_again_is_unknown(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await asks(it, "a", "key", 0)
    await it.turns(5.0, every=0.2)
    assert it.caller.asked == ["a"]
    assert told(it) == [("a", "unknown")]


@story(attempts_max=3)
async def test_P2_a_batch_that_is_repeated_is_charged_for_each_member_and_goes_as_it_was(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await asks(it, "abc", "batch", 2)
    await it.turns(5.0, every=0.1)
    first, again = it.caller.calls
    assert again.idempotency_key == first.idempotency_key
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed"), ("c", "unknown")]
    assert retries(it) == RunRetries(made=2, held=0)


@story(attempts_max=3)
async def test_P2_members_that_are_turned_away_go_again_in_a_batch_of_those_that_are_paid_for(it: World) -> None:
    it.caller.scripts.append(closed)
    await asks(it, "abc", "batch", 2)
    await it.turns(5.0, every=0.1)
    assert [set(asked) for asked in it.caller.asked] == [set("abc"), set("ab")]
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed"), ("c", "failed")]


@story(attempts_max=9)
async def test_P2_P8_the_count_survives_crashes_and_redelivery(it: World) -> None:
    """A new owner after each call; what the last one had claimed and not sent is given back, and stays paid for."""
    it.caller.scripts.extend([closed] * 9)
    await asks(it, "a", "never", 3)
    for made in (1, 2, 3, 4):
        while len(it.caller.calls) < made:
            await it.turns(0.05)
        it.say("receipt-claims", *it.claims[-1:])
        it.say("receipt-completions", *it.ends[-1:])
        await it.revoked()
        await it.returns()
    await it.turns(10.0, every=0.2)
    assert it.caller.asked == ["a"] * 4
    assert told(it) == [("a", "failed")]
    assert retries(it) == RunRetries(made=3, held=0)
    assert [event.retries for event in it.log.of("row-progress")] == [1, 2, 3]


@story(attempts_max=3)
async def test_P2_members_of_two_runs_share_a_repeat_and_each_pays_its_own(it: World) -> None:
    it.caller.scripts.append(closed)
    await asks(it, "ab", "batch", 1, run="one")
    await asks(it, "c", "batch", None, run="two")
    await it.turns(5.0, every=0.1)
    assert [set(asked) for asked in it.caller.asked] == [set("abc"), set("ac")]
    assert (retries(it, "one"), retries(it, "two")) == (RunRetries(made=1), RunRetries(made=1))
