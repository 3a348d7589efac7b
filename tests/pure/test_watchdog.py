"""The watchdog names what has stalled, and nothing else."""

from __future__ import annotations

import asyncio
import time

from streams.watchdog import Watchdog
from tests.support.wait import until


def test_a_sign_of_life_within_its_limit_is_no_stall() -> None:
    watchdog = Watchdog()
    watchdog.expect("fetcher", lambda: 100.0, 5.0)
    assert watchdog.stalled(104.9) is None


def test_what_is_silent_for_too_long_is_named_with_its_limit() -> None:
    watchdog = Watchdog()
    watchdog.expect("loop", lambda: 109.0, 5.0)
    watchdog.expect("fetcher", lambda: 100.0, 5.0)
    reason = watchdog.stalled(110.0)
    assert reason is not None
    assert "fetcher" in reason
    assert "limit 5 s" in reason


async def test_a_blocked_event_loop_is_noticed_from_the_thread() -> None:
    ended: list[str] = []
    watchdog = Watchdog(check_seconds=0.05, end=ended.append)
    watchdog.start(asyncio.get_running_loop(), loop_limit_seconds=0.2)
    end = time.monotonic() + 2
    while not ended and time.monotonic() < end:
        pass
    assert ended
    assert "event loop" in ended[0]


async def test_a_loop_that_runs_is_left_alone() -> None:
    ended: list[str] = []
    watchdog = Watchdog(check_seconds=0.02, end=ended.append)
    watchdog.start(asyncio.get_running_loop(), loop_limit_seconds=2.0)
    begun = time.monotonic()

    async def watched_for_a_while() -> bool:
        return time.monotonic() - begun > 0.3

    await until("it was watched for a while", watched_for_a_while)
    watchdog.stop()
    assert ended == []
