"""``python -m tests.bench.chaos``: workers, broker and provider are disturbed by a seed's plan while runs go on; all is checked.

Prints its seed first and one JSON line last; exits 1 when anything in ``wrong`` is named. The same seed is the same plan.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from schemas.plays import Play
from schemas.progress import MapProgress, MapRow, RunEvent
from schemas.states import TURN_KEY, TurnRecord
from streams.broker.local import LocalBroker
from streams.client import Client
from streams.engine.digest import Digests, digests_of
from streams.errors import Unreachable
from streams.public.publiclog import PublicLog
from streams.replay import Plan as ReplayPlan
from streams.replay import replay
from streams.sandbox.bill import read_bill
from streams.sandbox.settings import Settings as SandboxSettings
from streams.table import Store, StoreMemory
from tests.bench.chaosplan import CALLS_PER_SECOND, WORKERS, Action, Asked, Kind, Plan, plan_of
from tests.bench.chaosverdict import COLUMNS, ENDS, Found, RunFound, item_of, violations
from tests.support.evidence import read_evidence
from tests.support.system import System, WorkerProcess

#: What logs say of a defect; "Traceback" alone also comes with a library's own words about a broker that is away.
DEFECTS = ("ended in a defect", "StateError", "AssertionError", "KeyError", "InvalidStateError", "Fatal Python error")
SIZE = 5
#: How long a worker that is to be stopped may take to begin its work.
READY_SECONDS = 8.0
#: What was left to do when the plan ended must be done after this long.
SETTLE_SECONDS = 300.0
SHOWN_MAX = 20


def play_of(asked: Asked) -> Play:
    """Two columns of one lane: one in batches, one alone."""
    provider, what = ("keyed", "email") if asked.keyed else ("never", "phone")
    tools = {"batched": f"{provider}.{what}s", "single": f"{provider}.{what}"}
    columns = [{"name": name, "tool": tools[name], "input": {what: f"{{{{ row.{name}_of }}}}"}} for name in COLUMNS]
    return Play.model_validate({"name": asked.dataset, "key": ["id"], "columns": columns})


def rows_of(asked: Asked) -> list[dict[str, str]]:
    """Its rows: the same row in every run that has it."""
    return [
        {"id": str(index)} | {f"{column}_of": item_of(column, index, keyed=asked.keyed) for column in COLUMNS}
        for index in range(asked.first, asked.last)
    ]


class Chaos:
    """Carries out a plan on a system."""

    def __init__(self, system: System, broker: LocalBroker, plan: Plan) -> None:
        self.system = system
        self.broker = broker
        self.plan = plan
        self.done: Counter[str] = Counter()
        self.ends: list[int] = []
        self.runs: dict[int, str] = {}
        self._away: set[str] = set()
        self._broker_turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._began = 0.0

    async def carry_out(self) -> None:
        """Do all that the plan says; back when all is mended and every run is submitted."""
        self._began = time.monotonic()
        supervising = asyncio.create_task(self._supervise())
        try:
            for action in self.plan.actions:
                await asyncio.sleep(max(0.0, self._began + action.at - time.monotonic()))
                self._start(action)
            self._away.clear()
            for worker in self.system.workers.values():
                if worker.running:
                    worker.resume()
            await asyncio.gather(*self._tasks)
        finally:
            supervising.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(supervising, *self._tasks, return_exceptions=True)

    def _start(self, action: Action) -> None:
        match action.kind:
            case Kind.SUBMIT:
                self._tasks.append(asyncio.create_task(self._submit(self.plan.runs[action.run])))
            case Kind.KILL_BROKER | Kind.STOP_BROKER | Kind.PAUSE_BROKER:
                self._tasks.append(asyncio.create_task(self._disturb_broker(action)))
            case Kind.PROVIDER:
                assert self.system.sandbox is not None
                self.system.sandbox.set_faults(*action.faults)
                self.system.sandbox.set_settings(SandboxSettings(latency_ms=action.latency_ms))
            case _:
                self._disturb_worker(action)
        self.done[action.kind] += 1

    def _disturb_worker(self, action: Action) -> None:
        worker = self.system.workers[action.worker]
        if action.kind is Kind.JOIN:
            self._away.discard(action.worker)
        if not worker.running:
            return
        match action.kind:
            case Kind.KILL:
                worker.kill()
            case Kind.WIPE:
                worker.kill()
                # It may have been killed before it made one.
                shutil.rmtree(self.system.folder / action.worker, ignore_errors=True)
            case Kind.STOP | Kind.LEAVE:
                self._tasks.append(asyncio.create_task(self._stop_at_work(action, worker)))
            case Kind.PAUSE:
                worker.pause()
            case Kind.RESUME:
                worker.resume()

    async def _stop_at_work(self, action: Action, worker: WorkerProcess) -> None:
        """Stop a worker that has begun to work, if it does so soon: one that only begins to start has nothing to wind up."""
        pid = worker.pid
        with contextlib.suppress(AssertionError):
            await asyncio.to_thread(worker.wait_ready, READY_SECONDS)
        if worker.running and worker.pid == pid:
            if action.kind is Kind.LEAVE:
                self._away.add(action.worker)
            worker.terminate()

    async def _supervise(self) -> None:
        """Start again whatever has ended and is not away."""
        seen = dict.fromkeys(WORKERS, 0)
        while True:
            for name, worker in self.system.workers.items():
                if worker.running or worker.process is None:
                    continue
                if seen[name] != worker.pid:
                    seen[name] = worker.pid
                    self.ends.append(worker.wait())
                if name not in self._away:
                    self.system.worker(name)
            await asyncio.sleep(0.05)

    async def _submit(self, asked: Asked) -> None:
        name = f"run{asked.number}"
        while True:
            try:
                async with Client(self.system.settings) as client:
                    self.runs[asked.number] = await client.submit(play_of(asked), rows_of(asked), run=name)
                return
            except Unreachable:
                await asyncio.sleep(0.5)

    async def _disturb_broker(self, action: Action) -> None:
        async with self._broker_turn:
            running = await asyncio.to_thread(self.broker.status)
            if running is None:
                return
            match action.kind:
                case Kind.PAUSE_BROKER:
                    os.kill(running.pid, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(action.seconds)
                    finally:
                        os.kill(running.pid, signal.SIGCONT)
                    return
                case Kind.KILL_BROKER:
                    await asyncio.to_thread(self.broker.kill)
                case _:
                    await asyncio.to_thread(self.broker.stop)
            await asyncio.sleep(action.seconds)
            await asyncio.to_thread(self.broker.start, parent_pid=os.getpid())


async def follow(client: Client, run: str) -> list[MapProgress | RunEvent]:
    """All that is told of a run until its end."""
    while True:
        try:
            return [event async for event in client.progress(run)]
        except Unreachable:
            await asyncio.sleep(0.5)


async def settle(system: System, runs: Iterable[str], seconds: float) -> list[str]:
    """Wait for the end of all runs; those that do not end, with what was told of them last."""
    async with Client(system.settings) as client:

        async def one(run: str) -> str | None:
            try:
                await asyncio.wait_for(follow(client, run), seconds)
            except TimeoutError:
                view = await client.run(run)
                return f"{run} did not end in {seconds:g} s: {view}"
            return None

        return [line for line in await asyncio.gather(*(one(run) for run in runs)) if line]


async def look(system: System, chaos: Chaos) -> Found:
    """Read all that is there."""
    rows: dict[str, list[MapRow]] = defaultdict(list)
    samples: dict[str, list[MapProgress]] = defaultdict(list)
    ledgers: dict[str, list[RunEvent]] = defaultdict(list)
    log = PublicLog(system.settings)
    async for record in log.stored(log.all("map-rows", "map-progress", "run-events")):
        key = record.key.decode()
        match log.name_of(record):
            case "map-rows":
                rows[key].append(MapRow.model_validate_json(record.value))
            case "map-progress":
                samples[key].append(MapProgress.model_validate_json(record.value))
            case _:
                ledgers[key].append(RunEvent.model_validate_json(record.value))
    runs: list[RunFound] = []
    async with Client(system.settings) as client:
        for number, name in sorted(chaos.runs.items()):
            lines = [line async for line in client.rows(name)]
            runs.append(RunFound(name, chaos.plan.runs[number], ledgers[name], samples[name], lines))
    return Found(
        runs,
        rows,
        read_bill(system.folder / "bill.csv"),
        await read_evidence(system.settings),
        chaos.ends,
        [f"{worker.name}: {line}" for worker in system.workers.values() for line in defects(worker.text())],
    )


async def differing(system: System, folder: Path) -> list[str]:
    """Partitions of which the replay, the changelog and the newest live table are not alike; every worker has ended."""
    parts, _ = await asyncio.to_thread(replay, ReplayPlan(system.settings, folder, diff=True))
    wrong, memory = [], StoreMemory()
    for part in parts:
        name = f"{part.table}/{part.partition} at turn {part.turn}"
        if part.live is None or part.live.digests != part.digests:
            wrong.append(f"{name}: the changelog differs from the replay: {part.live}")
        lives: list[Digests] = []
        for worker in WORKERS:
            path = system.folder / worker / "tables" / part.table / str(part.partition)
            if path.exists():
                with contextlib.closing(Store(path, memory)) as store:
                    raw = store.get(TURN_KEY)
                    # Others hold what was there when they owned the partition.
                    if raw is not None and msgspec.msgpack.decode(raw, type=TurnRecord).turn == part.turn:
                        lives.append(digests_of(store.scan(b"")))
        if not lives or any(live != part.digests for live in lives):
            wrong.append(f"{name}: of its live tables {lives} none or not all are as the replay has it, {part.digests}")
    return wrong


def defects(text: str) -> list[str]:
    """Lines of a log that tell of a defect."""
    return [line[:300] for line in text.splitlines() if any(word in line for word in DEFECTS)]


def report(found: Found, wrong: list[str], chaos: Chaos, seconds: float) -> dict[str, object]:
    """The figures, and what is wrong."""
    statuses = Counter("none" if line.row is None else line.row.status for run in found.runs for line in run.lines)
    attempts = [attempt for numbered in found.evidence.attempts.values() for attempt in numbered.values()]
    return {
        "runs": len(found.runs),
        "rows": sum(len(run.lines) for run in found.runs),
        **{status: statuses[status] for status in ("completed", "failed", "skipped", "unknown")},
        "receipts": len(found.evidence.attempts),
        "attempts": len(attempts),
        "released": sum(attempt.released_ms is not None for attempt in attempts),
        "expired": sum(attempt.expired_ms is not None for attempt in attempts),
        "billed_items": len(found.bill),
        "done": dict(chaos.done),
        "worker_ends": {str(code): count for code, count in Counter(chaos.ends).items()},
        "seconds": round(seconds, 1),
        "wrong": wrong[:SHOWN_MAX],
        "wrong_count": len(wrong),
    }


async def run_chaos(broker: LocalBroker, folder: Path, plan: Plan, *, settle_seconds: float = SETTLE_SECONDS) -> dict[str, object]:
    """Start a system on ``broker``, carry out ``plan``, wait for the end of all runs and judge what is there."""
    bootstrap = (await asyncio.to_thread(broker.start, parent_pid=os.getpid())).bootstrap
    began = time.monotonic()
    async with System(bootstrap, folder, session_seconds=3, lease_seconds=3) as system:
        lane = {"concurrency": 4, "rate": f", requests_per_second = {CALLS_PER_SECOND}", "size": SIZE, "timeout": 3.0}
        sandbox = system.start_sandbox(latency_ms=50)
        system.providers.unlink()
        for name in ("keyed", "never"):
            system.add_provider(name, sandbox.url, **lane)
        for name in WORKERS:
            await asyncio.to_thread(system.worker(name).wait_ready)
        chaos = Chaos(system, broker, plan)
        await chaos.carry_out()
        async with system.supervised() as late_ends:
            late = await settle(system, chaos.runs.values(), settle_seconds)
            found = await look(system, chaos)
            wrong = violations(found)
            # A late value reaches its rows after the run's end; a row is not told within the same moment.
            deadline = time.monotonic() + 10
            while wrong and not late and time.monotonic() < deadline:
                await asyncio.sleep(1)
                found = await look(system, chaos)
                wrong = violations(found)
        wrong += [f"a worker ended with {code} after all was mended" for code, _ in late_ends if code not in ENDS]
        for worker in system.workers.values():
            worker.terminate()
        for worker in system.workers.values():
            await asyncio.to_thread(worker.wait)
        wrong += await differing(system, folder / "replay")
        return report(found, late + wrong, chaos, time.monotonic() - began)


def main() -> int:
    """Run it; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="disturbances of workers")
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    parser.add_argument("--keep", type=Path, help="an empty folder to leave logs, bill and broker data in")
    options = parser.parse_args()
    plan = plan_of(options.seed, kills=options.kills, seconds=options.seconds)
    print(f"seed {options.seed}", flush=True)
    if options.plan:
        print(*plan.runs, *plan.actions, sep="\n")
        return 0
    # Ctrl-C and SIGTERM end the processes that were started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    broker = LocalBroker(folder / "broker")
    try:
        figures = asyncio.run(run_chaos(broker, folder / "system", plan))
    finally:
        with contextlib.suppress(ProcessLookupError):
            broker.kill()
        if options.keep is None:
            shutil.rmtree(folder)
    print(json.dumps({"seed": options.seed} | figures))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
