"""Folding again: a real actor folds and journals, and from its journal alone the same records come about, byte by byte."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import envelope
from schemas.commands import (
    AnswersDue,
    CancelRequested,
    CountersDue,
    Parked,
    ProgressDue,
    RecoveryEnded,
    RowsAppended,
    RowsSealed,
    WaitsDue,
)
from schemas.events import (
    AddedRow,
    Answer,
    BatchClaimed,
    CallCounts,
    CallsAnswered,
    ClaimedMember,
    Event,
    LeaseExpired,
    LeaseReleased,
    Mark,
    RowCounts,
    RowsAdded,
    RowsCounted,
)
from schemas.providers import Providers
from schemas.states import FOLLOWERS, RECEIPT, WAITING, Flag, Receipt, Segment, StoredValue, TurnRecord
from streams.agents.receipts import receipts_agent
from streams.agents.rows import rows_agent
from streams.agents.runs import runs_agent
from streams.engine import admission
from streams.engine.digest import digests_of
from streams.engine.waits import Waits
from streams.errors import StateError, UsageError
from streams.kafka.inbox import Delivery
from streams.replay import Compared, compare
from streams.replaying.held import HeldRecords
from streams.replaying.refold import TABLES, Refold, Source, events_of, folded, folded_in
from streams.replaying.until import EVERYTHING, Cut, UntilOffset, UntilTime, UntilTurn, parse_until
from tests.pure import test_protocol_laws as laws
from tests.support import given as g
from tests.support import given_rows as rows
from tests.support.line import NAMES, PUBLIC, Line
from tests.support.memory import DictStore

encode = msgspec.msgpack.encode


async def run(line: Line, turns: Sequence[tuple[Sequence[Event], Sequence[Delivery]]], owners: Sequence[int]) -> None:
    """Share the turns among owners, one after the other."""
    start = 0
    for end in (*sorted(owners), len(turns)):
        await line.owner(*turns[start:end])
        start = max(start, end)


@settings(max_examples=40)
@given(laws.topics, st.data())
def test_N6_V1_receipts_folded_again_from_the_journal_are_the_same_bytes(
    queues: tuple[list[Event], ...], data: st.DataObject
) -> None:
    """N6, V1: however messages were cut into turns, and whoever owned the partition meanwhile."""
    line = Line(receipts_agent())
    names = ("tool-requests", "receipt-claims", "receipt-completions")
    waiting = {
        topic: [line.put_events(topic, event, gap=data.draw(st.integers(0, 2))) for event in queue]
        for topic, queue in zip(names, queues, strict=True)
    }
    turns: list[tuple[list[Event], list[Delivery]]] = []
    while any(waiting.values()):
        taken = [waiting[topic].pop(0) for topic in names for _ in range(data.draw(st.integers(0, 2))) if waiting[topic]]
        turns.append(([AnswersDue(g.R, "")] if data.draw(st.booleans()) else [], taken))
    owners = data.draw(st.lists(st.integers(0, len(turns)), max_size=2))
    asyncio.run(run(line, [turn for turn in turns if turn[1]], owners))
    line.check()


def test_N6_R4_a_wait_that_was_over_is_folded_as_it_was_under_any_setting() -> None:
    """The worker's wait was a millisecond; whoever replays knows nothing of that."""
    line = Line(receipts_agent(Waits(1)))
    asked = [line.put_events("tool-requests", g.request("c1", run="one"), g.request("c2", run="one"))]
    claimed = [line.put_events("receipt-claims", g.claim(1, "L1"))]
    followed = [line.put_events("tool-requests", g.request("c3", run="two"))]

    async def played() -> None:
        await line.owner(([], asked), ([], claimed), ([], followed))
        ((key, _),) = line.store.scan(FOLLOWERS)
        await line.owner(([WaitsDue(g.R, int(key.rpartition(b"\x00")[2]))], []))

    asyncio.run(played())
    line.check()
    assert not list(line.store.scan(FOLLOWERS))
    receipt = line.refolded().records.get(RECEIPT + g.R.encode(), Receipt)
    assert receipt is not None
    assert receipt.waiters["c3"].flag is Flag.FAILED


