"""Limits of an HTTP call that are its own and nobody else's: its phases, its lane, its query and its place in a batch."""

from __future__ import annotations

import asyncio
import json

import pytest

from schemas.providers import Providers
from streams.tools.http import HttpCaller
from streams.tools.port import Answered, CallMember, Doubtful, NotDone, ProviderCall, Refused
from streams.tools.results import QUERY_BYTES_MAX
from tests.support.raw_server import (
    CAP_BYTES,
    DEADLINE_SECONDS,
    FINE,
    Serve,
    call_of,
    calling,
    code,
    drips,
    report_of,
    sends,
    serving,
    whole,
)
from tests.support.wait import eventually

SLOW_HEADERS = drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a")
SLOW_BODY = drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" ")


async def hangs(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.get_running_loop().create_future()


BATCH = {"path": "/batch", "size_max": 100, "match_key": "id"}


@pytest.mark.parametrize(
    ("answer", "limits", "says"),
    [
        (SLOW_HEADERS, {"timeout_seconds": DEADLINE_SECONDS}, "headers: no whole answer within 0.5 s"),
        (SLOW_BODY, {"timeout_seconds": DEADLINE_SECONDS}, "body: no whole answer within 0.5 s"),
        (SLOW_HEADERS, {"headers_seconds": DEADLINE_SECONDS}, "headers: not done within 0.5 s"),
        (SLOW_BODY, {"body_seconds": DEADLINE_SECONDS}, "body: not done within 0.5 s"),
        (SLOW_BODY, {"timeout_seconds": DEADLINE_SECONDS, "body_seconds": 30.0}, "body: no whole answer within 0.5 s"),
    ],
)
async def test_P5_headers_and_body_have_limits_of_their_own_and_the_error_names_phase_and_limit(
    answer: Serve, limits: dict[str, float], says: str
) -> None:
    report = await report_of(answer, **limits)
    assert isinstance(report.outcomes[0], Doubtful)
    assert code(report) == "deadline"
    assert report.outcomes[0].fault.message.endswith(f": {says}")
    assert report.seconds < DEADLINE_SECONDS + 1.0


async def test_P5_slow_headers_use_up_nothing_of_the_bodys_time() -> None:
    """Each phase has its own clock: together they may take longer than either."""

    async def slow(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.6)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(0.6)
        writer.write(b"{}")
        await writer.drain()

    async with serving(slow) as server, calling(server, headers_seconds=1.1, body_seconds=1.1) as caller:
        report = await caller.call(call_of())
    assert report.outcomes == (Answered(b"{}"),)
    assert report.seconds > 1.1


async def test_P5_U4_half_of_the_headers_time_at_most_is_for_the_connection() -> None:
    """So it ends before the headers' time does, and there is proof that nothing was sent instead of a doubt."""
    async with serving(hangs) as server, calling(server, headers_seconds=DEADLINE_SECONDS) as caller:
        first = asyncio.ensure_future(caller.call(call_of(tool="patient")))
        await eventually("the one connection is taken", lambda: len(server.requests) == 1)
        second = await caller.call(call_of())
        assert code(second) == "unreachable"
        assert isinstance(second.outcomes[0], NotDone)
        assert isinstance((await first).outcomes[0], Doubtful)


async def test_G1_P5_one_organisations_calls_leave_anothers_their_connections() -> None:
    """The pool had as many connections as *one* lane may use: the second lane's calls ended as never sent."""
    both = asyncio.Event()

    async def meets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            both.set()
        await both.wait()
        writer.write(FINE)

    async with serving(meets, answers=2) as server:
        described = {
            "base_url": server.url,
            "pace": {"concurrency": 1},
            "tools": {"check": {"path": "/", "timeout_seconds": 5.0}},
        }
        caller = HttpCaller(Providers.model_validate({"providers": {"raw": described}}), environment={})
        reports = await asyncio.gather(caller.call(call_of()), caller.call(call_of()))
        await caller.close()
    assert [report.outcomes for report in reports] == [(Answered(b'{"fine":1}'),)] * 2


async def test_R10_an_answer_that_is_larger_than_anybody_holds_is_not_paid_for_again() -> None:
    """``freely`` called ``attempts_max`` times for it; what is merely spoilt may come whole the next time."""
    large, spoilt = whole(b'"' + b"x" * CAP_BYTES + b'"'), whole(b"{}", "Content-Encoding: gzip")
    for answer, used_up in ((large, True), (spoilt, None)):
        async with serving(sends(answer)) as server, calling(server) as caller:
            [outcome] = (await caller.call(call_of())).outcomes
        assert isinstance(outcome, Doubtful)
        assert (outcome.fault.code, outcome.used_up) == ("bad_response", used_up)


async def test_U4_a_get_whose_input_is_too_large_for_a_url_is_refused_and_not_unknown() -> None:
    """It crashed in the library that reads URLs: with ``never`` the outcome was unknown though nothing had been sent."""
    async with serving(sends(FINE)) as server, calling(server, method="GET", path="/check?v=2") as caller:
        refused = await caller.call(call_of(b'{"q":"%s"}' % (b"a" * QUERY_BYTES_MAX)))
        assert server.requests == []
        large = await caller.call(call_of(b'{"q":"%s"}' % (b"a" * 60_000)))
        assert isinstance(large.outcomes[0], Answered)
    assert isinstance(refused.outcomes[0], Refused)
    assert code(refused) == "bad_input"
    assert refused.outcomes[0].fault.message.endswith("this one has 65,542 bytes, at most 65,536")


async def test_B7_an_unusable_input_is_refused_alone_and_its_companions_are_called_for() -> None:
    answer = whole(json.dumps({"results": [{"id": "r3", "v": 3}, {"id": "r1", "v": 1}]}).encode())
    members = tuple(CallMember(f"r{n}", b"[]" if n % 2 == 0 else b'{"n":%d}' % n) for n in range(1, 5))
    async with serving(sends(answer)) as server, calling(server, batch=BATCH) as caller:
        report = await caller.call(ProviderCall("raw.check", members, True, "key-1", "request-1"))
    assert server.requests[0].endswith(b'{"items":[{"n":1,"id":"r1"},{"n":3,"id":"r3"}]}')
    first, second, third, fourth = report.outcomes
    assert (first, third) == (Answered(b'{"v":1}'), Answered(b'{"v":3}'))
    for refused in (second, fourth):
        assert isinstance(refused, Refused)
        assert refused.fault.code == "bad_input"
        assert refused.fault.message.startswith("raw.check: not sent: in a batch an input must be an object")


@pytest.mark.parametrize(("status", "kind"), [("500 No", Doubtful), ("429 Busy", NotDone), ("422 No", Refused)])
async def test_B7_what_was_not_sent_is_in_no_doubt_whatever_becomes_of_the_others(status: str, kind: type) -> None:
    members = (CallMember("r1", b"{}"), CallMember("r2", b"[]"), CallMember("r3", b"{}"))
    async with serving(sends(whole(b"", status=status))) as server, calling(server, batch=BATCH) as caller:
        report = await caller.call(ProviderCall("raw.check", members, True, "key-1", "request-1"))
    assert [type(outcome) for outcome in report.outcomes] == [kind, Refused, kind]
    assert isinstance(report.outcomes[1], Refused)
    assert report.outcomes[1].fault.code == "bad_input"


async def test_B7_a_batch_of_unusable_inputs_is_refused_without_a_call() -> None:
    members = (CallMember("r1", b"[]"), CallMember("r2", b"[]"))
    async with serving(sends(FINE)) as server, calling(server, batch=BATCH) as caller:
        report = await caller.call(ProviderCall("raw.check", members, True, "key-1", "request-1"))
        assert server.requests == []
    assert [type(outcome) for outcome in report.outcomes] == [Refused, Refused]
