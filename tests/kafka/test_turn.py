"""The durable turn on a real broker: whatever is killed, stopped or moved, each message is folded and answered once.

Real processes run the trivial tally engine of ``tests.support.tally``. Where several scenarios take the same steps, they run at
once, each in a system of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from schemas import envelope
from schemas.events import Probed, RunCancelled
from streams.broker.local import LocalBroker
from streams.errors import ConfigurationError, Unreachable
from streams.kafka.recovery import recover
from streams.table import Store, StoreMemory
from tests.support.tally import SOURCES
from tests.support.tally_system import TallySystem, TallyWorker, count_in, counters
from tests.support.wait import eventually, until

SESSION_SECONDS = 3
IDLE_SECONDS = 8
#: So that each turn folds one message, and a kill falls between two turns of many.
ONE_MESSAGE = {"turn_bytes_max": 1}


@pytest.fixture
async def tally(broker: str, tmp_path: Path) -> AsyncIterator[TallySystem]:
    """A fresh system of one to three workers; the test says how many."""
    async with TallySystem(broker, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker of this test's own, to be killed."""
    local = LocalBroker(tmp_path / "broker")
    local.start(parent_pid=os.getpid())
    yield local
    local.kill()


def marks(count: int, tag: str) -> list[str]:
    """Marks of which every third comes again and again."""
    return [f"again{index % 10}" if index % 3 == 0 else f"{tag}{index}" for index in range(count)]


async def together(scenarios: dict[str, Awaitable[None]]) -> None:
    """Run scenarios at once; what fails is named."""
    results = await asyncio.gather(*scenarios.values(), return_exceptions=True)
    failed = [(name, result) for name, result in zip(scenarios, results, strict=True) if result is not None]
    for name, error in failed:
        error.add_note(f"in the scenario: {name}")
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(results)} scenarios failed", [error for _, error in failed])


# --- a process that dies within a turn (case_B1) ---


async def test_a_kill_at_any_step_of_a_turn_loses_nothing_and_doubles_nothing(broker: str, tmp_path: Path) -> None:
    async def killed_at(step: str, *, data_kept: bool) -> None:
        async with TallySystem(broker, tmp_path / f"{step}-{data_kept}", **ONE_MESSAGE) as tally:
            await tally.publish(marks(600, "a"), each=20)
            await tally.publish(marks(100, "b"), each=20, topic=SOURCES[1])
            # The first time in a first turn, which only takes stock; then amid messages.
            for number, passes in enumerate((1, 9)):
                name = "kept" if data_kept else f"folder{number}"
                assert await tally.worker(name, kill_at=f"tally:{step}", kill_after=passes).ended() == -9
            last = "kept" if data_kept else "folder9"
            worker = tally.worker(last)
            await tally.settled()
            await tally.judge()
            worker.terminate()
            assert await worker.ended() == 0
            tally.judge_store(last)

    await together(
        {
            f"{step}, data folder {'kept' if data_kept else 'lost'}": killed_at(step, data_kept=data_kept)
            for step in ("folded", "committed", "written")
            for data_kept in (True, False)
        }
    )


async def test_a_killed_worker_with_its_data_folder_folds_again_without_waiting_for_its_session(
    tally: TallySystem,
) -> None:
    worker = tally.worker()
    await tally.publish(marks(200, "before"))
    await tally.settled()
    worker.kill()
    await tally.publish(marks(200, "after"))
    started = time.monotonic()
    tally.worker()
    await tally.settled()
    seconds = time.monotonic() - started
    print(f"\na killed worker folded again after {seconds:.1f} s, its process's start included")
    # Some 3 s alone; other tests run beside it. Who waits for the old session, and joins then, takes longer than this even alone.
    assert seconds < 15
    await tally.judge()


# --- a process that sleeps and wakes ---


async def test_a_zombie_writes_nothing_once_another_owns_its_partitions(broker: str, tmp_path: Path) -> None:
    """It is stopped amid a turn with more in its inbox, so that it goes on with that turn the moment it wakes."""

    async def stopped_at(step: str) -> None:
        async with TallySystem(broker, tmp_path / step, **ONE_MESSAGE) as tally:
            await tally.publish(marks(1000, "a"), each=10)
            zombie = tally.worker("zombie", kill_at=f"pause:tally:{step}", kill_after=12)
            process = psutil.Process(zombie.pid)
            await eventually("it is stopped", lambda: process.status() == psutil.STATUS_STOPPED)
            heir = tally.worker("heir")
            await tally.settled()
            assert heir.owned == [0, 1]
            first = {partition: turns[0].generation for partition, turns in tally.journal.items()}
            await tally.publish(marks(100, "b"))
            zombie.resume()
            await eventually(f"it noticed: {zombie.said}", lambda: "fenced, dropping the partition" in zombie.said, seconds=20)
            # Two sessions after that it has ended or is a member again; in both cases the system goes on.
            await eventually(
                f"it rejoined or ended: {zombie.said}",
                lambda: not zombie.running or (zombie.owned and len(zombie.owned + heir.owned) == 2),
            )
            await tally.publish(marks(100, "c"))
            await tally.settled()
            await tally.judge()
            for partition, turns in tally.journal.items():
                owners = [turn.owner for turn in turns if turn.generation == first[partition]]
                assert len(owners) <= 13
                assert turns[len(owners)].owner != owners[0], "the next owner after the zombie is the heir"

    await together({step: stopped_at(step) for step in ("folded", "committed")})


