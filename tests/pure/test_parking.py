"""What a worker cannot read goes to ``dead-letters``, and nothing that it can read goes with it (case_H3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from schemas import envelope
from schemas.commands import Parked, PartlyParked
from schemas.events import BatchClaimed, ClaimedMember, Event, Probed
from schemas.states import RECEIPT, Receipt, Segment, TurnRecord
from streams.agents.receipts import receipts_agent
from streams.errors import StateError
from streams.kafka.inbox import Delivery
from streams.kafka.producers import MESSAGE_BYTES_MAX
from streams.parking import HEADERS_BYTES_MAX, dead_letter
from streams.replaying.refold import Source, events_of
from streams.turn import decode_judged
from tests.support import given as g
from tests.support.line import Line

COMPLETIONS = "receipt-completions"


class AttemptWeighed(Event, frozen=True):
    """An event that only a newer program knows."""

    receipt: str
    grams: int


def message(*events: Event) -> bytes:
    return msgspec.msgpack.encode(events)


def folded(*completions: bytes, topic: str = COMPLETIONS) -> Line:
    """A receipt that was asked for and claimed, and then these messages, each in a turn of its own."""
    line = Line(receipts_agent())
    asked = [line.put_events("tool-requests", g.request("c1"), g.request("c2"))]
    claimed = [line.put_events("receipt-claims", g.claim(1, "L1"))]
    turns: list[tuple[list[Event], list[Delivery]]] = [([], asked), ([], claimed)]
    turns += [([], [line.put(topic, value, headers=envelope.headers_of(topic))]) for value in completions]
    asyncio.run(line.owner(*turns))
    return line


def receipt_of(line: Line) -> Receipt:
    receipt = line.refolded().records.get(RECEIPT + g.R.encode(), Receipt)
    assert receipt is not None
    return receipt


def said(line: Line) -> list[Event]:
    """What the journal says of messages that were parked."""
    judged = [decode_judged(raw) for record in line.broker.journal for raw in record.judged]
    return [event for event in judged if isinstance(event, Parked | PartlyParked)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_case_H3_an_event_of_an_unknown_type_does_not_take_a_paid_answer_with_it(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    """case_H3: one event of a newer program parked all that travelled in its message, up to 500 paid answers among it.

    Now the message is read element by element: what can be read is folded, and a replay folds the same.
    """
    events: list[Event] = [Probed("p"), g.value(1, '"paid"')]
    events.insert(place, AttemptWeighed("r", 7))
    line = folded(message(*events))
    assert receipt_of(line).current is not None
    assert said(line) == [PartlyParked(COMPLETIONS, 0, (place,))]
    ((key, value, headers),) = line.broker.letters
    assert (key, value) == (COMPLETIONS.encode(), message(*events))
    assert headers["elements"] == str(place).encode()
    assert headers["source"] == f"{COMPLETIONS}/0@0".encode()
    assert headers["schema"] == f"{COMPLETIONS}/1".encode()
    assert b"AttemptWeighed" in headers["error"]
    assert f"parked elements {place} of {COMPLETIONS}/0@0" in caplog.text
    assert "AttemptWeighed" in caplog.text
    line.check()


def test_case_H3_R1_a_claim_without_a_lease_is_parked_and_its_neighbours_are_not() -> None:
    """case_H3, R1: whatever the reason why an element is no event, the others count."""
    unleased = BatchClaimed("org/p", "p.t", "", "", 1, (ClaimedMember(g.R, 2, 0, 1),))
    line = folded(message(unleased, AttemptWeighed("r", 7), g.release(1, "L1")), topic="receipt-claims")
    assert receipt_of(line).attempts[1].released
    assert 2 not in receipt_of(line).attempts
    assert said(line) == [PartlyParked("receipt-claims", 1, (0, 1))]
    assert line.broker.letters[0][2]["elements"] == b"0,1"
    line.check()


@pytest.mark.parametrize(
    "value",
    [
        message(AttemptWeighed("r", 7)),
        b"no envelope",
        message(g.value(1))[:-1],
        msgspec.msgpack.encode([Probed("p"), *[0] * (envelope.EVENTS_MAX + 1)]),
    ],
    ids=["nothing readable", "junk", "cut off", "far from ours"],
)
def test_case_H3_a_message_of_which_nothing_can_be_read_is_parked_as_a_whole(value: bytes) -> None:
    """case_H3: and what follows it is folded."""
    line = folded(value, message(g.value(1)))
    assert said(line) == [Parked(COMPLETIONS, 0)]
    ((_, letter, headers),) = line.broker.letters
    assert letter == value
    assert "elements" not in headers
    assert receipt_of(line).current is not None
    line.check()


def test_case_H3_a_newer_version_of_a_topic_is_not_acted_upon_in_part() -> None:
    """case_H3: what its events mean is not known here, though they look as those of today."""
    line = Line(receipts_agent())
    newer = [("schema", f"{COMPLETIONS}/{envelope.VERSION + 1}".encode())]
    asyncio.run(line.owner(([], [line.put(COMPLETIONS, message(g.value(1), AttemptWeighed("r", 7)), headers=newer)])))
    assert said(line) == [Parked(COMPLETIONS, 0)]
    assert not list(line.store.scan(RECEIPT))
    line.check()


def replayed(places: tuple[int, ...], *events: Event) -> list[Event]:
    record = TurnRecord(
        1,
        1,
        segments=(Segment(COMPLETIONS, 4, 4),),
        judged=(msgspec.msgpack.encode(PartlyParked(COMPLETIONS, 4, places)),),
    )
    return events_of(
        record, [Source(COMPLETIONS, 4, message(*events), envelope.headers_of(COMPLETIONS))], frozenset(), "receipts/0@1"
    )


def test_N6_a_program_that_knows_more_leaves_out_what_was_left_out() -> None:
    """N6: after an upgrade the parked element can be read, yet nobody folded it on its day."""
    assert replayed((1,), g.value(1), g.value(2), Probed("p")) == [g.value(1), Probed("p")]


def test_N6_a_replay_that_cannot_read_what_was_folded_is_refused_by_name() -> None:
    with pytest.raises(StateError, match=r"receipts/0@1 folded a message that cannot be read, at offset 4: .*AttemptWeighed"):
        replayed((0,), g.value(1), AttemptWeighed("r", 7))


# --- the letter ---------------------------------------------------------------------------------------------


def size_of(letter: tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]) -> int:
    key, value, headers = letter
    return len(key or b"") + len(value or b"") + sum(len(name) + len(said) for name, said in headers)


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX - 120, MESSAGE_BYTES_MAX - 700])
def test_case_H3_the_letter_of_the_largest_message_fits_its_topic(size: int) -> None:
    """case_H3: a topic took an unreadable request of 9 MiB, and refused its letter, which is larger by its headers: the end of any
    worker that met the message.
    """
    delivery = Delivery("run-requests", 7, b"run", b"x" * size, [("ce_type", b"t" * 500)])
    letter = dead_letter(delivery, 3, "no JSON", 1_000)
    headers = dict(letter[2])
    assert MESSAGE_BYTES_MAX - 4_096 < size_of(letter) <= MESSAGE_BYTES_MAX - 256
    assert headers["cut"] == f"{size:,} bytes".encode()
    assert headers["ce_type"] == b"t" * 500
    assert headers["source"] == b"run-requests/3@7"


def test_a_letter_that_fits_is_what_came() -> None:
    delivery = Delivery("run-requests", 7, b"run", b"x" * 8_000_000, [("ce_type", b"t")])
    _, value, headers = dead_letter(delivery, 3, "no JSON", 1_000)
    assert value == delivery.value
    assert [name for name, _ in headers] == ["source", "error", "at_ms", "ce_type"]


def test_a_letter_leaves_out_headers_that_leave_no_room_and_says_so() -> None:
    """The topic counts headers, too."""
    delivery = Delivery("run-requests", 7, b"run", b"x" * 10, [("a", b"y" * HEADERS_BYTES_MAX), ("b", b"")])
    _, value, headers = dead_letter(delivery, 3, "e" * 100_000, 1_000)
    assert value == delivery.value
    assert dict(headers)["cut_headers"].startswith(b"2 headers of 65,")
    assert [name for name, _ in headers] == ["source", "error", "at_ms", "cut_headers"]
    assert len(dict(headers)["error"]) == 2_000
