"""Who follows a call of another run waits for a bounded time (R3, R4): deadlines, what they tell, and that the receipt stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from schemas.commands import RecoveryEnded, WaitsDue
from schemas.events import (
    AddedRow,
    Answer,
    CallsAnswered,
    CallWithdrawn,
    Event,
    Mark,
    Mode,
    Repeat,
    RowsAdded,
    RunOpened,
    ToolRequested,
)
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import FOLLOWERS, Flag, Followers
from streams.app import waits_of
from streams.engine.compile import compile_play
from streams.engine.port import Outbox, Wake
from streams.engine.protocol import standing
from streams.engine.receipts import WAITERS_INLINE, ReceiptsEngine
from streams.engine.rows import RowsEngine
from streams.engine.waits import WAIT_MS, Waits
from streams.settings import Settings
from streams.userfiles import load_providers
from tests.support import given as g
from tests.support.memory import Table

FULL, NORMAL = Mode.FULL_REFRESH, Mode.NORMAL


def wakes(outbox: Outbox) -> list[tuple[int, object]]:
    return [(effect.at_ms, effect.command) for effect in outbox.effects if isinstance(effect, Wake)]


def told(outbox: Outbox) -> list[CallsAnswered]:
    return [event for event in outbox.events.get(("tool-results", 0), []) if isinstance(event, CallsAnswered)]


def withdrawals(outbox: Outbox) -> list[object]:
    return [event for event in outbox.events.get(("tool-requests", 0), []) if isinstance(event, CallWithdrawn)]


def running(*, wait: Waits | None = None) -> Table:
    """A receipt that run ``one`` asked for and of which attempt 1 is live."""
    table = Table(ReceiptsEngine(wait))
    table.given(g.request("owner", run="one"), g.claim(1, "L1"))
    return table


def followed(table: Table, *, seconds: float = 10, mode: Mode = NORMAL, run: str = "two") -> WaitsDue:
    """A request of another run comes some seconds later; the command that ends its wait."""
    table.now_ms += int(seconds * 1000)
    outbox = table.given(g.request(f"follower-{run}", f"refresh-{run}" if mode else None, mode, run=run))
    ((_, due),) = wakes(outbox)
    assert isinstance(due, WaitsDue)
    return due


def over(table: Table, due: WaitsDue) -> Outbox:
    """Its wait is over."""
    table.now_ms = due.met_ms + WAIT_MS
    return table.given(due)


def test_R4_a_follower_of_another_runs_call_is_looked_at_after_five_minutes() -> None:
    table = running()
    assert wakes(table.given(g.request("c2", run="two"))) == [(table.now_ms + 300_000, WaitsDue(g.R, table.now_ms))]


def test_R4_when_its_wait_is_over_it_fails_and_the_receipt_is_untouched() -> None:
    table = running()
    due = followed(table)
    before = g.state(table)
    outbox = over(table, due)
    (answer,) = told(outbox)
    assert answer.answer is Answer.FAILED
    assert answer.calls == (("follower-two", Mark.IN_FLIGHT),)
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.repairable) == ("wait_timed_out", True)
    assert answer.fault.message == "wait timed out: after 300 s it still met running, attempt 1 of another run"
    assert withdrawals(outbox) == [CallWithdrawn(g.R, "follower-two")]
    table.given(CallWithdrawn(g.R, "follower-two"))
    after = g.state(table)
    assert (after.attempts, after.current, after.open) == (before.attempts, before.current, True)
    assert after.waiters["follower-two"].flag is Flag.WITHDRAWN
    (late,) = told(table.given(g.value(1)))
    assert late.calls == (("owner", Mark.LIVE),)


def test_R4_a_value_that_comes_before_the_withdrawal_is_no_second_answer() -> None:
    table = running()
    over(table, followed(table))
    (answer,) = told(table.given(g.value(1)))
    assert [call for call, _ in answer.calls] == ["owner"]


def test_R4_the_end_of_a_wait_is_read_once() -> None:
    table = running()
    due = followed(table)
    assert told(over(table, due))
    again = over(table, due)
    assert (told(again), withdrawals(again)) == ([], [])
    assert not list(table.reader.scan(FOLLOWERS))


@pytest.mark.parametrize("end", [g.value(1), g.failed(1), g.ambiguous(1, used_up=True)])
def test_R4_who_was_answered_in_time_hears_nothing_more(end: object) -> None:
    table = running()
    due = followed(table)
    assert any("follower-two" in call for answer in told(table.given(end)) for call, _ in answer.calls)  # type: ignore[arg-type]
    outbox = over(table, due)
    assert (told(outbox), withdrawals(outbox)) == ([], [])


def test_R4_an_expired_lease_is_claimed_at_once_and_its_followers_wait_for_their_own_call() -> None:
    table = running()
    due = followed(table)
    table.given(g.expiry(1, "L1"))
    outbox = over(table, due)
    assert (told(outbox), withdrawals(outbox)) == ([], [])
    table.given(g.claim(2, "L2"))
    (answer,) = told(table.given(g.value(2)))
    assert {call for call, _ in answer.calls} == {"owner", "follower-two"}


def test_R4_one_who_withdrew_meanwhile_is_told_nothing() -> None:
    table = running()
    due = followed(table)
    table.given(g.withdrawn("follower-two"))
    assert told(over(table, due)) == []


def test_R4_who_waits_in_a_queue_or_for_its_own_runs_call_has_no_deadline() -> None:
    table = g.receipts()
    assert wakes(table.given(g.request("c1", run="one"), g.request("c2", run="two"))) == []
    table.given(g.claim(1, "L1"))
    assert wakes(table.given(g.request("c3", run="one"))) == []
    assert wakes(table.given(g.value(1))) == []
    assert wakes(table.given(g.request("c4", run="three"))) == []


def test_R4_each_turns_followers_have_their_own_deadline() -> None:
    table = running()
    first, second = followed(table, run="two"), followed(table, run="three", seconds=60)
    (answer,) = told(over(table, first))
    assert [call for call, _ in answer.calls] == ["follower-two"]
    (answer,) = told(over(table, second))
    assert [call for call, _ in answer.calls] == ["follower-three"]


@pytest.mark.parametrize("value_first", [False, True])
def test_R4_followers_of_one_turn_share_a_timer_and_those_that_have_no_room_inline_are_told_too(value_first: bool) -> None:
    table = running()
    crowd = [g.request(f"c{number:02}", run="two") for number in range(WAITERS_INLINE + 5)]
    ((_, due),) = wakes(table.turn(crowd))
    assert isinstance(due, WaitsDue)
    outbox = over(table, due)
    (answer,) = told(outbox)
    assert [call for call, _ in answer.calls] == [request.call for request in crowd]
    ends: list[list[Event]] = [[CallWithdrawn(g.R, request.call) for request in crowd], [g.value(1)]]
    outboxes = [table.turn(events) for events in (reversed(ends) if value_first else ends)]
    assert [call for outbox in outboxes for answer in told(outbox) for call, _ in answer.calls] == ["owner"]


def test_R4_answers_go_to_the_partition_of_each_follower() -> None:
    table = running()
    elsewhere = ToolRequested(g.R, "far", "two", 5, "org/p", "p.t", Repeat.WITH_KEY, b"{}")
    ((_, due),) = wakes(table.given(elsewhere, g.request("near", run="two")))
    assert isinstance(due, WaitsDue)
    outbox = over(table, due)
    assert {place: len(events) for place, events in outbox.events.items() if place[0] == "tool-results"} == {
        ("tool-results", 0): 1,
        ("tool-results", 5): 1,
    }


def test_R4_a_tool_may_say_how_long_its_followers_wait() -> None:
    table = running(wait=Waits(60_000, {"p.t": 5_000}))
    assert wakes(table.given(g.request("c2", run="two")))[0][0] == table.now_ms + 5_000
    other = running(wait=Waits(60_000, {"p.other": 5_000}))
    assert wakes(other.given(g.request("c2", run="two")))[0][0] == other.now_ms + 60_000


def test_R4_a_new_owner_takes_over_the_deadlines() -> None:
    table = running()
    due = followed(table)
    table.generation += 1
    table.now_ms += 100_000
    assert wakes(table.given(RecoveryEnded())) == [(due.met_ms + WAIT_MS, due)]


def test_R4_what_is_written_down_depends_on_no_setting() -> None:
    """A replay under another setting must give the same records."""
    tables = [running(wait=Waits(limit)) for limit in (1, 10**9)]
    for table in tables:
        followed(table)
    assert tables[0].reader.data == tables[1].reader.data
    ((_, raw),) = tables[0].reader.scan(FOLLOWERS)
    assert raw == tables[1].reader.data[FOLLOWERS + b"r\x00" + str(tables[1].now_ms).encode()]
    assert Followers("p.t", ["follower-two"]) == g.decoded(raw, Followers)


def test_R4_a_tools_own_wait_is_read_from_its_description(tmp_path: Path) -> None:
    """The worker's setting holds for the others."""
    file = tmp_path / "providers.toml"
    file.write_text(
        '[providers.p]\nbase_url = "https://p.example"\n'
        '[providers.p.tools.slow]\npath = "/s"\nmax_wait_ms = 900000\n'
        '[providers.p.tools.other]\npath = "/o"\n'
    )
    waits = waits_of(Settings(receipt_wait_ms=7_000), load_providers(file))
    assert (waits.default_ms, waits.by_tool) == (7_000, {"p.slow": 900_000})


