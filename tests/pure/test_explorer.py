"""The explorer on the real engine: every order of turns, faults and answers within bounds, and every trap of the protocol sprung.

All bounds are numbers of states and faults, so that the same is explored everywhere. ``python -m tests.explorer`` goes deeper.
"""

from __future__ import annotations

import pytest

from schemas.events import Answer, CallsAnswered, Mode, Repeat
from streams.engine import protocol
from streams.engine.effects import Queued
from tests.explorer import __main__ as command
from tests.explorer.model import Budget
from tests.explorer.scenarios import ONE_OF_EACH, scenario
from tests.explorer.search import search, walk
from tests.explorer.traps import TRAPS, Trap
from tests.support import given as g

STATES_MAX = 40_000
REPEATS = tuple(Repeat)


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    ("callers", "faults", "states"),
    [
        ("one", 2, 6_000),
        ("refresh when failed", 2, 6_500),
        ("two refresh when failed", 1, 350),
        ("forced", 1, 1_700),
        ("full refresh", 1, 2_000),
        ("withdrawal", 1, 2_500),
    ],
)
def test_the_promises_hold_in_every_state_within_bounds(repeat: Repeat, callers: str, faults: int, states: int) -> None:
    """L3, L4, U1, R2, R3: no call without a grant, one live caller, one bill for each epoch, and every caller has its end."""
    found = search(scenario(repeat, callers, ONE_OF_EACH._replace(faults=faults)), states_max=STATES_MAX)
    assert not found.broken, str(found)
    assert found.exhausted
    # Fewer would mean that the model has lost steps.
    assert found.states > states


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_T1_to_T12_without_its_rule_each_trap_is_found(trap: Trap) -> None:
    found = trap.springs(STATES_MAX)
    assert found.broken, f"{trap.name} goes unnoticed in {found.states} states"
    assert found.way


@pytest.mark.parametrize(
    "trap",
    # T2 shows in the bill only after 34,000 states.
    [pytest.param(trap, id=trap.name, marks=pytest.mark.deep if trap.name == "T2" else ()) for trap in TRAPS if trap.costs],
)
def test_T1_to_T11_without_its_rule_the_provider_bills_twice(trap: Trap) -> None:
    """The same traps by the provider's own bill alone, so that what is found is money and no matter of form."""
    found = trap.springs(STATES_MAX, bill_only=True)
    assert "billed" in found.broken, str(found)


@pytest.mark.parametrize("trap", list({trap.scenario: trap for trap in TRAPS}.values()), ids=lambda trap: trap.scenario.name)
@pytest.mark.deep
def test_T1_to_T12_with_all_rules_the_same_bounds_hold(trap: Trap) -> None:
    found = trap.holds(STATES_MAX)
    assert not found.broken, str(found)
    assert found.exhausted


def test_the_search_is_the_same_each_time() -> None:
    (trap,) = (trap for trap in TRAPS if trap.name == "T12")
    first, second = trap.springs(STATES_MAX), trap.springs(STATES_MAX)
    assert first == second
    assert [str(found).count("\n") for found in (first, second)] == [len(first.way)] * 2


