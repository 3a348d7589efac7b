"""Jobs over HTTP (P10): one submission on the provider's bill, and questions that cost nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from streams.sandbox import Fault, FaultKind, Sandbox
from streams.sandbox.settings import Settings
from streams.tools.http import HttpCaller
from streams.tools.port import Answered, CallReport, Doubtful, JobUnderWay, NotDone, ProviderCall
from tests.contract.test_http_tool import SECRET, call_of, caller_of, fault_of
from tests.support.raw_server import sends, serving, whole
from tests.support.wait import eventually

PATH = "/v1/email/jobs"
JOB: dict[str, Any] = {"id": "job.id", "poll_path": PATH + "/{job}", "interval_seconds": 0.05}
FETCHED = JOB | {"fetch_path": PATH + "/{job}/result"}


@asynccontextmanager
async def opened(
    *faults: Fault, job: dict[str, Any] | None = None, job_ms: float = 0.0, **tool: Any
) -> AsyncIterator[tuple[Sandbox, HttpCaller]]:
    async with Sandbox(api_key=SECRET, faults=faults) as provider:
        provider.set_settings(Settings(job_ms=job_ms))
        caller = caller_of(provider.url, path=PATH, job=JOB if job is None else job, **tool)
        try:
            yield provider, caller
        finally:
            await caller.close()


def asking(call: ProviderCall, job: str) -> ProviderCall:
    return msgspec.structs.replace(call, job=job)


async def submit(caller: HttpCaller, call: ProviderCall) -> str:
    report = await caller.call(call)
    assert report.outcomes == ()
    assert report.job is not None
    assert report.job.ask_again_seconds == 0.05
    return report.job.job


def output(report: CallReport) -> Any:
    (outcome,) = report.outcomes
    assert isinstance(outcome, Answered)
    return json.loads(outcome.output)


async def test_P10_a_job_is_billed_once_however_often_it_is_asked_for() -> None:
    call = call_of("a@example.com")
    async with opened(job_ms=100, result="result") as (provider, caller):
        job = await submit(caller, call)
        reports = [await caller.call(asking(call, job))]
        assert reports[0] == CallReport((), None, reports[0].seconds, JobUnderWay(job, 0.05))

        async def ends() -> CallReport:
            while (report := await caller.call(asking(call, job))).job is not None:
                pass
            return report

        assert output(await ends())["normalized"] == "a@example.com"
        (line,) = provider.bill()
    assert (line.endpoint, line.item, line.idempotency_key) == (PATH, "a@example.com", call.idempotency_key)


async def test_P10_the_result_of_a_done_job_is_fetched_where_it_lies() -> None:
    call = call_of("a@example.com")
    async with opened(job=FETCHED, result="verdict") as (provider, caller):
        assert output(await caller.call(asking(call, await submit(caller, call)))) == "valid"
        assert provider.summary().calls == 1


async def test_P10_a_job_that_the_provider_has_forgotten_is_doubtful_for_good() -> None:
    async with opened() as (provider, caller):
        report = await caller.call(asking(call_of("a@example.com"), "job-9"))
        (outcome,) = report.outcomes
        assert isinstance(outcome, Doubtful)
        assert (outcome.fault.code, outcome.used_up) == ("job_lost", True)
        assert provider.summary().calls == 0


async def test_P10_a_provider_that_cannot_be_reached_is_asked_again() -> None:
    call = call_of("a@example.com")
    async with opened() as (provider, caller):
        job = await submit(caller, call)
        await provider.__aexit__(None, None, None)
        report = await caller.call(asking(call, job))
        assert report.job is not None
        assert report.job.trouble is not None
        assert (report.job.job, report.job.ask_again_seconds) == (job, 0.05)
        assert report.job.trouble.code in ("unreachable", "answer_lost")
        await provider.__aenter__()


async def test_P10_a_question_that_is_refused_ends_no_job() -> None:
    """A key that was being rotated (401) made a job unknown that was paid for: five questions in seconds, and never one again."""
    async with serving(sends(whole(b'{"error":"expired"}', status="401 Unauthorized")), answers=1) as server:
        caller = caller_of(server.url, path=PATH, job=JOB)
        report = await caller.call(asking(call_of("a@example.com"), "job-1"))
        await caller.close()
    assert (report.outcomes, report.lane_pause_seconds) == ((), None)
    assert report.job is not None
    assert report.job.trouble is not None
    assert (report.job.job, report.job.trouble.code) == ("job-1", "http_401")
    assert SECRET not in report.job.trouble.message


async def test_P10_a_submission_ends_like_any_other_call_where_it_becomes_no_job() -> None:
    call = call_of("a@example.com")
    async with opened(Fault(kind=FaultKind.ERROR_AFTER_WORK, next=1)) as (_, caller):
        report = await caller.call(call)
        assert isinstance(report.outcomes[0], Doubtful)
        assert report.job is None
    async with opened(Fault(kind=FaultKind.ERROR_BEFORE_WORK, next=1, status=429)) as (_, caller):
        report = await caller.call(call)
        assert isinstance(report.outcomes[0], NotDone)
    async with opened(job=JOB | {"id": "name"}) as (provider, caller):
        report = await caller.call(call)
        assert (fault_of(report).code, provider.summary().calls) == ("bad_response", 1)


async def test_P10_a_job_of_a_tool_that_has_no_job_form_any_more_stays_in_doubt() -> None:
    async with Sandbox(api_key=SECRET) as provider:
        caller = caller_of(provider.url)
        report = await caller.call(asking(call_of("a@example.com"), "job-1"))
        await caller.close()
        assert fault_of(report).code == "unknown_job"
        assert provider.summary().requests == 0


async def test_P10_the_secret_stays_out_of_what_a_job_says() -> None:
    call = call_of("a@example.com")
    async with opened(job=JOB | {"done": ["never"], "failed": ["done"], "error": "result"}) as (_, caller):
        report = await caller.call(asking(call, await submit(caller, call)))
        assert fault_of(report).code == "job_failed"
        assert SECRET not in fault_of(report).message


async def test_the_sandbox_answers_questions_about_jobs_with_the_key_only_and_bills_none() -> None:
    import httpx

    async with opened(job_ms=10_000) as (provider, caller):
        job = await submit(caller, call_of("a@example.com"))
        async with httpx.AsyncClient(base_url=provider.url) as client:
            assert (await client.get(f"{PATH}/{job}")).status_code == 401
            headers = {"Authorization": f"Bearer {SECRET}"}
            running = await client.get(f"{PATH}/{job}", headers=headers)
            early = await client.get(f"{PATH}/{job}/result", headers=headers)
            unknown = await client.get(f"{PATH}/job-7", headers=headers)
        assert (running.json(), early.status_code, unknown.status_code) == (
            {"id": job, "status": "running", "result": None},
            409,
            404,
        )
        assert provider.summary().calls == 1
        await eventually("nothing is in flight", lambda: provider.summary().in_flight == 0)
