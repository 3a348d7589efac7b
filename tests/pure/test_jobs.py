"""Jobs at a provider (P10): what an operation's job changes in the protocol, and what a provider's answers mean."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.events import BatchClaimed, CallsAnswered, ClaimedMember, Event, Fault, JobStarted, Mode, Repeat
from schemas.providers import JobForm, Providers
from schemas.states import Attempt
from streams.engine import protocol
from streams.engine.effects import ClaimFolded, Queued
from streams.engine.port import Outbox
from streams.engine.protocol import Verdict
from streams.tools.jobs import JOB_FAILED, ended, fetched, job_path, of_job, read, submitted, under_way
from streams.tools.port import Answered, CallReport, Doubtful, JobUnderWay, MemberOutcome, NotDone, Refused
from tests.pure.test_protocol_laws import digest, fold
from tests.support import given as g
from tests.support.memory import Table

NEVER = Repeat.NEVER


def started(n: int, lease: str, job: str = "J") -> JobStarted:
    return JobStarted(g.R, n, lease, job)


def asks(n: int, lease: str, job: str | None = "J", *, op: int = 1, epoch: int = 0) -> BatchClaimed:
    """A claim of an attempt that will only ask for a job."""
    return BatchClaimed("org/p", "p.t", "", lease, 1, (ClaimedMember(g.R, n, epoch, op),), (), job)


def table(*turns: Event, repeat: Repeat = NEVER) -> tuple[Table, Outbox]:
    it = g.receipts()
    outbox = it.given(g.request(repeat=repeat))
    for event in turns:
        outbox = it.given(event)
    return it, outbox


def needs(outbox: Outbox) -> list[tuple[int, int, int]]:
    return [(effect.need.n, effect.need.epoch, effect.need.op) for effect in outbox.effects if isinstance(effect, Queued)]


def answers(outbox: Outbox) -> list[str]:
    return [event.answer.value for events in outbox.events.values() for event in events if isinstance(event, CallsAnswered)]


# --- the protocol -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [g.expiry(1, "L1"), g.ambiguous(1)])
def test_P10_an_attempt_whose_job_is_known_is_not_unknown_but_asked_for_again_as_the_same_operation(end: Event) -> None:
    it, outbox = table(g.claim(1, "L1"), started(1, "L1"), end)
    assert (answers(outbox), needs(outbox)) == ([], [(2, 0, 1)])
    assert protocol.job_of(g.state(it), 0, 1) == "J"


@pytest.mark.parametrize("end", [g.expiry(1, "L1"), g.ambiguous(1)])
def test_U1_P10_without_a_job_it_is_unknown_as_ever_until_the_job_becomes_known_after_all(end: Event) -> None:
    it, outbox = table(g.claim(1, "L1"), end)
    assert (answers(outbox), needs(outbox)) == (["unknown"], [])
    assert needs(it.given(started(1, "L1"))) == [(2, 0, 1)]
    it.given(asks(2, "L2"))
    assert answers(it.given(g.value(2))) == ["completed"]


def test_P10_whoever_asks_on_may_be_lost_too() -> None:
    it, outbox = table(g.claim(1, "L1"), started(1, "L1"), g.expiry(1, "L1"), asks(2, "L2"), g.expiry(2, "L2"))
    assert (answers(outbox), needs(outbox)) == ([], [(3, 0, 1)])
    assert protocol.job_of(g.state(it), 0, 1) == "J"


def test_P10_an_attempt_that_would_submit_is_unknown_when_it_is_lost_whatever_jobs_there_were() -> None:
    """After a person's *unpaid* the operation is submitted anew; its loss must not be taken for a question that can be repeated."""
    it, outbox = table(g.claim(1, "L1"), started(1, "L1"), g.ambiguous(1, used_up=True), g.resolved(1))
    assert needs(outbox) == [(2, 0, 2)]
    assert protocol.job_of(g.state(it), 0, 2) is None
    it.given(g.claim(2, "L2", op=2))
    assert answers(it.given(g.expiry(2, "L2"))) == ["unknown"]
    assert protocol.verdict(g.state(it).attempts[2], NEVER) is Verdict.UNKNOWN


def test_P10_a_persons_unpaid_ends_the_job_for_all_attempts_that_asked_for_it() -> None:
    it, outbox = table(g.claim(1, "L1"), started(1, "L1"), g.expiry(1, "L1"), asks(2, "L2"), g.ambiguous(2, used_up=True))
    assert answers(outbox) == ["unknown"]
    assert needs(it.given(g.resolved(2))) == [(3, 0, 3)]
    assert protocol.job_of(g.state(it), 0, 3) is None


