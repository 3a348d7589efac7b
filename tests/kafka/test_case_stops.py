"""Cases of faults that were reported elsewhere (``case_…``) in which a worker is killed or stopped, each in a system of its own."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from schemas.events import Failed
from schemas.progress import MapProgress
from schemas.states import TURN_KEY
from streams.client import Client
from streams.public.publiclog import PublicLog
from streams.sandbox.bill import read_bill
from streams.sandbox.settings import Settings as SandboxSettings
from streams.table import OFFSET_KEY, Store, StoreMemory
from tests.support.cases import counts, only
from tests.support.evidence import read_evidence
from tests.support.scripted_http import Asked, ScriptedProvider
from tests.support.system import System, people, play
from tests.support.wait import until, wait_until

#: One process runs all of these tests: they share what one fixture prepares.
pytestmark = pytest.mark.xdist_group("cases")


def records(folder: Path) -> dict[str, dict[bytes, bytes]]:
    """All records of the tables in a data folder that no worker uses, without the records of turns and offsets."""
    memory = StoreMemory()
    found: dict[str, dict[bytes, bytes]] = {}
    for path in sorted(folder.glob("tables/*/*")):
        store = Store(path, memory)
        found["/".join(path.parts[-2:])] = {key: value for key, value in store.scan(b"") if key not in (TURN_KEY, OFFSET_KEY)}
        store.close()
    return found


@pytest.mark.deep
async def test_case_B1_five_kills_lose_no_count_and_the_tables_can_be_rebuilt(broker: str, tmp_path: Path) -> None:
    rows, dice = 3_000, random.Random(340)
    async with System(broker, tmp_path / "system", partitions=2, lease_seconds=1) as system:
        sandbox = system.start_sandbox(concurrency=4, size=50, latency_ms=40)
        worker = system.worker("w1")
        async with Client(system.settings) as client:
            run = await client.submit(play("emails"), people(rows))
            for threshold in sorted(dice.sample(range(1, rows - 300), 5)):

                async def paid(items: int = threshold) -> bool:
                    return sandbox.summary().billed_items >= items

                await until(f"{threshold} items are paid", paid, seconds=60)
                worker.kill()
                worker = system.worker("w1")
            end, samples = await system.finish(client, run, seconds=120)
            states = [found.row.status async for found in client.rows(run) if found.row is not None]
            worker.terminate()
            assert await asyncio.to_thread(worker.wait) == 0
            before, requests = await system.ends(), sandbox.summary().requests
            idle = system.worker("w2")
            await asyncio.to_thread(owns_everything, idle, system)
            idle.terminate()
            assert await asyncio.to_thread(idle.wait) == 0
            assert (await system.ends(), sandbox.summary().requests) == (before, requests)
    assert counts(end) == only(rows, completed=rows)
    assert states == ["completed"] * rows
    assert [event.counts.done for event in samples] == sorted(event.counts.done for event in samples)
    assert sandbox_bill(tmp_path / "system") == rows
    kept, rebuilt = records(tmp_path / "system" / "w1"), records(tmp_path / "system" / "w2")
    assert kept.keys() == rebuilt.keys()
    assert sum(map(len, kept.values())) > 2 * rows
    assert kept == rebuilt


def owns_everything(worker: Any, system: System) -> None:
    wait_until(f"{worker.name} owns all partitions", lambda: worker.partitions == 3 * system.partitions, seconds=60)


def sandbox_bill(folder: Path) -> int:
    """Items on the bill, of which none is there twice."""
    items = [found.item for found in read_bill(folder / "bill.csv")]
    assert len(items) == len(set(items))
    return len(items)


async def test_case_C1_what_a_stopped_worker_says_when_it_wakes_changes_nothing(system: System) -> None:
    """The provider's first answer, "A", waits for the stopped worker; the second worker gets "B"."""
    letters = iter("ABCDE")
    with ScriptedProvider() as provider:
        given: dict[int, str] = {}

        def answer(asked: Asked) -> tuple[int, bytes]:
            letter = given.setdefault(asked.number, next(letters))
            return 200, json.dumps({"letter": letter}).encode()

        provider.answer = answer
        provider.hold()
        system.add_provider("letters", provider.url, repeat="freely", timeout=90)
        stopped = system.worker("w1")
        async with Client(system.settings) as client:
            run = await client.submit(play("email", provider="letters"), people(1))

            async def called() -> bool:
                return bool(provider.requests)

            await until("the first call is under way", called)
            stopped.pause()
            provider.let_go()
            system.worker("w2")
            end, _ = await system.finish(client, run)
            assert counts(end) == only(1, completed=1)
            stopped.resume()

            async def both_have_ended() -> bool:
                return len((await read_evidence(system.settings)).ends) == 2

            await until("the stopped worker has published its late answer", both_have_ended)
            after = await client.submit(play("email", provider="letters", name="other"), people(1))
            end, _ = await system.finish(client, after)
            lines = [found for name in (run, after) for found in [row async for row in client.rows(name)]]
            ledger = await system.ledger(client, run)
        evidence = await read_evidence(system.settings)
    (numbered,) = evidence.attempts.values()
    first, second = numbered[1], numbered[2]
    assert first.expired_ms is not None
    assert first.ended_ms is not None
    assert second.ended_ms is not None
    assert first.ended_ms > second.ended_ms
    values = [found.row.cells["check"].value for found in lines if found.row is not None]
    assert values == [{"letter": "B"}, {"letter": "B"}]
    assert [event.type for event in ledger] == ["run.started", "run.completed"]
    assert len(provider.requests) == 2


