"""A worker whose providers file is not that of the run, in virtual time: nothing is sent, and who asks hears why (K1, K3)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from schemas.events import (
    Ambiguous,
    BatchClaimed,
    CallsAnswered,
    CompiledColumn,
    CompiledPlay,
    Fault,
    JobStarted,
    Mode,
    RunOpened,
    ToolRequested,
)
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import RECEIPT, Receipt, record_key
from streams.calling.terms import VERSION_CHANGED, TodaysTerms
from streams.engine.compile import compile_play, scope_of
from streams.engine.rows import RowsEngine
from streams.engine.scopes import bound, scope_changed
from streams.tools.lookup import Absent
from tests.loop.test_reconciler import Doubts, Words, resolved
from tests.support.dispatch import LANE, PROVIDER, REPEATS, World, member, story, told
from tests.support.given_rows import added, ask, row, sheet
from tests.support.memory import Table
from tests.support.scripted_caller import doubtful
from tests.support.virtual_time import play

ALICE = "a11ce" * 8
#: The same provider after it has moved, to the eyes of receipts another one.
ELSEWHERE = TodaysTerms(Providers.model_validate({"providers": {"p": PROVIDER | {"base_url": "https://q.example"}}}))


def todays(it: World) -> str:
    provider = it.providers.provider("p")
    assert provider is not None
    return scope_of("p", provider)


async def asks(it: World, names: str, tool: str, *, scope: str, version: str = "1") -> None:
    column = CompiledColumn("c", f"p.{tool}", LANE, version, scope, REPEATS[tool], "{}")
    for name in names:
        asked = ToolRequested(
            name, f"run:{name}", "run", 0, LANE, f"p.{tool}", REPEATS[tool], b"{}", Mode.NORMAL, None, bound("", column)
        )
        it.say("tool-requests", asked)
    await it.turn()


def faults(it: World) -> list[Fault | None]:
    return [event.fault for event in it.answers if isinstance(event, CallsAnswered)]


@story()
async def test_K3_P4_case_D6_a_call_of_another_account_is_not_made_and_the_caller_hears_todays_scope(it: World) -> None:
    """The dispatcher looked only whether the tool exists: Bob's answer was stored under the receipt of Alice's, for ever."""
    await asks(it, "a", "never", scope=ALICE)
    await it.turns(0.5)
    assert it.caller.asked == []
    (fault,) = faults(it)
    assert fault is not None
    assert (fault.code, fault.repairable) == (scope_changed(todays(it)), True)
    lane = it.dispatcher._partitions[0].lanes[LANE]
    assert (lane.in_flight, lane.claimed) == (0, 0)


@story()
async def test_K1_case_D6_a_call_of_another_version_is_not_made_and_both_are_named(it: World) -> None:
    await asks(it, "a", "never", scope=todays(it), version="7")
    await it.turns(0.5)
    assert it.caller.asked == []
    (fault,) = faults(it)
    assert fault is not None
    assert (fault.code, fault.repairable) == (VERSION_CHANGED, True)
    assert "version '7'" in fault.message
    assert "version '1'" in fault.message


@story()
async def test_case_D6_B4_requests_of_two_accounts_never_share_a_call(it: World) -> None:
    await asks(it, "a", "batch", scope=ALICE)
    await asks(it, "bc", "batch", scope=todays(it))
    await it.turns(1.0)
    assert it.caller.asked == ["bc"]
    assert sorted(told(it)) == [("a", "failed"), ("b", "completed"), ("c", "completed")]


@story()
async def test_U1_K3_a_batch_that_may_have_been_paid_for_by_another_account_is_unknown(it: World) -> None:
    """It would have been repeated as it was, with its key, at an account that knows neither."""
    it.caller.scripts.append(doubtful)
    await asks(it, "ab", "batch", scope=todays(it))
    for _ in range(500):
        if it.caller.asked:
            break
        await it.turns(0.01)
    assert it.caller.asked == ["ab"]
    it.dispatcher.calls._terms = ELSEWHERE
    await it.turns(5.0, every=0.05)
    assert it.caller.asked == ["ab"]
    assert sorted(told(it)) == [("a", "unknown"), ("b", "unknown")]
    assert all(isinstance(end.outcome, Ambiguous) for end in it.ends)


@story()
async def test_P10_K3_a_job_of_another_account_is_neither_asked_for_nor_submitted_again(it: World) -> None:
    """Jobs are numbered by account: the same number is another's job at another account."""
    it.say("receipt-claims", BatchClaimed(LANE, "p.job", "", "gone", 1, (member("a"),)), JobStarted("a", 1, "gone", "job-1"))
    await asks(it, "a", "job", scope=ALICE)
    await it.revoked()
    await it.returns()
    await it.turns(8.0, every=0.1)
    assert it.caller.asked == []
    assert told(it) == [("a", "unknown")]


def test_U3_case_D6_an_unknown_call_of_another_account_is_not_looked_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """*Never heard of*, said by the wrong account, settled it as unpaid, and it was paid for again."""
    words = Words(Absent())

    async def moves(world: Doubts) -> None:
        world.watched._terms = TodaysTerms(world.providers)
        world.caller.scripts.append(doubtful)
        await asks(world, "a", "never", scope=todays(world))
        await world.turns(0.5)
        assert told(world) == [("a", "unknown")]
        await world.passes(1.0)
        assert words.asked
        asked = len(words.asked)
        await world.revoked()
        world.watched._terms = ELSEWHERE
        await world.returns()
        with caplog.at_level(logging.WARNING):
            await world.passes(600.0)
        assert len(words.asked) == asked
        assert resolved(world) == []
        assert "is not looked up" in caplog.text

    async def run() -> None:
        world = Doubts(tmp_path, words)
        async with world:
            await moves(world)

    play(run())


def accepted_under(account: str) -> CompiledPlay:
    """A play as a run is bound to it under a providers file that names this account."""
    provider = PROVIDER | {"auth": {"secret": "env:KEY", "account": account}}
    columns = [{"name": "c", "tool": "p.never", "input": {"x": "{{ row.x }}"}}]
    compiled, faults = compile_play(
        Play.model_validate({"name": "play", "columns": columns}),
        Providers.model_validate({"providers": {"p": provider}}),
        "org",
        0,
    )
    assert compiled is not None, faults
    return compiled


@story()
async def test_case_D6_P4_a_run_that_meets_a_worker_of_another_account_is_answered_under_that_accounts_keys(it: World) -> None:
    """The whole way: the row asks for Alice's receipt, hears of another account here, and asks for that one's, once."""
    rows = Table(RowsEngine(), partitions=1)
    old = ask(rows.turn([RunOpened("run", "org", accepted_under("alice")), added(row(0, x="a"))]))
    it.say("tool-requests", old)
    await it.turns(0.2)
    new = ask(rows.turn(it.answers))
    assert new.receipt != old.receipt
    assert it.caller.calls == []
    it.answers.clear()
    it.say("tool-requests", new)
    await it.turns(0.2)
    assert it.caller.asked == [new.receipt]
    (shown,) = sheet(rows.turn(it.answers))
    assert (shown.cells["c"].status, shown.cells["c"].receipt) == ("completed", new.receipt)
    kept = it.owner.record_of(record_key(RECEIPT, old.receipt), Receipt)
    assert kept is not None
    assert kept.current is None
