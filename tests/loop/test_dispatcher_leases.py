"""The dispatcher in virtual time: the last look at the clock, heartbeats, and when a lease is judged expired."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.commands import LeaseJudgedExpired
from schemas.events import (
    AttemptEnded,
    Event,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    Probed,
    Value,
)
from streams.dispatcher import PROBED_TOPICS, START_MARGIN_SECONDS
from tests.support.dispatch import World, foreign_lease, member, story, told, world
from tests.support.scripted_caller import Hangs
from tests.support.virtual_time import play


@pytest.mark.parametrize(("margin", "called"), [(START_MARGIN_SECONDS + 0.01, True), (START_MARGIN_SECONDS - 0.01, False)])
def test_L3_L5_a_grant_that_comes_when_the_lease_is_over_or_nearly_is_given_back(
    tmp_path: Path, margin: float, called: bool
) -> None:
    """Rule 2 of the dispatcher: the lease runs from the clock that was read before the claim was published."""

    async def late() -> None:
        async with world(tmp_path) as it:
            await it.asks("a")
            it.freezes(it.settings.lease_seconds - margin)
            await it.turn()
            assert (it.caller.asked, it.released) == ((["a"], []) if called else ([], ["a"]))
            await it.turns(1.0)
            assert it.caller.asked == ["a"]

    play(late())


@story(pace={"requests_per_second": 25.0, "concurrency": 9})
async def test_T10_the_last_look_at_the_clock_comes_right_before_the_bytes_leave(it: World) -> None:
    """Granted in time, then the process stands still while the call waits for its moment: another one may be calling by now."""
    await it.asks("ab")
    await it.turn()
    assert (it.claimed, it.caller.asked) == (["a", "b"], ["a"])
    it.freezes(60.0)
    await it.settles()
    assert it.caller.asked == ["a"]
    assert it.released == ["b"]
    await it.turns(1.0)
    assert it.caller.asked == ["a", "b"]


@story()
async def test_L2_heartbeats_name_every_lease_in_flight_and_no_other(it: World) -> None:
    hangs = [Hangs(), Hangs(), Hangs()]
    it.caller.scripts.extend(hangs)
    await it.asks("abc")
    await it.turn()
    hangs[1].ended.set()
    await it.settles()
    await it.passes(1.3)
    beats = it.log.of("lease-heartbeats", LeasesRenewed)
    by_receipt = {claim.members[0].receipt: claim.lease for claim in it.claims}
    assert [set(beat.leases) for beat in beats] == [{by_receipt["a"], by_receipt["c"]}]
    for hang in hangs:
        hang.ended.set()
    await it.passes(2.0)
    assert len(it.log.of("lease-heartbeats", LeasesRenewed)) == 1


@story()
async def test_L2_a_call_that_outlives_many_leases_is_kept_alive_and_settles(it: World) -> None:
    hang = Hangs()
    it.caller.scripts.append(hang)
    await it.asks("a")
    await it.turns(20.0, every=0.1)
    assert it.log.of("receipt-claims", LeaseExpired) == []
    hang.ended.set()
    await it.turns(0.1)
    assert told(it) == [("a", "completed")]


@story()
async def test_L4_an_owner_never_expires_a_call_that_its_own_process_has_in_flight(it: World) -> None:
    """Its heartbeats lie unread, because the topic is slow; the call is alive all the same."""
    it.caller.scripts.append(hang := Hangs())
    await it.asks("a")
    await it.turn()
    for _ in range(20):
        await it.passes(1.0)
        await it.turn(without=["lease-heartbeats"])
    assert it.log.of("receipt-claims", Probed) == []
    hang.ended.set()


@pytest.mark.parametrize("unread", PROBED_TOPICS)
def test_T10_expiry_is_judged_only_once_all_three_topics_were_read_to_their_ends(tmp_path: Path, unread: str) -> None:
    async def judged() -> None:
        async with world(tmp_path) as it:
            await foreign_lease(it)
            await it.passes(3.0)
            assert it.log.of(unread, Probed) == []
            await it.passes(0.6)
            assert [len(it.log.of(topic, Probed)) for topic in PROBED_TOPICS] == [1, 1, 1]
            await it.turn(without=[unread])
            await it.passes(5.0)
            await it.turn(without=[unread])
            assert it.owner.inbox.waiting == []
            await it.turn()
            assert it.owner.inbox.waiting == [LeaseJudgedExpired("gone", (member("a"),))]
            await it.turn()
            await it.turn()
            assert told(it) == [("a", "unknown")]
            assert it.caller.calls == []

    play(judged())


@pytest.mark.parametrize("sign", ["heartbeat", "value", "release"])
def test_T10_a_sign_of_life_that_lay_unread_behind_the_mark_saves_the_lease(tmp_path: Path, sign: str) -> None:
    events: dict[str, tuple[str, Event]] = {
        "heartbeat": ("lease-heartbeats", LeasesRenewed(("gone",))),
        "value": ("receipt-completions", AttemptEnded("a", 1, 0, "gone", Value(b'"late"'))),
        "release": ("receipt-claims", LeaseReleased("gone", (member("a"),))),
    }

    async def saved() -> None:
        async with world(tmp_path) as it:
            await foreign_lease(it)
            it.say(*events[sign])
            await it.passes(3.6)
            await it.turn()
            assert it.owner.inbox.waiting == []
            await it.turns(0.5)
            assert it.log.of("receipt-claims", LeaseExpired) == []
            assert it.caller.asked == (["a"] if sign == "release" else [])

    play(saved())


@story()
async def test_a_mark_of_somebody_else_means_nothing(it: World) -> None:
    await foreign_lease(it)
    await it.passes(3.6)
    for topic in PROBED_TOPICS:
        it.say(topic, Probed("another"))
    await it.turn(without=["lease-heartbeats"])
    assert it.owner.inbox.waiting == []


@story(pace={"concurrency": 1})
async def test_G1_a_foreign_lease_counts_against_the_ceiling_until_it_is_over(it: World) -> None:
    await foreign_lease(it)
    await it.asks("b")
    await it.turns(2.0, every=0.1)
    assert it.claimed == ["a"]
    it.say("receipt-completions", AttemptEnded("a", 1, 0, "gone", Value(b"1")))
    await it.turns(0.5)
    assert it.caller.asked == ["b"]
