"""What the dispatcher keeps for one owned partition of ``receipts``: its lanes, its claims, and who waits for room.

Forgotten with the partition; none of it is state that matters.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from streams.calling.calls import Flight
from streams.calling.leases import LeaseWatch
from streams.engine.effects import LeaseOver
from streams.engine.lanes import Lane
from streams.turn import Actor


@dataclass(slots=True)
class OwnedPartition:
    """What the dispatcher keeps for one owned partition of ``receipts``."""

    actor: Actor
    watch: LeaseWatch
    lanes: dict[str, Lane] = field(default_factory=dict)
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    #: Claims that were published and not yet folded, by lease.
    pending: dict[str, Flight] = field(default_factory=dict)
    #: Receipts in those claims: what a turn says of them that has not folded the claim is old news.
    claimed: set[str] = field(default_factory=set)
    #: Lanes that are about to be looked at.
    departing: set[str] = field(default_factory=set)
    #: Granted calls that wait for room in their lane, batches apart from calls for one.
    waiting: dict[tuple[str, bool], deque[asyncio.Future[None]]] = field(default_factory=dict)
    #: Marks that are to be read back before expiries are judged, one for each topic. They have names of their own, because what is
    #: published again may stand twice in its topic: two marks of one topic say nothing of another.
    marks: set[str] = field(default_factory=set)

    def mark(self, topics: Sequence[str]) -> dict[str, str]:
        """A new mark for each of these topics, to be read back before expiries are judged."""
        probe = uuid.uuid4().hex
        marks = {topic: f"{probe}/{topic}" for topic in topics}
        self.marks = set(marks.values())
        return marks

    def read_back(self, mark: str) -> bool:
        """A mark was folded; whether it was the last that was waited for, so that all topics were read up to their marks."""
        if mark not in self.marks:
            return False
        self.marks.remove(mark)
        return not self.marks

    def freeze(self) -> None:
        """No lane is looked at any more, no claim is waited for, and who waits for room hears that there is none."""
        for timer in self.timers.values():
            timer.cancel()
        self.pending.clear()
        self.claimed.clear()
        for waiting in self.waiting.values():
            for room in waiting:
                if not room.done():
                    room.set_result(None)

    def over(self, effect: LeaseOver, moved: set[str]) -> None:
        """Attempts under a lease have ended; a foreign one gives its place in the lane back, which has then ``moved``."""
        watched = self.watch.over(effect.lease, effect.receipts)
        if watched is not None and watched.foreign:
            lane = self.lanes[watched.lane]
            lane.in_flight = max(0, lane.in_flight - 1)
            self.room(watched.lane)
            moved.add(watched.lane)

    def landed(self, flight: Flight) -> None:
        """A call of ours has ended: its place in the lane is free."""
        self.lanes[flight.lane].landed(batch=flight.is_batch, sent=flight.counted)
        self.room(flight.lane)

    def room(self, name: str) -> None:
        """A place in a lane is free: the call that waited longest takes it, a batch before a call for one."""
        for for_batch in (True, False):
            waiting = self.waiting.get((name, for_batch))
            while waiting and self.lanes[name].is_free(for_batch=for_batch):
                room = waiting.popleft()
                if not room.done():
                    room.set_result(None)
                    return
