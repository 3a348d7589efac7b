"""The fetch caller against a real server on loopback: `streams.tools.fetch`. What it may dial is told by F4, when by F2 and F3."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import time
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.providers import Providers
from streams.errors import ConfigurationError
from streams.tools.connections import Connections, NothingSent
from streams.tools.dialing import Dialing
from streams.tools.fetch import REDIRECTS_MAX, FetchCaller
from streams.tools.port import Answered, CallMember, CallReport, Doubtful, NotDone, ProviderCall, Refused
from streams.tools.routing import RoutedCaller
from tests.support.raw_server import until, whole
from tests.support.web import (
    LOOPBACK,
    SECRET,
    Answer,
    begins,
    breaks_off,
    endless,
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


def secret_for(url: str, **fields: Any) -> dict[str, Any]:
    return {"crm": {"secret": "env:KEY", "origins": [url]} | fields}


USE = {"authorization": {"secret": "crm", "scheme": "Bearer"}}

# --- what is sent, and what comes home ---


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


# --- F2: limits of time ---


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
        await until("connections are closed", lambda: web.open_connections == 0)
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


# --- F3: tries ---


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
        await until("it is asked", lambda: len(web.asked) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until("its connection is closed", lambda: web.open_connections == 0)
        assert (len(web.asked), fetch.waits) == (1, [])


@pytest.mark.parametrize(("method", "kind"), [("GET", NotDone), ("POST", Doubtful)])
async def test_L7_a_worker_that_stops_leaves_a_harmless_fetch_to_the_next_one(method: str, kind: type) -> None:
    async with serving({"/": hangs}) as web, fetching() as fetch:
        call = asyncio.ensure_future(fetch(web.url(), method))
        await until("it is asked", lambda: len(web.asked) == 1)
        await fetch.caller.close()
        assert type(await call) is kind
        assert isinstance(await fetch(web.url(), method), NotDone)
        assert len(web.asked) == 1


# --- F4: where it may go ---


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:{}/", "http://[::1]:{}/", "http://localhost:{}/", "http://127.1:{}/", "http://2130706433:{}/"),
        *("http://0x7f000001:{}/", "http://0.0.0.0:{}/", "http://[::ffff:127.0.0.1]:{}/", "http://[64:ff9b::7f00:1]:{}/"),
        *("http://169.254.169.254/latest/meta-data/", "http://inside.test:{}/", "http://user:pass@a.test:{}/"),
        *("http://ⓛocalhost:{}/", "http://127。0。0。1:{}/", "http://a.test:{}@127.0.0.1/", "http:///", "http://:{}/"),
        *("ftp://a.test/", "file:///etc/passwd", "//a.test/", "a.test", "", "http://a.test:99999/", "http://[::1/", "http://a b/"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_case_L1_F4_an_unsafe_url_is_refused_for_good_and_nobody_is_asked(url: str, method: str) -> None:
    async with serving() as web, fetching() as fetch:
        outcome = await fetch(url.replace("{}", str(web.port)), method)
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("unsafe_url", False)
    assert outcome.fault.message.startswith(f"fetch.{method.lower()}: ")
    assert (web.asked, fetch.waits) == ([], [])


@pytest.mark.parametrize(
    "target",
    [
        *(
            "http://127.0.0.1:{}/x",
            "http://inside.test/x",
            "//127.0.0.1:{}/x",
            "http://[::1]:{}/x",
            "file:///etc/passwd",
            "javascript:x",
        ),
        *("http://user@a.test:{}/x", "http://169.254.169.254/", "http://a.test:0x/", "gopher://a.test/x"),
    ],
)
async def test_case_L1_F4_a_redirect_is_checked_like_the_first_url(target: str) -> None:
    async with serving() as web:
        port = web.port
    async with serving({"/": leads(302, target.replace("{}", str(port)))}) as web, fetching() as fetch:
        outcome = await fetch(web.url())
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("unsafe_url", False)
    assert web.seen == [("GET", "/")]


async def test_case_L1_F4_a_name_is_resolved_once_and_that_address_is_dialled() -> None:
    """DNS rebinding: the name's second answer is an address inside; whoever resolved again to connect would dial it."""
    names = {"a.test": [[LOOPBACK], ["127.0.0.2"]]}
    async with serving() as web, fetching(names) as fetch:
        assert (await fetch.value(web.url()))["status"] == 200
        assert fetch.resolver.questions == ["a.test"]


async def test_F4_a_name_with_an_address_inside_beside_its_public_one_is_refused() -> None:
    async with serving() as web, fetching({"a.test": [[LOOPBACK, "192.168.0.1"]]}) as fetch:
        fault = await fetch.fault(web.url())
    assert fault.code == "unsafe_url"
    assert fault.message == f"fetch.get: {web.url()}: the name leads to an address that is private"
    assert (fetch.resolver.questions, web.asked, fetch.waits) == (["a.test"], [], [])


