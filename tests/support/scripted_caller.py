"""A provider in the test's hands: each call plays the next script, and what was called for is kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from schemas.events import Fault
from streams.tools.port import Answered, CallReport, Doubtful, MemberOutcome, NotDone, ProviderCall

NO = Fault("refused", "no")
BUSY = Fault("http_429", "asked too often", True)
LOST = Fault("lost", "the answer is lost")

Script = Callable[[ProviderCall], "CallReport | Coroutine[Any, Any, CallReport]"]


def each(outcome: Callable[[str], MemberOutcome], *, pause: float | None = None) -> Script:
    """Every member ends alike."""
    return lambda call: CallReport(tuple(outcome(member.receipt) for member in call.members), pause)


def value_of(receipt: str) -> bytes:
    """What the provider answers for a receipt."""
    return f'"{receipt}"'.encode()


ok = each(lambda receipt: Answered(value_of(receipt)))
busy = each(lambda _: NotDone(BUSY, 2.0), pause=2.0)
not_done = each(lambda _: NotDone(Fault("refused_connection", "nobody listens", True)))
doubtful = each(lambda _: Doubtful(LOST))


def raises(call: ProviderCall) -> CallReport:
    """A defect in a caller."""
    raise RuntimeError(f"a defect in {call.tool}")


class Hangs:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.cancelled = False

    async def __call__(self, call: ProviderCall) -> CallReport:
        """Wait for the test, then answer."""
        try:
            await self.ended.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        report = ok(call)
        assert isinstance(report, CallReport)
        return report


class ScriptedCaller:
    """Plays one script a call, in order; ``ok`` where none is left. It keeps what it was called for, and when."""

    def __init__(self) -> None:
        self.scripts: deque[Script] = deque()
        self.calls: list[ProviderCall] = []
        self.at: list[float] = []
        self.closed = False

    async def call(self, call: ProviderCall) -> CallReport:
        """One provider call."""
        self.calls.append(call)
        self.at.append(asyncio.get_running_loop().time())
        script = self.scripts.popleft() if self.scripts else ok
        report = script(call)
        return report if isinstance(report, CallReport) else await report

    async def close(self) -> None:
        """Release connections."""
        self.closed = True

    @property
    def asked(self) -> list[str]:
        """Receipts of each call, in payload order."""
        return ["".join(member.receipt for member in call.members) for call in self.calls]