async def test_case_C5_a_stop_ends_no_row_and_calls_under_way_go_on_as_their_tool_allows(system: System) -> None:
    sandbox = system.start_sandbox(concurrency=5, latency_ms=6_000)
    system.add_provider("strict", sandbox.url, repeat="never", concurrency=5)
    worker = system.worker("w1", grace_seconds=1)
    async with Client(system.settings) as client:
        keyed = await client.submit(play("email", name="keyed"), people(7))
        never = await client.submit(play("phone", name="never", provider="strict"), people(7))
        await system.calls_under_way(10)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait) == 0
        assert [event.type for event in await system.ledger(client, keyed)] == ["run.started"]
        assert [event.type for event in await system.ledger(client, never)] == ["run.started"]
        sandbox.set_settings(SandboxSettings())
        system.worker("w1")
        first, _ = await system.finish(client, keyed)
        second, _ = await system.finish(client, never)
    assert counts(first) == only(7, completed=7)
    assert counts(second) == only(7, unknown=5, completed=2)
    bill = sandbox.summary()
    assert (bill.billed_items, bill.billed_twice) == (14, 0)


async def test_case_C5_what_arrives_within_the_grace_time_is_published_before_the_worker_goes(system: System) -> None:
    with ScriptedProvider() as provider:
        provider.answer = lambda _asked: (400, b'{"error": "no"}')
        provider.hold()
        system.add_provider("no", provider.url, repeat="never", concurrency=5)
        worker = system.worker("w1", grace_seconds=30)
        async with Client(system.settings) as client:
            run = await client.submit(play("email", provider="no"), people(7))

            async def five_calls() -> bool:
                return len(provider.requests) == 5

            await until("five calls are under way", five_calls)
            worker.terminate()
            await asyncio.to_thread(wait_until, "the worker is stopping", lambda: "Stopping" in worker.text())
            provider.let_go()
            assert await asyncio.to_thread(worker.wait) == 0
            ends = [end for _, end in (await read_evidence(system.settings)).ends]
            assert [type(end.outcome) for end in ends] == [Failed] * 5
            assert len(provider.requests) == 5
            system.worker("w1")
            end, _ = await system.finish(client, run)
    assert (end.type, counts(end)) == ("run.failed", only(7, failed=7))
    assert len(provider.requests) == 7


async def test_case_E1_a_claim_whose_worker_died_at_once_blocks_nobody(system: System) -> None:
    """The claim is in the topic, nobody folded it, and the worker that comes next takes its place."""
    lease = 10.0
    with ScriptedProvider() as provider:
        system.add_provider("once", provider.url, repeat="never", concurrency=1)
        worker = system.worker("w1", kill_at="dispatcher:claimed", lease_seconds=lease)
        async with Client(system.settings) as client:
            run = await client.submit(play("email", provider="once"), people(3))
            assert await asyncio.to_thread(worker.wait) == -signal.SIGKILL
            assert provider.requests == []
            system.worker("w1", lease_seconds=lease)
            end, _ = await system.finish(client, run)
    assert counts(end) == only(3, completed=3)
    assert len(provider.requests) == 3
    evidence = await read_evidence(system.settings)
    (first, second) = next(numbered for numbered in evidence.attempts.values() if len(numbered) > 1).values()
    assert (second.claimed_ms - first.claimed_ms) / 1000 < lease * 1.1 + 2
    assert first.granted_ms is None
    assert first.released_ms is not None


async def test_case_I1_progress_never_falls_or_passes_its_total_whatever_comes_twice(broker: str, tmp_path: Path) -> None:
    """Every completion three times, a kill between a receipt and its progress, and two runs that share their receipts."""
    async with System(broker, tmp_path / "system", partitions=2, lease_seconds=2) as system:
        sandbox = system.start_sandbox(concurrency=2, size=10, latency_ms=100)
        system.worker("w1", kill_at="receipts:committed", kill_after=8)
        async with Client(system.settings) as client, system.supervised() as ends, completions_come_thrice(system):
            runs = [await client.submit(play("emails", name=name), people(100)) for name in ("one", "two")]
            told = [await system.finish(client, run) for run in runs]
            await client.submit(play("emails", name="after"), people(3, tag="after"), run="after")
            await system.finish(client, "after")
            ledgers = [await system.ledger(client, run) for run in runs]
            evidence = await read_evidence(system.settings)
            bill = sandbox.summary()
    assert [code for code, _ in ends] == [-signal.SIGKILL]
    assert len(evidence.ends) >= 3 * 100
    for (end, samples), ledger in zip(told, ledgers, strict=True):
        assert counts(end) == only(100, completed=100)
        progress_is_sound(samples, 100)
        assert [event.type for event in ledger] == ["run.started", "run.completed"]
    assert (bill.billed_items, bill.billed_twice) == (103, 0)


def progress_is_sound(samples: Sequence[MapProgress], total: int) -> None:
    done = [sample.counts.done for sample in samples]
    assert done == sorted(done)
    assert max(done) == total
    assert {sample.counts.total for sample in samples} == {total}


@asynccontextmanager
async def completions_come_thrice(system: System) -> AsyncIterator[None]:
    """Publish each message of ``receipt-completions`` twice more."""
    log = PublicLog(system.settings)
    tps = log.all("receipt-completions")
    producer = AIOKafkaProducer(bootstrap_servers=system.settings.broker)
    await producer.start()

    async def copy() -> None:
        async with log.consumer(tps) as consumer:
            while True:
                record = await consumer.getone()
                if ("copy", b"1") not in record.headers:
                    for _ in range(2):
                        headers = [*record.headers, ("copy", b"1")]
                        await producer.send(record.topic, record.value, partition=record.partition, headers=headers)

    copying = asyncio.create_task(copy())
    try:
        yield
    finally:
        copying.cancel()
        await asyncio.wait([copying])
        await producer.stop()
