"""A web of one real server on loopback that answers under any name: each path has its answers, and every request is noted.

With it the fetch caller for which the names of ``NAMES`` are the public internet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from schemas.canonical import canonical
from schemas.events import Fault
from schemas.providers import Providers
from streams.tools.addresses import why_not_public
from streams.tools.dialing import Dialing
from streams.tools.fetch import FetchCaller
from streams.tools.port import Answered, CallMember, MemberOutcome, ProviderCall
from tests.support.raw_server import NOW, read_request, whole
from tests.support.resolving import Scripted

SECRET = "sk-very/secret"
#: One for all tests: making it takes 50 ms.
TLS = httpx.create_ssl_context()
#: The one address that the tests' internet has.
LOOPBACK = "127.0.0.1"
NAMES: Mapping[str, Sequence[str]] = {"a.test": [LOOPBACK], "b.test": [LOOPBACK], "inside.test": ["10.0.0.1"]}

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]
Answer = bytes | Behaviour


@dataclass(frozen=True)
class Asked:
    """One request; ``headers`` in lower case."""

    method: str
    host: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Web:
    """What the server is asked, and where it is."""

    #: What each path answers, in turn where it is several; the last one stays.
    answers: dict[str, Answer | Sequence[Answer]]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    open_connections: int = 0
    #: Requests under way, now and at most.
    busy: int = 0
    busy_max: int = 0

    def url(self, path: str = "/", *, host: str = "a.test") -> str:
        """A URL of this server under one of its names."""
        return f"http://{host}:{self.port}{path}"

    @property
    def seen(self) -> list[tuple[str, str]]:
        """Method and path of every request."""
        return [(asked.method, asked.path) for asked in self.asked]


async def hangs(_writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side goes."""
    await asyncio.Event().wait()


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    """End the connection without a word."""
    writer.transport.abort()


def slowly(answer: bytes, seconds: float) -> Behaviour:
    """A server that takes its time."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        writer.write(answer)

    return behave


def begins(head: bytes) -> Behaviour:
    """Send the beginning of an answer and no more."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        await asyncio.Event().wait()

    return behave


def breaks_off(head: bytes) -> Behaviour:
    """Send the beginning of an answer and end the connection."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        writer.close()

    return behave


def endless(head: bytes, piece: bytes) -> Behaviour:
    """Send for ever."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()

    return behave


def leads(status: int, location: str) -> bytes:
    """A redirect."""
    return whole(b"moved", f"Location: {location}", status=f"{status} Moved")


@asynccontextmanager
async def serving(answers: Mapping[str, Answer | Sequence[Answer]] | None = None) -> AsyncIterator[Web]:
    """The server; a path's answers come in turn, and every other path answers ``fine``."""
    web = Web(answers=dict(answers or {}))
    tasks: set[asyncio.Task[Any]] = set()

    def answer_for(path: str) -> Answer:
        found = web.answers.get(path, whole(b"fine", "Content-Type: text/plain"))
        if isinstance(found, bytes) or callable(found):
            return found
        return found[min(sum(asked.path == path for asked in web.asked), len(found)) - 1]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        web.open_connections += 1
        try:
            while request := await read_request(reader):
                asked = _asked(request)
                web.asked.append(asked)
                answer = answer_for(asked.path)
                web.busy += 1
                web.busy_max = max(web.busy_max, web.busy)
                if isinstance(answer, bytes):
                    writer.write(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if asked.method == "HEAD" else answer)
                else:
                    # Ends with the client: what hangs must not outlive the test.
                    behaving, gone = asyncio.ensure_future(answer(writer)), asyncio.ensure_future(reader.read(1))
                    tasks.update((behaving, gone))
                    await asyncio.wait((behaving, gone), return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():
                        behaving.cancel()
                        break
                    gone.cancel()
                    await asyncio.wait((gone,))
                    behaving.result()
                web.busy -= 1
                if writer.is_closing():
                    break
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller hung up, or the test is over
        finally:
            web.open_connections -= 1
            writer.transport.abort()

    server = await asyncio.start_server(handle, LOOPBACK, 0)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _asked(request: bytes) -> Asked:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Asked(method, headers["host"].partition(":")[0], path, headers, body)


def _why_not(address: str) -> str | None:
    return None if address == LOOPBACK else why_not_public(address) or "not of the tests' internet"


class Fetcher:
    """A fetch caller for tests; ``waits`` are the seconds that it would have slept."""

    def __init__(self, resolver: Scripted, call_seconds: float = 900.0, **settings: Any) -> None:
        self.resolver = resolver
        self.waits: list[float] = []
        self.caller = FetchCaller(
            Providers.model_validate({"fetch": settings}),
            environment={"KEY": SECRET},
            call_seconds=call_seconds,
            dialing=Dialing(_why_not, lambda: resolver),
            tls=TLS,
            now=lambda: NOW,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def __call__(self, url: str, method: str = "GET", **parts: Any) -> MemberOutcome:
        """Make one request and give its outcome; no lane is ever paused by it."""
        asked = canonical({"method": method, "url": url} | parts)
        call = ProviderCall(f"fetch.{method.lower()}", (CallMember("receipt", asked),), False, "key", "request")
        report = await self.caller.call(call)
        assert report.lane_pause_seconds is None
        [outcome] = report.outcomes
        assert SECRET not in str(outcome)
        return outcome

    async def fault(self, url: str, method: str = "GET", **parts: Any) -> Fault:
        """The fault of a request that must not be answered."""
        return fault_of(await self(url, method, **parts))

    async def value(self, url: str, method: str = "GET", **parts: Any) -> dict[str, Any]:
        """The value of a request that must be answered."""
        outcome = await self(url, method, **parts)
        assert isinstance(outcome, Answered), outcome
        found: dict[str, Any] = json.loads(outcome.output)
        return found


def fault_of(outcome: MemberOutcome) -> Fault:
    assert not isinstance(outcome, Answered)
    assert len(outcome.fault.message) < 500
    return outcome.fault


@asynccontextmanager
async def fetching(names: Mapping[str, Any] = NAMES, **settings: Any) -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(Scripted(names), **settings)
    try:
        yield fetcher
    finally:
        await fetcher.caller.close()
