"""Leases that are lost again and again (P2, L4): what a worker dies of is not called without end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import LeaseJudgedExpired
from schemas.events import Ambiguous, AttemptEnded, ClaimedMember, Event, Fault, JobStarted, LeaseExpired, Repeat, Retry
from schemas.states import RECEIPT, Attempt, Receipt, record_key
from streams.engine import protocol
from streams.engine.digest import state_of
from streams.engine.lostleases import judged
from streams.engine.protocol import Verdict
from streams.engine.retries import backoff_ms
from tests.support import given as g

LOST = Fault("lost", "no answer")
NOW = 1_000_000
TRIES_MAX = 5


def member(n: int, receipt: str = g.R) -> ClaimedMember:
    return ClaimedMember(receipt, n, 0, 1)


def of_tries(tries: int, repeat: Repeat | None = Repeat.FREELY, *, released: int = 0) -> Receipt:
    """A receipt whose last attempt is live, with so many tries in all, and some more that were given back."""
    attempts = {n: Attempt(f"L{n}", 1, 0, 1, released=n <= released) for n in range(1, tries + released + 1)}
    return Receipt(attempts=attempts, repeat=repeat)


def judge(receipt: Receipt, today: Repeat | None = None, n: int | None = None) -> LeaseJudgedExpired:
    n = n or max(receipt.attempts)
    return judged(f"L{n}", [(member(n), receipt)], today or receipt.repeat, TRIES_MAX, NOW, 0.5)


@pytest.mark.parametrize("repeat", [Repeat.FREELY, Repeat.WITH_KEY])
def test_P2_a_call_whose_workers_die_of_it_is_made_attempts_max_times_and_is_unknown_then(repeat: Repeat) -> None:
    """An expiry said nothing of repeats: a call that took its worker down was made by each next owner, 101 times and on."""
    table = g.receipts()
    needs = g.needs(outbox := table.given(g.request(repeat=repeat)))
    made, waits = 0, []
    while needs and made < 50:
        (need,) = needs
        table.given(g.claim(need.n, f"L{need.n}", op=need.op))
        made += 1
        command = judged(f"L{need.n}", [(member(need.n), g.state(table))], repeat, TRIES_MAX, NOW, 0.0)
        (event,) = table.given(command).events[("receipt-claims", 0)]
        outbox = table.given(event)
        needs = g.needs(outbox)
        waits += [need.not_before_ms - NOW for need in needs if need.not_before_ms]
    assert made == TRIES_MAX
    assert waits == [backoff_ms(tries, jitter=0.0) for tries in (1, 2, 3)], "the first lost call is made again at once (R4)"
    told = [event.answer for event in outbox.events[("tool-results", 0)] if hasattr(event, "answer")]
    assert told == ["unknown"]
    assert g.state(table).open is False


@pytest.mark.parametrize(
    ("receipt", "today", "used_up"),
    [
        (of_tries(4), Repeat.FREELY, False),
        (of_tries(5), Repeat.FREELY, True),
        (of_tries(4, released=3), Repeat.FREELY, False),
        (of_tries(5, released=1), Repeat.WITH_KEY, True),
        # What is not repeated in any case stays open for a job that is heard of later.
        (of_tries(5, Repeat.NEVER), Repeat.NEVER, False),
        (of_tries(1, Repeat.NEVER), Repeat.FREELY, False),
        (of_tries(1, None), None, False),
        # U1: what the tool says today counts, too.
        (of_tries(1), Repeat.NEVER, True),
        (Receipt(repeat=Repeat.FREELY), None, False),
    ],
)
def test_P2_U1_which_lost_attempts_are_the_last(receipt: Receipt, today: Repeat | None, used_up: bool) -> None:
    judgement = judge(receipt, today, n=max(receipt.attempts, default=1))
    assert judgement.used_up == ((g.R,) if used_up else ())
    assert judgement.members == (member(max(receipt.attempts, default=1)),)


def test_P10_a_job_is_asked_for_again_whatever_the_tool_says_but_not_without_end() -> None:
    asking = of_tries(4, Repeat.NEVER)
    asking.attempts[4].job = "J"
    assert judge(asking, Repeat.NEVER).used_up == ()
    asking.attempts[5] = Attempt("L5", 1, 0, 1, job="J")
    assert judge(asking, Repeat.NEVER).used_up == (g.R,)


def test_P2_a_batch_waits_as_one_and_only_members_whose_tries_are_spent_are_given_up() -> None:
    lost = [(member(2, "a"), of_tries(2)), (member(5, "b"), of_tries(5)), (member(3, "c"), of_tries(3))]
    judgement = judged("L", lost, Repeat.WITH_KEY, TRIES_MAX, NOW, 0.0)
    assert judgement.used_up == ("b",)
    assert judgement.not_before_ms == NOW + backoff_ms(2, jitter=0.0)
    assert [event.receipt for event in judgement.members] == ["a", "b", "c"]


# What an expiry says and what an end says come from two topics: in whatever order they are folded, the record is one.
claims_topic: list[Event] = [
    g.claim(1, "L"),
    JobStarted(g.R, 1, "L", "J"),
    LeaseExpired("L", (member(1),), 700, ()),
    LeaseExpired("L", (member(1),), 300, (g.R,)),
    g.release(1, "L"),
]
ends_topic: list[Event] = [
    AttemptEnded(g.R, 1, 0, "L", Ambiguous(LOST, 500)),
    AttemptEnded(g.R, 1, 0, "L", Ambiguous(LOST, used_up=True)),
    AttemptEnded(g.R, 1, 0, "L", Retry(LOST, 400)),
    g.failed(1),
    g.value(1),
]


@given(
    st.lists(st.sampled_from(claims_topic[1:]), max_size=4),
    st.lists(st.sampled_from(ends_topic), max_size=3),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_case_H6_expiries_and_ends_give_one_record_in_every_order(
    claims: Sequence[Event], ends: Sequence[Event], order: list[bool]
) -> None:
    """case_H6: both say whether a call is made again, and when."""
    one = [g.request(), claims_topic[0], *claims, *ends]
    left, right = [claims_topic[0], *claims], list(ends)
    other: list[Event] = []
    for first in order:
        queue = left if (first and left) or not right else right
        if queue:
            other.append(queue.pop(0))
    assert (left, right) == ([], [])
    tables = []
    for events in (one, [*other, g.request()]):
        table = g.receipts()
        for event in events:
            table.given(event)
        tables.append(g.state(table))
    digests = [state_of(record_key(RECEIPT, g.R), msgspec.msgpack.encode(receipt)) for receipt in tables]
    assert digests[0] == digests[1]


def test_U3_a_person_s_unpaid_lets_a_used_up_attempt_be_made_again() -> None:
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L"), LeaseExpired("L", (member(1),), 0, (g.R,)))
    assert protocol.standing(g.state(table)).verdict is Verdict.UNKNOWN
    (need,) = g.needs(table.given(g.resolved(1)))
    assert need.n == 2
