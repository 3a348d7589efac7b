"""Replay on a real broker: live tables, tables recovered into an empty folder, and a replay of the topics have one digest.

A worker is killed in the middle, messages that are no events lie in the topics, and a run is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from streams.client import Client
from streams.engine.digest import Digests, digests_of
from streams.recovery import recover
from streams.refold import TABLES
from streams.replay import Replayed, replay
from streams.table import Store, StoreMemory
from tests.support.system import System, people, play

ROWS = 150
Found = dict[tuple[str, int], Digests]


async def worked(system: System) -> int:
    """A system with a past: two runs, a kill amid them, a cancelled run, and messages that are no events. Its parked messages."""
    await asyncio.to_thread(system.start_sandbox, concurrency=4, size=10, latency_ms=20)
    worker = system.worker("w1", kill_at="receipts:committed", kill_after=8)
    async with Client(system.settings) as client:
        runs = [await client.submit(play(tool, name=tool), people(ROWS)) for tool in ("emails", "phones")]
        assert await asyncio.to_thread(worker.wait, 60) == -signal.SIGKILL, worker.text()
        parked = await no_events(system)
        system.worker("w1")
        runs.append(await client.submit(play("emails", name="again", provider="sandbox"), people(40, tag="q")))
        await client.cancel(runs[2])
        for run in runs:
            await system.finish(client, run)
    worker.terminate()
    assert await asyncio.to_thread(worker.wait) == 0, worker.text()
    return parked


async def no_events(system: System) -> int:
    """Publish what each kind of agent parks, ahead of what it will read next."""
    async with AIOKafkaProducer(**system.settings.connection()) as producer:
        for topic in ("run-requests", "operations", "tool-requests", "row-progress", "tool-results"):
            for partition in range(system.partitions):
                value = json.dumps({"run": "r", "type": "no_such_type"}).encode()
                await producer.send_and_wait(f"{system.name}.{topic}", value, partition=partition)
    return 5 * system.partitions


async def replayed(system: System, folder: Path, **options: Any) -> list[Replayed]:
    return [part async for part in replay(system.settings, folder, **options)]


def by_partition(parts: list[Replayed]) -> Found:
    return {(part.table, part.partition): part.digests for part in parts}


def live(system: System, worker: str) -> Found:
    """Digests of the tables in the data folder of a worker that has ended."""
    found, memory = {}, StoreMemory()
    for table in TABLES:
        for partition in range(system.partitions):
            with closing(Store(system.folder / worker / "tables" / table / str(partition), memory)) as store:
                found[table, partition] = digests_of(store.scan(b""))
    return found


async def recovered(system: System, folder: Path) -> Found:
    """Digests of the tables recovered from their changelogs into an empty folder."""
    memory = StoreMemory()
    async with AsyncExitStack() as opened:
        stores = {
            (table, partition): opened.enter_context(closing(Store(folder / table / str(partition), memory)))
            for table in TABLES
            for partition in range(system.partitions)
        }
        changelogs = {TopicPartition(f"{system.name}-{table}-changelog", n): store for (table, n), store in stores.items()}
        await recover(changelogs, system.settings.connection(), still_owned=lambda: True)
        return {where: digests_of(store.scan(b"")) for where, store in stores.items()}


@pytest.fixture
async def system(broker: str, tmp_path: Path) -> Any:
    async with System(broker, tmp_path / "system", partitions=2, lease_seconds=2) as fresh:
        yield fresh


async def test_N6_V1_live_tables_a_recovered_folder_and_a_replay_have_one_digest(system: System, tmp_path: Path) -> None:
    """N6, V1: also byte by byte, told flags included; and any past state can be shown."""
    parked = await worked(system)
    parts = await replayed(system, tmp_path / "replay", diff=True)
    found = by_partition(parts)
    assert found == live(system, "w1")
    assert found == await recovered(system, tmp_path / "recovered")
    assert {(part.table, part.partition) for part in parts} == {(table, n) for table in TABLES for n in range(2)}
    assert all(part.live is not None and part.live.digests == part.digests for part in parts)
    assert sum(part.digests.records for part in parts if part.table == "receipts") >= 2 * ROWS
    assert (await system.ends())["dead-letters"] >= parked
    # What is cached between turns changes nothing.
    assert by_partition(await replayed(system, tmp_path / "replay", cached_records=1)) == found
