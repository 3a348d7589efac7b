"""Questions about jobs that fail, in virtual time (P10): a job that is paid for outlives them all, up to its deadline."""

from __future__ import annotations

from itertools import pairwise

from schemas.events import Ambiguous, Fault
from streams.tools.port import CallReport, JobUnderWay, ProviderCall
from tests.support.dispatch import World, story, told

EXPIRED = Fault("http_401", "p.job: HTTP 401: expired token", True)


def goes_on(call: ProviderCall) -> CallReport:
    return CallReport((), None, 0.0, JobUnderWay(call.job or "J", 1.0))


def fails(call: ProviderCall) -> CallReport:
    return CallReport((), None, 0.0, JobUnderWay(call.job or "J", 1.0, EXPIRED))


@story()
async def test_P10_a_job_outlives_a_key_that_is_being_rotated(it: World) -> None:
    """Asked five times in two seconds, the job that was paid for became unknown while its key was being changed."""
    it.caller.scripts.extend([goes_on, *[fails] * 4])
    await it.asks("a", "job")
    await it.turns(50.0, every=0.2)
    assert [call.job for call in it.caller.calls] == [None, *["J"] * 5]
    assert told(it) == [("a", "completed")]


@story()
async def test_P10_waits_grow_while_questions_fail_and_are_short_again_after_a_good_one(it: World) -> None:
    it.caller.scripts.extend([goes_on, *[fails] * 4, goes_on, fails])
    await it.asks("a", "job")
    await it.turns(58.0, every=0.1)
    gaps = [round(later - earlier) for earlier, later in pairwise(it.caller.at)]
    assert gaps == [1, 1, 2, 4, 8, 1, 1]
    assert told(it) == [("a", "completed")]


@story()
async def test_P10_after_the_deadline_it_is_unknown_and_says_what_the_trouble_was(it: World) -> None:
    it.caller.scripts.extend([goes_on, *[fails] * 99])
    await it.asks("a", "job")
    await it.turns(70.0, every=0.5)
    assert told(it) == [("a", "unknown")]
    assert len(it.caller.calls) < 10
    (end,) = it.ends
    assert isinstance(end.outcome, Ambiguous)
    assert end.outcome.used_up
    assert "has not ended within 60 s; the last question that failed: http_401: p.job: HTTP 401" in end.outcome.fault.message
