"""The Python caller, held to the contract of the HTTP caller: what is billed or may be is never called unbilled."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from schemas.events import Ambiguous, Failed, Repeat, Retry
from streams.calling.calls import outcome_of
from streams.tools import port
from streams.tools.port import Answered, CallMember, Doubtful, ProviderCall
from streams.tools.python import BatchCall, PythonCaller, ToolCall
from tests.support.scripted_python import SECRET, call_of, calls, do, fault_of, fresh, opened, providers_of, release, value
from tests.support.wait import eventually


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


@pytest.mark.parametrize("depth", [250, 900])
async def test_P2_R10_a_result_that_is_nested_too_deeply_is_not_paid_for_again_and_says_so(depth: int) -> None:
    """A function that may be repeated *freely* was paid five times for what no receipt keeps, and people read only ``[0][0][0``."""
    nested = json.loads("[" * depth + "]" * depth)
    async with opened(repeat="freely") as caller:
        report = await caller.call(call_of(value(nested)))
    (outcome,) = report.outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.message.startswith("acme.lookup: the result is no JSON: nested deeper than 200 levels (at $[0]")
    assert outcome_of(outcome, Repeat.FREELY, 1, 5, 0.0, 0.5) == Ambiguous(outcome.fault, used_up=True)


# --- calls for one -----------------------------------------------------------------------------------------------------


async def test_P1_a_function_gets_input_key_request_deadline_and_secrets_and_its_answer_is_the_output() -> None:
    async with opened(timeout_seconds=7.5) as caller:
        report = await caller.call(call_of(value({"a": [1, None, "é"]})))
    assert report.outcomes == (Answered('{"a":[1,null,"é"]}'.encode()),)
    assert report.lane_pause_seconds is None
    [call] = calls
    assert isinstance(call, ToolCall)
    assert call.input == value({"a": [1, None, "é"]})
    assert (call.idempotency_key, call.request_id, call.deadline_seconds) == ("key-1", "request-1", 7.5)
    assert dict(call.secrets) == {"api_key": SECRET}
    assert SECRET not in repr(call)


async def test_B10_none_is_no_result() -> None:
    async with opened(batch={}) as caller:
        assert (await caller.call(call_of(value(None)))).outcomes == (Answered(b"null"),)
        whole = await caller.call(call_of(value(None, shape="whole"), value(1)))
    assert whole.outcomes == (Answered(b"null"),) * 2


async def test_case_D3_integers_keep_their_digits() -> None:
    async with opened() as caller:
        report = await caller.call(call_of(value(98765432109876543210)))
    assert report.outcomes == (Answered(b"98765432109876543210"),)


async def test_R5_refused_is_a_no_that_billed_nothing_and_says_whether_a_person_can_mend_it() -> None:
    async with opened() as caller:
        final = await caller.call(call_of(do("refuse")))
        mendable = await caller.call(call_of(do("refuse", repairable=True)))
        returned = await caller.call(call_of(do("return_refused")))
    assert all(isinstance(report.outcomes[0], port.Refused) for report in (final, mendable, returned))
    assert [fault_of(report).repairable for report in (final, mendable, returned)] == [False, True, False]
    assert fault_of(final).code == "no_such_domain"
    assert fault_of(final).message == "acme.lookup: no domain for [secret]"


@pytest.mark.parametrize(
    ("asked", "wait"), [(2.0, 2.0), (0, 0.0), (None, None), (-1, None), (1e9, 3600.0), (1e300, 3600.0), ("soon", None)]
)
async def test_U4_P3_not_done_is_tried_again_and_pauses_the_lane(asked: Any, wait: float | None) -> None:
    async with opened() as caller:
        report = await caller.call(call_of(do("not_done", seconds=asked)))
    [outcome] = report.outcomes
    assert isinstance(outcome, port.NotDone)
    assert outcome.retry_after_seconds == report.lane_pause_seconds == wait
    assert (outcome.fault.code, outcome.fault.repairable) == ("not_done", True)
    # Whatever the tool allows: nothing was billed.
    assert isinstance(outcome_of(outcome, Repeat.NEVER, 1, 3, 0.0, 0.5), Retry)


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("raise", "raised", "ConnectionResetError: with [secret] on the way"),
        ("exit", "raised", "sys.exit(3)"),
        ("interrupt", "raised", "it raised KeyboardInterrupt"),  # B11: it ended the process, with all calls in flight
        ("cancel", "cancelled", "before it had a result"),
        ("objects", "bad_result", ""),  # its set, or that a batch's result is no list
        ("hang", "deadline", "no result within 0.05 s"),
        ("raise_late", "raised", "ValueError: cut off"),
        ("unheard of", "raised", "AssertionError"),
    ],
)
async def test_U1_whatever_else_goes_wrong_may_have_been_billed(what: str, code: str, words: str) -> None:
    seconds = 0.05 if what in ("hang", "raise_late") else 30.0
    async with opened(timeout_seconds=seconds, batch={}) as caller:
        report = await caller.call(call_of(do(what)))
        whole = await caller.call(call_of(do(what, shape="whole"), value(1)))
    assert len(whole.outcomes) == 2
    for outcome in (*report.outcomes, *whole.outcomes[:1]):
        assert isinstance(outcome, Doubtful)
        assert outcome.fault.code == code
        assert outcome.fault.message.startswith("acme.lookup: ")
        assert words in outcome.fault.message
        assert SECRET not in outcome.fault.message
        assert isinstance(outcome_of(outcome, Repeat.NEVER, 1, 3, 0.0, 0.5), Ambiguous)
        again = outcome_of(outcome, Repeat.WITH_KEY, 1, 3, 0.0, 0.5)
        assert isinstance(again, Ambiguous)
        assert again.not_before_ms > 0
    assert len(calls) == 2


async def test_R10_a_result_that_is_no_json_or_carries_a_secret_is_told_and_not_kept() -> None:
    async with opened() as caller:
        objects = fault_of(await caller.call(call_of(do("objects"))))
        leak = fault_of(await caller.call(call_of(do("leak"))))
        spared = await caller.call(call_of(value("sk-very")))
    assert objects.message == "acme.lookup: the result is no JSON: a set has no order, so no one text; send a sorted list (at $.a)"
    assert (leak.code, leak.message) == ("secret_in_output", "acme.lookup: the result carries a secret")
    assert spared.outcomes == (Answered(b'"sk-very"'),)


# --- time --------------------------------------------------------------------------------------------------------------


async def test_P5_what_a_function_still_says_when_its_time_is_over_is_heard() -> None:
    async with opened(timeout_seconds=0.02) as caller:
        paid = await caller.call(call_of(do("answer_late")))
        spared = await caller.call(call_of(do("not_done_late")))
    assert paid.outcomes == (Answered(b'"paid"'),)
    assert isinstance(spared.outcomes[0], port.NotDone)


async def test_P5_no_call_outlives_the_time_of_all_calls() -> None:
    caller = PythonCaller(providers_of(timeout_seconds=600), environment={"KEY": SECRET}, call_seconds=0.02)
    report = await caller.call(call_of(do("hang")))
    assert fault_of(report).message == "acme.lookup: no result within 0.02 s"
    assert calls[0].deadline_seconds == 0.02


async def test_P5_a_function_that_will_not_be_cancelled_holds_up_nobody_but_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(timeout_seconds=0.02, end_seconds=0.02, abandoned_max=2) as caller:
        for _ in range(2):
            report = await caller.call(call_of(do("stay")))
            assert isinstance(report.outcomes[0], Doubtful)
            assert "goes on although it was cancelled" in fault_of(report).message
        stuck = await caller.call(call_of(value(1)))
        assert isinstance(stuck.outcomes[0], port.NotDone)
        assert fault_of(stuck).code == "stuck"
        assert len(calls) == 2
        release()
        await eventually("both have ended", lambda: _gone("tool/request-1"))
        assert (await caller.call(call_of(value(1)))).outcomes == (Answered(b"1"),)
    assert caplog.records == []


def _gone(name: str) -> bool:
    return all(task.get_name() != name for task in asyncio.all_tasks())


async def test_cancelling_a_call_cancels_its_function() -> None:
    async with opened() as caller:
        call = asyncio.ensure_future(caller.call(call_of(do("hang"))))
        await eventually("the function runs", lambda: calls)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually("it has ended", lambda: _gone("tool/request-1"))


async def test_closing_ends_calls_in_flight_as_doubtful_and_makes_no_more() -> None:
    async with opened() as caller:
        call = asyncio.ensure_future(caller.call(call_of(do("hang"))))
        await eventually("the function runs", lambda: calls)
        await caller.close()
        assert isinstance((await call).outcomes[0], Doubtful)
        closed = await caller.call(call_of(value(1)))
    assert isinstance(closed.outcomes[0], port.NotDone)
    assert fault_of(closed).code == "closed"
    assert len(calls) == 1


# --- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"match": "key"}])
async def test_B4_a_batch_is_one_call_and_each_member_has_its_own_output(form: dict[str, Any]) -> None:
    shape = "mapping" if form else "list"
    async with opened(batch=form) as caller:
        report = await caller.call(call_of(*[value(place, shape=shape) for place in range(4)]))
        alone = await caller.call(call_of(value(2)))
    assert report.outcomes == tuple(Answered(str(place).encode()) for place in range(4))
    # P9: batched or not alike.
    assert alone.outcomes[0] == report.outcomes[2]
    batch, single = calls
    assert isinstance(batch, BatchCall)
    assert isinstance(single, ToolCall)  # B5
    assert batch.inputs == tuple(value(place, shape=shape) for place in range(4))
    assert batch.keys == tuple(f"receipt-{place}" for place in range(4))
    assert (batch.idempotency_key, batch.request_id, batch.deadline_seconds) == ("key-1", "request-1", 60.0)  # B8
    assert SECRET not in repr(batch)


@pytest.mark.parametrize("shape", ["short", "long"])
async def test_B6_too_few_or_too_many_results_by_position_are_nobodys(shape: str) -> None:
    async with opened(batch={}) as caller:
        report = await caller.call(call_of(*[value(place, shape=shape) for place in range(3)]))
    assert [type(outcome) for outcome in report.outcomes] == [Doubtful] * 3
    assert {fault_of(report, place).code for place in range(3)} == {"results_mismatch"}


async def test_B6_by_key_the_unmatched_have_no_result_and_nobody_gets_his_neighbours() -> None:
    async with opened(batch={"match": "key"}) as caller:
        report = await caller.call(call_of(*[value(place, shape="unmatched") for place in range(3)]))
    assert report.outcomes == (Answered(b"0"), Answered(b"1"), Answered(b"null"))


@pytest.mark.parametrize(("match", "shape"), [("position", "mapping"), ("key", "list")])
async def test_B6_results_of_the_other_form_are_doubtful_for_all(match: str, shape: str) -> None:
    async with opened(batch={"match": match}) as caller:
        report = await caller.call(call_of(value(1, shape=shape), value(2)))
    assert [fault_of(report, place).code for place in range(2)] == ["bad_result", "bad_result"]
    assert all(isinstance(outcome, Doubtful) for outcome in report.outcomes)


async def test_case_F5_what_becomes_of_one_member_stays_with_it() -> None:
    async with opened(batch={}) as caller:
        inputs = [value(0), do("refuse"), do("not_done", seconds=5), do("raise"), do("objects"), do("leak"), value(None), value(7)]
        report = await caller.call(call_of(*inputs))
    kinds = [Answered, port.Refused, port.NotDone, Doubtful, Doubtful, Doubtful, Answered, Answered]
    assert [type(outcome) for outcome in report.outcomes] == kinds
    assert report.outcomes[-1] == Answered(b"7")
    # One member's wish is no word on the provider as a whole.
    assert report.lane_pause_seconds is None
    assert SECRET not in repr(report)


@pytest.mark.parametrize(("what", "kind"), [("refuse", port.Refused), ("return_refused", port.Refused), ("not_done", port.NotDone)])
async def test_B7_what_is_said_of_a_batch_holds_for_all_its_members(what: str, kind: type) -> None:
    async with opened(batch={}) as caller:
        report = await caller.call(call_of(do(what, shape="whole", seconds=4), value(1), value(2)))
    assert [type(outcome) for outcome in report.outcomes] == [kind] * 3
    assert report.lane_pause_seconds == (4.0 if what == "not_done" else None)


async def test_what_cannot_be_called_is_told_without_a_call() -> None:
    async with opened() as caller:
        unknown = await caller.call(ProviderCall("acme.absent", (CallMember("r", b"{}"),), False, "k", "i"))
        several = await caller.call(call_of(value(1), value(2)))
        crowd = await caller.call(call_of(value(1), value(2), batched=False))
    assert [fault_of(report).code for report in (unknown, several, crowd)] == ["unknown_tool", "bad_call", "bad_call"]
    assert len(several.outcomes) == len(crowd.outcomes) == 2
    async with opened() as caller:
        garbled = await caller.call(ProviderCall("acme.lookup", (CallMember("r", b"{"),), False, "k", "i"))
    assert fault_of(garbled).code == "bad_input"
    assert all(
        isinstance(outcome_of(report.outcomes[0], Repeat.NEVER, 1, 3, 0, 0), Failed)
        for report in (unknown, several, crowd, garbled)
    )
    assert calls == []