def test_R4_a_columns_own_wait_goes_before_its_tools_and_the_workers() -> None:
    """It is compiled into the play, travels with each request, and a run keeps the one that it was accepted with."""
    providers = Providers.model_validate(
        {"providers": {"p": {"base_url": "https://p.example", "tools": {"t": {"path": "/t", "max_wait_ms": 9_000}}}}}
    )
    columns = [
        {"name": "own", "tool": "p.t", "input": {}, "receipt_wait_ms": 2_000},
        {"name": "tools", "tool": "p.t", "input": {"x": 1}},
    ]
    play, faults = compile_play(Play.model_validate({"name": "play", "columns": columns}), providers, "org")
    assert play is not None, faults
    rows, waits = Table(RowsEngine()), waits_of(Settings(receipt_wait_ms=60_000), providers)
    asked = [rows.turn([RunOpened("two", "org", play), RowsAdded("two", (AddedRow(0, "k", b"{}"),))])]
    (first,) = [event for events in asked[0].events.values() for event in events if isinstance(event, ToolRequested)]
    answer = CallsAnswered(first.receipt, 1, Answer.COMPLETED, ((first.call, Mark.LIVE),), b"1")
    (second,) = [event for events in rows.turn([answer]).events.values() for event in events if isinstance(event, ToolRequested)]
    assert (first.receipt_wait_ms, second.receipt_wait_ms) == (2_000, None)
    for request, wait in ((first, 2_000), (second, 9_000)):
        table = running(wait=waits)
        ((at_ms, _),) = wakes(table.given(replace(request, receipt=g.R)))
        assert at_ms == table.now_ms + wait


