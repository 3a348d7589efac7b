"""A client of the runtime: submit runs, follow their progress, read their rows. The command line uses nothing else.

It speaks to Kafka's public topics only, as any other client may; it reads no table, calls no provider, and keeps no state.

    async with Client(Settings(broker="127.0.0.1:9092")) as client:
        run = await client.submit(play, [{"email": "ada@example.com"}])
        async for event in client.progress(run):
            print(event)
        async for line in client.rows(run):
            print(line.position, line.fields, line.row)
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import secrets
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import ValidationError

from schemas.address import partition_of
from schemas.plays import Play
from schemas.progress import MapProgress, RunEvent
from schemas.requests import RunCancelled
from streams.broker import topics
from streams.errors import ConfigurationError, TopicsError, Unreachable
from streams.runview import RunView, Views
from streams.settings import Settings
from streams.sheet import RunSheet, SheetLine
from streams.submission import Submission

PUBLIC_TOPICS = ("run-requests", "operations", "map-progress", "run-events", "map-rows")
CONNECT_SECONDS = 5.0
#: How long a broker may be away while a run is followed: a restart is no reason to stop looking.
OUTAGE_SECONDS = 30.0
QUIET_SECONDS = 5.0
POLL_MS = 1000
#: A new record is seen at once; this is how long a fetch with nothing to see is held, in which nothing else can be asked.
FETCH_WAIT_MS = 50
FETCH_BYTES_MAX = 4 << 20
MESSAGE_BYTES_MAX = 9 << 20
BATCH_BYTES_MAX = 1 << 20
IN_FLIGHT_MAX = 64

Headers = list[tuple[str, bytes]]


@contextlib.contextmanager
def broker_errors(address: str) -> Iterator[None]:
    """Turn trouble with the broker into ``Unreachable``, naming its address."""
    try:
        yield
    except (KafkaError, TimeoutError, OSError) as error:
        said = str(error) or type(error).__name__
        raise Unreachable(
            f"no Kafka broker answers at {address} ({said}). Start one (paidonce broker start), or correct the address "
            "(--broker or PAIDONCE_BROKER)"
        ) from error


def new_run_id(play: Play) -> str:
    """A run id that nobody has: play, local time and four random digits."""
    return f"{play.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _headers(kind: str, identity: str) -> Headers:
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", identity.encode()),
        ("ce_source", b"/paidonce/client"),
        ("ce_type", f"paidonce.{kind}".encode()),
        ("content-type", b"application/json"),
    ]


class Client:
    """A connection to one system, by its broker and its partition count; an async context manager.

    Connects at its first use and gives up after 5 seconds. Every method raises ``Unreachable`` when the
    broker does not answer, and ``TopicsError`` when the topics are not those of the settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._checked = False
        try:
            self._connection: Mapping[str, Any] = settings.connection()
        except OSError as error:
            raise ConfigurationError(f"{settings.ssl_cafile}: {error.strerror}") from error

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._producer is not None:
            await self._producer.stop()

    # --- asking ------------------------------------------------------------------------------------------------

    async def submit(
        self,
        play: Play,
        rows: AsyncIterable[Mapping[str, Any]] | Iterable[Mapping[str, Any]],
        *,
        org: str = "default",
        run: str | None = None,
        force: bool = False,
        force_tool_refresh: bool = False,
        on_sent: Callable[[int], None] | None = None,
        source: str = "the rows",
        play_source: str = "the play",
    ) -> str:
        """Ask for a run, and return its id once the request is durable.

        The same run id with the same play and rows is the same run; after trouble with the broker, submit
        again under the id. All rows are checked before anything is published: ``InputError`` names row and
        column. ``on_sent`` gets the number of rows that are durable so far.
        """
        name = run or new_run_id(play)
        with Submission(
            play,
            name,
            org=org,
            force=force,
            force_tool_refresh=force_tool_refresh,
            source=source,
            play_source=play_source,
        ) as submission:
            if isinstance(rows, AsyncIterable):
                async for row in rows:
                    submission.add(row)
            else:
                for row in rows:
                    submission.add(row)
            requests = submission.requests()
            await self._ready()
            sent = 0
            waiting: deque[tuple[asyncio.Future[Any], int]] = deque()
            with broker_errors(self._settings.broker):
                for request in requests:
                    headers = _headers(request.type, request.id)
                    waiting.append(
                        (await self._send("run-requests", name, request.value, headers), request.rows)
                    )
                    while len(waiting) >= IN_FLIGHT_MAX:
                        sent += await _durable(waiting, on_sent, sent)
                while waiting:
                    sent += await _durable(waiting, on_sent, sent)
        return name

    async def cancel(self, run: str) -> None:
        """Ask for a run's end: no new calls start, those in flight settle their receipts (M15)."""
        await self._ready()
        event = RunCancelled(run=run, who=_user())
        headers = _headers("run_cancelled", f"{run}/run_cancelled/{secrets.token_hex(8)}")
        with broker_errors(self._settings.broker):
            await (await self._send("operations", run, event.model_dump_json().encode(), headers))

    async def _send(self, topic: str, run: str, value: bytes, headers: Headers) -> asyncio.Future[Any]:
        if self._producer is None:
            producer = AIOKafkaProducer(
                **self._connection,
                acks="all",
                enable_idempotence=True,
                max_request_size=MESSAGE_BYTES_MAX,
                max_batch_size=BATCH_BYTES_MAX,
            )
            try:
                await asyncio.wait_for(producer.start(), CONNECT_SECONDS)
            except (KafkaError, TimeoutError):
                await producer.stop()
                raise
            self._producer = producer
        future: asyncio.Future[Any] = await self._producer.send(
            topic, value, key=run.encode(), partition=self._home(run), headers=headers
        )
        return future

    # --- looking -----------------------------------------------------------------------------------------------

    async def progress(self, run: str, *, since: int = 0) -> AsyncIterator[MapProgress | RunEvent]:
        """Everything that was and will be told of a run, its terminal event last.

        For a run id that nobody asked for it waits for ever. Outlives a broker's restart of up to 30 seconds.
        ``since`` leaves out what the ledger held before: see ``ledger_end``.
        """
        await self._ready()
        samples, ledger = (TopicPartition(topic, self._home(run)) for topic in ("map-progress", "run-events"))
        key = run.encode()
        last: RunEvent | None = None
        ends: Mapping[TopicPartition, int] = {}
        async with self._consumer([samples, ledger]) as consumer:
            if since:
                consumer.seek(ledger, since)
            while last is None or await _is_behind(consumer, ends):
                fetched = await self._poll(consumer, [samples, ledger])
                for tp in (samples, ledger):
                    for event in _events(fetched.get(tp, ()), key):
                        if last is None and isinstance(event, RunEvent) and event.terminal:
                            # The ledger may be read ahead of the samples that were published before it (O2),
                            # and a refused run id may have been accepted later.
                            last, ends = event, await consumer.end_offsets([samples, ledger])
                            continue
                        if last is not None and isinstance(event, RunEvent) and event.type == "run.started":
                            yield last
                            last = None
                        yield event
        yield last

    async def rejection(self, run: str, since: int, seconds: float) -> RunEvent | None:
        """The rejection of a second, different request for a run id, if one comes within ``seconds`` (I4).

        ``since`` is what ``ledger_end`` gave before the request.
        """
        ledger = TopicPartition("run-events", self._home(run))
        deadline = time.monotonic() + seconds
        async with self._consumer([ledger]) as consumer:
            consumer.seek(ledger, since)
            while (left := deadline - time.monotonic()) > 0:
                fetched = await consumer.getmany(timeout_ms=int(left * 1000))
                for event in _events(fetched.get(ledger, ()), run.encode()):
                    if isinstance(event, RunEvent) and event.type == "run.rejected":
                        return event
        return None

    async def ledger_end(self, run: str) -> int:
        """Where the ledger of a run's partition ends now."""
        await self._ready()
        ledger = TopicPartition("run-events", self._home(run))
        async with self._consumer([ledger]) as consumer:
            return int((await consumer.end_offsets([ledger]))[ledger])

    async def runs(self) -> list[RunView]:
        """The newest status of every run that a worker has told of, oldest first."""
        await self._ready()
        views = Views()
        partitions = range(self._settings.partitions)
        tps = [TopicPartition(topic, n) for topic in ("map-progress", "run-events") for n in partitions]
        async for record in self._stored(tps):
            views.take(record.topic, record.value)
        return views.runs()

    async def run(self, run: str) -> RunView | None:
        """The newest status of one run, ``None`` where nobody asked for it."""
        await self._ready()
        views = Views()
        key = run.encode()
        home = self._home(run)
        async for record in self._stored(
            [TopicPartition(topic, home) for topic in ("map-progress", "run-events")]
        ):
            if record.key == key:
                views.take(record.topic, record.value)
        view = views.get(run)
        if view is None:
            async for record in self._stored([TopicPartition("run-requests", home)]):
                if record.key == key:
                    return RunView(run=run, status="submitted", message="no worker has taken it up yet")
        return view

    async def sheet(self, run: str) -> RunSheet:
        """A run's input lines with the newest states of their rows, as of now; close it.

        It is empty for a run that nobody asked for.
        """
        view = await self.run(run)
        sheet = RunSheet(run, refused=0 if view is None else view.refused)
        key = run.encode()
        async for record in self._stored([TopicPartition("run-requests", self._home(run))]):
            if record.key == key and record.value is not None:
                sheet.take_request(record.value)
        if len(sheet):
            tps = [TopicPartition("map-rows", n) for n in range(self._settings.partitions)]
            async for record in self._stored(tps):
                if record.key is not None:
                    sheet.take_state(record.key, record.value)
        return sheet

    async def rows(self, run: str) -> AsyncIterator[SheetLine]:
        """A run's export: one line for each input line, in input order."""
        with await self.sheet(run) as sheet:
            for line in sheet:
                yield line

    # --- Kafka -------------------------------------------------------------------------------------------------

    def _home(self, run: str) -> int:
        return partition_of(run, self._settings.partitions)

    async def _ready(self) -> None:
        """Make sure, once, that the broker answers and has the topics; another count would mislead every key."""
        if self._checked:
            return
        app, partitions = self._settings.app, self._settings.partitions
        with broker_errors(self._settings.broker):
            try:
                states = await asyncio.wait_for(
                    topics.inspect(self._connection, app, partitions), CONNECT_SECONDS
                )
            except ValueError as error:  # aiokafka's, for connection settings that it refuses
                raise ConfigurationError(f"broker {self._settings.broker}: {error}") from error
        wrong = [state for state in states if state.name in PUBLIC_TOPICS and not state.right]
        if wrong:
            raise TopicsError(
                f"the topics at {self._settings.broker} are not as they must be: {'; '.join(map(str, wrong))}. "
                "Run `paidonce topics apply` for missing ones; set PAIDONCE_PARTITIONS to the system's count"
            )
        self._checked = True

    @contextlib.asynccontextmanager
    async def _consumer(self, tps: Sequence[TopicPartition]) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer of committed records at the beginning of these partitions."""
        with broker_errors(self._settings.broker):
            consumer = AIOKafkaConsumer(
                **self._connection,
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                fetch_max_wait_ms=FETCH_WAIT_MS,
                max_partition_fetch_bytes=FETCH_BYTES_MAX,
            )
            try:
                await asyncio.wait_for(consumer.start(), CONNECT_SECONDS)
                consumer.assign(list(tps))
                await consumer.seek_to_beginning(*tps)
                yield consumer
            finally:
                await consumer.stop()

    async def _poll(
        self, consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """The next records; none after a while in which the broker had none.

        aiokafka tries a broker that is gone for ever and in silence, so a quiet one is asked if it is there.
        """
        heard = time.monotonic()
        while True:
            fetched: Mapping[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(
                timeout_ms=POLL_MS
            )
            if fetched:
                return fetched
            if time.monotonic() - heard < QUIET_SECONDS:
                continue
            try:
                await asyncio.wait_for(consumer.end_offsets(list(tps)), CONNECT_SECONDS)
                return {}
            except (KafkaError, TimeoutError):
                if time.monotonic() - heard > OUTAGE_SECONDS:
                    raise

    async def _stored(self, tps: Sequence[TopicPartition]) -> AsyncIterator[ConsumerRecord]:
        """All committed records of these partitions, as of now; each partition in its order."""
        async with self._consumer(tps) as consumer:
            ends = await consumer.end_offsets(list(tps))
            behind = {tp for tp in tps if await consumer.position(tp) < ends[tp]}
            heard = time.monotonic()
            while behind:
                fetched = await consumer.getmany(*behind, timeout_ms=FETCH_WAIT_MS)
                if fetched:
                    heard = time.monotonic()
                elif time.monotonic() - heard > OUTAGE_SECONDS:
                    raise Unreachable(f"the broker at {self._settings.broker} stopped answering")
                for tp, records in fetched.items():
                    for record in records:
                        if record.offset < ends[tp]:
                            yield record
                # Markers of transactions take offsets but are no records: only the position tells the end.
                behind = {tp for tp in behind if await consumer.position(tp) < ends[tp]}


async def _is_behind(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    return any([await consumer.position(tp) < end for tp, end in ends.items()])


async def _durable(
    waiting: deque[tuple[asyncio.Future[Any], int]], on_sent: Callable[[int], None] | None, sent: int
) -> int:
    """Wait for the oldest message; returns the number of its rows."""
    future, rows = waiting.popleft()
    await future
    if on_sent is not None and rows:
        on_sent(sent + rows)
    return rows


def _events(records: Iterable[ConsumerRecord], key: bytes) -> Iterator[MapProgress | RunEvent]:
    for record in records:
        if record.key != key or record.value is None:
            continue
        kind = MapProgress if record.topic == "map-progress" else RunEvent
        with contextlib.suppress(ValidationError):  # anyone may publish there
            yield kind.model_validate_json(record.value)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""
