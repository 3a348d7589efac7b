"""No input that a topic takes ends a worker, whatever is made of it: it is refused, or fails alone, and names both sizes (S2, M1).

Each of these messages once ended every worker that owned its partition, again after every restart: what a turn makes of it was
larger than a message of Kafka, so that the turn could never be committed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from schemas import address, envelope
from schemas.commands import Misrouted, RecoveryEnded, RowsAppended, RunRequested
from schemas.envelope import BYTES_MAX
from schemas.events import AddedRow, Answer, CallsAnswered, Event, Fault, Mark, RowsAdded
from schemas.plays import COLUMNS_MAX
from schemas.progress import MapRow, OperationEvent, RunEvent
from schemas.providers import Providers
from schemas.requests import ROW_BYTES_MAX
from schemas.states import RUN, SHEET, TASK, CellStatus, RowStatus, Run, SheetRow, Task
from streams.agents import sizes
from streams.agents.rows import rows_agent
from streams.agents.runs import runs_agent
from streams.engine import inputlines, rowsize
from streams.errors import InputError, PaidonceError
from streams.kafka.inbox import Delivery, Inbox
from streams.kafka.producers import MESSAGE_BYTES_MAX
from streams.public.submission import Submission
from streams.tools.results import OUTPUT_BYTES_MAX
from streams.turn import JUDGED_BYTES_MAX, JUDGEMENT_BYTES_MAX, Actor
from tests.support import given_rows as rows
from tests.support.line import NAMES, Line

PROVIDERS = Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": {"path": "/t"}}}}})
PLAY = {"name": "play", "key": ["id"], "columns": [{"name": "c", "tool": "p.t", "input": {"x": "{{ row.id }}"}}]}


def asked(**fields: Any) -> bytes:
    return json.dumps({"type": "run_requested", "run": "run", "play": PLAY} | fields).encode()


def appended(first: int, *lines: Any) -> bytes:
    return json.dumps({"type": "rows_appended", "run": "run", "first": first, "rows": lines}).encode()


def row_of(size: int, name: str = "a") -> dict[str, str]:
    """A row of so many bytes as JSON."""
    row = {"id": name, "t": ""}
    return row | {"t": "x" * (size - len(json.dumps(row, separators=(",", ":"))))}


def runs_line() -> Line:
    return Line(runs_agent(PROVIDERS, NAMES.partitions, partition_check=False))


def folded(*values: bytes, topic: str = "run-requests") -> Line:
    """These messages, each in a turn of its own."""
    line = runs_line()
    asyncio.run(line.owner(*[([], [line.put(topic, value)]) for value in values]))
    line.check()
    return line


def told(line: Line) -> list[RunEvent]:
    return [RunEvent.model_validate_json(value or b"") for value in line.broker.values.get("run-events", [])]


def sent(line: Line) -> list[RowsAdded]:
    """What went down to ``rows``."""
    headers = envelope.headers_of("row-work")
    events = [event for value in line.broker.values.get("row-work", []) for event in envelope.unpack("row-work", value, headers)]
    return [event for event in events if isinstance(event, RowsAdded)]


# --- what comes in ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("excess", [1, 8_700_000 - ROW_BYTES_MAX])
def test_M1_S2_a_row_that_no_event_carries_is_refused_by_position_and_both_sizes(excess: int) -> None:
    """M1, S2: a request with one row of 8.7 MB fits its topic, but the event that takes the row down did not fit its own."""
    size = ROW_BYTES_MAX + excess
    line = folded(asked(rows=[row_of(50, "a"), row_of(size, "b"), row_of(50, "c")]))
    (refused,) = told(line)
    assert (refused.type, refused.code) == ("run.refused", "invalid_request")
    assert refused.faults == (f"row 1: has {size:,} bytes as JSON; a row has at most {ROW_BYTES_MAX:,}",)
    assert sent(line) == []
    assert list(line.store.scan(RUN)) == []


def test_M1_S2_a_chunk_with_such_a_row_is_rejected_as_a_whole() -> None:
    """M1, S2: its run stands, and may be sent a better chunk."""
    large = row_of(ROW_BYTES_MAX + 9, "c")
    line = folded(asked(rows=None), appended(0, row_of(50)), appended(1, row_of(50, "b"), large), appended(1, row_of(50, "d")))
    started, rejected = told(line)
    assert (started.type, rejected.type) == ("run.started", "run.rejected")
    assert rejected.faults == (f"row 2: has {ROW_BYTES_MAX + 9:,} bytes as JSON; a row has at most {ROW_BYTES_MAX:,}",)
    assert [row.position for event in sent(line) for row in event.rows] == [0, 1]


def test_S2_the_largest_row_goes_all_the_way_to_the_sheet() -> None:
    """S2: what the judgement lets through fits the event, the task, the sheet and ``map-rows``."""
    line = folded(asked(rows=[row_of(ROW_BYTES_MAX)]))
    (event,) = sent(line)
    below = Line(rows_agent())
    of = rows.play(rows.column("check", {"x": "{{ row.id }}"}))
    taken = [below.put_events("row-work", rows.opened(of=of)), below.put_events("row-work", event)]
    answer = CallsAnswered("r", 1, Answer.COMPLETED, ((f"run:{event.rows[0].key}:check", Mark.LIVE),), b'"v"')

    asyncio.run(below.owner(([], taken), ([], [below.put_events("tool-results", answer)])))
    below.check()
    assert published(below).status == "completed"


def test_S2_a_client_refuses_a_row_that_the_worker_would_refuse() -> None:
    """S2: before anything is published."""
    with Submission(runs_play(), "run") as submission:
        submission.add(row_of(ROW_BYTES_MAX))
        with pytest.raises(InputError, match=f"{ROW_BYTES_MAX + 1:,} bytes as JSON, at most {ROW_BYTES_MAX:,} fit"):
            submission.add(row_of(ROW_BYTES_MAX + 1))


def runs_play() -> Any:
    from schemas.plays import Play

    return Play.model_validate(PLAY)


def test_S2_numbers_that_grow_as_they_are_written_down_do_not_pass_the_limit() -> None:
    """S2: 1e15 has four characters, and eighteen as canonical JSON; 3 MB of them were 10 MB in the journal."""
    numbers = b"[" + b"1e15," * 550_000 + b"1]"
    lines = b",".join(b'{"id":"%d","n":%s}' % (place, numbers) for place in range(3))
    value = b'{"type":"rows_appended","run":"run","first":0,"rows":[' + lines + b"]}"
    assert len(value) < MESSAGE_BYTES_MAX
    line = folded(value)
    (refused,) = told(line)
    assert [fault.partition(":")[0] for fault in refused.faults] == ["row 0", "row 1", "row 2"]


def test_S2_a_request_whose_record_no_message_carries_is_refused_with_both_sizes() -> None:
    """S2: 9 MiB of rows fit the topic; beside the rest of a turn's record they did not."""
    value = asked(rows=[row_of(4_700_000, "a"), row_of(4_700_000, "b")])
    line = folded(value)
    (refused,) = told(line)
    assert refused.type == "run.refused"
    (fault,) = refused.faults
    assert fault.startswith("request: has 9,40")
    assert fault.endswith(f"at most {JUDGEMENT_BYTES_MAX:,} are taken in one message")


