"""The judgement of what users publish: whatever comes, it is an event, a refusal with every fault, or parked; never a crash."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import address
from schemas.commands import CancelRequested, Command, Misrouted, RowsAppended, RowsSealed, RunRequested
from schemas.envelope import EnvelopeError
from schemas.events import Event
from schemas.providers import Providers
from streams.agents.runs import judged, runs_agent
from streams.kafka.inbox import Delivery

PARTITIONS = 8
PROVIDERS = Providers.model_validate({"providers": {"p": {"base_url": "https://p.example", "tools": {"t": {"path": "/t"}}}}})
PLAY = {"name": "play", "columns": [{"name": "c", "tool": "p.t", "input": {"x": "{{ row.x }}"}}]}
HOME = address.partition_of("run", PARTITIONS)


def delivery(value: Any, *, topic: str = "run-requests", key: bytes | None = b"run") -> Delivery:
    return Delivery(topic, 0, key, value if isinstance(value, bytes | None) else json.dumps(value).encode())


def judge(value: Any, *, topic: str = "run-requests", key: bytes | None = b"run", partition: int | None = HOME) -> Event:
    (event,) = judged(delivery(value, topic=topic, key=key), partition, PARTITIONS, PROVIDERS)
    # It goes into a turn record: what cannot be written there would stop the worker for ever.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Command) == event
    return event


def requested(**fields: Any) -> dict[str, Any]:
    return {"type": "run_requested", "run": "run", "play": PLAY, "rows": [{"x": 1}]} | fields


def appended(**fields: Any) -> dict[str, Any]:
    return {"type": "rows_appended", "run": "run", "first": 0, "rows": [{"x": 1}]} | fields


def accepted(value: Any) -> RunRequested:
    event = judge(value)
    assert isinstance(event, RunRequested)
    assert event.faults == ()
    assert event.play is not None
    return event


def faults(value: Any) -> tuple[str, ...]:
    event = judge(value)
    assert isinstance(event, RunRequested)
    assert event.play is None
    assert event.faults
    return event.faults


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


# --- what is accepted ---------------------------------------------------------------------------------------


def test_a_run_request_is_compiled_and_carries_its_rows_exactly() -> None:
    event = accepted(requested(org="acme", rows=[{"x": 2**70, "y": 0.5}, {}], expected_rows=2, force=True))
    assert (event.run, event.org, event.sealed, event.expected) == ("run", "acme", True, 2)
    assert (event.force, event.force_tool_refresh) == (True, False)
    assert event.rows == (f'{{"x":{2**70},"y":0.5}}'.encode(), b"{}")
    assert event.play is not None
    assert event.play.columns[0].lane == "acme/p"


def test_a_request_whose_rows_follow_is_not_sealed() -> None:
    assert not accepted(requested(rows=None)).sealed
    assert judge(appended(first=7)) == RowsAppended("run", 7, (b'{"x":1}',), judge(appended()).digest)  # type: ignore[attr-defined]
    assert judge({"type": "rows_sealed", "run": "run", "total": 7}) == RowsSealed("run", 7)


def test_a_cancel_says_who_wants_it() -> None:
    assert judge({"type": "run_cancelled", "run": "run", "who": "me"}, topic="operations") == CancelRequested("run", "me")


def test_V5_the_contract_version_may_be_left_out() -> None:
    assert accepted(requested(contract=1)).digest == accepted(requested()).digest


# --- I4: the same or another --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        json.dumps(requested(), indent=3).encode(),
        json.dumps(dict(reversed(requested().items()))).encode(),
        json.dumps(requested()).replace('"x": 1', '"x": 1.0').encode(),
        json.dumps(requested()).replace('"run_requested"', '"run\\u005frequested"').encode(),
        json.dumps(requested(org="default", force=False, expected_rows=None)).encode(),
    ],
)
def test_case_I4_the_same_meaning_in_another_spelling_has_the_same_digest(spelling: bytes) -> None:
    assert accepted(spelling).digest == accepted(requested()).digest


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [{"x": 2}]},
        {"rows": [{"x": "1"}]},
        {"rows": None},
        {"rows": None, "rows_digest": "other"},
        {"force": True},
        {"org": "other"},
        {"play": PLAY | {"version": "2"}},
    ],
)
def test_case_I4_another_meaning_has_another_digest(change: dict[str, Any]) -> None:
    assert accepted(requested(**change)).digest != accepted(requested()).digest


def test_a_chunk_written_otherwise_is_the_same_chunk() -> None:
    def digest(value: Any) -> str:
        event = judge(value)
        assert isinstance(event, RowsAppended)
        return event.digest

    one = digest(appended(rows=[{"a": 1, "b": "é"}]))
    assert digest(b'{"rows": [{"b":"\\u00e9", "a":1.0}], "first":0,"run":"run","type":"rows_appended"}') == one
    assert digest(appended(rows=[{"a": 1, "b": "e"}])) != one


def test_rows_that_have_no_canonical_form_are_told_apart_by_their_bytes() -> None:
    events = [judge(appended(rows=[{"$bytes": text}])) for text in ("!", "?", "!")]
    digests = [event.digest for event in events if isinstance(event, RowsAppended)]
    assert digests[0] == digests[2] != digests[1]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (requested(colour="red"), ["colour: Extra inputs are not permitted"]),
        (requested(play=PLAY | {"colour": "red"}), ["play.colour: Extra"]),
        (requested(play={"name": "play", "columns": []}), ["play.columns: "]),
        (requested(rows=[1, {}]), ["rows.0: "]),
        (requested(expected_rows=-1), ["expected_rows: "]),
        (requested(expected_rows=2**63), ["expected_rows: "]),
        (appended(first=2**64), ["first: "]),
        (appended(first=-1), ["first: "]),
        (appended(rows=[]), ["rows: "]),
        (appended(rows=[{"x": nested(250)}]), ["row 0: $.x"]),
        (appended(colour="red"), ["colour: "]),
        ({"type": "rows_sealed", "run": "run"}, ["total: Field required"]),
        ({"type": "rows_sealed", "run": "run", "total": 2**64}, ["total: "]),
        (requested(rows=[{"x": 1}, {"x": nested(250)}]), ["row 1: $.x"]),
        (requested(run="run", org="Not An Org", force="maybe"), ["org: ", "force: "]),
    ],
)
def test_M1_every_fault_is_named_with_the_place_of_its_field(value: dict[str, Any], words: list[str]) -> None:
    found = faults(value)
    assert len(found) == len(words)
    for word in words:
        assert any(fault.startswith(word) for fault in found), found


def test_M1_faults_of_the_play_and_of_the_rows_are_named_together() -> None:
    columns = [{"name": "c", "tool": "p.none", "input": {}}, {"name": "d", "tool": "p.t", "input": {"x": "{{ oops }}"}}]
    found = faults(requested(play=PLAY | {"columns": columns}, rows=[{"x": nested(250)}]))
    assert [fault.split(":")[0] for fault in found] == ["play.columns.0.tool", "play.columns.1.input.x", "row 0"]


@pytest.mark.parametrize("contract", [2, 0, "1", None, [1], 10**300])
def test_V5_another_contract_version_is_refused_with_both_versions_named(contract: Any) -> None:
    (fault,) = faults(requested(contract=contract, field_of_the_future=1))
    assert "version 1" in fault
    assert repr(contract) in fault


@pytest.mark.parametrize(
    "value", [b"{", b"", b'{"run":"run","x":NaN}', b'{"run":"run","x":1e999}', b"\xff\xfe", b'{"run":"\\ud800"}']
)
def test_case_D3_what_is_no_json_is_refused_under_the_messages_key(value: bytes) -> None:
    event = judge(value)
    assert isinstance(event, RunRequested)
    assert (event.run, event.play) == ("run", None)
    assert event.faults


@pytest.mark.parametrize(
    ("topic", "key"), [("operations", b"run"), ("run-requests", None), ("run-requests", b""), ("run-requests", b"a\x00b")]
)
def test_what_is_no_json_and_names_no_run_is_parked(topic: str, key: bytes | None) -> None:
    with pytest.raises(EnvelopeError, match=topic):
        judge(b"{", topic=topic, key=key)


# --- what is parked or forwarded ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["run_paused", "", None, 1, ["run_requested"], {"a": 1}, True])
def test_case_H3_an_unknown_type_is_parked_and_the_known_ones_are_named(kind: Any) -> None:
    with pytest.raises(
        EnvelopeError, match="known are cell_resolved, receipt_forgotten, rows_appended, rows_sealed, run_cancelled, run_requested"
    ):
        judge({"type": kind, "run": "run"})


@pytest.mark.parametrize("value", [None, b"null", b"[]", b'"run"', b"{}", b'{"run":1}', b'{"run":""}', b'{"run":"a\\u0000b"}'])
def test_what_names_no_run_is_parked(value: bytes | None) -> None:
    with pytest.raises(EnvelopeError, match="run-requests: "):
        judge(value)


def test_a_request_on_another_partition_than_its_runs_home_is_forwarded_as_it_came() -> None:
    value = json.dumps(requested(colour="red")).encode()
    event = judge(value, partition=(HOME + 1) % PARTITIONS)
    assert event == Misrouted("run", "run-requests", value)
    assert isinstance(judge(requested(), partition=None), RunRequested)


def test_the_agent_judges_with_its_own_partition_unless_told_not_to() -> None:
    message = delivery(requested())
    elsewhere = (HOME + 1) % PARTITIONS
    for check, kind in ((True, Misrouted), (False, RunRequested)):
        agent = runs_agent(PROVIDERS, PARTITIONS, check)
        assert agent.judge is not None
        (event,) = agent.judge(message, elsewhere)
        assert type(event) is kind


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
fields_of_requests = st.sampled_from(
    ("type", "run", "contract", "org", "play", "rows", "first", "total", "expected_rows", "rows_digest", "force", "who", "other")
)


@given(st.sampled_from((requested(), appended(), {"type": "rows_sealed", "run": "run", "total": 1})), st.data())
def test_whatever_stands_in_a_field_the_worker_gets_an_event_or_parks_the_message(
    value: dict[str, Any], data: st.DataObject
) -> None:
    value = value | data.draw(st.dictionaries(fields_of_requests, anything, max_size=2))
    try:
        event = judge(json.dumps(value).encode(), partition=None)
    except EnvelopeError:
        return
    assert isinstance(event, RunRequested | RowsAppended | RowsSealed | CancelRequested)
