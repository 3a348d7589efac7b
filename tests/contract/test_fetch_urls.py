"""What of a URL reaches a server, and what of its headers comes home, is what was written (F1)."""

from __future__ import annotations

import random

import pytest
import yarl

from streams.tools.asking import PORTS, Unfit, host_of, reparsed
from tests.support.raw_server import FINE, call_of, calling, sends, whole
from tests.support.raw_server import serving as serving_raw
from tests.support.web import fetching, serving

AS_WRITTEN = [
    "/a?u=http%3A%2F%2Fx%2Fy",
    "/a%2Fb/%7Eme/%41",
    "/a?q=%27%22&x=[1]",
    "/a?x=%zz",
    "/a?sig=ab%3D%3D&p=%25&s=+%20%2B",
    "/a//b;p=1",
    "/a?x=%E9",
    "/a/%2e%2e/b",
]


@pytest.mark.parametrize("path", AS_WRITTEN)
async def test_F1_a_url_is_dialled_as_it_is_written(path: str) -> None:
    """``%3A%2F%2F`` left as ``://``: a signature over the URL no longer fitted, and the receipt named a URL that nobody asked."""
    async with serving() as web, fetching() as fetch:
        value = await fetch.value(web.url(path))
    assert [asked.path for asked in web.asked] == [path]
    assert value["url"] == web.url(path)


@pytest.mark.parametrize(("path", "asked"), [("/a/../b", "/b"), ("/a b?c d", "/a%20b?c%20d"), ("/ü?ü=1", "/%C3%BC?%C3%BC=1")])
async def test_F1_dots_are_resolved_and_what_no_url_may_hold_is_escaped_and_the_receipt_says_so(path: str, asked: str) -> None:
    async with serving() as web, fetching() as fetch:
        value = await fetch.value(web.url(path))
    assert [seen.path for seen in web.asked] == [asked]
    assert value["url"] == web.url(asked)


async def test_F1_a_query_of_a_tool_is_escaped_once() -> None:
    async with serving_raw(sends(FINE)) as server, calling(server, method="GET", path="/check?u=a%2Fb") as caller:
        await caller.call(call_of(b'{"q":"a b+c&d:e%2F"}'))
    assert server.requests[0].split(b"\r\n")[0] == b"GET /check?u=a%2Fb&q=a%20b%2Bc%26d%3Ae%252F HTTP/1.1"


@pytest.mark.parametrize("location", ["/café".encode(), "/café".encode("latin-1"), b"/caf%C3%A9"])
async def test_F1_a_redirect_in_plain_utf_8_leads_where_its_server_meant(location: bytes) -> None:
    """It was read as Latin-1, which asked for ``/caf%C3%83%C2%A9``: another page, or its 404, was kept for ever."""
    answers = {"/": b"HTTP/1.1 302 F\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n"}
    async with serving(answers | {"/caf%C3%A9": whole(b"the page", "Content-Type: text/plain")}) as web, fetching() as fetch:
        value = await fetch.value(web.url())
    assert (value["body"], value["url"]) == ("the page", web.url("/caf%C3%A9"))


@pytest.mark.parametrize("name", ["café.pdf".encode(), "café.pdf".encode("latin-1")])
async def test_F1_headers_are_kept_as_their_server_meant_them(name: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Disposition: attachment; filename=" + name + b"\r\n\r\n"
    async with serving({"/": answer}) as web, fetching() as fetch:
        value = await fetch.value(web.url())
    assert value["headers"]["content-disposition"] == "attachment; filename=café.pdf"


def test_F4_a_host_that_is_checked_is_the_host_that_is_dialled() -> None:
    """What is dialled is read by another library than what is checked, and no longer rewritten by it."""
    chance = random.Random(7)
    letters = "/\\:@?#[]%.abcxn-0123é\xff\x80 \t\x7f'\"<>{}|^`;=&+~*,!$()"
    taken = 0
    for _ in range(4000):
        text = "http://" + "".join(chance.choice(letters) for _ in range(chance.randint(1, 20)))
        try:
            url = reparsed(text)
        except Unfit:
            continue
        taken += 1
        dialled = yarl.URL(str(url), encoded=True)
        assert (dialled.scheme, dialled.raw_host, dialled.port) == (url.scheme, host_of(url), url.port or PORTS[url.scheme])
        path, query = url.raw_path.decode().partition("?")[0], url.query.decode()
        assert dialled.raw_path_qs == (path or "/") + (f"?{query}" if query else "")  # an empty query is left out
        assert str(dialled).isascii()
        assert str(dialled).isprintable()
        assert " " not in str(dialled)
    assert taken > 50
