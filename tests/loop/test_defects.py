"""What a call ends with that no provider means: a defect in what calls it (B11), and an answer that nobody may keep (R10)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from schemas.events import Ambiguous, Fault, Repeat, ToolRequested
from schemas.providers import Providers
from streams.calling.guarded import Guarded
from streams.engine.compile import lane_of
from streams.errors import PaidonceError, StateError
from streams.loudly import called
from streams.tools.dialing import Dialing
from streams.tools.fetch import FetchCaller
from streams.tools.port import Answered, CallMember, CallReport, JobUnderWay, ProviderCall
from streams.tools.results import withheld
from tests.support.dispatch import World, story, told
from tests.support.resolving import Scripted
from tests.support.scripted_caller import Hangs, ScriptedCaller, raises
from tests.support.wait import eventually

DEFECT = Fault("defect", "p.{}: a defect in what calls it: RuntimeError; the worker's log has its traceback")


def defect(tool: str) -> Fault:
    return Fault(DEFECT.code, DEFECT.message.format(tool))


def doubts(it: World) -> list[Fault]:
    """Why calls are in doubt."""
    return [end.outcome.fault for end in it.ends if isinstance(end.outcome, Ambiguous)]


def short(_call: ProviderCall) -> CallReport:
    return CallReport((Answered(b"1"),))


@story()
async def test_B11_a_defect_in_a_caller_is_unknown_where_a_call_may_not_be_repeated(it: World) -> None:
    """The worker used to end; its lease ran out, the next worker took the row and ended too, and so on: no other row was done."""
    it.caller.scripts.append(raises)
    await it.asks("ab")
    await it.turns(1.0, every=0.05)
    assert it.failures == []
    assert sorted(told(it)) == [("a", "unknown"), ("b", "completed")]
    assert doubts(it) == [defect("never")]
    assert len(it.caller.calls) == 2


@story(attempts_max=3)
async def test_B11_P2_a_call_that_may_be_repeated_meets_its_defect_within_bounds(it: World) -> None:
    it.caller.scripts.extend([raises] * 50)
    await it.asks("a", "key")
    await it.turns(60.0, every=0.2)
    assert (it.failures, told(it)) == ([], [("a", "unknown")])
    assert len(it.caller.calls) == 3
    assert it.ends[-1].outcome == Ambiguous(defect("key"), used_up=True)
    assert it.dispatcher._partitions[0].lanes["org/p"].in_flight == 0


@story()
async def test_B11_each_member_of_a_batch_that_met_a_defect_is_in_doubt(it: World) -> None:
    it.caller.scripts.append(raises)
    await it.asks("abc", "once")
    await it.turns(1.0, every=0.05)
    assert sorted(told(it)) == [("a", "unknown"), ("b", "unknown"), ("c", "unknown")]
    assert doubts(it) == [defect("once")] * 3


@story()
async def test_B11_a_report_with_too_few_outcomes_is_a_defect_and_gives_nobody_anothers_result(it: World) -> None:
    it.caller.scripts.append(short)
    await it.asks("abc", "once")
    await it.turns(1.0, every=0.05)
    assert it.failures == []
    assert {how for _, how in told(it)} == {"unknown"}
    assert {fault.message for fault in doubts(it)} == {"p.once: a defect in what calls it: 1 outcomes for 3 members"}


@story()
async def test_B11_P10_a_defect_in_a_question_about_a_job_submits_nothing_again(it: World) -> None:
    it.caller.scripts.extend([lambda _: CallReport((), None, 0.0, JobUnderWay("J", 1.0)), raises])
    await it.asks("a", "job")
    await it.turns(10.0, every=0.1)
    assert [call.job for call in it.caller.calls] == [None, "J", "J"]
    assert told(it) == [("a", "completed")]


@story()
async def test_B11_an_error_of_ours_still_ends_the_worker(it: World) -> None:
    def broken(_call: ProviderCall) -> CallReport:
        raise StateError("the state contradicts itself")

    it.caller.scripts.append(broken)
    await it.asks("a")
    await it.turn()
    assert [str(failure) for failure in it.failures] == ["the state contradicts itself"]
    it.failures.clear()


async def test_B11_V3_a_defect_is_logged_with_its_traceback_and_its_text_is_in_no_event(caplog: pytest.LogCaptureFixture) -> None:
    caller = ScriptedCaller()
    caller.scripts.append(raises)
    call = ProviderCall("p.t", (CallMember("r1", b"{}"), CallMember("r2", b"{}")), True, "key", "request")
    with caplog.at_level(logging.ERROR):
        report = await Guarded(caller).call(call)
    (said,) = caplog.records
    assert said.getMessage() == "a call of p.t for receipt r1 and 1 more ended in a defect"
    assert "RuntimeError: a defect in p.t" in caplog.text
    assert "Traceback" in caplog.text
    assert [outcome.fault for outcome in report.outcomes if not isinstance(outcome, Answered)] == [defect("t")] * 2


async def test_B11_a_cancelled_call_is_cancelled() -> None:
    caller = ScriptedCaller()
    caller.scripts.append(hang := Hangs())
    call = asyncio.create_task(Guarded(caller).call(ProviderCall("p.t", (CallMember("r", b"{}"),), False, "key", "request")))
    await eventually("it is being called", lambda: caller.calls)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert hang.cancelled


async def shared_connection_is_gone(_call: ProviderCall) -> CallReport:
    """As where a caller waits for something that it shares with others, and somebody else cancels that."""
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    await shared
    raise AssertionError


@story(pace={"concurrency": 1})
async def test_B11_P5_a_call_that_is_cancelled_from_within_is_in_doubt_and_leaves_its_place(it: World) -> None:
    """B11: the task of the call ended without a word. Its caller waited for ever, its place in the lane was never free again."""
    it.caller.scripts.append(shared_connection_is_gone)
    await it.asks("a")
    await it.turn()
    await it.asks("b")
    await it.turns(8.0, every=0.1)
    assert it.failures == []
    assert (it.caller.asked, sorted(told(it))) == (["a", "b"], [("a", "unknown"), ("b", "completed")])
    assert [fault.code for fault in doubts(it)] == ["defect"]
    assert it.dispatcher._partitions[0].lanes["org/p"].in_flight == 0


@story()
async def test_B11_P10_a_question_about_a_job_that_is_cancelled_from_within_is_asked_again(it: World) -> None:
    it.caller.scripts.extend([lambda _: CallReport((), None, 0.0, JobUnderWay("J", 1.0)), shared_connection_is_gone])
    await it.asks("a", "job")
    # Less than its lease, which was the only thing that ended such a call.
    await it.turns(2.9, every=0.05)
    assert [call.job for call in it.caller.calls] == [None, "J", "J"]
    assert told(it) == [("a", "completed")]


@story()
async def test_B11_a_call_that_is_cancelled_from_within_the_dispatcher_ends_the_worker(it: World) -> None:
    async def slot(_flight: object) -> bool:
        raise asyncio.CancelledError

    it.dispatcher.calls._slot = slot
    await it.asks("a")
    await it.turn()
    assert [str(failure) for failure in it.failures] == ["the dispatcher failed in a call of p.never: it was cancelled from within"]
    it.failures.clear()


@story()
async def test_B11_a_defect_as_a_timer_looks_at_a_lane_ends_the_worker(it: World) -> None:
    """Only our own errors did; any other one went to the loop's log, and the lane stood still from then on."""

    def plan(_now: float) -> None:
        raise ZeroDivisionError

    await it.asks("a", "batch")
    it.dispatcher._partitions[0].lanes["org/p"].plan = plan  # type: ignore[assignment, method-assign]
    await it.passes(1.0)
    assert [str(failure) for failure in it.failures] == ["looking at lane org/p ended in a defect: ZeroDivisionError()"]
    it.failures.clear()


