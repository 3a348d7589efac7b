"""The HTTP caller against the sandbox, whose bill says what each verdict is worth: `streams.tools.http`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from schemas.providers import Providers
from streams.errors import ConfigurationError
from streams.sandbox import Fault, FaultKind, Sandbox
from streams.sandbox.settings import Settings
from streams.tools.http import HttpCaller
from streams.tools.port import Answered, CallMember, CallReport, Doubtful, NotDone, ProviderCall, Refused
from tests.support.wait import eventually

SECRET = "sk-very-secret"
BATCH = {"path": "/v1/email/check/batch", "size_max": 100, "match_key": "id"}


def caller_of(
    url: str, *, secret: str = SECRET, provider: dict[str, Any] | None = None, connections_max: int = 0, **tool: Any
) -> HttpCaller:
    one = {"path": "/v1/email/check", "timeout_seconds": 30.0} | tool
    tools = {"check": one, "patient": one | {"timeout_seconds": 30.0}}
    described = {"base_url": url, "auth": {"secret": "env:KEY"}, "tools": tools} | (provider or {})
    providers = Providers.model_validate({"providers": {"sandbox": described}})
    return HttpCaller(providers, environment={"KEY": secret}, connections_max=connections_max)


@asynccontextmanager
async def opened(*faults: Fault, sandbox: dict[str, Any] | None = None, **tool: Any) -> AsyncIterator[tuple[Sandbox, HttpCaller]]:
    async with Sandbox(api_key=SECRET, faults=faults, **(sandbox or {})) as provider:
        caller = caller_of(provider.url, **tool)
        try:
            yield provider, caller
        finally:
            await caller.close()


def call_of(*emails: str, key: str = "key-1", batched: bool | None = None) -> ProviderCall:
    members = tuple(CallMember(f"receipt-{email}", json.dumps({"email": email}).encode()) for email in emails)
    return ProviderCall("sandbox.check", members, len(emails) > 1 if batched is None else batched, key, "request-1")


def fault_of(report: CallReport) -> Any:
    outcome = report.outcomes[0]
    assert not isinstance(outcome, Answered)
    return outcome.fault


# --- calls for one ---


async def test_P1_an_answer_is_the_output_and_the_bill_shows_key_and_request() -> None:
    async with opened(result="verdict") as (sandbox, caller):
        report = await caller.call(call_of("a@example.com"))
        assert report.outcomes == (Answered(b'"valid"'),)
        assert report.lane_pause_seconds is None
        assert report.seconds > 0
    [line] = sandbox.bill()
    assert (line.idempotency_key, line.request_id) == ("key-1", "request-1")


async def test_a_provider_may_ask_for_neither_key_nor_secret() -> None:
    described = {"idempotency_header": None, "auth": None}
    async with Sandbox(api_key=SECRET) as sandbox:
        caller = caller_of(sandbox.url, provider=described)
        fault = fault_of(await caller.call(call_of("a@example.com")))
        await caller.close()
    assert fault.code == "http_401"


async def test_P3_a_429_is_not_done_and_pauses_the_lane() -> None:
    async with opened(sandbox={"rate": 0.5, "burst": 1.0}) as (sandbox, caller):
        await caller.call(call_of("a@example.com"))
        report = await caller.call(call_of("b@example.com", key="key-2"))
        assert isinstance(report.outcomes[0], NotDone)
        assert report.outcomes[0].retry_after_seconds == report.lane_pause_seconds == 2.0
        assert fault_of(report).code == "http_429"
    assert sandbox.summary().billed_items == 1


async def test_R5_a_wrong_key_is_refused_for_a_person_to_mend() -> None:
    async with Sandbox(api_key="another") as sandbox:
        caller = caller_of(sandbox.url)
        report = await caller.call(call_of("a@example.com"))
        await caller.close()
    assert isinstance(report.outcomes[0], Refused)
    assert (fault_of(report).code, fault_of(report).repairable) == ("http_401", True)
    assert SECRET not in fault_of(report).message


async def test_R5_a_bad_request_is_refused_for_good_in_the_providers_words() -> None:
    async with opened() as (sandbox, caller):
        call = ProviderCall("sandbox.check", (CallMember("r", b'{"mail":"a"}'),), False, "k", "i")
        fault = fault_of(await caller.call(call))
    assert (fault.code, fault.repairable) == ("http_422", False)
    assert fault.message.startswith(f"sandbox.check: HTTP 422 from {sandbox.url}/v1/email/check: ")
    assert "email" in fault.message


@pytest.mark.parametrize(
    ("kind", "code", "billed"),
    [
        (FaultKind.CLOSE_BEFORE_WORK, "answer_lost", 0),
        (FaultKind.CLOSE_AFTER_WORK, "answer_lost", 1),
        (FaultKind.ERROR_BEFORE_WORK, "http_503", 0),
        (FaultKind.ERROR_AFTER_WORK, "http_500", 1),
        (FaultKind.HANG, "deadline", 1),
        (FaultKind.DRIP, "deadline", 1),
        (FaultKind.HTML, "bad_response", 1),
        (FaultKind.TRUNCATED, "bad_response", 1),
    ],
)
async def test_case_A2_what_may_be_billed_is_doubtful_and_sent_once(kind: FaultKind, code: str, billed: int) -> None:
    seconds = 0.5 if code == "deadline" else 30.0
    async with opened(Fault(kind=kind, next=1), timeout_seconds=seconds) as (sandbox, caller):
        report = await caller.call(call_of("a@example.com"))
        assert isinstance(report.outcomes[0], Doubtful)
        assert fault_of(report).code == code
        assert report.seconds < seconds + 1.0
        assert (sandbox.summary().requests, sandbox.summary().billed_items) == (1, billed)
        # The connection is gone, the next call has another; under the same key it is billed once.
        again = await caller.call(msgspec.structs.replace(call_of("a@example.com"), tool="sandbox.patient"))
        assert isinstance(again.outcomes[0], Answered)
    assert sandbox.summary().billed_items == 1


async def test_case_A2_R6_U4_a_refused_connection_proves_that_nothing_was_sent() -> None:
    async with Sandbox(api_key=SECRET) as sandbox:
        url = sandbox.url
    caller = caller_of(url)
    report = await caller.call(call_of("a@example.com"))
    await caller.close()
    assert isinstance(report.outcomes[0], NotDone)
    assert report.outcomes[0].retry_after_seconds is None
    assert (fault_of(report).code, fault_of(report).repairable) == ("unreachable", True)
    assert f"{url}/v1/email/check" in fault_of(report).message


async def test_a_key_in_use_is_doubtful_only_where_asking_again_under_it_helps() -> None:
    for repeat, kind in (("with-key", Doubtful), ("never", Refused), ("freely", Refused)):
        async with opened(repeat=repeat) as (_, caller):
            await caller.call(call_of("a@example.com"))
            report = await caller.call(call_of("other@example.com"))
            assert isinstance(report.outcomes[0], kind)
            assert fault_of(report).code == "http_409"


# --- batches ---


async def test_B4_a_batch_is_one_request_and_each_member_has_its_own_output() -> None:
    async with opened(batch=BATCH | {"result": "email"}) as (sandbox, caller):
        emails = [f"{place}@example.com" for place in range(5)]
        report = await caller.call(call_of(*emails))
        assert report.outcomes == tuple(Answered(f'"{email}"'.encode()) for email in emails)
        alone = await caller.call(call_of("0@example.com", key="key-2"))
        assert isinstance(alone.outcomes[0], Answered)
        assert json.loads(alone.outcomes[0].output)["email"] == "0@example.com"
    assert (sandbox.summary().requests, sandbox.summary().billed_items) == (2, 6)


async def test_an_output_is_the_same_from_a_call_for_one_and_from_a_batch() -> None:
    async with opened(batch=BATCH) as (_, caller):
        batch = await caller.call(call_of("a@example.com", "b@example.com"))
        single = await caller.call(call_of("b@example.com", key="key-2"))
    assert batch.outcomes[1] == single.outcomes[0]


@pytest.mark.parametrize("status", [200, 207])
async def test_case_F5_item_errors_stay_with_their_items(status: int) -> None:
    faults = [
        Fault(kind=FaultKind.ITEM_ERROR, contains="2@", retryable=True, status=status),
        Fault(kind=FaultKind.ITEM_ERROR, contains="4@", retryable=False, status=status, code="no_such_domain"),
    ]
    async with opened(*faults, batch=BATCH) as (sandbox, caller):
        report = await caller.call(call_of(*[f"{place}@example.com" for place in range(1, 6)]))
    assert [type(outcome) for outcome in report.outcomes] == [Answered, NotDone, Answered, Refused, Answered]
    refused = report.outcomes[3]
    assert isinstance(refused, Refused)
    assert not refused.fault.repairable
    assert refused.fault.message == f"sandbox.check: HTTP {status} from {sandbox.url}/v1/email/check/batch: no_such_domain"
    assert sandbox.summary().billed_items == 3


async def test_case_F5_a_500_for_the_whole_batch_leaves_all_its_members_doubtful() -> None:
    async with opened(Fault(kind=FaultKind.ERROR_AFTER_WORK), batch=BATCH) as (sandbox, caller):
        report = await caller.call(call_of(*[f"{place}@example.com" for place in range(5)]))
    assert [type(outcome) for outcome in report.outcomes] == [Doubtful] * 5
    assert sandbox.summary().requests == 1


async def test_R10_an_output_that_carries_the_secret_is_not_kept_and_its_neighbours_are() -> None:
    async with opened(batch=BATCH | {"result": "email"}) as (sandbox, caller):
        report = await caller.call(call_of("a@example.com", f"{SECRET}@example.com"))
    assert report.outcomes[0] == Answered(b'"a@example.com"')
    assert isinstance(report.outcomes[1], Doubtful)
    assert report.outcomes[1].fault.code == "secret_in_output"
    assert SECRET not in report.outcomes[1].fault.message
    assert sandbox.summary().billed_items == 2


# --- what cannot be called ---


async def test_what_cannot_be_sent_is_told_without_a_request() -> None:
    async with opened() as (sandbox, caller):
        unknown = await caller.call(ProviderCall("sandbox.absent", (CallMember("r", b"{}"),), False, "k", "i"))
        several = await caller.call(call_of("a@example.com", "b@example.com"))
        await caller.close()
        closed = await caller.call(call_of("a@example.com"))
    assert [fault_of(report).code for report in (unknown, several, closed)] == ["unknown_tool", "bad_call", "closed"]
    assert len(several.outcomes) == 2
    assert isinstance(closed.outcomes[0], NotDone)
    assert sandbox.summary().requests == 0


async def test_closing_ends_calls_in_flight_as_doubtful() -> None:
    async with opened(Fault(kind=FaultKind.HANG)) as (sandbox, caller):
        call = asyncio.ensure_future(caller.call(call_of("a@example.com")))
        await eventually("it is asked", lambda: sandbox.summary().requests == 1)
        await caller.close()
        report = await call
    assert isinstance(report.outcomes[0], Doubtful)


async def test_cancelling_a_call_closes_its_connection() -> None:
    async with opened(Fault(kind=FaultKind.HANG)) as (sandbox, caller):
        call = asyncio.ensure_future(caller.call(call_of("a@example.com")))
        await eventually("it is asked", lambda: sandbox.summary().requests == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually("nothing is in flight", lambda: sandbox.summary().in_flight == 0)


@pytest.mark.parametrize("url", ["http://user:pass@127.0.0.1", "http://127.0.0.1/?a=1", "http://127.0.0.1/#a"])
def test_V3_a_base_url_that_could_hide_a_secret_is_no_providers_file(url: str) -> None:
    with pytest.raises(ValidationError, match="neither user nor query nor fragment"):
        Providers.model_validate({"providers": {"p": {"base_url": url, "tools": {"t": {"path": "/"}}}}})


@pytest.mark.parametrize(
    ("provider", "tool", "secret"),
    [
        ({"auth": {"secret": "env:KEY", "header": "X Key"}}, {}, SECRET),
        ({"auth": {"secret": "env:KEY", "scheme": "Bear\ner"}}, {}, SECRET),
        ({"request_id_header": "X-Id:"}, {}, SECRET),
        ({"idempotency_header": "Key\n"}, {}, SECRET),
        ({}, {"path": "/a\x00b"}, SECRET),
        ({}, {"method": "GET", "batch": BATCH}, SECRET),
        ({}, {}, ""),
    ],
)
def test_what_could_never_be_sent_is_refused_at_the_start(provider: dict[str, Any], tool: dict[str, Any], secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        caller_of("http://127.0.0.1", secret=secret, provider=provider, **tool)
    assert SECRET not in str(caught.value)


async def test_V3_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "aiohttp", "aiohttp.client"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    async with opened(Fault(kind=FaultKind.CLOSE_AFTER_WORK, next=1)) as (_, caller):
        await caller.call(call_of("a@example.com"))
        await caller.call(call_of("a@example.com"))
    said = [record for record in caplog.records if record.name.split(".")[0] in {"httpx", "httpcore", "aiohttp", "streams"}]
    assert said == []


async def test_the_next_call_after_a_full_speed_burst_has_its_own_answer() -> None:
    async with opened(sandbox={"latency_ms": 1.0}, result="email", connections_max=50) as (sandbox, caller):
        emails = [f"{place}@example.com" for place in range(300)]
        reports = await asyncio.gather(*[caller.call(call_of(email, key=email)) for email in emails])
        sandbox.set_settings(Settings())
        assert [report.outcomes[0] for report in reports] == [Answered(f'"{email}"'.encode()) for email in emails]
    assert sandbox.summary().in_flight_max <= 50
