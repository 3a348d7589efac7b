"""What may have been billed leaves again under the key that it left under before, whatever has happened meanwhile (K5, K6)."""

from __future__ import annotations

from schemas.events import Fault, Mode
from schemas.states import BATCH
from streams.tools.port import Refused
from tests.support.dispatch import World, story, told
from tests.support.scripted_caller import Script, doubtful, each, ok


def keys_of(it: World, name: str) -> set[str]:
    """The keys under which a receipt was called for."""
    return {call.idempotency_key for call in it.caller.calls if name in (member.receipt for member in call.members)}


def delete_batches(it: World) -> None:
    for name in [name for name in it.table.reader.data if name[:1] == BATCH]:
        del it.table.reader.data[name]


# --- calls for one (K5) -------------------------------------------------------------------------------------


@story()
async def test_K5_a_lost_call_for_one_is_not_repeated_in_a_batch_of_others(it: World) -> None:
    """K5, U1: its repeat waited in the bucket of the rows that came meanwhile, and left with them under the key of a batch, which
    the provider took for another operation, and billed.
    """
    it.caller.scripts.append(doubtful)
    await it.asks("a", "batch")
    await it.turns(0.27)
    assert it.caller.asked == ["a"]
    await it.asks("bc", "batch", run="other")
    await it.turns(5.0)
    assert sorted(it.caller.asked) == ["a", "a", "bc"]
    assert len(keys_of(it, "a")) == 1
    assert sorted(told(it)) == [(name, "completed") for name in "abc"]


@story()
async def test_K5_two_lost_calls_for_one_are_not_repeated_as_a_batch(it: World) -> None:
    """K5: two that were lost one after the other were repeated together, so both were billed twice."""
    it.caller.scripts.extend([doubtful] * 4)
    await it.asks("a", "batch")
    await it.turns(0.26)
    await it.asks("b", "batch")
    await it.turns(10.0)
    assert set(it.caller.asked) == {"a", "b"}
    assert [len(keys_of(it, name)) for name in "ab"] == [1, 1]
    assert sorted(told(it)) == [("a", "completed"), ("b", "completed")]


@story()
async def test_K5_a_lost_call_for_one_goes_alone_under_the_next_owner_too(it: World) -> None:
    """K5: a new owner bucketed all that it found anew, what was in doubt with what was not."""
    it.caller.scripts.append(doubtful)
    await it.asks("a", "batch")
    await it.turns(0.27)
    assert it.caller.asked == ["a"]
    await it.asks("b", "batch", run="other")
    await it.revoked()
    await it.returns()
    await it.turns(10.0)
    assert sorted(it.caller.asked) == ["a", "a", "b"]
    assert len(keys_of(it, "a")) == 1


# --- batches (K6) -------------------------------------------------------------------------------------------

refused = each(lambda _: Refused(Fault("http_402", "no credit", True)))


def batches_lost_and_calls_for_one_refused(lost: int) -> Script:
    """By what is called for and not by its turn: how long a repeat waits is left to chance."""
    answers = iter([doubtful] * lost)
    return lambda call: refused(call) if len(call.members) == 1 else next(answers, ok)(call)


@story()
async def test_K6_a_lost_batch_is_repeated_as_it_was_after_a_refresh_of_a_member_was_refused(it: World) -> None:
    """K6: the batch to be repeated was read off the last attempt, whatever its epoch. The batch *ab* was lost, a full refresh of
    *a* was refused, and *a* was asked for again alone, under a key of its own.
    """
    it.caller.scripts.extend([batches_lost_and_calls_for_one_refused(2)] * 10)
    await it.asks("ab", "batch", run="one")
    await it.turns(0.27)
    await it.asks("a", "batch", run="two", mode=Mode.FULL_REFRESH)
    await it.turns(10.0)
    assert it.caller.asked.count("a") == 1  # the refresh
    assert set(it.caller.asked) == {"a", "ab"}
    assert len(keys_of(it, "b")) == 1
    assert sorted(told(it)) == [("a", "completed"), ("a", "failed"), ("b", "completed")]


@story()
async def test_K6_a_batch_of_which_the_record_is_gone_is_not_repeated_alone_once_its_claim_was_given_back(it: World) -> None:
    """K6: the claim of a batch of which the record was gone names no batch. Where that claim was given back, or ended with its
    worker, it was the last attempt, and its member was called for alone, under another key, while the batch was in doubt.
    """
    it.caller.scripts.append(doubtful)
    await it.asks("ab", "batch")
    await it.turns(0.27)
    assert it.caller.asked == ["ab"]
    delete_batches(it)
    while len(it.claims) < 3:
        await it.passes(0.05)
        if len(it.claims) == 2:
            # A new owner before the claim was folded: it was never granted, so it is given back.
            await it.revoked()
            await it.returns()
        await it.turn()
    await it.turns(20.0, every=0.05)
    assert [claim.batch for claim in it.claims[1:]] == [""] * (len(it.claims) - 1)
    assert it.caller.asked == ["ab"]
    assert sorted(told(it)) == [("a", "unknown"), ("b", "unknown")]
