"""The dispatcher in virtual time: an end for everything that was sent, judged by what its tool allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.events import (
    Ambiguous,
    AttemptEnded,
    CallsAnswered,
    Failed,
    Fault,
    Mode,
    Outcome,
    Repeat,
    Retry,
    ToolRequested,
    Value,
)
from schemas.states import RECEIPT
from streams.calling.calls import outcome_of
from streams.engine.retries import backoff_ms
from streams.errors import StateError, Unreachable
from streams.tools.port import Answered, CallReport, Doubtful, MemberOutcome, NotDone, ProviderCall, Refused
from tests.support.dispatch import LANE, World, story, told, world
from tests.support.scripted_caller import BUSY, LOST, NO, doubtful, not_done
from tests.support.virtual_time import play

# --- how calls end -----------------------------------------------------------------------------------------------------


@story()
async def test_U1_an_ambiguous_end_is_never_repeated_for_a_tool_that_says_so(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("a", "never")
    await it.turns(30.0, every=0.2)
    assert it.caller.asked == ["a"]
    assert told(it) == [("a", "unknown")]


@story()
async def test_case_A2_an_ambiguous_end_is_repeated_under_the_same_key_where_the_provider_honours_keys(it: World) -> None:
    it.caller.scripts.extend([doubtful, doubtful])
    await it.asks("a", "key")
    await it.turns(5.0, every=0.05)
    assert it.caller.asked == ["a", "a", "a"]
    assert len({call.idempotency_key for call in it.caller.calls}) == 1
    assert told(it) == [("a", "completed")]


@story()
async def test_K5_a_definite_no_for_now_is_repeated_as_a_new_operation(it: World) -> None:
    it.caller.scripts.append(not_done)
    await it.asks("a", "never")
    await it.turns(3.0, every=0.05)
    assert it.caller.asked == ["a", "a"]
    assert len({call.idempotency_key for call in it.caller.calls}) == 2
    assert told(it) == [("a", "completed")]


@story(attempts_max=3)
async def test_P2_repeats_are_bounded_and_end_as_a_repairable_failure(it: World) -> None:
    it.caller.scripts.extend([not_done] * 9)
    await it.asks("a")
    await it.turns(60.0, every=0.2)
    assert len(it.caller.calls) == 3
    (answer,) = it.answers
    assert isinstance(answer, CallsAnswered)
    assert answer.fault is not None
    assert answer.fault.repairable
    assert "given up after 3 attempts" in answer.fault.message


@story()
async def test_case_F5_members_of_one_call_end_each_in_its_own_way(it: World) -> None:
    def mixed(call: ProviderCall) -> CallReport:
        outcomes: dict[str, MemberOutcome] = {"a": Answered(b"1"), "b": NotDone(BUSY), "c": Refused(NO)}
        return CallReport(tuple(outcomes[part.receipt] for part in call.members))

    it.caller.scripts.append(mixed)
    await it.asks("abc", "once")
    await it.turns(3.0, every=0.05)
    assert it.caller.asked == ["abc", "b"]
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed"), ("c", "failed")]


@story()
async def test_K6_a_batch_with_an_ambiguous_end_is_repeated_as_it_was_with_new_arrivals_left_out(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("abc", "batch")
    await it.turn()
    await it.asks("d", "batch")
    await it.turns(3.0, every=0.05)
    first, *rest = it.caller.calls
    (second,) = [call for call in rest if len(call.members) == 3]
    assert second.members == first.members
    assert (second.idempotency_key, second.request_id) == (first.idempotency_key, first.request_id)
    assert sorted(it.caller.asked) == ["abc", "abc", "d"]


@story()
async def test_K6_a_repeated_batch_carries_members_that_have_settled_meanwhile_in_their_old_places(it: World) -> None:
    """Else its key would name another operation, and a provider that honours keys would work again."""

    def half(call: ProviderCall) -> CallReport:
        outcomes: dict[str, MemberOutcome] = {"a": Doubtful(LOST), "b": Answered(b"1"), "c": Doubtful(LOST)}
        return CallReport(tuple(outcomes[part.receipt] for part in call.members))

    it.caller.scripts.append(half)
    await it.asks("abc", "batch")
    await it.turns(3.0, every=0.05)
    first, second = it.caller.calls
    assert second.members == first.members
    assert second.idempotency_key == first.idempotency_key
    claim = it.claims[1]
    assert sorted(part.receipt for part in claim.members) == ["a", "c"]
    assert [part.receipt for part in claim.payload] == ["a", "b", "c"]
    assert len([end for end in it.ends if end.receipt == "b"]) == 1
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed"), ("c", "completed")]


@story()
async def test_K5_a_refreshed_receipt_is_called_under_a_key_of_its_own(it: World) -> None:
    await it.asks("a", "key")
    await it.turns(0.5)
    await it.asks("a", "key", run="again", mode=Mode.FULL_REFRESH)
    await it.turns(0.5)
    assert len(it.caller.calls) == 2
    assert it.caller.calls[0].idempotency_key != it.caller.calls[1].idempotency_key


@story()
async def test_a_large_input_reaches_the_provider_like_a_small_one(it: World) -> None:
    large = b'"' + b"x" * 5_000 + b'"'
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.never", Repeat.NEVER, large))
    await it.turns(0.2)
    assert it.caller.calls[0].members[0].input == large


@story()
async def test_a_tool_that_is_not_in_this_workers_file_is_refused_without_a_call(it: World) -> None:
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.gone", Repeat.NEVER, b"{}"))
    it.say("tool-requests", ToolRequested("b", "run:b", "run", 0, "org/nobody", "nobody.gone", Repeat.NEVER, b"{}"))
    await it.turns(0.5)
    assert it.caller.calls == []
    assert sorted(told(it)) == [("a", "failed"), ("b", "failed")]


@pytest.mark.parametrize("when", ["claim", "completion"])
def test_B11_a_broker_that_cannot_be_reached_ends_the_worker_and_no_answer_is_lost(tmp_path: Path, when: str) -> None:
    async def broken() -> None:
        async with world(tmp_path) as it:
            if when == "claim":
                it.log.trouble = Unreachable("no broker")
            await it.asks("a")
            it.log.trouble = Unreachable("no broker")
            await it.turn()
            assert it.failures == []
            # It was tried again after 1, 3 and 9 seconds, and then for no longer (S3).
            await it.passes(13.5)
            assert {str(failure) for failure in it.failures} == {"no broker"}
            it.failures.clear()
            kept = [end.receipt for _, events in it.journal.unpublished() for end in events]
            assert kept == ([] if when == "claim" else ["a"])

    play(broken())


@story()
async def test_B11_a_receipt_that_is_to_be_called_but_is_not_there_ends_the_worker_loudly_even_from_a_timer(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("a", "key")
    await it.turn()
    await it.turn()
    for key in [key for key in it.table.reader.data if key.startswith(RECEIPT)]:
        del it.table.reader.data[key]
    await it.passes(5.0)
    assert [type(failure) for failure in it.failures] == [StateError]
    it.failures.clear()


@story()
async def test_S5_values_that_are_kept_aside_are_counted(it: World) -> None:
    await it.asks("a")
    await it.turn()
    it.say("receipt-completions", AttemptEnded("a", 1, 0, "zombie", Value(b'"other"')))
    await it.turn()
    assert it.dispatcher.stale_values == 1


# --- outcomes ----------------------------------------------------------------------------------------------------------


NOW, JITTER = 1_000.0, 0.5


def later(tries: int) -> int:
    return int(NOW * 1000) + backoff_ms(tries, jitter=JITTER)


def given_up(tries: int) -> Failed:
    return Failed(Fault(BUSY.code, f"{BUSY.message} (given up after {tries} attempts)", True))


CLOSED = Fault("http_503", "closed")


@pytest.mark.parametrize(
    ("outcome", "repeat", "tries", "event"),
    [
        (Answered(b"1"), Repeat.NEVER, 1, Value(b"1")),
        (Answered(b"null"), Repeat.FREELY, 9, Value(b"null")),
        (Refused(NO), Repeat.FREELY, 1, Failed(NO)),
        (Refused(CLOSED), Repeat.NEVER, 9, Failed(CLOSED)),
        # Not done: worth another attempt whatever the tool allows, since nothing was billed.
        (NotDone(CLOSED), Repeat.NEVER, 1, Retry(CLOSED, later(1))),
        (NotDone(CLOSED), Repeat.WITH_KEY, 4, Retry(CLOSED, later(4))),
        (NotDone(CLOSED, 0.1), Repeat.NEVER, 1, Retry(CLOSED, later(1))),
        (NotDone(CLOSED, 60.0), Repeat.NEVER, 1, Retry(CLOSED, int((NOW + 60) * 1000))),
        (NotDone(CLOSED), Repeat.FREELY, 5, Failed(Fault("http_503", "closed (given up after 5 attempts)", True))),
        # A provider that is merely busy gets more patience.
        (NotDone(BUSY, 3.0), Repeat.NEVER, 5, Retry(BUSY, later(5))),
        (NotDone(BUSY, 3.0), Repeat.NEVER, 19, Retry(BUSY, later(19))),
        (NotDone(BUSY, 3.0), Repeat.NEVER, 20, given_up(20)),
        (NotDone(BUSY), Repeat.NEVER, 9, Retry(BUSY, later(9))),
        (NotDone(BUSY), Repeat.NEVER, 10, given_up(10)),
        # Doubtful: only a tool that may be repeated is, and no more often than the budget allows.
        (Doubtful(LOST), Repeat.NEVER, 1, Ambiguous(LOST, used_up=True)),
        (Doubtful(LOST), Repeat.NEVER, 9, Ambiguous(LOST, used_up=True)),
        (Doubtful(LOST), Repeat.WITH_KEY, 1, Ambiguous(LOST, later(1))),
        (Doubtful(LOST), Repeat.FREELY, 4, Ambiguous(LOST, later(4))),
        (Doubtful(LOST), Repeat.WITH_KEY, 5, Ambiguous(LOST, used_up=True)),
        (Doubtful(LOST), Repeat.FREELY, 6, Ambiguous(LOST, used_up=True)),
    ],
)
def test_P2_U1_how_an_end_is_judged(outcome: MemberOutcome, repeat: Repeat, tries: int, event: Outcome) -> None:
    assert outcome_of(outcome, repeat, tries, 5, NOW, JITTER) == event
