"""Replay on a real broker: live tables, tables recovered into an empty folder, and a replay of the topics have one digest.

A worker is killed in the middle, messages that are no events lie in the topics, and a run is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from schemas.states import RECEIPT, Receipt, TurnRecord
from streams.client import Client
from streams.errors import StateError, UsageError
from streams.public.publiclog import PublicLog
from streams.replay import Plan, replay_part
from streams.replaying.refold import TABLES
from streams.table import Store, StoreMemory
from tests.support.digests import by_partition, live, recovered, replayed
from tests.support.system import System, people, play

#: One process runs all of these tests: they share what one fixture prepares.
pytestmark = pytest.mark.xdist_group("replay")

ROWS = 150


async def worked(system: System) -> int:
    """A system with a past: two runs, a kill amid them, a cancelled run, and messages that are no events. Its parked messages."""
    await asyncio.to_thread(system.start_sandbox, concurrency=4, size=10, latency_ms=20)
    worker = system.worker("w1", kill_at="receipts:committed", kill_after=8)
    async with Client(system.settings) as client:
        runs = [await client.submit(play(tool, name=tool), people(ROWS)) for tool in ("emails", "phones")]
        assert await asyncio.to_thread(worker.wait, 60) == -signal.SIGKILL, worker.text()
        parked = await no_events(system)
        system.worker("w1")
        runs.append(await client.submit(play("emails", name="again", provider="sandbox"), people(40, tag="q")))
        await client.cancel(runs[2])
        for run in runs:
            await system.finish(client, run)
    worker.terminate()
    assert await asyncio.to_thread(worker.wait) == 0, worker.text()
    return parked


async def no_events(system: System) -> int:
    """Publish what each kind of agent parks, ahead of what it will read next."""
    async with AIOKafkaProducer(**system.settings.connection()) as producer:
        for topic in ("run-requests", "operations", "tool-requests", "row-progress", "tool-results"):
            for partition in range(system.partitions):
                value = json.dumps({"run": "r", "type": "no_such_type"}).encode()
                await producer.send_and_wait(f"{system.name}.{topic}", value, partition=partition)
    return 5 * system.partitions


@pytest.fixture(scope="module")
def past(broker: str, tmp_path_factory: pytest.TempPathFactory) -> System:
    """A system with a past whose processes have ended; to be read only."""

    async def make() -> System:
        async with System(broker, tmp_path_factory.mktemp("past"), partitions=2, lease_seconds=2) as system:
            parked = await worked(system)
            assert (await system.ends())["dead-letters"] >= parked
            return system

    return asyncio.run(make())


async def journal(system: System, table: str, partition: int) -> list[TurnRecord]:
    """All turns of one partition of a table."""
    log = PublicLog(system.settings)
    records = [record async for record in log.stored(log.all("turns")) if record.key == f"{table}/{partition}".encode()]
    return [msgspec.msgpack.decode(record.value, type=TurnRecord) for record in records]


async def test_N6_V1_live_tables_a_recovered_folder_and_a_replay_have_one_digest(past: System, tmp_path: Path) -> None:
    """N6, V1: also byte by byte, told flags included."""
    parts = await replayed(past, tmp_path / "replay", diff=True)
    found = by_partition(parts)
    assert found == live(past, "w1")
    assert found == await recovered(past, tmp_path / "recovered")
    assert {(part.table, part.partition) for part in parts} == {(table, n) for table in TABLES for n in range(2)}
    assert all(part.live is not None and part.live.digests == part.digests for part in parts)
    assert sum(part.digests.records for part in parts if part.table == "receipts") >= 2 * ROWS
    generations = {(table, n): (await journal(past, table, n))[-1].generation for table, n in found}
    assert set(generations.values()) == {2}, "the kill made a second owner"


async def test_N6_a_replay_does_not_depend_on_how_many_records_it_holds(past: System, tmp_path: Path) -> None:
    assert by_partition(await replayed(past, tmp_path / "few", held_max=1)) == by_partition(await replayed(past, tmp_path / "many"))


async def test_N6_the_command_prints_digests_and_proves_that_live_tables_equal_the_log(past: System, tmp_path: Path) -> None:
    found = by_partition(await replayed(past, tmp_path))
    told = json.loads(await asyncio.to_thread(past.command, "replay", "--diff", "--strict", "--json", "--processes", "2"))
    assert told["equal"] is True
    assert {(part["table"], part["partition"]): part["digests"]["exact"] for part in told["tables"]} == {
        where: digests.exact for where, digests in found.items()
    }
    assert told["events"] == sum(part["events"] for part in told["tables"]) > 0
    shown = await asyncio.to_thread(past.command, "replay")
    assert all(digests.state in shown for digests in found.values())


@pytest.mark.parametrize("table", TABLES)
async def test_N6_until_a_turn_shows_that_state_and_others_at_that_time(past: System, tmp_path: Path, table: str) -> None:
    """A past state is held against what the changelog was at that turn."""
    turns = await journal(past, table, 0)
    middle = turns[len(turns) // 2]
    parts = await replayed(past, tmp_path, until=f"{table}/0@{middle.turn}", diff=True)
    assert all(part.live is not None and part.live.digests == part.digests for part in parts)
    assert [part.turn for part in parts if (part.table, part.partition) == (table, 0)] == [middle.turn]
    for part in parts:
        if (part.table, part.partition) != (table, 0):
            last = [turn.turn for turn in await journal(past, part.table, part.partition) if turn.at_ms <= middle.at_ms]
            assert part.turn == len(last)
    assert by_partition(parts) != live(past, "w1")


async def test_N6_until_an_offset_is_until_the_turn_that_folded_it(past: System, tmp_path: Path) -> None:
    turn = next(
        turn for turn in await journal(past, "rows", 1) if turn.turn > 5 and "tool-results" in turn.offsets and turn.segments
    )
    segment = turn.segments[0]
    by_offset = await replayed(past, tmp_path, until=f"{past.name}.{segment.topic}/1@{segment.first}")
    assert by_offset == await replayed(past, tmp_path, until=f"rows/1@{turn.turn}")
    assert turn.turn in [part.turn for part in by_offset if (part.table, part.partition) == ("rows", 1)]


async def test_N6_until_a_time_is_every_turn_taken_by_then_and_none_before_there_was_any(past: System, tmp_path: Path) -> None:
    turns = await journal(past, "receipts", 0)
    middle = turns[len(turns) // 2].at_ms
    parts = await replayed(past, tmp_path, until=str(middle), diff=True)
    assert all(part.live is not None and not part.live.differing and 0 < part.at_ms <= middle for part in parts)
    nothing = await replayed(past, tmp_path, until="2001-09-09T01:46:40Z", diff=True)
    assert {(part.turn, part.digests.records) for part in nothing} == {(0, 0)}
    assert all(part.live is not None and part.live.digests == part.digests for part in nothing)


@pytest.mark.parametrize(
    ("text", "said"),
    [("rows/0@99999", "has not come to turn 99,999 yet"), ("tool-results/0@99999", "offset 99,999 of tool-results")],
)
async def test_N6_what_was_never_reached_is_said_with_where_it_stands(past: System, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"{said}.* it stands at turn \d"):
        await replayed(past, tmp_path, until=text)


async def test_N6_a_changed_record_a_forged_turn_and_a_trimmed_topic_are_noticed_and_named(system: System, tmp_path: Path) -> None:
    """One system, damaged more and more."""
    await worked(system)
    found = await replayed(system, tmp_path)
    assert await damaged_by_a_changed_receipt(system) in "\n".join(
        name
        for part in json.loads(await asyncio.to_thread(lambda: system.command("replay", "--diff", "--json", code=1)))["tables"]
        for name in part["live"]["named"]
    )
    assert by_partition(await replayed(system, tmp_path)) == by_partition(found), "the log itself is whole"

    last = (await journal(system, "rows", 1))[-1]
    forged = msgspec.msgpack.encode(msgspec.structs.replace(last, turn=last.turn + 2, segments=(), judged=()))
    offset = await published(system, f"{system.name}.turns", 1, b"rows/1", forged)
    with pytest.raises(
        StateError, match=rf"turns/1@{offset}: turn {last.turn + 2:,} of rows/1 follows turn {last.turn:,} at offset"
    ):
        await replayed(system, tmp_path)

    first = next(s for turn in await journal(system, "rows", 0) for s in turn.segments if s.topic == "tool-results")
    await trimmed(system, "tool-results", 0, first.last + 1)
    with pytest.raises(StateError, match=rf"tool-results/0@{first.first}\.\.{first.last}: rows/0@.* now begins at offset"):
        await asyncio.to_thread(replay_part, Plan(system.settings, tmp_path), ("rows", 0))

    await trimmed(system, "turns", 0, 7)
    with pytest.raises(StateError, match=r"turns/0@0\.\.6: the journal of turns now begins at offset 7"):
        await asyncio.to_thread(replay_part, Plan(system.settings, tmp_path), ("rows", 0))


async def damaged_by_a_changed_receipt(system: System) -> str:
    """Write a changed receipt to the changelog, as a defect might; returns its name."""
    for partition in range(system.partitions):
        with closing(Store(system.folder / "w1" / "tables" / "receipts" / str(partition), StoreMemory())) as store:
            key, value = next(store.scan(RECEIPT), (b"", b""))
        if key:
            receipt = msgspec.msgpack.decode(value, type=Receipt)
            receipt.refreshes.append("forged")
            await published(system, f"{system.name}-receipts-changelog", partition, key, msgspec.msgpack.encode(receipt))
            return f"Receipt {key[1:].decode()}: not the same"
    raise AssertionError("no receipt at all")


async def published(system: System, topic: str, partition: int, key: bytes, value: bytes) -> int:
    async with AIOKafkaProducer(**system.settings.connection()) as producer:
        return int((await producer.send_and_wait(topic, value, key=key, partition=partition)).offset)


async def trimmed(system: System, topic: str, partition: int, before: int) -> None:
    """Remove what retention would remove."""
    admin = AIOKafkaAdminClient(**system.settings.connection())
    await admin.start()
    try:
        tp = TopicPartition(f"{system.name}.{topic}", partition)
        await admin.delete_records({tp: RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()
