"""Events as bytes: envelopes keep what they carry, within their limits."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import msgspec
import msgspec.inspect as shapes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import envelope
from schemas.envelope import BYTES_MAX, EVENT_BYTES_MAX, EVENTS_MAX, EnvelopeError, EventTooLarge, headers_of, pack, unpack
from schemas.events import (
    EVENTS_BY_TOPIC,
    Event,
    Probed,
    RunCancelled,
)


def values_of(shape: shapes.Type) -> st.SearchStrategy[Any]:
    """Any value of a type, by what msgspec knows of it; a type that is not listed here fails by name."""
    match shape:
        case shapes.BoolType():
            return st.booleans()
        case shapes.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case shapes.StrType(min_length=least):
            return st.text(min_size=least or 0, max_size=12)
        case shapes.BytesType():
            return st.binary(max_size=40)
        case shapes.NoneType():
            return st.none()
        case shapes.EnumType(cls=kind):
            return st.sampled_from(list(kind))
        case shapes.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=3).map(tuple)
        case shapes.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case shapes.UnionType(types=members):
            return st.one_of(*map(values_of, members))
        case shapes.StructType(cls=kind, fields=fields):
            return st.fixed_dictionaries({field.name: values_of(field.type) for field in fields}).map(lambda given: kind(**given))
    raise NotImplementedError(f"no values of {shape}")


EVENTS_OF = {
    topic: st.lists(st.one_of(*(values_of(shapes.type_info(kind)) for kind in kinds)), max_size=8)
    for topic, kinds in EVENTS_BY_TOPIC.items()
}


def event_of(size: int) -> RunCancelled:
    """An event whose encoded form has exactly ``size`` bytes."""
    bare = RunCancelled("x" * size)
    event = RunCancelled("x" * (2 * size - len(msgspec.msgpack.encode(bare))))
    assert len(msgspec.msgpack.encode(event)) == size
    return event


def sizes_of(found: list[Event]) -> list[int]:
    return [len(msgspec.msgpack.encode(event)) for event in found]


@pytest.mark.parametrize("topic", EVENTS_BY_TOPIC)
@settings(max_examples=20)
@given(data=st.data())
def test_events_of_every_topic_arrive_as_they_were_sent(topic: str, data: st.DataObject) -> None:
    sent = data.draw(EVENTS_OF[topic])
    assert [event for value in pack(sent) for event in unpack(topic, value, headers_of(topic))] == sent
    assert unpack(topic, envelope.encode(sent), headers_of(topic)) == sent


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([30, 2_000, 300_000, BYTES_MAX // 2, BYTES_MAX - 30, BYTES_MAX, BYTES_MAX + 1, 2 * BYTES_MAX]),
            st.sampled_from([1, 1, 2, 400, EVENTS_MAX, EVENTS_MAX + 1]),
        ).map(lambda run: (run[0], run[1] if run[0] <= 2_000 else min(run[1], 2))),
        max_size=5,
    )
)
def test_S2_envelopes_keep_order_and_limits_and_are_no_more_than_needed(runs: list[tuple[int, int]]) -> None:
    sent = [event_of(size) for size, count in runs for _ in range(count)]
    found = [unpack("row-control", value, headers_of("row-control")) for value in pack(iter(sent))]
    assert [event for one in found for event in one] == sent
    for one in found:
        assert 1 <= len(one) <= EVENTS_MAX
        assert sum(sizes_of(one)) <= BYTES_MAX or len(one) == 1
    for one, following in pairwise(found):
        assert len(one) == EVENTS_MAX or sum(sizes_of(one)) + sizes_of(following)[0] > BYTES_MAX


def test_S2_five_hundred_events_share_an_envelope_and_one_more_begins_the_next() -> None:
    assert len(list(pack([event_of(30)] * EVENTS_MAX))) == 1
    assert len(list(pack([event_of(30)] * (EVENTS_MAX + 1)))) == 2
    assert list(pack([])) == []


def test_a_large_event_travels_alone_between_its_neighbours() -> None:
    small, large = event_of(100), event_of(3 * BYTES_MAX)
    found = [unpack("row-control", value, headers_of("row-control")) for value in pack([small, small, large, small])]
    assert found == [[small, small], [large], [small]]


def test_S2_the_largest_event_travels_and_a_larger_one_is_refused_by_type_and_size() -> None:
    (value,) = pack([event_of(EVENT_BYTES_MAX)])
    assert len(value) == EVENT_BYTES_MAX + 1
    with pytest.raises(EventTooLarge, match=r"^one RunCancelled has 8,388,609 bytes; a message carries at most 8,388,608$"):
        list(pack([event_of(30), event_of(EVENT_BYTES_MAX + 1)]))


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], "None"),
        ([("schema", b"row-control/2")], "'row-control/2'"),
        ([("schema", b"row-work/1")], "'row-work/1'"),
        ([("Schema", b"row-control/1")], "None"),
        ([("schema", b"\xff")], "'\ufffd'"),
        ([("schema", b"row-control/9"), ("schema", b"row-control/1")], "'row-control/9'"),
    ],
)
def test_V5_another_header_is_refused_with_both_versions(headers: list[tuple[str, bytes]], found: str) -> None:
    with pytest.raises(EnvelopeError) as refused:
        unpack("row-control", envelope.encode([RunCancelled("run")]), headers)
    assert str(refused.value) == f"row-control: expected schema 'row-control/1', found {found}"


def test_a_header_without_a_value_is_refused() -> None:
    """Kafka's headers may be null; whoever can write a topic could otherwise stop every worker that reads it."""
    with pytest.raises(EnvelopeError, match="expected schema 'row-control/1', found None"):
        unpack("row-control", envelope.encode([RunCancelled("run")]), [("schema", None)])  # type: ignore[list-item]


