"""A run request as messages: what is sent is what was given, cut within the limits, the same every time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas.canonical import parse_json
from schemas.plays import Play
from schemas.requests import PublicRequest, RowsAppended, RowsSealed, RunRequested
from streams.errors import InputError, UsageError
from streams.public.submission import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, ROWS_INLINE_MAX, Request, Submission

COLUMN = {"name": "check", "tool": "acme.check", "input": {"x": "{{ row.x }}"}}
PLAY = Play.model_validate({"name": "play", "columns": [COLUMN]})
_read: TypeAdapter[PublicRequest] = TypeAdapter(PublicRequest)


def requests_of(rows: list[dict[str, Any]], play: Play = PLAY) -> list[Request]:
    with Submission(play, "run-1") as submission:
        for row in rows:
            submission.add(row)
        return list(submission.requests())


def rows_in(requests: list[Request]) -> list[dict[str, Any]]:
    """What a worker takes out of the messages, with its own checks of their order."""
    head, *chunks = [_read.validate_python(parse_json(request.value)) for request in requests]
    assert isinstance(head, RunRequested)
    if head.rows is not None:
        assert not chunks
        assert head.expected_rows == len(head.rows)
        return head.rows
    rows: list[dict[str, Any]] = []
    for chunk in chunks[:-1]:
        assert isinstance(chunk, RowsAppended)
        assert chunk.first == len(rows)
        rows += chunk.rows
    assert isinstance(chunks[-1], RowsSealed)
    assert chunks[-1].total == head.expected_rows == len(rows)
    return rows


@settings(max_examples=30)
@given(
    count=st.sampled_from([0, 1, ROWS_INLINE_MAX, ROWS_INLINE_MAX + 1, CHUNK_ROWS_MAX, CHUNK_ROWS_MAX + 1, 1_700]),
    width=st.sampled_from([0, 10, 3_000]),
)
def test_the_rows_arrive_as_they_were_given_within_the_limits(count: int, width: int) -> None:
    rows = [{"x": str(number), "pad": "é" * width} for number in range(count)]
    requests = requests_of(rows)
    assert rows_in(requests) == rows
    assert len(requests) == 1 or count > ROWS_INLINE_MAX or width
    assert all(request.rows <= CHUNK_ROWS_MAX for request in requests)
    assert all(len(request.value) <= CHUNK_BYTES_MAX + 1_000 for request in requests)
    assert sum(request.rows for request in requests) == count
    assert len({request.id for request in requests}) == len(requests)


def test_the_same_request_has_the_same_bytes() -> None:
    """case_I4: a request that is sent again under its run id must be the same request."""
    rows = [{"x": number, "y": [None, 0.1, {"z": "é"}]} for number in range(700)]
    assert requests_of(rows) == requests_of(rows)


def test_numbers_travel_digit_for_digit() -> None:
    """case_D3."""
    numbers = [2**53 + 1, 2**64, 19933688932870350000, -(2**63) - 1, 0.1 + 0.2]
    assert rows_in(requests_of([{"x": number} for number in numbers])) == [{"x": number} for number in numbers]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "the rows: row 1 (the first is 0), x.deep[0]: nan is no JSON number"),
        ({1, 2}, "the rows: row 1 (the first is 0), x.deep[0]: a set has no order"),
    ],
)
def test_what_json_cannot_carry_is_named_by_row_and_column(value: object, expected: str) -> None:
    with pytest.raises(InputError) as refused:
        requests_of([{"x": "fine"}, {"x": {"deep": [value]}}])
    assert str(refused.value).startswith(expected)


def test_one_row_larger_than_a_message_is_named() -> None:
    with pytest.raises(InputError, match=r"the rows: row 0 \(the first is 0\): 9,000,008 bytes as JSON, at most"):
        requests_of([{"x": "a" * 9_000_000}])


def test_a_field_that_some_rows_have_is_enough_for_a_template_and_not_for_a_key() -> None:
    rows = [{"x": "1"}, {"y": "2"}]
    assert rows_in(requests_of(rows)) == rows
    with pytest.raises(InputError, match=r"row 1 .*: no field 'x', which the play: key uses"):
        requests_of(rows, PLAY.model_copy(update={"key": ("x",)}))


def test_a_run_id_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="run id '-x': expected"):
        Submission(PLAY, "-x")
