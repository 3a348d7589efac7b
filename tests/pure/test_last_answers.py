"""What a sweep knows of when a receipt was used last, and what comes for receipts that were dropped (U3, R9, L6)."""

from __future__ import annotations

import msgspec
import pytest

from schemas.beside import LAST_ANSWER, LastAnswer
from schemas.commands import SweepDue
from schemas.events import Answer, AttemptEnded, BatchClaimed, CallsAnswered, ClaimedMember, Mode, RunClosed, Value
from schemas.states import ANSWERED, BATCH, RECEIPT, Answered, Receipt, record_key
from streams.engine.port import Outbox
from streams.engine.sweep import is_stub
from tests.pure.test_sweep import HOUR, LATER, ask, forgotten, keys, swept
from tests.support import given as g
from tests.support.memory import Table

DAY = 24 * HOUR
KEPT_DAYS = 30
SECOND = ANSWERED + b"~"


def begun() -> Table:
    """A receipt whose value came on day 100; its run has ended."""
    table = g.receipts()
    table.now_ms = 100 * DAY
    table.given(g.request("r0:k:c", run="r0"), g.claim(1, "L1"), g.value(1), RunClosed("r0"))
    return table


def used(table: Table, run: str) -> Outbox:
    outbox = table.given(g.request(f"{run}:k:c", run=run))
    table.given(RunClosed(run))
    return outbox


def told(outbox: Outbox) -> list[Answer]:
    return [event.answer for events in outbox.events.values() for event in events if isinstance(event, CallsAnswered)]


def nightly(table: Table, keep_days: int) -> None:
    """The sweep two hours after the answers of a day, until it rests; callers are kept for one hour."""
    table.now_ms += 2 * HOUR
    for _ in range(4):
        table.given(SweepDue(table.now_ms - keep_days * DAY if keep_days else 0, table.now_ms - HOUR))
    table.now_ms -= 2 * HOUR


@pytest.mark.parametrize("keep_days", [0, KEPT_DAYS])
def test_U3_a_receipt_that_is_used_each_day_stands_in_the_index_once(keep_days: int) -> None:
    """Growth: each day on which a receipt was used left one more entry of it, which nothing ever looked at where receipts are kept
    for ever.
    """
    table = begun()
    for day in range(100):
        table.now_ms += DAY
        used(table, f"r{day + 1}")
        nightly(table, keep_days)
        entries = [msgspec.msgpack.decode(table.reader.data[key], type=Answered) for key in keys(table, ANSWERED)]
        assert [entry.receipts for entry in entries] == [(g.R,)]
    assert len(keys(table, LAST_ANSWER)) == 1


def test_U3_a_receipt_goes_so_long_after_its_last_use_and_not_after_its_first() -> None:
    """Money: the oldest entry decided, so a receipt that was used on all of thirty days was dropped on the thirtieth, and paid anew
    on the next.
    """
    table = begun()
    for day in range(1, 2 * KEPT_DAYS + 2):
        table.now_ms += DAY
        assert told(used(table, f"r{day}")) == [Answer.COMPLETED]
        nightly(table, KEPT_DAYS)
    for _ in range(KEPT_DAYS - 1):
        table.now_ms += DAY
        nightly(table, KEPT_DAYS)
    assert g.state(table).current == (0, 1)
    for _ in range(2):
        table.now_ms += DAY
        nightly(table, KEPT_DAYS)
    assert is_stub(g.state(table))
    assert keys(table, ANSWERED, LAST_ANSWER) == []


def test_U3_a_receipt_that_was_used_a_moment_ago_is_not_dropped_though_no_sweep_has_seen_that_yet() -> None:
    table = begun()
    nightly(table, KEPT_DAYS)
    table.now_ms += KEPT_DAYS * DAY
    used(table, "late")
    table.now_ms += HOUR // 2
    table.given(SweepDue(table.now_ms - KEPT_DAYS * DAY, table.now_ms - HOUR))
    assert told(used(table, "next")) == [Answer.COMPLETED]
    nightly(table, KEPT_DAYS)
    table.now_ms += (KEPT_DAYS - 1) * DAY
    nightly(table, KEPT_DAYS)
    assert g.state(table).current == (0, 1)
    table.now_ms += 2 * DAY
    nightly(table, KEPT_DAYS)
    assert is_stub(g.state(table))


def test_U3_a_limit_that_is_set_later_finds_the_receipts_of_before() -> None:
    table = begun()
    nightly(table, 0)
    table.now_ms += 40 * DAY
    nightly(table, 0)
    assert g.state(table).current == (0, 1)
    nightly(table, KEPT_DAYS)
    assert is_stub(g.state(table))


def test_U3_N6_entries_of_before_there_were_such_records_count_until_one_is_made() -> None:
    """A table of before has an entry for each day of use: the first one that comes up drops what nobody used since, as it did, but
    nothing that was used.
    """
    table = begun()
    swept(table)
    (name,) = keys(table, ANSWERED)
    for key in keys(table, LAST_ANSWER):
        del table.reader.data[key]
    for day in range(101, 104):
        table.reader.data[SECOND + f"{day * DAY:015d}:0".encode()] = table.reader.data[name]
    table.now_ms = 104 * DAY
    used(table, "next")
    nightly(table, 0)
    table.given(SweepDue(103 * DAY, 0))
    assert g.state(table).current == (0, 1)
    assert len(keys(table, ANSWERED)) == 1
    (last,) = [msgspec.msgpack.decode(table.reader.data[key], type=LastAnswer) for key in keys(table, LAST_ANSWER)]
    assert last == LastAnswer(104 * DAY, 104 * DAY)