def test_R4_followers_of_one_turn_with_waits_of_their_own_are_each_told_when_theirs_is_over() -> None:
    table = running(wait=Waits(60_000))
    came = [replace(g.request(f"c{wait}", run="two"), receipt_wait_ms=wait) for wait in (2_000, None, 9_000, 2_000)]
    came[3] = replace(came[3], call="another")
    timers = wakes(table.turn(came))
    met = table.now_ms
    assert timers == [
        (met + 2_000, WaitsDue(g.R, met, 2_000)),
        (met + 60_000, WaitsDue(g.R, met)),
        (met + 9_000, WaitsDue(g.R, met, 9_000)),
    ]
    ended = {}
    for at_ms, due in sorted(timers, key=lambda timer: timer[0]):
        table.now_ms = at_ms
        (answer,) = told(table.given(due))  # type: ignore[arg-type]
        assert answer.fault is not None
        ended[answer.fault.message.split(" it still")[0]] = [call for call, _ in answer.calls]
    assert ended == {
        "wait timed out: after 2 s": ["c2000", "another"],
        "wait timed out: after 9 s": ["c9000"],
        "wait timed out: after 60 s": ["cNone"],
    }
    assert not list(table.reader.scan(FOLLOWERS))


def test_R4_a_new_owner_takes_over_the_deadlines_of_columns_too() -> None:
    table = running()
    due = wakes(table.given(replace(g.request("c2", run="two"), receipt_wait_ms=2_000)))
    table.generation += 1
    table.now_ms += 1_000
    assert wakes(table.given(RecoveryEnded())) == due


def test_R4_a_columns_wait_is_part_of_its_plays_text_only_where_it_is_said() -> None:
    column = {"name": "c", "tool": "p.t", "input": {}}
    plain = Play.model_validate({"name": "play", "columns": [column]}).model_dump(mode="json")
    assert "receipt_wait_ms" not in str(plain)
    assert "receipt_wait_ms" in str(
        Play.model_validate({"name": "play", "columns": [column | {"receipt_wait_ms": 5}]}).model_dump()
    )
    with pytest.raises(ValidationError, match=r"columns\.0\.receipt_wait_ms"):
        Play.model_validate({"name": "play", "columns": [column | {"receipt_wait_ms": 0}]})


