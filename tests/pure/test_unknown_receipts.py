"""Unknown outcomes in the receipts engine, given / when / then: who waits on, and the index of what is in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.commands import RecoveryEnded
from schemas.events import (
    Answer,
    AttemptUnknown,
    CallsAnswered,
    Event,
    Mode,
    Repeat,
    RunClosed,
)
from schemas.requests import CellResolved as CellResolvedRequest
from schemas.states import UNKNOWN, Flag, Unknown, record_key
from streams.engine.effects import ClaimFolded, Queued, UnknownOver, UnknownSeen
from streams.engine.port import Outbox
from streams.engine.receipts import WAITERS_INLINE
from streams.table import WorkingSet
from tests.support import given as g
from tests.support.given_operations import ASKED, events, judge
from tests.support.memory import Table

# --- receipts: who waits on --------------------------------------------------------------------------------------------


def doubtful() -> Table:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"), g.ambiguous(1))
    return table


def queued(outbox: Outbox) -> list[int]:
    return [effect.need.n for effect in outbox.effects if isinstance(effect, Queued)]


def entry(table: Table) -> Unknown | None:
    return WorkingSet(table.reader).get(record_key(UNKNOWN, g.R), Unknown)


def test_U2_the_answer_unknown_comes_with_its_attempt() -> None:
    table = g.receipts()
    outbox = table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1", epoch=0), g.ambiguous(1))
    doubt, answer = outbox.events[("tool-results", 0)]
    assert doubt == AttemptUnknown(g.R, 1, 0, ("c1",))
    assert isinstance(answer, CallsAnswered)
    assert answer.answer is Answer.UNKNOWN


def test_U3_unpaid_is_called_again_for_a_run_that_is_open_and_its_next_doubt_is_told_with_its_own_attempt() -> None:
    table = doubtful()
    assert queued(table.given(g.resolved(1))) == [2]
    assert queued(table.given(g.resolved(1))) == [2]  # T7: the same word again, the same need
    assert [effect.granted for effect in table.given(g.claim(2, "L2", op=2)).effects if isinstance(effect, ClaimFolded)] == [(g.R,)]
    outbox = table.given(g.ambiguous(2))
    assert events(outbox, AttemptUnknown) == [AttemptUnknown(g.R, 2, 0, ("c1",))]
    assert queued(table.given(g.resolved(1))) == []
    assert queued(table.given(g.resolved(2))) == [3]


@pytest.mark.parametrize("first", ["run's end", "resolution"])
def test_U3_unpaid_is_not_called_again_for_a_run_that_has_ended_but_by_the_next_one(first: str) -> None:
    table = doubtful()
    if first == "resolution":
        table.given(g.withdrawn("nobody"), RunClosed("run"), RunClosed("run"))
        assert queued(table.given(g.resolved(1))) == []
    else:
        table.given(RunClosed("run"))
        assert queued(table.given(g.resolved(1))) == []
    assert table.given(RecoveryEnded()).effects == []
    assert queued(table.given(g.request("c2", run="next", repeat=Repeat.NEVER))) == [2]
    outbox = table.given(g.claim(2, "L2", op=2), g.value(2))
    assert [call for event in events(outbox, CallsAnswered) for call, _ in event.calls] == ["c1", "c2"]


def test_U3_a_late_value_reaches_a_run_that_has_ended() -> None:
    table = doubtful()
    table.given(RunClosed("run"))
    (answer,) = events(table.given(g.value(1, lease="L1")), CallsAnswered)
    assert (answer.answer, answer.calls[0][0]) == (Answer.COMPLETED, "c1")


def test_a_doubt_beneath_the_one_that_was_resolved_is_told_next() -> None:
    """Two calls of different refreshes are in doubt; the word about one leaves the other, and its attempt must be known too."""
    table = doubtful()
    table.given(g.request("c2", "f1", Mode.FULL_REFRESH, repeat=Repeat.NEVER))
    table.given(g.claim(2, "L2", epoch=1, op=2))
    outbox = table.given(g.ambiguous(2, epoch=1))
    assert sorted((doubt.n, doubt.calls) for doubt in events(outbox, AttemptUnknown)) == [(2, ("c1", "c2"))]
    outbox = table.given(g.resolved(2))
    assert events(outbox, AttemptUnknown) == [AttemptUnknown(g.R, 1, 0, ("c1",))]
    assert queued(outbox) == [3]


def test_waiters_beyond_the_inline_ones_wait_again_after_unpaid() -> None:
    table = g.receipts()
    crowd = [g.request(f"c{number:03}", repeat=Repeat.NEVER) for number in range(WAITERS_INLINE + 2)]
    table.turn(crowd)
    table.given(g.claim(1, "L1"), g.ambiguous(1))
    assert queued(table.given(g.resolved(1))) == [2]
    outbox = table.given(g.claim(2, "L2", op=2), g.ambiguous(2))
    assert sorted(call for doubt in events(outbox, AttemptUnknown) for call in doubt.calls) == [event.call for event in crowd]


# --- receipts: the index -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [g.value(1, lease="L1"), g.resolved(1, b"1"), g.resolved(1), g.failed(1), g.retry(1)],
    ids=["late", "paid", "unpaid", "no", "retry"],
)
def test_U5_the_index_has_what_is_unknown_since_when_and_only_that(end: Event) -> None:
    table = doubtful()
    assert entry(table) == Unknown(1, 0, 1, "p.t", "org/p", table.now_ms)
    since = table.now_ms
    table.now_ms += 500
    assert not [e for e in table.given(g.request("c9", repeat=Repeat.NEVER, run="rerun")).effects if isinstance(e, UnknownSeen)]
    (seen,) = [e for e in table.given(RecoveryEnded()).effects if isinstance(e, UnknownSeen)]
    assert seen == UnknownSeen(g.R, "org/p", "p.t", 1, 0, 1, since)
    outbox = table.given(end)
    assert UnknownOver(g.R) in outbox.effects
    assert entry(table) is None


def test_U5_an_expired_lease_is_unknown_until_its_release_is_read() -> None:
    table = g.receipts()
    table.given(g.request(repeat=Repeat.NEVER), g.claim(1, "L1"))
    assert [e.n for e in table.given(g.expiry(1, "L1")).effects if isinstance(e, UnknownSeen)] == [1]
    assert UnknownOver(g.R) in table.given(g.release(1, "L1")).effects


def test_U5_a_newer_value_ends_the_doubt_about_an_older_call() -> None:
    table = doubtful()
    table.given(g.request("c2", "f1", Mode.FULL_REFRESH, repeat=Repeat.NEVER), g.claim(2, "L2", epoch=1, op=2))
    assert entry(table) is not None
    table.given(g.value(2, epoch=1))
    assert entry(table) is None
    assert g.state(table).waiters["c1"].flag is Flag.DONE


@pytest.mark.parametrize("request_", [{"outcome": "unpaid"}, {"outcome": "paid", "value": None}, {"outcome": "paid", "value": [1]}])
def test_what_the_client_publishes_is_what_the_judge_reads(request_: dict[str, Any]) -> None:
    """Fields that were not set are published too: without its type a message is parked, and nobody hears of it."""
    published = CellResolvedRequest.model_validate(ASKED | request_).model_dump_json()
    assert judge(published) == judge(ASKED | request_)
