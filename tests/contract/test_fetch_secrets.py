"""Secrets of a fetch, against a real server on loopback: to their origin alone, and hidden in all that is kept (F5)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from schemas.providers import Providers
from streams.errors import ConfigurationError
from streams.tools.fetch import FetchCaller
from streams.tools.port import Answered, CallMember, ProviderCall, Refused
from tests.support.raw_server import whole
from tests.support.web import (
    LOOPBACK,
    SECRET,
    Answer,
    fetching,
    leads,
    serving,
)


def secret_for(url: str, **fields: Any) -> dict[str, Any]:
    return {"crm": {"secret": "env:KEY", "origins": [url]} | fields}


USE = {"authorization": {"secret": "crm", "scheme": "Bearer"}}


async def test_case_L1_F5_a_secret_goes_to_its_origin_and_never_to_another() -> None:
    async with serving() as other, serving({"/same": leads(302, "/x"), "/away": leads(307, other.url("/y"))}) as web:
        home = f"http://{LOOPBACK}:{web.port}"
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            await fetch.value(f"{home}/same", secrets=USE)
            bare = {"x-key": {"secret": "crm", "scheme": ""}}
            await fetch.value(f"{home}/away", secrets=bare, headers={"x-own": "1", "accept-language": "de"})
            withheld = await fetch(other.url(), secrets=USE)
    assert [asked.headers.get("authorization") for asked in web.asked] == [f"Bearer {SECRET}"] * 2 + [None]
    assert web.asked[2].headers["x-key"] == SECRET
    [asked] = other.asked
    assert asked.path == "/y"
    assert SECRET not in str(asked)
    assert "x-own" not in asked.headers
    assert asked.headers["accept-language"] == "de"
    assert isinstance(withheld, Refused)
    assert (withheld.fault.code, withheld.fault.repairable) == ("secret_withheld", False)
    assert home in withheld.fault.message


async def test_F5_a_secret_does_not_come_back_with_a_redirect() -> None:
    async with serving() as other, serving() as web:
        home = f"http://{LOOPBACK}:{web.port}"
        web.answers["/out"] = leads(302, other.url("/back"))
        other.answers["/back"] = leads(302, f"{home}/in")
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            assert (await fetch.value(f"{home}/out", secrets=USE))["url"] == f"{home}/in"
    first, last = web.asked
    assert first.headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(last)


async def test_F5_known_secrets_are_hidden_in_all_that_is_kept() -> None:
    said = json.dumps({"you sent": f"Bearer {SECRET}"}).encode()
    answers: dict[str, Answer] = {
        "/echo": whole(said, "Content-Type: application/json", f"Link: <https://x/?k={SECRET}>"),
        "/bytes": whole(b"\xff" + SECRET.encode(), "Content-Type: image/png"),
        "/moved": leads(302, f"/to?key={SECRET.replace('/', '%2F')}"),
        "/wide": whole(SECRET.encode("utf-16"), "Content-Type: text/plain; charset=utf-16"),
    }
    async with serving(answers) as web:
        home = f"http://{LOOPBACK}:{web.port}"
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            found = {path: await fetch.value(f"{home}{path}", secrets=USE) for path in answers}
    assert found["/echo"]["json"] == {"you sent": "Bearer [secret]"}
    assert found["/echo"]["headers"]["link"] == "<https://x/?k=[secret]>"
    assert base64.b64decode(found["/bytes"]["body"]) == b"\xff[secret]"
    assert found["/moved"]["url"] == f"{home}/to?key=[secret]"
    assert found["/wide"]["body"] == "[secret]"


async def test_F5_the_secrets_of_providers_are_hidden_too() -> None:
    provider = {"base_url": "https://acme.example", "auth": {"secret": "env:ACME"}, "tools": {"t": {"path": "/"}}}
    async with serving({"/": whole(b"token: acme-token")}) as web:
        home = f"http://{LOOPBACK}:{web.port}"
        described = Providers.model_validate({"providers": {"acme": provider}, "fetch": {"allow": [home]}})
        caller = FetchCaller(described, environment={"ACME": "acme-token"})
        call = ProviderCall("fetch.get", (CallMember("r", json.dumps({"method": "GET", "url": home}).encode()),), False, "k", "i")
        report = await caller.call(call)
        await caller.close()
    [outcome] = report.outcomes
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.output)["body"] == "token: [secret]"


async def test_R10_a_row_cannot_name_a_secret() -> None:
    async with serving() as web:
        home = f"http://{LOOPBACK}:{web.port}"
        async with fetching(allow=[home], secrets=secret_for(home)) as fetch:
            fault = await fetch.fault(home, headers={"authorization": {"secret": "crm"}})
            unknown = await fetch.fault(home, secrets={"x": {"secret": "other", "scheme": ""}})
    assert (fault.code, unknown.code, unknown.repairable) == ("bad_input", "unknown_secret", True)
    assert web.asked == []


def test_F5_a_missing_secret_stops_the_worker_at_its_start() -> None:
    described = Providers.model_validate({"fetch": {"secrets": secret_for("https://a.example")}})
    with pytest.raises(ConfigurationError, match="secret env:KEY: the environment has no KEY"):
        FetchCaller(described, environment={})
