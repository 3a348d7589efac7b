"""``python -m tests.bench.soak``: one long run over two workers that are killed again and again, and the bill at its end.

Prints one JSON object; exits 1 when anything in it is wrong: something billed twice, a row lost or in two states, a row unknown
whose call was not under way when a kill fell. With ``--repeat never`` the provider ignores idempotency keys.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from schemas.plays import Play
from schemas.progress import MapRow, RunEvent
from streams.broker.local import LocalBroker
from streams.client import Client
from streams.public.publiclog import PublicLog
from streams.public.sheet import SheetLine
from streams.sandbox import Summary
from tests.support.evidence import Evidence, read_evidence
from tests.support.system import System

#: Calls per second and items per call, in each of two lanes: a row goes through one after the other.
CALLS_PER_SECOND, SIZE = 8, 5
#: The run is to last about as long as it is told to, kills and all; they cost it a part of its pace.
USED = 0.75
WORKERS = ("w1", "w2")
FINAL = ("completed", "failed", "skipped")


@dataclass
class Kills:
    """What was done to the workers, and what they did by themselves; times are Unix milliseconds."""

    at_ms: list[int] = field(default_factory=list)
    own_ends: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """All that is there at the end."""

    end: RunEvent
    lines: list[SheetLine]
    states: dict[str, list[str]]
    bill: Summary
    evidence: Evidence
    kills: Kills
    seconds: float


def soaked_play(repeat: str) -> Play:
    """Two columns in two lanes, so that both workers have calls under way."""
    tool, what = ("emails", "email") if repeat == "with-key" else ("phones", "phone")
    columns = [
        {"name": f"c{place}", "tool": f"{provider}.{tool}", "input": {what: f"{{{{ row.{what}{place} }}}}"}}
        for place, provider in enumerate(("sandbox", "second"))
    ]
    return Play.model_validate({"name": "soak", "key": ["id"], "columns": columns})


def rows_of(count: int) -> list[dict[str, str]]:
    """Rows of which no two cells ask for the same."""
    return [
        {"id": str(index)}
        | {f"email{place}": f"p{index}.{place}@example.com" for place in (0, 1)}
        | {f"phone{place}": f"+49 30 {index:07d}{place}" for place in (0, 1)}
        for index in range(count)
    ]


async def kill_workers(system: System, moments: Sequence[float], dice: random.Random, kills: Kills) -> None:
    """SIGKILL one of the workers at each of these moments (seconds from now), and start it again."""
    began = time.monotonic()
    due = list(moments)
    while True:
        for name, worker in system.workers.items():
            if not worker.running:
                kills.own_ends.append(worker.wait())
                system.worker(name)
        if due and time.monotonic() - began >= due[0]:
            due.pop(0)
            name = dice.choice(WORKERS)
            worker = system.workers[name]
            if worker.running:
                worker.kill()
                kills.at_ms.append(time.time_ns() // 1_000_000)
                system.worker(name)
        await asyncio.sleep(0.02)


async def states_of(system: System, run: str) -> dict[str, list[str]]:
    """The statuses that each row had, in the order in which they were published."""
    log = PublicLog(system.settings)
    found: dict[str, list[str]] = {}
    async for record in log.stored(log.all("map-rows")):
        row = MapRow.model_validate_json(record.value)
        if row.run == run:
            found.setdefault(row.key, []).append(row.status)
    return found


async def soak(bootstrap: str, folder: Path, options: argparse.Namespace) -> Ended:
    """The run, its kills, and what is there at its end."""
    dice = random.Random(options.seed)
    rows = rows_of(int(options.seconds * CALLS_PER_SECOND * SIZE * USED))
    moments = sorted(dice.uniform(0.02, 0.9) * options.seconds * USED for _ in range(options.kills))
    kills = Kills()
    async with System(bootstrap, folder, session_seconds=3, lease_seconds=3) as system:
        pace = f", requests_per_second = {CALLS_PER_SECOND}"
        lane = {"repeat": options.repeat, "concurrency": 4, "rate": pace, "size": SIZE}
        sandbox = system.start_sandbox(latency_ms=150, **lane)
        system.add_provider("second", sandbox.url, **lane)
        for name in WORKERS:
            await asyncio.to_thread(system.worker(name).wait_ready)
        began = time.monotonic()
        async with Client(system.settings) as client:
            run = await client.submit(soaked_play(options.repeat), rows)
            killing = asyncio.create_task(kill_workers(system, moments, dice, kills))
            try:
                end, _ = await system.finish(client, run, seconds=options.seconds * 4 + 120)
            finally:
                killing.cancel()
                await asyncio.wait([killing])
            seconds = time.monotonic() - began
            lines = [line async for line in client.rows(run)]
        states = await states_of(system, run)
        return Ended(end, lines, states, sandbox.summary(), await read_evidence(system.settings), kills, seconds)


def report(ended: Ended, options: argparse.Namespace) -> dict[str, object]:
    """The figures; ``wrong`` names those that are not as they must be."""
    counts = ended.end.counts
    assert counts is not None
    rows = [line.row for line in ended.lines]
    by_status = {status: sum(row is not None and row.status == status for row in rows) for status in (*FINAL, "unknown")}
    lost = sum(row is None or row.status not in (*FINAL, "unknown") for row in rows) + (counts.total or 0) - len(rows)
    two_states = sum(len({status for status in states if status in FINAL}) > 1 for states in ended.states.values())
    unknown = [
        cell.receipt
        for row in rows
        if row is not None
        for cell in row.cells.values()
        if cell.status == "unknown" and cell.receipt is not None
    ]
    not_granted = [receipt for receipt in unknown if not ended.evidence.lost_in_flight(receipt, ended.kills.at_ms)]
    figures: dict[str, object] = {
        "repeat": options.repeat,
        "rows": len(rows),
        "completed": by_status["completed"],
        "failed": by_status["failed"],
        "unknown": by_status["unknown"],
        "billed_items": ended.bill.billed_items,
        "billed_twice": ended.bill.billed_twice,
        "kills": len(ended.kills.at_ms),
        "rows_lost": lost,
        "rows_in_two_states": two_states,
        "unknown_not_granted": len(not_granted),
        "worker_ends": ended.kills.own_ends,
        "seconds": round(ended.seconds, 1),
        "seed": options.seed,
    }
    must_be = {
        "failed": 0,
        "billed_twice": 0,
        "kills": options.kills,
        "rows_lost": 0,
        "rows_in_two_states": 0,
        "unknown_not_granted": 0,
        "worker_ends": [],
        **({"unknown": 0} if options.repeat == "with-key" else {}),
    }
    wrong = [name for name, value in must_be.items() if figures[name] != value]
    told = (counts.completed, counts.failed, counts.unknown)
    if told != (by_status["completed"], by_status["failed"], by_status["unknown"]):
        wrong.append(f"the run counts {told} as completed, failed and unknown")
    if ended.bill.billed_items < 2 * by_status["completed"]:
        wrong.append("more values than the provider has billed")
    return figures | {"wrong": wrong}


def main() -> int:
    """Run it; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--repeat", choices=("with-key", "never"), default="with-key")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs, bill and broker data")
    options = parser.parse_args()
    # Ctrl-C and SIGTERM end the processes that were started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    local = LocalBroker(folder / "broker")
    running = local.start(parent_pid=os.getpid())
    try:
        figures = report(asyncio.run(soak(running.bootstrap, folder / "system", options)), options)
    finally:
        local.kill()
        if options.keep:
            print(f"kept {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    print(json.dumps(figures))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
