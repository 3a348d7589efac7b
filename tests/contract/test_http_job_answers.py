"""What stands beside the state and the result in an answer to a question about a job: it ends nothing (P10)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streams.tools.port import Answered, CallReport, Doubtful, JobUnderWay, Refused
from tests.support.raw_server import SECRET, Serve, call_of, calling, sends, serving, whole

JOB: dict[str, Any] = {"id": "id", "poll_path": "/jobs/{job}"}
DEEP = json.loads("[" * 250 + "]" * 250)


async def asked(*answers: bytes, job: dict[str, Any] | None = None) -> CallReport:
    """The report of a question whose requests get these answers, one by one."""
    left = list(answers)

    async def answer(*connection: Any) -> None:
        await sends(left.pop(0))(*connection)

    async with (
        serving(answer, answers=len(answers)) as server,
        calling(server, job=job or JOB, result="person") as caller,
    ):
        report = await caller.call(msgspec.structs.replace(call_of(), job="j1"))
        assert left == []
    return report


def text(value: Any) -> bytes:
    return whole(json.dumps(value).encode())


@pytest.mark.parametrize("beside", [f"Bearer {SECRET}", DEEP], ids=["a secret", "nested too deeply"])
async def test_P10_what_stands_beside_the_state_of_a_running_job_does_not_end_it(beside: Any) -> None:
    """The whole answer was judged as if all of it were kept: a webhook's header in it made a paid job *unknown*."""
    report = await asked(text({"status": "running", "webhook": beside}))
    assert report == CallReport((), None, report.seconds, JobUnderWay("j1", 2.0))


async def test_P10_an_answer_that_is_too_deep_to_be_read_says_nothing_of_the_job() -> None:
    report = await asked(whole(b'{"status":"running","log":' + b"[" * 2_000 + b"]" * 2_000 + b"}"))
    assert report.job is not None
    assert report.job.trouble is not None
    assert (report.outcomes, report.job.trouble.code) == ((), "bad_response")
    assert "raw.check: HTTP 200 from http://" in report.job.trouble.message


@pytest.mark.parametrize("beside", [SECRET, DEEP, "x" * (4 << 20)], ids=["a secret", "nested too deeply", "long"])
async def test_P10_the_result_of_a_done_job_is_kept_whatever_stands_beside_it(beside: Any) -> None:
    """With a secret, a deep log or a long one beside it a result was dropped that had been paid for."""
    assert (await asked(text({"status": "done", "person": {"n": 1}, "echo": beside}))).outcomes == (Answered(b'{"n":1}'),)


@pytest.mark.parametrize(("person", "code"), [({"key": SECRET}, "secret_in_output"), (DEEP, "bad_response")])
@pytest.mark.parametrize("fetched", [False, True])
async def test_P10_R10_a_result_that_may_not_be_kept_itself_ends_the_job_as_unknown(person: Any, code: str, fetched: bool) -> None:
    done = text({"status": "done", "person": person})
    if fetched:
        report = await asked(text({"status": "done"}), done, job=JOB | {"fetch_path": "/jobs/{job}/result"})
    else:
        report = await asked(done)
    (outcome,) = report.outcomes
    assert isinstance(outcome, Doubtful)
    assert (outcome.fault.code, outcome.used_up) == (code, True)
    assert outcome.fault.message.startswith("raw.check: HTTP 200 from http://")


async def test_P10_V3_the_words_about_a_job_are_told_with_tool_and_place_and_without_secrets() -> None:
    failed = await asked(text({"status": "failed", "error": f"bad key {SECRET}" + " and so on" * 100}))
    (outcome,) = failed.outcomes
    assert isinstance(outcome, Refused)
    assert outcome.fault.message.startswith("raw.check: HTTP 200 from http://")
    assert ": the job is failed: bad key [secret] and so on" in outcome.fault.message
    assert len(outcome.fault.message) < 350
    odd = await asked(text({"status": SECRET}), job=JOB | {"pending": ["running"]})
    assert odd.job is not None
    assert odd.job.trouble is not None
    assert "the job's state is [secret]; the providers file knows running, done, failed" in odd.job.trouble.message


@pytest.mark.parametrize("answer", [sends(text({"name": "j1"})), sends(whole(b""))])
async def test_P10_V3_a_submission_without_a_jobs_name_is_told_with_tool_and_place(answer: Serve) -> None:
    """Its fault named neither tool nor place, unlike every other."""
    async with serving(answer) as server, calling(server, job=JOB) as caller:
        (outcome,) = (await caller.call(call_of())).outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.message.startswith("raw.check: HTTP 200 from http://")
    assert outcome.fault.message.endswith("/check: the answer to a submission has no name of a job at 'id'")
