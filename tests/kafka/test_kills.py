"""Workers and brokers are killed, stopped and joined in mid-run; the provider's bill says whether anything was paid twice.

Tools with `repeat = "never"` use the endpoint that ignores idempotency keys: there, what is sent twice is billed twice.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.progress import MapProgress, RunEvent
from streams.broker.local import LocalBroker
from streams.client import Client
from streams.public.sheet import SheetLine
from streams.sandbox import Summary
from streams.sandbox.bill import read_bill
from tests.support.evidence import Evidence, read_evidence
from tests.support.scripted_http import ScriptedProvider
from tests.support.system import System, people, play
from tests.support.wait import until

#: One process runs all of these tests: they share what one fixture prepares.
pytestmark = pytest.mark.xdist_group("kills")

ROWS = 160
#: Steps at which a worker kills itself, and how often it passes them before: with calls under way and rows to come.
POINTS: Mapping[str, int] = {
    "dispatcher:claimed": 6,
    "dispatcher:granted": 6,
    "dispatcher:calling": 6,
    "dispatcher:called": 6,
    "dispatcher:completed": 6,
    "receipts:folded": 8,
    "receipts:committed": 8,
    "receipts:written": 8,
    "rows:committed": 6,
    "runs:committed": 3,
}
SCENARIOS = [*((point, "kept") for point in POINTS), ("dispatcher:called", "emptied"), ("rows:committed", "emptied")]
#: Tools by how they may be repeated.
TOOLS = {"with-key": "emails", "never": "phones"}
#: Systems that are killed and mended at the same time.
AT_ONCE = 3
CALLS_MAX, SIZE = 4, 10


@dataclass(frozen=True)
class Settled:
    """What is there of a run once it has ended."""

    end: RunEvent
    samples: list[MapProgress]
    lines: list[SheetLine]

    @property
    def unknown(self) -> list[SheetLine]:
        """Lines whose row may have been paid for without an answer."""
        return [line for line in self.lines if line.row is not None and line.row.status == "unknown"]


@dataclass(frozen=True)
class Survived:
    """Two runs that had their worker killed, by how their tool may be repeated, and all that can be held against them."""

    runs: Mapping[str, Settled]
    bill: Summary
    billed: Mapping[str, int]
    evidence: Evidence
    killed_ms: list[int]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def receipt_of(line: SheetLine) -> str:
    assert line.row is not None
    receipt = line.row.cells["check"].receipt
    assert receipt is not None
    return receipt


async def settled(system: System, client: Client, run: str, seconds: float = 90) -> Settled:
    end, samples = await system.finish(client, run, seconds=seconds)
    return Settled(end, samples, [line async for line in client.rows(run)])


def billed_items(system: System) -> dict[str, int]:
    """Items on the bill by how their tool may be repeated."""
    lines = read_bill(system.folder / "bill.csv")
    return {repeat: sum(line.endpoint.startswith(f"/v1/{tool[:5]}") for line in lines) for repeat, tool in TOOLS.items()}


async def survive(bootstrap: str, folder: Path, point: str, data: str) -> Survived:
    """Two runs whose worker kills itself at ``point``, and is started again on its data folder or on an empty one."""
    async with System(bootstrap, folder, partitions=2, lease_seconds=2) as system:
        sandbox = await asyncio.to_thread(lambda: system.start_sandbox(concurrency=CALLS_MAX, size=SIZE, latency_ms=60))
        worker = system.worker("w1", kill_at=point, kill_after=POINTS[point])
        async with Client(system.settings) as client:
            runs = {repeat: await client.submit(play(tool, name=tool), people(ROWS)) for repeat, tool in TOOLS.items()}
            code = await asyncio.to_thread(worker.wait, 90)
            killed_ms = now_ms()
            assert code == -signal.SIGKILL, worker.text()
            assert sandbox.summary().billed_items < 2 * ROWS, "the kill fell when all was done"
            if data == "emptied":
                await asyncio.to_thread(shutil.rmtree, folder / "w1")
            system.worker("w1")
            found = {repeat: await settled(system, client, run) for repeat, run in runs.items()}
        evidence = await read_evidence(system.settings)
        return Survived(found, sandbox.summary(), billed_items(system), evidence, [killed_ms])


Survivors = Mapping[tuple[str, str], Survived | BaseException]


@pytest.fixture(scope="module")
def survivors(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Survivors:
    """All scenarios, some at a time: most of their time is waiting for processes to start and for leases to expire."""
    root = tmp_path_factory.mktemp("kills")

    async def all_of_them() -> list[Survived | BaseException]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, scenario: tuple[str, str]) -> Survived:
            async with room:
                return await survive(broker, root / str(number), *scenario)

        return await asyncio.gather(*(one(number, scenario) for number, scenario in enumerate(SCENARIOS)), return_exceptions=True)

    return dict(zip(SCENARIOS, asyncio.run(all_of_them()), strict=True))


def survivor(survivors: Survivors, point: str, data: str) -> Survived:
    found = survivors[point, data]
    if isinstance(found, BaseException):
        raise found
    return found


def is_settled_once(run: Settled) -> None:
    """Each input line has one state, in input order, and the counters say the same."""
    counts = run.end.counts
    assert counts is not None
    assert [line.position for line in run.lines] == list(range(ROWS))
    states = Counter("missing" if line.row is None else line.row.status for line in run.lines)
    assert states == +Counter(completed=counts.completed, unknown=counts.unknown)
    assert counts.completed + counts.unknown == counts.total == ROWS
    done = [sample.counts.done for sample in run.samples]
    assert done == sorted(done)
    assert done[-1] == ROWS


def doubts_only_what_was_under_way(run: Settled, evidence: Evidence, killed_ms: list[int]) -> None:
    """A row is unknown only where its call had been granted, and had not ended, when a kill fell."""
    not_granted = [
        (line.position, evidence.of(receipt_of(line)))
        for line in run.unknown
        if not evidence.lost_in_flight(receipt_of(line), killed_ms)
    ]
    assert not_granted == []
    assert len(run.unknown) <= CALLS_MAX * SIZE * len(killed_ms)


@pytest.mark.parametrize(("point", "data"), SCENARIOS)
def test_U2_after_a_kill_a_tool_that_may_not_be_repeated_is_not_and_only_what_was_under_way_is_in_doubt(
    survivors: Survivors, point: str, data: str
) -> None:
    after = survivor(survivors, point, data)
    run = after.runs["never"]
    is_settled_once(run)
    assert (run.end.type, run.end.code) == ("run.completed", "unknown_outcomes" if run.unknown else "")
    doubts_only_what_was_under_way(run, after.evidence, after.killed_ms)
    assert after.bill.billed_twice == 0, after.bill.billed_twice_examples
    assert ROWS - len(run.unknown) <= after.billed["never"] <= ROWS


@pytest.mark.parametrize(("point", "data"), SCENARIOS)
def test_K5_U1_after_a_kill_lost_calls_are_repeated_under_their_keys_and_paid_once(
    survivors: Survivors, point: str, data: str
) -> None:
    after = survivor(survivors, point, data)
    run = after.runs["with-key"]
    is_settled_once(run)
    assert (run.end.type, run.end.code, run.unknown) == ("run.completed", "", [])
    assert after.bill.billed_twice == 0, after.bill.billed_twice_examples
    assert after.billed["with-key"] == ROWS


async def test_L4_L6_a_zombie_neither_calls_nor_writes_and_its_late_answers_settle_what_was_unknown(system: System) -> None:
    """The first worker is stopped for longer than its leases and its session; its calls' answers wait in its sockets."""
    sandbox = system.start_sandbox(concurrency=2, size=5, window=2000, latency_ms=1000)
    zombie = system.worker("w1")
    async with Client(system.settings) as client:
        run = await client.submit(play("phones"), people(40))
        await system.calls_under_way(2)
        zombie.pause()
        other = system.worker("w2")
        end, _ = await system.finish(client, run)
        assert end.counts is not None
        # The two calls under way, of five rows each, and no more: what the zombie had queued was never granted.
        assert (end.type, end.code, end.counts.unknown) == ("run.completed", "unknown_outcomes", 10)
        billed = sandbox.summary()
        assert (billed.billed_items, billed.billed_twice, billed.requests) == (40, 0, 8)
        zombie.resume()

        async def all_completed() -> bool:
            lines = [line async for line in client.rows(run)]
            return all(line.row is not None and line.row.status == "completed" for line in lines)

        await until("the late answers of the zombie have settled their rows", all_completed)
        # It finds that it was replaced, and takes part again.
        second = await client.submit(play("phones"), people(10, tag="z"))
        end, _ = await system.finish(client, second)
    assert end.counts is not None
    assert end.counts.completed == 10
    after = sandbox.summary()
    assert (after.billed_items, after.billed_twice, after.calls) == (50, 0, after.requests)
    assert other.running
    evidence = await read_evidence(system.settings)
    late = [attempt for numbered in evidence.attempts.values() for attempt in numbered.values() if attempt.expired_ms]
    assert len(late) == 10
    assert all(attempt.ended_ms is not None and attempt.ended_ms > attempt.expired_ms for attempt in late)


