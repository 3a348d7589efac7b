"""Bulk envelopes: bounded, in order, the same bytes for ever; what is not one is named."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import envelope
from schemas.envelope import BYTES_MAX, EVENT_BYTES_MAX, EVENTS_MAX, EnvelopeError, EventTooLarge
from schemas.events import (
    EVENTS_BY_TOPIC,
    AddedRow,
    Ambiguous,
    Answer,
    AttemptEnded,
    BatchClaimed,
    CallCounts,
    CallsAnswered,
    CallWithdrawn,
    ClaimedMember,
    CompiledColumn,
    CompiledPlay,
    Event,
    Failed,
    Fault,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    Mark,
    Mode,
    Outcome,
    Probed,
    ReceiptResolved,
    Repeat,
    Retry,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosing,
    RunOpened,
    ToolRequested,
    Value,
)

MEMBER = ClaimedMember("r", 1, 2, 3)
FAULT = Fault("code", "words", True)
COLUMN = CompiledColumn("c", "p.t", "o/p", "1", "s", Repeat.WITH_KEY, "{}", ("a",), "x.y", "d")
EXAMPLES: dict[str, list[Event]] = {
    "row-work": [
        RunOpened("run", "org", CompiledPlay("p", "d", "v", ("k",), (COLUMN,)), True, False),
        RowsAdded("run", (AddedRow(0, "k", b"{}"),)),
    ],
    "row-control": [RunCancelled("run"), RunClosing("run")],
    "tool-requests": [
        ToolRequested("r", "c", "run", 1, "o/p", "p.t", Repeat.NEVER, b"{}", Mode.FULL_REFRESH, "f"),
        CallWithdrawn("r", "c"),
    ],
    "lane-control": [Probed("m")],
    "receipt-claims": [
        BatchClaimed("o/p", "p.t", "b", "L", 1, (MEMBER,), (MEMBER,)),
        LeaseReleased("L", (MEMBER,)),
        LeaseExpired("L", (MEMBER,)),
        Probed("m"),
    ],
    "lease-heartbeats": [LeasesRenewed(("L",)), Probed("m")],
    "receipt-completions": [
        *(
            AttemptEnded("r", 1, 0, "L", outcome)
            for outcome in (Value(b"1"), Failed(FAULT), Retry(FAULT, 5), Ambiguous(FAULT, 5, True))
        ),
        ReceiptResolved("r", 1, 0, b"1", "who", "why"),
        Probed("m"),
    ],
    "tool-results": [CallsAnswered("r", 1, Answer.COMPLETED, (("c", Mark.CACHE),), b"1", FAULT)],
    "row-progress": [RowsCounted("run", 1, 2, RowCounts(1, 2, 3, 4, 5, 6, 7), CallCounts(1, 2, 3), True, ((0, "c", "m"),))],
}
#: What stands in topics that were written by version 1. An event is never edited: a change here needs a new version and an upcaster.
GOLDEN = {
    "row-work": (
        "9296a952756e4f70656e6564a372756ea36f726795a170a164a17691a16b919aa163a3702e74a36f2f70a131a173a8776974682d6b6579"
        "a27b7d91a161a3782e79a164c3c293a9526f77734164646564a372756e919300a16bc4027b7d"
    ),
    "row-control": "9292ac52756e43616e63656c6c6564a372756e92aa52756e436c6f73696e67a372756e",
    "tool-requests": (
        "929bad546f6f6c526571756573746564a172a163a372756e01a36f2f70a3702e74a56e65766572c4027b7d02a16693ad43616c6c576974"
        "68647261776ea172a163"
    ),
    "lane-control": "9192a650726f626564a16d",
    "receipt-claims": (
        "9498ac4261746368436c61696d6564a36f2f70a3702e74a162a14c019194a1720102039194a17201020393ad4c6561736552656c656173"
        "6564a14c9194a17201020393ac4c6561736545787069726564a14c9194a17201020392a650726f626564a16d"
    ),
    "lease-heartbeats": "9292ad4c656173657352656e6577656491a14c92a650726f626564a16d",
    "receipt-completions": (
        "9696ac417474656d7074456e646564a1720100a14c92a576616c7565c4013196ac417474656d7074456e646564a1720100a14c92a66661"
        "696c656493a4636f6465a5776f726473c396ac417474656d7074456e646564a1720100a14c93a5726574727993a4636f6465a5776f7264"
        "73c30596ac417474656d7074456e646564a1720100a14c94a9616d626967756f757393a4636f6465a5776f726473c305c397af52656365"
        "6970745265736f6c766564a1720100c40131a377686fa377687992a650726f626564a16d"
    ),
    "tool-results": "9197ad43616c6c73416e737765726564a17201a9636f6d706c657465649192a163a56361636865c4013193a4636f6465a5776f726473c3",
    "row-progress": "9198ab526f7773436f756e746564a372756e0102970102030405060793010203c3919300a163a16d",
}


def test_there_is_an_example_of_every_event_of_every_topic() -> None:
    for topic, types in EVENTS_BY_TOPIC.items():
        assert {type(event) for event in EXAMPLES[topic]} == set(types), topic
    ends = [event.outcome for event in EXAMPLES["receipt-completions"] if isinstance(event, AttemptEnded)]
    assert {type(outcome) for outcome in ends} == set(get_args(Outcome))


@pytest.mark.parametrize("topic", EVENTS_BY_TOPIC)
def test_events_come_back_as_they_were(topic: str) -> None:
    (value,) = envelope.pack(EXAMPLES[topic])
    assert value == envelope.encode(EXAMPLES[topic])
    assert envelope.unpack(topic, value, envelope.headers_of(topic)) == EXAMPLES[topic]


@pytest.mark.parametrize("topic", EVENTS_BY_TOPIC)
def test_the_bytes_of_version_1_stay_what_they_are(topic: str) -> None:
    assert envelope.VERSION == 1
    assert envelope.encode(EXAMPLES[topic]).hex() == GOLDEN[topic]
    assert envelope.unpack(topic, bytes.fromhex(GOLDEN[topic]), envelope.headers_of(topic)) == EXAMPLES[topic]


@settings(max_examples=25)
@given(st.lists(st.sampled_from((1, 1_000, 300_000, BYTES_MAX + 1)), max_size=20), st.integers(0, 2 * EVENTS_MAX))
def test_envelopes_are_bounded_and_keep_the_order(sizes: list[int], small: int) -> None:
    events = [AttemptEnded(str(n), n, 0, "L", Value(b"x" * size)) for n, size in enumerate(sizes + [1] * small)]
    values = list(envelope.pack(events))
    headers = envelope.headers_of("receipt-completions")
    cut = [envelope.unpack("receipt-completions", value, headers) for value in values]
    assert [event for part in cut for event in part] == events
    for value, part in zip(values, cut, strict=True):
        assert 1 <= len(part) <= EVENTS_MAX
        assert len(value) <= BYTES_MAX + 8 or len(part) == 1


def test_an_event_that_no_message_can_carry_is_named_with_its_size() -> None:
    event = AttemptEnded("r", 1, 0, "L", Value(b"x" * EVENT_BYTES_MAX))
    with pytest.raises(EventTooLarge, match=r"one AttemptEnded has 8,388,6\d\d bytes; a message carries at most 8,388,608"):
        list(envelope.pack([event]))


@pytest.mark.parametrize(
    ("topic", "value", "headers", "words"),
    [
        ("row-work", b"\x90", [], "expected schema 'row-work/1', found None"),
        ("row-work", b"\x90", [("schema", b"row-work/2")], "found 'row-work/2'"),
        ("row-work", b"\x90", [("schema", b"tool-results/1")], "found 'tool-results/1'"),
        ("row-work", b"\x90", [("schema", b"\xff")], "found"),
        ("row-work", None, [("schema", b"row-work/1")], "without a value"),
        ("row-work", b"", [("schema", b"row-work/1")], "not an envelope"),
        ("row-work", b"{}", [("schema", b"row-work/1")], "not an envelope"),
        ("row-work", envelope.encode([Probed("m")]), [("schema", b"row-work/1")], "not an envelope"),
    ],
)
def test_what_is_no_envelope_of_this_version_is_refused_with_what_was_found(
    topic: str, value: bytes | None, headers: list[tuple[str, bytes]], words: str
) -> None:
    with pytest.raises(EnvelopeError, match=words) as caught:
        envelope.unpack(topic, value, headers)
    assert str(caught.value).startswith(f"{topic}: ")


@given(st.binary(max_size=60))
def test_any_bytes_are_an_envelope_or_refused(value: bytes) -> None:
    try:
        envelope.unpack("receipt-claims", value, envelope.headers_of("receipt-claims"))
    except EnvelopeError as error:
        assert str(error).startswith("receipt-claims: ")
