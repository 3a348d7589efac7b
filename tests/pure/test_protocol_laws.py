"""The laws of the receipt protocol, for every interleaving that keeps each topic's order and with every event twice."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import AttemptEnded, BatchClaimed, Event, Mode, Repeat, Value
from schemas.states import RECEIPT, Flag, Out, Receipt, record_key
from streams.engine import protocol
from streams.engine.digest import state_of
from streams.engine.protocol import Told, Verdict
from tests.support import given as g

CALLS = ("c1", "c2", "c3")

requests = st.one_of(
    st.builds(
        lambda call, mode, refresh: g.request(call, None if mode is Mode.NORMAL else refresh, mode),
        st.sampled_from(CALLS),
        st.sampled_from(list(Mode)),
        st.sampled_from(("f1", "f2")),
    ),
    st.builds(g.withdrawn, st.sampled_from(CALLS)),
)
numbers = st.integers(1, 3)
claims = st.one_of(
    st.builds(
        lambda n, lease, generation, epoch: g.claim(n, lease, generation=generation, epoch=epoch, op=n),
        numbers,
        st.sampled_from(("L1", "L2", "L3")),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    st.builds(g.release, numbers, st.sampled_from(("L1", "L2"))),
    st.builds(g.expiry, numbers, st.sampled_from(("L1", "L2"))),
)
completions = st.one_of(
    st.builds(lambda n, text, epoch: g.value(n, text, epoch=epoch), numbers, st.sampled_from(('"a"', '"b"')), st.just(0)),
    st.builds(g.failed, numbers),
    st.builds(g.retry, numbers),
    st.builds(g.ambiguous, numbers),
    st.builds(g.resolved, numbers, st.sampled_from((None, b'"p"'))),
)
topics = st.tuples(st.lists(requests, max_size=5), st.lists(claims, max_size=5), st.lists(completions, max_size=4))


def digest(receipt: Receipt) -> bytes:
    """The record without what is no part of the protocol's state: told flags and marks."""
    return state_of(record_key(RECEIPT, g.R), msgspec.msgpack.encode(receipt))


def fold(events: list[Event], turns: list[int] | None = None) -> Receipt:
    """The record after folding events, split into turns of the given sizes."""
    table = g.receipts()
    sizes = iter(turns or [1] * len(events))
    position = 0
    while position < len(events):
        size = max(1, next(sizes, 1))
        table.turn(events[position : position + size])
        position += size
    return g.state(table) if events else Receipt()


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[list[Event], list[Event]]:
    """Three topics, and two orders of their events that keep each topic's order."""
    queues = draw(topics)
    orders = []
    for _ in range(2):
        left = [list(queue) for queue in queues]
        order: list[Event] = []
        while any(left):
            queue = draw(st.sampled_from([queue for queue in left if queue]))
            order.append(queue.pop(0))
        orders.append(order)
    return orders[0], orders[1]


@given(interleavings())
def test_every_interleaving_of_the_topics_gives_one_record(orders: tuple[list[Event], list[Event]]) -> None:
    one, other = orders
    assert digest(fold(one)) == digest(fold(other))


@given(topics, st.lists(st.integers(1, 4), max_size=14))
def test_how_events_are_cut_into_turns_does_not_matter(queues: tuple[list[Event], ...], turns: list[int]) -> None:
    events = [event for queue in queues for event in queue]
    assert digest(fold(events)) == digest(fold(events, turns))


@given(topics)
def test_every_event_twice_gives_the_same_record(queues: tuple[list[Event], ...]) -> None:
    """Redelivery of a topic from any point replays a suffix; twice in a row is the hardest of these for one event."""
    once = [event for queue in queues for event in queue]
    twice = [event for event in once for _ in range(2)]
    assert digest(fold(once)) == digest(fold(twice))


@given(topics)
def test_a_topic_read_again_from_its_start_gives_the_same_record(queues: tuple[list[Event], ...]) -> None:
    requests_, mixed, completions_ = queues
    # Nobody releases or expires a lease that was not claimed before, in the same topic.
    claims_ = [
        event
        for index, event in enumerate(mixed)
        if isinstance(event, BatchClaimed)
        or any(
            isinstance(e, BatchClaimed) and e.lease == event.lease and e.members[0].n == event.members[0].n for e in mixed[:index]
        )
    ]
    values = [event for event in completions_ if isinstance(event, AttemptEnded) and isinstance(event.outcome, Value)]
    once = [*requests_, *claims_, *values]
    again = [*requests_, *requests_, *claims_, *claims_, *values, *values]
    assert digest(fold(once)) == digest(fold(again))


