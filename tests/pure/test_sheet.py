"""N lines in, N lines out: a run's input joined with the sheet, whatever else stands in the topics."""

import json
from typing import Any

import pytest

from schemas.address import row_key
from streams.cli.receipts import Pointer, pointers
from streams.public.sheet import RunSheet

PLAY = {
    "name": "play",
    "key": ["id"],
    "columns": [{"name": "check", "tool": "a.b", "input": {"x": "{{ row.id }}"}}],
}


def message(**fields: Any) -> bytes:
    return json.dumps({"run": "run-1", "contract": 1, **fields}).encode()


def requested(rows: list[dict[str, Any]] | None, play: dict[str, Any] = PLAY) -> bytes:
    return message(type="run_requested", play=play, rows=rows)


def state_of(identity: str, position: int, value: Any, dataset: str = "play") -> tuple[bytes, bytes]:
    key = row_key(dataset, ("id",), {"id": identity})
    cell = {"status": "completed", "value": value, "run": "run-1"}
    row = {"dataset": dataset, "key": key, "status": "completed", "run": "run-1", "position": position}
    state = {**row, "fields": {"id": identity}, "cells": {"check": cell}, "updated_ms": 1}
    return f"default/{dataset}/{key}".encode(), json.dumps(state).encode()


def lines_of(sheet: RunSheet) -> list[tuple[int, Any, Any]]:
    return [(line.position, line.fields["id"], None if line.row is None else line.row.cells["check"].value) for line in sheet]


def test_each_input_line_has_its_line_duplicates_too() -> None:
    """M5: a later line with the same key shows its row's result; a row that is not settled shows none."""
    with RunSheet("run-1") as sheet:
        sheet.take_request(requested([{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "c"}]))
        sheet.take_state(*state_of("b", 1, "old"))
        sheet.take_state(*state_of("a", 0, 2**64))
        sheet.take_state(*state_of("b", 1, "new"))
        assert lines_of(sheet) == [(0, "a", 2**64), (1, "b", "new"), (2, "a", 2**64), (3, "c", None)]
        assert sheet.computed == ["check"]
        assert list(sheet.fields) == ["id"]


def test_chunks_that_come_twice_change_nothing() -> None:
    chunks = [message(type="rows_appended", first=first, rows=[{"id": str(first)}, {"id": str(first + 1)}]) for first in (0, 2)]
    with RunSheet("run-1") as sheet:
        sheet.take_request(requested(None))
        for chunk in (chunks[0], chunks[0], chunks[1], chunks[0], chunks[1]):
            sheet.take_request(chunk)
        sheet.take_request(message(type="rows_sealed", total=4))
        assert [identity for _, identity, _ in lines_of(sheet)] == ["0", "1", "2", "3"]


def test_Y3_each_cell_points_from_its_call_to_its_receipt() -> None:
    """A reused cell names the run whose call made it; a duplicate has its row's receipt; what asked for nothing has no line."""
    key, raw = state_of("a", 0, 1)
    state = json.loads(raw)
    state["cells"]["check"] |= {"receipt": "9f", "run": "earlier", "status": "cached"}
    state["cells"]["skipped"] = {"status": "skipped", "run": "run-1"}
    with RunSheet("run-1") as sheet:
        sheet.take_request(requested([{"id": "a"}, {"id": "b"}, {"id": "a"}]))
        sheet.take_state(key, json.dumps(state).encode())
        row = key.decode().rpartition("/")[2]
        call = f"earlier:{row}:check"
        assert list(pointers(sheet)) == [Pointer(0, "check", call, "9f", "cached"), Pointer(2, "check", call, "9f", "cached")]


def test_rows_of_other_datasets_and_runs_change_nothing() -> None:
    with RunSheet("run-1") as sheet:
        sheet.take_request(requested([{"id": "a"}]))
        sheet.take_state(*state_of("a", 0, "other", dataset="play2"))
        sheet.take_state(*state_of("z", 0, "other"))
        sheet.take_state(b"default/play/not-hex", b"{}")
        assert lines_of(sheet) == [(0, "a", None)]


def test_a_row_that_was_forgotten_has_no_result() -> None:
    key, value = state_of("a", 0, 1)
    with RunSheet("run-1") as sheet:
        sheet.take_request(requested([{"id": "a"}]))
        sheet.take_state(key, value)
        sheet.take_state(key, None)
        assert lines_of(sheet) == [(0, "a", None)]


def test_another_request_under_an_id_in_use_was_rejected() -> None:
    """case_I4."""
    with RunSheet("run-1") as sheet:
        sheet.take_request(requested([{"id": "a"}]))
        sheet.take_request(requested([{"id": "b"}, {"id": "c"}]))
        assert lines_of(sheet) == [(0, "a", None)]


def test_a_refused_request_made_way_for_the_next() -> None:
    with RunSheet("run-1", refused=1) as sheet:
        sheet.take_request(requested(None))
        sheet.take_request(message(type="rows_appended", first=0, rows=[{"id": "old"}]))
        sheet.take_request(requested([{"id": "new"}]))
        assert lines_of(sheet) == [(0, "new", None)]


@pytest.mark.parametrize(
    ("value", "refused"),
    [(b"", 1), (b"no json", 1), (b'{"type":"run_requested","play":{}}', 1), (b"[]", 0), (b'{"run":"x"}', 0)],
)
def test_what_is_no_request_changes_nothing(value: bytes, refused: int) -> None:
    """The worker refuses what names no play or is no JSON, and parks the rest."""
    with RunSheet("run-1", refused=refused) as sheet:
        sheet.take_request(value)
        sheet.take_request(requested([{"id": "a"}]))
        sheet.take_request(value)
        assert [identity for _, identity, _ in lines_of(sheet)] == ["a"]
