"""Putting a worker together: settings, providers, dispatcher and the three agents, and running it until it is told to stop.

The only module that sees everything; seen only by the command line and by tests.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from schemas.fetch import FETCH
from schemas.providers import Providers, PythonProvider
from streams.agents.receipts import receipts_agent
from streams.agents.rows import rows_agent
from streams.agents.runs import runs_agent
from streams.calling.journal import AnswerJournal
from streams.calling.outbox import EventPublisher
from streams.dispatcher import Dispatcher
from streams.engine.runsweep import RunSweepPolicy
from streams.engine.sweep import SweepPolicy
from streams.engine.waits import Waits
from streams.settings import Settings
from streams.tools.fetch import FetchCaller
from streams.tools.http import HttpCaller
from streams.tools.lookup import HttpLookUp, LookUp
from streams.tools.port import Caller
from streams.tools.python import PythonCaller
from streams.tools.routing import RoutedCaller
from streams.userfiles import load_providers
from streams.worker import Worker

log = logging.getLogger(__name__)


#: The loop's own threads: asyncio's own measure, and the most that one process is to have of them.
THREADS_MIN = 32
THREADS_MAX = 1024
#: Organisations whose calls to one Python provider may all block at once without waiting for each other.
LANES_PER_PROVIDER = 4


class KillSwitch:
    """Kills its own process at a named step, after it has passed that step a given number of times; harmless without a step."""

    def __init__(self, step: str | None, passes: int) -> None:
        self._step = step
        self._left = passes

    def __call__(self, step: str) -> None:
        """A step was reached."""
        if step != self._step:
            return
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def waits_of(settings: Settings, providers: Providers) -> Waits:
    """How long followers wait for calls of other runs (R4)."""
    by_tool = {
        f"{name}.{tool_name}": tool.max_wait_ms
        for name, provider in providers.providers.items()
        for tool_name, tool in provider.tools.items()
        if tool.max_wait_ms is not None
    }
    return Waits(settings.receipt_wait_ms, by_tool)


def build_worker(settings: Settings, providers: Providers, caller: Caller, look_up: LookUp | None = None) -> Worker:
    """A worker with its dispatcher, ready to run in the current event loop."""
    checkpoint = KillSwitch(settings.kill_at, settings.kill_after)
    settings.data.mkdir(parents=True, exist_ok=True)
    specs = [
        runs_agent(providers, settings.partitions),
        rows_agent(run_sweep_policy(settings)),
        receipts_agent(waits_of(settings, providers), sweep_policy(settings)),
    ]
    worker = Worker(settings, specs, checkpoint=checkpoint)
    worker.companion = Dispatcher(
        settings,
        providers,
        caller,
        EventPublisher(settings.connection(), settings.topic_prefix, on_published=worker.handover.published),
        AnswerJournal(settings.data / "answers.journal"),
        fail=worker.fail,
        look_up=look_up,
        checkpoint=checkpoint,
    )
    return worker


def sweep_policy(settings: Settings) -> SweepPolicy:
    """How long settled receipts and their callers are kept."""
    return SweepPolicy(
        every_ms=int(settings.sweep_seconds * 1000),
        callers_keep_ms=int(settings.callers_keep_hours * 3_600_000),
        receipts_keep_ms=int(settings.receipts_keep_days * 86_400_000),
    )


def run_sweep_policy(settings: Settings) -> RunSweepPolicy:
    """How long the rows of a run are kept once it has ended, beside the sheet: as long as its callers are."""
    return RunSweepPolicy(every_ms=int(settings.sweep_seconds * 1000), keep_ms=int(settings.callers_keep_hours * 3_600_000))


def threads_of(providers: Providers) -> int:
    """Threads that the loop may use at once: one for each call that Python tools may have in flight, and some for all else.

    A tool that blocks is to do it in one of them, and while its call waits for one, the call's own time runs out: what never began
    would be in doubt. A thread is begun only when no other one is free. Every organisation has lanes of its own, so that the
    providers' ceilings are counted several times.
    """
    calls = sum(provider.pace.ceiling for provider in providers.providers.values() if isinstance(provider, PythonProvider))
    return min(THREADS_MAX, THREADS_MIN + calls * LANES_PER_PROVIDER)


def build_caller(settings: Settings, providers: Providers, environment: Mapping[str, str]) -> Caller:
    """What calls all tools of a providers file. Raises ``ConfigurationError`` for what could not be called."""
    http = HttpCaller(
        providers,
        environment=environment,
        response_bytes_max=settings.response_bytes_max,
        call_seconds=settings.call_seconds,
    )
    fetch = FetchCaller(providers, environment=environment, call_seconds=settings.call_seconds)
    python = PythonCaller(providers, environment=environment, call_seconds=settings.call_seconds)
    return RoutedCaller({FETCH: fetch, **dict.fromkeys(python.providers, python)}, default=http)


def run_worker(settings: Settings, environment: Mapping[str, str] = os.environ) -> int:
    """Run a worker until SIGTERM or SIGINT; returns its exit code. Raises ``ConfigurationError``."""
    providers = Providers() if settings.providers is None else load_providers(settings.providers)
    caller = build_caller(settings, providers, environment)
    look_up = HttpLookUp(providers, environment=environment, response_bytes_max=settings.response_bytes_max)
    _install_uvloop()
    # Records live in bounded caches and die by reference counting; frequent full collections would only walk over them.
    gc.set_threshold(100_000, 20, 100)
    # The consumer's thread decodes fetches for milliseconds; a turn that waits for the interpreter meanwhile is late.
    sys.setswitchinterval(0.001)
    return asyncio.run(_run(settings, providers, caller, look_up))


async def _run(settings: Settings, providers: Providers, caller: Caller, look_up: LookUp) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(threads_of(providers), thread_name_prefix="worker"))
    worker = build_worker(settings, providers, caller, look_up)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    worker.on_change = lambda: log.info(
        "owns %d partitions, read %d changelog records", len(worker.actors), worker.recovered_records
    )
    return await worker.run()


def _install_uvloop() -> None:
    """A faster event loop, where it installs; Faust's consumer thread gets one too."""
    try:
        import uvloop
    except ImportError:
        return
    uvloop.install()
