"""Workers and brokers are killed, stopped and joined in mid-run; the provider's bill says whether anything was paid twice.

Runs with `repeat = "never"` use the endpoint that ignores idempotency keys: there, what is sent twice is billed twice.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.progress import MapProgress, RunEvent
from streams.broker.local import LocalBroker
from streams.client import Client
from streams.sandbox import Summary
from streams.sheet import SheetLine
from tests.support.evidence import Evidence, read_evidence
from tests.support.system import System, people, play
from tests.support.wait import until

ROWS = 240
#: Steps at which a worker kills itself, and how often it passes them before: with calls under way and rows to come.
POINTS: Mapping[str, int] = {
    "dispatcher:claimed": 6,
    "dispatcher:granted": 6,
    "dispatcher:calling": 6,
    "dispatcher:called": 6,
    "dispatcher:completed": 6,
    "receipts:folded": 7,
    "receipts:committed": 7,
    "receipts:written": 7,
    "rows:committed": 6,
    "runs:committed": 3,
}
TOOLS = {"with-key": "emails", "never": "phones"}
SCENARIOS = [
    *((point, repeat, "kept") for point in POINTS for repeat in TOOLS),
    *((point, repeat, "emptied") for point in ("dispatcher:called", "rows:committed") for repeat in TOOLS),
]
#: Systems that are killed and mended at the same time.
AT_ONCE = 4


@dataclass(frozen=True)
class Survived:
    """What is there after a run whose worker was killed."""

    end: RunEvent
    samples: list[MapProgress]
    lines: list[SheetLine]
    bill: Summary
    evidence: Evidence
    killed_ms: int

    @property
    def by_status(self) -> dict[str, list[SheetLine]]:
        """Lines of the export by the status of their row."""
        found: dict[str, list[SheetLine]] = {}
        for line in self.lines:
            found.setdefault("missing" if line.row is None else line.row.status, []).append(line)
        return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def receipt_of(line: SheetLine) -> str:
    assert line.row is not None
    receipt = line.row.cells["check"].receipt
    assert receipt is not None
    return receipt


async def survive(bootstrap: str, folder: Path, point: str, repeat: str, data: str) -> Survived:
    """A run whose worker kills itself at ``point``, and is started again on its data folder or on an empty one."""
    async with System(bootstrap, folder, partitions=2, lease_seconds=2) as system:
        sandbox = await asyncio.to_thread(lambda: system.start_sandbox(repeat=repeat, concurrency=4, size=10, latency_ms=60))
        worker = system.worker("w1", kill_at=point, kill_after=POINTS[point])
        async with Client(system.settings) as client:
            run = await client.submit(play(TOOLS[repeat]), people(ROWS))
            code = await asyncio.to_thread(worker.wait, 60)
            killed_ms = now_ms()
            assert code == -signal.SIGKILL, worker.text()
            assert sandbox.summary().billed_items < ROWS, "the kill fell when all was done"
            if data == "emptied":
                shutil.rmtree(folder / "w1")
            system.worker("w1")
            end, samples = await system.finish(client, run)
            lines = [line async for line in client.rows(run)]
        evidence = await read_evidence(system.settings)
        return Survived(end, samples, lines, sandbox.summary(), evidence, killed_ms)


@pytest.fixture(scope="module")
def survivors(broker: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Survived | BaseException]:
    """All scenarios, some at a time: nearly all of their time is waiting for leases to expire."""
    root = tmp_path_factory.mktemp("kills")

    async def all_of_them() -> list[Survived | BaseException]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, scenario: tuple[str, str, str]) -> Survived:
            async with room:
                return await survive(broker, root / str(number), *scenario)

        return await asyncio.gather(*(one(number, scenario) for number, scenario in enumerate(SCENARIOS)), return_exceptions=True)

    return dict(zip(SCENARIOS, asyncio.run(all_of_them()), strict=True))


def survivor(survivors: dict[tuple[str, str, str], Survived | BaseException], *scenario: str) -> Survived:
    found = survivors[scenario]  # type: ignore[index]
    if isinstance(found, BaseException):
        raise found
    return found


def rows_are_settled_once(after: Survived) -> None:
    """Each input line has one state, in input order, and the counters say the same."""
    counts = after.end.counts
    assert counts is not None
    assert [line.position for line in after.lines] == list(range(ROWS))
    states = {name: len(lines) for name, lines in after.by_status.items()}
    assert states == {name: n for name, n in (("completed", counts.completed), ("unknown", counts.unknown)) if n}
    assert counts.completed + counts.unknown == counts.total == ROWS
    done = [sample.counts.done for sample in after.samples]
    assert done == sorted(done)
    assert done[-1] == ROWS


@pytest.mark.parametrize(("point", "data"), [(point, data) for point, repeat, data in SCENARIOS if repeat == "never"])
def test_a_killed_worker_pays_nothing_twice_and_doubts_only_what_was_under_way(
    survivors: dict[tuple[str, str, str], Survived | BaseException], point: str, data: str
) -> None:
    after = survivor(survivors, point, "never", data)
    rows_are_settled_once(after)
    assert after.end.type == "run.completed"
    unknown = after.by_status.get("unknown", [])
    assert after.end.code == ("unknown_outcomes" if unknown else "")
    assert after.bill.billed_twice == 0, after.bill.billed_twice_examples
    assert ROWS - len(unknown) <= after.bill.billed_items <= ROWS
    assert len(unknown) <= 4 * 10, "more than the calls that may be under way at once"
    not_granted = [
        (line.position, after.evidence.of(receipt_of(line)))
        for line in unknown
        if not after.evidence.lost_in_flight(receipt_of(line), [after.killed_ms])
    ]
    assert not_granted == []


@pytest.mark.parametrize(("point", "data"), [(point, data) for point, repeat, data in SCENARIOS if repeat == "with-key"])
def test_a_killed_worker_repeats_lost_calls_under_their_keys_and_pays_nothing_twice(
    survivors: dict[tuple[str, str, str], Survived | BaseException], point: str, data: str
) -> None:
    after = survivor(survivors, point, "with-key", data)
    rows_are_settled_once(after)
    assert (after.end.type, after.end.code) == ("run.completed", "")
    assert after.by_status.keys() == {"completed"}
    assert (after.bill.billed_items, after.bill.billed_twice) == (ROWS, 0), after.bill.billed_twice_examples


async def test_a_zombie_neither_calls_nor_writes_and_its_late_answers_settle_what_was_unknown(system: System) -> None:
    """The first worker is stopped for longer than its leases and its session; its calls' answers wait in its sockets."""
    sandbox = system.start_sandbox(repeat="never", concurrency=2, size=5, latency_ms=1000)
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
    assert (after.billed_items, after.billed_twice, after.requests) == (50, 0, 10)
    assert other.running
    evidence = await read_evidence(system.settings)
    late = [attempt for numbered in evidence.attempts.values() for attempt in numbered.values() if attempt.expired_ms]
    assert len(late) == 10
    assert all(attempt.ended_ms is not None and attempt.ended_ms > attempt.expired_ms for attempt in late)


