"""What an engine gets and gives in a turn: records in, outputs and effects out.

The words shared by the pure engines and the turn that drives them. Nothing here reads a clock or does any input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from schemas.events import Event

S = TypeVar("S", bound=msgspec.Struct)
P = ParamSpec("P")


class Records(Protocol):
    """The records of one partition as one turn sees them."""

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load many records at once; only an optimisation."""
        ...

    def get(self, key: bytes, kind: type[S]) -> S | None:
        """The record, or ``None``."""
        ...

    def change(self, key: bytes, kind: type[S]) -> S:
        """The record to be changed in place, new where there is none; it is put back already."""
        ...

    def put(self, key: bytes, record: msgspec.Struct) -> None:
        """Set the record; also after a change in place."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove the record."""
        ...

    def put_local(self, key: bytes, record: msgspec.Struct | None) -> None:
        """Set or remove a record that follows from others: it is on no changelog, and this turn will not ask for it."""
        ...

    def scan(self, prefix: bytes, kind: type[S], after: bytes | None = None) -> Iterator[tuple[bytes, S]]:
        """Records under ``prefix`` in key order."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about a turn that its shell took once and wrote down: no engine reads them elsewhere."""

    partition: int
    partitions: int
    generation: int
    #: Unix time in milliseconds.
    now_ms: int


class PublicEvent(msgspec.Struct, frozen=True):
    """A JSON event for users: topic, key, CloudEvents type and subject, and its data."""

    topic: str
    key: str
    type: str
    data: bytes | None
    #: Stable identity of the event, so that a consumer can recognise a copy.
    id: str
    #: Where it goes; ``None``: the partition of the turn, so that what belongs together stays in order.
    partition: int | None = None


class Effect(msgspec.Struct, frozen=True):
    """Something to do in the process once the turn is committed."""


class Wake(Effect, frozen=True):
    """Fold a command at this Unix time in milliseconds, although no message may have come."""

    at_ms: int
    command: Event


@dataclass(slots=True)
class Outbox:
    """What a turn owes to others."""

    events: dict[tuple[str, int], list[Event]] = field(default_factory=dict)
    public: list[PublicEvent] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def send(self, topic: str, partition: int, event: Event) -> None:
        """Owe an internal event to the partition of a topic."""
        queue = self.events.get((topic, partition))
        if queue is None:
            queue = self.events[(topic, partition)] = []
        queue.append(event)

    def publish(self, make: Callable[P, PublicEvent], *of: P.args, **named: P.kwargs) -> None:
        """Owe users an event, made of these things: where nothing is published, none is made."""
        self.public.append(make(*of, **named))


class Engine(Protocol):
    """The pure part of one stateful agent."""

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Fold ``events`` in order, then put what is owed to others into ``outbox``.

        It begins by prefetching the records that the events surely touch, with one multi-get.
        """
        ...
