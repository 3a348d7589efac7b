"""The look-up of lost calls against the sandbox, which answers from its bill: `streams.tools.lookup` (U3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from schemas.providers import Providers
from streams.sandbox import Fault, FaultKind, Sandbox
from streams.tools.http import HttpCaller
from streams.tools.lookup import Absent, Found, HttpLookUp, NoWord, Pending, Word
from streams.tools.port import Answered, CallMember, Doubtful, ProviderCall, Refused
from streams.tools.results import OUTPUT_BYTES_MAX
from streams.tools.secrets import EXCERPT_CHARACTERS
from tests.support.raw_server import serving

SECRET = "sk-very-secret"
BATCH = {"path": "/v1/email/check/batch", "size_max": 100, "match_key": "id"}


def providers_of(url: str, reconcile: dict[str, Any] | None, **tool: Any) -> Providers:
    one = {"path": "/v1/email/check", "result": "verdict", "reconcile": reconcile} | tool
    return Providers.model_validate({"providers": {"p": {"base_url": url, "auth": {"secret": "env:KEY"}, "tools": {"t": one}}}})


@asynccontextmanager
async def opened(
    *faults: Fault, latency_ms: float = 0, path: str = "/v1/operations/{key}", secret: str = SECRET, **terms: Any
) -> AsyncIterator[tuple[Sandbox, HttpCaller, HttpLookUp]]:
    async with Sandbox(api_key=SECRET, faults=faults, latency_ms=latency_ms) as sandbox:
        tool = terms.pop("tool", {})
        providers = providers_of(sandbox.url, {"path": path} | terms, **tool)
        caller = HttpCaller(providers, environment={"KEY": SECRET})
        look_up = HttpLookUp(providers, environment={"KEY": secret})
        try:
            yield sandbox, caller, look_up
        finally:
            await caller.close()
            await look_up.close()


def members_of(*emails: str) -> tuple[CallMember, ...]:
    return tuple(CallMember(f"receipt-{email}", json.dumps({"email": email}).encode()) for email in emails)


async def lost(caller: HttpCaller, members: tuple[CallMember, ...]) -> None:
    report = await caller.call(ProviderCall("p.t", members, len(members) > 1, "key-1", "request-1"))
    assert all(isinstance(outcome, Doubtful) for outcome in report.outcomes)


CUT = Fault(kind=FaultKind.CLOSE_AFTER_WORK)


async def test_U3_a_lost_answer_is_found_by_its_key_and_read_like_the_answer_itself() -> None:
    async with opened(CUT) as (sandbox, caller, look_up):
        members = members_of("ada@example.com")
        await lost(caller, members)
        word = await look_up.ask("p.t", "key-1", members)
        assert sandbox.summary().calls == 1  # to look is free
    assert isinstance(word, Found)
    (outcome,) = word.outcomes
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.output) == "valid"


async def test_U3_P10_a_job_whose_submissions_answer_was_lost_is_found_by_its_key_and_followed() -> None:
    """The submission's answer was read as if it were the result: the paid job was settled as *no result* for ever."""
    path = "/v1/email/jobs"
    tool = {"path": path, "result": "result.verdict", "job": {"id": "job.id", "poll_path": path + "/{job}"}}
    async with opened(CUT, tool=tool) as (sandbox, caller, look_up):
        members = members_of("ada@example.com")
        await lost(caller, members)
        assert await look_up.ask("p.t", "key-1", members) == Found((Answered(b'"valid"'),))
        assert sandbox.summary().calls == 1


async def test_U3_a_lost_batch_is_found_with_an_outcome_for_each_member() -> None:
    async with opened(CUT, tool={"batch": BATCH | {"result": "verdict"}}) as (_, caller, look_up):
        members = members_of("ada@example.com", "bob@example.com")
        await lost(caller, members)
        word = await look_up.ask("p.t", "key-1", members)
    assert isinstance(word, Found)
    assert [outcome.output for outcome in word.outcomes if isinstance(outcome, Answered)] == [b'"valid"', b'"valid"']


