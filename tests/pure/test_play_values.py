"""Values in a play's own input: one key at the client, at the worker and after a replay, that of rows' values (case_D5)."""

from __future__ import annotations

import enum
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic_core import PydanticSerializationError

from schemas import address
from schemas.canonical import canonical, parse_json
from schemas.commands import RunRequested
from schemas.events import AddedRow, RowsAdded, RunOpened
from schemas.plays import Play
from schemas.providers import Providers
from streams.agents.runs import judged
from streams.engine.compile import compile_play
from streams.engine.rows import RowsEngine
from streams.errors import InputError
from streams.kafka.inbox import Delivery
from streams.public.submission import Submission
from tests.support.given_rows import ask
from tests.support.memory import Table

PROVIDERS = Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": {"path": "/t"}}}}})


class Kind(enum.Enum):
    WORK = "work"


VALUES: list[Any] = [
    Decimal("1.10"),
    Decimal("1E+3"),
    b"abc",
    b"\xff\xfe",
    "abc",
    datetime(2026, 1, 1, 12, tzinfo=UTC),
    datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
    date(2026, 1, 1),
    UUID(int=1),
    Kind.WORK,
    (1, (2, b"x")),
    {"deep": [b"x", Decimal("0.50")]},
    2**64,
    -0.0,
    1e22,
    1.0,
    None,
]


def tool_play(value: Any) -> Play:
    return Play.model_validate({"name": "play", "columns": [{"name": "c", "tool": "p.t", "input": {"k": value}}]})


def fetch_play(value: Any) -> Play:
    fetch = {"method": "POST", "url": "https://a.example", "body": {"k": value}}
    return Play.model_validate({"name": "play", "columns": [{"name": "c", "fetch": fetch}]})


def accepted(play: Play) -> RunRequested:
    """What the worker makes of the message that the client publishes, as a replay reads it again."""
    with Submission(play, "run") as submission:
        submission.add({"x": 1})
        (request,) = submission.requests()
    (event,) = judged(Delivery("run-requests", 0, b"run", request.value), None, 8, PROVIDERS, lambda: 0.0)
    assert isinstance(event, RunRequested)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=RunRequested)


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("make", [tool_play, fetch_play])
def test_case_D5_a_value_in_a_play_has_one_key_at_client_and_worker(make: Any, value: Any) -> None:
    """pydantic's JSON stood in the message: bytes were text, a Decimal was text, and one instant had two forms."""
    play = make(value)
    here, faults = compile_play(play, PROVIDERS, "default", 0)
    assert here is not None, faults
    there = accepted(play).play
    assert there == here
    column = there.columns[0]
    template: Any = parse_json(column.template)
    carried = template["k"] if make is tool_play else template["body"]["k"]
    assert canonical(carried) == canonical(value)
    request = ask(Table(RowsEngine()).given(RunOpened("run", "default", there), RowsAdded("run", (AddedRow(0, "k", b'{"x":1}'),))))
    assert request.receipt == address.receipt_key(
        org="default",
        scope=column.private_to,
        tool=column.tool,
        input=play.columns[0].tool_input,
        auth_scope=column.scope,
        action_version=column.version,
        window=None,
    )


def test_case_D5_what_is_the_same_value_is_the_same_play_and_bytes_are_no_text() -> None:
    def revision(value: Any) -> str:
        play = accepted(tool_play(value)).play
        assert play is not None
        return play.revision

    assert revision(Decimal("1.10")) == revision(Decimal("1.1")) == revision(1.1)
    assert revision(VALUES[5]) == revision(VALUES[6]) == revision("2026-01-01T12:00:00Z")
    assert revision((1, 2)) == revision([1, 2])
    assert revision(b"abc") != revision("abc")
    assert revision(b"abc") == revision({"$bytes": "YWJj"})


@pytest.mark.parametrize(
    "value", [datetime(2026, 1, 1), {1, 2}, float("nan"), float("inf"), object(), Decimal("0.10000000000000001")]
)
@pytest.mark.parametrize("make", [tool_play, fetch_play])
def test_case_D5_what_has_no_one_form_is_refused_by_its_place(make: Any, value: Any) -> None:
    place = "input.k" if make is tool_play else "fetch.body.k"
    with pytest.raises(InputError, match=f"the play: columns.0.{place}: "):
        accepted(make(value))
    with pytest.raises(PydanticSerializationError):
        make(value).model_dump(mode="json")


def test_case_D5_a_play_of_json_is_written_as_it_was() -> None:
    """Its revision, which rows of the sheet stand by, is the same as before."""
    value = {"a": [1, 1.5, "x", None, True, {"b": 2**70}], "{{": "{{ row.x }}"}
    assert json.dumps(tool_play(value).model_dump(mode="json")["columns"][0]["input"]) == json.dumps({"k": value})
    dumped = fetch_play(value).model_dump(mode="json")["columns"][0]["fetch"]
    assert dumped == {"method": "POST", "url": "https://a.example", "headers": {}, "body": {"k": value}}


@pytest.mark.parametrize("make", [tool_play, fetch_play])
def test_case_D5_a_request_whose_play_has_no_one_form_is_refused_and_the_worker_goes_on(make: Any) -> None:
    """Anyone may publish one: that it cannot be written again must end the request and not the worker."""
    play = make(1).model_dump(mode="json")
    place = play["columns"][0]["input"] if make is tool_play else play["columns"][0]["fetch"]["body"]
    place["k"] = {"$bytes": "not base64"}
    message = {"type": "run_requested", "run": "run", "play": play, "rows": [{"x": 1}]}
    (event,) = judged(Delivery("run-requests", 0, b"run", json.dumps(message).encode()), None, 8, PROVIDERS, lambda: 0.0)
    assert isinstance(event, RunRequested)
    assert event.play is None
    (fault,) = event.faults
    assert fault.startswith("play.columns.0." + ("input.k" if make is tool_play else "fetch.body.k"))
    assert "reserved for bytes" in fault
