"""The look-up of a job whose submission's answer was lost, at a provider that answers each path as the test says (U3, P10)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from schemas.providers import Providers
from streams.tools.lookup import Absent, Found, HttpLookUp, NoWord, Pending, Word
from streams.tools.port import Answered, CallMember, Doubtful, Refused
from tests.support.raw_server import SECRET, read_request, whole

ONE = (CallMember("receipt", b"{}"),)
JOB: dict[str, Any] = {"id": "job.id", "poll_path": "/jobs/{job}", "error": "why"}
FETCHING = JOB | {"fetch_path": "/jobs/{job}/result"}
SUBMITTED: dict[str, Any] = {"status": "done", "answer": {"job": {"id": "j/7", "status": "queued"}}}
GONE = whole(b"", status="404 Not Found")


async def told(answers: dict[str, Any], job: dict[str, Any], *, result: str = "person") -> tuple[Word, list[str]]:
    """The word of a look-up, and the paths that were asked, all with GET; an answer is JSON, or bytes as they are."""
    asked: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            method, path, _ = request.split(b"\r\n")[0].decode().split(" ")
            assert method == "GET"
            asked.append(path)
            answer = answers.get(path, GONE)
            writer.write(answer if isinstance(answer, bytes) else whole(json.dumps(answer).encode()))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    tool = {"path": "/jobs", "result": result, "job": job, "reconcile": {"path": "/op/{key}", "absent_means": "unpaid"}}
    described = {
        "base_url": "http://{}:{}".format(*server.sockets[0].getsockname()[:2]),
        "auth": {"secret": "env:KEY"},
        "tools": {"t": tool},
    }
    look_up = HttpLookUp(Providers.model_validate({"providers": {"p": described}}), environment={"KEY": SECRET})
    try:
        return await look_up.ask("p.t", "k", ONE), asked
    finally:
        await look_up.close()
        server.close()


async def test_U3_P10_the_job_that_a_lost_submission_began_is_asked_for_and_has_the_result() -> None:
    """The submission's own answer was read for the result, which it never has: a paid job was settled as *no result* for ever."""
    poll = {"status": "done", "person": {"name": "Ada"}}
    word, asked = await told({"/op/k": SUBMITTED, "/jobs/j%2F7": poll}, JOB)
    assert word == Found((Answered(b'{"name":"Ada"}'),))
    assert asked == ["/op/k", "/jobs/j%2F7"]


async def test_U3_P10_the_result_is_fetched_where_the_job_form_says_so() -> None:
    answers = {"/op/k": SUBMITTED, "/jobs/j%2F7": {"status": "done"}, "/jobs/j%2F7/result": {"person": 1}}
    word, asked = await told(answers, FETCHING)
    assert word == Found((Answered(b"1"),))
    assert asked == ["/op/k", "/jobs/j%2F7", "/jobs/j%2F7/result"]


async def test_U3_P10_a_job_that_goes_on_is_pending() -> None:
    word, _ = await told({"/op/k": SUBMITTED, "/jobs/j%2F7": {"status": "running", "log": SECRET}}, JOB)
    assert word == Pending()


async def test_U3_P10_a_job_that_failed_is_found_as_a_refusal_without_secrets() -> None:
    word, _ = await told({"/op/k": SUBMITTED, "/jobs/j%2F7": {"status": "failed", "why": f"bad key {SECRET}"}}, JOB)
    assert isinstance(word, Found)
    (outcome,) = word.outcomes
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.message) == ("job_failed", "the job is failed: bad key [secret]")


@pytest.mark.parametrize(
    ("job", "answers", "code"),
    [
        (JOB, {}, "http_404"),
        (JOB, {"/jobs/j%2F7": whole(b"", status="503 Busy")}, "http_503"),
        (JOB, {"/jobs/j%2F7": whole(b"<html>")}, "bad_response"),
        (JOB | {"pending": ["running"]}, {"/jobs/j%2F7": {"status": "lost"}}, "bad_state"),
        (JOB | {"id": "id"}, {}, "bad_response"),
        (FETCHING, {"/jobs/j%2F7": {"status": "done"}}, "http_404"),
    ],
)
async def test_U3_P10_trouble_with_the_question_settles_nothing_and_least_of_all_says_that_nothing_is_paid(
    job: dict[str, Any], answers: dict[str, Any], code: str
) -> None:
    """A job that the provider keeps no longer is not one that it never heard of, which ``unpaid`` would have called again."""
    word, _ = await told({"/op/k": SUBMITTED} | answers, job)
    assert isinstance(word, NoWord)
    assert word.fault.code == code


async def test_U3_P10_what_the_provider_never_heard_of_is_absent_and_what_it_works_on_pending_as_without_jobs() -> None:
    assert await told({}, JOB) == (Absent(), ["/op/k"])
    assert await told({"/op/k": {"status": "pending"}}, JOB) == (Pending(), ["/op/k"])


@pytest.mark.parametrize(("person", "code"), [(SECRET, "secret_in_output"), (json.loads("[" * 250 + "]" * 250), "bad_response")])
async def test_U3_R10_a_jobs_result_that_may_not_be_kept_is_not_taken(person: Any, code: str) -> None:
    word, _ = await told({"/op/k": SUBMITTED, "/jobs/j%2F7": {"status": "done", "person": person}}, JOB)
    assert isinstance(word, Found)
    (outcome,) = word.outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.code == code