def test_B11_our_own_error_in_a_timer_ends_the_worker_as_it_is() -> None:
    failures: list[PaidonceError] = []

    def broken() -> None:
        raise StateError("the state contradicts itself")

    called(failures.append, "looking", broken)
    called(failures.append, "looking", failures.append, StateError("said by who was called"))
    assert [str(failure) for failure in failures] == ["the state contradicts itself", "said by who was called"]


@story()
async def test_R10_an_answer_that_can_never_be_kept_is_paid_for_once_whatever_its_tool_allows(it: World) -> None:
    """A tool that may be repeated was called ``attempts_max`` times for a result that no receipt may hold."""

    def leaks(call: ProviderCall) -> CallReport:
        outcome = withheld(b'"sk-very-secret"', ["sk-very-secret"])
        assert outcome is not None
        return CallReport((outcome,) * len(call.members))

    it.caller.scripts.extend([leaks] * 9)
    await it.asks("a", "key")
    await it.turns(30.0, every=0.2)
    assert (len(it.caller.calls), told(it)) == (1, [("a", "unknown")])


@story()
async def test_F4_B11_a_row_with_a_name_that_is_none_fails_alone_and_ends_no_worker(it: World) -> None:
    """``http://xn--a/`` in one row ended every worker: the libraries raise their own errors where such a name is made readable."""
    fetch = FetchCaller(Providers(), environment={}, dialing=Dialing(resolver=lambda: Scripted({})))
    it.caller.scripts.extend([fetch.call] * 9)
    lane = lane_of("org", "fetch")
    for receipt, host in (("a", "xn--a"), ("b", "x" * 64 + ".com"), ("c", "a..b")):
        asked = b'{"method":"GET","url":"http://%s/"}' % host.encode()
        it.say("tool-requests", ToolRequested(receipt, f"run:{receipt}", "run", 0, lane, "fetch.get", Repeat.FREELY, asked))
    await it.turn()
    await it.turns(1.0, every=0.1)
    await fetch.close()
    assert it.failures == []
    assert sorted(told(it)) == [("a", "failed"), ("b", "failed"), ("c", "failed")]
    assert len(it.caller.calls) == 3