async def test_a_worker_that_joins_leaves_long_calls_in_flight_alone(system: System) -> None:
    """The rebalance takes every partition from everyone for a moment; calls that outlast their leases go through it."""
    with ScriptedProvider() as provider:
        provider.hold()
        system.add_provider("slow", provider.url, repeat="never", concurrency=4, timeout=90)
        first = system.worker("w1")
        async with Client(system.settings) as client:
            run = await client.submit(play("email", provider="slow"), people(8))
            await until("four calls are under way", called(provider, 4))
            second = system.worker("w2")
            await asyncio.to_thread(second.wait_ready)
            # By now the calls are older than their leases, which only heartbeats have kept.
            evidence = await read_evidence(system.settings)
            oldest_ms = min(attempt.granted_ms or 0 for numbered in evidence.attempts.values() for attempt in numbered.values())
            await until("the calls are older than their leases", older_than(oldest_ms + 3_500))
            assert len(provider.requests) == 4
            provider.let_go()
            end, _ = await system.finish(client, run)
    assert end.counts is not None
    assert (end.counts.completed, end.counts.unknown, len(provider.requests)) == (8, 0, 8)
    evidence = await read_evidence(system.settings)
    attempts = [attempt for numbered in evidence.attempts.values() for attempt in numbered.values()]
    assert [attempt for attempt in attempts if attempt.expired_ms] == []
    assert first.running
    assert second.running