# --- a force ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.FAILED_REFRESH, FULL])
def test_R3_a_force_waits_for_a_live_lease_and_claims_when_it_ends(mode: Mode) -> None:
    table = running()
    due = followed(table, mode=mode)
    assert g.needs(table.given()) == []
    outbox = table.given(g.failed(1))
    (need,) = g.needs(outbox)
    assert (need.n, need.epoch) == (2, 1)
    assert told(over(table, due)) == [], "it waits for its own call now"


def test_R3_a_force_that_still_owns_nothing_after_its_wait_fails_naming_what_it_met() -> None:
    table = running()
    (answer,) = told(over(table, followed(table, mode=FULL)))
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.repairable) == ("force_blocked", True)
    assert answer.fault.message == "not refreshed: after 300 s it still met blocked_active_lease, attempt 1 of another run"


def test_R3_a_force_claims_at_once_what_is_queued_completed_or_expired() -> None:
    table = g.receipts()
    table.given(g.request("c1", run="one"))
    assert [need.epoch for need in g.needs(table.given(g.request("c2", "f", FULL, run="two")))] == [1]
    table = running()
    table.given(g.value(1))
    assert [(need.n, need.epoch) for need in g.needs(table.given(g.request("c2", "f", FULL, run="two")))] == [(2, 1)]
    table = running()
    table.given(g.expiry(1, "L1"))
    assert [(need.n, need.epoch) for need in g.needs(table.given(g.request("c2", "f", FULL, run="two")))] == [(2, 1)]


def test_R3_a_forced_runs_own_call_is_followed_without_a_deadline_and_that_of_another_force_with_one() -> None:
    table = running()
    table.given(g.value(1), g.request("c2", "f", FULL, run="two"), g.claim(2, "L2", epoch=1, op=2))
    assert wakes(table.given(g.request("c3", "f", FULL, run="two"))) == []
    assert len(wakes(table.given(g.request("c4", "other", FULL, run="three")))) == 1
    assert wakes(table.given(g.request("c5", run="one"))) == [], "complete, so it is told at once"


# --- whatever comes -----------------------------------------------------------------------------------------

RUNS = ("one", "two", "three")
STEPS = st.one_of(
    st.builds(
        lambda run, number, mode: g.request(f"{run}-{number}", f"refresh-{run}" if mode else None, mode, run=run),
        st.sampled_from(RUNS),
        st.integers(1, 2),
        st.sampled_from(list(Mode)),
    ),
    st.builds(
        lambda n, lease, epoch: g.claim(n, lease, epoch=epoch, op=n), st.integers(1, 3), st.sampled_from("LM"), st.integers(0, 2)
    ),
    st.builds(g.release, st.integers(1, 3), st.sampled_from("LM")),
    st.builds(g.expiry, st.integers(1, 3), st.sampled_from("LM")),
    st.builds(g.value, st.integers(1, 3)),
    st.builds(g.failed, st.integers(1, 3)),
    st.just(RecoveryEnded()),
    st.just(None),
)


@given(st.lists(STEPS, max_size=14))
def test_R4_whatever_comes_a_wait_that_is_over_changes_nothing_but_its_own_request(steps: list[Event | None]) -> None:
    """``None``: the oldest timer fires, and what it published is folded. A call that timed out is told nothing after that."""
    table = g.receipts()
    timers: dict[object, WaitsDue] = {}
    timed_out: set[str] = set()
    for step in steps:
        table.now_ms += 1
        if step is not None:
            outbox = table.given(step)
            assert not timed_out & {call for event in told(outbox) for call, _ in event.calls}
        elif timers:
            due = timers.pop(next(iter(timers)))
            before = g.state(table)
            outbox = table.given(due)
            ended = {call for event in told(outbox) for call, _ in event.calls if event.answer is Answer.FAILED}
            assert {event.call for event in withdrawals(outbox) if isinstance(event, CallWithdrawn)} == ended
            assert standing(before).live or not ended
            timed_out |= ended
            table.turn([CallWithdrawn(g.R, call) for call in sorted(ended)])
            after = g.state(table)
            assert (after.attempts, after.current, after.refreshes, after.aside) == (
                before.attempts,
                before.current,
                before.refreshes,
                before.aside,
            )
            assert {call for call in ended if after.waiters[call].flag is not Flag.WITHDRAWN} == set()
        else:
            continue
        timers |= {due: due for _, due in wakes(outbox) if isinstance(due, WaitsDue)}
    open_timers = {(due.receipt, due.met_ms) for due in timers.values()}
    assert len(list(table.reader.scan(FOLLOWERS))) <= len(open_timers), "each follower that is written down has its timer"
