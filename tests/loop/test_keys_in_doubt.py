"""What may have been billed leaves again under the key that it left under before, whatever has happened meanwhile (K5, K6)."""

from __future__ import annotations

from collections import defaultdict

from schemas.events import Fault, Mode
from schemas.states import BATCH
from streams.tools.port import Refused
from tests.support.dispatch import World, story, told
from tests.support.scripted_caller import doubtful, each


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
    await it.turns(0.4)
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
