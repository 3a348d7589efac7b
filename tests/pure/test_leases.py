"""Leases under a clock that is moved by hand: when one has run out, and when it is over."""

from __future__ import annotations

import pytest

from schemas.events import ClaimedMember
from streams.calling.leases import MARGIN, LeaseWatch

TTL = 10.0
#: Seconds after which a lease that nobody renewed has run out.
LIMIT = 11.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """Leases of one partition, with their clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.leases = LeaseWatch(TTL, self.clock)

    def claimed(self, lease: str, *receipts: str, lane: str = "org/p", foreign: bool = False, n: int = 1) -> bool:
        members = [ClaimedMember(receipt, n, 0, 7) for receipt in receipts]
        return self.leases.claimed(lane, lease, members, foreign=foreign)

    def after(self, seconds: float) -> Watch:
        self.clock.now += seconds
        return self

    def run_out(self, *in_flight: str) -> dict[str, list[str]]:
        """Leases that have run out, with the receipts of their members."""
        found = self.leases.run_out(lambda lease: lease in in_flight)
        return {lease: [member.receipt for member in members] for lease, members in found}


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_the_limit_is_the_time_to_live_and_a_tenth() -> None:
    assert MARGIN == 0.1
    assert pytest.approx(TTL * 1.1) == LIMIT


# --- running out --------------------------------------------------------------------------------------------


def test_a_lease_runs_out_only_after_its_time_to_live_and_the_margin(watch: Watch) -> None:
    watch.claimed("one", "r1", "r2")
    assert watch.after(TTL).run_out() == {}
    assert watch.after(LIMIT - TTL - 0.01).run_out() == {}
    assert watch.after(0.02).run_out() == {"one": ["r1", "r2"]}


def test_a_lease_that_has_run_out_is_named_until_it_is_over(watch: Watch) -> None:
    """Naming it changes nothing: the judgement becomes an event, and only that event's fold ends the lease."""
    watch.claimed("one", "r1")
    watch.after(LIMIT + 1)
    assert watch.run_out() == watch.run_out() == {"one": ["r1"]}
    watch.leases.over("one", ["r1"])
    assert watch.run_out() == {}


def test_a_renewal_starts_the_clock_of_the_leases_it_names_again(watch: Watch) -> None:
    watch.claimed("one", "r1")
    watch.claimed("two", "r2")
    watch.after(TTL)
    watch.leases.renewed(["one", "of somebody else"])
    assert watch.after(2).run_out() == {"two": ["r2"]}
    assert watch.after(LIMIT - 2.01).run_out() == {"two": ["r2"]}
    assert watch.after(0.02).run_out() == {"one": ["r1"], "two": ["r2"]}


def test_a_renewal_of_an_unknown_lease_makes_none(watch: Watch) -> None:
    watch.leases.renewed(["unknown"])
    assert watch.after(LIMIT + 1).run_out() == {}
    assert watch.leases.leases == {}


def test_L4_a_call_in_flight_here_never_runs_out(watch: Watch) -> None:
    watch.claimed("ours", "r1")
    watch.claimed("theirs", "r2", foreign=True)
    watch.after(100 * TTL)
    assert watch.run_out("ours") == {"theirs": ["r2"]}
    assert watch.run_out() == {"ours": ["r1"], "theirs": ["r2"]}


def test_a_clock_that_stands_still_ends_no_lease(watch: Watch) -> None:
    watch.claimed("one", "r1")
    assert watch.run_out() == {}


# --- claims -------------------------------------------------------------------------------------------------


def test_a_claim_is_new_once_and_starts_the_clock_each_time(watch: Watch) -> None:
    assert watch.claimed("one", "r1")
    assert not watch.after(TTL).claimed("one", "r1")
    assert watch.after(LIMIT - 0.01).run_out() == {}
    assert watch.after(0.02).run_out() == {"one": ["r1"]}


def test_a_claim_that_comes_in_parts_has_the_members_of_all(watch: Watch) -> None:
    watch.claimed("one", "r1", n=1)
    watch.claimed("one", "r2", "r1", n=2)
    members = watch.leases.leases["one"].members
    assert {receipt: member.n for receipt, member in members.items()} == {"r1": 2, "r2": 2}


def test_a_lease_stays_as_foreign_as_it_first_came(watch: Watch) -> None:
    """It was counted against its lane's ceiling once, and must be taken off once."""
    watch.claimed("theirs", "r1", lane="org/p", foreign=True)
    watch.claimed("theirs", "r2", lane="org/p", foreign=False)
    watch.claimed("ours", "r3", lane="org/q", foreign=False)
    assert watch.leases.leases["theirs"].foreign
    watched = watch.leases.over("theirs", ["r1", "r2"])
    assert watched is not None
    assert (watched.foreign, watched.lane) == (True, "org/p")
    watched = watch.leases.over("ours", ["r3"])
    assert watched is not None
    assert (watched.foreign, watched.lane) == (False, "org/q")


# --- the end ------------------------------------------------------------------------------------------------


def test_a_lease_is_over_when_the_last_of_its_members_has_ended(watch: Watch) -> None:
    watch.claimed("one", "r1", "r2", "r3")
    assert watch.leases.over("one", ["r2"]) is None
    assert watch.leases.over("one", ["r2", "of another lease"]) is None
    assert watch.after(LIMIT + 1).run_out() == {"one": ["r1", "r3"]}
    assert watch.leases.over("one", ["r1", "r3"]) is not None
    assert watch.leases.leases == {}


def test_a_lease_is_over_only_once(watch: Watch) -> None:
    watch.claimed("one", "r1")
    assert watch.leases.over("one", ["r1"]) is not None
    assert watch.leases.over("one", ["r1"]) is None
    assert watch.leases.over("unknown", ["r1"]) is None


def test_an_end_that_is_no_sign_of_life_does_not_start_the_clock_again(watch: Watch) -> None:
    watch.claimed("one", "r1", "r2")
    watch.after(TTL)
    watch.leases.over("one", ["r1"])
    assert watch.after(LIMIT - TTL + 0.01).run_out() == {"one": ["r2"]}
