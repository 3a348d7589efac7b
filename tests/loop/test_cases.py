"""Cases of faults that people reported elsewhere: dispatcher and receipts engine with a scripted provider, in virtual time."""

from __future__ import annotations

import pytest

from schemas.events import BatchClaimed, CallsAnswered, CallWithdrawn, ClaimedMember, Fault, Mode, Repeat, ToolRequested
from streams.engine.effects import ClaimFolded
from streams.engine.port import Context
from streams.errors import StateError
from streams.tools.port import NotDone, Refused
from tests.support.dispatch import LANE, World, story, told
from tests.support.scripted_caller import Hangs, each, raises

DOWN = each(lambda _: NotDone(Fault("http_503", "down for now", True)))
INVALID = each(lambda _: Refused(Fault("http_422", "no such thing")))


def heard(it: World) -> list[tuple[str, str]]:
    """Which calls were told what."""
    return [(call, event.answer.value) for event in it.answers if isinstance(event, CallsAnswered) for call, _ in event.calls]


async def withdraws(it: World, name: str, run: str) -> None:
    """A run is cancelled: its cell no longer waits."""
    it.say("tool-requests", CallWithdrawn(name, f"{run}:{name}"))
    await it.turn()


@story()
async def test_R1_a_grant_that_leaves_a_member_out_ends_the_worker_and_sends_nothing(it: World) -> None:
    await it.asks("ab", "batch")
    await it.passes(0.3)
    (lease,) = [claim.lease for claim in it.claims]
    it.dispatcher.effects("receipts", 0, [ClaimFolded(LANE, lease, ("a",), ())], Context(0, 1, 1, 0))
    await it.settles()
    assert [type(failure) for failure in it.failures] == [StateError]
    assert f"the claim under lease {lease} has no answer for b" in str(it.failures[0])
    assert it.caller.calls == []
    it.failures.clear()


@pytest.mark.parametrize(("names", "tool"), [("a", "key"), ("abc", "batch")])
def test_case_E2_a_failure_is_not_kept_as_an_answer_singly_or_batched(names: str, tool: str, tmp_path: object) -> None:
    @story(attempts_max=2)
    async def played(it: World) -> None:
        it.caller.scripts.extend([DOWN] * 2)
        await it.asks(names, tool, run="one")
        await it.turns(5.0, every=0.05)
        assert {answer for _, answer in heard(it)} == {"failed"}
        it.answers.clear()
        # What ``rows`` does with a repairable failure of an earlier run (R5): it asks again, as a refresh of its own.
        await it.asks(names, tool, run="two", mode=Mode.FAILED_REFRESH)
        await it.turns(5.0, every=0.05)
        assert sorted(heard(it)) == [(f"two:{name}", "completed") for name in names]
        assert it.caller.asked == [names] * 3

    played(tmp_path)  # type: ignore[arg-type]


@story()
async def test_case_E2_a_no_for_good_is_reused_until_a_refresh_asks_again(it: World) -> None:
    it.caller.scripts.append(INVALID)
    await it.asks("a", "key", run="one")
    await it.turns(1.0, every=0.05)
    await it.asks("a", "key", run="two")
    await it.turns(1.0, every=0.05)
    assert heard(it) == [("one:a", "failed"), ("two:a", "failed")]
    assert len(it.caller.calls) == 1
    await it.asks("a", "key", run="three", mode=Mode.FAILED_REFRESH)
    await it.turns(1.0, every=0.05)
    assert heard(it)[-1] == ("three:a", "completed")
    assert len(it.caller.calls) == 2


async def two_follow_a_lost_owner(it: World) -> None:
    """The process that called is gone; two runs wait for its answer."""
    it.say("tool-requests", ToolRequested("a", "one:a", "one", 0, LANE, "p.key", Repeat.WITH_KEY, b"{}"))
    it.say("receipt-claims", BatchClaimed(LANE, "p.key", "", "gone", 1, (ClaimedMember("a", 1, 0, 1),)))
    await it.turn()
    await it.asks("a", "key", run="two")
    await it.revoked()
    await it.returns()


