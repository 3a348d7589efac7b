"""Names in URLs of a fetch that are none, or are written in other letters than ASCII (F4): each is a plain outcome."""

from __future__ import annotations

import httpx
import pytest

from streams.tools.asking import Ask, SecretUse, Unfit, host_of, reparsed
from streams.tools.port import Doubtful, Refused
from tests.support.web import LOOPBACK, SECRET, fetching, leads, serving

#: A-labels that stand for no text. To a resolver they are names like others.
UNREADABLE = ["xn--a", "xn--7-.test", "xn--0.test", "xn--a-ecp.test", "xn--a86c", "xn--" + "9" * 50 + ".test", "a.xn--b"]
LABEL, NAME = "a" * 63, ".".join(["a" * 49] * 5) + ".abc"


@pytest.mark.parametrize("host", UNREADABLE)
async def test_F4_a_name_that_cannot_be_made_readable_is_resolved_like_any_other(host: str) -> None:
    """``url.host`` raised the name library's own error, and with it ended every worker that met the row."""
    async with serving() as web, fetching() as fetch:
        fault = await fetch.fault(web.url(host=host))
        assert (fault.code, fault.repairable) == ("unreachable", True)
        assert fetch.resolver.questions == [host] * 3
    async with serving() as web, fetching({host: [LOOPBACK]}) as fetch:
        assert (await fetch.value(web.url(host=host)))["body"] == "fine"


@pytest.mark.parametrize("host", UNREADABLE)
async def test_F4_a_redirect_to_such_a_name_is_followed_like_any_other(host: str) -> None:
    async with serving() as web:
        web.answers["/"] = leads(302, web.url("/x", host=host))
        async with fetching({"a.test": [LOOPBACK], host: [LOOPBACK]}) as fetch:
            assert (await fetch.value(web.url()))["url"] == web.url("/x", host=host)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("a" * 64 + ".test", "has 64 characters; it may have at most 63"),
        ("a.test." + "b" * 64, "has 64 characters; it may have at most 63"),
        (NAME + "d", "has 254 characters; a name has at most 253"),
        ("a..test", "a part of its host's name is empty"),
        (".a.test", "a part of its host's name is empty"),
        ("a.test..", "a part of its host's name is empty"),
        (".", "a part of its host's name is empty"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_F4_a_name_that_no_server_can_have_is_refused_before_anybody_resolves_it(host: str, says: str, method: str) -> None:
    """The resolver raised UnicodeError for such a name, which is none of the errors that a resolver is expected to have."""
    async with serving() as web, fetching() as fetch:
        web.answers["/away"] = leads(302, web.url(host=host))
        outcome = await fetch(web.url(host=host), method)
        led = await fetch(web.url("/away"), method)
        assert fetch.resolver.questions == ["a.test"]
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("unsafe_url", False)
    assert outcome.fault.message.endswith(says)
    assert isinstance(led, Refused if method == "GET" else Doubtful)
    assert led.fault.code == "unsafe_url"
    assert led.fault.message.endswith(says)


def test_F4_the_longest_names_and_a_dot_at_their_end_are_fine() -> None:
    assert len(NAME) == 253
    for host in (LABEL, NAME, NAME + ".", "a.test."):
        assert host_of(reparsed(f"http://{host}/")) == host


@pytest.mark.parametrize("host", ["bücher.internal", "BÜCHER.internal", "xn--bcher-kva.internal", "bücher。internal"])
async def test_F4_F5_an_origin_with_an_international_name_is_the_one_that_the_file_allows(host: str) -> None:
    """The file's origins are held in ASCII, and the URL's was compared in Unicode: such an origin was never allowed."""
    origin = "http://bücher.internal:8080"
    asked = Ask("GET", f"http://{host}:8080/", secrets={"x-key": SecretUse("crm")})
    async with fetching(allow=[origin], secrets={"crm": {"secret": "env:KEY", "origins": [origin]}}) as fetch:
        trip = fetch.caller._begun(asked, reparsed(asked.url))
        assert trip.headers["x-key"] == SECRET
        with pytest.raises(Unfit, match="a name of this machine or its network"):
            fetch.caller._begun(asked, reparsed(asked.url.replace(":8080", ":8081")))


@pytest.mark.parametrize("text", ["http://xn--a/x?q", "//xn--a86c/", "http://ß.example", "http://" + LABEL, "http://[::1]"])
def test_F4_a_host_is_ascii_however_it_was_written(text: str) -> None:
    url = reparsed(text, httpx.URL("http://a.test/"))
    assert host_of(url).isascii()
    assert "[" not in host_of(url)


@pytest.mark.parametrize("text", ["http://a%2eb..c/", "http://。/", "http://xn--../", "http://a。。b/"])
def test_F4_empty_parts_are_found_in_every_spelling(text: str) -> None:
    with pytest.raises(Unfit):
        reparsed(text)