async def test_F4_what_is_no_name_is_judged_where_its_socket_is_made() -> None:
    """Below all checks of URLs: whatever one of them overlooks is still not dialled."""
    async with serving() as web:
        connections = Connections(headers={}, connections_max=1, tls=None, dialing=Dialing())
        with pytest.raises(NothingSent, match="the address is loopback"):
            await connections.send("GET", httpx.URL(web.url(host=LOOPBACK)), [], b"", 5.0)
        await connections.aclose()
    assert (web.asked, web.open_connections) == ([], 0)


async def test_F4_an_allowed_origin_is_open_and_only_that() -> None:
    async with serving() as other, serving({"/away": leads(302, f"http://{LOOPBACK}:{other.port}/")}) as web:
        async with fetching(allow=[f"http://{LOOPBACK}:{web.port}"]) as fetch:
            assert (await fetch.value(web.url(host=LOOPBACK)))["body"] == "fine"
            assert (await fetch.fault(other.url(host=LOOPBACK))).code == "unsafe_url"
            assert (await fetch.fault(web.url("/away", host=LOOPBACK))).code == "unsafe_url"
            assert (await fetch.fault(web.url(host="localhost"))).code == "unsafe_url"
        assert other.asked == []


async def test_F4_redirects_are_followed_five_times() -> None:
    chain: dict[str, Answer] = {f"/{place}": leads(302, f"{place + 1}") for place in range(REDIRECTS_MAX + 1)}
    async with serving(chain) as web, fetching() as fetch:
        assert (await fetch.value(web.url("/1")))["url"] == web.url(f"/{REDIRECTS_MAX + 1}")
        fault = await fetch.fault(web.url("/0"))
    assert (fault.code, fault.repairable) == ("too_many_redirects", False)
    assert REDIRECTS_MAX == 5


@pytest.mark.parametrize(
    ("method", "status", "then"),
    [
        *[("GET", status, "GET") for status in (301, 302, 303, 307, 308)],
        *[("HEAD", status, "HEAD") for status in (301, 303, 307)],
        ("POST", 301, "GET"),
        ("POST", 302, "GET"),
        ("POST", 303, "GET"),
        ("POST", 307, "POST"),
        ("POST", 308, "POST"),
        ("PUT", 302, "PUT"),
        ("PUT", 303, "GET"),
        ("DELETE", 301, "DELETE"),
    ],
)
async def test_F4_a_redirect_keeps_or_changes_the_method_by_rfc_9110(method: str, status: int, then: str) -> None:
    parts = {} if method in ("GET", "HEAD", "DELETE") else {"body": {"a": 1}}
    async with serving({"/": leads(status, "/then")}) as web, fetching() as fetch:
        value = await fetch.value(web.url(), method, **parts)
    assert value["url"] == web.url("/then")
    first, second = web.asked
    assert (second.method, second.path) == (then, "/then")
    assert second.body == (first.body if then == method else b"")
    assert ("application/json" in second.headers.get("content-type", "")) == bool(second.body)


@pytest.mark.parametrize(
    ("status", "then", "kind"),
    [
        (303, "http://127.0.0.1/", Doubtful),
        (302, "http://nowhere.test/", Doubtful),
        (307, "http://127.0.0.1/", Refused),
        (308, "http://nowhere.test/", Refused),
    ],
)
async def test_U1_what_a_post_may_have_done_before_a_redirect_is_not_forgotten(status: int, then: str, kind: type) -> None:
    async with serving({"/": leads(status, then)}) as web, fetching() as fetch:
        assert type(await fetch(web.url(), "POST")) is kind
    assert web.seen == [("POST", "/")]


async def test_U1_a_busy_server_behind_a_posts_redirect_does_not_make_it_sent_again() -> None:
    async with serving({"/": leads(303, "/receipt"), "/receipt": whole(b"", status="429 Later")}) as web, fetching() as fetch:
        assert (await fetch.value(web.url(), "POST"))["status"] == 429


# --- F5: secrets ---


