"""The HTTP caller against servers that send what no provider should, and against a provider's no (case_G3, case_G1).

Every test of an answer ends with a call that works, so that slot and pool are proven free.
"""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from streams.tools.http import EXPLANATION_SECONDS
from streams.tools.port import Answered, Doubtful, NotDone, Refused
from tests.support.raw_server import (
    DEADLINE_SECONDS,
    NOW,
    SECRET,
    Serve,
    call_of,
    calling,
    code,
    drips,
    floods,
    report_of,
    sends,
    serving,
    whole,
)
from tests.support.wait import eventually

GROWTH_BYTES_MAX = 20 << 20


@contextmanager
def memory_growing_at_most(limit_bytes: int) -> Iterator[None]:
    """Both the peak of what Python held meanwhile, which RSS would not show afterwards, and what the process kept."""
    tracemalloc.start()
    resident = resident_bytes()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes
    assert resident_bytes() - resident < limit_bytes


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
async def test_P5_case_G3_a_drip_ends_at_the_deadline(answer: Serve) -> None:
    report = await report_of(answer, timeout_seconds=DEADLINE_SECONDS)
    assert isinstance(report.outcomes[0], Doubtful)
    assert code(report) in {"deadline", "answer_lost"}
    assert report.seconds < DEADLINE_SECONDS + 1.0  # on a busy machine; a drip without a deadline would go on for ever


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(floods(CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"), id="endless chunks"),
        pytest.param(floods(CHUNKED, b"200\r\n" + b"x" * 512 + b"\r\n"), id="endless small chunks"),
        pytest.param(sends(whole(BOMB, "Content-Encoding: gzip")), id="gzip bomb"),
        pytest.param(
            sends(whole(gzip.compress(b"", mtime=0) * 1000 + BOMB, "Content-Encoding: gzip")), id="gzip bomb after members"
        ),
    ],
)
async def test_P5_case_G3_a_body_that_grows_too_large_is_cut_off_in_bounded_memory(answer: Serve) -> None:
    async with serving(answer) as server, calling(server) as caller:
        with memory_growing_at_most(GROWTH_BYTES_MAX):
            report = await caller.call(call_of())
        assert code(report) == "bad_response"
        assert isinstance(report.outcomes[0], Doubtful)
        assert "larger than" in report.outcomes[0].fault.message
        assert (await caller.call(call_of())).outcomes == (Answered(b'{"fine":1}'),)
        await eventually("the broken connection is closed", lambda: server.open_connections <= 1)


async def test_a_gzip_body_is_opened_also_in_parts_and_with_padding() -> None:
    packed = gzip.compress(b'{"a": ', mtime=0) + gzip.compress(b"1}", mtime=0) + b"\x00" * 8
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
        pytest.param(sends(whole(gzip.compress(b"{}", mtime=0)[:-4], "Content-Encoding: gzip")), "bad_response", id="gzip cut off"),
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


async def test_P5_an_answer_without_a_length_ends_with_its_connection() -> None:
    report = await report_of(sends(b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}', close=True))
    assert report.outcomes == (Answered(b'{"a":1}'),)


async def test_a_reason_phrase_in_any_bytes_does_not_lose_what_was_paid_for() -> None:
    report = await report_of(sends(b"HTTP/1.1 200 Requ\xeate re\xe7ue\r\nContent-Length: 2\r\n\r\n{}"))
    assert report.outcomes == (Answered(b"{}"),)


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
async def test_P3_case_G1_a_retry_after_reaches_the_lane(value: str, seconds: float | None) -> None:
    for status, otherwise in (("429 Too Many", NotDone), ("503 Closed", Doubtful)):
        report = await report_of(sends(whole(b"", f"Retry-After: {value}", status=status)))
        [outcome] = report.outcomes
        assert isinstance(outcome, NotDone if seconds is not None else otherwise)
        assert report.lane_pause_seconds == seconds
        if isinstance(outcome, NotDone):
            assert outcome.retry_after_seconds == seconds


async def test_P3_case_G1_two_retry_afters_that_disagree_are_none() -> None:
    report = await report_of(sends(whole(b"", "Retry-After: 3", "Retry-After: soon", status="429 Too Many")))
    assert isinstance(report.outcomes[0], NotDone)
    assert report.lane_pause_seconds is None


@pytest.mark.parametrize(
    "answer",
    [
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


async def test_P5_a_no_stays_a_no_when_the_deadline_strikes_in_its_explanation() -> None:
    drip = drips(b"HTTP/1.1 422 No\r\nContent-Length: 1000\r\n\r\n", b"a")
    report = await report_of(drip, timeout_seconds=DEADLINE_SECONDS)
    assert code(report) == "http_422"
    assert report.seconds < EXPLANATION_SECONDS


async def test_P5_an_explanation_may_not_take_long() -> None:
    report = await report_of(drips(b"HTTP/1.1 402 No\r\nContent-Length: 1000\r\n\r\n", b"a"))
    assert code(report) == "http_402"
    assert report.seconds < EXPLANATION_SECONDS + 2.0


async def test_V3_secrets_and_queries_are_in_no_message() -> None:
    body = f'{{"error": "bad key {SECRET} in header"}}\r\n\x1b[31m'.encode() + b"x" * 10_000
    report = await report_of(sends(whole(body, status="403 No")), path=f"/{SECRET}/check?token=abc")
    assert code(report) == "http_403"
    [outcome] = report.outcomes
    assert isinstance(outcome, Refused)
    assert outcome.fault.message.endswith("…")
    assert "/[secret]/check: " in outcome.fault.message
    assert "token" not in outcome.fault.message
    assert outcome.fault.message.isprintable()


@pytest.mark.parametrize(
    ("method", "status", "kind"),
    [("POST", 302, Doubtful), ("PUT", 301, Doubtful), ("GET", 302, Refused), ("POST", 307, Refused), ("POST", 308, Refused)],
)
async def test_case_L1_U4_a_redirect_is_not_followed(method: str, status: int, kind: type) -> None:
    """A 302 after a POST counted as billed nothing: the next run paid again for what Post/Redirect/Get had done."""
    report = await report_of(sends(whole(b"", "Location: /elsewhere", status=f"{status} Found")), method=method)
    assert code(report) == f"http_{status}"
    assert type(report.outcomes[0]) is kind
