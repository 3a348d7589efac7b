"""What a sweep keeps small: a receipt that is forced each day, one that nobody asks about again, one with very many callers."""

from __future__ import annotations

import msgspec
import pytest

from schemas.commands import AnswersDue, RecoveryEnded, SweepDue, SweepGoesOn
from schemas.events import AttemptEnded, Failed, Fault, Mode, Repeat, RunClosed
from schemas.states import (
    ANSWERED,
    ASK,
    BATCH,
    RECEIPT,
    VALUE,
    WAITER,
    Answered,
    Attempt,
    Batch,
    Flag,
    Out,
    Receipt,
    StoredValue,
    Waiter,
    record_key,
)
from streams.engine.effects import KeptAside
from streams.engine.port import Outbox, Wake
from streams.engine.receipts import INLINE_BYTES_MAX, ReceiptsEngine
from streams.engine.sweep import FORGOTTEN, FORGOTTEN_CALLERS_MAX, LOOKED_MAX, PAUSE_MS, PORTION_MAX, SweepPolicy, is_stub
from streams.public.receiptview import state_of
from streams.table import WorkingSet
from tests.pure.test_sweep import HOUR, LARGE, LATER, forgotten, keys, settled, swept
from tests.support import given as g
from tests.support.memory import Table

SMALL = '"' + "x" * (INLINE_BYTES_MAX - 10) + '"'
SECOND = ANSWERED + b"~"


def forced(table: Table, number: int, *, text: str | None = SMALL, mode: Mode = Mode.FULL_REFRESH) -> None:
    """One more run pays for the receipt again, and ends; the provider refuses where there is no text."""
    run = f"run{number}"
    table.given(g.request(f"{run}:key:check", f"{number:040}", mode, run=run))
    table.given(g.claim(number, f"{number:032}", epoch=number, op=number))
    if text is None:
        table.given(AttemptEnded(g.R, number, number, f"{number:032}", Failed(Fault("refused", "n" * 1000))))
    else:
        table.given(g.value(number, text, epoch=number, lease=f"{number:032}"))
    table.given(RunClosed(run))


def goes_on(outbox: Outbox) -> list[SweepGoesOn | SweepDue]:
    found = [effect.command for effect in outbox.effects if isinstance(effect, Wake) and not isinstance(effect.command, AnswersDue)]
    return [command for command in found if isinstance(command, SweepGoesOn | SweepDue)]


# --- a receipt that is forced each day ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [SMALL, None], ids=["values", "refusals"])
def test_U3_a_receipt_that_is_forced_again_and_again_keeps_only_what_somebody_can_be_told(text: str | None) -> None:
    """Growth: each forced run left its value or its refusal in the receipt's record, up to 1 KiB of it, which is rewritten with
    every change; after some nine thousand of them the record could not be written any more.
    """
    table = g.receipts()
    for number in range(1, 41):
        forced(table, number, text=text)
        swept(table)
    receipt = g.state(table)
    assert len(table.reader.data[record_key(RECEIPT, g.R)]) < 40 * 150 + 1200
    assert sorted(receipt.attempts) == list(range(1, 41))
    assert [n for n, attempt in receipt.attempts.items() if attempt.output is not None or attempt.fault is not None] == [40]
    (answer,) = table.given(g.request("next:0:check", run="next")).events[("tool-results", 0)]
    assert answer.n == 40  # type: ignore[attr-defined]


def test_R2_a_late_copy_of_an_old_refresh_is_no_new_one_and_a_late_value_no_news() -> None:
    table = g.receipts()
    for number in (1, 2, 3):
        forced(table, number)
    swept(table)
    before = g.state(table)
    assert before.refreshes == [f"{number:040}" for number in (1, 2, 3)]
    late = table.given(g.value(1, SMALL, epoch=1))
    assert [effect for effect in late.effects if isinstance(effect, KeptAside)] == []
    assert g.state(table) == before
    outbox = table.given(g.request("again:0:check", f"{1:040}", Mode.FULL_REFRESH, run="again"))
    assert g.needs(outbox) == []
    assert outbox.events[("tool-results", 0)][0].n == 3  # type: ignore[attr-defined]


def test_U3_large_values_of_older_refreshes_go_and_the_current_one_stays() -> None:
    table = g.receipts()
    for number in (1, 2, 3):
        forced(table, number, text=LARGE)
    swept(table)
    assert keys(table, VALUE) == [record_key(VALUE, g.R, "3")]
    swept(table)
    (answer,) = table.given(g.request("next:0:check", run="next")).events[("tool-results", 0)]
    assert answer.output == LARGE.encode()  # type: ignore[attr-defined]


