"""Events as bytes: envelopes keep what they carry within their limits, and the bytes of every kind of message stay for ever.

``tests/golden/events.json`` holds the bytes of one fixed example of everything that Kafka or a table keeps. After adding a type,
give it an example below and run ``python -m tests.pure.test_envelope --write-new``, which adds what is missing and never touches
an entry that stands.
"""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec
import msgspec.inspect as shapes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas import commands, envelope, events, requests, states
from schemas.envelope import BYTES_MAX, EVENT_BYTES_MAX, EVENTS_MAX, EnvelopeError, EventTooLarge, headers_of, pack, unpack
from schemas.events import (
    EVENTS_BY_TOPIC,
    AddedRow,
    Ambiguous,
    Answer,
    AttemptEnded,
    AttemptUnknown,
    BatchClaimed,
    CallCounts,
    CallsAnswered,
    CallWithdrawn,
    CellResolved,
    ClaimedMember,
    CompiledColumn,
    CompiledPlay,
    Event,
    Failed,
    Fault,
    JobStarted,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    Mark,
    Mode,
    Probed,
    ReceiptForgotten,
    ReceiptResolved,
    Repeat,
    RetriesCounted,
    Retry,
    RetryBudget,
    RowCounts,
    RowsAdded,
    RowsCounted,
    RunCancelled,
    RunClosed,
    RunClosing,
    RunOpened,
    ToolRequested,
    Value,
)
from schemas.plays import Play
from schemas.states import (
    RECORD_TYPES,
    Answered,
    Ask,
    Attempt,
    Batch,
    Cell,
    CellStatus,
    ClosedRun,
    Flag,
    Followers,
    Hold,
    OpenReceipt,
    Out,
    Receipt,
    RowStatus,
    Run,
    RunRetries,
    RunShare,
    RunStatus,
    Segment,
    Share,
    SheetRow,
    StoredValue,
    Task,
    TurnRecord,
    Unknown,
    UnknownCell,
    Waiter,
)
from streams.turn import decode_judged

GOLDEN = Path(__file__).parents[1] / "golden" / "events.json"
WRITE_NEW = "python -m tests.pure.test_envelope --write-new"
NEVER_EDIT = (
    "Never edit an event: Kafka keeps the old bytes for ever. Add a version of its topic's schema and an upcaster "
    "(schemas/envelope.py), or a new type."
)
#: Golden bytes from before a field was added, by section and name.
EARLIER = "earlier"
ADD_NEW = f"A new type needs an example in tests/pure/test_envelope.py and a golden entry: {WRITE_NEW} adds missing ones only."


# --- envelopes ----------------------------------------------------------------------------------------------


def values_of(shape: shapes.Type) -> st.SearchStrategy[Any]:
    """Any value of a type, by what msgspec knows of it; a type that is not listed here fails by name."""
    match shape:
        case shapes.BoolType():
            return st.booleans()
        case shapes.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case shapes.StrType(min_length=least):
            return st.text(min_size=least or 0, max_size=12)
        case shapes.BytesType():
            return st.binary(max_size=40)
        case shapes.NoneType():
            return st.none()
        case shapes.EnumType(cls=kind):
            return st.sampled_from(list(kind))
        case shapes.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=3).map(tuple)
        case shapes.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case shapes.UnionType(types=members):
            return st.one_of(*map(values_of, members))
        case shapes.StructType(cls=kind, fields=fields):
            return st.fixed_dictionaries({field.name: values_of(field.type) for field in fields}).map(lambda given: kind(**given))
    raise NotImplementedError(f"no values of {shape}")


EVENTS_OF = {
    topic: st.lists(st.one_of(*(values_of(shapes.type_info(kind)) for kind in kinds)), max_size=8)
    for topic, kinds in EVENTS_BY_TOPIC.items()
}


def event_of(size: int) -> RunCancelled:
    """An event whose encoded form has exactly ``size`` bytes."""
    bare = RunCancelled("x" * size)
    event = RunCancelled("x" * (2 * size - len(msgspec.msgpack.encode(bare))))
    assert len(msgspec.msgpack.encode(event)) == size
    return event


