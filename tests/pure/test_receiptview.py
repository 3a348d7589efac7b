"""Receipts as people see them: the words for their states, ages, and what ``receipt show`` and ``cell resolve`` say."""

from __future__ import annotations

import pytest

from schemas.events import Event, Repeat, RunClosed
from streams.cli import main
from streams.cli.receipt import age
from streams.public import receiptview
from streams.public.receiptview import Detail, state_of
from tests.support import given as g

ASKED, CLAIMED = g.request(repeat=Repeat.NEVER), g.claim(1, "L1")


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((ASKED,), "queued"),
        ((ASKED, CLAIMED), "running"),
        ((ASKED, CLAIMED, g.value(1)), "completed"),
        ((ASKED, CLAIMED, g.failed(1)), "failed"),
        ((ASKED, CLAIMED, g.ambiguous(1)), "unknown"),
        ((ASKED, CLAIMED, g.expiry(1, "L1")), "unknown"),
        ((ASKED, CLAIMED, g.ambiguous(1), g.value(1)), "completed"),
        ((ASKED, CLAIMED, g.ambiguous(1), g.resolved(1)), "queued"),
        ((ASKED, CLAIMED, g.ambiguous(1), RunClosed("run"), g.resolved(1)), "pending"),
        ((ASKED, g.withdrawn()), "pending"),
    ],
)
def test_U5_a_receipt_stands_as_the_rules_of_the_protocol_say(events: tuple[Event, ...], state: str) -> None:
    table = g.receipts()
    for event in events:
        table.given(event)
    assert state_of(g.state(table)) == state
    assert state in receiptview.STATES


def test_a_receipt_is_shown_with_its_attempts_and_callers() -> None:
    table = g.receipts()
    table.given(ASKED, CLAIMED, g.ambiguous(1))
    shown = receiptview.as_json(g.R, Detail(receipt=g.state(table), changed_ms=7))
    assert (shown["state"], shown["input"], shown["repeat"], shown["changed_ms"]) == ("unknown", {}, "never", 7)
    (attempt,) = shown["attempts"]
    assert (attempt["n"], attempt["verdict"], attempt["lease"], attempt["fault"]["code"]) == (1, "unknown", "L1", "refused")
    assert shown["callers"] == [{"call": "c1", "run": "run", "told": "unknown"}]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h"), (900_000, "10 d"), (-5, "0 s")],
)
def test_U5_ages_are_told_in_words(seconds: int, text: str) -> None:
    assert age(seconds * 1000) == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cell", "resolve", "r", "0", "c", "--as", "free"], "expected paid or unpaid"),
        (["cell", "resolve", "r", "0", "c", "--as", "paid"], "--as paid needs --value"),
        (["cell", "resolve", "r", "0", "c", "--as", "unpaid", "--value", "1"], "--as unpaid has none"),
        (["cell", "resolve", "r", "0", "c", "--as", "paid", "--value", "{"], "--value:"),
        (["receipt", "list", "--state", "lost"], "expected pending | queued"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_asked(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--broker", "127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err
