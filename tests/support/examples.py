"""One fixed example of everything that Kafka or a table keeps, of which ``tests/golden/events.json`` holds the bytes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schemas import commands, requests
from schemas.beside import DuplicateLines, LastAnswer
from schemas.events import (
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
    WaitingRows,
)

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
WAITING = msgspec.structs.replace(
    TERMS, columns=(msgspec.structs.replace(TERMS.columns[0], fresh=False, completed_cache=True, receipt_wait_ms=900_000),)
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
    "ToolRequested: under a receipt of its own, with its column's wait": ToolRequested(
        "9f" * 20, "c", "r", 0, "org/acme", "acme.verify", Repeat.NEVER, b"{}", kept_under="a0" * 20, receipt_wait_ms=900_000
    ),
    "RunOpened: with terms of reuse and of sharing": RunOpened("run-1", "org", TERMS),
    "RunOpened: with a retry budget": RunOpened("run-1", "org", BUDGETED),
    "ToolRequested: within a retry budget": ToolRequested(
        "9f" * 20, "call-1", "run-1", 0, "org/acme", "acme.verify", Repeat.NEVER, b"{}", retries=BUDGET
    ),
    "RunOpened: with terms of waiting": RunOpened("run-1", "org", WAITING),
    "CallWithdrawn": CallWithdrawn("9f" * 20, "call-1"),
    "BatchClaimed: of a job that is known": BatchClaimed("org/acme", "acme.verify", "", "lease-1", 4, MEMBERS[:1], (), "job-1"),
    "JobStarted": JobStarted("9f" * 20, 1, "lease-1", "job-1"),
    "BatchClaimed": BatchClaimed("org/acme", "acme.verify", "b1" * 20, "lease-1", 4, MEMBERS[:1], MEMBERS),
    "LeaseReleased": LeaseReleased("lease-1", MEMBERS),
    "LeaseExpired": LeaseExpired("lease-1", MEMBERS),
    "LeaseExpired: for the last time": LeaseExpired("lease-1", MEMBERS, 1_800_000_000_123, (MEMBERS[0].receipt,)),
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
    "LeaseJudgedExpired: for the last time": commands.LeaseJudgedExpired("lease-1", MEMBERS, 1_800_000_000_123, ("9f" * 20,)),
    "WaitsDue": commands.WaitsDue("9f" * 20, 1_800_000_000_123),
    "WaitsDue: of a column's own wait": commands.WaitsDue("9f" * 20, 1_800_000_000_123, 900_000),
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
    "SweepGoesOn": commands.SweepGoesOn(1_800_000_000_123, 1_800_000_000_999, "9f" * 20, "run-1:key:check", True),
    "EndedRunsDue": commands.EndedRunsDue(1_800_000_000_999),
    "EndedRunsDue: where it goes on": commands.EndedRunsDue(1_800_000_000_999, "run-1", "c4" * 20),
    "Misrouted": commands.Misrouted("run-1", "run-requests", b'{"type":"rows_sealed"}'),
    "Parked": commands.Parked("run-requests", 9),
    "PartlyParked": commands.PartlyParked("receipt-completions", 9, (1, 4)),
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
    "s Receipt: of one call": Receipt(kept_under="a0" * 20),
    "i Ask": Ask(b'{"email":"a@b.c"}'),
    "w Waiter": Waiter("run-1", 5, 1, 2, Flag.UNKNOWN, True),
    "o OpenReceipt": OpenReceipt(),
    "f Followers": Followers("acme.verify", ["call-8", "call-9"]),
    "v StoredValue": StoredValue(b'{"status":"ok"}'),
    "b Batch": Batch("acme.verify", "org/acme", (("9f" * 20, 0, 7), ("a0" * 20, 1, 8))),
    "u Unknown": Unknown(1, 2, 7, "acme.verify", "org/acme", 1_800_000_000_123),
    "x ClosedRun": ClosedRun(1_800_000_000_123),
    "g Answered": Answered(("9f" * 20, "a0" * 20)),
    "l LastAnswer": LastAnswer(1_800_000_000_123, 1_799_996_400_000),
    "m DuplicateLines": DuplicateLines(b"\x05" + bytes(127)),
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
    "k Task: that asks again under another scope": Task(
        ROW, {}, 1, RowStatus.OPEN, refreshed=3, again=True, moved={0: "5e" * 20, 1: "6f" * 20}
    ),
    "h SheetRow": SheetRow(3, ROW.fields, {"verified": Cell(CellStatus.COMPLETED)}, RowStatus.COMPLETED, "run-1", "1-4f2a"),
    "c RunShare": RunShare("org", PLAY, True, True, ROWS, CALLS, 12, 1_800_000_000_123, True, True, True, True, SAMPLES),
    "c RunShare: of a run that is over": RunShare(),
    "c RunShare: with rows that wait": RunShare("org", PLAY, open_rows=500, open_bytes=96_000, waiting_first=3, waiting_next=9),
    "c RunShare: that was looked through": RunShare(
        "org", PLAY, published_ms=1_800_000_000_123, closed=True, swept_ms=1_800_000_000_123
    ),
    "q WaitingRows": WaitingRows((ROW,)),
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