def test_P10_where_the_key_is_kept_a_resolved_job_is_not_asked_for_again() -> None:
    """with-key: an attempt without a job keeps the operation in doubt, so the key stays; the job that a person ended does not."""
    it, outbox = table(
        g.claim(1, "L1"),
        g.expiry(1, "L1"),
        g.claim(2, "L2"),
        started(2, "L2"),
        g.ambiguous(2, used_up=True),
        g.resolved(2),
        repeat=Repeat.WITH_KEY,
    )
    assert needs(outbox) == [(3, 0, 1)]
    assert protocol.job_of(g.state(it), 0, 1) is None


def test_P10_a_release_of_one_who_would_have_asked_leaves_operation_and_job() -> None:
    it, outbox = table(g.claim(1, "L1"), started(1, "L1"), g.expiry(1, "L1"), asks(2, "L2"), g.release(2, "L2"))
    assert needs(outbox) == [(3, 0, 1)]
    assert protocol.job_of(g.state(it), 0, 1) == "J"


def test_P10_the_failure_of_a_job_is_the_answer_of_all_who_asked_for_it() -> None:
    _, outbox = table(g.claim(1, "L1"), started(1, "L1"), g.expiry(1, "L1"), asks(2, "L2"), g.failed(2))
    assert (answers(outbox), needs(outbox)) == (["failed"], [])


def test_P10_a_questioner_that_used_up_its_tries_is_unknown() -> None:
    _, outbox = table(g.claim(1, "L1"), started(1, "L1"), g.ambiguous(1, used_up=True))
    assert (answers(outbox), needs(outbox)) == (["unknown"], [])


def test_P10_a_job_of_a_later_epoch_serves_those_who_want_less_before_anything_is_submitted() -> None:
    it = g.receipts()
    it.given(g.request("forced", "f1", Mode.FULL_REFRESH, NEVER), g.request("normal", repeat=NEVER))
    it.given(g.claim(1, "L1", epoch=1))
    it.given(started(1, "L1"), g.withdrawn("forced"))
    outbox = it.given(g.expiry(1, "L1"))
    assert needs(outbox) == [(2, 1, 1)]
    (folded,) = [effect for effect in it.given(asks(2, "L2", epoch=1)).effects if isinstance(effect, ClaimFolded)]
    assert folded.granted == (g.R,)


def test_P10_R2_a_failed_refresh_asks_for_the_job_that_is_in_doubt_and_a_full_one_submits() -> None:
    for mode, expected in ((Mode.FAILED_REFRESH, (2, 0, 1)), (Mode.FULL_REFRESH, (2, 1, 2))):
        it, _ = table(g.claim(1, "L1"), started(1, "L1"), g.withdrawn("c1"))
        it.given(g.request("again", "f1", mode, NEVER))
        assert needs(it.given(g.expiry(1, "L1"))) == [expected]


def test_P10_only_the_attempts_own_lease_names_its_job_and_the_first_name_stays() -> None:
    it, _ = table(g.claim(1, "L1"), started(1, "other"), started(1, "L1", "J1"), started(1, "L1", "J2"), started(7, "L1"))
    assert [attempt.job for attempt in g.state(it).attempts.values()] == ["J1"]


claims = st.lists(
    st.one_of(
        st.builds(lambda n, lease: g.claim(n, lease, op=1), st.integers(1, 3), st.sampled_from(("L1", "L2"))),
        st.builds(asks, st.integers(2, 3), st.sampled_from(("L1", "L2")), st.sampled_from(("J", "K", None))),
        st.builds(started, st.integers(1, 3), st.sampled_from(("L1", "L2")), st.sampled_from(("J", "K"))),
        st.builds(g.expiry, st.integers(1, 3), st.sampled_from(("L1", "L2"))),
        st.builds(g.release, st.integers(1, 3), st.sampled_from(("L1", "L2"))),
    ),
    max_size=7,
)
completions = st.lists(
    st.one_of(
        st.builds(g.value, st.integers(1, 3)),
        st.builds(g.failed, st.integers(1, 3)),
        st.builds(g.ambiguous, st.integers(1, 3), used_up=st.booleans()),
        st.builds(g.resolved, st.integers(1, 3)),
    ),
    max_size=4,
)


