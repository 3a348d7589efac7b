"""The bounded inbox of one partition: what Faust delivered and no turn has folded yet, by topic in order of precedence.

Between Faust's stream and the turn. It decides only how much is taken at a time and when a topic is to be fetched no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from schemas.events import Event


class Acknowledged(Protocol):
    """The part of a Faust event that a delivery needs."""

    def ack(self) -> Any:
        """Tell the consumer that the message was folded."""
        ...


class Delivery(msgspec.Struct, frozen=True):
    """One message of a source topic."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    event: Acknowledged | None = None
    #: Where the fetcher stood behind this message; beyond the next offset where transaction markers follow it.
    position: int = 0

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return 0 if self.value is None else len(self.value)


@dataclass(slots=True)
class _Queue:
    deliveries: deque[Delivery] = field(default_factory=deque)
    bytes: int = 0
    full: bool = False
    #: All before this offset was delivered, or is no message; ``None`` where that is not known yet.
    reached: int | None = None


class Inbox:
    """Deliveries and commands of one partition, waiting for its next turn."""

    def __init__(
        self,
        topics: Sequence[str],
        *,
        bytes_max: int,
        turn_bytes_max: int,
        on_full: Callable[[str], None] = lambda _topic: None,
        on_drained: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        self._queues = {topic: _Queue() for topic in topics}
        self._commands: list[Event] = []
        self._bytes_max = bytes_max
        self._turn_bytes_max = turn_bytes_max
        self._on_full = on_full
        self._on_drained = on_drained
        self._something = asyncio.Event()

    def begin(self, folded: Mapping[str, int]) -> None:
        """Say which offset each topic begins at: all before it was folded."""
        for topic, queue in self._queues.items():
            queue.reached = folded.get(topic)

    def passes(self, topic: str, offset: int, position: int) -> bool:
        """Whether a fetched message was delivered before, so that this copy may pass by; ``position``: see ``Delivery``."""
        queue = self._queues[topic]
        if queue.reached is None or offset >= queue.reached:
            return False
        queue.reached = max(queue.reached, position)
        return True

    def deliver(self, delivery: Delivery) -> None:
        """Queue a fetched message, unless it was handed over before; beyond ``bytes_max`` its topic is reported as full."""
        if self.passes(delivery.topic, delivery.offset, delivery.position):
            if delivery.event is not None:
                delivery.event.ack()
            return
        queue = self._queues[delivery.topic]
        queue.reached = max(delivery.offset + 1, delivery.position)
        self._queue(queue, delivery)
        if queue.bytes > self._bytes_max:
            # Said with every delivery: Faust resumes a partition by itself when its own queue has drained.
            queue.full = True
            self._on_full(delivery.topic)

    def hand_over(self, delivery: Delivery) -> bool:
        """Queue a committed message that this process published itself, without the way through the broker.

        Only where it is proven to be the next one of its topic, for messages are folded in the order of their offsets: all
        before it was delivered. Otherwise false: it comes by the fetcher, as does a copy of it in any case.
        """
        queue = self._queues[delivery.topic]
        if queue.reached != delivery.offset or queue.bytes > self._bytes_max:
            return False
        queue.reached = delivery.offset + 1
        self._queue(queue, delivery)
        return True

    def _queue(self, queue: _Queue, delivery: Delivery) -> None:
        queue.deliveries.append(delivery)
        queue.bytes += delivery.size
        self._something.set()

    def command(self, event: Event) -> None:
        """Queue a judgement of the owner's; it is folded ahead of all messages."""
        self._commands.append(event)
        self._something.set()

    async def wait(self) -> None:
        """Wait until something can be taken."""
        await self._something.wait()

    def take(self) -> tuple[list[Event], list[Delivery]]:
        """What the next turn folds: all commands, then messages by topic in order of precedence, up to the limit in bytes."""
        commands, self._commands = self._commands, []
        taken: list[Delivery] = []
        room = self._turn_bytes_max
        for topic, queue in self._queues.items():
            while queue.deliveries and (room > 0 or not taken):
                delivery = queue.deliveries.popleft()
                queue.bytes -= delivery.size
                room -= delivery.size + 64
                taken.append(delivery)
            if queue.full and queue.bytes <= self._bytes_max // 2:
                queue.full = False
                self._on_drained(topic)
        if not any(queue.deliveries for queue in self._queues.values()):
            self._something.clear()
        return commands, taken

    def give_back(self, commands: Sequence[Event], deliveries: Sequence[Delivery]) -> None:
        """Put what a turn left of what it took last before all that waits, in the same order."""
        self._commands[:0] = commands
        for delivery in reversed(deliveries):
            queue = self._queues[delivery.topic]
            queue.deliveries.appendleft(delivery)
            queue.bytes += delivery.size
        if commands or deliveries:
            self._something.set()

    @property
    def depth(self) -> int:
        """Messages that wait."""
        return sum(len(queue.deliveries) for queue in self._queues.values())
