"""A provider on a raw socket, for what no well-behaved server sends: a function writes the first answers, later ones are fine.

With it the HTTP caller as such tests need it: a short deadline, a small cap, one connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from schemas.providers import Providers
from streams.tools.http import HttpCaller
from streams.tools.port import Answered, CallMember, CallReport, ProviderCall
from tests.support.wait import eventually

#: For calls that must run into it ...
DEADLINE_SECONDS = 0.5
#: ... and for those that must not, also on a busy machine.
PATIENCE_SECONDS = 30.0
CAP_BYTES = 5 << 20
NOW = 1_800_000_000.0
SECRET = "sk-very-secret"
FINE = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"fine": 1}'

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A raw server: the first request is answered by the test's function, later ones well."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    open_connections: int = 0
    connections: int = 0


@asynccontextmanager
async def serving(answer: Serve, *, answers: int = 1, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    seen = Server()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        seen.open_connections += 1
        try:
            while request := await read_request(reader):
                seen.requests.append(request)
                if len(seen.requests) <= answers:
                    await answer(reader, writer)
                else:
                    writer.write(FINE)
                if writer.is_closing():
                    break
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller hung up, or the test is over
        finally:
            seen.open_connections -= 1
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    seen.url = ("http" if tls is None else "https") + "://{}:{}".format(*server.sockets[0].getsockname()[:2])
    try:
        yield seen
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = await reader.readline()
        if not line:
            return b""
        head += line
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + (await reader.readexactly(int(lengths[0])) if lengths else b"")


def sends(*pieces: bytes, close: bool = False) -> Serve:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return answer


def drips(head: bytes, piece: bytes) -> Serve:
    """A byte (or more) at a time, for ever: for the deadline every one of them is a sign of life."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(DEADLINE_SECONDS / 10)

    return answer


def floods(head: bytes, piece: bytes) -> Serve:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()

    return answer


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""])
    return head.encode("latin-1") + body


@asynccontextmanager
async def calling(
    server: Server, *, concurrency: int = 1, tls: ssl.SSLContext | None = None, **tool: Any
) -> AsyncIterator[HttpCaller]:
    one = {"path": "/check", "timeout_seconds": PATIENCE_SECONDS} | tool
    described = {
        "base_url": server.url,
        "auth": {"secret": "env:KEY"},
        "pace": {"concurrency": concurrency},
        "tools": {"check": one, "patient": one | {"timeout_seconds": PATIENCE_SECONDS}},
    }
    caller = HttpCaller(
        Providers.model_validate({"providers": {"raw": described}}),
        environment={"KEY": SECRET},
        response_bytes_max=CAP_BYTES,
        connections_max=concurrency,
        tls=tls,
        now=lambda: NOW,
    )
    try:
        yield caller
    finally:
        await caller.close()


def call_of(fields: bytes = b'{"n": 18446744073709551617}', *, tool: str = "check") -> ProviderCall:
    return ProviderCall(f"raw.{tool}", (CallMember("receipt", fields),), False, "key-1", "request-1")


async def report_of(answer: Serve, **tool: Any) -> CallReport:
    """How one call ends; checks that it was sent once, and that the next one works."""
    async with serving(answer) as server, calling(server, **tool) as caller:
        report = await caller.call(call_of())
        assert len(server.requests) == 1
        # With one connection allowed at a time this also tells that the first is given back or closed.
        fine = await caller.call(call_of(tool="patient"))
        assert fine.outcomes == (Answered(b'{"fine":1}'),)
        await eventually("the broken connection is closed", lambda: server.open_connections <= 1)
    return report


def code(report: CallReport) -> str:
    [outcome] = report.outcomes
    assert not isinstance(outcome, Answered)
    assert SECRET not in outcome.fault.message
    assert len(outcome.fault.message) < 350
    return outcome.fault.code
