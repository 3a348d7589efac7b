"""The HTTP caller against servers that send what no provider should: each is one small function on a raw socket (case_G3).

The deadline is short and the cap small; every test ends with a call that works, so that slot and pool are proven free.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from schemas.providers import Providers
from streams.tools.connections import SPOILT_MAX
from streams.tools.http import HttpCaller
from streams.tools.port import Answered, CallMember, CallReport, Doubtful, NotDone, ProviderCall, Refused

DEADLINE_SECONDS = 0.5
CAP_BYTES = 5 << 20
RSS_GROWTH_MAX = 20 << 20
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
async def serving(answer: Serve, *, answers: int = 1) -> AsyncIterator[Server]:
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

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    seen.url = "http://{}:{}".format(*server.sockets[0].getsockname()[:2])
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
async def calling(server: Server, **tool: Any) -> AsyncIterator[HttpCaller]:
    one = {"path": "/check", "timeout_seconds": DEADLINE_SECONDS} | tool
    described = {"base_url": server.url, "auth": {"secret": "env:KEY"}, "pace": {"concurrency": 1}, "tools": {"check": one}}
    caller = HttpCaller(
        Providers.model_validate({"providers": {"raw": described}}),
        environment={"KEY": SECRET},
        response_bytes_max=CAP_BYTES,
        now=lambda: NOW,
    )
    try:
        yield caller
    finally:
        await caller.close()


def call_of(fields: bytes = b'{"n": 18446744073709551617}') -> ProviderCall:
    return ProviderCall("raw.check", (CallMember("receipt", fields),), False, "key-1", "request-1")


async def until_closed(server: Server) -> None:
    """Until the server has seen all connections closed but the one of the call that went well."""
    async with asyncio.timeout(5.0):
        while server.open_connections > 1:  # noqa: ASYNC110 - the server runs in this loop, and goes on when we let it
            await asyncio.sleep(0)


async def report_of(answer: Serve, **tool: Any) -> CallReport:
    """How one call ends; checks that it was sent once, in time, and that the next one works."""
    async with serving(answer) as server, calling(server, **tool) as caller:
        report = await caller.call(call_of())
        assert len(server.requests) == 1
        assert report.seconds < DEADLINE_SECONDS + 0.5
        # With one connection allowed at a time this also tells that the first is given back or closed.
        fine = await caller.call(call_of())
        assert fine.outcomes == (Answered(b'{"fine":1}'),)
        await until_closed(server)
    return report


def code(report: CallReport) -> str:
    [outcome] = report.outcomes
    assert not isinstance(outcome, Answered)
    assert SECRET not in outcome.fault.message
    assert len(outcome.fault.message) < 350
    return outcome.fault.code


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(b"0" * (50 << 20))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "), id="body drips"),
        pytest.param(drips(CHUNKED, b"1\r\n \r\n"), id="chunks drip"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"), id="headers drip"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"), id="header lines drip"),
        pytest.param(drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), id="interim answers drip"),
    ],
)
async def test_case_g3_a_drip_ends_at_the_deadline(answer: Serve) -> None:
    report = await report_of(answer)
    assert isinstance(report.outcomes[0], Doubtful)
    assert code(report) in {"deadline", "answer_lost"}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(floods(CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"), id="endless chunks"),
        pytest.param(floods(CHUNKED, b"8\r\nxxxxxxxx\r\n" * 5000), id="endless tiny chunks"),
        pytest.param(sends(whole(BOMB, "Content-Encoding: gzip")), id="gzip bomb"),
        pytest.param(sends(whole(gzip.compress(b"") * 1000 + BOMB, "Content-Encoding: gzip")), id="gzip bomb after members"),
    ],
)
async def test_case_g3_a_body_that_grows_too_large_is_cut_off_in_bounded_memory(answer: Serve) -> None:
    async with serving(answer) as server, calling(server, timeout_seconds=20.0) as caller:
        before = resident_bytes()
        report = await caller.call(call_of())
        growth = resident_bytes() - before
        assert code(report) == "bad_response"
        assert isinstance(report.outcomes[0], Doubtful)
        assert "larger than" in report.outcomes[0].fault.message
        assert growth < RSS_GROWTH_MAX
        assert (await caller.call(call_of())).outcomes == (Answered(b'{"fine":1}'),)
        await until_closed(server)


async def test_a_gzip_body_is_opened_also_in_parts_and_with_padding() -> None:
    packed = gzip.compress(b'{"a": ') + gzip.compress(b"1}") + b"\x00" * 8
    pieces = [whole(packed, "Content-Encoding: gzip")[:-20], packed[-20:]]
    report = await report_of(sends(*pieces))
    assert report.outcomes == (Answered(b'{"a":1}'),)
    empty = await report_of(sends(b"HTTP/1.1 204 No Content\r\nContent-Encoding: gzip\r\n\r\n"))
    assert empty.outcomes == (Answered(b"null"),)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(sends(whole(b'{"a": [1, 2')), "bad_response", id="truncated JSON"),
        pytest.param(sends(whole(b"<!doctype html><p>Soon")), "bad_response", id="HTML"),
        pytest.param(sends(whole(b"{}", "Content-Encoding: br")), "bad_response", id="packed otherwise"),
        pytest.param(sends(whole(b"{}", "Content-Encoding: gzip, gzip")), "bad_response", id="packed twice"),
        pytest.param(sends(whole(b"{}", "Content-Encoding: gzip")), "bad_response", id="no gzip"),
        pytest.param(sends(whole(gzip.compress(b"{}")[:-4], "Content-Encoding: gzip")), "bad_response", id="gzip cut off"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", close=True), "answer_lost", id="body cut off"),
        pytest.param(sends(CHUNKED + b"2\r\n{}\r\n", close=True), "answer_lost", id="chunks cut off"),
        pytest.param(sends(CHUNKED + b"zz\r\n"), "answer_lost", id="broken chunk"),
        pytest.param(sends(b"SSH-2.0-OpenSSH\r\n"), "answer_lost", id="no HTTP"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000), "answer_lost", id="huge header"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 5000), "answer_lost", id="many headers"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), "answer_lost", id="bad length"),
        pytest.param(sends(close=True), "answer_lost", id="closed"),
        pytest.param(sends(b"HTTP/1.1 2", close=True), "answer_lost", id="closed in the status line"),
        pytest.param(sends(whole(b"{}", status="101 Switching Protocols")), "http_101", id="another protocol"),
        pytest.param(sends(whole(b"{}", status="999 Denied")), "http_999", id="unknown status"),
    ],
)
async def test_a_broken_answer_is_doubtful(answer: Serve, expected: str) -> None:
    report = await report_of(answer)
    assert code(report) == expected
    assert isinstance(report.outcomes[0], Doubtful)


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    report = await report_of(sends(b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}', close=True))
    assert report.outcomes == (Answered(b'{"a":1}'),)


async def test_a_reason_phrase_in_any_bytes_does_not_lose_what_was_paid_for() -> None:
    report = await report_of(sends(b"HTTP/1.1 200 Requ\xeate re\xe7ue\r\nContent-Length: 2\r\n\r\n{}"))
    assert report.outcomes == (Answered(b"{}"),)


# --- never twice, never a neighbour's ---


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH"])
async def test_case_a2_a_broken_connection_is_never_answered_by_a_second_request(method: str) -> None:
    turns = itertools.count(1)

    async def fine_then_gone(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(turns) == 1:
            writer.write(FINE)
        else:
            writer.close()

    async with serving(fine_then_gone, answers=9) as server, calling(server, method=method) as caller:
        assert isinstance((await caller.call(call_of())).outcomes[0], Answered)
        report = await caller.call(call_of())  # on the kept connection: aiohttp sends a GET or PUT again
        assert isinstance(report.outcomes[0], Doubtful)
        assert len(server.requests) == 2


async def test_an_answer_too_many_is_never_given_to_the_next_call() -> None:
    extra_sent = asyncio.Event()

    async def twice(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'"first"'))
        await writer.drain()
        asyncio.get_running_loop().call_later(0.02, late, writer)

    def late(writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'"stray"'))
        asyncio.get_running_loop().call_later(0.02, extra_sent.set)

    async with serving(twice) as server, calling(server) as caller:
        assert (await caller.call(call_of())).outcomes == (Answered(b'"first"'),)
        await extra_sent.wait()
        assert (await caller.call(call_of())).outcomes == (Answered(b'{"fine":1}'),)
        assert server.connections == 2


async def test_a_server_that_speaks_first_gets_no_request() -> None:
    greeted = 0

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal greeted
        greeted += 1
        writer.write(whole(b'"unasked"'))
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    seen = Server("http://{}:{}".format(*server.sockets[0].getsockname()[:2]))
    async with calling(seen) as caller:
        report = await caller.call(call_of())
    server.close()
    # Its words may come before or after the request leaves; either way they are no answer that counts as paid work done.
    assert greeted <= SPOILT_MAX
    assert isinstance(report.outcomes[0], NotDone | Answered)


# --- saying no ---


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 3 ", 3.0),
        ("0", 0.0),
        (formatdate(NOW + 3, usegmt=True), 3.0),
        ("-5", None),
        ("", None),
        ("9" * 14, 3600.0),
    ],
)
async def test_case_g1_a_retry_after_reaches_the_lane(value: str, seconds: float | None) -> None:
    for status, otherwise in (("429 Too Many", NotDone), ("503 Closed", Doubtful)):
        report = await report_of(sends(whole(b"", f"Retry-After: {value}", status=status)))
        [outcome] = report.outcomes
        assert isinstance(outcome, NotDone if seconds is not None else otherwise)
        assert report.lane_pause_seconds == seconds
        if isinstance(outcome, NotDone):
            assert outcome.retry_after_seconds == seconds


async def test_case_g1_two_retry_afters_that_disagree_are_none() -> None:
    report = await report_of(sends(whole(b"", "Retry-After: 3", "Retry-After: soon", status="429 Too Many")))
    assert isinstance(report.outcomes[0], NotDone)
    assert report.lane_pause_seconds is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(drips(b"HTTP/1.1 422 No\r\nContent-Length: 1000\r\n\r\n", b"a"), id="drips"),
        pytest.param(floods(b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\naaaa\r\n" * 999), id="endless"),
        pytest.param(sends(b"HTTP/1.1 422 No\r\nContent-Length: 9\r\n\r\na", close=True), id="cut off"),
        pytest.param(sends(whole(b"{}", "Content-Encoding: br", status="422 No")), id="packed otherwise"),
        pytest.param(sends(whole(b"\xff" * 9999, status="422 No")), id="no text"),
        pytest.param(sends(whole(b"", status="422 No")), id="empty"),
    ],
)
async def test_a_no_stays_a_no_whatever_becomes_of_its_explanation(answer: Serve) -> None:
    report = await report_of(answer)
    assert code(report) == "http_422"
    assert isinstance(report.outcomes[0], Refused)


async def test_an_explanation_may_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.tools.http.EXPLANATION_SECONDS", 0.1)
    started = time.monotonic()
    drip = drips(b"HTTP/1.1 402 No\r\nContent-Length: 1000\r\n\r\n", b"a")
    async with serving(drip) as server, calling(server, timeout_seconds=60.0) as caller:
        report = await caller.call(call_of())
    assert code(report) == "http_402"
    assert time.monotonic() - started < 5.0


async def test_secrets_and_queries_are_in_no_message() -> None:
    body = f'{{"error": "bad key {SECRET} in header"}}\r\n\x1b[31m'.encode() + b"x" * 10_000
    report = await report_of(sends(whole(body, status="403 No")), path=f"/{SECRET}/check?token=abc")
    assert code(report) == "http_403"
    [outcome] = report.outcomes
    assert isinstance(outcome, Refused)
    assert outcome.fault.message.endswith("…")
    assert "/[secret]/check: " in outcome.fault.message
    assert "token" not in outcome.fault.message
    assert outcome.fault.message.isprintable()


async def test_a_redirect_is_not_followed() -> None:
    report = await report_of(sends(whole(b"", "Location: /elsewhere", status="302 Found")))
    assert code(report) == "http_302"
    assert isinstance(report.outcomes[0], Refused)


# --- what is sent ---


async def test_a_request_carries_the_exact_body_and_its_headers() -> None:
    async with serving(sends(FINE)) as server, calling(server) as caller:
        await caller.call(call_of(b'{"n": 1e21,"big":18446744073709551617}'))
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = [line.lower() for line in head.split(b"\r\n")]
    assert lines[0] == b"post /check http/1.1"
    assert body == b'{"n": 1e21,"big":18446744073709551617}'
    assert sorted(lines[1:]) == sorted(
        [
            b"host: " + server.url.removeprefix("http://").encode(),
            b"accept: application/json",
            b"accept-encoding: gzip",
            b"user-agent: paidonce",
            b"authorization: bearer " + SECRET.encode(),
            b"idempotency-key: key-1",
            b"x-request-id: request-1",
            b"content-type: application/json",
            b"content-length: %d" % len(body),
        ]
    )


async def test_a_get_has_its_input_in_the_query_and_no_body() -> None:
    async with serving(sends(FINE)) as server, calling(server, method="GET", path="/check?v=2") as caller:
        report = await caller.call(call_of('{"q":"a b+c&d=e/ä%2F?#","n":18446744073709551617}'.encode()))
        refused = await caller.call(call_of(b'{"nested":{}}'))
        plain = await caller.call(call_of(b"{}"))
    assert isinstance(report.outcomes[0], Answered)
    assert isinstance(plain.outcomes[0], Answered)
    assert code(refused) == "bad_input"
    line, _, rest = server.requests[0].partition(b"\r\n")
    query = line.split()[1].decode().partition("?")[2]
    # Some characters may come as they are or as %XX; what is read back is what counts.
    assert parse_qsl(query) == [("v", "2"), ("q", "a b+c&d=e/ä%2F?#"), ("n", "18446744073709551617")]
    assert b"content-type" not in rest.lower()
    assert server.requests[1].startswith(b"GET /check?v=2 HTTP/1.1\r\n")
    assert len(server.requests) == 2


async def test_cookies_are_not_kept() -> None:
    async with serving(sends(whole(b"{}", "Set-Cookie: a=b; Path=/"))) as server, calling(server) as caller:
        await caller.call(call_of())
        await caller.call(call_of())
    assert b"cookie" not in server.requests[1].lower()
    assert server.connections == 1
