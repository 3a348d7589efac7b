"""Heartbeats in virtual time: how often (L1), and that nobody misses their end (L2, B11)."""

from __future__ import annotations

import pytest

from schemas.events import LeasesRenewed
from tests.support.dispatch import World, story
from tests.support.scripted_caller import Hangs


@story()
async def test_L2_B11_heartbeats_that_end_in_a_defect_end_the_worker(it: World) -> None:
    """Their task ended unheard: calls went on without heartbeats, leases ran out, and the next owner called again."""
    hangs = Hangs()
    it.caller.scripts.append(hangs)
    await it.asks("a", "key")
    await it.turn()

    def broken() -> None:
        raise RuntimeError("defect")

    it.dispatcher.reconciler.say = broken  # type: ignore[method-assign]
    await it.passes(1.0)
    assert [str(failure) for failure in it.failures] == [
        "the heartbeats of calls in flight ended in a defect: RuntimeError('defect')"
    ]
    it.failures.clear()
    hangs.ended.set()
    await it.passes(0.1)


@story()
async def test_B11_a_defect_where_claims_are_published_ends_the_worker(it: World) -> None:
    def broken(topic: str, events: object) -> None:
        if topic == "receipt-claims":
            raise RuntimeError("defect")

    it.log.before = broken
    await it.asks("a")
    await it.passes(0.5)
    assert [str(failure) for failure in it.failures] == [
        "publishing claims and heartbeats ended in a defect: RuntimeError('defect')"
    ]
    it.failures.clear()
    it.log.before = lambda _topic, _events: None


@story(lease_seconds=6.0)
async def test_L1_a_lease_is_renewed_every_third_of_it_and_a_batchs_every_sixth(it: World) -> None:
    one, many = Hangs(), Hangs()
    it.caller.scripts.extend([one, many])
    await it.asks("a")
    await it.turns(0.1)
    await it.asks("bcd", "batch")
    await it.turns(0.1)
    single, batch = (claim.lease for claim in it.claims)
    before = len(it.log.of("lease-heartbeats", LeasesRenewed))
    await it.passes(12.0)
    beats = it.log.of("lease-heartbeats", LeasesRenewed)[before:]
    assert sum(single in beat.leases for beat in beats) == pytest.approx(6, abs=1)
    assert sum(batch in beat.leases for beat in beats) == pytest.approx(12, abs=1)
    one.ended.set()
    many.ended.set()
    await it.turns(0.2)
