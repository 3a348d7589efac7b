"""What a partition's owner cannot read goes to ``dead-letters``, and nothing else with it.

Under the turn. A message is parked as a whole, or only those of its elements that are no events for this program; its letter holds
the bytes as they came, and headers that say where they stood, when and why they were parked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams.kafka.inbox import Delivery
from streams.kafka.producers import MESSAGE_BYTES_MAX, Headers, Message

#: Characters of a reason.
REASON_CHARS_MAX = 2_000
#: Bytes of a message's own headers that its letter repeats.
HEADERS_BYTES_MAX = 64 << 10
#: What Kafka puts around one message, and around one header, at most.
_MESSAGE_BYTES, _HEADER_BYTES = 512, 16


def dead_letter(delivery: Delivery, partition: int, error: str, at_ms: int, unread: Mapping[int, str] | None = None) -> Message:
    """The letter of a message, or of the elements of it that are ``unread``: place and reason of each.

    The topic takes no message larger than its own: of one that has no room beside the headers the first bytes are kept, and the
    header ``cut`` says how many there were.
    """
    headers: Headers = [
        ("source", f"{delivery.topic}/{partition}@{delivery.offset}".encode()),
        ("error", error[:REASON_CHARS_MAX].encode(errors="replace")),
        ("at_ms", str(at_ms).encode()),
    ]
    if unread:
        headers.append(("elements", ",".join(map(str, unread)).encode()))
    key, value = delivery.topic.encode(), delivery.value
    if _size(delivery.headers) <= HEADERS_BYTES_MAX:
        headers += delivery.headers
    else:
        headers.append(("cut_headers", f"{len(delivery.headers):,} headers of {_size(delivery.headers):,} bytes".encode()))
    room = MESSAGE_BYTES_MAX - _MESSAGE_BYTES - len(key) - _size(headers)
    if value is not None and len(value) > room:
        said = f"{len(value):,} bytes"
        room -= _HEADER_BYTES + len(said) + len("cut")
        headers.append(("cut", said.encode()))
        value = value[:room]
    return key, value, headers


def _size(headers: Sequence[tuple[str, bytes | None]]) -> int:
    return sum(len(name.encode()) + len(value or b"") + _HEADER_BYTES for name, value in headers)
