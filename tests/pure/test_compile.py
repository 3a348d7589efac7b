"""Binding a play to the providers: what a run needs is fixed when it is accepted, and every fault is named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.events import Repeat
from schemas.plays import Play
from schemas.providers import Provider, Providers
from streams.engine.compile import compile_play, scope_of

PROVIDERS = Providers.model_validate(
    {
        "providers": {
            "acme": {
                "base_url": "https://api.acme.example/v1/",
                "auth": {"secret": "env:ACME_KEY", "account": "eu"},
                "tools": {
                    "check": {"path": "/check", "version": "3", "repeat": "with-key"},
                    "mine": {"path": "/mine", "shared": False},
                },
            },
            "open": {"base_url": "http://127.0.0.1:9000", "tools": {"look": {"path": "/look"}}},
        }
    }
)


def play(**changes: Any) -> Play:
    column = {"name": "checked", "tool": "acme.check", "input": {"b": "{{ row.mail }}", "a": 1}}
    return Play.model_validate({"name": "people", "columns": [column]} | changes)


def column(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "tool": "acme.check", "input": {"x": "{{ row.x }}"}} | fields


def faults(**changes: Any) -> list[str]:
    bound, found = compile_play(play(**changes), PROVIDERS, "org")
    assert bound is None
    return found


def test_a_bound_play_holds_everything_that_its_rows_need() -> None:
    columns = [column(), column(name="d", tool="acme.mine", needs=["c"], extract="a.b"), column(name="e", tool="open.look")]
    bound, found = compile_play(play(dataset="contacts", key=["mail"], columns=columns), PROVIDERS, "org")
    assert found == []
    assert bound is not None
    assert (bound.name, bound.dataset, bound.key_columns) == ("people", "contacts", ("mail",))
    first, second, third = bound.columns
    assert (first.tool, first.lane, first.version, first.repeat) == ("acme.check", "org/acme", "3", Repeat.WITH_KEY)
    assert (first.needs, first.extract, first.private_to) == ((), None, None)
    assert (second.needs, second.extract, second.private_to, second.repeat) == (("c",), "a.b", "contacts", Repeat.NEVER)
    assert first.scope == second.scope != third.scope
    assert third.lane == "org/open"


def test_P9_what_a_column_extracts_is_bound_as_one_text() -> None:
    columns = [column(extract={"b": "x", "a": "y.0"}), column(name="d", extract="x", getter="number")]
    bound, found = compile_play(play(columns=columns), PROVIDERS, "org")
    assert found == []
    assert bound is not None
    assert bound.columns[0].extract == '{"extract":{"a":"y.0","b":"x"}}'
    assert bound.columns[1].extract == '{"extract":"x","getter":"number/1","paths":{}}'


def test_a_template_is_kept_as_canonical_json() -> None:
    bound, _ = compile_play(play(), PROVIDERS, "org")
    assert bound is not None
    assert bound.columns[0].template == '{"a":1,"b":"{{ row.mail }}"}'


def test_a_dataset_without_a_name_has_the_plays() -> None:
    bound, _ = compile_play(play(), PROVIDERS, "org")
    assert bound is not None
    assert bound.dataset == "people"


def test_a_plays_revision_changes_with_anything_in_it_and_with_nothing_else() -> None:
    def revision(of: Play, providers: Providers = PROVIDERS, org: str = "org") -> str:
        bound, _ = compile_play(of, providers, org)
        assert bound is not None
        return bound.revision

    same = revision(play())
    assert same == revision(play()) == revision(play(), org="other")
    others = [play(version="2"), play(columns=[column()]), play(key=["mail"]), play(dataset="d")]
    assert len({same, *map(revision, others)}) == 5


def test_M1_every_fault_of_every_column_is_named_with_its_place() -> None:
    columns = [
        column(name="a", tool="acme.nothing"),
        column(name="b", tool="nobody.check"),
        column(name="c", tool="check"),
        column(name="d", input={"x": ["{{ x }}"]}),
        column(name="e", input={"x": {"$bytes": "?"}}),
        column(name="f"),
    ]
    found = faults(columns=columns)
    assert [fault.split(":")[0] for fault in found] == [
        "play.columns.0.tool",
        "play.columns.1.tool",
        "play.columns.2.tool",
        "play.columns.3.input.x.0",
        "play.columns.4.input.x",
    ]
    assert "unknown tool 'acme.nothing'; known are: acme.check, acme.mine, open.look" in found[0]


def test_a_worker_without_providers_says_so() -> None:
    _, found = compile_play(play(), Providers(), "org")
    assert found == ["play.columns.0.tool: unknown tool 'acme.check'; known are: none; the worker has no providers file"]


def test_K3_the_scope_names_the_credentials_and_never_the_pace_or_path() -> None:
    def scope(**changes: Any) -> str:
        fields = {
            "base_url": "https://api.acme.example",
            "auth": {"secret": "env:KEY", "account": "eu"},
            "tools": {"t": {"path": "/t"}},
        }
        return scope_of("acme", Provider.model_validate(fields | changes))

    same = scope()
    assert same == scope(pace={"concurrency": 9}) == scope(tools={"u": {"path": "/u"}})
    others = [
        scope(base_url="https://eu.acme.example"),
        scope(auth={"secret": "env:OTHER", "account": "eu"}),
        scope(auth={"secret": "env:KEY", "account": "us"}),
        scope(auth={"secret": "env:KEY"}),
        scope(auth=None),
    ]
    assert len({same, *others}) == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_url": "https://user:pass@api.example"}, "user"),
        ({"base_url": "https://user@api.example"}, "user"),
        ({"base_url": "https://api.example/?key=1"}, "query"),
        ({"base_url": "https://api.example/#x"}, "fragment"),
        ({"auth": {"secret": "env:KEY", "account": ""}}, "account"),
        ({"auth": {"secret": "hunter2"}}, "secret"),
        ({"idempotency_header": None, "tools": {"t": {"path": "/t", "repeat": "with-key"}}}, "no idempotency_header"),
        ({"tools": {"t": {"path": "t"}}}, "must begin with '/'"),
        ({"tools": {}}, "at least 1"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_provider_that_could_not_be_addressed_or_called_is_refused_when_its_file_is_read(
    change: dict[str, Any], words: str
) -> None:
    fields = {"base_url": "https://api.example", "tools": {"t": {"path": "/t"}}}
    with pytest.raises(ValidationError) as caught:
        Provider.model_validate(fields | change)
    assert words in str(caught.value)


def test_column_names_that_appear_twice_are_a_fault() -> None:
    with pytest.raises(ValidationError, match="appear twice: c"):
        play(columns=[column(), column()])
