"""The dispatcher in virtual time: the last look at the clock, heartbeats, and when a lease is judged expired."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.commands import LeaseJudgedExpired
from schemas.events import (
    AttemptEnded,
    BatchClaimed,
    Event,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    Probed,
    Value,
)
from streams.calling.renewals import START_MARGIN_SECONDS
from streams.dispatcher import PROBED_TOPICS
from streams.errors import Unreachable
from tests.support.dispatch import LANE, World, foreign_lease, member, story, told, world
from tests.support.scripted_caller import Hangs
from tests.support.virtual_time import play


@pytest.mark.parametrize(
    ("left", "called", "renewals"),
    [(START_MARGIN_SECONDS + 0.01, True, 0), (START_MARGIN_SECONDS - 0.01, True, 1), (-0.01, False, 0)],
    ids=["enough", "too little", "none"],
)
def test_L3_L5_a_lease_with_too_little_left_is_renewed_before_the_call_and_one_that_is_over_is_given_back(
    tmp_path: Path, left: float, called: bool, renewals: int
) -> None:
    """Rule 2 of the dispatcher: the lease runs from the clock that was read before the claim was published."""

    async def late() -> None:
        async with world(tmp_path) as it:
            await it.asks("a")
            beats: list[list[str]] = []
            it.log.before = lambda topic, _: beats.append(it.caller.asked) if topic == "lease-heartbeats" else None
            it.freezes(it.settings.lease_seconds - left)
            await it.turn()
            assert (it.caller.asked, it.released) == ((["a"], []) if called else ([], ["a"]))
            assert beats[:renewals] == [[]] * renewals, "it is renewed first"
            assert len(beats) == renewals
            await it.turns(1.0)
            assert it.caller.asked == ["a"]

    play(late())


async def renews(it: World) -> None:
    """A grant came with too little of its lease left: the renewal is on its way, and not acknowledged."""
    await it.asks("a")
    it.log.acknowledges.clear()
    it.freezes(it.settings.lease_seconds - 0.05)
    await it.turn()


@story()
async def test_L5_a_renewal_that_is_not_acknowledged_in_time_is_none_and_the_lease_is_given_back(it: World) -> None:
    await renews(it)
    assert (it.caller.asked, it.released) == ([], [])
    await it.passes(0.06)
    assert (it.caller.asked, it.released) == ([], ["a"])
    it.log.acknowledges.set()
    await it.turns(1.0)
    assert it.caller.asked == ["a"]


@story()
async def test_L5_T10_an_acknowledgement_that_is_read_when_the_lease_was_over_counts_for_nothing(it: World) -> None:
    """The process stands still between the two: an owner elsewhere may have judged by then, and another may be calling."""
    await renews(it)
    it.freezes(0.2)
    it.log.acknowledges.set()
    await it.settles()
    assert (it.caller.asked, it.released) == ([], ["a"])


@story()
async def test_L5_a_renewal_that_cannot_be_published_is_none(it: World) -> None:
    await it.asks("a")
    it.freezes(it.settings.lease_seconds - 0.05)
    it.log.trouble = Unreachable("no broker")
    await it.turn()
    await it.settles()
    assert it.caller.asked == []
    it.log.trouble = None
    await it.turns(10)
    assert (it.released, it.caller.asked) == (["a"], ["a"])


async def waits_for_a_place(it: World) -> None:
    """A call is granted, and waits: the lane's only place is taken by a lease of somebody else, for receipt ``z``."""
    await it.asks("a")
    it.say("receipt-claims", BatchClaimed(LANE, "p.never", "", "theirs", 1, (member("z"),)))
    await it.asks("z")


async def has_a_place(it: World) -> None:
    it.say("receipt-completions", AttemptEnded("z", 1, 0, "theirs", Value(b"1")))
    await it.turn()


@story(pace={"concurrency": 1})
async def test_L5_a_call_that_waits_for_its_place_keeps_its_lease_by_heartbeats_that_were_acknowledged(it: World) -> None:
    await waits_for_a_place(it)
    await it.passes(it.settings.lease_seconds * 2)
    await has_a_place(it)
    assert (it.caller.asked, it.released) == (["a"], [])


@story(pace={"concurrency": 1})
async def test_L5_heartbeats_that_nobody_acknowledged_keep_no_lease(it: World) -> None:
    await waits_for_a_place(it)
    it.log.acknowledges.clear()
    await it.passes(it.settings.lease_seconds + 0.1)
    await has_a_place(it)
    assert (it.caller.asked, it.released) == ([], ["a"])
    it.log.acknowledges.set()


@story(pace={"concurrency": 1})
async def test_L5_a_renewal_counts_from_when_it_was_sent_and_not_from_its_acknowledgement(it: World) -> None:
    """The one that was sent after a second is acknowledged after 2.5: the lease ends at 4, whatever comes after."""
    await waits_for_a_place(it)
    it.log.acknowledges.clear()
    await it.passes(1.5)
    it.log.before = lambda topic, _: it.log.acknowledges.clear() if topic == "lease-heartbeats" else None
    it.freezes(1.0)
    it.log.acknowledges.set()
    await asyncio.sleep(0)
    await it.settles()
    it.freezes(1.6)
    await has_a_place(it)
    assert (it.caller.asked, it.released) == ([], ["a"])
    it.log.before = lambda _topic, _events: None
    it.log.acknowledges.set()


@story()
async def test_L5_a_worker_that_stops_while_it_renews_makes_no_call(it: World) -> None:
    await renews(it)
    stopping = asyncio.create_task(it.dispatcher.stop())
    await it.settles()
    it.log.acknowledges.set()
    await stopping
    assert (it.caller.asked, it.released) == ([], ["a"])


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
