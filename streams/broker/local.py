"""Apache Kafka without Docker or an installed Java: one KRaft node with its data in a folder, on loopback.

Demo, `dev` and the tests run against it. It starts and ends that node and does nothing in it: topics are made
by `broker.topics`. It never signals a process that it did not start.
"""

import base64
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from streams.broker import jars, node
from streams.broker.jars import BrokerError, needs_extra

try:
    import psutil

    from streams.broker import watchdog
except ImportError:  # without the extra `[local]`: said clearly where a broker is asked for
    psutil = None  # type: ignore[assignment]  # looked at before every use

__all__ = ["BrokerError", "LocalBroker", "RunningBroker"]

POLL_SECONDS = 0.05
LOCK_WAIT_SECONDS = 600.0  # another process may be in its first start, which downloads
FORMAT_SECONDS = 60.0
PARENT_GONE_GRACE_SECONDS = 20.0
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_TAIL_LINES = 20
READY = b"Kafka Server started"


@dataclass(frozen=True)
class RunningBroker:
    """A broker that was seen to answer."""

    bootstrap: str
    pid: int
    folder: Path
    log: Path


class _Identity(msgspec.Struct, frozen=True):
    """A pid alone may be another process by now."""

    pid: int
    created: float


class _Record(msgspec.Struct, frozen=True):
    """The broker's process in this folder, and the process whose end stops it."""

    broker: _Identity
    parent: _Identity | None = None


_T = TypeVar("_T")


