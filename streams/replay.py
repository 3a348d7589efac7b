"""Replay: every table of a system folded again from its topics, in the order that the journal of turns gives (N6).

Reads and compares, and can do nothing else: it is built from modules that know no producer, no tools and no dispatcher
(checked). Of each partition a bounded number of records is held; the others are in a temporary RocksDB.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import multiprocessing
import shutil
import sys
import threading
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
from streams.replaying.held import HELD_MAX, HeldRecords
from streams.replaying.refold import TABLES, Refold
from streams.replaying.turnlog import PartitionLog, consumer_of, count_messages, read_changelog
from streams.replaying.until import EVERYTHING, Cut, Until, UntilOffset, UntilTime, UntilTurn
from streams.settings import Settings
from streams.table import Store, StoreMemory

#: Differing keys that are named.
NAMED_MAX: Final = 5

#: One partition of a table.
Part = tuple[str, int]


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
    #: Give exact digests, too; a comparison does so in any case.
    exact: bool = True
    held_max: int = HELD_MAX


def replay(plan: Plan, until: Until | None = None, *, processes: int = 1) -> tuple[list[Replayed], Pace]:
    """Fold everything up to ``until``; several processes share the partitions of the tables.

    Raises ``Unreachable``, ``TopicsError``, ``UsageError`` where ``until`` is not reached, and ``StateError`` where the log has a
    hole.
    """
    cut, messages = asyncio.run(_begin(plan.settings, until))
    plan, pace = dataclasses.replace(plan, cut=cut), Pace()
    found: list[Replayed] = []
    # The largest first, so that no process is left with it at the end.
    parts = sorted(messages, key=messages.__getitem__, reverse=True)
    with contextlib.ExitStack() as opened:
        fold_all: Callable[..., Iterable[tuple[Replayed, Pace]]] = map
        if min(processes, len(parts)) > 1:
            # A copy of this process has all modules already; but one that has threads, as RocksDB has, must not be copied.
            copied = sys.platform == "linux" and threading.active_count() == 1
            context = multiprocessing.get_context("fork" if copied else "spawn")
            pool = ProcessPoolExecutor(min(processes, len(parts)), mp_context=context)
            opened.callback(pool.shutdown, cancel_futures=True)
            fold_all = pool.map
        try:
            for part, took in fold_all(replay_part, [plan] * len(parts), parts):
                found.append(part)
                pace.add(took)
        except BrokenProcessPool as error:
            raise PaidonceError(f"a process of the replay was ended; with less memory, take --processes 1: {error}") from error
    return sorted(found, key=lambda part: (list(TABLES).index(part.table), part.partition)), pace


async def _begin(settings: Settings, until: Until | None) -> tuple[Cut, dict[Part, int]]:
    """Where to stop, and the number of messages in each part."""
    async with consumer_of(settings) as consumer:
        await topics.check(settings.connection(), settings.app, settings.partitions, settings.topic_prefix)
        return await find_cut(consumer, settings, until), await count_messages(consumer, settings)


def replay_part(plan: Plan, part: Part) -> tuple[Replayed, Pace]:
    """Fold this partition of this table."""
    # Records are held in bounded number and die by reference counting; frequent full collections would only walk over them.
    gc.set_threshold(100_000, 20, 100)
    # aiokafka logs what it then raises.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(_part(plan, *part))


async def _part(plan: Plan, table: str, partition: int) -> tuple[Replayed, Pace]:
    settings, memory, pace = plan.settings, StoreMemory(), Pace()
    room = plan.folder / table / str(partition)
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, room, ignore_errors=True)
        consumer = await opened.enter_async_context(consumer_of(settings))
        records = opened.enter_context(
            contextlib.closing(HeldRecords(lambda: Store(room / "replayed", memory), held_max=plan.held_max))
        )
        fold = Refold(table, partition, settings.partitions, records)
        await _fold(PartitionLog(consumer, settings, partition), fold, plan.cut, pace)
        if plan.diff:
            store = opened.enter_context(contextlib.closing(Store(room / "live", memory)))
            await read_changelog(consumer, settings, table, partition, fold.record.turn, store)
            digests, compared = compare(records, store)
        else:
            digests, compared = records.digests(exact=plan.exact), None
        return Replayed(table, partition, fold.record.turn, fold.record.at_ms, fold.events, digests, compared), pace


async def find_cut(consumer: AIOKafkaConsumer, settings: Settings, until: Until | None) -> Cut:
    """What ``until`` means in this log. Raises ``UsageError`` naming the last turn where it is not reached."""
    match until:
        case None:
            return EVERYTHING
        case UntilTime():
            return Cut(until.at_ms)
        case UntilTurn() | UntilOffset():
            log = PartitionLog(consumer, settings, until.partition)
            await log.open()
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


async def _fold(log: PartitionLog, fold: Refold, cut: Cut, pace: Pace) -> None:
    await log.open(TABLES[fold.table].topics)
    async for table, record in log.turns():
        if table != fold.table:
            continue
        if not cut.holds(table, log.partition, record):
            return
        sources = await log.sources(table, record)
        started, events = time.perf_counter(), fold.events
        fold.turn(record, sources)
        pace.seconds += time.perf_counter() - started
        pace.turns += 1
        pace.events += fold.events - events
        # Lets the next fetch go out while this one is folded.
        await asyncio.sleep(0)


def compare(replayed: HeldRecords, live: Store, *, named_max: int = NAMED_MAX) -> tuple[Digests, Compared]:
    """Hold a live partition against its replay; also gives the digests of the replay."""
    differing = told = 0
    named: list[str] = []
    for found in differences(replayed.items(), live.scan(b"")):
        if not found.in_state:
            told += 1
            continue
        differing += 1
        if len(named) < named_max:
            how = "missing in the replay" if found.mine is None else "missing live" if found.theirs is None else "not the same"
            named.append(f"{name_of(found.key)}: {how}")
    digests = replayed.digests()
    # Where no byte differs, digests cannot.
    digests_live = digests_of(live.scan(b"")) if differing or told else digests
    return digests, Compared(digests_live, differing, tuple(named), told)
