"""Which test proves which id: how it is read off the tests, and that the committed table is what the tests say."""

from __future__ import annotations

import pytest

from tests.coverage_of_ids import (
    COVERAGE,
    IDS,
    OPEN,
    PARTIAL,
    ROOT,
    Proof,
    faults,
    ids_of,
    known_ids,
    proofs_by_id,
    proofs_in,
    written,
)

KNOWN = known_ids("| R1 | a |\n| R2 | b |\n| case_A2 | c |\n## Further, named where tested\n| G1 | d |\n")
ALL_TESTED = {name: [Proof("f", f"test_{name}")] for name in ("R1", "R2", "case_A2")}


def test_the_committed_table_is_what_the_tests_say_and_no_id_is_forgotten() -> None:
    known, tests = known_ids(IDS.read_text()), proofs_by_id(ROOT)
    assert faults(known, tests, OPEN, PARTIAL) == []
    assert COVERAGE.read_text() == written(known, tests, OPEN, PARTIAL), "run python -m tests.coverage_of_ids"


@pytest.mark.parametrize(
    ("name", "docstring", "ids"),
    [
        ("test_R3_a_force_waits", "", ("R3",)),
        ("test_R3_B7_both", "", ("R3", "B7")),
        ("test_case_A2_R6_a_case_is_no_id", "", ("case_A2", "R6")),
        ("test_F2_a_limit_and_F3_a_try", "", ("F2", "F3")),
        ("test_P10_two_digits", "", ("P10",)),
        ("test_names", "R3, L6: what was paid for is used.", ("R3", "L6")),
        ("test_names", "case_H5.", ("case_H5",)),
        ("test_R3_once", "R3: the same again.", ("R3",)),
        ("test_names", "Says R3 further on.", ()),
        ("test_names", "R3 without its colon", ()),
        ("test_r3_small_letters_and_XR3_and_R3x", "", ()),
    ],
)
def test_ids_are_read_off_a_name_and_the_first_words_of_a_docstring(name: str, docstring: str, ids: tuple[str, ...]) -> None:
    assert ids_of(name, docstring) == ids


def test_a_modules_docstring_and_what_is_no_test_prove_nothing() -> None:
    source = '"""R1: all of it."""\ndef given_R1_x(): "R1: no."\nclass Some:\n    def test_R2_in_a_class(self): ...\n'
    assert list(proofs_in(source, "f")) == [(Proof("f", "test_R2_in_a_class"), ("R2",))]


def test_ids_below_a_heading_of_further_ones_are_known_and_not_required() -> None:
    assert KNOWN.required == {"R1", "R2", "case_A2"}
    assert KNOWN.texts["G1"] == "d"


def test_an_id_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="R1 stands there twice"):
        known_ids("| R1 | a |\n| R1 | b |\n")


def test_what_is_wrong_is_named_one_by_one() -> None:
    assert faults(KNOWN, ALL_TESTED, {}, {}) == []
    without = {name: tests for name, tests in ALL_TESTED.items() if name != "R2"}
    assert faults(KNOWN, without, {"R2": "a reason"}, {}) == []
    assert faults(KNOWN, without, {}, {}) == ["R2 has no test; write one, or say in OPEN why there is none"]
    assert faults(KNOWN, ALL_TESTED, {"R2": "a reason"}, {}) == ["R2 has a test, test_R2: take it out of OPEN"]
    assert faults(KNOWN, ALL_TESTED | {"R9": [Proof("f", "test_R9_x")]}, {}, {}) == [
        "R9 is no id of docs/ids.md; named by f: test_R9_x"
    ]
    assert faults(KNOWN, ALL_TESTED, {}, {"G1": "a part"}) == ["G1 stands in PARTIAL and has no test at all: it belongs into OPEN"]
    assert faults(KNOWN, ALL_TESTED, {"Q1": "a reason"}, {}) == ["Q1 stands in OPEN or PARTIAL and is no id of docs/ids.md"]


def test_the_table_shows_tests_reasons_and_what_is_missing() -> None:
    without = {name: tests for name, tests in ALL_TESTED.items() if name != "R2"}
    text = written(KNOWN, without, {"R2": "a reason"}, {"R1": "a part"})
    assert "| R2 | b | a reason |" in text
    assert "| R1 | a | a part |" in text
    assert "| case_A2 | `f` | `test_case_A2` |" in text
    assert "Of 3 ids that must be proven 2 have a test." in text
