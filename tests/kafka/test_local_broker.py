"""The local broker against the real Apache Kafka: it keeps its address and its data, and ends cleanly.

Kills real processes. The tests share one folder where they can, since a start takes seconds; each begins with
`start()`, so their order does not matter.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import streams
from streams.broker import jars
from streams.broker.local import BrokerError, LocalBroker, RunningBroker

#: One process runs all of these tests: they share what one fixture prepares.
pytestmark = pytest.mark.xdist_group("local-broker")

ROOT = Path(streams.__file__).parents[1]
START = """
import os, sys
from pathlib import Path
from streams.broker.local import LocalBroker
parent = os.getpid() if sys.argv[2] == "parent" else None
print(LocalBroker(Path(sys.argv[1])).start(parent_pid=parent).pid, flush=True)
if parent is not None:
    sys.stdin.read()
"""


def wait_until(what: str, predicate: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        threading.Event().wait(0.05)


def starter(folder: Path, mode: str = "") -> "subprocess.Popen[str]":
    """A process of its own that starts the broker; with `parent` the broker is to end with it."""
    command = [sys.executable, "-c", START, str(folder), mode]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path_factory.mktemp("shared") / "broker")
    yield broker
    broker.kill()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path / "broker")
    yield broker
    broker.kill()


async def create_topic(bootstrap: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
        assert [error[1] for error in answer.topic_errors] == [0]
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, values: list[bytes], **options: object) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=9 << 20, **options)
    await producer.start()
    try:
        assert await producer.client.fetch_all_metadata()
        for value in values:
            await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(15):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def test_it_listens_on_loopback_and_takes_an_event_of_eight_mebibytes(shared: LocalBroker) -> None:
    running = shared.start()
    host, port = running.bootstrap.split(":")
    listening = {c.laddr for c in psutil.Process(running.pid).net_connections() if c.status == psutil.CONN_LISTEN}
    assert host == "127.0.0.1"
    assert int(port) in {address.port for address in listening}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}

    async def scenario() -> None:
        await create_topic(running.bootstrap, "large")
        await produce(running.bootstrap, "large", [b"x" * (8 << 20)])
        assert len((await consume(running.bootstrap, "large", 1))[0]) == 8 << 20

    asyncio.run(scenario())


def test_a_second_start_returns_the_running_broker(shared: LocalBroker) -> None:
    running = shared.start()
    assert shared.start() == running
    assert LocalBroker(shared.folder).start(parent_pid=os.getpid()) == running
    assert shared.status() == running


def test_what_was_acknowledged_survives_kill_9_at_the_same_address(shared: LocalBroker) -> None:
    before = shared.start()
    values = [b"%d" % n for n in range(100)]

    async def write() -> None:
        await create_topic(before.bootstrap, "kept")
        await produce(before.bootstrap, "kept", values, enable_idempotence=True)

    asyncio.run(write())
    os.kill(before.pid, signal.SIGKILL)
    after = shared.start()
    assert after.pid != before.pid
    assert after.bootstrap == before.bootstrap
    assert asyncio.run(consume(after.bootstrap, "kept", 100)) == values


def test_stop_is_clean_and_a_second_stop_finds_nothing(shared: LocalBroker) -> None:
    running = shared.start()
    assert shared.stop() is True
    assert not psutil.pid_exists(running.pid)
    assert (shared.folder / "data" / ".kafka_cleanshutdown").exists()
    assert shared.status() is None
    assert shared.stop() is False


def test_reset_deletes_the_data_and_keeps_the_address(shared: LocalBroker) -> None:
    shared.start()
    address = (shared.folder / "address.json").read_bytes()
    shared.reset()
    assert shared.status() is None
    assert not (shared.folder / "data").exists()
    assert (shared.folder / "address.json").read_bytes() == address


@pytest.mark.deep
def test_of_two_processes_that_start_at_once_one_does_and_the_broker_outlives_both(
    fresh: LocalBroker,
) -> None:
    both = [starter(fresh.folder) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    running = fresh.status()
    assert running is not None
    assert [int(out) for out, _ in answers] == [running.pid] * 2


@pytest.mark.deep
def test_it_stops_cleanly_when_its_parent_is_killed(shared: LocalBroker) -> None:
    shared.stop()
    parent = starter(shared.folder, "parent")
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert shared.status() == RunningBroker(
        bootstrap=f"127.0.0.1:{json.loads((shared.folder / 'address.json').read_text())['client']}",
        pid=pid,
        folder=shared.folder,
        log=shared.folder / "broker.log",
    )
    parent.kill()
    parent.communicate()
    clean = shared.folder / "data" / ".kafka_cleanshutdown"
    wait_until("the broker has ended cleanly", lambda: shared.status() is None and clean.exists())


def test_a_recorded_pid_that_is_now_another_process_is_left_alone(fresh: LocalBroker) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        fresh.folder.mkdir()
        record = {"broker": {"pid": other.pid, "created": psutil.Process(other.pid).create_time() - 60}}
        (fresh.folder / "broker.json").write_text(json.dumps(record))
        assert fresh.status() is None
        fresh.kill()
        assert fresh.stop() is False
        fresh.reset()
        assert other.poll() is None


def test_a_taken_port_is_named_with_the_file_that_remembers_it(fresh: LocalBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        fresh.folder.mkdir()
        (fresh.folder / "address.json").write_text(json.dumps({"client": port, "controller": port}))
        with pytest.raises(BrokerError, match=rf"Port {port} .*address\.json, is taken .* Next: end that one"):
            fresh.start()


def test_a_broker_that_dies_while_starting_shows_its_last_lines(fresh: LocalBroker) -> None:
    (fresh.folder / "data").mkdir(parents=True)
    (fresh.folder / "data" / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=77\n")
    with pytest.raises(BrokerError, match=r"ended while starting(.|\n)*broker\.log:(.|\n)*77(.|\n)*Next: see"):
        fresh.start()
    assert fresh.status() is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match=r"folder .*file/broker cannot be written .*choose another folder"):
        LocalBroker(tmp_path / "file" / "broker").start()


def test_a_failed_download_says_what_to_do(tmp_path: Path) -> None:
    """In a process of its own, since jgo reads where its repository is from the environment."""
    settings = tmp_path / "jgo.conf"
    settings.write_text("[repositories]\ncentral = http://127.0.0.1:1\n")
    code = """
from pathlib import Path
from streams.broker.local import BrokerError, LocalBroker
try:
    LocalBroker(Path("broker"), jar_cache=Path("jars"), on_progress=print).start()
except BrokerError as error:
    print("said:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"JGO_CONFIG_FILE": str(settings), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "attempt 3 of 3" in done.stdout, done
    assert f"said: Apache Kafka {jars.KAFKA_VERSION} could not be downloaded into" in done.stdout
    assert "Next: check the network" in done.stdout