def sizes_of(found: list[Event]) -> list[int]:
    return [len(msgspec.msgpack.encode(event)) for event in found]


@pytest.mark.parametrize("topic", EVENTS_BY_TOPIC)
@settings(max_examples=20)
@given(data=st.data())
def test_events_of_every_topic_arrive_as_they_were_sent(topic: str, data: st.DataObject) -> None:
    sent = data.draw(EVENTS_OF[topic])
    assert [event for value in pack(sent) for event in unpack(topic, value, headers_of(topic))] == sent
    assert unpack(topic, envelope.encode(sent), headers_of(topic)) == sent


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([30, 2_000, 300_000, BYTES_MAX // 2, BYTES_MAX - 30, BYTES_MAX, BYTES_MAX + 1, 2 * BYTES_MAX]),
            st.sampled_from([1, 1, 2, 400, EVENTS_MAX, EVENTS_MAX + 1]),
        ).map(lambda run: (run[0], run[1] if run[0] <= 2_000 else min(run[1], 2))),
        max_size=5,
    )
)
def test_S2_envelopes_keep_order_and_limits_and_are_no_more_than_needed(runs: list[tuple[int, int]]) -> None:
    sent = [event_of(size) for size, count in runs for _ in range(count)]
    found = [unpack("row-control", value, headers_of("row-control")) for value in pack(iter(sent))]
    assert [event for one in found for event in one] == sent
    for one in found:
        assert 1 <= len(one) <= EVENTS_MAX
        assert sum(sizes_of(one)) <= BYTES_MAX or len(one) == 1
    for one, following in pairwise(found):
        assert len(one) == EVENTS_MAX or sum(sizes_of(one)) + sizes_of(following)[0] > BYTES_MAX


def test_S2_five_hundred_events_share_an_envelope_and_one_more_begins_the_next() -> None:
    assert len(list(pack([event_of(30)] * EVENTS_MAX))) == 1
    assert len(list(pack([event_of(30)] * (EVENTS_MAX + 1)))) == 2
    assert list(pack([])) == []


def test_a_large_event_travels_alone_between_its_neighbours() -> None:
    small, large = event_of(100), event_of(3 * BYTES_MAX)
    found = [unpack("row-control", value, headers_of("row-control")) for value in pack([small, small, large, small])]
    assert found == [[small, small], [large], [small]]


def test_S2_the_largest_event_travels_and_a_larger_one_is_refused_by_type_and_size() -> None:
    (value,) = pack([event_of(EVENT_BYTES_MAX)])
    assert len(value) == EVENT_BYTES_MAX + 1
    with pytest.raises(EventTooLarge, match=r"^one RunCancelled has 8,388,609 bytes; a message carries at most 8,388,608$"):
        list(pack([event_of(30), event_of(EVENT_BYTES_MAX + 1)]))


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], "None"),
        ([("schema", b"row-control/2")], "'row-control/2'"),
        ([("schema", b"row-work/1")], "'row-work/1'"),
        ([("Schema", b"row-control/1")], "None"),
        ([("schema", b"\xff")], "'\ufffd'"),
        ([("schema", b"row-control/9"), ("schema", b"row-control/1")], "'row-control/9'"),
    ],
)
def test_V5_another_header_is_refused_with_both_versions(headers: list[tuple[str, bytes]], found: str) -> None:
    with pytest.raises(EnvelopeError) as refused:
        unpack("row-control", envelope.encode([RunCancelled("run")]), headers)
    assert str(refused.value) == f"row-control: expected schema 'row-control/1', found {found}"


def test_a_header_without_a_value_is_refused() -> None:
    """Kafka's headers may be null; whoever can write a topic could otherwise stop every worker that reads it."""
    with pytest.raises(EnvelopeError, match="expected schema 'row-control/1', found None"):
        unpack("row-control", envelope.encode([RunCancelled("run")]), [("schema", None)])  # type: ignore[list-item]


def test_other_headers_change_nothing() -> None:
    headers = [("traceparent", b"00-1"), *headers_of("row-control"), ("ce_id", b"\xff")]
    assert unpack("row-control", envelope.encode([RunCancelled("run")]), headers) == [RunCancelled("run")]


