"""What the dispatcher keeps for a partition: who takes a place in a lane that has become free."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from streams.calling.ownership import OwnedPartition
from streams.engine.lanes import LanePace
from tests.support.lanes import lane

LANE = "org/p"


async def waits(owned: OwnedPartition, *, for_batch: bool) -> asyncio.Future[None]:
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    owned.waiting.setdefault((LANE, for_batch), deque()).append(place)
    return place


def test_B9_a_free_place_goes_to_a_batch_first_and_to_a_call_for_one_where_no_batch_may_be_sent() -> None:
    async def played() -> None:
        nothing: Any = None
        it = lane(LanePace(concurrency=3, batches=1), forms={})
        it.claimed = 4
        owned = OwnedPartition(nothing, nothing, lanes={LANE: it})
        it.sends(batch=True)
        batch, one, other = [await waits(owned, for_batch=for_batch) for for_batch in (True, False, False)]
        owned.room(LANE)
        assert (batch.done(), one.done(), other.done()) == (False, True, False), "the only place for a batch is taken"
        it.landed(batch=True, sent=True)
        owned.room(LANE)
        assert (batch.done(), other.done()) == (True, False), "one place, one call"

    asyncio.run(played())
