"""The fetch caller between hostile servers and hostile inputs."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.tools.port import CallMember, Doubtful, ProviderCall, Refused
from tests.support.raw_server import whole
from tests.support.wait import eventually
from tests.support.web import (
    Answer,
    endless,
    fetching,
    hangs_up,
    serving,
)

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
        await eventually("its connections are closed", lambda: web.open_connections == 0)
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