def test_a_message_without_a_value_is_refused() -> None:
    with pytest.raises(EnvelopeError, match=r"^row-control: a message without a value$"):
        unpack("row-control", None, headers_of("row-control"))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'[["RunCancelled", "run"]]', id="JSON"),
        pytest.param(envelope.encode([RunCancelled("run")])[:-1], id="cut off"),
        pytest.param(envelope.encode([RunCancelled("run")]) + b"\x00", id="more behind"),
        pytest.param(msgspec.msgpack.encode(RunCancelled("run")), id="an event without its envelope"),
        pytest.param(envelope.encode([Probed("mark")]), id="an event of another topic"),
        pytest.param(msgspec.msgpack.encode([["RunCancelled"]]), id="a field too few"),
        pytest.param(msgspec.msgpack.encode([["RunCancelled", 7]]), id="a field of another type"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="four billion events announced"),
        pytest.param(b"\x91\x92\xacRunCancelled\xa1\xff", id="a text that is no UTF-8"),
    ],
)
def test_bytes_that_are_no_envelope_are_refused_by_topic_and_version(value: bytes) -> None:
    with pytest.raises(EnvelopeError, match=r"^row-control: not an envelope of 'row-control/1': \S"):
        unpack("row-control", value, headers_of("row-control"))


def test_bytes_nested_too_deeply_are_refused() -> None:
    """They come from outside, so they are told as what they are; nothing of ours nests like that."""
    with pytest.raises(EnvelopeError, match="not an envelope"):
        unpack("row-control", b"\x91\x93\xacRunCancelled\xa3run" + b"\x91" * 100_000, headers_of("row-control"))


@given(st.sampled_from(list(EVENTS_BY_TOPIC)), st.binary(max_size=60))
def test_any_bytes_are_an_envelope_or_refused(topic: str, value: bytes) -> None:
    with contextlib.suppress(EnvelopeError):
        unpack(topic, value, headers_of(topic))


@settings(max_examples=60)
@given(st.data())
def test_an_envelope_with_one_byte_changed_is_an_envelope_or_refused(data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(list(EVENTS_BY_TOPIC)))
    value = bytearray(envelope.encode(data.draw(EVENTS_OF[topic])))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(EnvelopeError):
        unpack(topic, bytes(value), headers_of(topic))


# --- examples -----------------------------------------------------------------------------------------------

FAULT = Fault("http_402", "the provider's credit is used up", True)
MEMBERS = (ClaimedMember("9f" * 20, 1, 0, 7), ClaimedMember("a0" * 20, 2, 1, 8))
PLAY = CompiledPlay(
    "leads",
    "people",
    "1-4f2a",
    ("email",),
    (
        CompiledColumn(
            "verified",
            "acme.verify",
            "org/acme",
            "3",
            "5e" * 20,
            Repeat.WITH_KEY,
            '{"email":"{{ row.email }}"}',
            ("email",),
            "$.status",
            "people",
        ),
        CompiledColumn("score", "acme.score", "org/acme", "1", "5e" * 20, Repeat.NEVER, "{}"),
    ),
)
TERMS = CompiledPlay(
    "leads",
    "people",
    "1-4f2a",
    (),
    (
        CompiledColumn(
            "verified", "acme.verify", "org/acme", "3", "5e" * 20, Repeat.NEVER, "{}", (), None, None, 20_833, True, "country"
        ),
    ),
)
BUDGET = RetryBudget(200, 67)
BUDGETED = CompiledPlay(
    "leads",
    "people",
    "1-4f2a",
    (),
    (CompiledColumn("score", "acme.score", "org/acme", "1", "5e" * 20, Repeat.NEVER, "{}", retries=BUDGET),),
)
ROW = AddedRow(3, "c4" * 20, '{"email":"zoë@example.org","n":19933688932870350000}'.encode())
ROWS = RowCounts(70, 10, 9, 8, 7, 6, 5)
CALLS = CallCounts(3, 2, 1)
SAMPLES = ((4, "verified", "the provider refused"),)

