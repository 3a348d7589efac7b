"""Starts the sandbox as a process of its own, which can be killed and which outlives a Ctrl-C.

Synchronous, for the demo and for tests; talks to the admin endpoints with the standard library.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import Request, urlopen

import msgspec

from streams.sandbox.bill import Summary
from streams.sandbox.faults import Fault
from streams.sandbox.settings import Settings

STOP_SECONDS = 5.0
ADMIN_SECONDS = 10.0


class SandboxFailed(RuntimeError):
    """The sandbox's process ended before it listened; its standard error says why."""


class SandboxProcess:
    """A sandbox in a subprocess; `start()` returns once it listens. Ends with this process at the latest."""

    def __init__(
        self,
        *,
        api_key: str,
        bill: Path | str,
        port: int = 0,
        latency_ms: float = 0.0,
        rate: float = 0.0,
        burst: float = 0.0,
        faults: Sequence[Fault] = (),
        seed: int = 7,
        parent_pid: int | None = None,
    ) -> None:
        self.api_key = api_key
        self.url = ""
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        options = {
            "--api-key": api_key,
            "--bill": bill,
            "--port": port,
            "--latency-ms": latency_ms,
            "--rate": rate,
            "--burst": burst,
            "--seed": seed,
            "--parent-pid": os.getpid() if parent_pid is None else parent_pid,
        }
        self._arguments = [f"{name}={value}" for name, value in options.items()]
        self._arguments += [f"--fault={msgspec.json.encode(fault).decode()}" for fault in faults]

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Starts the process and waits for its address; raises SandboxFailed if it ends instead."""
        command = [sys.executable, "-m", "streams.sandbox", *self._arguments]
        # A session of its own: Ctrl-C in the demo's terminal must not take away the bill it is about to read.
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._reap()
            raise SandboxFailed(f"the sandbox ended with exit code {code} before it listened, see its stderr")
        greeting = json.loads(line)
        self.url, self.pid = greeting["url"], greeting["pid"]
        return self

    def stop(self) -> None:
        """Asks it to end (SIGTERM), and makes it after five seconds; does nothing when it has ended."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def kill(self) -> None:
        """Kills it at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def summary(self) -> Summary:
        """The bill and the traffic added up."""
        return msgspec.json.decode(self._admin("/admin/bill/summary"), type=Summary)

    def set_faults(self, *faults: Fault) -> None:
        """Replaces the faults in force."""
        self._admin("/admin/faults", msgspec.json.encode({"faults": faults}))

    def set_settings(self, settings: Settings) -> None:
        """Replaces latency and rate."""
        self._admin("/admin/settings", msgspec.json.encode(settings))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _admin(self, path: str, body: bytes | None = None) -> bytes:
        request = Request(self.url + path, data=body)
        with urlopen(request, timeout=ADMIN_SECONDS) as response:
            content: bytes = response.read()
        return content

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