def test_S5_what_was_paid_for_and_not_used_stays_with_its_attempt() -> None:
    """A second value of the same epoch is salvage: nobody was given it, so it is not superseded by the one that counts."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"), g.expiry(1, "L1"))
    table.given(g.claim(2, "L2"), g.value(2, '"used"', lease="L2"), g.value(1, '"late"', lease="L1"), RunClosed("run"))
    swept(table)
    assert [attempt.output for attempt in g.state(table).attempts.values()] == [b'"late"', b'"used"']


def test_U2_the_faults_of_what_is_in_doubt_stay() -> None:
    """An attempt in doubt and a refusal behind it under its key are what a person is shown and a caller is told, also after a
    refresh was refused for itself.
    """
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"), g.ambiguous(1))
    table.given(g.claim(2, "L2"), g.failed(2))
    table.given(
        g.request("run:1:c", "f1", Mode.FULL_REFRESH), g.claim(3, "L3", epoch=1, op=3), g.failed(3, epoch=1), RunClosed("run")
    )
    before = g.state(table)
    swept(table)
    assert [attempt.fault for attempt in g.state(table).attempts.values()] == [g.FAULT] * 3
    assert g.state(table).attempts == before.attempts


def test_R2_a_refusal_that_a_caller_can_still_be_told_stays() -> None:
    """A later refusal of a lower epoch does not stand for it."""
    table = g.receipts()
    table.given(g.request("run:0:c", "f1", Mode.FAILED_REFRESH), g.claim(1, "L1", epoch=1), g.failed(1, epoch=1))
    table.given(g.claim(2, "L2", epoch=0, op=2), g.failed(2), RunClosed("run"))
    swept(table)
    assert [attempt.fault for attempt in g.state(table).attempts.values()] == [g.FAULT, g.FAULT]


# --- a listener that nothing can reach any more ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["swept", "forgotten"])
def test_U3_who_listened_for_what_a_person_has_settled_as_unpaid_pins_nothing(how: str) -> None:
    """U3: a caller whose call was resolved as unpaid after its run's end was told *unknown* for ever: its receipt could neither be
    forgotten nor swept, and each sweep looked at it again.
    """
    table = g.receipts()
    table.given(g.request("run:0:c", repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1), RunClosed("run"))
    swept(table, drop=True)
    assert [waiter.flag for waiter in g.state(table).waiters.values()] == [Flag.UNKNOWN]
    assert forgotten(table).code == "in_use"
    table.given(g.resolved(1))
    assert state_of(g.state(table)) == "pending"
    if how == "swept":
        for _ in range(3):
            swept(table, drop=True)
        assert keys(table, ANSWERED) == []
    else:
        assert forgotten(table).type == "receipt.forgotten"
    assert is_stub(g.state(table))


def test_U3_who_listens_and_whose_run_goes_on_stays() -> None:
    table = g.receipts()
    table.given(g.request("run:0:c", repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1))
    swept(table, drop=True)
    assert forgotten(table).code == "in_use"
    assert list(g.state(table).waiters) == ["run:0:c"]


# --- a stub ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['"wrong"', LARGE], ids=["small", "large"])
def test_U3_a_late_value_of_what_was_forgotten_is_forgotten_by_the_next_word(text: str) -> None:
    """U3: a late copy of the value made the stub a completed receipt that was still taken for a stub: it was said to be forgotten
    and was not, and the next run got the value that a person had just thrown away.
    """
    table = settled()
    forgotten(table)
    table.given(g.value(1, text, lease="L1"))
    assert g.state(table).current == (0, 1)
    assert forgotten(table).type == "receipt.forgotten"
    assert g.state(table) == Receipt(attempts={1: Attempt(lease=FORGOTTEN, op=1, released=True)}, lane="org/p", tool="p.t")
    assert keys(table, VALUE) == []
    assert [need.n for need in g.needs(table.given(g.request("next:0:check", run="next")))] == [2]


# --- very many ------------------------------------------------------------------------------------------------------


def crowd(count: int, *, open_run_at: int | None = None) -> Table:
    """A settled receipt with so many further callers of its ended run in records of their own; one may be of a run that goes on."""
    table = settled(Table(ReceiptsEngine(sweep=SweepPolicy(HOUR, HOUR, HOUR))))
    waiter = msgspec.msgpack.encode(Waiter("run", 0, flag=Flag.DONE))
    for number in range(count):
        run = "other" if number == open_run_at else "run"
        table.reader.data[record_key(WAITER, g.R, f"{run}:{number:06}:check")] = waiter
    receipt = g.state(table)
    receipt.overflow += count
    table.reader.data[record_key(RECEIPT, g.R)] = msgspec.msgpack.encode(receipt)
    return table


def test_U3_a_sweep_of_very_many_callers_goes_in_pages() -> None:
    """Growth: one turn dropped all callers of a receipt at once; a million of them stood still for longer than a session lasts."""
    table = crowd(2 * LOOKED_MAX)
    entry = keys(table, ANSWERED)
    left = [len(keys(table, WAITER))]
    command: SweepDue | SweepGoesOn = SweepDue(0, LATER)
    for _ in range(2):
        outbox = table.given(command)
        assert keys(table, ANSWERED) == entry
        left.append(len(keys(table, WAITER)))
        assert left[-2] - LOOKED_MAX <= left[-1] < left[-2]
        (wake,) = [effect for effect in outbox.effects if isinstance(effect, Wake)]
        assert wake.at_ms == table.now_ms + PAUSE_MS
        (command,) = goes_on(outbox)
        assert isinstance(command, SweepGoesOn)
        assert (command.receipt, command.until_ms, command.left) == (g.R, LATER, False)
    outbox = table.given(command)
    assert (g.state(table).waiters, g.state(table).overflow, keys(table, WAITER)) == ({}, 0, [])
    assert [key[:2] for key in keys(table, ANSWERED)] == [SECOND]
    # It rests until the next sweep is due.
    assert [type(command) for command in goes_on(outbox)] == [SweepDue]
    assert [effect.at_ms for effect in outbox.effects if isinstance(effect, Wake)] == [table.now_ms + HOUR]


def test_U3_a_caller_of_the_first_page_whose_run_goes_on_brings_the_receipt_back() -> None:
    table = crowd(LOOKED_MAX, open_run_at=3)
    table.now_ms += HOUR
    (command,) = goes_on(table.given(SweepDue(0, table.now_ms)))
    assert isinstance(command, SweepGoesOn)
    assert command.left
    table.given(command)
    assert keys(table, WAITER) == [record_key(WAITER, g.R, "other:000003:check")]
    assert [key[:2] for key in keys(table, ANSWERED)] == [ANSWERED + b"0"]
    table.given(RunClosed("other"))
    swept(table)
    assert keys(table, WAITER) == []


def test_U3_a_new_owner_goes_on_with_the_pages_of_the_last_one() -> None:
    """A command that waits dies with its owner; the entry of the index does not."""
    table = crowd(LOOKED_MAX)
    table.given(SweepDue(0, LATER))
    table.generation += 1
    table.given(RecoveryEnded())
    table.given(SweepDue(0, LATER))
    assert keys(table, WAITER) == []
    assert [key[:2] for key in keys(table, ANSWERED)] == [SECOND]


def test_U3_a_receipt_that_was_forgotten_between_two_pages_is_passed_over() -> None:
    table = crowd(LOOKED_MAX)
    (command,) = goes_on(table.given(SweepDue(0, LATER)))
    assert forgotten(table).type == "receipt.forgotten"
    table.given(command)
    assert keys(table, WAITER, ANSWERED) == []
    assert is_stub(g.state(table))


def many(stage: bytes, counts: list[int]) -> Table:
    """Settled receipts without callers, in as many entries of the index."""
    table = Table(ReceiptsEngine(sweep=SweepPolicy(HOUR, HOUR, HOUR)))
    receipt = msgspec.msgpack.encode(Receipt(attempts={1: Attempt("L", out=Out.VALUE, value="v", output=b"1")}, current=(0, 1)))
    for place, count in enumerate(counts):
        names = tuple(f"{place}-{number:05}" for number in range(count))
        table.reader.data[stage + f"{1:015d}:{place}".encode()] = msgspec.msgpack.encode(Answered(names))
        for name in names:
            table.reader.data[record_key(RECEIPT, name)] = receipt
    return table


@pytest.mark.parametrize(("stage", "drop_before_ms"), [(ANSWERED, 0), (SECOND, LATER)], ids=["callers", "receipts"])
@pytest.mark.parametrize("counts", [[LOOKED_MAX // 2, 1], [LOOKED_MAX // 2 + 1]], ids=["between entries", "within one"])
def test_U3_one_turn_looks_at_so_many_receipts_and_no_more(stage: bytes, drop_before_ms: int, counts: list[int]) -> None:
    table = many(stage, counts)
    due = SweepDue(drop_before_ms, LATER)

    def left() -> int:
        entries = (
            WorkingSet(table.reader).get(key, Answered)
            for key in keys(table, ANSWERED)
            if key[:2] == stage + b"0"[: 2 - len(stage)]
        )
        return sum(len(entry.receipts) for entry in entries if entry is not None)

    assert goes_on(table.given(due)) == [due]
    assert left() == 1
    table.given(due)
    assert left() == 0
    gone = sum(is_stub(msgspec.msgpack.decode(table.reader.data[key], type=Receipt)) for key in keys(table, RECEIPT))
    assert gone == (sum(counts) if drop_before_ms else 0)
    if not drop_before_ms:
        entries = [msgspec.msgpack.decode(table.reader.data[key], type=Answered) for key in keys(table, ANSWERED)]
        assert sum(len(entry.receipts) for entry in entries) == sum(counts)


def test_U3_the_members_of_a_batch_are_looked_at_within_the_same_room() -> None:
    table = many(ANSWERED, [2])
    attempt = Attempt("L", batch="batch:1", out=Out.VALUE, value="v", output=b"1")
    table.reader.data[record_key(RECEIPT, "0-00000")] = msgspec.msgpack.encode(Receipt(attempts={1: attempt}, current=(0, 1)))
    members = tuple((f"{number:040}", 0, 1) for number in range(LOOKED_MAX))
    table.reader.data[record_key(BATCH, "batch:1")] = msgspec.msgpack.encode(Batch("p.t", "org/p", members))
    due = SweepDue(0, LATER)
    assert goes_on(table.given(due)) == [due]
    first, second = (msgspec.msgpack.decode(table.reader.data[key], type=Answered).receipts for key in keys(table, ANSWERED))
    assert {first, second} == {("0-00000",), ("0-00001",)}
    assert keys(table, BATCH) == []


def test_U3_very_many_callers_that_came_since_go_first_and_the_receipt_after_them() -> None:
    table = settled()
    swept(table)
    table.turn([g.request(f"run:{number:02}:again") for number in range(40)])
    table.given(RunClosed("run"))
    table.now_ms += HOUR
    table.given(SweepDue(table.now_ms, 0))
    assert g.state(table).current == (0, 1)
    for _ in range(2):
        swept(table, drop=True)
    assert is_stub(g.state(table))


def test_U3_a_receipt_with_more_callers_than_one_turn_can_drop_is_not_forgotten_in_one() -> None:
    table = settled()
    receipt = g.state(table)
    receipt.overflow = FORGOTTEN_CALLERS_MAX + 1
    table.reader.data[record_key(RECEIPT, g.R)] = msgspec.msgpack.encode(receipt)
    told = forgotten(table)
    assert (told.type, told.code) == ("receipt.rejected", "in_use")
    assert told.message.startswith("it has 20,001 callers")


def test_U3_a_portion_is_so_many_entries_even_where_they_are_small() -> None:
    table = many(ANSWERED, [1] * (PORTION_MAX + 1))
    due = SweepDue(0, LATER)
    assert goes_on(table.given(due)) == [due]
    assert len(keys(table, ANSWERED)) == PORTION_MAX + 1
    assert goes_on(table.given(due)) != [due]


def test_U3_values_are_dropped_by_their_names_those_kept_aside_too() -> None:
    table = g.receipts()
    table.given(g.request("run:0:c"), g.claim(1, "L1"), g.value(1, LARGE), g.value(1, '"other"'), RunClosed("run"))
    assert len(keys(table, VALUE)) == 2
    assert forgotten(table).type == "receipt.forgotten"
    assert keys(table, VALUE) == []
    assert WorkingSet(table.reader).get(record_key(VALUE, g.R, "1"), StoredValue) is None


def test_U3_a_large_input_goes_with_its_receipt() -> None:
    table = g.receipts()
    table.given(msgspec.structs.replace(g.request("run:0:c"), input=LARGE.encode()), g.claim(1, "L1"), g.value(1), RunClosed("run"))
    assert len(keys(table, ASK)) == 1
    assert forgotten(table).type == "receipt.forgotten"
    assert keys(table, ASK) == []