#: Examples by the name of their type; a remark behind the name tells several of one type apart.
EVENT_EXAMPLES: Mapping[str, Event] = {
    "RunOpened": RunOpened("run-1", "org", PLAY, True, True),
    "RowsAdded": RowsAdded("run-1", (ROW, AddedRow(4, "c5" * 20, b"{}"))),
    "RunCancelled": RunCancelled("run-1"),
    "RunClosing": RunClosing("run-1"),
    "CellResolved: as paid": CellResolved("run-1", "c4" * 20, "verified", b"null", "ann", "the provider's bill", "op-1"),
    "CellResolved: as unpaid": CellResolved("run-1", "c4" * 20, "verified", None),
    "RunClosed": RunClosed("run-1"),
    "ReceiptForgotten": ReceiptForgotten("9f" * 20, "ann", "wrong input", "op-1"),
    "ToolRequested": ToolRequested(
        "9f" * 20,
        "call-1",
        "run-1",
        5,
        "org/acme",
        "acme.verify",
        Repeat.FREELY,
        b'{"email":"a@b.c"}',
        Mode.FULL_REFRESH,
        "refresh-1",
    ),
    "ToolRequested: of a normal run": ToolRequested(
        "9f" * 20, "call-1", "run-1", 0, "org/acme", "acme.verify", Repeat.NEVER, b"{}"
    ),
    "ToolRequested: that may share a call, and continues": ToolRequested(
        "9f" * 20, "call-1", "run-1", 0, "org/acme", "acme.verify", Repeat.NEVER, b"{}", Mode.NORMAL, None, '"de"', True
    ),
    "RunOpened: with terms of reuse and of sharing": RunOpened("run-1", "org", TERMS),
    "RunOpened: with a retry budget": RunOpened("run-1", "org", BUDGETED),
    "ToolRequested: within a retry budget": ToolRequested(
        "9f" * 20, "call-1", "run-1", 0, "org/acme", "acme.verify", Repeat.NEVER, b"{}", retries=BUDGET
    ),
    "CallWithdrawn": CallWithdrawn("9f" * 20, "call-1"),
    "BatchClaimed: of a job that is known": BatchClaimed("org/acme", "acme.verify", "", "lease-1", 4, MEMBERS[:1], (), "job-1"),
    "JobStarted": JobStarted("9f" * 20, 1, "lease-1", "job-1"),
    "BatchClaimed": BatchClaimed("org/acme", "acme.verify", "b1" * 20, "lease-1", 4, MEMBERS[:1], MEMBERS),
    "LeaseReleased": LeaseReleased("lease-1", MEMBERS),
    "LeaseExpired": LeaseExpired("lease-1", MEMBERS),
    "Probed": Probed("probe-1"),
    "LeasesRenewed": LeasesRenewed(("lease-1", "lease-2")),
    "AttemptEnded: with a value": AttemptEnded("9f" * 20, 1, 2, "lease-1", Value(b'{"status":"ok"}')),
    "AttemptEnded: refused": AttemptEnded("9f" * 20, 1, 2, "lease-1", Failed(FAULT)),
    "AttemptEnded: to be tried again": AttemptEnded("9f" * 20, 1, 2, "lease-1", Retry(FAULT, 1_800_000_000_123)),
    "AttemptEnded: ambiguous": AttemptEnded("9f" * 20, 1, 2, "lease-1", Ambiguous(FAULT, 1_800_000_000_123, True)),
    "ReceiptResolved: as paid": ReceiptResolved("9f" * 20, 1, 2, b"null", "ann", "the provider's bill"),
    "ReceiptResolved: as unpaid": ReceiptResolved("9f" * 20, 1, 2, None, "ann"),
    "CallsAnswered": CallsAnswered(
        "9f" * 20,
        1,
        Answer.COMPLETED,
        (("call-1", Mark.LIVE), ("call-2", Mark.IN_FLIGHT), ("call-3", Mark.CACHE)),
        b'{"status":"ok"}',
    ),
    "CallsAnswered: with a fault": CallsAnswered("9f" * 20, 1, Answer.FAILED, (("call-1", Mark.LIVE),), None, FAULT),
    "AttemptUnknown": AttemptUnknown("9f" * 20, 1, 2, ("call-1", "call-2")),
    "RowsCounted": RowsCounted("run-1", 6, 12, ROWS, CALLS, True, SAMPLES),
    "RetriesCounted": RetriesCounted("run-1", "org/acme", 41),
}

