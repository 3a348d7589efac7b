"""A thread that ends the process when its event loop, its fetcher or its group heartbeat has stalled (case B4).

A worker that merely looks alive keeps its partitions from everyone else. Ending it is safe at any moment: what it had not
committed was not done. It decides by clocks alone and touches no state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

EXIT_CODE = 70


class Watchdog:
    """Watches named signs of life; each must come again within its limit, in seconds."""

    def __init__(self, *, check_seconds: float = 1.0, end: Callable[[str], None] | None = None) -> None:
        self._check_seconds = check_seconds
        self._end = end or _end_process
        self._signs: dict[str, tuple[Callable[[], float], float]] = {}
        self._stopped = threading.Event()
        self._checked_at = time.monotonic()
        self._loop_beat = time.monotonic()

    def expect(self, name: str, seen_at: Callable[[], float], limit_seconds: float) -> None:
        """``seen_at`` gives the monotonic time of the last sign of life."""
        self._signs[name] = (seen_at, limit_seconds)

    def start(self, loop: asyncio.AbstractEventLoop, *, loop_limit_seconds: float) -> None:
        """Begin to watch; the event loop itself is watched by a call that it makes to itself."""

        def beat() -> None:
            self._loop_beat = time.monotonic()
            if not self._stopped.is_set():
                loop.call_later(self._check_seconds / 2, beat)

        beat()
        self.expect("event loop", lambda: self._loop_beat, loop_limit_seconds)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def stalled(self, now: float) -> str | None:
        """What has stalled, in words, or ``None``."""
        for name, (seen_at, limit) in self._signs.items():
            silent = now - seen_at()
            if silent > limit:
                return f"the {name} has given no sign of life for {silent:.1f} s (limit {limit:g} s)"
        return None

    def _watch(self) -> None:
        while not self._stopped.wait(self._check_seconds):
            now = time.monotonic()
            # After a pause of the whole process (SIGSTOP, a sleeping machine) everyone gets time to catch up first.
            paused = now - self._checked_at > self._check_seconds * 3
            self._checked_at = now
            if paused:
                self._stopped.wait(max(limit for _, limit in self._signs.values()))
                self._checked_at = time.monotonic()
                continue
            reason = self.stalled(now)
            if reason is not None:
                self._end(reason)
                return


def end_by(seconds: float, code: int) -> threading.Timer:
    """End the process with ``code`` after ``seconds``, whatever still waits for whom; cancel the timer when all is well."""
    timer = threading.Timer(seconds, _end_stop, [seconds, code])
    timer.daemon = True
    timer.start()
    return timer


def _end_stop(seconds: float, code: int) -> None:
    log.critical("the stop did not finish in %g s; ending with exit code %d", seconds, code)
    os._exit(code)


def _end_process(reason: str) -> None:
    log.critical("worker ends: %s; another worker takes its partitions over", reason)
    os._exit(EXIT_CODE)
