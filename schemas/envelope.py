"""Bulk envelopes: many internal events in one Kafka message, which is what makes thousands of rows a second possible.

The value is a MessagePack array of tagged events, the header ``schema`` says ``topic/version``. This module turns events into
bytes and back; it knows neither Kafka nor tables.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from schemas.events import EVENTS_BY_TOPIC, Event

EVENTS_MAX: Final = 500
BYTES_MAX: Final = 1024 * 1024
#: A single event may be larger than an envelope, up to what broker, producer and consumer accept.
EVENT_BYTES_MAX: Final = 8 * 1024 * 1024
VERSION: Final = 1
HEADER: Final = "schema"

_encoder = msgspec.msgpack.Encoder()
_decoders: Final[dict[str, msgspec.msgpack.Decoder[list[Event]]]] = {}
_split_elements: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class EnvelopeError(ValueError):
    """A message is not an envelope of a version that this program knows."""


class EventTooLarge(ValueError):
    """One event alone exceeds what a Kafka message may carry."""


def _events_of(topic: str) -> Any:
    """The type of all events that ``topic`` carries."""
    types = EVENTS_BY_TOPIC[topic]
    union = types[0]
    for member in types[1:]:
        union = union | member  # type: ignore[assignment]
    return union


def _decoder(topic: str) -> msgspec.msgpack.Decoder[list[Event]]:
    decoder = _decoders.get(topic)
    if decoder is None:
        decoder = _decoders[topic] = msgspec.msgpack.Decoder(list[_events_of(topic)])  # type: ignore[misc]
    return decoder


@cache
def _element_decoder(topic: str) -> msgspec.msgpack.Decoder[Event]:
    return msgspec.msgpack.Decoder(_events_of(topic))


def headers_of(topic: str) -> list[tuple[str, bytes]]:
    """Kafka headers of an envelope for ``topic``."""
    return [(HEADER, f"{topic}/{VERSION}".encode())]


def encode(events: Sequence[Event]) -> bytes:
    """One envelope of all ``events``, whatever their number."""
    return _encoder.encode(events)


def pack(events: Iterable[Event]) -> Iterator[bytes]:
    """Split ``events``, in order, into envelopes of at most 500 events and 1 MiB.

    A single larger event travels alone, up to 8 MiB; beyond that ``EventTooLarge`` is raised, which names its type and size.
    """
    waiting = list(events)
    for start in range(0, len(waiting), EVENTS_MAX):
        chunk = waiting[start : start + EVENTS_MAX]
        value = _encoder.encode(chunk)
        if len(value) > BYTES_MAX:
            yield from _split(waiting[start:])
            return
        yield value


def _split(events: Iterable[Event]) -> Iterator[bytes]:
    chunk: list[msgspec.Raw] = []
    size = 0
    for event in events:
        raw = _encoder.encode(event)
        if len(raw) > EVENT_BYTES_MAX:
            message = f"one {type(event).__name__} has {len(raw):,} bytes; a message carries at most {EVENT_BYTES_MAX:,}"
            raise EventTooLarge(message)
        if chunk and (len(chunk) >= EVENTS_MAX or size + len(raw) > BYTES_MAX):
            yield _encoder.encode(chunk)
            chunk, size = [], 0
        chunk.append(msgspec.Raw(raw))
        size += len(raw)
    if chunk:
        yield _encoder.encode(chunk)


def unpack(topic: str, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> list[Event]:
    """Events of one message of ``topic``.

    Raises ``EnvelopeError`` naming the topic and both versions, or what is malformed; the caller parks what cannot be read.
    """
    content = _content(topic, value, headers)
    try:
        return _decoder(topic).decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _malformed(topic, error) from error


def unpack_partly(topic: str, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> tuple[list[Event], dict[int, str]]:
    """What can be read of a message that ``unpack`` refuses: its events, and why no others, by their places in the message.

    One event of a type that only a newer program knows must not take those with it that travel in the same message. Raises
    ``EnvelopeError`` where none can be read.
    """
    events: list[Event] = []
    unread: dict[int, str] = {}
    for place, element in enumerate(_elements(topic, value, headers)):
        try:
            events.append(_element_decoder(topic).decode(element))
        except (msgspec.MsgspecError, RecursionError) as error:
            unread[place] = str(error)
    if not events or len(unread) > EVENTS_MAX:
        raise EnvelopeError(f"{topic}: {len(unread):,} elements of a message cannot be read, and {len(events):,} can")
    return events, unread


def unpack_without(topic: str, value: bytes | None, headers: Iterable[tuple[str, bytes]], places: Container[int]) -> list[Event]:
    """Events of a message but for those at ``places``, whether they can be read today or not. Raises ``EnvelopeError``."""
    elements = [element for place, element in enumerate(_elements(topic, value, headers)) if place not in places]
    try:
        return [_element_decoder(topic).decode(element) for element in elements]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _malformed(topic, error) from error


def _elements(topic: str, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> list[msgspec.Raw]:
    content = _content(topic, value, headers)
    try:
        return _split_elements(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _malformed(topic, error) from error


def _malformed(topic: str, error: Exception) -> EnvelopeError:
    return EnvelopeError(f"{topic}: not an envelope of '{topic}/{VERSION}': {error}")


def _content(topic: str, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of an envelope of the version that is known here. Raises ``EnvelopeError`` for any other."""
    expected = f"{topic}/{VERSION}"
    found = next((raw.decode(errors="replace") for name, raw in headers if name == HEADER and raw is not None), None)
    if found != expected:
        raise EnvelopeError(f"{topic}: expected schema {expected!r}, found {found!r}")
    if value is None:
        raise EnvelopeError(f"{topic}: a message without a value")
    return value
