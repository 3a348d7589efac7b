"""A client of the runtime: submit runs, follow their progress, read their rows; the command line uses it.

It speaks to Kafka's public topics only, as any other client may; it reads no table and calls no provider.

    async with Client(Settings.from_environment(os.environ)) as client:
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
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, TypeVar

from aiokafka import ConsumerRecord, TopicPartition
from pydantic import ValidationError

from schemas.plays import Play
from schemas.progress import MapProgress, RunEvent
from schemas.requests import RunCancelled
from streams.errors import Unreachable
from streams.public.publiclog import PublicLog, broker_errors, is_behind
from streams.public.runview import RunView, Views
from streams.public.sheet import RunSheet, SheetLine
from streams.public.submission import Request, Submission
from streams.settings import Settings

IN_FLIGHT_MAX = 64
_Told = TypeVar("_Told", MapProgress, RunEvent)


def new_run_id(play: Play) -> str:
    """A run id that nobody has: play, local time and four random digits."""
    return f"{play.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class Client:
    """A connection to one system, by its broker and its partition count; an async context manager.

    Connects at its first use and gives up after 5 seconds. Every method raises ``Unreachable`` when the
    broker does not answer, and ``TopicsError`` when the topics are not those of the settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._log = PublicLog(settings)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._log.close()

    # --- asking ------------------------------------------------------------------------------

    async def submit(
        self,
        play: Play,
        rows: AsyncIterable[Mapping[str, Any]] | Iterable[Mapping[str, Any]],
        *,
        org: str = "default",
        run: str | None = None,
        force: bool = False,
        force_tool_refresh: bool = False,
        retries_max: int | None = None,
        on_sent: Callable[[int], None] | None = None,
        source: str = "the rows",
        play_source: str = "the play",
    ) -> str:
        """Ask for a run, and return its id once the request is durable.

        The same run id with the same play and rows is the same run. All rows are checked before anything is
        published: ``InputError`` names row and column, calling the rows and the play ``source`` and
        ``play_source``. ``on_sent`` gets the number of rows that are durable so far. ``retries_max``: how many
        repeats of provider calls the run pays for, instead of what the play says.
        """
        name = run or new_run_id(play)
        with Submission(
            play,
            name,
            org=org,
            force=force,
            force_tool_refresh=force_tool_refresh,
            retries_max=retries_max,
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
            await self._log.ready()
            try:
                await self._publish(name, requests, on_sent)
            except Unreachable as error:
                raise Unreachable(
                    f"run {name} is submitted in part or not at all: {error}. "
                    f"Submit it again under the same id (--run {name}) to go on"
                ) from error
        return name

    async def _publish(self, run: str, requests: Iterable[Request], on_sent: Callable[[int], None] | None) -> None:
        durable = 0
        waiting: deque[tuple[asyncio.Future[Any], int]] = deque()

        async def wait_for_oldest() -> None:
            nonlocal durable
            future, rows = waiting.popleft()
            await future
            durable += rows
            if on_sent is not None and rows:
                on_sent(durable)

        with broker_errors(self._log.address):
            for request in requests:
                future = await self._log.send("run-requests", run, request.value, headers_of(request.type, request.id))
                waiting.append((future, request.rows))
                if len(waiting) >= IN_FLIGHT_MAX:
                    await wait_for_oldest()
            while waiting:
                await wait_for_oldest()

    async def cancel(self, run: str) -> None:
        """Ask for a run's end: no new calls start, those in flight settle their receipts (M15)."""
        await self._log.ready()
        event = RunCancelled(run=run, who=user_name())
        headers = headers_of("run_cancelled", f"{run}/run_cancelled/{secrets.token_hex(8)}")
        with broker_errors(self._log.address):
            await (await self._log.send("operations", run, event.model_dump_json().encode(), headers))

    # --- looking -----------------------------------------------------------------------------

    async def progress(self, run: str, *, since: int = 0) -> AsyncGenerator[MapProgress | RunEvent, None]:
        """Everything that was and will be told of a run, its terminal event last.

        For a run id that nobody asked for it waits for ever. Outlives a broker's restart of up to 30 seconds.
        ``since`` leaves out what the ledger held before: see ``ledger_end``.
        """
        await self._log.ready()
        samples, ledger = self._log.home(run, "map-progress"), self._log.home(run, "run-events")
        key = run.encode()
        last: RunEvent | None = None
        ends: Mapping[TopicPartition, int] = {}
        async with self._log.consumer([samples, ledger]) as consumer:
            if since:
                consumer.seek(ledger, since)
            while last is None or await is_behind(consumer, ends):
                fetched = await self._log.poll(consumer, [samples, ledger])
                for sample in _events(MapProgress, fetched.get(samples, ()), key):
                    yield sample
                for event in _events(RunEvent, fetched.get(ledger, ()), key):
                    if last is None and event.terminal:
                        # The ledger may be read ahead of the samples that were published before it (O2), and
                        # a refused run id may have been accepted later.
                        last, ends = event, await consumer.end_offsets([samples, ledger])
                        continue
                    if last is not None and event.type == "run.started":
                        yield last
                        last = None
                    yield event
        yield last

    async def rejection(self, run: str, since: int, seconds: float) -> RunEvent | None:
        """The rejection of a second, different request for a run id, if one comes within ``seconds`` (I4).

        ``since`` is what ``ledger_end`` gave before the request.
        """
        ledger = self._log.home(run, "run-events")
        deadline = time.monotonic() + seconds
        async with self._log.consumer([ledger]) as consumer:
            consumer.seek(ledger, since)
            while (left := deadline - time.monotonic()) > 0:
                fetched = await consumer.getmany(timeout_ms=int(left * 1000))
                for event in _events(RunEvent, fetched.get(ledger, ()), run.encode()):
                    if event.type == "run.rejected":
                        return event
        return None

    async def ledger_end(self, run: str) -> int:
        """Where the ledger of a run's partition ends now."""
        await self._log.ready()
        ledger = self._log.home(run, "run-events")
        async with self._log.consumer([ledger]) as consumer:
            return int((await consumer.end_offsets([ledger]))[ledger])

    async def runs(self) -> list[RunView]:
        """The newest status of every run that a worker has told of, oldest first."""
        await self._log.ready()
        views = Views()
        async for record in self._log.stored(self._log.all("map-progress", "run-events")):
            views.take(self._log.name_of(record), record.value)
        return views.runs()

    async def run(self, run: str) -> RunView | None:
        """The newest status of one run, ``None`` where nobody asked for it."""
        await self._log.ready()
        views = Views()
        key = run.encode()
        told = [self._log.home(run, topic) for topic in ("map-progress", "run-events")]
        async for record in self._log.stored(told):
            if record.key == key:
                views.take(self._log.name_of(record), record.value)
        view = views.get(run)
        if view is not None:
            return view
        asked = False
        async for record in self._log.stored([self._log.home(run, "run-requests")]):
            asked = asked or record.key == key
        return RunView(run=run, status="submitted", message="no worker has taken it up yet") if asked else None

    async def sheet(self, run: str) -> RunSheet:
        """A run's input lines with the newest states of their rows, as of now; close it.

        It is empty for a run that nobody asked for.
        """
        view = await self.run(run)
        sheet = RunSheet(run, refused=0 if view is None else view.refused)
        key = run.encode()
        async for record in self._log.stored([self._log.home(run, "run-requests")]):
            if record.key == key and record.value is not None:
                sheet.take_request(record.value)
        if len(sheet):
            async for record in self._log.stored(self._log.all("map-rows")):
                if record.key is not None:
                    sheet.take_state(record.key, record.value)
        return sheet

    async def rows(self, run: str) -> AsyncIterator[SheetLine]:
        """A run's export: one line for each input line, in input order."""
        with await self.sheet(run) as sheet:
            for line in sheet:
                yield line


def _events(kind: type[_Told], records: Iterable[ConsumerRecord], key: bytes) -> Iterator[_Told]:
    for record in records:
        if record.key != key or record.value is None:
            continue
        with contextlib.suppress(ValidationError):  # anyone may publish there
            yield kind.model_validate_json(record.value)


def headers_of(kind: str, identity: str) -> list[tuple[str, bytes]]:
    """CloudEvents headers of what a client publishes."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", identity.encode()),
        ("ce_source", b"/paidonce/client"),
        ("ce_type", f"paidonce.{kind}".encode()),
        ("content-type", b"application/json"),
    ]


def user_name() -> str:
    """Who runs this process, as far as the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""