def test_M1_a_refusal_of_a_million_faults_can_be_written() -> None:
    """M1: each unknown field of a request is a fault, in more bytes than the field has."""
    value = asked(rows=[], **{f"f{number}": 1 for number in range(60_000)})
    (refused,) = told(folded(value))
    assert refused.message == f"the run request has {sizes.FAULTS_MAX + 1:,} faults".replace(",", "")
    assert refused.faults[0] == "f0: Extra inputs are not permitted"
    (named,) = told(folded(asked(rows=[], **{"n" * 9_000_000: 1})))
    assert named.faults == ("n" * sizes.FAULT_CHARS_MAX,)


@pytest.mark.parametrize(
    "value",
    [
        asked(rows=[], run="r" * 9_000_000),
        json.dumps({"type": "run_cancelled", "run": "run", "who": "w" * (JUDGEMENT_BYTES_MAX + 1)}).encode(),
    ],
    ids=["run id", "who"],
)
def test_case_H3_what_cannot_even_be_answered_is_parked(value: bytes) -> None:
    """case_H3: the answer would carry the same text twice."""
    line = folded(value)
    assert told(line) == []
    ((_, letter, headers),) = line.broker.letters
    assert letter == value
    assert b"at most" in headers["error"]


def test_case_H3_a_request_too_large_to_be_forwarded_is_parked() -> None:
    """case_H3: it would go on to its home with more around it than it came with."""
    line = Line(runs_agent(PROVIDERS, NAMES.partitions))
    away = next(name for name in map(str, range(100)) if address.partition_of(name, NAMES.partitions) != 0)
    values = [asked(run=away, rows=[row_of(size)]) for size in (JUDGEMENT_BYTES_MAX - 1_000, MESSAGE_BYTES_MAX - 1_000)]
    asyncio.run(line.owner(*[([], [line.put("run-requests", value)]) for value in values]))
    line.check()
    assert line.broker.values["run-requests"] == values[:1]
    assert [letter[1] for letter in line.broker.letters] == values[1:]


