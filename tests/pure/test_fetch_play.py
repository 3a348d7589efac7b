"""A fetch from the play that a user writes to the receipt that it asks for: `schemas.fetch`, `schemas.plays`, `engine.compile`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.canonical import canonical
from schemas.events import CompiledColumn, Repeat
from schemas.fetch import METHODS, SAFE_METHODS
from schemas.plays import Play
from schemas.providers import Providers
from streams.engine.cells import programs, renderer
from streams.engine.compile import compile_play
from streams.errors import ConfigurationError, InputError
from streams.public.submission import play_uses
from streams.tools.asking import Ask, asked
from streams.tools.pages import HEADER_BYTES_MAX, KEPT_HEADERS, Page, outcome_of, text_of
from streams.tools.port import Answered, Refused
from streams.userfiles import check_tools, secret_faults

PROVIDERS = Providers.model_validate(
    {
        "fetch": {
            "secrets": {
                "crm": {"secret": "env:CRM", "origins": ["https://crm.example"]},
                "other": {"secret": "env:OTHER", "origins": ["https://other.example"], "account": "eu"},
            },
            "pace": {"concurrency": 3},
        }
    }
)
ROW = {"site": "https://a.example/", "id": 7, "note": None, "evil": {"secret": "crm", "scheme": ""}}


def play(**fetch: Any) -> Play:
    return Play.model_validate({"name": "sites", "columns": [{"name": "page", "fetch": {"url": "{{ row.site }}"} | fetch}]})


def bound(providers: Providers = PROVIDERS, **fetch: Any) -> CompiledColumn:
    compiled, faults = compile_play(play(**fetch), providers, "org")
    assert faults == []
    assert compiled is not None
    return compiled.columns[0]


def receipt(providers: Providers = PROVIDERS, row: dict[str, Any] = ROW, **fetch: Any) -> str:
    compiled, _ = compile_play(play(**fetch), providers, "org")
    assert compiled is not None
    (program,) = programs("org", compiled)
    return program.address(canonical(program.render(row)))


def refused(column: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Play.model_validate({"name": "sites", "columns": [column]})
    return str(caught.value)


def test_C2_a_fetch_is_bound_like_a_tool() -> None:
    column = bound()
    assert (column.tool, column.lane, column.version, column.private_to) == ("fetch.get", "org/fetch", "1", None)
    assert column.template == '{"method":"GET","url":"{{ row.site }}"}'
    found = PROVIDERS.tool("fetch.get")
    assert found is not None
    assert found[0] == PROVIDERS.provider("fetch")
    assert found[0].pace.concurrency == 3
    assert Providers().fetch.pace.requests_per_second == 50
    assert PROVIDERS.tool("fetch.trace") is None


@pytest.mark.parametrize("method", METHODS)
def test_F3_only_what_changes_nothing_may_be_repeated_freely(method: str) -> None:
    column = bound(method=method)
    assert column.tool == f"fetch.{method.lower()}"
    assert column.repeat is (Repeat.FREELY if method in SAFE_METHODS else Repeat.NEVER)
    found = PROVIDERS.tool(column.tool)
    assert found is not None
    assert found[1].repeat is column.repeat


def test_F1_the_key_digests_method_url_headers_and_body() -> None:
    same = receipt(headers={"X-A": "1", "Accept": "b"})
    assert same == receipt(headers={"accept": "b", "x-a": "1"})
    others = [
        receipt(),
        receipt(method="HEAD"),
        receipt(method="POST"),
        receipt(method="POST", body="a"),
        receipt(method="POST", body={"a": 1}),
        receipt(method="POST", body={}),
        receipt(row=ROW | {"site": "https://b.example/"}),
        receipt(headers={"X-A": "2", "Accept": "b"}),
        receipt(headers={"Authorization": {"secret": "crm"}}),
        receipt(headers={"Authorization": {"secret": "other"}}),
        receipt(headers={"Authorization": {"secret": "crm", "scheme": "Token"}}),
    ]
    assert len({same, *others}) == 12
    assert receipt() == receipt(method="GET", headers={}, body=None)


def test_K3_the_key_names_whose_secret_is_sent_and_not_the_secret() -> None:
    def with_entry(**fields: Any) -> str:
        entry = {"secret": "env:CRM", "origins": ["https://crm.example"]} | fields
        providers = Providers.model_validate({"fetch": {"secrets": {"crm": entry}}})
        return receipt(providers, headers={"authorization": {"secret": "crm"}})

    same = with_entry()
    assert same == with_entry(origins=["https://crm.example", "https://b.example"])
    assert len({same, with_entry(secret="env:NEXT"), with_entry(account="us")}) == 3
    plain = bound(headers={"x": "1"})
    assert plain.scope == bound(Providers()).scope != bound(headers={"x": {"secret": "crm"}}).scope


def test_R10_no_row_can_name_a_secret() -> None:
    column = bound(headers={"authorization": "{{ row.evil }}", "x-key": {"secret": "crm", "scheme": ""}})
    ask = asked(canonical(renderer(column.template)(ROW)))
    assert isinstance(ask, Ask)
    assert {name: use.secret for name, use in ask.secrets.items()} == {"x-key": "crm"}
    assert "authorization" in ask.headers
    assert "row" not in json.dumps(play(headers={"x": {"secret": "crm"}}).columns[0].tool_input["secrets"])


def test_a_secret_that_the_operator_does_not_know_is_a_fault_of_its_column() -> None:
    compiled, faults = compile_play(play(headers={"authorization": {"secret": "crn"}}), PROVIDERS, "org")
    assert compiled is None
    assert faults == ["play.columns.0.fetch.headers.authorization: unknown secret 'crn'; known under fetch.secrets are: crm, other"]


def test_a_template_is_named_by_its_place_in_the_fetch() -> None:
    _, faults = compile_play(play(url="https://a.example/{{ site }}"), PROVIDERS, "org")
    assert faults == ["play.columns.0.fetch.url: '{{ site }}' is not of the form {{ row.field }}"]
    with pytest.raises(InputError, match=r"play.toml: columns.0.fetch.url: '\{\{ site \}\}'"):
        play_uses(play(url="https://a.example/{{ site }}"), "play.toml")
    assert play_uses(play(headers={"x": "{{ row.id }}"}), "play.toml") == {
        "id": ["columns.0.fetch"],
        "site": ["columns.0.fetch"],
    }
    _, faults = compile_play(play(method="POST", body={"$bytes": "?"}), PROVIDERS, "org")
    assert [fault.partition(":")[0] for fault in faults] == ["play.columns.0.fetch.body"]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"fetch": {"url": "https://a"}, "tool": "p.t"}, "column 'c' has fetch, and tool or input beside it"),
        ({"fetch": {"url": "https://a"}, "input": {}}, "column 'c' has fetch, and tool or input beside it"),
        ({}, "column 'c' has neither tool nor fetch"),
        ({"tool": "p.t"}, "column 'c' has a tool and no input"),
        ({"tool": "fetch.get", "input": {}}, "column 'c': fetch.get is built in; write fetch"),
        ({"fetch": {}}, "columns.0.fetch.url"),
        ({"fetch": {"url": "ftp://a"}}, "url must begin with http://, https:// or a placeholder"),
        ({"fetch": {"url": "https://a", "method": "TRACE"}}, "columns.0.fetch.method"),
        ({"fetch": {"url": "https://a", "body": "x"}}, "a GET has no body"),
        ({"fetch": {"url": "https://a", "headers": {"Host": "b", "TE": "c"}}}, "not a play's to set: host, te"),
        ({"fetch": {"url": "https://a", "headers": {"a b": "c"}}}, "columns.0.fetch.headers"),
        ({"fetch": {"url": "https://a", "headers": {"a": {"secret": "{{ row.x }}"}}}}, "columns.0.fetch.headers"),
        ({"fetch": {"url": "https://a", "headers": {"a": {"secret": "x", "scheme": "{{ row.x }}"}}}}, "columns.0.fetch.headers"),
        ({"fetch": {"url": "https://a", "more": 1}}, "columns.0.fetch.more"),
    ],
)
def test_C2_a_column_is_one_thing_and_its_faults_name_it(column: dict[str, Any], words: str) -> None:
    assert words in refused({"name": "c"} | column)


def test_K7_a_play_without_fetch_keeps_its_revision() -> None:
    """The dump is digested: a kind of column that was added later must not recompute every sheet."""
    written = {"name": "c", "tool": "p.t", "input": {"x": 1}, "needs": [], "extract": None}
    assert Play.model_validate({"name": "p", "columns": [written]}).model_dump(mode="json")["columns"] == [written]


def test_a_play_with_a_fetch_survives_the_wire() -> None:
    sent = play(method="POST", body={"n": 1}, headers={"Authorization": {"secret": "crm"}, "X": "{{ row.id }}"})
    assert Play.model_validate_json(sent.model_dump_json()) == sent
    assert "tool" not in json.loads(sent.model_dump_json())["columns"][0]


def test_the_examples_of_the_documentation_are_right() -> None:
    text = (Path(__file__).parents[2] / "docs" / "fetch.md").read_text()
    columns, settings = (tomllib.loads(part.partition("```")[0]) for part in text.split("```toml")[1:])
    documented = Providers.model_validate(settings)
    compiled, faults = compile_play(Play.model_validate({"name": "p", **columns}), documented, "org")
    assert faults == []
    assert compiled is not None
    assert (compiled.columns[0].tool, compiled.columns[0].extract) == ("fetch.post", "json.name")
    assert documented.fetch.model_copy(update={"allow": (), "secrets": {}}) == Providers().fetch


# --- the operator's part ---


def test_a_provider_cannot_take_the_name() -> None:
    provider = {"base_url": "https://a.example", "tools": {"t": {"path": "/"}}}
    with pytest.raises(ValidationError, match="'fetch' is the name of the built-in column kind; give this provider another name"):
        Providers.model_validate({"providers": {"fetch": provider}})


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://A.example", "https://a.example:443"),
        ("http://a.example/", "http://a.example:80"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[0:0::1]:8080", "http://[::1]:8080"),
    ],
)
def test_F4_an_allowed_origin_has_one_spelling(text: str, origin: str) -> None:
    assert Providers.model_validate({"fetch": {"allow": [text]}}).fetch.allow == (origin,)


@pytest.mark.parametrize("text", ["a.example", "https://a.example/path", "https://a.example?x", "https://u:p@a.example", "ftp://a"])
def test_F4_what_is_no_origin_is_not_allowed(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Providers.model_validate({"fetch": {"allow": [text]}})
    [fault] = caught.value.errors()
    assert fault["loc"] == ("fetch", "allow", 0)
    assert fault["msg"].startswith("Value error, no origin: expected for example https://api.example.com")
    assert "u:p" not in fault["msg"]


def test_F5_a_secret_is_sent_over_tls_only_loopback_and_allowed_origins_aside() -> None:
    def settings(origin: str, *allow: str) -> Providers:
        secret = {"secret": "env:K", "origins": [origin]}
        return Providers.model_validate({"fetch": {"allow": allow, "secrets": {"k": secret}}})

    for origin in ("https://a.example", "http://127.0.0.1:80", "http://[::1]:81", "http://localhost"):
        assert settings(origin).fetch.secrets["k"].origins
    assert settings("http://a.example", "http://a.example:80").fetch.secrets["k"].origins == ("http://a.example:80",)
    for origin in ("http://a.example", "http://127.0.0.1.example", "http://localhost.example"):
        with pytest.raises(ValidationError, match="secrets are sent over TLS"):
            settings(origin)
    with pytest.raises(ValidationError, match="origins"):
        Providers.model_validate({"fetch": {"secrets": {"k": {"secret": "env:K", "origins": []}}}})


def test_V3_a_secret_that_is_not_set_is_named_before_anything_runs() -> None:
    path = Path("providers.toml")
    assert secret_faults(PROVIDERS, path, {"OTHER": "x"}, ["fetch"]) == [
        "providers.toml: fetch.secrets.crm.secret: secret env:CRM: the environment has no CRM; set it for the worker"
    ]
    with pytest.raises(ConfigurationError, match=r"fetch\.secrets\.crm\.secret"):
        check_tools(play(), Path("play.toml"), PROVIDERS, path, {"OTHER": "x"})
    check_tools(play(), Path("play.toml"), PROVIDERS, path, {"OTHER": "x", "CRM": "y"})


# --- what is kept of a page ---


@pytest.mark.parametrize(
    ("body", "media", "text"),
    [
        (b"a\xc3\xa9", "", "aé"),
        (b"\xef\xbb\xbfa", "text/plain", "a"),
        (b"caf\xe9", "text/html;charset=latin1", "café"),
        (b"\x80", "text/html; charset=windows-1252", "€"),
        (b"a\x00\xe9\x00", 'text/plain; CHARSET="UTF-16LE"', "aé"),
        (b"\x82\xa0", "text/html; charset=Shift_JIS", "あ"),
        (b"\xff\xfe", "text/html", None),
        (b"\xe9", "text/html; charset=utf-8", None),
        (b"a\x00b", "text/plain", None),
        (b"\x00\xd8", "text/plain; charset=utf-16le", None),
        (b"+2AA-", "text/plain; charset=utf-7", "+2AA-"),
        (b"abc", "text/plain; charset=rot13", "abc"),
        (b"", "image/png", ""),
    ],
)
def test_a_body_is_text_by_the_answers_word_or_by_utf_8_and_nothing_is_guessed(body: bytes, media: str, text: str | None) -> None:
    assert text_of(body, media) == text


def test_a_page_keeps_few_headers_and_none_at_length() -> None:
    headers = [("server", "x"), ("set-cookie", "a"), *((name, "v" * 9999) for name in KEPT_HEADERS), ("etag", "second")]
    outcome = outcome_of(Page(200, "https://a/", headers, b""), ())
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.output)["headers"] == dict.fromkeys(KEPT_HEADERS, "v" * HEADER_BYTES_MAX)


def test_json_that_cannot_be_carried_is_kept_as_text() -> None:
    for text in ("1e999", "[" * 5000 + "]" * 5000, '{"a": NaN}', ""):
        outcome = outcome_of(Page(200, "https://a/", [("content-type", "application/json")], text.encode()), ())
        assert isinstance(outcome, Answered)
        found = json.loads(outcome.output)
        assert found["body"] == text
        assert "json" not in found


def test_R10_a_value_that_no_receipt_can_carry_is_refused() -> None:
    outcome = outcome_of(Page(200, "https://a/", [], b"\x01" * (2 << 20)), ())
    assert isinstance(outcome, Refused)
    assert outcome.fault.code == "too_large"