def called(provider: ScriptedProvider, count: int) -> Callable[[], Awaitable[bool]]:
    async def enough() -> bool:
        return len(provider.requests) >= count

    return enough


def older_than(at_ms: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return now_ms() > at_ms

    return reached


async def test_a_broker_that_is_killed_and_comes_back_costs_no_row_and_no_second_payment(tmp_path: Path) -> None:
    """The worker may go with it; one that a supervisor starts again goes on."""
    local = LocalBroker(tmp_path / "broker")
    running = await asyncio.to_thread(local.start, parent_pid=os.getpid())
    try:
        async with System(running.bootstrap, tmp_path / "system", partitions=2, lease_seconds=2) as system:
            sandbox = system.start_sandbox(concurrency=CALLS_MAX, size=SIZE, latency_ms=150)
            system.worker("w1")
            async with Client(system.settings) as client, system.supervised() as ends:
                runs = {repeat: await client.submit(play(tool, name=tool), people(ROWS)) for repeat, tool in TOOLS.items()}

                async def both_are_paying() -> bool:
                    return all(items > 2 * SIZE for items in billed_items(system).values())

                await until("both runs have begun to pay", both_are_paying)
                os.kill(running.pid, signal.SIGKILL)
                assert sandbox.summary().billed_items < 2 * ROWS, "the kill fell when all was done"
                await asyncio.to_thread(local.start, parent_pid=os.getpid())
                found = {repeat: await settled(system, client, run) for repeat, run in runs.items()}
            evidence = await read_evidence(system.settings)
            for run in found.values():
                is_settled_once(run)
            assert 0 not in [code for code, _ in ends], "a worker that lost its broker stops with an error"
            assert found["with-key"].unknown == []
            doubts_only_what_was_under_way(found["never"], evidence, [at_ms for _, at_ms in ends])
            bill, items = sandbox.summary(), billed_items(system)
            assert bill.billed_twice == 0, bill.billed_twice_examples
            assert items["with-key"] == ROWS
            assert ROWS - len(found["never"].unknown) <= items["never"] <= ROWS
    finally:
        await asyncio.to_thread(local.kill)
