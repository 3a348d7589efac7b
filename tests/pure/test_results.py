"""Payloads for one and for many, and how an answer becomes outcomes: `streams.tools.results`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import JsonValue, parse_json
from schemas.events import Ambiguous, Repeat
from schemas.providers import BatchForm
from streams.calling.calls import outcome_of
from streams.tools.port import Answered, CallMember, Doubtful, MemberOutcome, NotDone, Refused
from streams.tools.results import (
    OUTPUT_BYTES_MAX,
    QUERY_BYTES_MAX,
    batch_body,
    query_of,
    single_outcome,
    split,
    steps_of,
    value_at,
    withheld,
)

NO_RESULT = Answered(b"null")


def form(**fields: Any) -> BatchForm:
    return BatchForm(size_max=100, **fields)


def members(*receipts: str, inputs: bytes = b"{}") -> tuple[CallMember, ...]:
    return tuple(CallMember(receipt, inputs) for receipt in receipts)


def answer(*results: object) -> bytes:
    return json.dumps({"results": results}).encode()


def code(outcome: MemberOutcome) -> str:
    return "" if isinstance(outcome, Answered) else outcome.fault.code


# --- paths ---


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("", {"a": [{"b": 1}, 2], "0": "zero"}),
        ("a.0.b", 1),
        ("a.1", 2),
        ("0", "zero"),
        ("a.2", None),
        ("a.-1", None),
        ("a.first", None),
        ("a.²", None),
        ("a." + "9" * 5000, None),
        ("a.1.b", None),
        ("b.c", None),
    ],
)
def test_a_path_leads_to_a_value_or_nowhere(path: str, found: JsonValue) -> None:
    assert value_at({"a": [{"b": 1}, 2], "0": "zero"}, steps_of(path)) == found


# --- into the call ---


def test_a_get_has_its_fields_as_a_query_and_no_null() -> None:
    fields = b'{"q":"a b&c=d+\xc3\xa4/%","n":18446744073709551617,"f":0.5,"yes":true,"no":false,"none":null,"empty":""}'
    query = query_of(CallMember("r", fields))
    assert query == "q=a%20b%26c%3Dd%2B%C3%A4%2F%25&n=18446744073709551617&f=0.5&yes=true&no=false&empty="


@pytest.mark.parametrize("fields", [b'{"a":[1]}', b'{"a":{}}', b"[1]", b'"text"', b"null", b"{"])
def test_a_get_refuses_what_is_not_flat(fields: bytes) -> None:
    refused = query_of(CallMember("r", fields))
    assert isinstance(refused, Refused)
    assert (refused.fault.code, refused.fault.repairable) == ("bad_input", False)


def test_B4_a_batch_carries_its_inputs_byte_for_byte() -> None:
    ones = (CallMember("r1", b'{"n":1e21,"big":18446744073709551617}'), CallMember("r2", b'"text"'))
    assert batch_body(form(), ones) == (b'{"items":[{"n":1e21,"big":18446744073709551617},"text"]}', {})
    assert batch_body(form(list_field="data.list"), ones[1:]) == (b'{"data":{"list":["text"]}}', {})
    assert batch_body(form(list_field=""), ones[1:]) == (b'["text"]', {})


def test_B4_a_correlated_batch_sets_each_receipt_and_changes_nothing_else() -> None:
    ones = (CallMember("r1", b'{"n":1e21,"id":7}'), CallMember("r2", b'{"big":18446744073709551617}'))
    body = batch_body(form(match_key="id"), ones)
    assert body == (b'{"items":[{"n":1e21,"id":"r1"},{"big":18446744073709551617,"id":"r2"}]}', {})


@pytest.mark.parametrize("unusable", [b'"text"', b"[]", b"{", b'"\xff"', b'{"\xff":1}'])
def test_B7_an_input_that_cannot_be_correlated_is_refused_alone_and_its_companions_are_sent(unusable: bytes) -> None:
    """The whole batch was withheld, and each time that used up a try of the others: good rows failed after five bad companions."""
    ones = (CallMember("r1", b"{}"), CallMember("r2", unusable), CallMember("r3", b"{}"))
    body, refused = batch_body(form(match_key="id"), ones)
    assert body == b'{"items":[{"id":"r1"},{"id":"r3"}]}'
    assert {place: (type(outcome), code(outcome)) for place, outcome in refused.items()} == {1: (Refused, "bad_input")}


def test_B7_a_batch_of_nothing_but_unusable_inputs_has_no_body() -> None:
    body, refused = batch_body(form(match_key="id"), members("r1", "r2", inputs=b"[]"))
    assert (body, list(refused)) == (None, [0, 1])


def test_a_get_refuses_an_input_that_is_too_large_for_a_url_and_names_both_sizes() -> None:
    """httpx raised its own error for such a URL, though nothing had been sent (U4)."""
    largest = query_of(CallMember("r", b'{"q":"%s"}' % (b"a" * (QUERY_BYTES_MAX - 2))))
    assert isinstance(largest, str)
    assert len(largest) == QUERY_BYTES_MAX
    assert httpx.URL("http://a.example/").copy_with(query=largest.encode()).query == largest.encode()
    for own, text in (("", b"a" * (QUERY_BYTES_MAX - 1)), ("key=1", b"a" * (QUERY_BYTES_MAX - 7)), ("", b"/" * 30_000)):
        refused = query_of(CallMember("r", b'{"q":"%s"}' % text), own)
        assert isinstance(refused, Refused)
        assert (refused.fault.code, refused.fault.repairable) == ("bad_input", False)
    assert refused.fault.message.endswith("this one has 90,002 bytes, at most 65,536")


# --- one answer for one ---


@pytest.mark.parametrize(
    ("body", "path", "output"),
    [
        (b'{"n": 18446744073709551617}', "", b'{"n":18446744073709551617}'),
        (b'{"n": 19933688932870350000}', "n", b"19933688932870350000"),
        (b'{"a": {"b": [1, {"c": "x"}]}}', "a.b.1.c", b'"x"'),
        (b'{"a": 1}', "b", b"null"),
        (b"{}", "", b"{}"),
        (b"[]", "", b"[]"),
        (b'""', "", b'""'),
        (b"0", "", b"0"),
        (b"false", "", b"false"),
        (b"null", "", b"null"),
        (b"", "", b"null"),
        (b" \r\n", "", b"null"),
        (b'\xef\xbb\xbf{"a":1}', "", b'{"a":1}'),
    ],
)
def test_case_E3_an_answer_is_its_value_also_an_empty_one(body: bytes, path: str, output: bytes) -> None:
    assert single_outcome(body, steps_of(path)) == Answered(output)


@pytest.mark.parametrize(
    "body", [b"<!doctype html>", b'{"a":', b'{"a":1}}', b"NaN", b'{"a":1e400}', b'"\xff"', b'"\\ud800"', b"[" * 100_000]
)
def test_case_E3_junk_is_doubtful_and_never_completed(body: bytes) -> None:
    outcome = single_outcome(body, ())
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.code == "bad_response"
    assert len(outcome.fault.message) < 5000
    assert split(form(), members("a", "b"), body) == (outcome, outcome)


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"[" * n + b"]" * n, "bad_response") for n in (250, 2_000)] + [(b'"' + b"x" * OUTPUT_BYTES_MAX + b'"', "too_large")],
)
def test_R10_what_no_receipt_could_hold_is_doubtful_and_not_paid_for_again(body: bytes, expected: str) -> None:
    """A tool that may be repeated *freely* paid ``attempts_max`` times for an answer that can never be kept.

    So it did for one that is nested deeper than can be read at all.
    """
    outcome = single_outcome(body, ())
    assert code(outcome) == expected
    assert isinstance(outcome, Doubtful)
    assert outcome.used_up
    assert outcome_of(outcome, Repeat.FREELY, 1, 5, 0.0, 0.5) == Ambiguous(outcome.fault, used_up=True)


def test_R10_a_result_with_a_secret_in_it_is_not_paid_for_again() -> None:
    outcome = withheld(b'"sk-very-secret"', ["sk-very-secret"])
    assert outcome is not None
    assert outcome.used_up
    assert outcome_of(outcome, Repeat.FREELY, 1, 5, 0.0, 0.5) == Ambiguous(outcome.fault, used_up=True)


# --- one answer for many ---


def test_B4_results_belong_to_inputs_by_position() -> None:
    outcomes = split(form(result="value"), members("a", "b", "c"), answer({"value": 1}, {"value": None}, {}))
    assert outcomes == (Answered(b"1"), NO_RESULT, NO_RESULT)
    assert split(form(result_list=""), members("a"), b'[{"x":1}]') == (Answered(b'{"x":1}'),)
    assert split(form(result_list="data.0"), members("a"), b'{"data":[["x"]]}') == (Answered(b'"x"'),)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_B6_by_position_a_wrong_count_makes_all_doubtful(count: int) -> None:
    outcomes = split(form(), members("a", "b"), answer(*range(count)))
    assert [type(outcome) for outcome in outcomes] == [Doubtful, Doubtful]
    assert {code(outcome) for outcome in outcomes} == {"results_mismatch"}


@pytest.mark.parametrize("body", [b"{}", b'{"results":null}', b'{"results":{"a":1}}', b"[]", b"0"])
def test_an_answer_without_the_list_is_doubtful(body: bytes) -> None:
    assert [code(outcome) for outcome in split(form(), members("a", "b"), body)] == ["bad_response"] * 2


@pytest.mark.parametrize("body", [b"", b"null"])
def test_B10_no_content_is_no_result_for_all(body: bytes) -> None:
    assert split(form(), members("a", "b"), body) == (NO_RESULT, NO_RESULT)


def test_a_correlated_output_is_without_the_key_that_was_added() -> None:
    outcomes = split(form(match_key="id"), members("a", "b"), answer({"id": "b", "x": 2}, {"x": 1, "id": "a"}))
    assert outcomes == (Answered(b'{"x":1}'), Answered(b'{"x":2}'))


def test_B6_strangers_and_things_without_a_key_belong_to_nobody() -> None:
    body = answer({"id": "z", "x": 9}, {"id": 1, "x": 9}, {"x": 9}, "a", None, {"id": "a", "x": 1})
    assert split(form(match_key="id"), members("a", "1"), body) == (Answered(b'{"x":1}'), NO_RESULT)


def test_B6_a_key_that_comes_twice_makes_only_its_member_doubtful() -> None:
    body = answer({"id": "a", "x": 1}, {"id": "b", "x": 2}, {"id": "a", "x": 3})
    first, second = split(form(match_key="id"), members("a", "b"), body)
    assert isinstance(first, Doubtful)
    assert code(first) == "duplicate_results"
    assert second == Answered(b'{"x":2}')


@given(data=st.data())
def test_B6_no_answer_gives_a_member_its_neighbours_result(data: st.DataObject) -> None:
    receipts = data.draw(st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
    # Any choice, in any order, with repetitions, from what was asked for and from strangers.
    keys = data.draw(st.lists(st.sampled_from([*receipts, "stranger", "other"]), max_size=12))
    outcomes = split(form(match_key="id", result="of"), members(*receipts), answer(*[{"id": key, "of": key} for key in keys]))
    for receipt, outcome in zip(receipts, outcomes, strict=True):
        match keys.count(receipt):
            case 0:
                assert outcome == NO_RESULT
            case 1:
                assert outcome == Answered(json.dumps(receipt).encode())
            case _:
                assert code(outcome) == "duplicate_results"


@given(asked=st.integers(1, 6), answered=st.integers(0, 8))
def test_B6_by_position_nothing_is_shifted(asked: int, answered: int) -> None:
    outcomes = split(form(), members(*map(str, range(asked))), answer(*range(answered)))
    if asked == answered:
        assert outcomes == tuple(Answered(str(place).encode()) for place in range(asked))
    else:
        assert [code(outcome) for outcome in outcomes] == ["results_mismatch"] * asked


@given(numbers=st.lists(st.integers(-(10**30), 10**30), min_size=1, max_size=5))
def test_case_D3_integers_pass_digit_for_digit(numbers: list[int]) -> None:
    ones = tuple(CallMember(f"r{place}", b'{"n":%d}' % number) for place, number in enumerate(numbers))
    body = batch_body(form(match_key="id"), ones).body
    assert body is not None
    echoed = body.replace(b'{"items"', b'{"results"')
    assert split(form(match_key="id", result="n"), ones, echoed) == tuple(Answered(b"%d" % number) for number in numbers)
    assert parse_json(body) == json.loads(body)


# --- errors of single items (case_F5) ---


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ({"code": "busy", "retryable": True}, NotDone, "busy"),
        ({"code": "busy", "message": "later", "retryable": True}, NotDone, "busy: later"),
        ({"code": "busy", "retryable": False}, Refused, "busy"),
        ({"code": "busy", "retryable": "true"}, Refused, "busy"),
        ({"message": "no such address"}, Refused, "no such address"),
        ({"reason": 7}, Refused, "{'reason': 7}"),
        ("no such address", Refused, "no such address"),
        (["a"], Refused, "['a']"),
        (True, Refused, "True"),
    ],
)
def test_case_F5_an_item_error_is_that_items_alone(error: object, kind: type[NotDone | Refused], message: str) -> None:
    first, second = split(form(), members("a", "b"), answer({"error": error}, {"x": 1}))
    assert isinstance(first, kind)
    assert (first.fault.code, first.fault.message) == ("item_error", message)
    assert first.fault.repairable is (kind is NotDone)
    assert second == Answered(b'{"x":1}')


@pytest.mark.parametrize("error", [None, False, "", 0, [], {}])
def test_an_empty_error_is_none(error: object) -> None:
    assert split(form(result="x"), members("a"), answer({"error": error, "x": 1})) == (Answered(b"1"),)


def test_the_error_field_has_its_name_from_the_providers_file() -> None:
    one = form(error_field="fault", result="x")
    assert split(one, members("a"), answer({"error": "mine", "x": 1})) == (Answered(b"1"),)
    assert code(split(one, members("a"), answer({"fault": "no", "x": 1}))[0]) == "item_error"