def test_U3_one_record_of_the_index_takes_many_whose_last_day_is_put_off() -> None:
    table = g.receipts()
    names = [f"{number:03}" for number in range(50)]
    for name in names:
        table.now_ms += 1
        claim = BatchClaimed("org/p", "p.t", "", f"L{name}", 1, (ClaimedMember(name, 1, 0, 1),))
        table.given(ask(name), claim, AttemptEnded(name, 1, 0, f"L{name}", Value(b"1")))
    table.given(RunClosed("run"))
    for _ in range(20):
        swept(table)
    first_day = table.now_ms
    table.now_ms += 2 * DAY
    for name in names:
        table.now_ms += 1
        table.given(msgspec.structs.replace(ask(name), call=f"next:{name}:c", run="next"))
    table.given(RunClosed("next"))
    for _ in range(20):
        table.given(SweepDue(0, table.now_ms))
    for _ in range(20):
        table.given(SweepDue(first_day, 0))
    assert len(keys(table, ANSWERED)) < 20
    entries = [msgspec.msgpack.decode(table.reader.data[key], type=Answered) for key in keys(table, ANSWERED)]
    assert sorted(name for entry in entries for name in entry.receipts) == names


# --- what comes for a receipt that was dropped ----------------------------------------------------------------


def late() -> Table:
    """Attempt 1 of a refresh was lost and attempt 2 brought a value; the receipt was dropped, then the value of 1 came."""
    table = g.receipts()
    table.given(g.request("r1:k:c", "f1", Mode.FULL_REFRESH, run="r1"))
    table.given(g.claim(1, "L1", epoch=1), g.expiry(1, "L1"))
    table.given(g.claim(2, "L2", epoch=1), g.value(2, '"two"', epoch=1, lease="L2"), RunClosed("r1"))
    swept(table)
    assert forgotten(table).type == "receipt.forgotten"
    swept(table, drop=True)
    table.given(g.value(1, '"late"', epoch=1, lease="L1"))
    return table


def test_R9_L6_the_value_that_counts_stays_whichever_attempt_it_is_of() -> None:
    """Crash of each owner: an attempt without a claim had epoch 0, so the value that counted was thrown away as one of an epoch
    below itself, and the next request raised.
    """
    table = late()
    for run in ("r2", "r3", "r4"):
        (answer,) = used(table, run).events[("tool-results", 0)]
        assert isinstance(answer, CallsAnswered)
        assert (answer.n, answer.output) == (1, b'"late"')
        swept(table)
    assert g.state(table).attempts[1].epoch == 1


def test_R9_a_value_that_counts_stays_in_a_table_of_before() -> None:
    """The same record as an owner of before has written it, with the wrong epoch, and not yet swept."""
    table = late()
    receipt = g.state(table)
    receipt.attempts[1].epoch = 0
    table.reader.data[record_key(RECEIPT, g.R)] = msgspec.msgpack.encode(receipt)
    used(table, "r2")
    swept(table)
    assert told(used(table, "r3")) == [Answer.COMPLETED]


@pytest.mark.parametrize("what", ["a late value", "a tombstone"])
def test_U3_what_comes_for_a_dropped_receipt_is_dropped_some_day_too(what: str) -> None:
    """Growth: neither answers anybody, and only who is answered was put into the index."""
    table = begun()
    forgotten(table)
    swept(table, drop=True, until_ms=table.now_ms + HOUR)
    assert keys(table, ANSWERED) == []
    table.given(g.value(1, lease="L1") if what == "a late value" else g.withdrawn("r0:k2:c"))
    assert not is_stub(g.state(table))
    for _ in range(2):
        swept(table, drop=True, until_ms=table.now_ms + HOUR)
    assert is_stub(g.state(table))
    assert keys(table, ANSWERED, LAST_ANSWER) == []


def test_U3_a_receipt_that_was_only_withdrawn_goes() -> None:
    """Growth: a cell that was cancelled in the turn in which it asked left its receipt for ever."""
    table = g.receipts()
    table.given(g.request("run:k:c"), g.withdrawn("run:k:c"), RunClosed("run"))
    for _ in range(2):
        swept(table, drop=True)
    assert keys(table, RECEIPT, ANSWERED, LAST_ANSWER) == []


# --- batches --------------------------------------------------------------------------------------------------


def test_K6_a_claim_that_wins_nothing_leaves_no_batch_behind() -> None:
    """Growth: no attempt named such a batch, so no sweep ever dropped it."""
    table = g.receipts()
    table.given(ask("a"), ask("b"))
    for name, batch in (("L1", "batch:1"), ("L2", "batch:2")):
        table.given(BatchClaimed("org/p", "p.t", batch, name, 1, (ClaimedMember("a", 1, 0, 1), ClaimedMember("b", 1, 0, 1))))
    assert keys(table, BATCH) == [record_key(BATCH, "batch:1")]
    table.given(AttemptEnded("a", 1, 0, "L1", Value(b"1")), AttemptEnded("b", 1, 0, "L1", Value(b"1")), RunClosed("run"))
    for _ in range(2):
        swept(table, drop=True, until_ms=LATER)
    assert keys(table, BATCH) == []
    assert is_stub(msgspec.msgpack.decode(table.reader.data[record_key(RECEIPT, "a")], type=Receipt))
