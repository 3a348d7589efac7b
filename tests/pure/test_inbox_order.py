"""Handing over: whatever way messages come, they are taken in the order of their offsets, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.inbox import Delivery, Inbox

TOPIC = "tool-requests"


class Fetched:
    """The fetched copy of a message, which must be acknowledged exactly once."""

    def __init__(self) -> None:
        self.acks = 0

    def ack(self) -> None:
        self.acks += 1


#: A partition's log: runs of messages, each followed by markers of transactions (offsets that hold no message).
logs = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=8)


@given(logs, st.data())
def test_every_message_is_taken_once_and_in_order_whoever_brings_it(log: list[tuple[int, int]], data: st.DataObject) -> None:
    messages: list[int] = []
    end = 0
    for count, markers in log:
        messages += range(end, end + count)
        end += count + markers
    folded = data.draw(st.sampled_from([0, *messages]), label="folded before")
    inbox = Inbox((TOPIC,), bytes_max=1 << 20, turn_bytes_max=1 << 20)
    inbox.begin({TOPIC: folded} if folded else {})
    taken: list[int] = []
    copies: list[Fetched] = []
    fetcher = folded
    while fetcher < end:
        action = data.draw(st.sampled_from(["fetch", "hand over", "turn"]))
        if action == "hand over":
            offset = data.draw(st.sampled_from(messages))
            inbox.hand_over(Delivery(TOPIC, offset, None, b""))
        elif action == "turn":
            taken += [delivery.offset for delivery in inbox.take()[1]]
        else:
            waiting = [offset for offset in messages if offset >= fetcher]
            some = waiting[: data.draw(st.integers(1, 3))]
            if not some:
                break
            # The fetcher stands behind its last message, and may have passed the markers that follow it.
            following = next((offset for offset in messages if offset > some[-1]), end)
            fetcher = data.draw(st.sampled_from([some[-1] + 1, following]))
            for offset in some:
                copies.append(Fetched())
                inbox.deliver(Delivery(TOPIC, offset, None, b"", (), copies[-1], fetcher if offset == some[-1] else 0))
    taken += [delivery.offset for delivery in inbox.take()[1]]
    assert taken == [offset for offset in messages if offset >= folded]
    assert all(copy.acks <= 1 for copy in copies)


def test_a_message_is_handed_over_only_where_it_is_proven_to_be_the_next() -> None:
    inbox = Inbox((TOPIC,), bytes_max=1 << 20, turn_bytes_max=1 << 20)
    assert not inbox.hand_over(Delivery(TOPIC, 0, None, b""))  # nothing is known of the topic yet
    inbox.begin({TOPIC: 5})
    assert not inbox.hand_over(Delivery(TOPIC, 6, None, b""))  # 5 may be somebody else's message
    assert inbox.hand_over(Delivery(TOPIC, 5, None, b"mine"))
    assert not inbox.hand_over(Delivery(TOPIC, 5, None, b"mine"))
    assert inbox.hand_over(Delivery(TOPIC, 6, None, b"next"))
    copy = Fetched()
    inbox.deliver(Delivery(TOPIC, 5, None, b"mine", (), copy, 9))  # fetched with the markers behind it
    assert copy.acks == 1
    assert inbox.hand_over(Delivery(TOPIC, 9, None, b"after the markers"))
    assert [delivery.offset for delivery in inbox.take()[1]] == [5, 6, 9]


def test_nothing_is_handed_over_to_a_full_inbox() -> None:
    inbox = Inbox((TOPIC,), bytes_max=10, turn_bytes_max=1 << 20)
    inbox.begin({TOPIC: 5})
    inbox.deliver(Delivery(TOPIC, 5, None, b"x" * 11))
    assert not inbox.hand_over(Delivery(TOPIC, 6, None, b""))
    assert [delivery.offset for delivery in inbox.take()[1]] == [5]
