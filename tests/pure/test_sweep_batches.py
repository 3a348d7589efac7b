"""What a batch pins, and what its end frees: which members of it may be dropped, given / when / then (K6, U3)."""

from __future__ import annotations

import pytest

from schemas.commands import SweepDue
from schemas.events import Ambiguous, AttemptEnded, BatchClaimed, ClaimedMember, Event, LeaseReleased, Repeat, RunClosed, Value
from schemas.states import BATCH, RECEIPT, Batch, Receipt, record_key
from streams.table import WorkingSet
from tests.pure.test_sweep import LATER, ask, forgotten, swept
from tests.support import given as g
from tests.support.memory import Table

MEMBERS = (ClaimedMember(g.R, 1, 0, 1), ClaimedMember("s", 1, 0, 1))
CLAIM = BatchClaimed("org/p", "p.t", "batch:1", "L", 1, MEMBERS)


def batched(repeat: Repeat = Repeat.NEVER) -> Table:
    """A batch of two of which one has settled and the other is in doubt; their run has ended."""
    table = g.receipts()
    table.given(ask(g.R, repeat), ask("s", repeat), CLAIM)
    table.given(g.value(1, lease="L"), AttemptEnded("s", 1, 0, "L", Ambiguous(g.FAULT)))
    table.given(RunClosed("run"))
    return table


def receipt(table: Table, name: str) -> Receipt | None:
    return WorkingSet(table.reader).get(record_key(RECEIPT, name), Receipt)


def batch(table: Table) -> Batch | None:
    return WorkingSet(table.reader).get(record_key(BATCH, "batch:1"), Batch)


def sweeps(table: Table) -> None:
    for _ in range(3):
        swept(table, drop=True)


@pytest.mark.parametrize("repeat", [Repeat.NEVER, Repeat.WITH_KEY], ids=["looked up", "repeated"])
def test_K6_U3_a_settled_member_stays_while_another_of_its_batch_is_in_doubt(repeat: Repeat) -> None:
    """K6, U3: the batch stayed for the member in doubt, but the input of the settled one went, without which the batch can neither
    be repeated nor looked up as it was.
    """
    table = batched(repeat)
    told = forgotten(table)
    assert (told.type, told.code) == ("receipt.rejected", "in_use")
    assert told.message == "its input is part of batch:1, which may be repeated or looked up as it was for receipt s"
    sweeps(table)
    kept = receipt(table, g.R)
    assert kept is not None
    assert (kept.current, kept.input, batch(table) is not None) == ((0, 1), b"{}", True)


@pytest.mark.parametrize("how", ["swept", "forgotten"])
def test_K6_a_settled_member_goes_once_the_other_has_settled_too(how: str) -> None:
    table = batched()
    table.given(AttemptEnded("s", 1, 0, "L", Value(b"1")))
    if how == "swept":
        sweeps(table)
    else:
        assert forgotten(table).type == forgotten(table, "s").type == "receipt.forgotten"
    for name in (g.R, "s"):
        found = receipt(table, name)
        assert found is not None
        assert found.input is None
    assert batch(table) is None


def test_K6_a_batch_that_was_given_back_pins_nobody() -> None:
    """Its members are batched anew: that one of them is in doubt now is no business of those that were claimed with it first."""
    table = g.receipts()
    again: tuple[Event, ...] = (
        BatchClaimed("org/p", "p.t", "", "M", 1, (ClaimedMember(g.R, 2, 0, 2),)),
        BatchClaimed("org/p", "p.t", "", "N", 1, (ClaimedMember("s", 2, 0, 2),)),
    )
    table.given(ask(g.R), ask("s"), CLAIM)
    table.given(LeaseReleased("L", MEMBERS))
    table.given(*again)
    table.given(g.value(2, lease="M"), AttemptEnded("s", 2, 0, "N", Ambiguous(g.FAULT)), RunClosed("run"))
    assert forgotten(table).type == "receipt.forgotten"
    assert forgotten(table, "s").code == "in_use"


def test_K6_a_claim_that_names_no_batch_leaves_no_record_of_one() -> None:
    """K6: a claim of what is left of a batch would else stand for the batch, and be looked up under a key that was never sent."""
    table = g.receipts()
    table.given(ask(g.R), ask("s"), BatchClaimed("org/p", "p.t", "", "L", 1, MEMBERS))
    assert [key for key in table.reader.data if key[:1] == BATCH] == []


def test_K6_a_member_that_was_dropped_pins_nobody_and_nothing() -> None:
    table = batched()
    del table.reader.data[record_key(RECEIPT, "s")]
    table.given(SweepDue(0, LATER))
    assert batch(table) is None
    assert forgotten(table).type == "receipt.forgotten"
