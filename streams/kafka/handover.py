"""The short way: what this process publishes to partitions of its own reaches their actors without a fetch.

Between the producers, the fetcher and the inboxes. A hop of the flow thus takes one commit, not also the way through the broker's
transaction markers, a fetch and another thread. Which messages may take it is for the inbox to decide, which proves their order;
the fetched copies pass by.
"""

from __future__ import annotations

from collections.abc import Mapping

from faust.types import TP

from streams.kafka.inbox import Delivery, Inbox
from streams.kafka.producers import Headers
from streams.turn import Actor


class HandOver:
    """Finds the inbox of a topic's partition, where it is one of this process's."""

    def __init__(self, actors: Mapping[tuple[str, int], Actor], tables: Mapping[str, str], topic_prefix: str) -> None:
        #: By table and partition; the worker's own, which changes as partitions come and go.
        self._actors = actors
        self._tables = tables
        self._prefix = topic_prefix

    def published(self, topic: str, partition: int, offset: int, value: bytes | None, headers: Headers) -> None:
        """A message to another agent is durable: give it to its actor, where that is ours and this is the next one there."""
        name = topic.removeprefix(self._prefix)
        inbox = self._inbox(name, partition)
        if inbox is not None:
            inbox.hand_over(Delivery(name, offset, None, value, headers))

    def passes(self, tp: TP, offset: int, position: int) -> bool:
        """Whether a fetched message is a copy of what its actor got before; ``position``: where the fetcher stands behind it."""
        name = tp.topic.removeprefix(self._prefix)
        inbox = self._inbox(name, tp.partition)
        return inbox is not None and inbox.passes(name, offset, position)

    def _inbox(self, topic: str, partition: int) -> Inbox | None:
        actor = self._actors.get((self._tables.get(topic, ""), partition))
        return None if actor is None else actor.inbox
