"""What a sweep drops of receipts, on a real broker: it is no state any more, it is paid anew, and all else stays paid once.

Three lives of one worker: the first drops callers and batches, the second receipts, the third nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from aiokafka import TopicPartition

from schemas.progress import RunEvent
from schemas.states import (
    BATCH,
    CLOSED,
    RECEIPT,
    SHARE,
    SHEET,
    TASK,
    Batch,
    ClosedRun,
    Receipt,
    Record,
    RunShare,
    SheetRow,
    Task,
)
from streams.client import Client
from streams.engine.sweep import is_stub
from streams.kafka.recovery import recover
from streams.sandbox import Fault, FaultKind
from streams.table import Store, StoreMemory, WorkingSet
from tests.support.digests import by_partition, live, recovered, replayed
from tests.support.system import System, people, play
from tests.support.wait import until

OLD, LOST = 30, 2
#: A tenth of a second: 0 would mean for ever.
AT_ONCE_DAYS = 0.1 / 86_400
SWEEP_SECONDS = 0.2


class Changelog:
    """A table as its changelog has it, read on each time it is looked at."""

    def __init__(self, system: System, folder: Path, table: str) -> None:
        self._system = system
        memory = StoreMemory()
        self._stores = {
            TopicPartition(f"{system.name}-{table}-changelog", n): Store(folder / table / str(n), memory)
            for n in range(system.partitions)
        }

    async def tables(self) -> list[WorkingSet]:
        """Its partitions as they are now."""
        await recover(self._stores, self._system.settings.connection(), still_owned=lambda: True)
        return [WorkingSet(store) for store in self._stores.values()]

    async def names(self, prefix: bytes, kind: type[Record]) -> list[str]:
        """The keys of its records of one kind, without their prefix."""
        return [key[1:].decode() for table in await self.tables() for key, _ in table.scan(prefix, kind)]

    def close(self) -> None:
        """Give its folders free."""
        for store in self._stores.values():
            store.close()


class Receipts(Changelog):
    """The table of receipts."""

    def __init__(self, system: System, folder: Path) -> None:
        super().__init__(system, folder, "receipts")

    async def look(self) -> tuple[list[Receipt], int]:
        """All receipts, and how many batches there are."""
        tables = await self.tables()
        receipts = [receipt for table in tables for _, receipt in table.scan(RECEIPT, Receipt)]
        return receipts, sum(1 for table in tables for _ in table.scan(BATCH, Batch))


@asynccontextmanager
async def life(system: System, **settings: object) -> AsyncIterator[None]:
    """The worker from its start to its orderly end."""
    worker = system.worker("w1", **settings)
    yield
    worker.terminate()
    assert await asyncio.to_thread(worker.wait) == 0, worker.text()


async def ended(system: System, client: Client, tool: str, rows: list[dict[str, str]], name: str) -> RunEvent:
    provider = "strict" if tool == "email" else "sandbox"
    run = await client.submit(play(tool, name=name, provider=provider), rows)
    return (await system.finish(client, run))[0]


def billed(system: System) -> int:
    """Items on the provider's bill."""
    assert system.sandbox is not None
    return system.sandbox.summary().billed_items


async def test_N6_K1_what_a_sweep_dropped_is_paid_anew_what_it_kept_is_not_and_a_replay_drops_the_same(
    broker: str, tmp_path: Path
) -> None:
    """U1, too: what may have been billed without an outcome is never dropped, and never called again.

    Of runs that have ended, `rows` keeps the rows in doubt alone, beside the sheet.
    """
    old, lost = people(OLD, tag="old"), people(LOST, tag="lost")
    async with System(broker, tmp_path, partitions=2) as system:
        sandbox = await asyncio.to_thread(system.start_sandbox, size=10)
        system.add_provider("strict", sandbox.url, repeat="never")
        sandbox.set_faults(Fault(kind=FaultKind.CLOSE_AFTER_WORK, contains="lost", next=LOST))
        with (
            closing(Receipts(system, tmp_path / "seen")) as receipts,
            closing(Changelog(system, tmp_path / "seen", "rows")) as rows,
        ):
            async with Client(system.settings) as client:
                async with life(system, callers_keep_hours=0, sweep_seconds=SWEEP_SECONDS):
                    assert (await ended(system, client, "emails", old, "first")).counts.completed == OLD
                    assert (await ended(system, client, "email", lost, "lost")).counts.unknown == LOST

                    async def callers_are_gone() -> bool:
                        found, batches = await receipts.look()
                        return batches == 0 and sum(not receipt.waiters for receipt in found) == OLD

                    await until("callers and batches are dropped, but for those in doubt", callers_are_gone)
                    found, _ = await receipts.look()
                    assert not any(is_stub(receipt) for receipt in found)
                    assert (await ended(system, client, "emails", old[:10], "second")).counts.completed == 10
                    assert billed(system) == OLD + LOST

                async with life(system, callers_keep_hours=0, receipts_keep_days=AT_ONCE_DAYS, sweep_seconds=SWEEP_SECONDS):

                    async def receipts_are_gone() -> bool:
                        return sum(is_stub(receipt) for receipt in (await receipts.look())[0]) == OLD

                    await until("receipts are dropped", receipts_are_gone)

                    async def rows_are_gone() -> bool:
                        tasks = await rows.names(TASK, Task)
                        return len(tasks) == LOST and all(task.startswith("lost") for task in tasks)

                    await until("rows of runs that have ended are dropped, but for those in doubt", rows_are_gone)
                    shares, markers = await rows.names(SHARE, RunShare), await rows.names(CLOSED, ClosedRun)
                    assert all(run.startswith("lost") for run in shares)
                    assert {run.partition("-")[0] for run in markers} - {"lost"} == {"first", "second"}
                    assert len(await rows.names(SHEET, SheetRow)) == OLD + 10 + LOST

                new = people(5, tag="new")
                async with life(system):
                    assert (await ended(system, client, "emails", [*old[:15], *new], "third")).counts.completed == 20
                    assert billed(system) == OLD + LOST + 20
                    assert (await ended(system, client, "emails", [*old[:15], *new], "fourth")).counts.completed == 20
                    assert (await ended(system, client, "email", lost, "lost2")).counts.unknown == LOST
                    assert billed(system) == OLD + LOST + 20
            found, _ = await receipts.look()
        assert sorted(max(receipt.attempts) for receipt in found) == [1] * (OLD - 15 + 5 + LOST) + [2] * 15
        tables = live(system, "w1")
        assert tables == await recovered(system, tmp_path / "recovered")
        assert tables == by_partition(await replayed(system, tmp_path / "replay"))