# --- several workers ---


async def test_three_workers_share_all_topics_alike_and_count_once_while_they_join_and_leave(broker: str, tmp_path: Path) -> None:
    async with TallySystem(broker, tmp_path, partitions=6) as tally:
        rounds = 0
        enough = asyncio.Event()

        async def nearly_folded() -> bool:
            await tally.look()
            return enough.is_set() or sum(tally.unfolded().values()) < 200

        async def keep_publishing() -> None:
            nonlocal rounds
            while not enough.is_set():
                for topic in SOURCES:
                    await tally.publish(marks(100, f"{rounds}{topic[0]}"), each=10, topic=topic)
                rounds += 1
                # No further ahead of the workers than a few rounds, however slow the machine is.
                await until("they keep up", nearly_folded, seconds=60)

        def shared_by(*workers: TallyWorker) -> bool:
            owned = [partition for worker in workers for partition in worker.owned]
            return sorted(owned) == list(range(6)) and all(worker.owned for worker in workers)

        one, two, three = (tally.worker(name) for name in ("one", "two", "three"))
        publishing = asyncio.create_task(keep_publishing())
        await eventually("three workers share the partitions", lambda: shared_by(one, two, three), seconds=40)
        for worker in (one, two, three):
            state = worker.state
            assert state["assigned"] == dict.fromkeys(SOURCES, state["partitions"])
        two.terminate()
        assert await two.ended() == 0
        await eventually("two share what a third left", lambda: shared_by(one, three))
        one.kill()
        two = tally.worker("two")
        await eventually("a killed one was replaced", lambda: shared_by(two, three))
        enough.set()
        await publishing
        await tally.settled()
        await tally.judge()
        assert rounds > 5


async def test_spare_workers_that_idled_take_over_from_a_killed_one(broker: str, tmp_path: Path) -> None:
    """case_B4: with one partition two of three workers never poll; they must still be members when they are needed."""
    async with TallySystem(broker, tmp_path, partitions=1) as tally:
        workers = [tally.worker(name) for name in ("one", "two", "three")]
        await tally.publish(marks(50, "a"))
        await tally.settled()
        admin = AIOKafkaAdminClient(**tally.connection)
        await admin.start()
        try:
            idle_until = time.monotonic() + IDLE_SECONDS
            await eventually("they have idled", lambda: time.monotonic() > idle_until)
            for number in range(2):
                await eventually("there is one owner", lambda: [len(worker.owned) for worker in workers].count(1) == 1)
                (described,) = await admin.describe_consumer_groups([tally.name])
                assert len(described.groups[0][5]) == len(workers), "all are members"
                active = next(worker for worker in workers if worker.owned)
                workers.remove(active)
                active.kill()
                killed = time.monotonic()
                await tally.publish(marks(50, f"b{number}"))
                await tally.settled(seconds=SESSION_SECONDS + 10)
                print(f"\na spare worker had taken over {time.monotonic() - killed:.1f} s after the kill")
        finally:
            await admin.close()
        await tally.judge()


# --- a broker that dies ---


@pytest.mark.deep
async def test_a_broker_that_is_killed_amid_turns_and_restarted_loses_and_doubles_nothing(
    own_broker: LocalBroker, tmp_path: Path
) -> None:
    running = own_broker.status()
    assert running is not None
    async with TallySystem(running.bootstrap, tmp_path / "system", **ONE_MESSAGE) as tally:
        await tally.publish(marks(6000, "a"), each=10)
        worker = tally.worker()
        await tally.turned(60)
        own_broker.kill()
        await asyncio.to_thread(own_broker.start, parent_pid=os.getpid())
        assert tally.unfolded(), "the kill fell amid the folding"
        await tally.publish(marks(200, "b"))
        await eventually_folded_even_if_restarted(tally, worker)
        await tally.judge()


async def eventually_folded_even_if_restarted(tally: TallySystem, worker: TallyWorker) -> None:
    """The worker outlives its broker's absence, or ends with a word why and goes on when it is started again."""

    async def gone() -> None:
        code = await worker.ended(seconds=120)
        print(f"\nthe worker ended with {code}: {worker.said[-400:]}")
        assert code == Unreachable.exit_code
        assert "worker stops: " in worker.said
        worker.start()
        await asyncio.Event().wait()

    watching = asyncio.create_task(gone())
    try:
        await tally.settled(seconds=60)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()


# --- what a worker refuses ---


