"""``make bench``: the project's figures as JSON lines, measured with real parts: broker, provider, client and worker processes.

Figures are taken from outside: from a submit to the run's terminal event, from a kill to the next line of the provider's bill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.progress import RunEvent
from streams.broker.local import LocalBroker
from streams.client import Client
from tests.bench.history import write_history
from tests.support.system import System, people, play
from tests.support.wait import wait_until

LATENCY_MS = 20
#: A lone row comes when nothing else goes on: not even what follows the end of the run before it.
QUIET_SECONDS = 0.4


def tell(figure: str, value: float, unit: str) -> None:
    """Print one figure."""
    print(json.dumps({"figure": figure, "value": round(value, 2), "unit": unit}), flush=True)


@asynccontextmanager
async def fresh(bootstrap: str, **settings: Any) -> AsyncIterator[System]:
    """A system of its own in a folder that goes away."""
    folder = Path(tempfile.mkdtemp(prefix="paidonce-bench-"))
    try:
        async with System(bootstrap, folder, partitions=8, **settings) as system:
            yield system
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def ended(client: Client, run: str) -> RunEvent:
    """The terminal event of a run."""
    async for event in client.progress(run):
        if isinstance(event, RunEvent) and event.terminal:
            return event
    raise AssertionError("no terminal event")


async def warm(system: System, client: Client, tool: str) -> None:
    """One row, so that nothing is measured that happens once in the life of a worker."""
    run = await client.submit(play(tool, name="warm"), people(1, tag="warm"))
    assert (await ended(client, run)).type == "run.completed"


async def throughput(bootstrap: str, figure: str, tool: str, rows: int, **sandbox: Any) -> None:
    """Rows a second from submit to the terminal event, one worker process, provider answers in 20 ms."""
    async with fresh(bootstrap) as system:
        billing = system.start_sandbox(latency_ms=20, **sandbox)
        worker = system.worker()
        async with Client(system.settings) as client:
            await warm(system, client, tool)
            before = billing.summary().calls
            process = psutil.Process(worker.pid)
            cpu_before = sum(process.cpu_times()[:2])
            start = time.perf_counter()
            run = await client.submit(play(tool), people(rows))
            submitted = time.perf_counter() - start
            end = await ended(client, run)
            seconds = time.perf_counter() - start
            assert end.counts is not None
            assert end.counts.completed == rows, end
            tell(figure, rows / seconds, "rows/s")
            bill = billing.summary()
            cpu_seconds = sum(process.cpu_times()[:2]) - cpu_before
            if figure == "row_calls_per_second":
                tell("submit_seconds", submitted, "s")
                tell("worker_rss_mb", process.memory_info().rss / 2**20, "MiB")
                tell("worker_cpu_us_per_row", cpu_seconds / rows * 1e6, "us")
                tell("batch_fill_percent", 100 * rows / ((bill.calls - before) * sandbox["size"]), "%")
            assert bill.billed_twice == 0


async def lone_row(bootstrap: str, samples: int) -> None:
    """What a row on its own takes beyond the provider's time, from submit to its durable row and to the end of its run."""
    async with fresh(bootstrap) as system:
        system.start_sandbox(latency_ms=LATENCY_MS)
        system.worker()
        topic = f"{system.settings.topic_prefix}map-rows"
        reader = AIOKafkaConsumer(**system.settings.connection(), isolation_level="read_committed", fetch_max_wait_ms=20)
        await reader.start()
        rows, ends = [], []
        try:
            tps = [TopicPartition(topic, partition) for partition in range(system.partitions)]
            reader.assign(tps)
            async with Client(system.settings) as client:
                await warm(system, client, "email")
                await reader.getone()
                for index in range(samples):
                    start = time.perf_counter()
                    run = await client.submit(play("email"), people(1, tag=f"lone{index}-"))
                    await reader.getone()
                    rows.append((time.perf_counter() - start) * 1000 - LATENCY_MS)
                    await ended(client, run)
                    ends.append((time.perf_counter() - start) * 1000 - LATENCY_MS)
                    await asyncio.sleep(QUIET_SECONDS)
        finally:
            await reader.stop()
        rows.sort()
        tell("lone_row_added_ms_p50", statistics.median(rows), "ms")
        tell("lone_row_added_ms_p99", rows[min(len(rows) - 1, int(len(rows) * 0.99))], "ms")
        tell("lone_run_added_ms_p50", statistics.median(ends), "ms")


