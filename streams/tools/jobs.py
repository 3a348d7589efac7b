"""Jobs at a provider over HTTP (P10): what the answers to a submission, a question and a fetch mean.

Pure. Only what the provider says of the job itself ends it; whatever else goes wrong between us and it is asked about again, for
asking is free. Faults hold the provider's own words; ``http`` hides secrets in them and cuts them.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from schemas.canonical import JsonValue, parse_json
from schemas.events import Fault
from schemas.providers import JobForm
from streams.tools.port import Answered, CallReport, Doubtful, JobUnderWay, MemberOutcome, NotDone, Refused
from streams.tools.results import NO_RESULT, TEXT_BYTES_MAX, Steps, output_of, parsed, steps_of, value_at

#: Code of the one refusal that is the end of a job.
JOB_FAILED: Final = "job_failed"
#: Characters of a job's name, which travels in events and in a URL.
NAME_CHARS_MAX: Final = 500
#: Answers that say that a job is not there any more, nor its result.
_GONE: Final = frozenset((404, 410))


def job_path(template: str, job: str) -> str:
    """The path that asks for a job."""
    return template.replace("{job}", quote(job, safe=""))


class Read(NamedTuple):
    """A whole answer, of which nothing is judged but what is taken from it: what stands beside that ends no job."""

    answer: JsonValue


def read(body: bytes) -> Read | Doubtful:
    """The answer to a question; doubtful where it cannot be read, which says nothing of the job, for good least of all."""
    answer = parsed(body)
    return Doubtful(answer.fault) if isinstance(answer, Doubtful) else Read(answer)


def job_name(name: JsonValue) -> str | None:
    """The name of a job by what stands at its place; ``None`` where nobody could ask for that."""
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name.strip(".") or len(name) > NAME_CHARS_MAX or not name.isprintable():
        return None
    return name


def submitted(form: JobForm, outcome: MemberOutcome, report: CallReport) -> CallReport:
    """What a submission came to: ``outcome`` holds what stands at the place of the job's name.

    An answer without a usable name may stand for a job that is worked on and billed, and that nobody can ask for: doubtful.
    """
    if not isinstance(outcome, Answered):
        return report
    name = job_name(parse_json(outcome.output))
    if name is None:
        fault = Fault("bad_response", f"the answer to a submission has no name of a job at {form.id!r}")
        return msgspec.structs.replace(report, outcomes=(Doubtful(fault),))
    return msgspec.structs.replace(report, outcomes=(), job=JobUnderWay(name, form.interval_seconds))


def ended(form: JobForm, result: Steps, said: Read | Refused | NotDone | Doubtful, status: int) -> MemberOutcome | Fault | None:
    """The end that an answer to a question tells, ``None`` where the job goes on, a fault where it does as far as is known.

    A done job whose result is to be fetched has ``Answered`` with nothing in it that counts.
    """
    if not isinstance(said, Read):
        return _trouble(said, status)
    answer = said.answer
    state = value_at(answer, steps_of(form.state))
    if state in form.done:
        return NO_RESULT if form.fetch_path is not None else output_of(value_at(answer, result))
    if state in form.failed:
        return Refused(Fault(JOB_FAILED, f"the job is {state}: {_words(value_at(answer, steps_of(form.error)))}"))
    if form.pending and state not in form.pending:
        known = ", ".join((*form.pending, *form.done, *form.failed))
        return Fault("bad_state", f"the job's state is {_words(state)}; the providers file knows {known}")
    return None


def fetched(outcome: MemberOutcome, status: int) -> MemberOutcome | Fault:
    """The end that a fetch of a done job's result tells, or the trouble after which it is to be tried again."""
    return outcome if isinstance(outcome, Answered) else _trouble(outcome, status)


def under_way(form: JobForm, job: str, said: MemberOutcome | None, trouble: Fault | None, seconds: float) -> CallReport:
    """The report of a job that goes on: asked for again after its interval, or when the provider wants to be."""
    asked_for = said.retry_after_seconds if isinstance(said, NotDone) else None
    return CallReport((), None, seconds, JobUnderWay(job, max(form.interval_seconds, asked_for or 0.0), trouble))


def of_job(outcome: MemberOutcome) -> MemberOutcome:
    """An outcome as it counts for a job that was submitted: no refusal of a question says that the job was not billed."""
    match outcome:
        case Answered() | Doubtful():
            return outcome
        case Refused(fault=fault) if fault.code == JOB_FAILED:
            return outcome
        case Refused(fault=fault) | NotDone(fault=fault):
            return Doubtful(Fault(fault.code, fault.message))


def _trouble(outcome: Refused | NotDone | Doubtful, status: int) -> MemberOutcome | Fault:
    """What a question that failed says of the job: nothing, save that it is not there, or that its result cannot be kept.

    Also a no that seems final is one to the question: keys are rotated, and gateways are set up anew, while a job goes on.
    """
    if isinstance(outcome, Doubtful) and outcome.used_up:
        # A result that can never be kept: no further question would make it any better.
        return outcome
    if isinstance(outcome, Refused) and status in _GONE:
        return Doubtful(Fault("job_lost", f"the provider knows the job no more: {outcome.fault.message}"), used_up=True)
    return outcome.fault


def _words(value: JsonValue) -> str:
    return (value if isinstance(value, str) else repr(value))[:TEXT_BYTES_MAX]