COMMAND_EXAMPLES: Mapping[str, Event] = {
    "RecoveryEnded": commands.RecoveryEnded(),
    "CountersDue": commands.CountersDue("run-1"),
    "ProgressDue": commands.ProgressDue("run-1"),
    "LeaseJudgedExpired": commands.LeaseJudgedExpired("lease-1", MEMBERS),
    "WaitsDue": commands.WaitsDue("9f" * 20, 1_800_000_000_123),
    "AnswersDue": commands.AnswersDue("9f" * 20, "call-9"),
    "RunRequested": commands.RunRequested("run-1", "org", "d1" * 16, PLAY, (), (ROW.fields,), True, 1, True, True),
    "RunRequested: refused": commands.RunRequested("run-1", "", "d1" * 16, None, ("play.columns: Field required",)),
    "RowsAppended": commands.RowsAppended("run-1", 500, (ROW.fields, b"{}"), "d1" * 16),
    "RowsSealed": commands.RowsSealed("run-1", 502),
    "CancelRequested": commands.CancelRequested("run-1", "ann"),
    "ResolutionRequested": commands.ResolutionRequested(
        "run-1", "c4" * 20, "verified", b"null", "ann", "the bill", "op-1", ("row: no",)
    ),
    "ForgettingRequested": commands.ForgettingRequested("9f" * 20, "org/acme", "ann", "wrong input", "op-1", ("lane: no",)),
    "SweepDue": commands.SweepDue(1_800_000_000_123, 1_800_000_000_999),
    "Misrouted": commands.Misrouted("run-1", "run-requests", b'{"type":"rows_sealed"}'),
    "Parked": commands.Parked("run-requests", 9),
}

