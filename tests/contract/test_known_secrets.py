"""No receipt keeps a secret of the providers file, whatever it is for and whoever repeats it (R10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.providers import Providers
from streams.tools.http import HttpCaller
from streams.tools.lookup import Found, HttpLookUp
from streams.tools.port import CallMember, Doubtful, ProviderCall
from streams.tools.python import PythonCaller
from streams.tools.secrets import resolve_all
from tests.support.raw_server import sends, serving, whole
from tests.support.scripted_python import HERE, do, value

ENVIRONMENT = {"HTTP": "http-secret-1234", "PYTHON": "python-secret-1234", "FETCH": "fetch-secret-1234"}


def described(url: str) -> Providers:
    tool = {"path": "/check", "reconcile": {"path": "/ops/{key}"}}
    return Providers.model_validate(
        {
            "providers": {
                "raw": {"base_url": url, "auth": {"secret": "env:HTTP"}, "tools": {"check": tool}},
                "acme": {
                    "kind": "python",
                    "secrets": {"api_key": "env:PYTHON"},
                    "tools": {"lookup": {"entry_point": f"{HERE}:lookup"}},
                },
            },
            "fetch": {"secrets": {"crm": {"secret": "env:FETCH", "origins": ["https://crm.example"]}}},
        }
    )


def test_R10_all_kinds_of_secrets_are_known() -> None:
    assert resolve_all(described("http://a.example"), ENVIRONMENT) == {
        "raw": "http-secret-1234",
        "providers.acme.secrets.api_key": "python-secret-1234",
        "fetch.secrets.crm": "fetch-secret-1234",
    }


@pytest.mark.parametrize("secret", ENVIRONMENT.values())
async def test_R10_no_caller_and_no_look_up_keeps_a_secret_of_any_kind(secret: str) -> None:
    """Each caller knew its own: a provider over HTTP could bring home a Python tool's key, and that tool a fetch's."""
    answer: Any = {"status": "done", "answer": {"said": secret}}
    member = CallMember("receipt", b"{}")
    async with serving(sends(whole(json.dumps(answer).encode())), answers=9) as server:
        providers = described(server.url)
        http, python = HttpCaller(providers, environment=ENVIRONMENT), PythonCaller(providers, environment=ENVIRONMENT)
        look_up = HttpLookUp(providers, environment=ENVIRONMENT)
        called = await http.call(ProviderCall("raw.check", (member,), False, "k", "q"))
        found = await look_up.ask("raw.check", "k", (member,))
        given = CallMember("receipt", json.dumps(value(answer)).encode())
        ran = await python.call(ProviderCall("acme.lookup", (given,), False, "k", "q"))
        for one in (http, look_up, python):
            await one.close()
    assert isinstance(found, Found)
    outcomes = [*called.outcomes, *found.outcomes, *ran.outcomes]
    assert [outcome.fault.code for outcome in outcomes if isinstance(outcome, Doubtful)] == ["secret_in_output"] * 3
    assert secret not in str(outcomes)


async def test_R10_a_python_tools_fault_hides_the_secrets_of_others() -> None:
    caller = PythonCaller(described("http://a.example"), environment=ENVIRONMENT)
    given = json.dumps(do("say", words="with http-secret-1234 and fetch-secret-1234")).encode()
    report = await caller.call(ProviderCall("acme.lookup", (CallMember("receipt", given),), False, "k", "q"))
    await caller.close()
    [outcome] = report.outcomes
    assert isinstance(outcome, Doubtful)
    assert outcome.fault.message == "acme.lookup: RuntimeError: with [secret] and [secret]"