@given(claims, completions, st.randoms(use_true_random=False))
def test_P10_law_every_interleaving_of_claims_jobs_and_completions_gives_one_record(
    one: list[Event], other: list[Event], dice: Any
) -> None:
    first, second = list(one), list(other)
    mixed: list[Event] = []
    while first or second:
        queue = dice.choice([queue for queue in (first, second) if queue])
        mixed.append(queue.pop(0))
    request = g.request(repeat=NEVER)
    assert digest(fold([request, *one, *other])) == digest(fold([*mixed, request]))


@given(claims, completions)
def test_P10_law_every_event_twice_gives_the_same_record(one: list[Event], other: list[Event]) -> None:
    once = [g.request(repeat=NEVER), *one, *other]
    assert digest(fold(once)) == digest(fold([event for event in once for _ in range(2)]))


@given(claims, completions)
def test_P10_law_a_tool_that_may_not_be_repeated_is_submitted_again_only_after_a_definite_end(
    one: list[Event], other: list[Event]
) -> None:
    """While a submission may have been billed and its job has not ended, the next attempt asks for a job, or there is none."""
    receipt = fold([g.request(repeat=NEVER), *one, *other])
    claimed = [n for n, attempt in receipt.attempts.items() if attempt.lease is not None]
    # No owner claims the next attempt before it has folded an end of this one.
    assume(all(_has_ended(receipt.attempts[n]) for n in claimed if n < max(claimed)))
    need = protocol.need(receipt, receipt.waiters.values(), protocol.standing(receipt))
    if need is None or protocol.job_of(receipt, need.epoch, need.op) is not None:
        return
    gone = {attempt.job for attempt in receipt.attempts.values() if attempt.job and attempt.out in protocol._DEFINITE}
    unpaid = {attempt.op for attempt in receipt.attempts.values() if attempt.out == "unpaid"}
    for attempt in receipt.attempts.values():
        in_doubt = attempt.lease is not None and not attempt.released and attempt.out not in protocol._DEFINITE
        assert not in_doubt or attempt.job in gone or attempt.op in unpaid, (need, receipt)


def _has_ended(attempt: Attempt) -> bool:
    return attempt.out is not None or attempt.released or attempt.expired


def test_P10_every_order_of_one_jobs_events_gives_one_record() -> None:
    claims_ = [g.claim(1, "L1"), started(1, "L1"), g.expiry(1, "L1"), asks(2, "L2")]
    ends: list[Event] = [g.value(2), g.value(1)]
    seen = set()
    for places in itertools.combinations(range(6), 2):
        first, second = iter(claims_), iter(ends)
        order = [next(second) if place in places else next(first) for place in range(6)]
        seen.add(repr(digest(fold([g.request(repeat=NEVER), *order]))))
    assert len(seen) == 1


# --- what answers mean --------------------------------------------------------------------------------------

FORM = JobForm(poll_path="/jobs/{job}", state="job.state", done=("done",), failed=("broken",), error="why", interval_seconds=2.0)
LISTED = FORM.model_copy(update={"pending": ("queued",)})
FETCHING = FORM.model_copy(update={"fetch_path": "/jobs/{job}/result"})


def body(text: str) -> Answered:
    return Answered(text.encode())


@pytest.mark.parametrize(("output", "job"), [('"j-1"', "j-1"), ("17", "17")])
def test_P10_a_submission_names_its_job(output: str, job: str) -> None:
    report = submitted(FORM, body(output), CallReport((body(output),), None, 0.5))
    assert report == CallReport((), None, 0.5, JobUnderWay(job, 2.0))


@pytest.mark.parametrize("output", ["null", '""', "{}", "true", '".."', '"a\\u0000b"', f'"{"x" * 501}"'])
def test_P10_an_answer_without_a_usable_name_may_be_a_job_that_is_billed(output: str) -> None:
    (outcome,) = submitted(FORM, body(output), CallReport((body(output),))).outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.code == "bad_response"


def test_P10_a_submission_that_was_refused_is_refused() -> None:
    report = CallReport((Refused(Fault("http_400", "no")),), 3.0)
    assert submitted(FORM, report.outcomes[0], report) is report