#: By record prefix as well, since that is how a table knows what it holds.
RECORD_EXAMPLES: Mapping[str, msgspec.Struct] = {
    "t TurnRecord": TurnRecord(
        17,
        4,
        "worker-1",
        1_800_000_000_123,
        {"receipt-claims": 9, "tool-requests": 12},
        (Segment("receipt-claims", 7, 8), Segment("tool-requests", 11, 11)),
        (msgspec.msgpack.encode(commands.RecoveryEnded()),),
        "command",
    ),
    "s Receipt": Receipt(
        True,
        ["refresh-1"],
        {
            f"call-{flag}": Waiter("run-1", 5, 1, 2, flag, True)
            for flag in (Flag.OPEN, Flag.UNKNOWN, Flag.FAILED, Flag.DONE, Flag.WITHDRAWN)
        },
        3,
        {
            n: Attempt("lease-1", 4, 1, 7, "b1" * 20, True, True, out, FAULT, 9, True, "e1", b"1")
            for n, out in enumerate((Out.AMBIGUOUS, Out.FAILED, Out.RETRY, Out.UNPAID, Out.VALUE, None))
        },
        (1, 2),
        [(2, "e2" * 20)],
        Repeat.WITH_KEY,
        "org/acme",
        "acme.verify",
        "run-1",
        b'{"email":"a@b.c"}',
    ),
    "s Receipt: not asked for": Receipt(),
    "s Receipt: of a job": Receipt(attempts={1: Attempt("lease-1", 4, job="job-1")}, bucket='"de"'),
    "s Receipt: of which a repeat is held": Receipt(
        attempts={1: Attempt("lease-1", 4, out=Out.RETRY, fault=FAULT)}, retry=Hold("run-1", 2, 0)
    ),
    "s Receipt: given up": Receipt(
        waiters={"call-1": Waiter("run-1", 5, flag=Flag.FAILED, retries=BUDGET)},
        attempts={1: Attempt("lease-1", 4, out=Out.RETRY, fault=FAULT, given_up=BUDGET)},
    ),
    "y RunRetries": RunRetries(41, 7),
    "i Ask": Ask(b'{"email":"a@b.c"}'),
    "w Waiter": Waiter("run-1", 5, 1, 2, Flag.UNKNOWN, True),
    "o OpenReceipt": OpenReceipt(),
    "f Followers": Followers("acme.verify", ["call-8", "call-9"]),
    "v StoredValue": StoredValue(b'{"status":"ok"}'),
    "b Batch": Batch("acme.verify", "org/acme", (("9f" * 20, 0, 7), ("a0" * 20, 1, 8))),
    "u Unknown": Unknown(1, 2, 7, "acme.verify", "org/acme", 1_800_000_000_123),
    "x ClosedRun": ClosedRun(1_800_000_000_123),
    "g Answered": Answered(("9f" * 20, "a0" * 20)),
    "d UnknownCell": UnknownCell("9f" * 20, 1, 2),
    "k Task": Task(
        ROW,
        {
            "verified": Cell(CellStatus.CACHED, b'"ok"', "9f" * 20, None, Mark.CACHE, "run-0"),
            "score": Cell(CellStatus.RUNNING, None, "a0" * 20, FAULT, None, "run-1"),
        },
        1,
        RowStatus.OPEN,
        (8, 9),
        True,
        2,
    ),
    "h SheetRow": SheetRow(3, ROW.fields, {"verified": Cell(CellStatus.COMPLETED)}, RowStatus.COMPLETED, "run-1", "1-4f2a"),
    "c RunShare": RunShare("org", PLAY, True, True, ROWS, CALLS, 12, 1_800_000_000_123, True, True, True, True, SAMPLES),
    "c RunShare: of a run that is over": RunShare(),
    "r Run": Run(
        "d1" * 16,
        "org",
        PLAY,
        RunStatus.RUNNING,
        502,
        True,
        {5: Share(70, 12, ROWS, CALLS, True, SAMPLES), 6: Share()},
        1_800_000_000_123,
        True,
        True,
        1_800_000_009_999,
        True,
        1_800_000_001_000,
        True,
        {500: (2, "d2" * 16)},
        502,
        8,
    ),
    "r Run: with repeats": Run("d1" * 16, "org", BUDGETED, RunStatus.RUNNING, 0, False, {}, 0, retries={"org/acme": 41}),
}

REQUEST_EXAMPLES: Mapping[str, requests.PublicRequest] = {
    "run_requested": requests.RunRequested(
        run="run-1",
        org="acme-sales",
        play=Play.model_validate(
            {
                "name": "leads",
                "version": "2",
                "dataset": "people",
                "key": ["email"],
                "columns": [
                    {
                        "name": "verified",
                        "tool": "acme.verify",
                        "input": {"email": "{{ row.email }}", "deep": [1, None, {"x": True}]},
                        "needs": ["email"],
                        "extract": "$.status",
                    }
                ],
            }
        ),
        rows=[{"email": "zoë@example.org", "n": 19933688932870350000}],
        expected_rows=1,
        rows_digest="d3",
        force=True,
        force_tool_refresh=True,
    ),
    "run_requested: with a retry budget": requests.RunRequested(
        run="run-1",
        play=Play.model_validate(
            {"name": "leads", "retries_max": 200, "columns": [{"name": "verified", "tool": "acme.verify", "input": {}}]}
        ),
    ),
    "rows_appended": requests.RowsAppended(run="run-1", first=500, rows=[{"email": "a@b.c"}, {"email": None}]),
    "rows_sealed": requests.RowsSealed(run="run-1", total=502),
    "run_cancelled": requests.RunCancelled(run="run-1", who="ann"),
    "cell_resolved": requests.CellResolved(
        run="run-1", row="c4" * 20, column="verified", outcome="paid", value={"n": 1}, who="ann", reason="bill", operation="op-1"
    ),
    "receipt_forgotten": requests.ReceiptForgotten(receipt="9f" * 20, lane="org/acme", who="ann", reason="wrong", operation="op-1"),
}

