"""Paid answers while the broker is really away: stopped, killed, standing still, cut off, or without a disk for the journal.

The provider is in the test's hands: it holds its answers until the broker is away, so every answer comes when nothing can be
published.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streams.broker.local import LocalBroker
from streams.client import Client
from tests.support.evidence import read_evidence
from tests.support.proxy import ProxiedBroker, Proxy
from tests.support.scripted_http import ScriptedProvider
from tests.support.system import System, WorkerProcess, people, play
from tests.support.wait import eventually, until, wait_until

#: One process runs all of these tests: they share what one fixture prepares.
pytestmark = pytest.mark.xdist_group("settlement")

UNDER_WAY, ROWS = 4, 12
REPEATED = re.compile(r"receipt-completions/\d+: the same bytes are published again, copy 2")
STOPPED, AGAIN = "no provider call starts until", "the broker acknowledges again"


@dataclass
class Away:
    """A system whose worker reaches its broker through a proxy, with calls under way that wait for their answers."""

    broker: LocalBroker
    proxy: Proxy
    system: System
    provider: ScriptedProvider
    worker: WorkerProcess
    client: Client
    run: str


@asynccontextmanager
async def calls_under_way(
    broker: ProxiedBroker, folder: Path, *, answer: Callable[[int], object] = lambda number: {"answer": number}, **settings: Any
) -> AsyncIterator[Away]:
    """Four calls of twelve have reached the provider, which does not answer yet; ``answer`` gives the n-th call's."""
    settings = {"partitions": 2, "publish_seconds": 1.0} | settings
    with ScriptedProvider() as provider:
        provider.answer = lambda asked: (200, json.dumps(answer(asked.number)).encode())
        provider.hold()
        async with Proxy(broker.proxy_port, broker.inner_port) as proxy, System(broker.direct, folder, **settings) as system:
            system.add_provider("slow", provider.url, repeat="never", concurrency=UNDER_WAY, timeout=60)
            worker = system.worker("w1", broker=proxy.address)
            async with Client(system.settings) as client:
                run = await client.submit(play("phone", provider="slow"), people(ROWS))

                async def all_there() -> bool:
                    return len(provider.requests) >= UNDER_WAY

                await until("four calls are under way", all_there)
                yield Away(broker, proxy, system, provider, worker, client, run)
            await asyncio.to_thread(system.end)


async def says(worker: WorkerProcess, words: str, *, seconds: float = 30) -> None:
    await asyncio.to_thread(wait_until, f"the worker says {words!r}", lambda: words in worker.text(), seconds=seconds)


async def every_call_was_made_once(away: Away) -> None:
    """All rows are completed, and the provider was asked once for each."""
    end, _ = await away.system.finish(away.client, away.run, seconds=90)
    assert end.counts is not None
    assert (end.type, end.code, end.counts.completed) == ("run.completed", "", ROWS), away.worker.text()[-3000:]
    assert len({asked.body for asked in away.provider.requests}) == len(away.provider.requests) == ROWS


# --- away and back ------------------------------------------------------------------------------------------------


async def cut(away: Away) -> Callable[[], Awaitable[None]]:
    away.proxy.cut()

    async def back() -> None:
        away.proxy.heal()

    return back


async def frozen(away: Away) -> Callable[[], Awaitable[None]]:
    away.proxy.freeze()

    async def back() -> None:
        away.proxy.heal()

    return back


async def standing_still(away: Away) -> Callable[[], Awaitable[None]]:
    running = away.broker.status()
    assert running is not None
    os.kill(running.pid, signal.SIGSTOP)

    async def back() -> None:
        os.kill(running.pid, signal.SIGCONT)

    return back


async def killed(away: Away) -> Callable[[], Awaitable[None]]:
    await asyncio.to_thread(away.broker.kill)

    async def back() -> None:
        await asyncio.to_thread(away.broker.start, parent_pid=os.getpid())

    return back


async def stopped(away: Away) -> Callable[[], Awaitable[None]]:
    await asyncio.to_thread(away.broker.stop)

    async def back() -> None:
        await asyncio.to_thread(away.broker.start, parent_pid=os.getpid())

    return back


