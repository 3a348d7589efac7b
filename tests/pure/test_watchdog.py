"""The watchdog names what has stalled, and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from streams.watchdog import Watchdog, end_by
from tests.support.wait import eventually


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
    looks: list[float] = []

    def seen_now() -> float:
        looks.append(time.monotonic())
        return looks[-1]

    watchdog = Watchdog(check_seconds=0.02, end=ended.append)
    watchdog.expect("probe", seen_now, 2.0)
    watchdog.start(asyncio.get_running_loop(), loop_limit_seconds=2.0)
    await eventually("its thread has looked several times", lambda: len(looks) >= 5)
    watchdog.stop()
    assert ended == []


def test_L7_a_stop_that_does_not_end_says_so_and_ends_with_its_exit_code() -> None:
    """It ended without a word: who read the log saw a worker that stopped in the middle of its stop."""
    script = (
        "import logging, threading\n"
        "from streams.watchdog import end_by\n"
        "logging.basicConfig(format='%(levelname)s %(message)s')\n"
        "end_by(0.1, 42)\n"
        "threading.Event().wait(20)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 42
    assert ended.stderr == "CRITICAL the stop did not finish in 0.1 s; ending with exit code 42\n"


def test_L7_a_stop_that_ends_in_time_is_not_cut_off() -> None:
    timer = end_by(0.2, 42)
    timer.cancel()
    timer.join(5)
    assert not timer.is_alive()
