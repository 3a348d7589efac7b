"""A batch of which one member has settled and the other has not: what may be dropped, and what happens if a record is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.commands import SweepDue
from schemas.events import Event, Fault, Mode, ReceiptForgotten, ReceiptResolved, RunClosed
from schemas.states import BATCH, RECEIPT, Batch, Receipt, record_key
from streams.tools.port import Answered, CallReport, Doubtful, ProviderCall
from tests.support.dispatch import World, story, told
from tests.support.scripted_caller import value_of

HOUR = 3_600_000


def one_answer(call: ProviderCall) -> CallReport:
    """The provider's answer for *a* can be used, that for *b* cannot."""
    lost = Doubtful(Fault("secret_in_output", "the result carries a secret"))
    return CallReport(tuple(Answered(value_of("a")) if member.receipt == "a" else lost for member in call.members))


async def asked(it: World, *, repeats: int = 8) -> None:
    it.caller.scripts.extend([one_answer] * (1 + repeats))
    await it.asks("a", "batch", run="one")
    await it.asks("b", "batch", run="two")


async def command(it: World, *events: Event) -> None:
    it.owner.inbox.waiting += events
    await it.turn()


def record(it: World, name: str) -> Receipt | None:
    return it.owner.record_of(record_key(RECEIPT, name), Receipt)


def delete(it: World, key: Callable[[bytes], bool]) -> None:
    for name in [name for name in it.table.reader.data if key(name)]:
        del it.table.reader.data[name]


async def next_owner(it: World) -> None:
    await it.revoked()
    await it.returns()
    await it.turns(30.0, every=0.05)


@story()
async def test_K6_a_member_that_settled_is_not_forgotten_while_its_batch_may_be_repeated(it: World) -> None:
    """K6: the batch stood, but the input of a member that a person had forgotten was gone: the repeat found no record, which ended
    the worker, and every worker that owned the partition after it.
    """
    await asked(it, repeats=1)
    await it.turns(0.5)
    await command(it, RunClosed("one"), ReceiptForgotten("a", "ann", "wrong input", "op"))
    await it.turns(30.0, every=0.05)
    assert it.caller.asked == ["ab"] * 3
    assert len({call.idempotency_key for call in it.caller.calls}) == 1
    assert told(it) == [("a", "completed"), ("b", "completed")]
    await command(it, RunClosed("two"), ReceiptForgotten("a", "ann", "wrong input", "op"))
    kept = record(it, "a")
    assert kept is not None
    assert kept.current is None


@story()
async def test_K6_U3_a_sweep_keeps_a_settled_member_until_a_person_has_settled_the_other(it: World) -> None:
    """K6, U3: a sweep dropped the settled member of a batch whose other member was unknown; once a person had said *unpaid*, the
    next run asked for that same batch, and no worker could own the partition any more.
    """
    await asked(it)
    await it.turns(60.0, every=0.05)
    assert told(it) == [("a", "completed"), ("b", "unknown")]
    late = it.table.now_ms + 1000 * HOUR
    await command(it, RunClosed("one"), RunClosed("two"), SweepDue(late, late))
    await command(it, SweepDue(late, late))
    found = record(it, "b")
    assert found is not None
    await command(it, ReceiptResolved("b", max(found.attempts), 0, None, "ann", "not on the bill"))
    it.caller.scripts.clear()
    await it.asks("b", "batch", run="three")
    await it.turns(30.0, every=0.05)
    assert set(it.caller.asked) == {"ab"}
    assert len({call.idempotency_key for call in it.caller.calls}) == 1
    assert told(it)[-1] == ("b", "completed")


@pytest.mark.parametrize("what", ["a companion", "the batch"])
def test_B11_a_batch_that_cannot_be_repeated_as_it_was_ends_its_members_and_no_worker(what: str, tmp_path: object) -> None:
    """B11: a record that was gone ended the worker, and every one that owned the partition after it. A call of what is left of a
    batch would go under another key and be paid again, so the member is unknown until a person says what became of it.
    """

    @story()
    async def played(it: World) -> None:
        await asked(it, repeats=0)
        while not told(it):
            await it.turns(0.005)
        assert it.caller.asked == ["ab"]
        delete(it, lambda key: key == record_key(RECEIPT, "a") if what == "a companion" else key[:1] == BATCH)
        await it.turns(30.0, every=0.05)
        await next_owner(it)
        assert it.caller.asked == ["ab"]
        assert told(it) == [("a", "completed"), ("b", "unknown")]
        stored = [it.owner.record_of(key, Batch) for key in it.table.reader.data if key[:1] == BATCH]
        assert [len(batch.members) for batch in stored if batch is not None] == ([2] if what == "a companion" else [])
        # A person's word is about the operation: then it has failed, and may be asked for again, under a new key and alone.
        await command(it, ReceiptResolved("b", 1, 0, None, "ann", "not on the bill"))
        await it.turns(30.0, every=0.05)
        assert (it.caller.asked, told(it)[-1]) == (["ab"], ("b", "failed"))
        it.caller.scripts.clear()
        await it.asks("b", "batch", run="three", mode=Mode.FAILED_REFRESH)
        await it.turns(30.0, every=0.05)
        assert (it.caller.asked, told(it)[-1]) == (["ab", "b"], ("b", "completed"))
        assert len({call.idempotency_key for call in it.caller.calls}) == 2

    played(tmp_path)  # type: ignore[arg-type]