def test_other_headers_change_nothing() -> None:
    headers = [("traceparent", b"00-1"), *headers_of("row-control"), ("ce_id", b"\xff")]
    assert unpack("row-control", envelope.encode([RunCancelled("run")]), headers) == [RunCancelled("run")]


def test_a_message_without_a_value_is_refused() -> None:
    with pytest.raises(EnvelopeError, match=r"^row-control: a message without a value$"):
        unpack("row-control", None, headers_of("row-control"))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'[["RunCancelled", "run"]]', id="JSON"),
        pytest.param(envelope.encode([RunCancelled("run")])[:-1], id="cut off"),
        pytest.param(envelope.encode([RunCancelled("run")]) + b"\x00", id="more behind"),
        pytest.param(msgspec.msgpack.encode(RunCancelled("run")), id="an event without its envelope"),
        pytest.param(envelope.encode([Probed("mark")]), id="an event of another topic"),
        pytest.param(msgspec.msgpack.encode([["RunCancelled"]]), id="a field too few"),
        pytest.param(msgspec.msgpack.encode([["RunCancelled", 7]]), id="a field of another type"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="four billion events announced"),
        pytest.param(b"\x91\x92\xacRunCancelled\xa1\xff", id="a text that is no UTF-8"),
    ],
)
def test_bytes_that_are_no_envelope_are_refused_by_topic_and_version(value: bytes) -> None:
    with pytest.raises(EnvelopeError, match=r"^row-control: not an envelope of 'row-control/1': \S"):
        unpack("row-control", value, headers_of("row-control"))


def test_bytes_nested_too_deeply_are_refused() -> None:
    """They come from outside, so they are told as what they are; nothing of ours nests like that."""
    with pytest.raises(EnvelopeError, match="not an envelope"):
        unpack("row-control", b"\x91\x93\xacRunCancelled\xa3run" + b"\x91" * 100_000, headers_of("row-control"))


@given(st.sampled_from(list(EVENTS_BY_TOPIC)), st.binary(max_size=60))
def test_any_bytes_are_an_envelope_or_refused(topic: str, value: bytes) -> None:
    with contextlib.suppress(EnvelopeError):
        unpack(topic, value, headers_of(topic))


@settings(max_examples=60)
@given(st.data())
def test_an_envelope_with_one_byte_changed_is_an_envelope_or_refused(data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(list(EVENTS_BY_TOPIC)))
    value = bytearray(envelope.encode(data.draw(EVENTS_OF[topic])))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(EnvelopeError):
        unpack(topic, bytes(value), headers_of(topic))
