"""What a worker tells those who live beside its actors, such as the dispatcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams.engine.port import Context, Effect
from streams.turn import Actor


class Companion:
    """What else lives in the process beside the actors, such as the dispatcher; does nothing by itself."""

    async def start(self) -> None:
        """Called once, before any partition is opened."""

    async def opened(self, table: str, actors: Mapping[int, Actor]) -> None:
        """Called after partitions of ``table`` were recovered and before they take their first turn."""

    async def revoked(self) -> None:
        """Called when all partitions are taken away, for a moment or for good."""

    def effects(self, table: str, partition: int, effects: Sequence[Effect], context: Context) -> None:
        """Called with the effects of a committed turn."""

    async def stop(self) -> None:
        """Called once, while partitions are still ours: finish what is under way within the grace time."""
