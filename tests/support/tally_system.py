"""A system of tally workers on a real broker: publish marks, see what was folded, and judge that each counted once.

For tests of the turn, the shell under every engine. What it knows of the durable form it reads from Kafka with plain consumers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from schemas import envelope
from schemas.events import Probed
from schemas.states import TURN_KEY, StoredValue, TurnRecord
from streams.broker import topics
from streams.settings import Settings
from streams.table import Store, StoreMemory
from tests.support.system import WorkerProcess
from tests.support.tally import ECHOES, SOURCES, counter_key
from tests.support.wait import eventually, until

TABLES = ("tally",)


class TallyWorker(WorkerProcess):
    """A worker process that tells what it owns."""

    _log_from = 0

    def start(self, **settings: object) -> Self:
        """Start it; what an earlier process logged no longer counts."""
        self._log_from = len(self.text())
        return super().start(**settings)

    @property
    def said(self) -> str:
        """What this process has logged."""
        return self.text()[self._log_from :]

    @property
    def state(self) -> Mapping[str, Any]:
        """What it last reported; nothing is owned before the first report."""
        reports = [line for line in self.said.splitlines() if line.startswith("state ") and line.endswith("}")]
        return json.loads(reports[-1].removeprefix("state ")) if reports else {"partitions": [], "recovered": 0}

    @property
    def owned(self) -> list[int]:
        """Partitions whose actors run here."""
        return list(self.state["partitions"])

    async def ended(self, *, seconds: float = 40.0) -> int:
        """Its exit code, once it has ended by itself."""
        await eventually(f"{self.name} has ended:\n{self.said[-2000:]}", lambda: not self.running, seconds=seconds)
        return self.wait(0)


class TallySystem:
    """Topics, a publisher and worker processes of one app; an async context manager.

    ``wrong`` gives topics another partition count, ``without`` leaves topics out.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        partitions: int = 2,
        wrong: Mapping[str, int] | None = None,
        without: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.folder = folder
        self.partitions = partitions
        self.workers: dict[str, TallyWorker] = {}
        #: How often each mark was published, by partition.
        self.published: dict[int, Counter[str]] = defaultdict(Counter)
        #: Messages in each source partition.
        self.sent: Counter[tuple[str, int]] = Counter()
        #: Turn records by partition, as far as they were read.
        self.journal: dict[int, list[TurnRecord]] = defaultdict(list)
        self._wrong, self._without = dict(wrong or {}), set(without)
        self._settings: dict[str, Any] = {
            "app": self.name,
            "topic_prefix": f"{self.name}.",
            "broker": bootstrap,
            "partitions": partitions,
            "session_seconds": 3,
            **settings,
        }
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def connection(self) -> dict[str, Any]:
        """How clients connect."""
        return Settings(**self._settings).connection()

    @property
    def changelog(self) -> str:
        """Full name of the table's changelog."""
        return f"{self.name}-tally-changelog"

    def topic(self, name: str) -> str:
        """Full name of a topic."""
        return f"{self.name}.{name}"

    async def __aenter__(self) -> Self:
        await self._make_topics()
        self._producer = AIOKafkaProducer(**self.connection, acks="all", enable_idempotence=True)
        await self._producer.start()
        self._turns = self._consumer()
        await self._turns.start()
        self._turns.assign([TopicPartition(self.topic("turns"), p) for p in range(self.partitions)])
        await self._turns.seek_to_beginning()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        for worker in self.workers.values():
            worker.end()
        await self._turns.stop()
        await self._producer.stop()

    async def _make_topics(self) -> None:
        if not self._wrong and not self._without:
            await topics.apply(self.connection, self.name, self.partitions, 1, f"{self.name}.", TABLES)
            return
        admin = AIOKafkaAdminClient(**self.connection)
        await admin.start()
        try:
            await admin.create_topics(
                [
                    NewTopic(name, self._wrong.get(name.removeprefix(f"{self.name}."), self.partitions), 1)
                    for name in topics.topics_of(self.name, f"{self.name}.", TABLES)
                    if name.removeprefix(f"{self.name}.") not in self._without
                ]
            )
        finally:
            await admin.close()

    def _consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **self.connection,
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=4 << 20,
        )

    # --- what is done to it ---

    def worker(self, name: str = "w1", **settings: object) -> TallyWorker:
        """Start a worker; the same name is the same data folder."""
        worker = self.workers.get(name)
        if worker is None:
            environment = {
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                **{f"PAIDONCE_{key.upper()}": str(value) for key, value in self._settings.items()},
                "PAIDONCE_DATA": str(self.folder / name),
            }
            command = [sys.executable, "-m", "tests.support.tally_worker"]
            worker = self.workers[name] = TallyWorker(name, self.folder, environment, command)
        return worker.start(**settings)

    def home(self, mark: str) -> int:
        """The partition on which a mark is counted."""
        return zlib.crc32(mark.encode()) % self.partitions

    async def publish(self, marks: Sequence[str], *, each: int = 50, topic: str = SOURCES[0]) -> None:
        """Publish marks to their homes, ``each`` at most in one message, and wait for the acknowledgements."""
        homes: dict[int, list[Probed]] = defaultdict(list)
        for mark in marks:
            homes[self.home(mark)].append(Probed(mark))
            self.published[self.home(mark)][mark] += 1
        futures = []
        for partition, events in homes.items():
            for start in range(0, len(events), each):
                value = envelope.encode(events[start : start + each])
                futures.append(await self._send(topic, partition, value, envelope.headers_of(topic)))
        await asyncio.gather(*futures)

    async def publish_bytes(
        self, partition: int, value: bytes | None, headers: Sequence[tuple[str, bytes]], *, topic: str = SOURCES[0]
    ) -> int:
        """Publish a message as it is and return its offset."""
        return (await (await self._send(topic, partition, value, headers))).offset

    async def _send(
        self, topic: str, partition: int, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> asyncio.Future[Any]:
        self.sent[topic, partition] += 1
        # A key, because aiokafka sends no message that has neither key nor value.
        return await self._producer.send(self.topic(topic), value, b"key", partition=partition, headers=list(headers))

    # --- what is seen of it ---

    async def look(self) -> None:
        """Read what the journal of turns has got since the last look."""
        for tp, records in (await self._turns.getmany(timeout_ms=50)).items():
            for record in records:
                assert record.key == f"tally/{tp.partition}".encode()
                self.journal[tp.partition].append(msgspec.msgpack.decode(record.value, type=TurnRecord))

    @property
    def turns(self) -> int:
        """Turns seen so far."""
        return sum(map(len, self.journal.values()))

    async def turned(self, count: int, *, seconds: float = 30.0) -> None:
        """Wait until the journal has that many turns."""

        async def enough() -> bool:
            await self.look()
            return self.turns >= count

        await until(f"{count} turns were taken\n{self.logs()}", enough, seconds=seconds)

    async def settled(self, *, seconds: float = 45.0) -> None:
        """Wait until every message published so far was folded."""

        async def all_folded() -> bool:
            await self.look()
            return not self.unfolded()

        try:
            await until("all was folded", all_folded, seconds=seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.unfolded()} are not\n{self.logs()}") from None

    def unfolded(self) -> dict[tuple[str, int], int]:
        """Messages of source partitions that no journalled turn has folded."""
        return {
            (topic, partition): count - folded
            for (topic, partition), count in self.sent.items()
            if (folded := self.journal[partition][-1].offsets.get(topic, 0) if self.journal[partition] else 0) < count
        }

    async def read(self, topic: str) -> list[ConsumerRecord[bytes, bytes]]:
        """All committed records of a topic (its full name), by partition and offset."""
        consumer = self._consumer()
        await consumer.start()
        try:
            tps = [TopicPartition(topic, partition) for partition in range(self.partitions)]
            consumer.assign(tps)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(tps)
            found: list[ConsumerRecord[bytes, bytes]] = []
            while any([await consumer.position(tp) < ends[tp] for tp in tps]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found.extend(records)
        finally:
            await consumer.stop()
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def logs(self) -> str:
        """The end of every worker's log."""
        return "\n".join(f"--- {worker.name}\n{worker.text()[-3000:]}" for worker in self.workers.values())

    # --- how it is judged ---

    async def judge(self) -> None:
        """Assert that every mark was counted, echoed and journalled exactly once, and that owners never overlapped."""
        await self.look()
        for partition, turns in self.journal.items():
            judge_journal(partition, turns)
        await self._judge_echoes()
        await self._judge_changelog()

    async def _judge_echoes(self) -> None:
        echoes: Counter[tuple[int, str]] = Counter()
        generations: dict[int, int] = defaultdict(int)
        for record in await self.read(self.topic(ECHOES)):
            for event in envelope.unpack(ECHOES, record.value, record.headers):
                assert isinstance(event, Probed)
                echo, _, generation = event.probe.rpartition("@")
                echoes[record.partition, echo] += 1
                assert int(generation) >= generations[record.partition], f"{record.partition}: an older owner echoed {echo}"
                generations[record.partition] = int(generation)
        expected = {
            (partition, f"{mark}={number}")
            for partition, marks in self.published.items()
            for mark, count in marks.items()
            for number in range(1, count + 1)
        }
        assert set(echoes) == expected, f"missing {expected - set(echoes)}, too many {set(echoes) - expected}"
        assert set(echoes.values()) <= {1}, [echo for echo, count in echoes.items() if count > 1]

    async def _judge_changelog(self) -> None:
        newest: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        turns: dict[int, list[TurnRecord]] = defaultdict(list)
        for record in await self.read(self.changelog):
            assert record.key is not None
            assert record.value is not None
            newest[record.partition][record.key] = record.value
            if record.key == TURN_KEY:
                turns[record.partition].append(msgspec.msgpack.decode(record.value, type=TurnRecord))
        last = {partition: records[-1].turn for partition, records in turns.items()}

        async def journalled() -> bool:
            await self.look()
            return all(self.journal[partition] and self.journal[partition][-1].turn >= turn for partition, turn in last.items())

        # Owners may have taken turns since the journal was read, and take more while it is read again.
        await until("the journal has come to the changelog's last turns", journalled)
        for partition, marks in self.published.items():
            del newest[partition][TURN_KEY]
            assert {key: count_in(value) for key, value in newest[partition].items()} == counters(marks), partition
            # Compaction may have taken older ones.
            journal = [record for record in self.journal[partition] if record.turn <= last[partition]]
            assert journal[-len(turns[partition]) :] == turns[partition]

    def judge_store(self, worker: str) -> None:
        """Assert that the data folder of a worker that has ended holds the right count of every mark."""
        memory = StoreMemory()
        for partition, marks in self.published.items():
            store = Store(self.folder / worker / "tables" / "tally" / str(partition), memory)
            try:
                found = {key: count_in(value) for key, value in store.scan(counter_key(""))}
                raw = store.get(TURN_KEY)
            finally:
                store.close()
            assert found == counters(marks), partition
            assert raw is not None
            assert msgspec.msgpack.decode(raw, type=TurnRecord) == self.journal[partition][-1]


def counters(marks: Mapping[str, int]) -> dict[bytes, int]:
    """Counts by key of their record."""
    return {counter_key(mark): count for mark, count in marks.items()}


def count_in(value: bytes) -> int:
    """The count in a record."""
    return int(msgspec.msgpack.decode(value, type=StoredValue).output)


def judge_journal(partition: int, turns: Sequence[TurnRecord]) -> None:
    """Assert that turns follow each other, that one owner had each generation, and that each offset was folded once."""
    assert [turn.turn for turn in turns] == list(range(1, len(turns) + 1)), partition
    generations = [turn.generation for turn in turns]
    assert generations == sorted(generations), f"{partition}: an older owner wrote after a newer one"
    owners: dict[int, set[str]] = defaultdict(set)
    folded: dict[str, int] = {}
    for turn in turns:
        owners[turn.generation].add(turn.owner)
        for segment in turn.segments:
            # The test's publisher uses no transactions, so there are no markers between its messages.
            assert folded.get(segment.topic, 0) == segment.first <= segment.last, (partition, turn)
            folded[segment.topic] = segment.last + 1
        assert turn.offsets == folded, (partition, turn)
    assert all(len(owner) == 1 for owner in owners.values()), (partition, owners)