ENUMS = [
    kind for module in (events, states) for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, enum.Enum)
]
_request: TypeAdapter[requests.PublicRequest] = TypeAdapter(requests.PublicRequest)
Golden = dict[str, dict[str, Any]]


def type_of(name: str) -> str:
    """The type that an example is of: its name up to the remark."""
    return name.partition(":")[0]


def topics_carrying(kind: type[Event]) -> list[str]:
    return [topic for topic, kinds in EVENTS_BY_TOPIC.items() if kind in kinds]


@cache
def todays() -> Golden:
    """All examples as today's code encodes them."""
    return {
        "events": {
            f"{topic}/{envelope.VERSION} {name}": envelope.encode([event]).hex()
            for name, event in EVENT_EXAMPLES.items()
            for topic in topics_carrying(type(event))
        },
        "commands": {name: msgspec.msgpack.encode(command).hex() for name, command in COMMAND_EXAMPLES.items()},
        "records": {name: msgspec.msgpack.encode(record).hex() for name, record in RECORD_EXAMPLES.items()},
        "requests": {name: request.model_dump(mode="json") for name, request in REQUEST_EXAMPLES.items()},
        "words": {f"{kind.__name__}.{member.name}": member.value for kind in ENUMS for member in kind},
    }


@cache
def golden() -> Golden:
    """The entries that stand."""
    loaded: Golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    return loaded


def entries() -> list[Any]:
    """Section and name of every entry, of today's examples as of the file."""
    today, stand = todays(), golden()
    return [
        pytest.param(section, name, id=f"{section}: {name}")
        for section in today
        for name in today[section] | stand.get(section, {})
    ]


def decoded(section: str, name: str, entry: Any) -> object:
    """What stands in a golden entry, read the way the program reads it."""
    match section:
        case "events":
            schema, _, kind = name.partition(" ")
            topic = schema.partition("/")[0]
            (event,) = unpack(topic, bytes.fromhex(entry), [(envelope.HEADER, schema.encode())])
            assert type(event).__name__ == type_of(kind)
            return event
        case "commands":
            return decode_judged(bytes.fromhex(entry))
        case "records":
            return msgspec.msgpack.decode(bytes.fromhex(entry), type=RECORD_TYPES[name[0].encode()])
        case "requests":
            return _request.validate_json(json.dumps(entry))
    return entry


def example(section: str, name: str) -> object:
    """Today's example of an entry."""
    match section:
        case "events":
            return EVENT_EXAMPLES[name.partition(" ")[2]]
        case "commands":
            return COMMAND_EXAMPLES[name]
        case "records":
            return RECORD_EXAMPLES[name]
        case "requests":
            return REQUEST_EXAMPLES[name]
    return todays()[section][name]


# --- golden bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("section", "name"), entries())
def test_what_kafka_keeps_has_the_same_bytes_today(section: str, name: str) -> None:
    stands = golden().get(section, {})
    assert name in stands, f"{section}: {name} has no golden entry. {ADD_NEW}"
    today = todays()[section]
    assert name in today, f"{section}: {name} is gone, but Kafka keeps such messages for ever. {NEVER_EDIT}"
    assert today[name] == stands[name], f"{section}: {name} is encoded in another way than before. {NEVER_EDIT}"


@pytest.mark.parametrize(("section", "name"), entries())
def test_what_kafka_keeps_is_read_as_what_it_was(section: str, name: str) -> None:
    stands = golden().get(section, {})
    assert name in stands, f"{section}: {name} has no golden entry. {ADD_NEW}"
    assert decoded(section, name, stands[name]) == example(section, name), (
        f"{section}: {name} is read as something else than what was written. {NEVER_EDIT}"
    )


@pytest.mark.parametrize("entry", golden().get(EARLIER, {}))
def test_what_was_written_before_a_field_was_added_is_read_with_its_default(entry: str) -> None:
    """A field may be added behind the others, with a default: topics and tables still hold the shorter form."""
    section, _, name = entry.partition(" ")
    for shorter in golden()[EARLIER][entry]:
        assert decoded(section, name, shorter) == example(section, name)