async def test_case_L1_F5_a_secret_goes_to_its_origin_and_never_to_another() -> None:
    async with serving() as other, serving({"/same": leads(302, "/x"), "/away": leads(307, other.url("/y"))}) as web:
        home = f"http://{LOOPBACK}:{web.port}"
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            await fetch.value(f"{home}/same", secrets=USE)
            bare = {"x-key": {"secret": "crm", "scheme": ""}}
            await fetch.value(f"{home}/away", secrets=bare, headers={"x-own": "1", "accept-language": "de"})
            withheld = await fetch(other.url(), secrets=USE)
    assert [asked.headers.get("authorization") for asked in web.asked] == [f"Bearer {SECRET}"] * 2 + [None]
    assert web.asked[2].headers["x-key"] == SECRET
    [asked] = other.asked
    assert asked.path == "/y"
    assert SECRET not in str(asked)
    assert "x-own" not in asked.headers
    assert asked.headers["accept-language"] == "de"
    assert isinstance(withheld, Refused)
    assert (withheld.fault.code, withheld.fault.repairable) == ("secret_withheld", False)
    assert home in withheld.fault.message


async def test_F5_a_secret_does_not_come_back_with_a_redirect() -> None:
    async with serving() as other, serving() as web:
        home = f"http://{LOOPBACK}:{web.port}"
        web.answers["/out"] = leads(302, other.url("/back"))
        other.answers["/back"] = leads(302, f"{home}/in")
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            assert (await fetch.value(f"{home}/out", secrets=USE))["url"] == f"{home}/in"
    first, last = web.asked
    assert first.headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(last)


async def test_F5_known_secrets_are_hidden_in_all_that_is_kept() -> None:
    said = json.dumps({"you sent": f"Bearer {SECRET}"}).encode()
    answers: dict[str, Answer] = {
        "/echo": whole(said, "Content-Type: application/json", f"Link: <https://x/?k={SECRET}>"),
        "/bytes": whole(b"\xff" + SECRET.encode(), "Content-Type: image/png"),
        "/moved": leads(302, f"/to?key={SECRET.replace('/', '%2F')}"),
        "/wide": whole(SECRET.encode("utf-16"), "Content-Type: text/plain; charset=utf-16"),
    }
    async with serving(answers) as web:
        home = f"http://{LOOPBACK}:{web.port}"
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            found = {path: await fetch.value(f"{home}{path}", secrets=USE) for path in answers}
    assert found["/echo"]["json"] == {"you sent": "Bearer [secret]"}
    assert found["/echo"]["headers"]["link"] == "<https://x/?k=[secret]>"
    assert base64.b64decode(found["/bytes"]["body"]) == b"\xff[secret]"
    assert found["/moved"]["url"] == f"{home}/to?key=[secret]"
    assert found["/wide"]["body"] == "[secret]"


async def test_F5_the_secrets_of_providers_are_hidden_too() -> None:
    provider = {"base_url": "https://acme.example", "auth": {"secret": "env:ACME"}, "tools": {"t": {"path": "/"}}}
    async with serving({"/": whole(b"token: acme-token")}) as web:
        home = f"http://{LOOPBACK}:{web.port}"
        described = Providers.model_validate({"providers": {"acme": provider}, "fetch": {"allow": [home]}})
        caller = FetchCaller(described, environment={"ACME": "acme-token"})
        call = ProviderCall("fetch.get", (CallMember("r", json.dumps({"method": "GET", "url": home}).encode()),), False, "k", "i")
        report = await caller.call(call)
        await caller.close()
    [outcome] = report.outcomes
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.output)["body"] == "token: [secret]"


async def test_R10_a_row_cannot_name_a_secret() -> None:
    async with serving() as web:
        home = f"http://{LOOPBACK}:{web.port}"
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            fault = await fetch.fault(home, headers={"authorization": {"secret": "crm"}})
            unknown = await fetch.fault(home, secrets={"x": {"secret": "other", "scheme": ""}})
    assert (fault.code, unknown.code, unknown.repairable) == ("bad_input", "unknown_secret", True)
    assert web.asked == []


def test_F5_a_missing_secret_stops_the_worker_at_its_start() -> None:
    described = Providers.model_validate({"fetch": {"secrets": secret_for("https://a.example")}})
    with pytest.raises(ConfigurationError, match="secret env:KEY: the environment has no KEY"):
        FetchCaller(described, environment={})


# --- hostile servers and inputs ---

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(endless(HEAD, b"5\r\naaaaa\r\n" * 1000), id="endless"),
        pytest.param(whole(gzip.compress(b"0" * (50 << 20)), "Content-Encoding: gzip"), id="gzip bomb"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 4096, id="announced"),
    ],
)
async def test_P5_a_body_is_read_up_to_its_limit(answer: Answer) -> None:
    async with serving({"/": answer}) as web, fetching(body_bytes_max=1000) as fetch:
        got, posted = await fetch(web.url()), await fetch(web.url(), "POST")
        await until("its connections are closed", lambda: web.open_connections == 0)
    assert isinstance(got, Refused)
    assert (got.fault.code, got.fault.repairable) == ("too_large", False)
    assert "more than 1,000 bytes" in got.fault.message
    assert isinstance(posted, Doubtful)
    assert posted.fault.code == "too_large"


