"""Waiting for what must come true, with a name for what did not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


def wait_until(what: str, predicate: Callable[[], object], *, seconds: float = 30.0) -> None:
    """Poll until ``predicate`` is true; fail naming ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.02)


async def until(what: str, predicate: Callable[[], Awaitable[object]], *, seconds: float = 30.0) -> None:
    """Poll until the awaited ``predicate`` is true; fail naming ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not await predicate():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain until {what}"
        await asyncio.sleep(0.05)


async def eventually(what: str, predicate: Callable[[], object], *, seconds: float = 30.0) -> None:
    """Poll until ``predicate`` is true, while the loop goes on; fail naming ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain until {what}"
        await asyncio.sleep(0.01)