@pytest.mark.parametrize(
    ("form", "answer", "expected"),
    [
        (FORM, '{"job":{"state":"queued"}}', None),
        (FORM, "{}", None),
        (FORM, '{"job":{"state":"done"},"out":{"a":1}}', body('{"a":1}')),
        (FORM, '{"job":{"state":"done"}}', body("null")),
        (
            FORM,
            '{"job":{"state":"broken"},"why":"not found"}',
            Refused(Fault(JOB_FAILED, "the job is broken: not found")),
        ),
        (LISTED, '{"job":{"state":"queued"}}', None),
        (
            LISTED,
            '{"job":{"state":"lost"}}',
            Fault("bad_state", "the job's state is lost; the providers file knows queued, done, broken"),
        ),
        (FETCHING, '{"job":{"state":"done"}}', body("null")),
    ],
)
def test_P10_what_an_answer_says_of_a_job(form: JobForm, answer: str, expected: MemberOutcome | Fault | None) -> None:
    assert ended(form, ("out",), read(answer.encode()), 200) == expected


NO = Fault("http_404", "not here")


@pytest.mark.parametrize(
    ("outcome", "status", "expected"),
    [
        (NotDone(Fault("http_429", "slowly"), 9.0), 429, Fault("http_429", "slowly")),
        (NotDone(Fault("unreachable", "nobody there")), 0, Fault("unreachable", "nobody there")),
        (Doubtful(Fault("http_500", "broken")), 500, Fault("http_500", "broken")),
        (Doubtful(Fault("bad_response", "junk")), 200, Fault("bad_response", "junk")),
        (Doubtful(Fault("too_large", "9 MB"), True), 200, Doubtful(Fault("too_large", "9 MB"), True)),
        (Refused(NO), 404, Doubtful(Fault("job_lost", "the provider knows the job no more: not here"), True)),
        (Refused(Fault("http_401", "who?", True)), 401, Fault("http_401", "who?", True)),
        (Refused(Fault("http_403", "not you", True)), 403, Fault("http_403", "not you", True)),
        (Refused(Fault("http_400", "what?")), 400, Fault("http_400", "what?")),
        (Refused(Fault("http_302", "elsewhere")), 302, Fault("http_302", "elsewhere")),
    ],
)
def test_P10_trouble_with_a_question_ends_no_job_unless_the_provider_says_so(
    outcome: Refused | NotDone | Doubtful, status: int, expected: MemberOutcome | Fault
) -> None:
    assert ended(FORM, (), outcome, status) == expected
    assert fetched(outcome, status) == expected


def test_P10_a_job_is_asked_for_again_after_its_interval_or_when_the_provider_wants() -> None:
    assert under_way(FORM, "j", body("{}"), None, 0.1).job == JobUnderWay("j", 2.0)
    assert under_way(FORM, "j", NotDone(NO, 9.0), NO, 0.1).job == JobUnderWay("j", 9.0, NO)
    assert under_way(FORM, "j", NotDone(NO, 0.5), NO, 0.1).job == JobUnderWay("j", 2.0, NO)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (body("1"), body("1")),
        (Refused(Fault(JOB_FAILED, "no")), Refused(Fault(JOB_FAILED, "no"))),
        (Refused(Fault("unknown_tool", "no", True)), Doubtful(Fault("unknown_tool", "no"))),
        (NotDone(Fault("closed", "stopping", True)), Doubtful(Fault("closed", "stopping"))),
        (Doubtful(NO, True), Doubtful(NO, True)),
    ],
)
def test_P10_no_refusal_of_a_question_says_that_the_job_was_not_billed(outcome: MemberOutcome, counts: MemberOutcome) -> None:
    assert of_job(outcome) == counts


def test_P10_a_jobs_name_cannot_leave_its_place_in_the_path() -> None:
    assert job_path("/v1/jobs/{job}/result", "a/../b?c#d%") == "/v1/jobs/a%2F..%2Fb%3Fc%23d%25/result"


def providers(**tool: Any) -> Providers:
    return Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": {"path": "/t"} | tool}}}})


@pytest.mark.parametrize(
    ("job", "place"),
    [
        ({"poll_path": "/jobs"}, "poll_path"),
        ({"poll_path": "jobs/{job}"}, "poll_path"),
        ({"poll_path": "/{job}/{job}"}, "poll_path"),
        ({"poll_path": "/{job}", "fetch_path": "/x"}, "fetch_path"),
        ({"poll_path": "/{job}", "done": ()}, "done"),
        ({"poll_path": "/{job}", "interval_seconds": 0}, "interval_seconds"),
        ({"poll_path": "/{job}", "failed": ("done",)}, "these stand twice: done"),
        ({}, "poll_path"),
    ],
)
def test_P10_a_job_form_that_could_not_work_is_refused_by_its_place(job: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        providers(job=job)


def test_P10_a_job_is_one_requests() -> None:
    with pytest.raises(ValidationError, match="not both"):
        providers(job={"poll_path": "/{job}"}, batch={"size_max": 2})
