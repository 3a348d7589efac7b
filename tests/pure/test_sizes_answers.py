"""What an answer with a large value and many callers grows to: turns that can be committed, and nobody is left untold (S2, S1)."""

from __future__ import annotations

import asyncio

import pytest

from schemas import envelope
from schemas.commands import AnswersDue
from schemas.envelope import EVENTS_MAX
from schemas.events import CallsAnswered, Event
from schemas.states import OPEN
from streams.agents.receipts import receipts_agent
from streams.engine.answers import CALLERS_MAX, CALLERS_MIN, COPIES_BYTES_MAX
from streams.kafka.inbox import Delivery
from streams.tools.results import OUTPUT_BYTES_MAX
from tests.pure.test_sizes import text_of
from tests.support import given as g
from tests.support.line import Line


def test_S2_the_largest_answer_reaches_a_thousand_callers() -> None:
    """S2: the callers' names stand beside the value, and made an event of more than 8 MiB of it."""
    answered, pages = told_all(OUTPUT_BYTES_MAX, callers=40, names="r" * 40)
    assert [len(page) for page in pages] == [CALLERS_MIN] * 5
    assert answered == 40


@pytest.mark.parametrize(("size", "page"), [(2, CALLERS_MAX), (30_000, CALLERS_MAX), (1 << 20, 32), (5 << 20, CALLERS_MIN)])
def test_S2_so_many_callers_are_told_at_a_time_that_their_rows_can_be_written(size: int, page: int) -> None:
    """S2: a thousand rows that wait for one page of 1 MiB made 2 GB of records and messages in one turn of ``rows``."""
    answered, pages = told_all(size, callers=1_500)
    assert len(pages[0]) == page
    assert page * size <= max(COPIES_BYTES_MAX, CALLERS_MIN * size)
    assert answered == 1_500


def test_S1_R4_callers_that_are_told_in_later_turns_hear_of_a_value_though_its_owner_goes_away() -> None:
    """S1, R4: the next page was a timer in the process alone, and the receipt was closed with the first: after a crash between two
    pages nobody told the others, and their rows waited for ever.
    """
    line = Line(receipts_agent())
    asked = [line.put_events("tool-requests", *[g.request(f"c{number:02}") for number in range(3 * CALLERS_MIN)])]
    claimed = [line.put_events("receipt-claims", g.claim(1, "L1"))]
    value = [line.put_events("receipt-completions", g.value(1, text_of(5 << 20).decode()))]

    async def owners() -> list[int]:
        await line.owner(([], asked), ([], claimed), ([], value))
        told = [len(told_by(line))]
        for _ in range(3):
            await line.owner()
            told.append(len(told_by(line)))
        return told

    assert asyncio.run(owners()) == [8, 16, 24, 24]
    assert sorted(told_by(line)) == [f"c{number:02}" for number in range(24)]
    assert not list(line.store.scan(OPEN))
    line.check()


def told_by(line: Line) -> list[str]:
    headers = envelope.headers_of("tool-results")
    events = [event for part in line.broker.values["tool-results"] for event in envelope.unpack("tool-results", part, headers)]
    return [call for event in events if isinstance(event, CallsAnswered) for call, _ in event.calls]


def told_all(size: int, *, callers: int, names: str = "") -> tuple[int, list[list[str]]]:
    """How many callers hear of a value of so many bytes, and whom each event tells: of all partitions one."""
    line = Line(receipts_agent())
    calls = [f"{names}{number:040}:k:email-check" for number in range(callers)]
    requests = [g.request(call, run="run") for call in calls]
    asked = [line.put_events("tool-requests", *requests[start : start + EVENTS_MAX]) for start in range(0, callers, EVENTS_MAX)]
    turns: list[tuple[list[Event], list[Delivery]]] = [([], asked), ([], [line.put_events("receipt-claims", g.claim(1, "L1"))])]
    turns.append(([], [line.put_events("receipt-completions", g.value(1, text_of(size).decode()))]))
    # Each page asks for the next; one that finds nobody is no turn.
    turns += [([AnswersDue(g.R, "")], [])] * (callers // CALLERS_MIN)
    asyncio.run(line.owner(*turns))
    line.check()
    headers = envelope.headers_of("tool-results")
    events = [event for part in line.broker.values["tool-results"] for event in envelope.unpack("tool-results", part, headers)]
    pages = [[call for call, _ in event.calls] for event in events if isinstance(event, CallsAnswered)]
    assert sorted(call for page in pages for call in page) == calls
    return sum(map(len, pages)), pages
