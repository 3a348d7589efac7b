"""A plain consumer is stopped without harm to who reads, also while its broker is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from streams.kafka import consumers
from streams.kafka.consumers import reading


class Consumer:
    """As aiokafka's 0.14 whose broker is away: its stop lets out the CancelledError of a fetch that it cancelled itself."""

    made: list[Consumer]
    start_takes = 0.0

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.closed = False
        self._client = SimpleNamespace(close=self._close)
        Consumer.made.append(self)

    async def _close(self) -> None:
        self.closed = True

    async def start(self) -> None:
        """Connect."""
        await asyncio.sleep(self.start_takes)

    async def stop(self) -> None:
        """Cancel a fetch, and wait for it."""
        fetch = asyncio.ensure_future(asyncio.Event().wait())
        await asyncio.sleep(0)
        fetch.cancel()
        await fetch


@pytest.fixture(autouse=True)
def _away(monkeypatch: pytest.MonkeyPatch) -> None:
    Consumer.made = []
    monkeypatch.setattr(consumers, "AIOKafkaConsumer", Consumer)


async def test_S1_who_read_hears_of_its_own_error_and_not_of_the_stop() -> None:
    """A recovery ended in a CancelledError of the stop, which no ``except Exception`` saw: the worker waited for ever, silently."""
    with pytest.raises(ZeroDivisionError):
        async with reading({"bootstrap_servers": "b"}, isolation_level="read_committed"):
            raise ZeroDivisionError
    (one,) = Consumer.made
    assert one.closed
    assert one.options["isolation_level"] == "read_committed"
    assert (one.options["group_id"], one.options["enable_auto_commit"]) == (None, False)


async def test_S1_who_is_asked_to_end_while_it_reads_ends() -> None:
    async def read() -> None:
        async with reading({}):
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    while not Consumer.made:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Consumer.made[0].closed


async def test_S1_a_start_that_takes_too_long_is_told_and_its_consumer_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumer, "start_takes", 60.0)
    with pytest.raises(TimeoutError):
        async with reading({}, start_seconds=0.01):
            raise AssertionError
    assert Consumer.made[0].closed