def test_random_walks_go_further_than_all_states_can(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(6, crashes=2, takeovers=2, pauses=2, duplicates=1, lost=2, failures=1, retries=1)
    found = walk(scenario(Repeat.WITH_KEY, "full refresh", budget), walks_max=100, seed=1)
    assert not found.broken, str(found)
    assert found.depth > 35
    found = walk(scenario(Repeat.WITH_KEY, "forced", budget, "receipt"), walks_max=100, seed=1)
    assert not found.broken, str(found)
    monkeypatch.setattr(protocol, "operation", lambda _receipt, _epoch, n: n)
    found = walk(scenario(Repeat.WITH_KEY, "forced", budget), walks_max=1_000, seed=1)
    assert "two operations of one epoch at once" in found.broken


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--trap", "T4"]) == 1
    assert "without a grant" in capsys.readouterr().out
    assert command.main(["--faults", "1", "--repeat", "never", "--callers", "one"]) == 0
    assert "one, never, 1 faults: kept in" in capsys.readouterr().out


# --- what the explorer found in the protocol as it was first written -------------------------------------------


FOUND = Budget(2, lost=1, failures=1)


def test_R5_failed_means_not_billed() -> None:
    """A failed attempt fails its callers although an earlier call under the same key may still be billed: attempt 1's answer is
    lost, attempt 2 repeats it under the same key and is refused (409 while the first is under way, 401, 402).
    """
    found = search(scenario(Repeat.WITH_KEY, "one", FOUND, "failures"), states_max=STATES_MAX)
    assert not found.broken, str(found)


def test_K5_a_refresh_of_a_failure_opens_no_new_key_while_the_old_one_may_be_billed() -> None:
    """What follows: rows asks again for a repairable failure, that opens an epoch with a new key, and both are billed."""
    found = search(scenario(Repeat.WITH_KEY, "refresh when failed", FOUND, "receipt"), states_max=STATES_MAX)
    assert not found.broken, str(found)


def test_U1_a_second_refresh_of_the_same_failure_does_not_repeat_an_unknown_call() -> None:
    """Two runs meet the same repairable failure and each asks again; the first refresh's attempt becomes unknown, and the second,
    whose epoch is higher, is called for although nobody resolved it.
    """
    found = search(scenario(Repeat.NEVER, "two refresh when failed", FOUND, "receipt"), states_max=STATES_MAX)
    assert not found.broken, str(found)


@pytest.mark.parametrize("repeat", [Repeat.NEVER, Repeat.WITH_KEY])
def test_R2_a_failed_refresh_repeats_no_call_that_may_have_been_billed(repeat: Repeat) -> None:
    """A run with force meets a receipt that never failed, whose answer was lost: the failed refresh has a higher epoch, so an
    unknown call is repeated without a person (never), or a call in doubt under a new key (with-key).
    """
    found = search(scenario(repeat, "forced", Budget(1, lost=1), "receipt"), states_max=STATES_MAX)
    assert not found.broken, str(found)


@pytest.mark.parametrize("repeat", [Repeat.NEVER, Repeat.WITH_KEY])
@pytest.mark.parametrize(
    ("callers", "faults"),
    [("one", 2), ("refresh when failed", 2), ("two refresh when failed", 2), ("forced", 1), ("full refresh", 1), ("withdrawal", 1)],
)
def test_K5_U1_no_receipt_is_billed_twice_over_all_its_epochs(repeat: Repeat, callers: str, faults: int) -> None:
    budget = ONE_OF_EACH._replace(faults=faults, duplicates=0, early=0)
    found = search(scenario(repeat, callers, budget, "failures", "receipt"), states_max=STATES_MAX)
    assert not found.broken, str(found)
    assert found.exhausted


def test_K5_a_late_refusal_of_an_older_attempt_fails_nobody_while_the_newer_may_be_billed() -> None:
    """By hand: attempt 1 expired, attempt 2 under its key is in doubt, and only then is attempt 1's refusal read."""
    table = g.receipts()
    table.given(g.request(), g.claim(1, "L1"))
    table.given(g.expiry(1, "L1"))
    table.given(g.claim(2, "L2"))
    table.given(g.ambiguous(2))
    outbox = table.given(g.failed(1))
    assert not outbox.events
    (need,) = (effect.need for effect in outbox.effects if isinstance(effect, Queued))
    assert (need.n, need.epoch, need.op) == (3, 0, 1)
    outbox = table.given(g.request("c2", "f1", Mode.FAILED_REFRESH))
    (need,) = (effect.need for effect in outbox.effects if isinstance(effect, Queued))
    assert (need.n, need.epoch, need.op) == (3, 0, 1), "a refresh opens no second key meanwhile"
    table.given(g.claim(3, "L3"))
    outbox = table.given(g.failed(3))
    answers = [answer for answer in outbox.events[("tool-results", 0)] if isinstance(answer, CallsAnswered)]
    assert {(call, answer.answer, answer.n) for answer in answers for call, _ in answer.calls} == {
        ("c1", Answer.UNKNOWN, 3),
        ("c2", Answer.UNKNOWN, 3),
    }
