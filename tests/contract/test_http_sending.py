"""What the HTTP caller sends, and when: exactly, never twice, and never on a connection that may mix answers up (case_A2)."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from streams.tools.connections import SPOILT_MAX
from streams.tools.port import Answered, Doubtful, NotDone
from tests.support.raw_server import (
    DEADLINE_SECONDS,
    FINE,
    SECRET,
    Server,
    call_of,
    calling,
    code,
    sends,
    serving,
    whole,
)
from tests.support.wait import eventually

# For 127.0.0.1, valid for a hundred years, trusted by nobody.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSKIDNyk44NJhKz3+
A/sHMmQgxHGwux9mdYq0vIiO4e2hRANCAARIGSDUi9DNqPN7A7MAvvLjP6/CWgyz
aru5Z+II9tafnsb19nqpH6cy7uQR6JNXwgV/B24feJOhGMi5txUOV/kZ
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmjCCAUGgAwIBAgIUQnzBoheGgcvCsE4/WT5s0MWK9zEwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyOTIwNTkxMFoYDzIxMjYxMTA1
MjA1OTEwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARIGSDUi9DNqPN7A7MAvvLjP6/CWgyzaru5Z+II9tafnsb19nqpH6cy
7uQR6JNXwgV/B24feJOhGMi5txUOV/kZo28wbTAdBgNVHQ4EFgQUplxHh4Jk97Co
QNc2wW6juSSkF00wHwYDVR0jBBgwFoAUplxHh4Jk97CoQNc2wW6juSSkF00wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDRwAwRAIgMTmBJA19wVPAkxpqzmrlRji2ADMUKjbC2NEirdBKlCQCIFlv
BD/fRLTojhQqsb4Iy7fKk6Arzj/NEH6LHPJgHUsx
-----END CERTIFICATE-----
"""


# --- never twice, never a neighbour's ---


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH"])
async def test_case_A2_a_broken_connection_is_never_answered_by_a_second_request(method: str) -> None:
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


async def test_where_all_kept_connections_are_spoilt_nothing_is_sent_for_now() -> None:
    every_one_answered = asyncio.Barrier(SPOILT_MAX)
    strays = 0

    async def twice(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await every_one_answered.wait()  # so that each call has a connection of its own
        writer.write(whole(b'"first"'))
        await writer.drain()
        asyncio.get_running_loop().call_later(0.02, late, writer)

    def late(writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'"stray"'))
        asyncio.get_running_loop().call_later(0.02, arrived)

    def arrived() -> None:
        nonlocal strays
        strays += 1

    async with serving(twice, answers=SPOILT_MAX) as server, calling(server, concurrency=SPOILT_MAX) as caller:
        firsts = await asyncio.gather(*[caller.call(call_of()) for _ in range(SPOILT_MAX)])
        assert {report.outcomes for report in firsts} == {(Answered(b'"first"'),)}
        await eventually("all have said too much", lambda: strays == SPOILT_MAX)
        report = await caller.call(call_of())
        assert code(report) == "unreachable"
        assert isinstance(report.outcomes[0], NotDone)
        assert len(server.requests) == SPOILT_MAX
        assert (await caller.call(call_of())).outcomes == (Answered(b'{"fine":1}'),)


# --- nothing sent ---


async def hangs(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.get_running_loop().create_future()


async def test_U4_a_call_that_gets_no_connection_in_time_is_not_done() -> None:
    async with serving(hangs) as server, calling(server, timeout_seconds=DEADLINE_SECONDS) as caller:
        first = asyncio.ensure_future(caller.call(call_of()))
        await eventually("the one connection is taken", lambda: len(server.requests) == 1)
        second = await caller.call(call_of())
        assert code(second) == "unreachable"
        assert isinstance(second.outcomes[0], NotDone)
        assert second.seconds < DEADLINE_SECONDS
        assert isinstance((await first).outcomes[0], Doubtful)
        assert len(server.requests) == 1


async def test_U4_closing_tells_those_who_wait_for_a_connection_that_nothing_was_sent() -> None:
    async with serving(hangs) as server, calling(server) as caller:
        first = asyncio.ensure_future(caller.call(call_of()))
        await eventually("the one connection is taken", lambda: len(server.requests) == 1)
        second = asyncio.ensure_future(caller.call(call_of()))
        third = asyncio.ensure_future(caller.call(call_of()))
        await eventually("both wait", lambda: second.get_coro().cr_await and third.get_coro().cr_await)
        third.cancel()
        await asyncio.wait([third])
        await caller.close()
        assert third.cancelled()
        assert isinstance((await first).outcomes[0], Doubtful)
        assert isinstance((await second).outcomes[0], NotDone)


@pytest.mark.parametrize("url", ["http://name.invalid", "https://127.0.0.1:{port}", "http://[::1]:1"])
async def test_U4_a_wrong_name_no_tls_and_a_closed_port_prove_that_nothing_was_sent(url: str) -> None:
    async with serving(sends(FINE)) as server:
        wrong = Server(url.format(port=server.url.rpartition(":")[2]))
        async with calling(wrong, timeout_seconds=1.0) as caller:
            report = await caller.call(call_of())
    assert code(report) == "unreachable"
    assert isinstance(report.outcomes[0], NotDone)
    assert server.requests == []


async def test_a_certificate_that_nobody_vouches_for_gets_no_request(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text(CERTIFICATE)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(tmp_path / "server.pem")
    async with serving(sends(FINE), tls=of_server) as server:
        async with calling(server) as caller:
            report = await caller.call(call_of())
            assert code(report) == "unreachable"
            assert isinstance(report.outcomes[0], NotDone)
            assert "certificate verify failed" in report.outcomes[0].fault.message
        assert server.requests == []
        trusting = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        async with calling(server, tls=trusting) as caller:
            assert (await caller.call(call_of())).outcomes == (Answered(b'{"fine":1}'),)


# --- what is sent ---


async def test_P1_a_request_carries_the_exact_body_and_its_headers() -> None:
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