async def test_U3_what_the_provider_never_heard_of_is_absent_and_what_it_works_on_is_pending() -> None:
    async with opened(latency_ms=60_000) as (sandbox, _, look_up):
        members = members_of("ada@example.com")
        assert await look_up.ask("p.t", "key-1", members) == Absent()
        async with httpx.AsyncClient(base_url=sandbox.url) as client:
            headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "key-1"}
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/email/check", json={"email": "ada@example.com"}, headers=headers, timeout=0.3)
        assert await look_up.ask("p.t", "key-1", members) == Pending()


async def test_without_a_place_in_the_path_the_key_goes_into_the_providers_header() -> None:
    async with opened(path="/v1/operations/") as (_, _caller, look_up):
        assert await look_up.ask("p.t", "key-1", members_of("a@example.com")) == Absent()


async def ask(**terms: Any) -> Word:
    async with opened(CUT, **terms) as (_, caller, look_up):
        members = members_of("ada@example.com")
        await lost(caller, members)
        return await look_up.ask("p.t", "key-1", members)


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"secret": "wrong"}, "http_401"),
        ({"found": ["finished"]}, "bad_response"),
        ({"status": "nowhere"}, "bad_response"),
        ({"path": "/health?{key}"}, "bad_response"),
    ],
)
async def test_what_is_not_understood_settles_nothing(terms: dict[str, Any], code: str) -> None:
    word = await ask(**terms)
    assert isinstance(word, NoWord)
    assert word.fault.code == code
    assert "wrong" not in word.fault.message


async def told(body: bytes, members: tuple[CallMember, ...], *, tool: dict[str, Any] | None = None, **terms: Any) -> Word:
    """What is read from a look-up's answer."""

    async def answer(_reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with serving(answer) as server:
        providers = providers_of(server.url, {"path": "/o/{key}"} | terms, **(tool or {}))
        look_up = HttpLookUp(providers, environment={"KEY": SECRET})
        try:
            return await look_up.ask("p.t", "key-1", members)
        finally:
            await look_up.close()


ONE = members_of("a@example.com")
TWO = members_of("a@example.com", "b@example.com")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"status":"done"}', "answer"),
        (b'{"status":"done","answer":{"verdict":"valid"}}', "anwser"),
        (b'{"status":"done","answer":{"verdict":"valid"}}', "answer.body"),
        (b'{"status":"done","answer":null}', "answer.body"),
        (b'{"status":"done","answer":[1]}', "answer.1"),
        (b'{"status":"done","answer":[1]}', "answer.first"),
    ],
)
@pytest.mark.parametrize("members", [ONE, TWO], ids=["alone", "a batch"])
async def test_U3_done_without_the_answer_itself_settles_nothing(body: bytes, path: str, members: tuple[CallMember, ...]) -> None:
    """An answer that the provider keeps no longer, or a mistyped path: every member was settled as paid, with nothing, for good."""
    word = await told(body, members, tool={"batch": BATCH}, answer=path)
    assert isinstance(word, NoWord)
    assert f"nothing is at '{path}'" in word.fault.message


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"status":"done","answer":null}', "answer"),
        (b'{"status":"done","answers":[1,null]}', "answers.1"),
        (b'{"status":"done","answer":{"other":1}}', "answer"),
        (b'{"status":"done"}', ""),
    ],
)
async def test_U3_an_answer_that_says_null_or_lacks_the_result_is_no_result_as_the_lost_one_would_have_been(
    body: bytes, path: str
) -> None:
    assert await told(body, ONE, answer=path) == Found((Answered(b"null"),))