@story()
async def test_case_F1_followers_of_an_owner_that_went_away_are_served_within_lease_and_call(it: World) -> None:
    await two_follow_a_lost_owner(it)
    await it.turns(3.0, every=0.05)
    assert heard(it) == []
    await it.turns(1.0, every=0.05)
    assert sorted(heard(it)) == [("one:a", "completed"), ("two:a", "completed")]
    assert len(it.caller.calls) == 1
    assert it.table.reader.get(b"oa") is None, "nothing is left in the index of open receipts"


@story()
async def test_case_F1_followers_of_a_call_whose_parser_failed_are_served_by_its_repeat(it: World) -> None:
    it.caller.scripts.append(raises)
    await it.asks("a", "key", run="one")
    await it.asks("a", "key", run="two")
    await it.turns(5.0, every=0.05)
    assert sorted(heard(it)) == [("one:a", "completed"), ("two:a", "completed")]
    assert len(it.caller.calls) == 2
    assert it.caller.calls[0].idempotency_key == it.caller.calls[1].idempotency_key


@pytest.mark.parametrize("cancelled", ["one", "two"])
def test_case_F2_a_cancel_of_one_run_leaves_the_shared_call_to_the_others(cancelled: str, tmp_path: object) -> None:
    @story()
    async def played(it: World) -> None:
        it.caller.scripts.append(hang := Hangs())
        await it.asks("a", run="one")
        await it.asks("a", run="two")
        await it.turn()
        await withdraws(it, "a", cancelled)
        await it.asks("a", run="three")
        hang.ended.set()
        await it.turns(0.5)
        others = sorted({"one", "two", "three"} - {cancelled})
        assert sorted(heard(it)) == [(f"{run}:a", "completed") for run in others]
        assert len(it.caller.calls) == 1
        assert not hang.cancelled

    played(tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [Mode.NORMAL, Mode.FULL_REFRESH])
def test_case_F3_equal_asks_of_one_window_are_one_item_whether_receipts_are_reused_or_not(mode: Mode, tmp_path: object) -> None:
    """Ten rows with four distinct asks; a batch has room for three, and counts distinct ones."""

    @story()
    async def played(it: World) -> None:
        if mode is Mode.FULL_REFRESH:
            await it.asks("abcd", "batch", run="earlier")
            await it.turns(1.0, every=0.05)
            it.answers.clear()
            it.caller.calls.clear()
        refresh = None if mode is Mode.NORMAL else "refresh"
        for row, name in enumerate("abcdabcdab"):
            it.say(
                "tool-requests", ToolRequested(name, f"run:{row}", "run", 0, LANE, "p.batch", Repeat.WITH_KEY, b"{}", mode, refresh)
            )
        await it.turn()
        await it.turns(1.0, every=0.05)
        assert [len(call.members) for call in it.caller.calls] == [3, 1]
        assert sorted(heard(it)) == [(f"run:{row}", "completed") for row in range(10)]
        by_receipt = {event.receipt: event.output for event in it.answers if isinstance(event, CallsAnswered)}
        assert by_receipt == {name: f'"{name}"'.encode() for name in "abcd"}

    played(tmp_path)  # type: ignore[arg-type]


@story()
async def test_R4_a_follower_whose_wait_is_over_leaves_the_call_and_the_other_run_alone(it: World) -> None:
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a", run="one")
    await it.turn()
    await it.asks("a", run="two")
    (due,) = it.wakes
    await it.turns(1.0, every=0.1)
    it.owner.inbox.command(due.command)
    await it.turn()
    assert heard(it) == [("two:a", "failed")]
    hang.ended.set()
    await it.turns(0.5)
    assert heard(it) == [("two:a", "failed"), ("one:a", "completed")]
    assert told(it) == [("a", "failed"), ("a", "completed")]
    assert len(it.caller.calls) == 1
