"""Python providers in a providers file: what may stand there, what is said of the rest, and whose receipts they make."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.events import Repeat
from schemas.plays import Play
from schemas.providers import Providers, PythonProvider
from streams.engine.compile import compile_play, scope_of


def test_P1_a_python_provider_states_the_same_terms_as_one_over_http() -> None:
    terms = {"version": "3", "repeat": "with-key", "price": {"per_result": 0.01}, "timeout_seconds": 5, "shared": False}
    batch = {"entry_point": "pack.mod:many", "size_max": 50, "window_ms": 10, "match": "key"}
    described = {"kind": "python", "account": "a", "pace": {"concurrency": 2}}
    tools = {"check": terms | {"entry_point": "acme-check", "batch": batch}}
    web = {"base_url": "http://127.0.0.1", "auth": {"secret": "env:WEB"}, "tools": {"check": terms | {"path": "/check"}}}
    providers = Providers.model_validate({"providers": {"acme": described | {"tools": tools}, "web": web}})
    assert Providers.model_validate(providers) == providers == Providers.model_validate(providers.model_dump())
    assert isinstance(providers.providers["acme"], PythonProvider)
    assert [provider.secret_references() for provider in providers.providers.values()] == [{}, {"auth.secret": "env:WEB"}]
    columns = [{"name": name, "tool": f"{name}.check", "input": {}} for name in ("acme", "web")]
    bound, faults = compile_play(Play.model_validate({"name": "p", "columns": columns}), providers, "org")
    assert faults == []
    assert bound is not None
    assert [(column.version, column.repeat, column.private_to) for column in bound.columns] == [("3", Repeat.WITH_KEY, "p")] * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "perl"}, "providers.acme: kind is 'perl'; known are http, python"),
        ({"kind": ["python"]}, "providers.acme: kind is ['python']"),
        ({"base_url": "http://127.0.0.1"}, "providers.acme.base_url: Extra inputs"),
        ({"account": None, "secrets": {}}, "providers.acme: names neither account nor secrets"),
        ({"secrets": {"api_key": "hunter2"}}, "providers.acme.secrets.api_key: "),
        ({"tools": {"t": {"entry_point": "a b:c"}}}, "providers.acme.tools.t.entry_point: "),
        ({"tools": {"t": {"entry_point": "m:f", "path": "/"}}}, "providers.acme.tools.t.path: Extra inputs"),
        ({"tools": {"t": {"entry_point": "m:f", "batch": {"size_max": 5}}}}, "providers.acme.tools.t.batch.entry_point: "),
    ],
)
def test_a_providers_file_names_the_place_of_what_is_wrong(change: dict[str, Any], words: str) -> None:
    described = {"kind": "python", "account": "a", "tools": {"t": {"entry_point": "m:f"}}} | change
    with pytest.raises(ValidationError) as caught:
        Providers.model_validate({"providers": {"acme": described}})
    told = ["{}: {}".format(".".join(map(str, fault["loc"])), fault["msg"]) for fault in caught.value.errors()]
    assert words in told[0].replace("Value error, ", "")
    assert len(told) == 1


def test_K3_receipts_belong_to_account_and_references_and_not_to_the_function() -> None:
    def scope(**provider: Any) -> str:
        tools = {"t": {"entry_point": provider.pop("entry_point", "m:f")}}
        described = {"kind": "python", "account": "a", "secrets": {"api_key": "env:KEY"}, "tools": tools} | provider
        return scope_of("acme", Providers.model_validate({"providers": {"acme": described}}).providers["acme"])

    same = scope()
    assert same == scope(entry_point="m:g") == scope(pace={"concurrency": 9})
    others = [
        scope(account="other"),
        scope(account=None),
        scope(secrets={}),
        scope(secrets={"api_key": "env:OTHER"}),
        scope(secrets={"key": "env:KEY"}),
        scope(secrets={"api_key": "env:KEY", "second": "env:B"}),
    ]
    assert len({same, *others}) == 7
