"""The inbox: precedence, limits in bytes, and when a topic is to be fetched no more and again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import CountersDue, RecoveryEnded
from streams.kafka.inbox import Delivery, Inbox

FIRST, SECOND, THIRD = TOPICS = ("row-control", "tool-results", "row-work")
#: What a message costs of a turn's room beyond its value.
OVERHEAD = 64


def message(offset: int, topic: str = FIRST, *, size: int | None = 10) -> Delivery:
    return Delivery(topic, offset, None, None if size is None else b"x" * size)


def offsets(taken: Sequence[Delivery]) -> list[int]:
    return [delivery.offset for delivery in taken]


class Flow:
    """An inbox, and what it said about its topics."""

    def __init__(self, *, bytes_max: int = 100, turn_bytes_max: int = 1 << 20) -> None:
        self.said: list[str] = []
        self.inbox = Inbox(
            TOPICS,
            bytes_max=bytes_max,
            turn_bytes_max=turn_bytes_max,
            on_full=lambda topic: self.said.append(f"{topic} is full"),
            on_drained=lambda topic: self.said.append(f"{topic} is drained"),
        )

    def given(self, *deliveries: Delivery) -> Inbox:
        for delivery in deliveries:
            self.inbox.deliver(delivery)
        return self.inbox


# --- precedence ---------------------------------------------------------------------------------------------


def test_a_topic_of_precedence_goes_first_and_each_in_its_own_order() -> None:
    inbox = Flow().given(message(7, THIRD), message(1, SECOND), message(8, THIRD), message(3), message(2, SECOND), message(4))
    assert inbox.depth == 6
    assert offsets(inbox.take()[1]) == [3, 4, 1, 2, 7, 8]
    assert inbox.depth == 0


def test_commands_go_ahead_of_all_messages_and_are_taken_all_at_once() -> None:
    inbox = Flow(turn_bytes_max=1).given(message(1), message(2))
    judgements = [RecoveryEnded(), *(CountersDue(f"run-{number}") for number in range(50))]
    for judgement in judgements:
        inbox.command(judgement)
    commands, taken = inbox.take()
    assert commands == judgements
    assert offsets(taken) == [1]
    assert inbox.take() == ([], [message(2)])


def test_what_a_turn_leaves_comes_first_the_next_time_and_in_its_order() -> None:
    """S2: the record of a turn does not hold all that its inbox gave it."""
    flow = Flow(bytes_max=25)
    inbox = flow.given(message(1), message(2), message(1, THIRD))
    inbox.command(CountersDue("a"))
    inbox.command(CountersDue("b"))
    commands, taken = inbox.take()
    inbox.command(CountersDue("c"))
    flow.given(message(3))
    inbox.give_back(commands[1:], taken[1:])
    assert inbox.depth == 3
    assert flow.said == []
    flow.given(message(4))
    assert flow.said == [f"{FIRST} is full"]
    commands, taken = inbox.take()
    assert commands == [CountersDue("b"), CountersDue("c")]
    assert taken == [message(2), message(3), message(4), message(1, THIRD)]
    assert flow.said[1:] == [f"{FIRST} is drained"]


async def test_what_a_turn_leaves_wakes_the_next() -> None:
    inbox = Flow().given(message(1))
    _, taken = inbox.take()
    waiting = asyncio.create_task(inbox.wait())
    inbox.give_back([], taken)
    await asyncio.wait_for(waiting, 5)
    assert inbox.take() == ([], [message(1)])


def test_an_empty_inbox_gives_nothing() -> None:
    assert Flow().inbox.take() == ([], [])


def test_a_topic_that_is_not_the_agents_is_a_defect() -> None:
    with pytest.raises(KeyError, match="elsewhere"):
        Flow().given(message(1, "elsewhere"))


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn_bytes_max", [0, 1, 50])
def test_a_message_larger_than_a_turn_is_taken_alone(turn_bytes_max: int) -> None:
    inbox = Flow(turn_bytes_max=turn_bytes_max).given(message(1, size=1_000), message(2, size=1_000), message(3, SECOND, size=1))
    assert [offsets(inbox.take()[1]) for _ in range(4)] == [[1], [2], [3], []]


def test_a_turn_takes_messages_until_its_room_is_used_up_over_all_topics() -> None:
    inbox = Flow(turn_bytes_max=3 * (100 + OVERHEAD)).given(
        *(message(number, SECOND, size=100) for number in range(2)), *(message(number, THIRD, size=100) for number in range(10, 13))
    )
    assert offsets(inbox.take()[1]) == [0, 1, 10]
    assert offsets(inbox.take()[1]) == [11, 12]


def test_messages_without_a_value_take_room_too() -> None:
    inbox = Flow(turn_bytes_max=10 * OVERHEAD).given(*(message(number, size=None) for number in range(25)))
    assert [len(inbox.take()[1]) for _ in range(4)] == [10, 10, 5, 0]


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.none() | st.integers(0, 300), st.booleans()), max_size=40),
    st.integers(0, 500),
)
def test_every_message_is_taken_once_in_order_within_the_limit(
    arrivals: list[tuple[str, int | None, bool]], turn_bytes_max: int
) -> None:
    flow = Flow(turn_bytes_max=turn_bytes_max)
    turns: list[list[Delivery]] = []
    sent = [message(offset, topic, size=size) for offset, (topic, size, _) in enumerate(arrivals)]
    for delivery, (_, _, a_turn_follows) in zip(sent, arrivals, strict=True):
        flow.inbox.deliver(delivery)
        if a_turn_follows:
            turns.append(flow.inbox.take()[1])
    while flow.inbox.depth:
        turns.append(flow.inbox.take()[1])
        assert turns[-1]
    for turn in turns:
        assert turn
        assert [TOPICS.index(delivery.topic) for delivery in turn] == sorted(TOPICS.index(delivery.topic) for delivery in turn)
        assert len(turn) == 1 or sum(delivery.size + OVERHEAD for delivery in turn[:-1]) < turn_bytes_max
    taken = [delivery for turn in turns for delivery in turn]
    for topic in TOPICS:
        assert [delivery for delivery in taken if delivery.topic == topic] == [one for one in sent if one.topic == topic]


# --- full and drained ---------------------------------------------------------------------------------------


def test_a_topic_is_full_beyond_its_bytes_and_says_so_with_every_message() -> None:
    """Faust resumes a partition by itself when its own queue has drained."""
    flow = Flow(bytes_max=100)
    flow.given(message(1, size=60), message(2, size=40))
    assert flow.said == []
    flow.given(message(3, size=1), message(4, size=0))
    assert flow.said == [f"{FIRST} is full"] * 2


def test_each_topic_has_its_own_bytes() -> None:
    flow = Flow(bytes_max=100)
    flow.given(*(message(1, topic, size=100) for topic in TOPICS))
    assert flow.said == []
    flow.given(message(2, SECOND, size=1))
    assert flow.said == [f"{SECOND} is full"]


def test_a_full_topic_is_drained_once_at_half_of_its_bytes() -> None:
    flow = Flow(bytes_max=100, turn_bytes_max=1)
    flow.given(message(1, size=49), message(2, size=2), message(3, size=50), message(4, size=0))
    flow.said.clear()
    for said in ([], [f"{FIRST} is drained"], [], []):
        flow.inbox.take()
        assert flow.said == said
        flow.said.clear()


def test_a_topic_that_was_not_full_is_never_called_drained() -> None:
    flow = Flow(bytes_max=100)
    flow.given(message(1, size=100)).take()
    assert flow.said == []


def test_a_topic_that_is_full_again_is_drained_again() -> None:
    flow = Flow(bytes_max=100)
    for offset in range(2):
        flow.given(message(offset, size=101)).take()
    assert flow.said == [f"{FIRST} is full", f"{FIRST} is drained"] * 2


# --- waiting ------------------------------------------------------------------------------------------------


async def waits(inbox: Inbox) -> bool:
    """Whether ``wait`` is still waiting after the event loop has given it its chance."""
    waiting = asyncio.create_task(inbox.wait())
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    done = waiting.done()
    await asyncio.wait([waiting])
    return not done


async def test_an_inbox_waits_until_a_message_or_a_command_comes() -> None:
    inbox = Flow().inbox
    assert await waits(inbox)
    waiting = asyncio.create_task(inbox.wait())
    inbox.deliver(message(1))
    await asyncio.wait_for(waiting, 5)
    inbox.take()
    assert await waits(inbox)
    waiting = asyncio.create_task(inbox.wait())
    inbox.command(RecoveryEnded())
    await asyncio.wait_for(waiting, 5)
    inbox.take()
    assert await waits(inbox)


async def test_an_inbox_does_not_wait_while_something_is_left() -> None:
    inbox = Flow(turn_bytes_max=1).given(message(1), message(2))
    assert not await waits(inbox)
    inbox.take()
    assert not await waits(inbox)
    inbox.take()
    assert await waits(inbox)
