"""Provider calls in virtual time: what keys they carry, what they share, how they are repeated, and jobs."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import address
from schemas.events import Ambiguous, CallsAnswered, Event, Fault, JobStarted, Mode, Repeat, ToolRequested
from streams.engine.buckets import JOIN_SECONDS
from streams.engine.effects import Queued
from streams.errors import Unreachable
from streams.tools.port import CallReport, JobUnderWay, ProviderCall, Refused
from tests.support.dispatch import LANE, World, story, told
from tests.support.scripted_caller import Hangs, doubtful, not_done


def keys(it: World) -> list[str]:
    return [call.idempotency_key for call in it.caller.calls]


# --- keys of forced calls -----------------------------------------------------------------------------------


@story()
async def test_K5_a_force_is_an_operation_of_its_own_and_its_repeats_converge(it: World) -> None:
    await it.asks("a", "key")
    await it.turns(0.5)
    it.caller.scripts.extend([doubtful, doubtful])
    await it.asks("a", "key", run="forced", mode=Mode.FULL_REFRESH)
    await it.turns(5.0, every=0.05)
    first, *forced = keys(it)
    assert len(forced) == 3
    (key,) = set(forced)
    assert first == address.provider_key("a", 0, 1)
    assert key == address.provider_key("a", 1, 2, invocation=("refresh", "refresh-forced"))


@story()
async def test_K5_two_forces_are_two_operations(it: World) -> None:
    for run in ("one", "two"):
        await it.asks("a", "key", run=run, mode=Mode.FULL_REFRESH)
        await it.turns(0.5)
    assert len(set(keys(it))) == 2


@story()
async def test_K5_a_force_that_is_reclaimed_by_another_owner_keeps_its_key(it: World) -> None:
    hangs = Hangs()
    it.caller.scripts.append(hangs)
    await it.asks("a", "key", run="forced", mode=Mode.FULL_REFRESH)
    await it.turns(0.2)
    # The process that called is gone for good: only its claim is there.
    it.dispatcher.calls._tasks.clear()
    await it.revoked()
    await it.returns()
    await it.turns(10.0, every=0.1)
    hangs.ended.set()
    first, again = keys(it)
    assert first == again
    assert told(it) == [("a", "completed")]


@story()
async def test_K5_K6_forced_members_of_a_batch_are_keyed_by_what_forced_them(it: World) -> None:
    await it.asks("ab", "batch", run="one", mode=Mode.FULL_REFRESH)
    await it.turns(0.5)
    await it.asks("ab", "batch", run="two", mode=Mode.FULL_REFRESH)
    await it.turns(0.5)
    one, two = it.caller.calls
    assert [len(call.members) for call in (one, two)] == [2, 2]
    assert one.idempotency_key != two.idempotency_key


# --- sharing ------------------------------------------------------------------------------------------------


async def in_bucket(it: World, names: str, bucket: str, *, continues: bool = False) -> None:
    for name in names:
        asked = ToolRequested(
            name, f"run:{name}", "run", 0, LANE, "p.batch", Repeat.WITH_KEY, b"{}", Mode.NORMAL, None, bucket, continues
        )
        it.say("tool-requests", asked)
    await it.turn()


@story()
async def test_B4_requests_of_two_buckets_are_two_calls(it: World) -> None:
    await in_bucket(it, "ab", "de")
    await in_bucket(it, "cd", "fr")
    await it.turns(1.0)
    assert sorted(it.caller.asked) == ["ab", "cd"]


@story()
async def test_B1_rows_that_continue_on_an_idle_lane_share_a_call_after_5_ms(it: World) -> None:
    began = it.time.now
    await in_bucket(it, "ab", "", continues=True)
    await it.turns(0.1, every=0.001)
    assert it.caller.asked == ["ab"]
    assert JOIN_SECONDS <= it.caller.at[0] - began < 0.05


@story(pace={"burst": 1})
async def test_B9_four_batches_are_under_way_where_the_pace_says_nothing(it: World) -> None:
    hanging = [Hangs() for _ in range(6)]
    it.caller.scripts.extend(hanging)
    for number in range(6):
        await in_bucket(it, f"{'abcdef'[number]}{'ghijkl'[number]}", str(number))
    await it.turns(0.5, every=0.05)
    assert [len(call.members) for call in it.caller.calls] == [2] * 4
    hanging[0].ended.set()
    await it.turns(0.5, every=0.05)
    assert len(it.caller.calls) == 5
    for hangs in hanging:
        hangs.ended.set()
    await it.turns(1.0, every=0.05)
    assert len(it.caller.calls) == 6
    assert it.dispatcher._partitions[0].lanes[LANE].batches == 0


@story(pace={"burst": 1})
async def test_B9_up_to_fifty_single_calls_are_under_way_where_the_pace_says_nothing(it: World) -> None:
    it.caller.scripts.extend([Hangs() for _ in range(60)])
    names = [chr(0x4E00 + number) for number in range(60)]
    await it.asks("".join(names))
    await it.turns(0.3, every=0.05)
    assert len(it.caller.calls) == 50


# --- retries ------------------------------------------------------------------------------------------------


@story(attempts_max=4)
async def test_P8_how_often_a_call_was_tried_survives_a_restart(it: World) -> None:
    it.caller.scripts.extend([not_done] * 9)
    await it.asks("a")
    for made in (1, 2):
        while len(it.caller.calls) < made:
            await it.turns(0.05)
        await it.turn()
        await it.revoked()
        await it.returns()
    assert len(it.caller.calls) < 4
    await it.turns(60.0, every=0.2)
    assert len(it.caller.calls) == 4
    (answer,) = it.answers
    assert isinstance(answer, CallsAnswered)
    assert answer.fault is not None
    assert "given up after 4 attempts" in answer.fault.message


@story()
async def test_P8_an_operation_that_is_in_doubt_keeps_its_identity_over_a_restart(it: World) -> None:
    it.caller.scripts.extend([doubtful, doubtful])
    await it.asks("a", "key")
    await it.turns(0.1, every=0.02)
    await it.revoked()
    await it.returns()
    await it.turns(5.0, every=0.05)
    assert len(it.caller.calls) == 3
    assert len({(call.idempotency_key, call.request_id) for call in it.caller.calls}) == 1


# --- jobs ---------------------------------------------------------------------------------------------------


def goes_on(call: ProviderCall) -> CallReport:
    return CallReport((), None, 0.0, JobUnderWay(call.job or "J", 1.0))


def refused(call: ProviderCall) -> CallReport:
    return CallReport((Refused(Fault("unknown_tool", "no such tool", True)),))


def started(it: World) -> list[JobStarted]:
    return it.log.of("receipt-claims", JobStarted)


@story()
async def test_P10_a_job_is_one_call_submitted_once_and_asked_for_until_it_ends(it: World) -> None:
    it.caller.scripts.extend([goes_on, goes_on, goes_on])
    await it.asks("a", "job")
    await it.turns(5.0, every=0.1)
    assert [call.job for call in it.caller.calls] == [None, "J", "J", "J"]
    assert len({call.idempotency_key for call in it.caller.calls}) == 1
    assert it.dispatcher.calls.made == 1
    assert told(it) == [("a", "completed")]
    assert started(it) == [JobStarted("a", 1, it.claims[0].lease, "J")]


@story()
async def test_P10_a_jobs_name_is_acknowledged_before_anybody_asks_for_it(it: World) -> None:
    it.caller.scripts.append(goes_on)
    await it.asks("a", "job")
    it.log.before = lambda topic, events: it.log.acknowledges.clear() if isinstance(events[0], JobStarted) else None
    await it.turns(20.0, every=0.5)
    assert (len(it.caller.calls), len(started(it))) == (1, 1)
    it.log.acknowledges.set()
    await it.turns(3.0, every=0.1)
    assert [call.job for call in it.caller.calls] == [None, "J"]
    assert told(it) == [("a", "completed")]


@story()
async def test_P10_a_job_that_outlives_many_leases_keeps_its_lease_and_its_slot(it: World) -> None:
    it.caller.scripts.extend([goes_on] * 20)
    await it.asks("a", "job")
    await it.turns(19.0, every=0.1)
    assert (len(it.claims), it.dispatcher._partitions[0].lanes[LANE].in_flight) == (1, 1)
    await it.turns(3.0, every=0.1)
    assert told(it) == [("a", "completed")]


@story()
async def test_P10_after_the_loss_of_a_worker_the_next_one_asks_on_and_submits_nothing(it: World) -> None:
    it.caller.scripts.extend([goes_on, Hangs()])
    await it.asks("a", "job")
    await it.turns(1.5, every=0.1)
    assert len(it.caller.calls) == 2
    # The process is gone: nobody renews its lease.
    it.dispatcher.calls._tasks.clear()
    await it.revoked()
    await it.returns()
    await it.turns(10.0, every=0.1)
    assert [call.job for call in it.caller.calls] == [None, "J", "J"]
    assert (it.claims[1].job, it.claims[1].members[0].op) == ("J", 1)
    assert told(it) == [("a", "completed")]


@story()
async def test_P10_a_stop_leaves_the_job_to_whoever_comes_next_at_once_and_uses_up_no_try(it: World) -> None:
    it.caller.scripts.extend([goes_on] * 3)
    await it.asks("a", "job")
    await it.turns(1.5, every=0.1)
    await it.dispatcher.stop()
    (end,) = it.ends
    assert end.outcome == Ambiguous(Fault("stopped", "p.job: the worker stopped while job J was under way"))
    assert it.released == []
    it.log.running = True
    outbox = it.table.turn([end])
    (queued,) = [effect for effect in outbox.effects if isinstance(effect, Queued)]
    assert (queued.need.n, queued.need.op, queued.need.not_before_ms) == (2, 1, 0)


@story(attempts_max=3)
async def test_P10_P2_a_refused_question_is_repeated_within_bounds_and_then_unknown_but_never_submitted_again(it: World) -> None:
    it.caller.scripts.extend([goes_on, *[refused] * 9])
    await it.asks("a", "job")
    await it.turns(60.0, every=0.2)
    assert [call.job for call in it.caller.calls] == [None, "J", "J", "J"]
    assert told(it) == [("a", "unknown")]


@story()
async def test_P10_a_job_that_does_not_end_within_its_deadline_is_unknown(it: World) -> None:
    it.caller.scripts.extend([goes_on] * 100)
    await it.asks("a", "job")
    await it.turns(80.0, every=0.5)
    assert told(it) == [("a", "unknown")]
    assert 55 <= len(it.caller.calls) <= 62
    (end,) = it.ends
    assert isinstance(end.outcome, Ambiguous)
    assert end.outcome.fault.message == "p.job: job J has not ended within 60 s"


@story()
async def test_U1_P10_a_submission_whose_answer_is_lost_is_unknown_and_not_submitted_again(it: World) -> None:
    it.caller.scripts.append(doubtful)
    await it.asks("a", "job")
    await it.turns(10.0, every=0.2)
    assert len(it.caller.calls) == 1
    assert told(it) == [("a", "unknown")]


@story()
async def test_P10_a_job_whose_name_cannot_be_published_ends_the_worker_and_is_not_asked_for(it: World) -> None:
    it.caller.scripts.append(goes_on)

    def gone(topic: str, events: Sequence[Event]) -> None:
        if isinstance(events[0], JobStarted):
            raise Unreachable("no broker")

    it.log.before = gone
    await it.asks("a", "job")
    await it.turns(3.0, every=0.2)
    assert len(it.caller.calls) == 1
    assert [str(failure) for failure in it.failures] == ["no broker"]
    it.failures.clear()


# --- on whose behalf ----------------------------------------------------------------------------------------


@story()
async def test_P1_a_call_says_which_runs_ask_for_it(it: World) -> None:
    await it.asks("a", "batch", run="one")
    await it.asks("b", "batch", run="two")
    await it.asks("c", "batch", run="one")
    await it.turns(0.5, every=0.05)
    (call,) = it.caller.calls
    assert len(call.members) == 3
    assert sorted(call.runs) == ["one", "two"]