async def test_a_body_of_just_the_limit_is_whole() -> None:
    async with serving({"/": whole(b"a" * 1000)}) as web, fetching(body_bytes_max=1000) as fetch:
        assert (await fetch.value(web.url()))["body"] == "a" * 1000


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"x", "Content-Encoding: br"),
        whole(gzip.compress(b"abc" * 100, mtime=0)[:-9], "Content-Encoding: gzip"),
        whole(b"no gzip", "Content-Encoding: gzip"),
    ],
)
async def test_a_body_that_cannot_be_opened_is_no_page(answer: bytes) -> None:
    async with serving({"/": answer}) as web, fetching() as fetch:
        outcome = await fetch(web.url())
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, len(web.asked)) == ("bad_response", 1)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"headers": {"x": "a\r\nX-Evil: 1"}}, "header x"),
        ({"headers": {"x": "é"}}, "header x"),
        ({"headers": {"x": ["a"]}}, "object or list"),
        ({"headers": 5}, "$.headers"),
        ({"url": 5}, "$.url"),
        ({"url": None}, "$.url"),
        ({"method": "TRACE"}, "$.method"),
        ({"more": 1}, "more"),
        ({"method": "POST"}, "its input asks for a POST"),
    ],
)
async def test_an_input_that_no_request_can_be_made_of_is_refused_in_words(parts: dict[str, Any], words: str) -> None:
    async with serving() as web, fetching() as fetch:
        call = {"method": "GET", "url": web.url()} | parts
        report = await fetch.caller.call(ProviderCall("fetch.get", (CallMember("r", json.dumps(call).encode()),), False, "k", "i"))
    [outcome] = report.outcomes
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("bad_input", False)
    assert words in outcome.fault.message
    assert web.asked == []


@pytest.mark.parametrize("url", ["http://user:hunter2@a.test:99999/", "//user:hunter2@a/?b=hunter2", "http://user:hunter2@a.test/"])
async def test_V3_a_password_in_a_url_is_in_no_message(url: str) -> None:
    async with fetching() as fetch:
        fault = await fetch.fault(url)
    assert fault.code == "unsafe_url"
    assert "hunter2" not in fault.message


async def test_several_inputs_in_one_call_are_not_a_fetch() -> None:
    async with fetching() as fetch:
        report = await fetch.caller.call(ProviderCall("fetch.get", (CallMember("r", b"{}"),) * 2, True, "k", "i"))
    assert [type(outcome) for outcome in report.outcomes] == [Refused, Refused]


URLS = st.one_of(
    st.text(max_size=40),
    st.builds("".join, st.tuples(st.sampled_from(["http://", "https://", "HTTP://"]), st.text(max_size=40))),
    st.from_regex(r"\Ahttps?://[\[\]a-z0-9.:@%\\/?#_-]{0,30}\Z"),
)


@given(url=URLS, location=st.one_of(URLS, st.text(alphabet=st.characters(max_codepoint=255), max_size=40)))
@settings(max_examples=300, deadline=None)
def test_F4_no_url_brings_the_caller_down(url: str, location: str) -> None:
    """A row that a worker cannot survive would end one worker after the other. No name is resolved here, so nothing is dialled."""

    async def ask() -> None:
        async with fetching({}) as fetch:
            for asked in (url, f"https://a.test/{location}"):
                outcome = await fetch(asked)
                assert isinstance(outcome, Refused)
                assert outcome.fault.code in ("unsafe_url", "unreachable")

    asyncio.run(ask())


async def test_V3_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving({"/": hangs_up}) as web, fetching() as fetch:
        await fetch(web.url())
        await fetch(web.url("/fine"))
    said = [record for record in caplog.records if record.name.split(".")[0] in {"httpx", "httpcore", "aiohttp", "streams"}]
    assert said == []


# --- the router ---


class Named:
    """A caller that says who it is."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.closed = False

    async def call(self, call: ProviderCall) -> CallReport:
        return CallReport((Answered(self.name),) * len(call.members))

    async def close(self) -> None:
        self.closed = True


async def test_calls_go_to_the_caller_of_their_kind() -> None:
    special, usual = Named(b'"special"'), Named(b'"usual"')
    router = RoutedCaller({"fetch": special}, default=usual)
    names = ["fetch.get", "fetcher.get", "acme.fetch", "fetch"]
    found = [(await router.call(ProviderCall(name, (CallMember("r", b"{}"),), False, "k", "i"))).outcomes[0] for name in names]
    assert found == [Answered(special.name), Answered(usual.name), Answered(usual.name), Answered(special.name)]
    await router.close()
    assert special.closed
    assert usual.closed