@given(topics)
def test_R9_the_first_value_of_an_attempt_stays_and_terminal_stays_terminal(queues: tuple[list[Event], ...]) -> None:
    table = g.receipts()
    first: dict[int, str | None] = {}
    current_epoch = -1
    for event in (event for group in itertools.zip_longest(*queues) for event in group if event is not None):
        table.turn([event])
        receipt = g.state(table)
        for n, attempt in receipt.attempts.items():
            if attempt.value is not None:
                assert first.setdefault(n, attempt.value) == attempt.value
        if receipt.current is not None:
            assert receipt.current[0] >= current_epoch
            current_epoch = receipt.current[0]


@given(topics)
def test_S5_nothing_that_was_paid_for_is_lost(queues: tuple[list[Event], ...]) -> None:
    """Every value that ever arrived is the attempt's value or is kept aside (S5)."""
    import hashlib

    table = g.receipts()
    events = [event for queue in queues for event in queue]
    table.turn(events)
    receipt = g.state(table) if events else Receipt()
    kept = {(n, attempt.value) for n, attempt in receipt.attempts.items()} | set(receipt.aside)
    for event in events:
        if isinstance(event, AttemptEnded) and isinstance(event.outcome, Value):
            assert (event.n, hashlib.blake2b(event.outcome.output, digest_size=16).hexdigest()) in kept


@given(topics)
def test_R3_a_lane_never_needs_an_attempt_while_one_is_live(queues: tuple[list[Event], ...]) -> None:
    receipt = fold([event for queue in queues for event in queue])
    need = protocol.need(receipt, receipt.waiters.values(), protocol.standing(receipt))
    if need is not None:
        assert not protocol.standing(receipt).live
        known = [n for n, attempt in receipt.attempts.items() if attempt.lease is not None or attempt.out is Out.VALUE]
        assert need.n == next(n for n in itertools.count(protocol.standing(receipt).n + 1) if n not in known)


@given(topics)
@settings(max_examples=300)
def test_K5_no_new_operation_while_a_call_under_the_last_may_still_be_billed(queues: tuple[list[Event], ...]) -> None:
    """The operation rule (K5): a new key only once every unreleased attempt under the old one has a definite answer."""
    receipt = fold([event for queue in queues for event in queue])
    for epoch in range(3):
        n = protocol.standing(receipt).n + 1
        op = protocol.operation(receipt, epoch, n)
        if op == n:
            ours = [a for a in receipt.attempts.values() if a.lease and a.epoch == epoch and not a.released]
            if ours:
                last = max((number for number, a in receipt.attempts.items() if a.lease and a.epoch == epoch and not a.released))
                used = receipt.attempts[last].op
                assert all(
                    protocol.verdict(a, Repeat.WITH_KEY) in (Verdict.OK, Verdict.FAILED, Verdict.RETRY, Verdict.AGAIN)
                    for a in ours
                    if a.op == used
                )


@given(topics)
def test_every_waiter_is_told_what_the_record_says(queues: tuple[list[Event], ...]) -> None:
    """After a turn no waiter is left that could be told something and was not."""
    receipt = fold([event for queue in queues for event in queue])
    for waiter in receipt.waiters.values():
        if not protocol.stays(waiter):
            continue
        what, _ = protocol.told(receipt, waiter, protocol.standing(receipt))
        if what is Told.COMPLETED:
            raise AssertionError("a completed waiter stayed")
        if what is not Told.WAITS:
            assert waiter.flag in (Flag.UNKNOWN, Flag.FAILED)


def test_case_H6_all_orders_of_one_receipts_events_give_one_final_state() -> None:
    """case_H6: request, claim, heartbeat, completion, late heartbeat and second completion in all 720 orders, then doubled."""
    from schemas.events import LeasesRenewed

    events: list[Event] = [
        g.request(),
        g.claim(1, "L"),
        LeasesRenewed(("L",)),
        g.value(1),
        LeasesRenewed(("L",)),
        g.value(1),
    ]
    seen = set()
    for order in itertools.permutations(range(6)):
        for copies in (1, 2):
            receipt = fold([events[index] for index in order for _ in range(copies)])
            assert receipt.current == (0, 1)
            assert receipt.waiters["c1"].flag is Flag.DONE
            seen.add(repr(digest(receipt)))
    assert len(seen) == 1


@given(topics)
def test_an_undisturbed_receipt_is_one_whose_waiters_all_wait_for_the_call_that_lives(queues: tuple[list[Event], ...]) -> None:
    """The short way of the engine says no more than the rules do when they are asked for each waiter."""
    table = g.receipts()
    for event in [event for queue in queues for event in queue]:
        table.given(event)
        receipt = g.state(table)
        stands = protocol.standing(receipt)
        staying = [waiter for waiter in receipt.waiters.values() if protocol.stays(waiter)]
        if protocol.undisturbed(receipt, stands):
            assert all(protocol.told(receipt, waiter, stands)[0] is Told.WAITS for waiter in staying)
            assert protocol.need(receipt, staying, stands) is None
            assert protocol.grantable(receipt, stands.n, staying, stands) == bool(protocol.waiting(receipt, staying, stands))
