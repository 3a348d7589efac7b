"""What ``cell`` and ``receipt`` say about arguments that cannot be: one line, exit code 2, and no broker is asked."""

from __future__ import annotations

import json

import pytest

from streams.cli import main
from tests.contract.test_cli_errors import Listener

KEY = "c5" * 20
RESOLVE = ("cell", "resolve")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*RESOLVE, "run/1", KEY, "check", "--as", "unpaid"), "operation: run: String should match pattern"),
        ((*RESOLVE, "run", KEY, "", "--as", "unpaid"), "operation: column: String should have at least 1 character"),
        (
            (*RESOLVE, "run", KEY, "check", "--as", "unpaid", "--reason", "x" * 2001),
            "operation: reason: String should have at most",
        ),
        ((*RESOLVE, "run", KEY, "check", "--as", "unpaid", "--who", "x" * 201), "operation: who: String should have at most 200"),
        ((*RESOLVE, "run", KEY, "check", "--as", "paid", "--value", "{a:1}"), "--value: "),
        ((*RESOLVE, "run", KEY, "check", "--as", "paid", "--value", "\udcff"), "--value: "),
        # It ended with a traceback of the library that writes JSON.
        ((*RESOLVE, "run", KEY, "check", "--as", "paid", "--value", "[" * 300 + "]" * 300), "value: nested deeper than 200 levels"),
        ((*RESOLVE, "run", KEY, "check", "--as", "paid", "--value", json.dumps("x" * 9_500_000)), "value: has 9,500,002 bytes"),
        (("receipt", "show", "ab"), "receipt 'ab': expected a whole key, 40 hexadecimal digits"),
        (("receipt", "show", ""), "receipt '': expected a whole key"),
        (("receipt", "forget", KEY[:-1] + "C"), "expected a whole key, 40 hexadecimal digits"),
    ],
)
def test_U3_U5_arguments_that_cannot_be_are_told_in_a_line_and_nobody_is_asked(
    arguments: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """They ended with a traceback, or, a short receipt, with a mixture of all that begin so."""
    with Listener() as broker:
        assert main([*arguments, "--broker", broker.address]) == 2
        assert broker.connections == 0
    out, line = capfd.readouterr()
    assert out == ""
    assert line.startswith("paidonce: ")
    assert said in line
    assert line.count("\n") == 1
