"""``paidonce demo``: contacts to paid results over real Kafka, with a worker killed on the way.

It shows that nothing is paid twice or lost; the provider's own bill is the judge, not our counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from schemas.progress import Counts, MapProgress, RunEvent
from streams.cli.outcome import Outcome, Tally, show_outcome
from streams.cli.processes import WorkerProcess
from streams.cli.stage import Pace, Stage
from streams.cli.terminal import LiveBar, put_json, say
from streams.client import Client
from streams.errors import PaidonceError
from streams.public.rowfile import read_rows, write_export
from streams.settings import Settings
from streams.userfiles import load_play

ROWS = 2_000
#: How long the provider's pace makes it take: long enough to see a kill in the midst of it.
PACED_SECONDS = 5.0
#: A little less than 40 %: a sample of the progress is some way behind.
KILL_AT = 0.36
LEASE_SECONDS = SESSION_SECONDS = 3.0
GIVE_UP_SECONDS = 120.0
LOOK_SECONDS = 0.2


def demo(
    rows: Annotated[int, typer.Option("--rows", min=1, max=10_000_000, help="Contacts to check.")] = ROWS,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where everything is kept; default a new temporary one.")] = None,
) -> int:
    """Contacts to paid results over real Kafka, the worker killed on the way, nothing paid twice."""
    where = Path(tempfile.mkdtemp(prefix="paidonce-demo-")) if folder is None else folder.resolve()
    where.mkdir(parents=True, exist_ok=True)
    outcome = asyncio.run(_demo(where, rows))
    for fault in outcome.faults:
        say(f"paidonce: {fault}")
    if json:
        put_json(outcome.as_json())
    else:
        show_outcome(outcome)
    return 1 if outcome.faults else 0


async def _demo(folder: Path, rows: int) -> Outcome:
    fresh = not (folder / "bill.csv").exists()
    settings = Settings(lease_seconds=LEASE_SECONDS, session_seconds=SESSION_SECONDS)
    pace = Pace.lasting(rows, PACED_SECONDS)
    say(f"starting Kafka, a sandbox provider and a worker in {folder}")
    async with Stage(folder, rows=rows, pace=pace, settings=settings) as stage:
        worker = WorkerProcess(stage.settings, folder / "worker.log", stage.base)
        worker.start()
        try:
            async with Client(stage.settings) as client:
                began = time.monotonic()
                run = await client.submit(load_play(stage.play), read_rows(stage.contacts))
                last, kills = await _to_the_end(client, run, worker, rows)
                seconds = time.monotonic() - began
                tally, export = Tally(), folder / "results.csv"
                with await client.sheet(run) as sheet:
                    write_export(export, list(sheet.fields), sheet.computed, tally.passing(sheet))
        finally:
            await asyncio.to_thread(worker.stop)
        bill = await asyncio.to_thread(stage.sandbox.summary)
    counts = last.counts or Counts()
    return Outcome(rows, fresh, last, counts, tally, bill, kills, seconds, export, pace.batch_size_max)


async def _to_the_end(client: Client, run: str, worker: WorkerProcess, rows: int) -> tuple[RunEvent, int]:
    """Follow the run, kill its worker on the way, and give up on one that ends by itself."""
    following = asyncio.create_task(_follow(client, run, worker))
    watching = asyncio.create_task(_death(worker))
    try:
        limit = GIVE_UP_SECONDS + rows / 500
        await asyncio.wait({following, watching}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            return following.result()
        what = f"ended with exit code {worker.exit_code}" if watching.done() else f"did not end it in {limit:g} s"
        raise PaidonceError(f"run {run}: the worker {what}. {worker.tail()}")
    finally:
        for task in (following, watching):
            task.cancel()
        await asyncio.gather(following, watching, return_exceptions=True)


async def _follow(client: Client, run: str, worker: WorkerProcess) -> tuple[RunEvent, int]:
    kills = 0
    with LiveBar("contacts") as bar:
        async with contextlib.aclosing(client.progress(run)) as events:
            async for event in events:
                last = event
                if not isinstance(event, MapProgress):
                    continue
                bar.show(event)
                done, total = event.counts.done, event.counts.total
                if not kills and total and KILL_AT <= done / total < 1:
                    # No await in between, or the one who looks for its death would see this one.
                    worker.kill()
                    worker.start()
                    kills = 1
                    bar.note(f"worker killed with SIGKILL at {done:,} of {total:,} rows; another one takes over")
    assert isinstance(last, RunEvent)
    return last, kills


async def _death(worker: WorkerProcess) -> None:
    while worker.exit_code is None:  # noqa: ASYNC110  # a process sets no event
        await asyncio.sleep(LOOK_SECONDS)