@pytest.mark.parametrize("depth", [300, 5_000])
async def test_U3_an_answer_that_no_receipt_could_keep_settles_nothing_and_ends_no_look_up(depth: int) -> None:
    """It raised where nobody heard of it, and the receipt was looked up no more."""
    word = await told(b'{"status":"done","answer":' + b"[" * depth + b"]" * depth + b"}", ONE)
    assert isinstance(word, NoWord)
    assert "nested deeper than" in word.fault.message or "nested too deeply" in word.fault.message


@pytest.mark.parametrize("tool", [{}, {"batch": BATCH}], ids=["alone", "a batch"])
async def test_U3_a_byte_order_mark_before_a_look_ups_answer_is_no_junk(tool: dict[str, Any]) -> None:
    """Calls drop the mark, and the look-up did not: it never settled at such a provider."""
    for body in (b'{"status":"done","answer":{"verdict":"valid"}}', b'{"status":"pending"}'):
        word = await told(b"\xef\xbb\xbf" + body, ONE, tool=tool)
        assert word == (Pending() if b"pending" in body else Found((Answered(b'"valid"'),)))


async def test_U3_an_answer_that_is_too_large_settles_nothing() -> None:
    word = await told(b'{"status":"done","answer":{"verdict":"' + b"x" * OUTPUT_BYTES_MAX + b'"}}', ONE)
    assert isinstance(word, Found)
    assert [outcome.fault.code for outcome in word.outcomes if isinstance(outcome, Doubtful)] == ["too_large"]


async def test_V3_a_refusal_that_is_found_is_kept_without_secrets() -> None:
    """It goes into the log as the reason why a call was not paid, and was written there with all of the provider's words."""
    errors = [{"id": member.receipt, "error": f"bad key {SECRET}" + " and so on" * 100} for member in TWO]
    word = await told(json.dumps({"status": "done", "answer": {"results": errors}}).encode(), TWO, tool={"batch": BATCH})
    assert isinstance(word, Found)
    messages = [outcome.fault.message for outcome in word.outcomes if isinstance(outcome, Refused)]
    assert len(messages) == 2
    assert all(message.startswith("bad key [secret] and so on") and len(message) <= EXCERPT_CHARACTERS for message in messages)


async def test_a_provider_that_is_away_settles_nothing() -> None:
    async with opened() as (sandbox, _, _look_up):
        url = sandbox.url
    look_up = HttpLookUp(providers_of(url, {"path": "/x/{key}"}), environment={"KEY": SECRET})
    word = await look_up.ask("p.t", "key-1", members_of("a@example.com"))
    await look_up.close()
    assert isinstance(word, NoWord)
    assert word.fault.code == "unreachable"


async def test_R10_a_found_value_that_carries_a_secret_is_not_taken() -> None:
    async with opened(CUT, tool={"result": ""}) as (_, caller, look_up):
        members = members_of(f"{SECRET}@example.com")
        await lost(caller, members)
        word = await look_up.ask("p.t", "key-1", members)
    assert isinstance(word, Found)
    (outcome,) = word.outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.code == "secret_in_output"


@pytest.mark.parametrize(
    ("reconcile", "provider", "fault"),
    [
        ({"path": "x"}, {}, "must begin with '/'"),
        ({"path": "/x"}, {"idempotency_header": None}, "reconcile.path has no {key}"),
        ({"path": "/x", "absent_means": "paid"}, {}, "absent_means"),
    ],
)
def test_a_look_up_that_could_not_be_asked_is_refused_in_the_providers_file(
    reconcile: dict[str, Any], provider: dict[str, Any], fault: str
) -> None:
    tools = {"t": {"path": "/t", "reconcile": reconcile}}
    with pytest.raises(ValidationError) as refused:
        Providers.model_validate({"providers": {"p": {"base_url": "http://p", "tools": tools} | provider}})
    assert fault in str(refused.value)


def test_a_tool_without_a_look_up_has_no_terms() -> None:
    look_up = HttpLookUp(providers_of("http://p", None), environment={"KEY": SECRET})
    assert look_up.terms("p.t") is None
    assert look_up.terms("p.other") is None
