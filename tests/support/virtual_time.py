"""Virtual time: an event loop that jumps to the next moment at which something happens."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for what is ready, and lets the loop's time jump where the loop would have waited."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits, and nothing will ever happen")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.now = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        """Seconds of virtual time."""
        return self.now


def play(story: Coroutine[Any, Any, None]) -> None:
    """Run a story in virtual time; what failed in a task or a timer fails the test."""
    troubles: list[str] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: troubles.append(repr(context)))
        runner.run(story)
    assert not troubles, troubles