class LocalBroker:
    """The broker whose data is in `folder`. Its methods may be called by any number of processes at once.

    `on_progress` gets one line for each step worth showing; `jar_cache` is shared by all folders of a user.
    """

    def __init__(self, folder: Path, *, on_progress: Callable[[str], None] | None = None, jar_cache: Path | None = None) -> None:
        if psutil is None:
            raise needs_extra("psutil")
        self.folder = folder.resolve()
        self.log = self.folder / "broker.log"
        self._progress = on_progress if on_progress is not None else _silent
        self._cache = jar_cache.resolve() if jar_cache is not None else jars.default_cache()
        self._data = self.folder / "data"
        self._temporary = self.folder / "tmp"
        self._properties = self.folder / "server.properties"
        self._address_file = self.folder / "address.json"
        self._record_file = self.folder / "broker.json"

    def start(self, *, parent_pid: int | None = None, timeout_seconds: float = 60) -> RunningBroker:
        """Start the broker, or return the one that runs already; back when it answers.

        With `parent_pid` it is stopped cleanly once that process has ended. Whoever really starts it decides:
        for a broker that runs already, `parent_pid` changes nothing. `timeout_seconds` is for the broker; the
        download before a first start has its own limits.
        """
        parent = self._identify_parent(parent_pid)
        with self._locked():
            running = self._already_running(timeout_seconds)
            if running is not None:
                return running
            self._check_ports()
            java = self._java()
            self._prepare(java)
            self._progress("starting Apache Kafka")
            log_from = self.log.stat().st_size
            process = self._spawn([*java, "kafka.Kafka", str(self._properties)], parent)
            return self._wait_until_ready(process, log_from, timeout_seconds)

    def status(self) -> RunningBroker | None:
        """The broker, if its process is alive, is the one we started, and answers the Kafka protocol."""
        process = self._recorded()
        if process is None or not node.answers(self._address().client):
            return None
        return self._running(process)

    def stop(self, *, grace_seconds: float = 20) -> bool:
        """Stop the broker cleanly, by force after `grace_seconds`. False: there was none to stop."""
        if not self.folder.is_dir():
            return False
        with self._locked():
            return self._stop(grace_seconds)

    def kill(self) -> None:
        """End the broker like a power cut ends it: for tests of what survives."""
        process = self._recorded()
        if process is not None:
            self._give_up(process)

    def reset(self) -> None:
        """Stop the broker and delete its data. The downloaded jars and the address stay."""
        if not self.folder.is_dir():
            return
        with self._locked():
            self._stop(PARENT_GONE_GRACE_SECONDS)
            for path in (self._data, self._temporary):
                shutil.rmtree(path, ignore_errors=True)
            if self._data.exists():
                raise BrokerError(f"{self._data} cannot be deleted. Next: delete it by hand, then start again.")

    def _stop(self, grace_seconds: float) -> bool:
        process = self._recorded()
        if process is not None and not watchdog.end(process, grace_seconds):
            self._progress(f"Apache Kafka did not stop within {grace_seconds:g} s and was killed")
        self._record_file.unlink(missing_ok=True)
        return process is not None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One start or stop at a time for this folder, over all processes and threads."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.folder / "lock", "w")  # noqa: SIM115  # closed below; open() alone is to be guarded
        except OSError as refused:
            raise BrokerError(
                f"The broker's folder {self.folder} cannot be written ({refused.strerror}: "
                f"{refused.filename}). Next: make it writable, or choose another folder."
            ) from refused
        with lock:
            deadline = time.monotonic() + LOCK_WAIT_SECONDS
            waiting = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waiting:
                        self._progress("waiting for another process that starts or stops this broker")
                    waiting = True
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"{self.folder}/lock has been held by another process for {LOCK_WAIT_SECONDS:g} s. "
                        f"Next: see who holds it (fuser {self.folder}/lock) and end that start or stop."
                    )
                time.sleep(POLL_SECONDS)
            yield

    def _identify_parent(self, parent_pid: int | None) -> _Identity | None:
        if parent_pid is None:
            return None
        try:
            return _Identity(parent_pid, psutil.Process(parent_pid).create_time())
        except psutil.NoSuchProcess as gone:
            raise BrokerError(
                f"The broker was to stop with process {parent_pid}, which does not exist. "
                "Next: give the pid of a living process, or no parent_pid."
            ) from gone

    def _recorded(self) -> "psutil.Process | None":
        """The living process that is this folder's broker, however it was asked to start."""
        record = _read(self._record_file, _Record)
        if record is None:
            return None
        try:
            process = psutil.Process(record.broker.pid)
            # Create times are counted from the boot on the wall clock, which may have been stepped since;
            # then the command line, which ends with a file of this folder, still tells.
            same = abs(process.create_time() - record.broker.created) < 1
            if not same and process.cmdline()[-1:] != [str(self._properties)]:
                return None
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        watchdog.collect(process.pid)
        return process if watchdog.is_alive(process) else None

    def _is_doomed(self) -> bool:
        record = _read(self._record_file, _Record)
        if record is None or record.parent is None:
            return False
        try:
            # Without the create time, which a stepped clock moves: when in doubt the broker stays.
            return not watchdog.is_alive(psutil.Process(record.parent.pid))
        except psutil.NoSuchProcess:
            return True

    def _running(self, process: "psutil.Process") -> RunningBroker:
        return RunningBroker(f"{node.HOST}:{self._address().client}", process.pid, self.folder, self.log)

    def _address(self) -> node.Address:
        address = _read(self._address_file, node.Address)
        if address is None:
            address = node.free_address()
            _write(self._address_file, address)
        return address

    def _check_ports(self) -> None:
        for port in msgspec.structs.astuple(self._address()):
            if not node.is_free(port):
                raise BrokerError(
                    f"Port {port} on {node.HOST}, this broker's by {self._address_file}, is taken by another "
                    f"program. Next: end that one, or delete {self._address_file} to get a new address."
                )

    def _java(self) -> list[str]:
        """The command up to the main class; downloads what is missing."""
        return [
            str(jars.java()),
            *node.java_options(self._temporary),
            "-cp",
            os.pathsep.join(map(str, jars.classpath(self._cache, self._progress))),
        ]

    def _prepare(self, java: list[str]) -> None:
        """Write what the broker reads, and format its storage if this is the first start here."""
        if "," in str(self.folder):
            raise BrokerError(f"Kafka takes a comma in {self.folder} for a list. Next: choose another folder.")
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            os.replace(self.log, self.log.with_suffix(".log.1"))
        self.log.touch()
        self._properties.write_text(node.properties(self._address(), self._data))
        if not (self._data / "meta.properties").exists():
            self._progress("formatting storage")
            self._format(java)

    def _format(self, java: list[str]) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # `=` and not a space: an id may begin with a hyphen
        arguments = [
            "format",
            f"--cluster-id={cluster}",
            "--ignore-formatted",
            f"--config={self._properties}",
        ]
        log_from = self.log.stat().st_size
        with open(self.log, "ab") as log:
            done = subprocess.run(
                [*java, "kafka.tools.StorageTool", *arguments],
                env=node.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=FORMAT_SECONDS,
            )
        if done.returncode != 0:
            raise BrokerError(
                f"Kafka could not format {self._data} (exit code {done.returncode}). {self._tail(log_from)}\n"
                "Next: see the lines above; a full disk and a folder of another Kafka are the usual reasons."
            )

    def _spawn(self, command: list[str], parent: _Identity | None) -> "psutil.Process":
        """Start the broker as a process that neither our end nor a Ctrl-C at our terminal reaches."""
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # not Popen, which warns when it is forgotten while its process runs, as is meant here
        pid = os.posix_spawn(
            command[0],
            command,
            node.ENVIRONMENT,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), log_flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        process = psutil.Process(pid)
        broker = _Identity(pid, process.create_time())
        _write(self._record_file, _Record(broker, parent))
        if parent is not None:
            self._guard(process, broker, parent)
        return process

    def _guard(self, process: "psutil.Process", broker: _Identity, parent: _Identity) -> None:
        """Start the watchdog. -P keeps its folder off its path, where `node` could hide another module."""
        numbers = (parent.pid, parent.created, broker.pid, broker.created, PARENT_GONE_GRACE_SECONDS)
        command = [sys.executable, "-P", watchdog.__file__, *map(str, numbers)]
        with open(self.log, "ab") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            self._give_up(process)
            raise BrokerError(
                f"The watchdog that stops the broker with process {parent.pid} failed (exit code "
                f"{done.returncode}), so the broker was stopped. {self._tail(0)}\nNext: see the lines above."
            )

    def _already_running(self, timeout_seconds: float) -> RunningBroker | None:
        """The broker if it runs, or is still coming up because its starter was killed."""
        process = self._recorded()
        if process is not None and self._is_doomed():
            # Its watchdog is about to stop it, so to return it would help nobody.
            watchdog.end(process, PARENT_GONE_GRACE_SECONDS)
        deadline = time.monotonic() + timeout_seconds
        while process is not None and self._recorded() is not None:
            running = self.status()
            if running is not None:
                return running
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"The broker in {self.folder} (pid {process.pid}) does not answer on {node.HOST}, port "
                    f"{self._address().client}. {self._tail(0)}\n"
                    "Next: stop it (paidonce broker stop), then start again."
                )
            time.sleep(POLL_SECONDS)
        return None

    def _wait_until_ready(self, process: "psutil.Process", log_from: int, timeout_seconds: float) -> RunningBroker:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if watchdog.collect(process.pid) or not watchdog.is_alive(process):
                self._give_up(process)
                raise BrokerError(
                    f"Apache Kafka ended while starting in {self.folder}. {self._tail(log_from)}\n"
                    f"Next: see the lines above; the rest is in {self.log}."
                )
            # It answers a little before it takes part in its own cluster, and only then can topics be made.
            if READY in self._log_since(log_from) and node.answers(self._address().client):
                return self._running(process)
            time.sleep(POLL_SECONDS)
        self._give_up(process)
        raise BrokerError(
            f"Apache Kafka in {self.folder} was not ready in {timeout_seconds:g} s and was stopped. "
            f"{self._tail(log_from)}\nNext: start again with a longer timeout; a busy machine and a long "
            "recovery are the usual reasons."
        )

    def _give_up(self, process: "psutil.Process") -> None:
        watchdog.end(process, 0)
        self._record_file.unlink(missing_ok=True)

    def _log_since(self, offset: int) -> bytes:
        with open(self.log, "rb") as log:
            log.seek(offset)
            return log.read()

    def _tail(self, offset: int) -> str:
        lines = self._log_since(offset).decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return f"Last lines of {self.log}:\n" + "\n".join(lines or ["(empty)"])


def _silent(_line: str) -> None:
    pass


def _read(path: Path, kind: type[_T]) -> _T | None:
    """None also for a file that says nothing: we write whole ones only, so it is not ours."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, value: msgspec.Struct) -> None:
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(value))
    os.replace(written, path)