def test_S2_an_operation_names_no_column_that_no_play_can_have() -> None:
    """S2: it came back in an event that named it three times."""
    value = {"type": "cell_resolved", "run": "run", "row": "c4" * 20, "column": "c" * 5_000_000, "outcome": "unpaid"}
    line = folded(json.dumps(value).encode(), topic="operations")
    (event,) = [OperationEvent.model_validate_json(value or b"") for value in line.broker.values["run-events"]]
    assert event.code == "invalid_request"
    assert "column: String should have at most 200 characters" in event.message


def test_M1_a_play_that_no_record_carries_is_refused() -> None:
    """M1: it goes to every partition of its run, and stands in the run's records there."""
    column = {"tool": "p.t", "input": {"x": "y" * sizes.PLAY_BYTES_MAX}}
    (refused,) = told(folded(asked(rows=[], play=PLAY | {"columns": [column | {"name": "c"}]})))
    (fault,) = refused.faults
    assert fault.startswith("play: has 1,048,")
    assert fault.endswith("a play has at most 1,048,576")
    many = [{"name": f"c{number}", "tool": "p.t", "input": {}} for number in range(COLUMNS_MAX + 1)]
    (refused,) = told(folded(asked(rows=[], play=PLAY | {"columns": many})))
    assert refused.faults == (
        f"play.columns: Tuple should have at most {COLUMNS_MAX} items after validation, not {COLUMNS_MAX + 1}",
    )


def test_S2_rows_go_down_in_events_of_a_mebibyte_or_one_row() -> None:
    """S2: 250 rows of 36 kB went into one event of 9 MB."""
    for size, count in ((36_000, 240), (3_000_000, 3), (20, 1_000)):
        line = folded(asked(rows=[row_of(size, f"{number}") for number in range(count)]))
        events = sent(line)
        assert sorted(row.position for event in events for row in event.rows) == list(range(count))
        for event in events:
            assert len(event.rows) == 1 or (
                len(event.rows) <= inputlines.ROWS_MAX and sum(len(row.fields) for row in event.rows) <= BYTES_MAX
            )


def test_S2_a_run_of_more_chunks_than_its_record_names_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: each chunk is named in the run's record, which 200,000 of them made larger than a message."""
    monkeypatch.setattr(inputlines, "CHUNKS_MAX", 2)
    line = folded(asked(rows=None), *[appended(place, row_of(30, f"{place}")) for place in range(3)])
    assert (told(line)[-1].type, told(line)[-1].code) == ("run.failed", "too_many_chunks")
    assert told(line)[-1].message.startswith("row 2: begins another chunk, and a run has at most 2")


# --- what one turn takes ------------------------------------------------------------------------------------


