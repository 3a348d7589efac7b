"""One state in three places: live tables, tables recovered from their changelogs, and a replay of the topics."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from streams.engine.digest import Digests, digests_of
from streams.kafka.recovery import recover
from streams.replay import Plan, Replayed, replay
from streams.replaying.refold import TABLES
from streams.replaying.until import parse_until
from streams.table import Store, StoreMemory
from tests.support.system import System

Found = dict[tuple[str, int], Digests]


async def replayed(system: System, folder: Path, *, until: str | None = None, **options: Any) -> list[Replayed]:
    """What a replay of the topics finds; ``options`` are those of ``Plan``."""
    settings = system.settings
    cut = None if until is None else parse_until(until, partitions=settings.partitions, topic_prefix=settings.topic_prefix)
    return (await asyncio.to_thread(replay, Plan(settings, folder, **options), cut))[0]


def by_partition(parts: list[Replayed]) -> Found:
    """Digests of a replay."""
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
