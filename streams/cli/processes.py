"""A worker as a process of its own, which can be killed, and which ends with the process that started it.

For ``dev`` and ``demo``; whoever runs workers for good has a service manager.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streams.settings import PREFIX, Settings

STOP_SECONDS = 10.0
TAIL_LINES = 15


def environment_of(settings: Settings, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a process finds exactly these settings."""
    others = {name: value for name, value in base.items() if not name.startswith(PREFIX)}
    ours = settings.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return others | {f"{PREFIX}{name.upper()}": str(value) for name, value in ours.items()}


class WorkerProcess:
    """``paidonce worker`` in a subprocess, started again and again with the same settings."""

    def __init__(self, settings: Settings, log: Path, base: Mapping[str, str]) -> None:
        self.log = log
        self._environment = environment_of(settings, base)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; 0 before the first start."""
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; ``None`` while it runs, and before the first start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it; what it logs is appended to the log file."""
        command = [sys.executable, "-m", "streams.cli", "worker", "--with-parent"]
        with self.log.open("ab") as log:
            # A session of its own: a Ctrl-C at our terminal reaches us alone, and we decide what follows.
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it with SIGKILL: it gets no chance to finish anything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, and end it when it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """The last lines of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 16_384))
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return f"Last lines of {self.log}:\n" + "\n".join(lines)
