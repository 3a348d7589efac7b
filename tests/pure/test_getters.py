"""From outputs to cells: named values and typed getters (`streams.engine.getters`), and how a play asks for them."""

from __future__ import annotations

import hashlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import address
from schemas.plays import Column, GetterName, Play
from streams.engine.getters import GETTERS, SPELLINGS, VERDICTS, extracted, extraction_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["status", "catch_all", "valid", "result", "0", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def column(**fields: Any) -> Column:
    return Column.model_validate({"name": "c", "tool": "p.t", "input": {}} | fields)


def cell(output: object, **fields: Any) -> Any:
    extraction = extraction_of(column(**fields))
    assert extraction is not None
    return json.loads(extracted(json.dumps(output).encode(), extraction))


def status(output: object, **fields: Any) -> tuple[str, str, bool]:
    found = cell(output, **({"getter": "email_status"} | fields))
    assert set(found) == {"status", "verdict", "verified"}
    return found["status"], found["verdict"], found["verified"]


VALID, INVALID = ("valid", "send", True), ("invalid", "drop", False)
CATCH_ALL, UNKNOWN = ("catch_all", "verify_next", False), ("unknown", "hold", False)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("valid", VALID),
        ("Deliverable", VALID),
        ("Safe to Send", VALID),
        (" OK ", VALID),
        (True, VALID),
        ("undeliverable", INVALID),
        ("do_not_mail", INVALID),
        ("Spam-Trap", INVALID),
        (False, INVALID),
        ("catch-all", CATCH_ALL),
        ("accept_all", CATCH_ALL),
        ("valid_catch_all", CATCH_ALL),
        ("risky", UNKNOWN),
        ("unverified", UNKNOWN),
        ("", UNKNOWN),
        ("a status of tomorrow", UNKNOWN),
        (7, UNKNOWN),
        (["valid"], UNKNOWN),
    ],
)
def test_P9_a_raw_status_becomes_what_to_do_with_the_address(raw: object, expected: tuple[str, str, bool]) -> None:
    assert status({"status": raw}) == expected
    assert status(raw) == expected  # a path of the column's may have led to the status itself


@pytest.mark.parametrize("flag", [True, 1, "true", "Yes"])
def test_P9_the_gateways_own_catch_all_flag_outweighs_a_good_status(flag: object) -> None:
    assert status({"status": "valid", "is_catch_all": flag}) == CATCH_ALL
    assert status({"status": "unknown", "catch_all": flag}) == CATCH_ALL
    assert status({"status": "invalid", "catch_all": flag}) == INVALID


@pytest.mark.parametrize(
    "flags", [{"catch_all": False, "gateway_catch_all": True}, {"is_catch_all": "no", "accept_all": "yes"}, {"domain_catch_all": 1}]
)
def test_P9_any_flag_counts_and_not_only_the_first(flags: dict[str, object]) -> None:
    """A gateway's *yes* was overlooked behind the domain's *no*: such an address was *verified*, and mail went to it."""
    assert status({"status": "valid"} | flags) == CATCH_ALL
    paths = {"name": "email_status", "paths": {"catch_all": "catch_all"}}
    assert status({"status": "valid", "catch_all": False} | flags, getter=paths) == (CATCH_ALL if flags.get("catch_all") else VALID)


def test_C6_runs_that_were_accepted_with_the_first_version_keep_its_cells() -> None:
    output = json.dumps({"status": "valid", "catch_all": False, "gateway_catch_all": True}).encode()
    old, new = ({"extract": None, "getter": f"email_status/{version}", "paths": {}} for version in (1, 2))
    assert json.loads(extracted(output, json.dumps(old)))["status"] == "valid"
    assert json.loads(extracted(output, json.dumps(new)))["status"] == "catch_all"
    assert json.loads(str(extraction_of(column(getter="email_status"))))["getter"] == "email_status/2"


@pytest.mark.parametrize("flag", [False, 0, "no", None, "perhaps", {}])
def test_P9_a_flag_that_is_not_set_changes_nothing(flag: object) -> None:
    assert status({"status": "valid", "catch_all": flag}) == VALID


def test_P9_the_first_status_that_is_there_counts() -> None:
    assert status({"email_status": None, "status": "invalid", "result": "valid"}) == INVALID
    assert status({"is_valid": True}) == VALID
    assert status({"email": "a@b.c"}) == UNKNOWN