class Turns:
    """A real actor with an inbox that it takes from by itself."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.failed: list[PaidonceError] = []

    async def take(self, commands: Sequence[Event], deliveries: Sequence[Delivery]) -> Actor:
        inbox = Inbox(self.line.spec.topics, bytes_max=64 << 20, turn_bytes_max=64 << 20)
        quiet: Callable[..., None] = lambda *_: None  # noqa: E731 - nothing follows here
        producers: Any = self.line.broker
        store: Any = self.line.store
        actor = Actor(self.line.spec, 0, NAMES, store, producers, inbox, on_effects=quiet, on_failure=self.failed.append)
        for command in commands:
            inbox.command(command)
        for delivery in deliveries:
            inbox.deliver(delivery)
        while inbox.depth:
            await actor.turn(*inbox.take())
        await actor.stop()
        return actor


def test_S2_a_turn_takes_as_many_requests_as_its_record_holds_and_leaves_the_others() -> None:
    """S2: two chunks of our own client, of 1.9 and 8.2 MB, came in one turn, whose record was 10.1 MB."""
    line = runs_line()
    values = [asked(rows=None)]
    values += [appended(place, row_of(size, f"{place}")) for place, size in enumerate((1_900_000, 8_200_000, 100, 8_200_000, 100))]
    operation = line.put("operations", json.dumps({"type": "rows_sealed", "run": "other", "total": 1}).encode())
    waiting = [operation, *[line.put("run-requests", value) for value in values]]
    asyncio.run(Turns(line).take([RecoveryEnded()], waiting))
    line.check()
    took = [sum(segment.last - segment.first + 1 for segment in record.segments) for record in line.broker.journal]
    assert took == [3, 2, 2]
    assert [row.position for event in sent(line) for row in event.rows] == [0, 1, 2, 3, 4]
    assert all(sum(map(len, record.judged)) <= JUDGED_BYTES_MAX for record in line.broker.journal)


def test_S2_commands_that_fill_a_record_are_taken_in_several_turns() -> None:
    """S2: they stand in it as well, ahead of the messages."""
    line = runs_line()
    commands = [RunRequested(f"run-{number}", "", "d", None, ("w" * 3_000_000,)) for number in range(7)]
    asyncio.run(Turns(line).take(commands, [line.put("run-requests", asked(rows=[row_of(8_000_000)]))]))
    line.check()
    assert [len(record.judged) for record in line.broker.journal] == [3, 3, 1, 1]
    assert [bool(record.segments) for record in line.broker.journal] == [False, False, False, True]


# --- what a row grows to ------------------------------------------------------------------------------------


def published(line: Line) -> MapRow:
    return MapRow.model_validate_json(line.broker.values["map-rows"][-1] or b"")


def computed(fields: dict[str, Any], *values: bytes | Fault, revision: str = "rev") -> Line:
    """A row whose columns are answered one after the other."""
    line = Line(rows_agent())
    names = [f"c{place}" for place in range(len(values))]
    of = rows.play(*[rows.column(name, {"x": "{{ row.id }}"}) for name in names], revision=revision)
    added = rows.added(AddedRow(0, "k", json.dumps(fields, separators=(",", ":")).encode()))
    turns: list[tuple[list[Event], list[Delivery]]] = [
        ([], [line.put_events("row-work", rows.opened(of=of)), line.put_events("row-work", added)])
    ]
    for name, value in zip(names, values, strict=True):
        outcome = {"fault": value} if isinstance(value, Fault) else {"output": value}
        answer = Answer.FAILED if isinstance(value, Fault) else Answer.COMPLETED
        said = CallsAnswered(f"r-{name}", 1, answer, ((f"run:k:{name}", Mark.LIVE),), **outcome)
        turns.append(([], [line.put_events("tool-results", said)]))
    asyncio.run(line.owner(*turns))
    line.check()
    return line


def text_of(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


def test_S2_a_cell_that_its_row_has_no_room_for_fails_alone_and_names_sizes() -> None:
    """S2: two answers of 5 MiB, each below the limit of a result, made a row that neither the changelog nor ``map-rows`` took."""
    first, second = text_of(5 << 20), text_of(5 << 20)
    row = published(computed({"id": "a"}, first, second, b"1"))
    assert row.status == "failed"
    assert list(row.cells) == ["c0", "c1"]
    cell = row.cells["c1"]
    assert (cell.status, cell.code, cell.value, cell.receipt, cell.mark) == ("failed", "too_large", None, "r-c1", "live")
    assert f"{len(second):,} bytes" in (cell.error or "")
    assert f"{len(first) + 10:,} of at most {rowsize.ROW_BYTES_MAX:,} bytes" in (cell.error or "")
    assert len(row.cells["c0"].value) == len(first) - 2


@pytest.mark.parametrize("excess", [0, 1])
def test_S2_a_row_may_grow_to_what_its_record_and_message_hold(excess: int) -> None:
    """S2: up to the last byte, with as many cells and as long a fault as there can be."""
    rest = rowsize.ROW_BYTES_MAX - OUTPUT_BYTES_MAX - len(b'{"id":"a"}') + excess
    row = published(computed({"id": "a"}, text_of(OUTPUT_BYTES_MAX), text_of(rest)))
    assert row.status == ("completed", "failed")[excess]


def test_S2_the_largest_row_with_a_thousand_cells_and_a_long_fault_fits() -> None:
    """S2: names, runs, receipts and the provider's own words stand around the values."""
    run, name = "r" * 128, "c" * 59
    of = rows.play(*[rows.column(f"{name}{place:04}", {"x": "{{ row.id }}"}) for place in range(COLUMNS_MAX)])
    table = rows.rows_table()
    fields = json.dumps(row_of(ROW_BYTES_MAX), separators=(",", ":")).encode()
    table.given(rows.opened(run, of=of), rows.added(AddedRow(0, "k" * 40, fields), run=run))
    key = next(key for key in table.reader.data if key.startswith(TASK))
    task = msgspec.msgpack.decode(table.reader.data[key], type=Task)
    cell = msgspec.structs.replace(task.cells[f"{name}0000"], status=CellStatus.COMPLETED, value=b"1", mark=Mark.IN_FLIGHT)
    task.cells = {f"{name}{place:04}": msgspec.structs.replace(cell) for place in range(COLUMNS_MAX)}
    last = task.cells[f"{name}{COLUMNS_MAX - 1:04}"]
    last.status, last.value = CellStatus.RUNNING, None
    task.column = COLUMNS_MAX - 1
    large = rowsize.ROW_BYTES_MAX - len(fields) - COLUMNS_MAX
    task.cells[f"{name}0000"].value = text_of(large)
    table.reader.data[key] = msgspec.msgpack.encode(task)
    call = f"{run}:{'k' * 40}:{name}{COLUMNS_MAX - 1:04}"
    fault = Fault("no", "\x01" * 3 * rowsize.FAULT_CHARS_MAX)
    outbox = table.given(CallsAnswered("9f" * 20, 1, Answer.FAILED, ((call, Mark.LIVE),), fault=fault))
    (event,) = outbox.public
    assert MESSAGE_BYTES_MAX - (256 << 10) < len(event.data or b"") < MESSAGE_BYTES_MAX - 4_096
    assert max(map(len, table.reader.data.values())) < MESSAGE_BYTES_MAX - 4_096
    sheet = next(msgspec.msgpack.decode(value, type=SheetRow) for name, value in table.reader.scan(SHEET))
    assert sheet.status is RowStatus.FAILED


def test_a_judgement_is_what_it_was() -> None:
    """Requests of usual sizes mean what they meant."""
    agent = runs_agent(PROVIDERS, NAMES.partitions, partition_check=False)
    assert agent.judge is not None
    (event,) = agent.judge(Delivery("run-requests", 0, b"run", appended(0, {"id": 1})), 0)
    assert isinstance(event, RowsAppended)
    assert event.rows == (b'{"id":1}',)
    (event,) = agent.judge(Delivery("run-requests", 0, b"run", asked(rows=[{"id": 1}])), 0)
    assert isinstance(event, RunRequested)
    assert (event.faults, event.rows) == ((), (b'{"id":1}',))
    (event,) = runs_agent(PROVIDERS, 8).judge(
        Delivery("run-requests", 0, b"run", asked(rows=[])), address.partition_of("run", 8) ^ 1
    )  # type: ignore[misc]
    assert isinstance(event, Misrouted)


def test_a_run_keeps_the_rows_that_it_was_sent() -> None:
    (run,) = [msgspec.msgpack.decode(value, type=Run) for _, value in folded(asked(rows=[{"id": 1}, {"id": 2}])).store.scan(RUN)]
    assert run.total == 2