async def test_a_worker_refuses_topics_that_are_not_as_they_must_be_and_consumes_nothing(broker: str, tmp_path: Path) -> None:
    """case_H5."""

    async def refused(tally: TallySystem, *words: str) -> None:
        await tally.publish(["mark"])
        worker = tally.worker()
        assert await worker.ended() == ConfigurationError.exit_code, worker.said
        for word in words:
            assert word in worker.said
        assert await tally.read(tally.topic("turns")) == []
        admin = AIOKafkaAdminClient(**tally.connection)
        await admin.start()
        try:
            assert await admin.list_consumer_group_offsets(tally.name) == {}
        finally:
            await admin.close()

    async def wrong() -> None:
        async with TallySystem(broker, tmp_path / "wrong", partitions=4, wrong={"tool-results": 1}, without=["row-work"]) as tally:
            await refused(
                tally,
                f"{tally.name}.tool-results: 1 partitions, expected 4",
                f"{tally.name}.row-work: missing, expected 4",
            )

    async def grown() -> None:
        async with TallySystem(broker, tmp_path / "grown", partitions=4) as tally:
            admin = AIOKafkaAdminClient(**tally.connection)
            await admin.start()
            try:
                await admin.create_partitions({tally.topic(SOURCES[0]): NewPartitions(total_count=8)})
            finally:
                await admin.close()
            await refused(tally, f"{tally.name}.{SOURCES[0]}: 8 partitions, expected 4")

    await together({"wrong and missing": wrong(), "grown": grown()})


async def test_a_data_folder_in_use_and_one_of_another_broker_are_refused(broker: str, tmp_path: Path) -> None:
    async with (
        TallySystem(broker, tmp_path / "here", partitions=1) as here,
        TallySystem(broker, tmp_path / "there", partitions=1) as there,
    ):
        await here.publish(marks(100, "a"))
        holder = here.worker("holder")
        await here.settled()
        folder = tmp_path / "here" / "holder"
        second = here.worker("second", data=folder)
        assert await second.ended() == ConfigurationError.exit_code
        assert f"data folder {folder} is in use by another worker" in second.said
        assert holder.running

        holder.terminate()
        assert await holder.ended() == 0
        stranger = there.worker("stranger", data=folder)
        code = await stranger.ended()
        assert code == ConfigurationError.exit_code
        assert f"data folder {folder} belongs to {here.name} on cluster" in stranger.said
        assert await there.read(there.topic("turns")) == []

        # The refusal has changed nothing in it.
        here.worker("holder")
        await here.publish(marks(100, "b"))
        await here.settled()
        await here.judge()


# --- what cannot be decoded ---


async def test_what_is_no_envelope_of_a_known_version_is_parked_and_what_follows_is_folded(tally: TallySystem) -> None:
    """case_H3: the parked part."""
    source = SOURCES[0]
    header = envelope.headers_of(source)
    newer = envelope.encode([Probed("newer")])
    bad: list[tuple[bytes | None, list[tuple[str, bytes]], str]] = [
        (b"no envelope", header, "not an envelope"),
        (newer, [("schema", f"{source}/{envelope.VERSION + 1}".encode())], f"found '{source}/{envelope.VERSION + 1}'"),
        (envelope.encode([RunCancelled("r")]), envelope.headers_of("row-control"), "found 'row-control/1'"),
        (envelope.encode([RunCancelled("r")]), header, "not an envelope"),
        (newer, [], "found None"),
        (None, header, "without a value"),
    ]
    await tally.publish(marks(100, "before"))
    offsets = [await tally.publish_bytes(1, value, headers) for value, headers, _ in bad]
    await tally.publish(marks(100, "after"))
    before_ms = time.time_ns() // 1_000_000
    tally.worker()
    await tally.settled()
    await tally.judge()
    parked = await tally.read(tally.topic("dead-letters"))
    assert [(record.partition, record.key, record.value) for record in parked] == [
        (1, source.encode(), value) for value, _, _ in bad
    ]
    for record, offset, (_, headers, reason) in zip(parked, offsets, bad, strict=True):
        found = dict(record.headers)
        assert found["source"] == f"{source}/1@{offset}".encode()
        assert reason in found["error"].decode()
        assert before_ms <= int(found["at_ms"]) <= time.time_ns() // 1_000_000
        assert list(record.headers)[-len(headers) :] == headers or not headers


# --- recovery in bulk ---


async def test_an_empty_data_folder_is_filled_in_bulk_from_a_long_changelog(tally: TallySystem, tmp_path: Path) -> None:
    count = 200_000
    await tally.publish([f"m{index}" for index in range(count)], each=envelope.EVENTS_MAX)
    worker = tally.worker()
    await tally.settled(seconds=90)
    worker.terminate()
    assert await worker.ended() == 0

    # The figure, without the start of a process and its joining the group.
    memory = StoreMemory()
    stores = {
        TopicPartition(tally.changelog, partition): Store(tmp_path / "bare" / str(partition), memory)
        for partition in range(tally.partitions)
    }
    records = await recover(stores, tally.connection, still_owned=lambda: True)
    assert records >= count
    for tp, store in stores.items():
        found = {key: count_in(value) for key, value in store.scan(b"v")}
        assert found == counters(tally.published[tp.partition])
        store.close()

    fresh = tally.worker("fresh")
    await tally.publish([f"m{index}" for index in range(0, count, 100)])
    await tally.settled()
    assert fresh.state["recovered"] == records
    await tally.judge()
    fresh.terminate()
    assert await fresh.ended() == 0
    tally.judge_store("fresh")
