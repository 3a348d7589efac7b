"""Answers with more headers, or longer ones, than the library takes by itself: what is paid for is not lost over them (U2)."""

from __future__ import annotations

import pytest

from streams.tools.port import Answered, Doubtful
from tests.support.raw_server import report_of, sends, whole


@pytest.mark.parametrize(
    "headers", [["X-Policy: " + "a" * 60_000], [f"Set-Cookie: a{n}=b" for n in range(900)]], ids=["long", "many"]
)
async def test_U2_an_answer_is_not_lost_over_its_headers(headers: list[str]) -> None:
    """One header of 9,000 bytes, or 200 headers, made a paid answer *unknown*: the library's own limits."""
    report = await report_of(sends(whole(b'{"n":1}', *headers)))
    assert report.outcomes == (Answered(b'{"n":1}'),)


@pytest.mark.parametrize("headers", [["X-Policy: " + "a" * 70_000], [f"A{n}: b" for n in range(1_100)]], ids=["long", "many"])
async def test_U2_headers_beyond_all_measure_are_called_so(headers: list[str]) -> None:
    (outcome,) = (await report_of(sends(whole(b'{"n":1}', *headers), close=True))).outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.code == "answer_lost"
    assert outcome.fault.message.endswith("HeadersTooLarge")
