"""Where a fetch may go, against a real server on loopback: unsafe addresses, names and redirects (F4)."""

from __future__ import annotations

import httpx
import pytest

from streams.tools.connections import Connections, NothingSent
from streams.tools.dialing import Dialing
from streams.tools.fetch import REDIRECTS_MAX
from streams.tools.port import Doubtful, Refused
from tests.support.raw_server import whole
from tests.support.web import (
    LOOPBACK,
    Answer,
    fetching,
    leads,
    serving,
)


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


@pytest.mark.parametrize("location", ["", " ", "#top"])
@pytest.mark.parametrize(
    ("method", "status", "asked"),
    [
        *[("GET", status, ["GET"]) for status in (301, 302, 303, 307, 308)],
        ("POST", 307, ["POST"]),
        ("PUT", 302, ["PUT"]),
        *[("POST", status, ["POST", "GET"]) for status in (301, 302, 303)],
    ],
)
async def test_F4_a_redirect_to_the_request_that_was_just_made_is_the_answer(
    method: str, status: int, asked: list[str], location: str
) -> None:
    """It was followed five times, a POST with 307 sent six times, and then told as too many redirects."""
    answers = {"/": [leads(status, location), leads(302, location)]}
    async with serving(answers) as web, fetching() as fetch:
        value = await fetch.value(web.url(), method)
    assert [asked.method for asked in web.asked] == asked
    assert (value["status"], value["url"], value["body"]) == (status if len(asked) == 1 else 302, web.url(), "moved")


async def test_F3_a_page_is_not_lost_over_its_headers() -> None:
    """One header of 9,000 bytes, or 200 headers, were more than the library takes: a POST was *unknown*, a GET never fetched."""
    long = whole(b"fine", "X-Policy: " + "a" * 15_000)
    many = whole(b"fine", *[f"Set-Cookie: a{n}=b" for n in range(240)])
    async with serving({"/long": long, "/many": many}) as web, fetching() as fetch:
        for path in ("/long", "/many"):
            assert (await fetch.value(web.url(path), "POST"))["body"] == "fine"
