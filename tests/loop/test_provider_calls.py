"""Provider calls in virtual time: what keys they carry, what they share, how they are repeated, and jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from pathlib import Path

from schemas import address
from schemas.events import CallsAnswered, Mode, Repeat, ToolRequested
from streams.engine.lanes import JOIN_SECONDS
from tests.support.dispatch import LANE, Hangs, World, doubtful, not_done, play, world

Story = Callable[[World], Coroutine[None, None, None]]


def story(**options: object) -> Callable[[Story], Callable[[Path], None]]:
    """A test that is played in virtual time, with a world made with these options."""

    def decorate(told: Story) -> Callable[[Path], None]:
        async def play_it(folder: Path) -> None:
            async with world(folder, **options) as it:
                await told(it)

        @functools.wraps(told)
        def test(tmp_path: Path) -> None:
            play(play_it(tmp_path))

        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would take the story's own parameters for fixtures
        return test

    return decorate


def told(it: World) -> list[tuple[str, str]]:
    """What callers were told, by receipt."""
    return [(event.receipt, event.answer.value) for event in it.answers if isinstance(event, CallsAnswered)]


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
