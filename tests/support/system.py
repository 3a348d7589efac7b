"""One system on the test broker: topics and group of its own, a sandbox that bills, and worker processes that can be killed.

For tests with real parts. Nothing here knows what a test expects.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from schemas.plays import Play
from schemas.progress import MapProgress, RunEvent
from streams.broker import topics
from streams.client import Client
from streams.public.publiclog import PublicLog
from streams.sandbox import SandboxProcess
from streams.settings import Settings
from tests.support import wait
from tests.support.wait import wait_until

ROOT = Path(__file__).parent.parent.parent
KEY = "test-key"

PROVIDERS = """
[providers.{name}]
base_url = "{url}"
auth = {{ secret = "env:SANDBOX_KEY" }}
pace = {{ concurrency = {concurrency}{rate} }}

[providers.{name}.tools.email]
path = "/v1/email/check"
repeat = "{repeat}"
price = {{ per_result = 0.004 }}
timeout_seconds = {timeout}

[providers.{name}.tools.emails]
path = "/v1/email/check"
repeat = "{repeat}"
price = {{ per_result = 0.004 }}
timeout_seconds = {timeout}
[providers.{name}.tools.emails.batch]
path = "/v1/email/check/batch"
size_max = {size}
window_ms = {window}
match_key = "id"

# The sandbox ignores keys here, so that what is sent twice is billed twice.
[providers.{name}.tools.phone]
path = "/v1/phone/check"
repeat = "never"
timeout_seconds = {timeout}

[providers.{name}.tools.phones]
path = "/v1/phone/check"
repeat = "never"
timeout_seconds = {timeout}
[providers.{name}.tools.phones.batch]
path = "/v1/phone/check/batch"
size_max = {size}
window_ms = {window}
match_key = "id"
"""


#: What a test may say of a provider and its tools, with what holds otherwise: times in milliseconds (window) and seconds (timeout).
DESCRIBED: dict[str, Any] = {"repeat": "with-key", "concurrency": 8, "rate": "", "size": 20, "window": 50, "timeout": 30.0}


def play(tool: str = "email", *, name: str = "contacts", provider: str = "sandbox") -> Play:
    """A play with one column that checks ``row.email``, or ``row.phone`` with a tool for phones; ``id`` identifies rows."""
    what = "phone" if tool.startswith("phone") else "email"
    return Play.model_validate(
        {
            "name": name,
            "key": ["id"],
            "columns": [{"name": "check", "tool": f"{provider}.{tool}", "input": {what: f"{{{{ row.{what} }}}}"}}],
        }
    )


def people(count: int, *, tag: str = "p") -> list[dict[str, str]]:
    """Rows that are all different."""
    return [
        {"id": f"{tag}{index}", "email": f"{tag}{index}@example.com", "phone": f"+49 30 {index:07d} {tag}"}
        for index in range(count)
    ]


class WorkerProcess:
    """A worker in a process of its own, with its own data folder."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], command: Iterable[str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._environment = dict(environment)
        self._command = list(command)
        self.process: subprocess.Popen[bytes] | None = None
        #: Where its log was when it was started last.
        self._log_start = 0

    def start(self, **settings: object) -> Self:
        """Start it; ``settings`` override those of the system (``kill_at="dispatcher:called"``)."""
        extra = {f"PAIDONCE_{name.upper()}": str(value) for name, value in settings.items()}
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env={**self._environment, **extra}, stdout=log, stderr=log, cwd=ROOT)
        return self

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        assert self.process is not None
        self.process.terminate()

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code, once it has ended by itself."""
        assert self.process is not None
        return self.process.wait(seconds)

    def text(self) -> str:
        """What it has logged, all of its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def partitions(self) -> int:
        """How many partitions of tables it owned when it last said so, in this life."""
        found = re.findall(r"owns (\d+) partitions", self.log.read_bytes()[self._log_start :].decode(errors="replace"))
        return int(found[-1]) if found else 0

    def wait_ready(self, seconds: float = 60.0) -> Self:
        """Wait until it owns partitions."""
        try:
            wait_until(f"{self.name} owns partitions", lambda: self.partitions or not self.running, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.text()[-3000:]}") from None
        assert self.running, f"{self.name} has ended:\n{self.text()[-3000:]}"
        return self

    def end(self) -> None:
        """Make sure that it is gone; a stopped process is continued first."""
        if self.running:
            self.resume()
            self.kill()