def request(kind: str, run: str = "run-0", **fields: Any) -> bytes:
    return json.dumps({"type": kind, "run": run, **fields}).encode()


NO_EVENTS = (b"no json", request("no_such_type"), b"[]", None, request("run_cancelled", run=""))
REQUESTS = (
    request("run_requested", play={"name": "p", "columns": [{"name": "c", "tool": "a.b", "input": {}}]}),
    request("rows_appended", first=0, rows=[{"x": 1}]),
    request("rows_sealed", total=1),
    request("run_cancelled"),
    request("rows_sealed", total="many"),
    *NO_EVENTS,
)
counted = st.builds(
    lambda n, sequence: RowsCounted("run-0", n, sequence, RowCounts(seen=1), CallCounts()), st.integers(0, 3), st.integers(0, 5)
)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([RecoveryEnded(), ProgressDue("run-0")]), max_size=1),
            st.lists(st.sampled_from(REQUESTS), max_size=2),
            st.lists(counted, max_size=2),
            st.lists(st.sampled_from(REQUESTS), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_N6_judgements_are_folded_where_their_messages_stood_and_what_was_parked_is_not(turns: list[Any]) -> None:
    """Between commands, the operations, the counters and the requests of a turn; none of them is judged again."""
    line = Line(runs_agent(Providers(), NAMES.partitions, partition_check=False))
    journalled: list[tuple[list[Event], list[Delivery]]] = []
    for commands, operations, counters, requests in turns:
        deliveries = [line.put("operations", value) for value in operations]
        deliveries += [line.put_events("row-progress", event) for event in counters]
        deliveries += [line.put("run-requests", value) for value in requests]
        journalled.append((commands, deliveries))
    asyncio.run(run(line, journalled, [1]))
    line.check()
    for record in line.broker.journal:
        parked = [event for event in map(decoded, record.judged) if isinstance(event, Parked)]
        values = {(source.topic, source.offset): source.value for source in line.sources(record)}
        assert all(values[event.topic, event.offset] in NO_EVENTS for event in parked)


def decoded(raw: bytes) -> Event:
    from streams.turn import decode_judged

    return decode_judged(raw)


# --- what the journal of a turn means -----------------------------------------------------------------------


def turn(number: int, *judged: Event, generation: int = 1, segments: tuple[Segment, ...] = ()) -> TurnRecord:
    return TurnRecord(number, generation, judged=tuple(map(encode, judged)), segments=segments)


def source(topic: str, offset: int, *events: Event) -> Source:
    return Source(topic, offset, envelope.encode(events), envelope.headers_of(topic))


def test_N6_events_stand_in_the_order_in_which_they_were_folded() -> None:
    cancel, sealed, count = CancelRequested("r"), RowsSealed("r", 1), RowsCounted("r", 0, 0, RowCounts(), CallCounts())
    record = turn(1, ProgressDue("r"), Parked("operations", 3), cancel, Parked("row-progress", 8), sealed)
    sources = [
        Source("operations", 3, b"?", ()),
        Source("operations", 4, b"{}", ()),
        source("row-progress", 7, count),
        Source("row-progress", 8, b"?", ()),
        Source("run-requests", 9, b"{}", ()),
    ]
    assert events_of(record, sources, PUBLIC, "") == [ProgressDue("r"), cancel, count, sealed]


def test_N6_a_turn_whose_messages_and_judgements_do_not_fit_together_is_refused_by_name() -> None:
    with pytest.raises(StateError, match="runs/0@4: 0 judgements for 1 messages of public topics"):
        events_of(turn(4), [Source("operations", 3, b"{}", ())], PUBLIC, "runs/0@4")
    with pytest.raises(StateError, match=r"rows/0@4 folded a message that cannot be read, at offset 1,003: row-work"):
        events_of(turn(4), [Source("row-work", 1003, b"{}", ())], frozenset(), "rows/0@4")
    with pytest.raises(StateError, match="a judgement in the turn record cannot be read"):
        events_of(TurnRecord(4, judged=(b"\xc1",)), [], PUBLIC, "runs/0@4")


def test_N6_rows_members_of_a_claim_and_answered_calls_are_events_each() -> None:
    added = RowsAdded("r", tuple(AddedRow(n, f"{n}", b"{}") for n in range(7)))
    claimed = BatchClaimed("l", "t", "b", "L", 1, tuple(ClaimedMember(f"{n}", 1, 0, 0) for n in range(5)))
    given_back = LeaseReleased("L", claimed.members[:2])
    answered = CallsAnswered("x", 1, Answer.COMPLETED, (("c1", Mark.LIVE), ("c2", Mark.IN_FLIGHT)), b"1")
    events = [added, claimed, given_back, LeaseExpired("L", claimed.members[2:3]), answered, g.request("c1")]
    assert [folded_in(event) for event in events] == [7, 5, 2, 1, 2, 1]
    chunk = RowsAppended("r", 0, (b"{}", b"{}", b"{}"), "")
    assert folded_in(chunk) == 3
    assert folded([*events, chunk, added]) == 7 + 5 + 2 + 1 + 2 + 1 + 3 + 7


@pytest.mark.parametrize("record", [turn(1), turn(3), turn(2, generation=0)])
def test_N6_a_turn_that_does_not_come_next_is_refused(record: TurnRecord) -> None:
    open_store: Any = DictStore
    fold = Refold("receipts", 0, 4, HeldRecords(open_store))
    fold.turn(turn(1), [])
    with pytest.raises(StateError, match=rf"receipts/0@{record.turn}, of generation .* behind turn 1 of generation 1"):
        fold.turn(record, [])


def test_N6_what_differs_is_counted_and_the_first_few_are_named() -> None:
    open_store: Any = DictStore
    mine = HeldRecords(open_store)
    for n in range(8):
        mine.put(b"v%d" % n, StoredValue(b"x"))
    same: Any = DictStore()
    same.data = dict(mine.items())
    other: Any = DictStore()
    other.data = {**dict.fromkeys(same.data, encode(StoredValue(b"y"))), b"v8": encode(StoredValue(b"x"))}
    del other.data[b"v0"]
    digests, found = compare(mine, other, named_max=3)
    assert (found.differing, found.told_differing) == (9, 0)
    assert found.named == ("StoredValue 0: missing live", "StoredValue 1: not the same", "StoredValue 2: not the same")
    assert digests == mine.digests()
    assert found.digests == digests_of(sorted(other.data.items()))
    assert found.digests != digests
    other.data = {**same.data, b"v9": encode(StoredValue(b"x"))}
    assert compare(mine, other)[1].named == ("StoredValue 9: missing in the replay",)
    assert compare(mine, same) == (mine.digests(), Compared(mine.digests(), 0, (), 0))


# --- what a replay is made of -------------------------------------------------------------------------------


def test_N6_a_replay_knows_the_topics_of_every_agent_and_which_of_them_are_judged() -> None:
    for spec in (receipts_agent(), rows_agent(), runs_agent(Providers(), 4)):
        folded = TABLES[spec.table]
        assert folded.topics == spec.topics
        assert folded.public_topics == set(spec.public_topics)
        assert type(folded.engine()) is type(spec.engine)


def test_N6_a_replay_is_made_of_nothing_that_publishes_or_calls() -> None:
    """The import contract says the same of our modules; this looks at all that is really loaded."""
    code = "import sys, streams.replay; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "streams.replay" in loaded
    ours = {name for name in loaded if name.startswith("streams.")}
    assert (
        ours & {"streams.kafka.producers", "streams.calling.outbox", "streams.public.publiclog", "streams.client", "streams.turn"}
        == set()
    )
    assert {name for name in ours if name.startswith(("streams.tools", "streams.dispatcher", "streams.calling.calls"))} == set()
    assert {"httpx", "aiohttp", "faust"}.isdisjoint(loaded)
    import importlib

    for name in ours:
        assert "AIOKafkaProducer" not in vars(importlib.import_module(name)), name


# --- where it stops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("rows/3@120", UntilTurn("rows", 3, 120)),
        ("tool-results/0@0", UntilOffset("rows", "tool-results", 0, 0)),
        ("p.run-requests/1@7", UntilOffset("runs", "run-requests", 1, 7)),
        ("2026-11-29T14:00:00Z", UntilTime(1_795_960_800_000)),
        ("2026-11-29T14:00:00.250+02:00", UntilTime(1_795_953_600_250)),
        ("1795960800.5", UntilTime(1_795_960_800_500)),
        ("1795960800500", UntilTime(1_795_960_800_500)),
    ],
)
def test_N6_until_is_a_turn_an_offset_or_a_time(text: str, meaning: object) -> None:
    assert parse_until(text, partitions=4, topic_prefix="p.") == meaning


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows/4@1", "partition 4 is none of the 4"),
        ("rows/0@0", "turns are counted from 1"),
        ("map-rows/0@1", "'map-rows' is no table .* and no topic that one reads"),
        ("yesterday", "expected a time"),
        ("nan", "expected a time"),
        ("inf", "expected a time"),
        ("", "expected a time"),
    ],
)
def test_N6_what_until_cannot_mean_is_refused_with_what_it_can(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_until(text, partitions=4)


def test_N6_a_named_partition_stops_at_its_turn_and_the_others_at_its_time() -> None:
    cut = Cut(1_000, "rows", 1, 7)
    early, late = TurnRecord(7, at_ms=1_001), TurnRecord(8, at_ms=1_000)
    assert cut.holds("rows", 1, early)
    assert not cut.holds("rows", 1, late)
    assert not cut.holds("rows", 0, early)
    assert cut.holds("runs", 1, late)
    assert EVERYTHING.holds("rows", 1, TurnRecord(9, at_ms=1 << 50))


def test_N6_the_receipts_of_these_tests_really_settle() -> None:
    """Else the comparisons above would be of empty tables."""
    line = Line(receipts_agent())
    deliveries = [
        line.put_events("tool-requests", g.request()),
        line.put_events("receipt-claims", g.claim(1, "L1"), gap=1),
        line.put_events("receipt-completions", g.value(1)),
    ]
    asyncio.run(line.owner(([], deliveries)))
    line.check()
    assert [record.turn for record in line.broker.journal] == [1, 2]
    assert line.refolded().events == 4


def test_N6_a_timer_that_finds_nothing_to_do_is_no_turn_and_a_replay_misses_nothing() -> None:
    """It would cost a transaction; what it would write stands there already."""
    line = Line(rows_agent())
    added = line.put_events("row-work", rows.opened(), rows.added(rows.row(0), rows.row(1)))

    async def played() -> None:
        await line.owner(([], [added]), ([CountersDue("run")], []), ([CountersDue("run")], []))
        assert [record.turn for record in line.broker.journal] == [1, 2]
        await line.owner(([CountersDue("run")], []))

    asyncio.run(played())
    # The first turn of an owner raises the generation, whatever it finds; and it publishes what the last one had not.
    assert [record.turn for record in line.broker.journal] == [1, 2, 3]
    line.check()


def test_N6_rows_that_waited_are_folded_again_as_they_were_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ROWS_MIN", 0)
    monkeypatch.setattr(admission, "SHARE_MIN", 2)
    line = Line(rows_agent())
    chunks = [rows.added(rows.row(first), rows.row(first + 1)) for first in range(0, 8, 2)]
    added = line.put_events("row-work", rows.opened(), *chunks)
    requests = rows.asked(rows.rows_table().given(rows.opened(), chunks[0]))
    answers = line.put_events("tool-results", *(rows.answer(request, "v") for request in requests))

    async def played() -> None:
        await line.owner(([], [added]), ([], [answers]))

    asyncio.run(played())
    line.check()
    assert len(list(line.store.scan(WAITING))) == 2
