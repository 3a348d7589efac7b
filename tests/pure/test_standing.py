"""Which rows of the sheet stand for a run (M2): those whose cells would get the same receipts (K1), of the same organisation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.events import AddedRow, CompiledPlay, RowsAdded, RunOpened
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import SHEET, SheetRow, record_key
from streams.engine.compile import compile_play
from streams.engine.rows import RowsEngine
from streams.public.sheet import RunSheet
from streams.table import WorkingSet
from tests.support.given_rows import answer, ask, asked, counts, later, sheet
from tests.support.memory import Table

PLAY = Play.model_validate({"name": "play", "columns": [{"name": "c", "tool": "p.t", "input": {"x": "{{ row.x }}"}}]})
FETCHING = Play.model_validate(
    {
        "name": "play",
        "columns": [
            {"name": "c", "fetch": {"url": "https://a.example/{{ row.x }}", "headers": {"authorization": {"secret": "key"}}}}
        ],
    }
)


def bound(
    org: str = "org",
    of: Play = PLAY,
    *,
    url: str = "https://p.example",
    auth: dict[str, str] | None = None,
    pace: dict[str, Any] | None = None,
    fetch: dict[str, str] | None = None,
    **terms: Any,
) -> CompiledPlay:
    provider = {
        "base_url": url,
        "auth": auth or {"secret": "env:A", "account": "a"},
        "pace": pace or {"requests_per_second": 9},
        "tools": {"t": {"path": "/t"} | terms},
    }
    secrets = {"key": {"origins": ["https://a.example"]} | (fetch or {"secret": "env:A", "account": "a"})}
    providers = Providers.model_validate({"providers": {"p": provider}, "fetch": {"secrets": secrets}})
    compiled, faults = compile_play(of, providers, org, 0)
    assert compiled is not None, faults
    return compiled


def run_over(table: Table, run: str, play: CompiledPlay, org: str = "org", position: int = 0) -> Any:
    return table.given(RunOpened(run, org, play), RowsAdded(run, (AddedRow(position, "key", b'{"x":1}'),)))


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"url": "https://other.example"},
        {"auth": {"secret": "env:B", "account": "a"}},
        {"auth": {"secret": "env:A", "account": "b"}},
        {"shared": False},
        {"org": "other"},
    ],
    ids=str,
)
def test_case_D6_K1_a_row_stands_for_no_run_whose_receipts_have_other_keys(change: dict[str, Any]) -> None:
    """A row stood as long as the play's revision and windows were the same: a new tool version, another base URL or account, and
    another organisation got the old result, or another tenant's, without a call.
    """
    table = Table(RowsEngine())
    first = ask(run_over(table, "one", bound()))
    table.given(answer(first, "of one"))
    org = change.get("org", "org")
    second = ask(run_over(table, "two", bound(**change), org))
    assert second.receipt != first.receipt


def test_case_D6_K3_a_row_that_was_fetched_with_one_secret_does_not_stand_for_another() -> None:
    table = Table(RowsEngine())
    first = ask(run_over(table, "one", bound(of=FETCHING)))
    table.given(answer(first, "of one"))
    assert asked(run_over(table, "same", bound(of=FETCHING))) == []
    second = ask(run_over(table, "two", bound(of=FETCHING, fetch={"secret": "env:A", "account": "b"})))
    assert second.receipt != first.receipt


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pace": {"requests_per_second": 3}},
        {"batch": {"path": "/many", "size_max": 9}},
        {"receipts": "completed-cache"},
        {"url": "https://P.example:443/"},
    ],
    ids=str,
)
def test_case_D6_M2_a_row_stands_whatever_else_has_changed(change: dict[str, Any]) -> None:
    """Another run, another position, pace, batch form or receipt policy: the key is the same, so there is no new call."""
    table = Table(RowsEngine())
    table.given(answer(ask(run_over(table, "one", bound())), "of one"))
    outbox = run_over(table, "two", bound(**change), position=7)
    assert asked(outbox) == []
    assert counts(outbox).reused == 1


def test_case_D6_two_organisations_have_a_row_each() -> None:
    """They shared one row of the sheet: whoever wrote last took the other's result away."""
    table = Table(RowsEngine())
    first = ask(run_over(table, "one", bound("orga"), "orga"))
    (of_a,) = table.given(answer(first, "of a")).public
    second = ask(run_over(table, "two", bound("orgb"), "orgb"))
    (of_b,) = table.given(answer(second, "of b")).public
    assert (of_a.key, of_b.key) == ("orga/play/key", "orgb/play/key")
    rows = [WorkingSet(table.reader).get(record_key(SHEET, org, "play", "key"), SheetRow) for org in ("orga", "orgb")]
    assert [row and row.cells["c"].value for row in rows] == [b'"of a"', b'"of b"']
    third = run_over(table, "three", bound("orga"), "orga")
    assert asked(third) == []
    assert counts(later(table, "three") if not third.events else third).reused == 1


def test_case_D6_an_export_shows_its_own_organisations_rows() -> None:
    """The export joined a run's lines with whatever stood under the dataset's name."""
    table = Table(RowsEngine())
    shown = {}
    for org in ("orga", "orgb"):
        with RunSheet("run") as lines:
            request = {"type": "run_requested", "run": "run", "org": org, "play": PLAY.model_dump(mode="json"), "rows": [{"x": 1}]}
            lines.take_request(json.dumps(request).encode())
            row = RowsAdded(org, (AddedRow(0, lines.key_at(0), b'{"x":1}'),))
            outbox = table.given(RunOpened(org, org, bound(org)), row)
            (event,) = table.given(answer(ask(outbox), f"of {org}")).public
            shown[event.key] = event.data
            for key, value in shown.items():
                lines.take_state(key.encode(), value)
            (line,) = lines
            assert line.row is not None
            assert (line.row.org, line.row.cells["c"].value) == (org, f"of {org}")
        with RunSheet("run") as lines:
            lines.take_request(json.dumps(request | {"org": "orgc"}).encode())
            for key, value in shown.items():
                lines.take_state(key.encode(), value)
            assert [line.row for line in lines] == [None]


def test_case_D6_a_request_without_an_organisation_has_the_default_one() -> None:
    table = Table(RowsEngine())
    with RunSheet("run") as lines:
        request = {"type": "run_requested", "run": "run", "play": PLAY.model_dump(mode="json"), "rows": [{"x": 1}]}
        lines.take_request(json.dumps(request).encode())
        row = RowsAdded("run", (AddedRow(0, lines.key_at(0), b'{"x":1}'),))
        outbox = table.given(answer(ask(table.given(RunOpened("run", "default", bound("default")), row)), "v"))
        (shown,) = sheet(outbox)
        lines.take_state(f"default/play/{shown.key}".encode(), outbox.public[0].data)
        (line,) = lines
        assert line.row == shown