class System:
    """Everything a run needs, in ``folder``; an async context manager."""

    def __init__(self, bootstrap: str, folder: Path, *, partitions: int = 4, **settings: Any) -> None:
        self.name = f"t{uuid.uuid4().hex[:10]}"
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.partitions = partitions
        self.providers = folder / "providers.toml"
        self.workers: dict[str, WorkerProcess] = {}
        self.sandbox: SandboxProcess | None = None
        self._settings: dict[str, Any] = {
            "app": self.name,
            "topic_prefix": f"{self.name}.",
            "broker": bootstrap,
            "partitions": partitions,
            "lease_seconds": 3,
            "session_seconds": 3,
            "grace_seconds": 5,
            **settings,
        }

    @property
    def settings(self) -> Settings:
        """Settings for a client in the test's own process."""
        return Settings(**self._settings, data=self.folder / "client", providers=self.providers)

    async def __aenter__(self) -> Self:
        await topics.apply(self.settings.connection(), self.name, self.partitions, 1, f"{self.name}.")
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.end()

    def end(self) -> None:
        """End all its processes."""
        for worker in self.workers.values():
            worker.end()
        if self.sandbox is not None:
            self.sandbox.stop()

    def start_sandbox(
        self,
        **options: Any,
    ) -> SandboxProcess:
        """Start the provider and write the providers file; ``options`` are those of ``DESCRIBED`` and of ``SandboxProcess``."""
        described = {name: options.pop(name) for name in DESCRIBED if name in options}
        self.sandbox = SandboxProcess(api_key=KEY, bill=self.folder / "bill.csv", **options).start()
        self.providers.unlink(missing_ok=True)
        self.add_provider("sandbox", self.sandbox.url, **described)
        return self.sandbox

    def add_provider(
        self,
        name: str,
        url: str,
        **described: Any,
    ) -> None:
        """Describe one more provider, with a lane of its own, to workers that start from now on."""
        assert described.keys() <= DESCRIBED.keys(), described
        with self.providers.open("a") as file:
            file.write(PROVIDERS.format(name=name, url=url, **DESCRIBED | described))

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **os.environ,
            "SANDBOX_KEY": KEY,
            "PYTHONUNBUFFERED": "1",
            # A worker that crashes says where.
            "PYTHONFAULTHANDLER": "1",
            **{f"PAIDONCE_{key.upper()}": str(value) for key, value in self._settings.items()},
            "PAIDONCE_PROVIDERS": str(self.providers),
            "PAIDONCE_DATA": str(self.folder / name),
        }

    def worker(self, name: str = "w1", **settings: object) -> WorkerProcess:
        """Start a worker; the same name is the same data folder."""
        worker = self.workers.get(name)
        if worker is None:
            command = [sys.executable, "-m", "streams.cli", "worker"]
            worker = self.workers[name] = WorkerProcess(name, self.folder, self._environment(name), command)
        return worker.start(**settings)

    def command(self, *arguments: str, code: int = 0, seconds: float = 120.0) -> str:
        """Run a command of ``paidonce`` on this system; its standard output, once it has ended with ``code``."""
        done = subprocess.run(
            [sys.executable, "-m", "streams.cli", *arguments],
            env=self._environment("client"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    async def finish(self, client: Client, run: str, *, seconds: float = 60.0) -> tuple[RunEvent, list[MapProgress]]:
        """Wait for the end of a run: its terminal event, and all samples of its progress."""
        samples: list[MapProgress] = []

        async def read() -> RunEvent:
            async for event in client.progress(run):
                if isinstance(event, RunEvent) and event.terminal:
                    return event
                if isinstance(event, MapProgress):
                    samples.append(event)
            raise AssertionError(f"the progress of {run} ended without a terminal event")

        try:
            return await asyncio.wait_for(read(), seconds), samples
        except TimeoutError:
            logs = "\n".join(f"--- {worker.name}\n{worker.text()[-3000:]}" for worker in self.workers.values())
            last = samples[-1].message if samples else "no progress at all"
            raise AssertionError(f"{run} did not end in {seconds:g} s; {last}\n{logs}") from None

    async def calls_under_way(self, count: int) -> None:
        """Wait until the sandbox works on that many calls at once."""

        async def busy() -> bool:
            assert self.sandbox is not None
            return self.sandbox.summary().in_flight >= count

        await wait.until(f"{count} calls are under way", busy)

    async def ledger(self, client: Client, run: str, *, until: str | None = None) -> list[RunEvent]:
        """All events in a run's ledger so far; with ``until``, once it holds an event of that type."""
        log = PublicLog(self.settings)
        events: list[RunEvent] = []

        async def read() -> bool:
            events[:] = [
                RunEvent.model_validate_json(record.value)
                async for record in log.stored([log.home(run, "run-events")])
                if record.key == run.encode()
            ]
            return until is None or any(event.type == until for event in events)

        await wait.until(f"the ledger of {run} holds {until}", read)
        return events

    async def ends(self) -> dict[str, int]:
        """Where each topic of events ends, summed over its partitions; the journal of turns is none of them."""
        log = PublicLog(self.settings)
        tps = log.all(*(name for name in topics.TOPICS if name != "turns"))
        async with log.consumer(tps) as consumer:
            found = await consumer.end_offsets(tps)
        sums: dict[str, int] = {}
        for tp, offset in found.items():
            sums[log.name_of(tp)] = sums.get(log.name_of(tp), 0) + offset
        return sums

    @contextlib.asynccontextmanager
    async def supervised(self) -> AsyncIterator[list[tuple[int, int]]]:
        """Start again every worker that ends, as a supervisor would; yields their exit codes with the times (Unix ms)."""
        ends: list[tuple[int, int]] = []

        async def watch() -> None:
            while True:
                for name, worker in self.workers.items():
                    if worker.process is not None and not worker.running:
                        ends.append((worker.wait(), time.time_ns() // 1_000_000))
                        self.worker(name)
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        try:
            yield ends
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
