"""Replay: every table of a system folded again from its topics, in the order that the journal of turns gives (N6).

Reads and compares, and can do nothing else: it is built from modules that know no producer, no tools and no dispatcher
(checked). Each partition goes through a temporary RocksDB, so that a million receipts need little memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer

from streams.broker import topics
from streams.engine.digest import Digests, differences, digests_of, name_of
from streams.errors import PaidonceError, UsageError
from streams.refold import CACHED_RECORDS, TABLES, Refold
from streams.settings import Settings
from streams.table import Store, StoreMemory
from streams.turnlog import PartitionLog, consumer_of, read_changelog
from streams.until import EVERYTHING, Cut, Until, UntilOffset, UntilTime, UntilTurn

#: Differing keys that are named.
NAMED_MAX: Final = 5
#: Records that gather before they go to RocksDB: a receipt is written some three times in its life, mostly soon after another.
PENDING_RECORDS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Compared:
    """How a live partition differs from its replay at the same turn."""

    digests: Digests
    #: Records that differ in their state, and the first of them in words; then those that differ in told flags and marks only.
    differing: int
    named: tuple[str, ...]
    told_differing: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """One partition of one table at the end of a turn."""

    table: str
    partition: int
    turn: int
    at_ms: int
    events: int
    digests: Digests
    live: Compared | None = None


@dataclass(slots=True)
class Pace:
    """How much was folded, and the seconds that folding alone took, summed over processes."""

    turns: int = 0
    events: int = 0
    seconds: float = 0.0

    def add(self, other: Pace) -> None:
        """Add what another process did."""
        self.turns += other.turns
        self.events += other.events
        self.seconds += other.seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay is to do; ``folder`` is for temporary data."""

    settings: Settings
    folder: Path
    cut: Cut = EVERYTHING
    diff: bool = False
    cached_records: int = CACHED_RECORDS


def replay(plan: Plan, until: Until | None = None, *, processes: int = 1) -> tuple[list[Replayed], Pace]:
    """Fold everything up to ``until``; several processes share the partitions.

    Raises ``Unreachable``, ``TopicsError``, ``UsageError`` where ``until`` is not reached, and ``StateError`` where the log has a
    hole.
    """
    plan = dataclasses.replace(plan, cut=asyncio.run(_begin(plan.settings, until)))
    partitions, pace = range(plan.settings.partitions), Pace()
    found: list[Replayed] = []
    with contextlib.ExitStack() as opened:
        fold_all: Callable[..., Iterable[tuple[list[Replayed], Pace]]] = map
        if min(processes, len(partitions)) > 1:
            # Spawned, not forked: RocksDB and aiokafka have threads.
            pool = ProcessPoolExecutor(min(processes, len(partitions)), mp_context=multiprocessing.get_context("spawn"))
            opened.callback(pool.shutdown, cancel_futures=True)
            fold_all = pool.map
        try:
            for parts, took in fold_all(replay_partition, [plan] * len(partitions), partitions):
                found += parts
                pace.add(took)
        except BrokenProcessPool as error:
            raise PaidonceError(f"a process of the replay was ended; with less memory, take --processes 1: {error}") from error
    return sorted(found, key=lambda part: (list(TABLES).index(part.table), part.partition)), pace


async def _begin(settings: Settings, until: Until | None) -> Cut:
    async with consumer_of(settings) as consumer:
        await topics.check(settings.connection(), settings.app, settings.partitions, settings.topic_prefix)
        return await find_cut(consumer, settings, until)


def replay_partition(plan: Plan, partition: int) -> tuple[list[Replayed], Pace]:
    """Fold this partition of every table."""
    # Records live in bounded caches and die by reference counting; frequent full collections would only walk over them.
    gc.set_threshold(100_000, 20, 100)
    # aiokafka logs what it then raises.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(_partition(plan, partition))


async def _partition(plan: Plan, partition: int) -> tuple[list[Replayed], Pace]:
    settings, memory, pace = plan.settings, StoreMemory(), Pace()
    room, found = plan.folder / str(partition), []
    with contextlib.ExitStack() as opened:
        opened.callback(shutil.rmtree, room, ignore_errors=True)
        folds: dict[str, Refold] = {}
        for table in TABLES:
            store = opened.enter_context(contextlib.closing(Store(room / table, memory, pending_max=PENDING_RECORDS)))
            folds[table] = Refold(table, partition, settings.partitions, store, cached_records=plan.cached_records)
        async with consumer_of(settings) as consumer:
            await _fold(PartitionLog(consumer, settings, partition), folds, plan.cut, pace)
            for table, fold in folds.items():
                live = None
                if plan.diff:
                    with contextlib.closing(Store(room / f"{table}-live", memory)) as store:
                        await read_changelog(consumer, settings, table, partition, fold.record.turn, store)
                        live = compare(fold.store, store)
                digests = digests_of(fold.store.scan(b""))
                found.append(Replayed(table, partition, fold.record.turn, fold.record.at_ms, fold.events, digests, live))
    return found, pace


async def find_cut(consumer: AIOKafkaConsumer, settings: Settings, until: Until | None) -> Cut:
    """What ``until`` means in this log. Raises ``UsageError`` naming the last turn where it is not reached."""
    match until:
        case None:
            return EVERYTHING
        case UntilTime():
            return Cut(until.at_ms)
        case UntilTurn() | UntilOffset():
            log = PartitionLog(consumer, settings, until.partition)
            await log.open(journal_only=True)
            last = "no turn at all"
            async for table, record in log.turns():
                if table != until.table:
                    continue
                topic = until.topic if isinstance(until, UntilOffset) else ""
                reached = (
                    record.offsets.get(topic, 0) > until.offset if isinstance(until, UntilOffset) else record.turn >= until.turn
                )
                if reached:
                    return Cut(record.at_ms, table, until.partition, record.turn)
                last = f"turn {record.turn:,}"
                if topic:
                    last += f", which folded it up to offset {record.offsets.get(topic, 0) - 1:,}"
            wanted = f"offset {until.offset:,} of {until.topic}" if isinstance(until, UntilOffset) else f"turn {until.turn:,}"
            raise UsageError(f"--until: {until.table}/{until.partition} has not come to {wanted} yet; it stands at {last}")


async def _fold(log: PartitionLog, folds: dict[str, Refold], cut: Cut, pace: Pace) -> None:
    await log.open()
    going = dict(folds)
    async for table, record in log.turns():
        fold = going.get(table)
        if fold is None:
            continue
        if not cut.holds(table, log.partition, record):
            del going[table]
            if not going:
                return
            continue
        sources = await log.sources(table, record)
        started, events = time.perf_counter(), fold.events
        fold.turn(record, sources)
        pace.seconds += time.perf_counter() - started
        pace.turns += 1
        pace.events += fold.events - events
        # Lets the next fetch go out while this one is folded.
        await asyncio.sleep(0)


def compare(mine: Store, theirs: Store, *, named_max: int = NAMED_MAX) -> Compared:
    """Hold a live partition, ``theirs``, against its replay."""
    differing = told = 0
    named: list[str] = []
    for found in differences(mine.scan(b""), theirs.scan(b"")):
        if not found.in_state:
            told += 1
            continue
        differing += 1
        if len(named) < named_max:
            how = "missing in the replay" if found.mine is None else "missing live" if found.theirs is None else "not the same"
            named.append(f"{name_of(found.key)}: {how}")
    return Compared(digests_of(theirs.scan(b"")), differing, tuple(named), told)