@pytest.mark.parametrize("topic", EVENTS_BY_TOPIC)
def test_every_event_of_a_topic_has_a_golden_entry(topic: str) -> None:
    stand = {type_of(name) for name in golden()["events"] if name.startswith(f"{topic}/{envelope.VERSION} ")}
    expected = {f"{topic}/{envelope.VERSION} {kind.__name__}" for kind in EVENTS_BY_TOPIC[topic]}
    assert expected <= stand, f"without a golden entry: {sorted(expected - stand)}. {ADD_NEW}"


def test_every_command_record_request_and_outcome_has_a_golden_entry() -> None:
    stand = {section: {type_of(name) for name in names} for section, names in golden().items()}
    expected = {
        "commands": {kind.__name__ for kind in get_args(commands.Command)},
        "records": {f"{prefix.decode()} {kind.__name__}" for prefix, kind in RECORD_TYPES.items()},
        "requests": {kind.model_fields["type"].default for kind in get_args(get_args(requests.PublicRequest)[0])},
        "words": {f"{kind.__name__}.{member.name}" for kind in ENUMS for member in kind},
    }
    missing = {section: names - stand[section] for section, names in expected.items() if names - stand[section]}
    assert not missing, f"without a golden entry: {missing}. {ADD_NEW}"
    outcomes = {type(event.outcome) for event in EVENT_EXAMPLES.values() if isinstance(event, AttemptEnded)}
    assert outcomes == set(get_args(events.Outcome)), ADD_NEW


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            '{"type":"run_requested","run":"r","play":{"name":"p","columns":[{"name":"c","tool":"a.b","input":{}}]}}',
            requests.RunRequested(
                run="r", play=Play.model_validate({"name": "p", "columns": [{"name": "c", "tool": "a.b", "input": {}}]})
            ),
        ),
        ('{"type":"rows_appended","run":"r","first":0,"rows":[{}]}', requests.RowsAppended(run="r", first=0, rows=[{}])),
        ('{"type":"rows_sealed","run":"r","total":0}', requests.RowsSealed(run="r", total=0)),
        ('{"type":"run_cancelled","run":"r"}', requests.RunCancelled(run="r")),
        (
            '{"type":"cell_resolved","run":"r","row":"%s","column":"c","outcome":"unpaid"}' % ("c4" * 20),
            requests.CellResolved(run="r", row="c4" * 20, column="c", outcome="unpaid"),
        ),
        (
            '{"type":"receipt_forgotten","receipt":"%s","lane":"o/p"}' % ("9f" * 20),
            requests.ReceiptForgotten(receipt="9f" * 20, lane="o/p"),
        ),
    ],
)
def test_a_request_of_nothing_but_what_must_be_said_is_read_for_ever(text: str, meaning: object) -> None:
    """Programs of other people send these: a field that is required from now on would break them."""
    assert _request.validate_json(text) == meaning


def test_writing_new_entries_adds_what_is_missing_and_touches_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    today = todays()
    kept = dict(today["events"])
    new, _ = kept.popitem()
    first = next(iter(kept))
    kept[first] = "00"
    file.write_text(json.dumps({"events": kept, "requests": {"of yore": {}}}), encoding="utf-8")
    added = write_new(file)
    assert f"events: {new}" in added
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["events"] == {**today["events"], first: "00"}
    assert written["requests"] == {**today["requests"], "of yore": {}}
    assert written["words"] == today["words"]
    assert write_new(file) == []


def write_new(file: Path = GOLDEN) -> list[str]:
    """Add the entries that the file lacks, and return their names; what stands in it stays as it is."""
    entries: Golden = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    added = []
    for section, examples in todays().items():
        stand = entries.setdefault(section, {})
        for name, entry in examples.items():
            if name not in stand:
                stand[name] = entry
                added.append(f"{section}: {name}")
    if added:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(entries, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return added


if __name__ == "__main__":
    if sys.argv[1:] != ["--write-new"]:
        sys.exit(f"usage: {WRITE_NEW}")
    print("\n".join(write_new()) or "nothing is missing")
