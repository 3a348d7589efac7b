"""The fetch caller against a real server on loopback: what is sent, what comes home, its limits of time (F2) and its tries (F3)."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
from typing import Any

import pytest

from schemas.providers import Providers
from streams.tools.port import Answered, Doubtful, NotDone, Refused
from tests.support.raw_server import whole
from tests.support.wait import eventually
from tests.support.web import (
    Answer,
    begins,
    breaks_off,
    fault_of,
    fetching,
    hangs,
    hangs_up,
    leads,
    serving,
    slowly,
)

UNSAFE_METHODS = ["POST", "PUT", "PATCH", "DELETE"]
SHORT_SECONDS = 0.4


# --- what is sent, and what comes home ---------------------------------------------------------------------------------


async def test_F1_a_page_is_one_value() -> None:
    page = whole(b"<p>caf\xc3\xa9", "Content-Type: text/html; charset=utf-8", "ETag: x", "Set-Cookie: a=b", "Server: s")
    async with serving({"/p?q=1": page}) as web, fetching() as fetch:
        value = await fetch.value(web.url("/p?q=1#part"), headers={"accept": "text/html", "x-n": 5, "x-none": None})
    assert value == {
        "status": 200,
        "url": web.url("/p?q=1"),
        "headers": {"content-type": "text/html; charset=utf-8", "etag": "x"},
        "body": "<p>café",
        "base64": False,
    }
    [asked] = web.asked
    assert (asked.method, asked.path, asked.body) == ("GET", "/p?q=1", b"")
    assert (asked.headers["accept"], asked.headers["x-n"], asked.headers["user-agent"]) == ("text/html", "5", "paidonce")
    assert asked.headers["accept-encoding"] == "gzip"
    assert "x-none" not in asked.headers


@pytest.mark.parametrize(
    ("body", "sent", "media"),
    [
        ("a=é", "a=é".encode(), "text/plain; charset=utf-8"),
        ({"n": 18446744073709551617, "a": [1.5, None]}, b'{"a":[1.5,null],"n":18446744073709551617}', "application/json"),
        ({}, b"{}", "application/json"),
        (0, b"0", "application/json"),
    ],
)
async def test_F1_a_body_is_sent_as_it_was_meant(body: Any, sent: bytes, media: str) -> None:
    async with serving() as web, fetching() as fetch:
        await fetch.value(web.url(), "POST", body=body)
        await fetch.value(web.url(), "PUT", body=body, headers={"content-type": "text/csv"})
    assert [asked.body for asked in web.asked] == [sent, sent]
    assert [asked.headers["content-type"] for asked in web.asked] == [media, "text/csv"]


async def test_a_page_that_is_no_text_is_kept_as_bytes_and_json_is_read() -> None:
    answers: dict[str, Answer] = {
        "/png": whole(b"\x89PNG\x00\xff", "Content-Type: image/png"),
        "/latin": whole(b"caf\xe9", "Content-Type: text/html; charset=ISO-8859-1"),
        "/lie": whole(b"caf\xe9", "Content-Type: text/html; charset=zlib"),
        "/json": whole(b'{"n": 18446744073709551617}', "Content-Type: application/problem+json; x=y"),
        "/broken": whole(b'{"n": ', "Content-Type: application/json"),
        "/gzip": whole(gzip.compress(b"packed", mtime=0), "Content-Encoding: gzip"),
    }
    async with serving(answers) as web, fetching() as fetch:
        found = {path: await fetch.value(web.url(path)) for path in answers}
        head = await fetch.value(web.url("/png"), "HEAD")
    assert (base64.b64decode(found["/png"]["body"]), found["/png"]["base64"]) == (b"\x89PNG\x00\xff", True)
    assert (found["/latin"]["body"], found["/latin"]["base64"]) == ("café", False)
    assert found["/lie"]["base64"] is True
    assert found["/json"]["json"] == {"n": 18446744073709551617}
    assert found["/broken"]["body"] == '{"n": '
    assert "json" not in found["/broken"]
    assert found["/gzip"]["body"] == "packed"
    assert (head["status"], head["headers"], head["body"]) == (200, {"content-type": "image/png"}, "")


@pytest.mark.parametrize(
    "status", ["204 No Content", "304 Not Modified", "404 Not Found", "410 Gone", "501 Not Implemented", "302 No"]
)
async def test_whatever_a_server_answers_for_good_is_a_value(status: str) -> None:
    async with serving({"/": f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()}) as web, fetching() as fetch:
        assert (await fetch.value(web.url()))["status"] == int(status[:3])


@pytest.mark.parametrize(
    ("method", "status", "headers", "kind", "wait"),
    [
        ("GET", 429, ["Retry-After: 7"], NotDone, 7.0),
        ("GET", 429, [], NotDone, None),
        ("GET", 503, ["Retry-After: 7"], NotDone, 7.0),
        ("GET", 503, [], NotDone, None),
        ("GET", 500, [], NotDone, None),
        ("POST", 429, ["Retry-After: 7"], NotDone, 7.0),
        ("POST", 503, ["Retry-After: 7"], NotDone, 7.0),
        ("POST", 503, [], Answered, None),
        ("POST", 500, [], Answered, None),
    ],
)
async def test_P3_a_server_that_cannot_answer_now_is_asked_later_and_no_other_server_waits_for_it(
    method: str, status: int, headers: list[str], kind: type, wait: float | None
) -> None:
    async with serving({"/": whole(b"", *headers, status=f"{status} Later")}) as web, fetching() as fetch:
        outcome = await fetch(web.url(), method)
    assert type(outcome) is kind
    if isinstance(outcome, NotDone):
        assert outcome.retry_after_seconds == wait
        assert (outcome.fault.code, outcome.fault.repairable) == (f"http_{status}", True)
        assert outcome.fault.message.startswith(f"fetch.{method.lower()}: {web.url()}: HTTP {status}: ")
    assert len(web.asked) == 1


# --- F2: limits of time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "answer"),
    [
        ("headers", hangs),
        ("headers", begins(b"HTTP/1.1 200 OK\r\nX-Half: ")),
        ("body", begins(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")),
        ("total", leads(302, "/slow")),
    ],
)
async def test_F2_a_limit_of_time_is_named_and_F3_is_never_a_reason_to_try_again(phase: str, answer: Answer) -> None:
    limits = {"headers_seconds": 30.0, "body_seconds": 30.0, "total_seconds": 60.0} | {f"{phase}_seconds": SHORT_SECONDS}
    async with serving({"/": answer, "/slow": hangs}) as web, fetching(**limits) as fetch:
        started = time.monotonic()
        got, posted = await asyncio.gather(fetch(web.url()), fetch(web.url(), "POST"))
        assert time.monotonic() - started < 10.0
        await eventually("connections are closed", lambda: web.open_connections == 0)
    assert fault_of(got).message.endswith(f": {phase}: not done within {SHORT_SECONDS:g} s")
    assert isinstance(got, Refused)
    assert (got.fault.code, got.fault.repairable) == ("deadline", True)
    assert isinstance(posted, Doubtful)
    assert posted.fault.code == "deadline"
    assert sorted(web.seen)[-1][0] == "POST"
    assert len([asked for asked in web.asked if asked.path == "/"]) == 2


async def test_F2_the_total_includes_all_redirects() -> None:
    chain: dict[str, Answer] = {f"/{place}": slowly(leads(302, f"/{place + 1}"), SHORT_SECONDS / 3) for place in range(5)}
    async with serving(chain) as web, fetching(total_seconds=SHORT_SECONDS) as fetch:
        fault = await fetch.fault(web.url("/0"))
    assert fault.message.endswith(f"total: not done within {SHORT_SECONDS:g} s")
    assert 2 <= len(web.asked) < 5


async def test_F2_the_limit_of_all_calls_counts_too() -> None:
    async with serving({"/": hangs}) as web, fetching(call_seconds=SHORT_SECONDS) as fetch:
        assert f"total: not done within {SHORT_SECONDS:g} s" in (await fetch.fault(web.url())).message


def test_F2_the_limits_are_those_of_the_spec_unless_an_operator_says_otherwise() -> None:
    limits = Providers().fetch
    assert (limits.headers_seconds, limits.body_seconds, limits.total_seconds) == (30.0, 30.0, 120.0)


# --- F3: tries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_F3_a_harmless_request_is_tried_three_times(method: str) -> None:
    async with serving({"/": [hangs_up, hangs_up, whole(b"at last")], "/never": hangs_up}) as web, fetching() as fetch:
        assert (await fetch.value(web.url(), method))["status"] == 200
        assert fetch.waits == [pytest.approx(0.1), pytest.approx(0.2)]
        outcome = await fetch(web.url("/never"), method)
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("answer_lost", True)
    assert "(tried 3 times)" in outcome.fault.message
    assert web.seen == [(method, "/")] * 3 + [(method, "/never")] * 3


async def test_F3_a_body_that_breaks_off_is_fetched_anew() -> None:
    half = breaks_off(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
    async with serving({"/": [half, whole(b"whole")]}) as web, fetching() as fetch:
        assert (await fetch.value(web.url()))["body"] == "whole"
    assert len(web.asked) == 2


@pytest.mark.parametrize("method", UNSAFE_METHODS)
async def test_F3_a_request_that_may_change_something_is_sent_once_and_U1_its_lost_answer_is_doubtful(method: str) -> None:
    async with serving({"/": hangs_up}) as web, fetching() as fetch:
        outcome = await fetch(web.url(), method)
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.code == "answer_lost"
    assert (web.seen, fetch.waits) == ([(method, "/")], [])


@pytest.mark.parametrize(("method", "waits"), [("GET", 2), ("POST", 0)])
async def test_U4_where_nothing_was_sent_nothing_is_in_doubt(method: str, waits: int) -> None:
    async with serving() as web:
        url = web.url()
    async with fetching() as fetch:
        outcome = await fetch(url, method)
        unknown = await fetch(url.replace("a.test", "nowhere.test"), method)
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("unreachable", True)
    assert isinstance(unknown, Refused)
    assert len(fetch.waits) == 2 * waits


async def test_F3_an_aborted_fetch_is_not_tried_again() -> None:
    async with serving({"/": hangs}) as web, fetching() as fetch:
        call = asyncio.ensure_future(fetch(web.url()))
        await eventually("it is asked", lambda: len(web.asked) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually("its connection is closed", lambda: web.open_connections == 0)
        assert (len(web.asked), fetch.waits) == (1, [])


@pytest.mark.parametrize(("method", "kind"), [("GET", NotDone), ("POST", Doubtful)])
async def test_L7_a_worker_that_stops_leaves_a_harmless_fetch_to_the_next_one(method: str, kind: type) -> None:
    async with serving({"/": hangs}) as web, fetching() as fetch:
        call = asyncio.ensure_future(fetch(web.url(), method))
        await eventually("it is asked", lambda: len(web.asked) == 1)
        await fetch.caller.close()
        assert type(await call) is kind
        assert isinstance(await fetch(web.url(), method), NotDone)
        assert len(web.asked) == 1