async def recovery(bootstrap: str, figure: str, *, keep: bool) -> None:
    """From a worker's SIGKILL to the next call at the provider; lease of 3 s, as many calls as the pace allows."""
    async with fresh(bootstrap) as system:
        billing = system.start_sandbox(latency_ms=200, concurrency=4)
        worker = system.worker()
        async with Client(system.settings) as client:
            await warm(system, client, "email")
            run = await client.submit(play("email"), people(400))
            wait_until("some calls were made", lambda: billing.summary().requests > 40)
            worker.kill()
            start = time.perf_counter()
            before = billing.summary().requests
            if not keep:
                shutil.rmtree(system.folder / "w1")
            system.worker()
            wait_until("the next call", lambda: billing.summary().requests > before, seconds=60)
            tell(figure, time.perf_counter() - start, "s")
            await ended(client, run)
            assert billing.summary().billed_twice == 0


async def recovery_of_a_million(bootstrap: str, receipts: int) -> None:
    """A worker with an empty folder takes over partitions that hold a million receipts, to its first provider call."""
    async with fresh(bootstrap) as system:
        billing = system.start_sandbox(latency_ms=20)
        await write_history(system.settings, receipts)
        async with Client(system.settings) as client:
            run = await client.submit(play("email"), people(1))
            start = time.perf_counter()
            system.worker()
            wait_until("the first call", lambda: billing.summary().requests > 0, seconds=120)
            tell("recovery_seconds_1m_empty", time.perf_counter() - start, "s")
            assert (await ended(client, run)).type == "run.completed"


async def replayed(bootstrap: str, rows: int) -> None:
    """Events a second that a replay reads and folds, from its start to its digests; a second one compares with the live tables."""
    async with fresh(bootstrap) as system:
        system.start_sandbox(latency_ms=20, size=100, concurrency=10)
        worker = system.worker()
        async with Client(system.settings) as client:
            run = await client.submit(play("emails"), people(rows))
            assert (await ended(client, run)).type == "run.completed"
        worker.terminate()
        worker.wait(60)
        found = json.loads(system.command("replay", "--json", seconds=600.0))
        tell("replay_events_per_second", found["events"] / found["seconds"], "events/s")
        compared = json.loads(system.command("replay", "--json", "--diff", seconds=600.0))
        assert compared["equal"], compared
        tell("replay_diff_events_per_second", compared["events"] / compared["seconds"], "events/s")


async def growth(bootstrap: str, smaller: int, larger: int, output_bytes: int) -> None:
    """How much more memory a worker has with many settled receipts than with few, each after a start and one row of work."""
    async with fresh(bootstrap) as system:
        system.start_sandbox(latency_ms=20)
        sizes = []
        for first, count in ((0, smaller), (smaller, larger - smaller)):
            await write_history(system.settings, count, first=first, output_bytes=output_bytes)
            # The first start fills the folder: how much of that RocksDB still has in its write buffers is chance.
            for start in ("filling", "measured"):
                worker = system.worker().wait_ready(seconds=300)
                async with Client(system.settings) as client:
                    run = await client.submit(play("email"), people(1, tag=f"growth{first}-{start}-"))
                    assert (await ended(client, run)).type == "run.completed"
                size = psutil.Process(worker.pid).memory_info().rss / 2**20
                worker.terminate()
                worker.wait(60)
            sizes.append(size)
        tell("receipts_rss_growth_mb", sizes[1] - sizes[0], "MiB")


def figures(args: argparse.Namespace, bootstrap: str) -> Iterator[tuple[str, Any]]:
    """The measurements by name, in order."""
    batches = {"size": 100, "concurrency": args.concurrency}
    yield "rows", lambda: throughput(bootstrap, "row_calls_per_second", "emails", args.rows, **batches)
    yield (
        "unbatched",
        lambda: throughput(bootstrap, "unbatched_row_calls_per_second", "email", args.rows // 10, size=100, concurrency=100),
    )
    yield "lone", lambda: lone_row(bootstrap, args.samples)
    yield "kept", lambda: recovery(bootstrap, "recovery_seconds_kept", keep=True)
    yield "empty", lambda: recovery(bootstrap, "recovery_seconds_empty", keep=False)
    yield "replay", lambda: replayed(bootstrap, args.rows // 2)
    yield "growth", lambda: growth(bootstrap, 50_000, 200_000, 10_000)
    yield "million", lambda: recovery_of_a_million(bootstrap, args.receipts)


def main() -> None:
    """Measure all figures, or those named by ``--only``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=150)
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--only", default="", help="comma-separated: rows, unbatched, lone, kept, empty, replay, growth, million")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="paidonce-bench-broker-"))
    broker = LocalBroker(folder)
    running = broker.start(parent_pid=os.getpid())
    try:
        wanted = set(filter(None, args.only.split(",")))
        for name, measure in figures(args, running.bootstrap):
            if not wanted or name in wanted:
                asyncio.run(measure())
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
