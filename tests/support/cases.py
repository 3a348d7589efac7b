"""A system with one worker that tests of reported cases share, and how they look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from schemas.plays import Play
from schemas.progress import RunEvent
from streams.client import Client
from streams.sandbox import SandboxProcess
from streams.sandbox.bill import BillLine, read_bill
from tests.support.scripted_http import ScriptedProvider
from tests.support.system import System


@dataclass(frozen=True)
class Line:
    """The shared system: a worker, the sandbox under two names, a scripted provider, and one that is not there yet."""

    system: System
    sandbox: SandboxProcess
    scripted: ScriptedProvider
    late_port: int

    def billed(self, mark: str) -> list[BillLine]:
        """Lines of the sandbox's bill for items that contain ``mark``."""
        return [line for line in read_bill(self.system.folder / "bill.csv") if mark in line.item]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client(self.system.settings) as client:
            yield client

    async def ended(self, client: Client, play_: Play, rows: Sequence[Mapping[str, Any]], **options: Any) -> RunEvent:
        run = await client.submit(play_, rows, **options)
        end, _ = await self.system.finish(client, run)
        return end


def counts(event: RunEvent) -> dict[str, int]:
    """The counters of rows of a terminal event that are not zero."""
    assert event.counts is not None
    return {name: value for name, value in event.counts.model_dump().items() if value and not name.startswith(("calls", "retries"))}


def only(count: int, **states: int) -> dict[str, int]:
    return {"total": count, "received": count, **states}