async def test_a_worker_that_joins_leaves_long_calls_in_flight_alone(system: System) -> None:
    """The rebalance takes every partition from everyone for a moment; calls of 3 s with leases of 2 s go through it."""
    sandbox = system.start_sandbox(repeat="never", concurrency=4, latency_ms=3000)
    first = system.worker("w1", lease_seconds=2)
    async with Client(system.settings) as client:
        run = await client.submit(play("phone"), people(8))
        await system.calls_under_way(4)
        second = system.worker("w2", lease_seconds=2)
        await asyncio.to_thread(second.wait_ready)
        assert sandbox.summary().in_flight == 4, "the rebalance took longer than the calls; nothing was shown"
        end, _ = await system.finish(client, run)
    assert end.counts is not None
    assert (end.counts.completed, end.counts.unknown) == (8, 0)
    bill = sandbox.summary()
    assert (bill.billed_items, bill.billed_twice, bill.requests) == (8, 0, 8)
    evidence = await read_evidence(system.settings)
    attempts = [attempt for numbered in evidence.attempts.values() for attempt in numbered.values()]
    assert [attempt for attempt in attempts if attempt.expired_ms] == []
    assert first.running
    assert second.running


async def test_a_broker_that_is_killed_and_comes_back_costs_no_row_and_no_second_payment(tmp_path: Path) -> None:
    """The workers may go with it; what a supervisor would start again goes on."""
    local = LocalBroker(tmp_path / "broker")
    running = local.start(parent_pid=os.getpid())
    try:
        await asyncio.gather(
            *(outage(local, running.bootstrap, tmp_path / repeat, repeat) for repeat in TOOLS),
            kill_once(local, running.pid, [tmp_path / repeat / "bill.csv" for repeat in TOOLS]),
        )
    finally:
        local.kill()


async def kill_once(local: LocalBroker, pid: int, bills: list[Path]) -> None:
    """SIGKILL the broker when both runs have begun to pay, and start it again on its data."""

    async def both_began() -> bool:
        return all(bill.exists() and bill.read_bytes().count(b"\n") > 30 for bill in bills)

    await until("both runs have begun to pay", both_began)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(local.start, parent_pid=os.getpid())


async def outage(local: LocalBroker, bootstrap: str, folder: Path, repeat: str) -> None:
    """A run that has the broker killed under it."""
    async with System(bootstrap, folder, partitions=2, lease_seconds=2) as system:
        sandbox = await asyncio.to_thread(lambda: system.start_sandbox(repeat=repeat, concurrency=4, size=10, latency_ms=250))
        system.worker("w1")
        began_ms = now_ms()
        async with Client(system.settings) as client, system.supervised() as codes:
            run = await client.submit(play(TOOLS[repeat]), people(ROWS))
            end, samples = await system.finish(client, run, seconds=90)
            lines = [line async for line in client.rows(run)]
        evidence = await read_evidence(system.settings)
        after = Survived(end, samples, lines, sandbox.summary(), evidence, now_ms())
        rows_are_settled_once(after)
        assert 0 not in codes
        assert after.bill.billed_twice == 0, after.bill.billed_twice_examples
        unknown = [receipt_of(line) for line in after.by_status.get("unknown", [])]
        if repeat == "with-key":
            assert unknown == []
            assert after.bill.billed_items == ROWS
        else:
            assert began_ms < after.killed_ms
            assert all(any(attempt.granted_ms for attempt in evidence.of(receipt)) for receipt in unknown)
            assert len(unknown) <= 4 * 10
