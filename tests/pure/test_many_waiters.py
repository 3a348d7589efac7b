"""A receipt with many waiters (B3): each turn costs what it answers, and who waits and what is told is as if all were looked at."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.commands import AnswersDue, RecoveryEnded
from schemas.events import CallsAnswered, Event, Mode, Repeat, ToolRequested
from schemas.states import OPEN, RECEIPT, WAITER, Flag, Receipt, Waiter, record_key
from streams.engine import protocol
from streams.engine.answers import CALLERS_MAX
from streams.engine.effects import Queued
from streams.engine.port import Outbox, Wake
from streams.engine.protocol import Told
from streams.engine.receipts import ReceiptsEngine
from streams.engine.receiptsturn import ReceiptsTurn
from tests.support import given as g
from tests.support.memory import DictReader, Table


class Counting(DictReader):
    """Counts the records that are scanned; keeps its keys sorted, so that a scan costs no more than it yields."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned = 0
        self._keys: list[bytes] = []

    def scan(self, prefix: bytes, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        if len(self._keys) != len(self.data):
            self._keys = sorted(self.data)
        start = bisect_left(self._keys, prefix) if after is None else bisect_right(self._keys, after)
        for key in self._keys[start:]:
            if not key.startswith(prefix):
                return
            self.scanned += 1
            yield key, self.data[key]


class Thorough(ReceiptsEngine):
    """Looks at all waiters in each turn, as the rules are written."""

    def _settle(self, turn: ReceiptsTurn, key: str, receipt: Receipt) -> None:
        turn.recheck_all.add(key)
        super()._settle(turn, key, receipt)


def table_of(engine: ReceiptsEngine) -> tuple[Table, Counting]:
    table = Table(engine, partitions=1)
    table.reader = reader = Counting()
    return table, reader


def told(outbox: Outbox) -> list[tuple[str, str, int, str]]:
    events = [event for event in outbox.events.get(("tool-results", 0), []) if isinstance(event, CallsAnswered)]
    return [(call, event.answer.value, event.n, mark.value) for event in events for call, mark in event.calls]


def pages(outbox: Outbox) -> list[Event]:
    return [effect.command for effect in outbox.effects if isinstance(effect, Wake) and isinstance(effect.command, AnswersDue)]


def asked(count: int, first: int = 0, repeat: Repeat = Repeat.NEVER) -> list[Event]:
    return [g.request(f"run:{number:06d}:c", repeat=repeat) for number in range(first, first + count)]


def receipt_of(table: Table) -> Receipt:
    """The receipt's record, also before anybody asked for it."""
    return g.state(table) if record_key(RECEIPT, g.R) in table.reader.data else Receipt()


def waiters_of(table: Table) -> dict[str, Waiter]:
    """All waiters of the receipt, wherever they are kept."""
    prefix = record_key(WAITER, g.R, "")
    apart = {
        key[len(prefix) :].decode(): msgspec.msgpack.decode(raw, type=Waiter)
        for key, raw in table.reader.data.items()
        if key.startswith(prefix)
    }
    return receipt_of(table).waiters | apart


ENDS = {"completed": g.value(1), "failed": g.failed(1), "unknown": g.ambiguous(1)}


@pytest.mark.parametrize("end", ENDS)
def test_B3_a_caller_of_a_settled_receipt_is_answered_without_a_look_at_those_who_were_before(end: str) -> None:
    """All waiters were read for each newcomer, those answered long ago too: 500 more took 4 ms at 500 and 103 ms at 30,000."""
    table, reader = table_of(ReceiptsEngine())
    table.given(g.request("first", repeat=Repeat.NEVER), g.claim(1, "L"))
    table.given(ENDS[end])
    for first in range(0, 5_000, 500):
        reader.scanned = 0
        outbox = table.turn(asked(500, first))
        assert reader.scanned == 0
        assert [call for call, answer, _, _ in told(outbox) if answer == end] == [
            f"run:{n:06d}:c" for n in range(first, first + 500)
        ]
        assert {mark for *_, mark in told(outbox)} == {"cache"}


def test_B3_each_page_of_answers_costs_what_it_answers() -> None:
    """Each page began at the first waiter again: a receipt with a million of them was read five hundred times."""
    table, reader = table_of(ReceiptsEngine())
    table.turn(asked(10_000))
    table.given(g.claim(1, "L"))
    outbox = table.given(g.value(1))
    heard = told(outbox)
    while due := pages(outbox):
        assert g.state(table).open, "or a new owner would not go on with it"
        reader.scanned = 0
        outbox = table.turn(due)
        assert reader.scanned <= CALLERS_MAX + 1
        heard += told(outbox)
    assert sorted(call for call, *_ in heard) == [f"run:{n:06d}:c" for n in range(10_000)]
    assert g.state(table).open is False
    assert record_key(OPEN, g.R) not in table.reader.data


def test_B3_who_asks_while_nobody_has_claimed_yet_costs_no_look_at_all_others() -> None:
    table, reader = table_of(ReceiptsEngine())
    for first in range(0, 3_000, 500):
        reader.scanned = 0
        assert [need.n for need in g.needs(table.turn(asked(500, first)))] == [1]
        assert reader.scanned == 0


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_B3_a_new_owner_goes_on_with_the_pages_of_the_one_that_was_killed_between_them(end: str) -> None:
    """Only a timer of the dead worker knew of the next page, and the receipt was closed: its other callers waited for ever."""
    table, _ = table_of(ReceiptsEngine())
    table.turn(asked(3_000))
    table.given(g.claim(1, "L"))
    heard = told(table.given(ENDS[end]))
    table.generation += 1
    outbox = table.given(RecoveryEnded())
    heard += told(outbox)
    while due := pages(outbox):
        outbox = table.turn(due)
        heard += told(outbox)
    assert Counter(call for call, *_ in heard) == Counter(f"run:{n:06d}:c" for n in range(3_000))
    assert g.state(table).open is False


def test_B3_a_receipt_with_pages_to_come_needs_no_claim_any_more() -> None:
    from streams.engine.effects import Unqueued

    table, _ = table_of(ReceiptsEngine())
    table.turn(asked(3_000, repeat=Repeat.FREELY))
    table.given(g.claim(1, "L"), g.expiry(1, "L"))
    outbox = table.given(g.value(1))
    assert pages(outbox)
    assert [effect.receipts for effect in outbox.effects if isinstance(effect, Unqueued)] == [(g.R,)]
    assert g.needs(outbox) == []


# --- as if all were looked at -------------------------------------------------------------------------------

asking = st.tuples(
    st.just("ask"),
    st.integers(0, 60),
    st.integers(1, 25),
    st.sampled_from((*[Mode.NORMAL] * 3, *Mode)),
    st.sampled_from(("f1", "f2")),
)
steps = st.one_of(
    *[asking] * 3,
    st.tuples(st.just("withdraw"), st.integers(0, 60), st.integers(1, 25)),
    *[st.tuples(st.just("claim"))] * 3,
    *[st.tuples(st.just("end"), st.sampled_from(("value", "failed", "retry", "ambiguous", "expire", "release")))] * 3,
    st.tuples(st.just("late value"), st.integers(1, 3)),
    st.tuples(st.just("unpaid")),
    st.tuples(st.just("owner")),
)


class Story:
    """One receipt and its many callers; ``pages`` are folded when the story says so, and are lost with their owner."""

    def __init__(self, engine: ReceiptsEngine, repeat: Repeat) -> None:
        self.table = Table(engine, partitions=1)
        self.repeat = repeat
        self.due: list[Event] = []
        self.heard: list[tuple[str, str, int, str]] = []

    def events(self, kind: str, *terms: Any) -> list[Event]:
        receipt = receipt_of(self.table)
        stands = protocol.standing(receipt)
        n = max(1, stands.n)
        attempt = receipt.attempts.get(n)
        epoch, lease = (attempt.epoch, attempt.lease or "?") if attempt is not None else (0, "?")
        match kind:
            case "ask":
                first, count, mode, refresh = terms
                named = None if mode is Mode.NORMAL else refresh
                calls = range(first, first + count)
                return [
                    ToolRequested(g.R, f"run:{c:02d}", "run", 0, "org/p", "p.t", self.repeat, b"{}", mode, named) for c in calls
                ]
            case "withdraw":
                return [g.withdrawn(f"run:{c:02d}") for c in range(terms[0], terms[0] + terms[1])]
            case "claim":
                need = protocol.need(receipt, waiters_of(self.table).values(), stands) if receipt.waiters else None
                return [] if need is None else [g.claim(need.n, f"L{need.n}", epoch=need.epoch, op=need.op)]
            case "late value":
                return [g.value(min(n, terms[0]), epoch=receipt.attempts[min(n, terms[0])].epoch)] if attempt is not None else []
            case "unpaid":
                return [g.resolved(n)]
            case "owner":
                self.due = []
                return [RecoveryEnded()]
        if not stands.live:
            return []
        ends: dict[str, Event] = {
            "value": g.value(n, epoch=epoch),
            "failed": g.failed(n, epoch=epoch),
            "retry": g.retry(n, epoch=epoch),
            "ambiguous": g.ambiguous(n, epoch=epoch),
            "expire": g.expiry(n, lease),
            "release": g.release(n, lease),
        }
        return [ends[terms[0]]]

    def turn(self, events: list[Event]) -> Outbox:
        outbox = self.table.turn(events)
        self.due += pages(outbox)
        self.heard += told(outbox)
        return outbox

    def drain(self) -> None:
        for _ in range(200):
            if not self.due:
                return
            due, self.due = self.due, []
            self.turn(due)
        raise AssertionError("pages without end")

    def check(self) -> None:
        """Nobody is left who could be told something."""
        receipt, waiters = receipt_of(self.table), waiters_of(self.table)
        stands = protocol.standing(receipt)
        for call, waiter in waiters.items():
            what, _ = protocol.told(receipt, waiter, stands)
            if protocol.stays(waiter) and what is not Told.WAITS:
                assert what is not Told.COMPLETED, f"{call} was not told of the value"
                assert waiter.flag in (Flag.UNKNOWN, Flag.FAILED), f"{call} was told nothing"
        need = protocol.need(receipt, waiters.values(), stands)
        assert receipt.open is (need is not None or stands.live)
        assert (record_key(OPEN, g.R) in self.table.reader.data) is receipt.open


def needs(outbox: Outbox) -> list[Any]:
    return [effect.need for effect in outbox.effects if isinstance(effect, Queued)]


@given(st.lists(steps, max_size=16), st.sampled_from(list(Repeat)), st.sampled_from((1000, 7)))
@settings(max_examples=300)
def test_B3_what_waits_and_what_is_told_is_as_if_each_turn_had_looked_at_all(
    script: list[tuple[Any, ...]], repeat: Repeat, answers_max: int
) -> None:
    """Turn by turn, each with all its pages: the engine that looks at newcomers only, and one that looks at all."""
    ours, theirs = Story(ReceiptsEngine(answers_max=answers_max), repeat), Story(Thorough(answers_max=answers_max), repeat)
    for step in script:
        events = ours.events(*step)
        theirs.events(*step)
        if not events:
            continue
        outboxes = [ours.turn(list(events)), theirs.turn(list(events))]
        assert needs(outboxes[0]) == needs(outboxes[1])
        for story in (ours, theirs):
            story.drain()
        # Marks of what is told at once depend on how pages are cut; who is told what does not.
        heard = [Counter(entry if answers_max > 60 else entry[:3] for entry in story.heard) for story in (ours, theirs)]
        assert heard[0] == heard[1]
        assert ours.table.reader.data == theirs.table.reader.data
        ours.check()


@given(st.lists(st.tuples(steps, st.booleans()), max_size=20), st.sampled_from(list(Repeat)), st.integers(1, 9))
@example(
    [
        (("ask", 0, 25, Mode.NORMAL, "f1"), True),
        (("ask", 25, 25, Mode.NORMAL, "f1"), True),
        (("claim",), True),
        (("end", "value"), False),
        (("ask", 50, 1, Mode.NORMAL, "f1"), False),
        (("owner",), False),
    ],
    Repeat.NEVER,
    5,
)
@settings(max_examples=300)
def test_B3_pages_may_be_late_and_lost_with_their_owner_and_everybody_is_told_once(
    script: list[tuple[tuple[Any, ...], bool]], repeat: Repeat, answers_max: int
) -> None:
    story = Story(ReceiptsEngine(answers_max=answers_max), repeat)
    for step, folded in script:
        events = story.events(*step)
        if folded:
            story.drain()
        if events:
            story.turn(events)
    if not story.table.reader.data:
        return
    story.drain()
    story.check()
    completed = Counter(call for call, answer, *_ in story.heard if answer == "completed")
    assert set(completed.values()) <= {1}


@given(st.lists(steps, max_size=12), st.sampled_from(list(Repeat)))
def test_B3_a_settled_receipt_is_one_of_which_nobody_waits(script: list[tuple[Any, ...]], repeat: Repeat) -> None:
    """The short way of the engine says no more than the rules do when they are asked for each waiter."""
    story = Story(ReceiptsEngine(), repeat)
    for step in script:
        if not (events := story.events(*step)):
            continue
        story.turn(events)
        receipt, waiters = receipt_of(story.table), waiters_of(story.table).values()
        stands = protocol.standing(receipt)
        if protocol.settled(receipt, stands):
            assert protocol.waiting(receipt, waiters, stands) == []
            assert protocol.need(receipt, waiters, stands) is None