def test_P9_a_play_says_where_the_status_stands() -> None:
    output = {"data": {"mail": {"state": "deliverable"}, "mx": {"open": True}}, "status": "invalid"}
    getter = {"name": "email_status", "paths": {"status": "data.mail.state"}}
    assert status(output, getter=getter) == VALID
    getter["paths"] = {"status": "data.mail.state", "catch_all": "data.mx.open"}
    assert status(output, getter=getter) == CATCH_ALL
    assert status(output, extract="data.mail") == VALID
    assert status(output, extract={"status": "data.mail.state", "catch_all": "data.mx.open"}) == CATCH_ALL


def test_P9_several_values_are_extracted_by_name() -> None:
    output = {"person": {"names": ["Ada", "Augusta"]}, "score": 12345678901234567890}
    assert cell(output, extract={"second": "person.names.1", "score": "score", "none": "person.age"}) == {
        "second": "Augusta",
        "score": 12345678901234567890,
        "none": None,
    }


def test_P9_no_result_stays_no_result() -> None:
    assert cell(None, getter="email_status") is None
    assert cell(None, extract={"a": "b"}) is None
    assert cell(None, extract={"a": "b"}, getter="email_status") is None


@pytest.mark.parametrize(
    ("getter", "value", "expected"),
    [
        ("number", "12", 12),
        ("number", " -1.5e3 ", -1500.0),
        ("number", 98765432109876543210, 98765432109876543210),
        ("number", "98765432109876543210", 98765432109876543210),
        ("number", "1,000", None),
        ("number", "1e999", None),
        ("number", "٣", None),
        ("number", True, None),
        ("number", [1], None),
        ("boolean", "YES", True),
        ("boolean", 0, False),
        ("boolean", 1.0, True),
        ("boolean", "no", False),
        ("boolean", 2, None),
        ("boolean", [], None),
        ("text", "a", "a"),
        ("text", 1.5, "1.5"),
        ("text", False, "false"),
        ("text", {"a": 1}, None),
        ("text", None, None),
    ],
)
def test_P9_getters_read_a_type_or_nothing(getter: str, value: object, expected: object) -> None:
    found = cell({"v": value}, extract="v", getter=getter)
    assert found == expected
    assert type(found) is type(expected)


def test_C6_a_column_without_a_getter_is_carried_as_it_always_was() -> None:
    assert extraction_of(column()) is None
    assert extraction_of(column(extract="a.0")) == "a.0"
    assert extracted(b'{"a":[1.50]}', "a.0") == b"1.5"


def test_P9_a_play_without_getters_keeps_its_revision() -> None:
    """Else an upgrade would compute all rows of all plays anew."""
    of = Play.model_validate({"name": "p", "columns": [column(extract="a").model_dump()]})
    assert "getter" not in of.model_dump(mode="json")["columns"][0]
    with_getter = Play.model_validate({"name": "p", "columns": [column(extract="a", getter="number").model_dump()]})
    assert Play.model_validate(with_getter.model_dump(mode="json")) == with_getter
    assert address.revision(of.model_dump(mode="json")) != address.revision(with_getter.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"getter": "mail_status"}, "email_status"),
        ({"getter": {"name": "email_status", "paths": {"state": "a"}}}, "no path state; known are: catch_all, status"),
        ({"getter": {"name": "number", "paths": {"value": "a"}}}, "known are: none"),
        ({"getter": {"name": "email_status", "paths": {"status": ""}}}, "paths"),
        ({"extract": "{a"}, "extract"),
        ({"extract": {"a": ""}}, "extract"),
    ],
)
def test_P9_a_getter_that_cannot_be_is_refused_with_the_play(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        column(**fields)
    assert words in str(caught.value)


def test_C6_a_getter_that_runs_were_accepted_with_is_never_edited() -> None:
    """Another spelling is another version: else a replay would not give the cells that are in the sheet."""
    spellings = " ".join(f"{spelling}={status}" for spelling, status in sorted(SPELLINGS.items()))
    assert hashlib.sha256(spellings.encode()).hexdigest()[:16] == "923cfdd4c78c7574"
    assert set(GETTERS) >= {"email_status/1", "email_status/2", "boolean/1", "number/1", "text/1"}


@given(
    value=JSON, getter=st.sampled_from(get_args(GetterName)), extract=st.sampled_from([None, "status", "x.0", {"status": "result"}])
)
def test_P9_any_output_has_a_cell(value: Any, getter: str, extract: Any) -> None:
    """A fold must not fail over what a provider answers."""
    found = cell(value, extract=extract, getter=getter)
    if getter == "email_status" and found is not None:
        assert VERDICTS[found["status"]] == found["verdict"]
        assert found["verified"] is (found["status"] == "valid")
