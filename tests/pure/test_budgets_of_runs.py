"""Retry budgets around the engine: what plays, requests and runs say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.commands import RunRequested
from schemas.events import (
    RetriesCounted,
    RetryBudget,
)
from schemas.plays import Play
from schemas.providers import Providers
from streams.engine.compile import compile_play
from streams.engine.runs import RunsEngine
from streams.errors import InputError, UsageError
from streams.public.submission import Submission
from streams.userfiles import load_play
from tests.support.memory import Table


def providers_of(*names: str) -> Providers:
    one = {"base_url": "https://p.example", "tools": {"t": {"path": "/t"}, "u": {"path": "/u"}}}
    return Providers.model_validate({"providers": dict.fromkeys(names, one)})


def play_of(*tools: str, **terms: Any) -> Play:
    columns = [{"name": f"c{place}", "tool": tool, "input": {"x": "{{ row.x }}"}} for place, tool in enumerate(tools)]
    return Play.model_validate({"name": "leads", "columns": columns} | terms)


def test_G3_a_play_is_bound_with_a_share_for_each_lane_and_stands_for_the_same_rows_whatever_its_budget() -> None:
    tools, providers = ("p.t", "q.t", "p.u", "r.t"), providers_of("p", "q", "r")
    free, faults = compile_play(play_of(*tools), providers, "org")
    bound, more = compile_play(play_of(*tools, retries_max=200), providers, "org")
    assert free is not None
    assert bound is not None
    assert faults + more == []
    assert [column.retries for column in free.columns] == [None] * 4
    shares = [(column.lane, column.retries) for column in bound.columns]
    first, other = RetryBudget(200, 67), RetryBudget(200, 66)
    assert shares == [("org/p", first), ("org/q", first), ("org/p", first), ("org/r", other)]
    assert bound.revision == free.revision


def test_P2_a_request_says_nothing_of_a_budget_that_it_has_not() -> None:
    assert "retries_max" not in play_of("p.t").model_dump()
    assert play_of("p.t", retries_max=0).model_dump()["retries_max"] == 0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("retries_max = -1", "retries_max: Input should be greater than or equal to 0"),
        ('retries_max = "many"', "retries_max: Input should be a valid integer, unable to parse string as an integer"),
        ("retries_max = 9007199254740993", "retries_max: Input should be less than or equal to 9007199254740992"),
    ],
)
def test_P2_M1_a_budget_that_is_none_is_refused_by_file_and_field(tmp_path: Path, line: str, fault: str) -> None:
    file = tmp_path / "play.toml"
    file.write_text(f'name = "leads"\n{line}\n[[columns]]\nname = "c"\ntool = "p.t"\ninput = {{ x = "{{{{ row.x }}}}" }}\n')
    with pytest.raises(InputError) as refused:
        load_play(file)
    assert str(refused.value) == f"{file}: {fault}"


def test_P2_a_run_says_its_own_budget_instead_of_the_plays() -> None:
    with Submission(play_of("p.t", retries_max=5), "run", retries_max=7) as submission:
        submission.add({"x": "1"})
        (request,) = submission.requests()
    assert json.loads(request.value)["play"]["retries_max"] == 7
    with pytest.raises(UsageError, match=r"^run request: retries_max: Input should be greater than or equal to 0, found -1$"):
        Submission(play_of("p.t"), "run", retries_max=-1)


def test_P2_O3_a_run_shows_the_repeats_of_all_lanes_and_never_fewer_than_before() -> None:
    play, _ = compile_play(play_of("p.t"), providers_of("p"), "org")
    runs = Table(RunsEngine())
    runs.given(RunRequested("run", "org", "d", play, rows=(b'{"x":"1"}',), expected=1))
    home = [RetriesCounted("run", "org/p", 4), RetriesCounted("run", "org/q", 2), RetriesCounted("run", "org/p", 3)]
    runs.now_ms += 1_000
    outbox = runs.given(*home, home[0], RetriesCounted("stranger", "org/p", 1))
    (sample,) = [json.loads(event.data or b"") for event in outbox.public if event.topic == "map-progress"]
    assert sample["counts"]["retries"] == 6
