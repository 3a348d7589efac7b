"""Python tools that block in threads, as they should: none of their calls waits for a thread, and nobody waits for theirs (U2)."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from schemas.providers import Providers
from streams.app import THREADS_MAX, THREADS_MIN, _run, build_caller, threads_of
from streams.errors import Unreachable
from streams.settings import Settings
from streams.tools.lookup import HttpLookUp
from tests.pure.test_resolving import Watched
from tests.support.raw_server import FINE, SECRET, call_of, calling, sends, serving
from tests.support.scripted_python import HERE, providers_of

#: Calls in flight where a provider's pace says nothing.
CALLS = 50


async def test_U2_a_worker_has_a_thread_for_each_call_that_python_tools_may_have_in_flight(tmp_path: Path) -> None:
    """It had six on two cores. Of 50 calls that blocked for half a second, under a limit of three, 19 never began: *unknown*."""
    providers = providers_of()
    settings = Settings(broker="127.0.0.1:1", data=tmp_path)
    environment = {"KEY": SECRET}
    caller, look_up = build_caller(settings, providers, environment), HttpLookUp(providers, environment=environment)
    loop = asyncio.get_running_loop()
    try:
        assert await _run(settings, providers, caller, look_up) == Unreachable.exit_code
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await caller.close()
    barrier = threading.Barrier(CALLS, timeout=30)  # it opens when all are there at once
    await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(CALLS)))


def python_provider(**pace: Any) -> dict[str, Any]:
    return {"kind": "python", "account": "a", "pace": pace, "tools": {"t": {"entry_point": f"{HERE}:lookup"}}}


@pytest.mark.parametrize(
    ("providers", "threads"),
    [
        ({}, THREADS_MIN),
        ({"h": {"base_url": "http://a.example", "tools": {"t": {"path": "/"}}}}, THREADS_MIN),
        ({"a": python_provider(concurrency=3), "b": python_provider(concurrency=2)}, THREADS_MIN + 4 * 5),
        ({"a": python_provider()}, THREADS_MIN + 4 * CALLS),
        ({"a": python_provider(concurrency=1000)}, THREADS_MAX),
    ],
)
def test_U2_threads_follow_the_ceilings_of_python_providers_and_are_bounded(providers: dict[str, Any], threads: int) -> None:
    assert threads_of(Providers.model_validate({"providers": providers})) == threads


async def test_U2_a_providers_name_is_resolved_while_python_tools_hold_all_threads() -> None:
    """Its call was given up with *no connection in time*: the name waited for a thread that somebody's blocking code had."""
    held, own = threading.Event(), Watched(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(own)
    blocking = asyncio.create_task(asyncio.to_thread(held.wait, 60))
    try:
        async with serving(sends(FINE)) as server:
            server.url = server.url.replace("127.0.0.1", "localhost")
            async with calling(server, timeout_seconds=20.0) as caller:
                report = await caller.call(call_of())
    finally:
        held.set()
    assert await blocking
    assert report.outcomes[0].__class__.__name__ == "Answered"
    assert own.used == 1
    assert isinstance(own, ThreadPoolExecutor)
