"""``paidonce dev``: broker, sandbox and one worker stay up until Ctrl-C, and come back when they die.

A stage to try things on; nothing here is meant for production.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path

import typer

from streams.cli.options import options_of
from streams.cli.processes import WorkerProcess
from streams.cli.stage import Pace, Stage
from streams.cli.terminal import put, say
from streams.errors import Unreachable, UsageError
from streams.settings import Settings

ROWS = 2_000
LOOK_SECONDS = 0.5
BROKER_LOOK_SECONDS = 5.0
RESTART_SECONDS_MAX = 10.0
#: A worker that lived this long is started again at once when it dies.
LIVED_SECONDS = 60.0


def dev(context: typer.Context) -> int:
    """Keep a broker, the sandbox provider and a worker up until Ctrl-C, in the data folder."""
    options = options_of(context)
    if options.broker is not None:
        raise UsageError("dev starts a broker of its own; with another, run paidonce worker --broker")
    settings = options.settings(find_broker=False)
    settings.data.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_dev(settings))


async def _dev(settings: Settings) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    folder = settings.data.resolve()
    async with Stage(folder, rows=ROWS, pace=Pace(requests_per_second=50), settings=settings) as stage:
        worker = WorkerProcess(stage.settings, folder / "worker.log", stage.base)
        worker.start()
        try:
            _tell(stage, settings.data)
            await _supervise(stage, worker, stopping)
        finally:
            say("stopping")
            await asyncio.to_thread(worker.stop)
    return 0


def _tell(stage: Stage, data: Path) -> None:
    say(f"broker, sandbox and worker are up; Ctrl-C ends them. The worker logs to {stage.folder}/worker.log")
    say("Next, in another terminal:")
    option = "" if data == Settings.model_fields["data"].default else f" --data {data}"
    put(f"paidonce run submit {stage.play} --rows {stage.contacts} --watch{option}")
    put(f"paidonce run list{option}")
    put(f"export PAIDONCE_BROKER={stage.settings.broker}")


async def _supervise(stage: Stage, worker: WorkerProcess, stopping: asyncio.Event) -> None:
    pause = 1.0
    looked = started = time.monotonic()
    while not await _set_within(stopping, LOOK_SECONDS):
        now = time.monotonic()
        if worker.exit_code is not None:
            say(f"the worker ended with exit code {worker.exit_code}. {worker.tail()}")
            say(f"starting another in {pause:g} s")
            if await _set_within(stopping, pause):
                return
            # One that keeps dying is not started in a tight loop.
            pause = min(pause * 2, RESTART_SECONDS_MAX) if now - started < LIVED_SECONDS else 1.0
            worker.start()
            started = time.monotonic()
        if not stage.sandbox.running:
            say("the sandbox ended; starting it again")
            await asyncio.to_thread(stage.restart_sandbox)
        if now - looked > BROKER_LOOK_SECONDS:
            looked = now
            if not await stage.broker_answers():
                raise Unreachable(f"the broker is gone; its log is {stage.folder}/broker/broker.log")


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