@pytest.mark.deep
@pytest.mark.parametrize("how", [cut, frozen, standing_still, killed, stopped], ids=lambda how: how.__name__)
async def test_S6_no_call_is_made_while_the_broker_is_away_and_the_same_process_goes_on_when_it_is_back(
    own_broker: ProxiedBroker, tmp_path: Path, how: Callable[[Away], Awaitable[Callable[[], Awaitable[None]]]]
) -> None:
    """S3 and S4, too: four answers come meanwhile, are published by the ladder, and pay for their rows once."""
    async with calls_under_way(own_broker, tmp_path / "system") as away:
        pid = away.worker.pid
        back = await how(away)
        try:
            away.provider.let_go()
            await says(away.worker, STOPPED)
            calls = len(away.provider.requests)
            assert calls == UNDER_WAY
            await eventually("each answer is published again", lambda: len(REPEATED.findall(away.worker.text())) >= UNDER_WAY)
            assert len(away.provider.requests) == calls
        finally:
            await back()
        await says(away.worker, AGAIN)
        await every_call_was_made_once(away)
        assert (away.worker.running, away.worker.pid) == (True, pid)
        evidence = await read_evidence(away.system.settings)
        assert all(len({event.outcome for _, event in evidence.ends if event.receipt == r}) == 1 for r in evidence.attempts)
        assert not (tmp_path / "system" / "w1" / "salvage.jsonl").exists()
        assert (tmp_path / "system" / "w1" / "answers.journal").stat().st_size == 0


# --- away for good ------------------------------------------------------------------------------------------------


async def test_S5_S8_a_worker_that_ends_without_its_broker_leaves_its_answers_readable_and_the_next_one_publishes_them(
    own_broker: ProxiedBroker, tmp_path: Path
) -> None:
    """S7: the run does not end over it, its rows stay open, nothing is called again; the last lines say how it was left."""
    async with calls_under_way(own_broker, tmp_path / "system", broker_seconds=8, grace_seconds=2) as away:
        away.proxy.cut()
        away.provider.let_go()
        code = await asyncio.to_thread(away.worker.wait, 60)
        assert code == 69, away.worker.text()
        assert len(away.provider.requests) == UNDER_WAY
        path = tmp_path / "system" / "w1" / "salvage.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["why"], line["tool"], line["attempt"]) for line in lines] == [("unpublished", "slow.phone", 1)] * UNDER_WAY
        assert sorted(line["output"]["answer"] for line in lines) == list(range(UNDER_WAY))
        assert f"{UNDER_WAY} paid answers could not be published" in away.worker.text()
        assert "clean-up failed: " in away.worker.text()
        assert f"{UNDER_WAY} calls have ended without the log knowing" in away.worker.text()
        assert [event.type for event in await away.system.ledger(away.client, away.run)] == ["run.started"]
        away.proxy.heal()
        again = away.system.worker("w1", broker=away.proxy.address)
        await every_call_was_made_once(away)
        again.terminate()
        assert await asyncio.to_thread(again.wait, 40) == 0, again.text()
        assert "clean-up done: " in again.text()
        assert f"published {UNDER_WAY} answers that the process before this one had read" in away.worker.text()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert sorted(line["receipt"] for line in lines if line["why"] == "published") == sorted(
            line["receipt"] for line in lines if line["why"] == "unpublished"
        )


async def test_S5_without_room_for_the_journal_a_paid_answer_is_published_all_the_same(
    own_broker: ProxiedBroker, tmp_path: Path
) -> None:
    """The limit on file sizes stands for a full disk: a write fits only in part."""
    async with calls_under_way(own_broker, tmp_path / "system", answer=lambda _number: {"text": "x" * 3_000_000}) as away:
        resource.prlimit(away.worker.pid, resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        away.provider.let_go()
        await every_call_was_made_once(away)
        assert "answers of slow.phone are published without having been journalled" in away.worker.text()
        assert away.worker.running


# --- an orderly stop ----------------------------------------------------------------------------------------------


@pytest.mark.deep
async def test_L7_a_stop_while_the_broker_is_away_ends_in_time_and_keeps_what_was_paid(
    own_broker: ProxiedBroker, tmp_path: Path
) -> None:
    """Leases cannot be released then: they expire, and nothing of it becomes an outcome."""
    async with calls_under_way(own_broker, tmp_path / "system", grace_seconds=2) as away:
        away.proxy.freeze()
        away.provider.let_go()
        await says(away.worker, STOPPED)
        away.worker.terminate()
        code = await asyncio.to_thread(away.worker.wait, 40)
        assert code in (0, 69, 70), away.worker.text()[-5000:]
        path = tmp_path / "system" / "w1" / "salvage.jsonl"
        assert len(path.read_text().splitlines()) == UNDER_WAY
        away.proxy.heal()
        away.system.worker("w1", broker=away.proxy.address)
        await every_call_was_made_once(away)
