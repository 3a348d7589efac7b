"""On whose behalf a call is made, and how long it may take (P1, B8)."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pytest

from schemas.providers import Providers
from streams.engine.compile import scope_of
from streams.engine.scopes import scope_changed
from streams.errors import ConfigurationError
from streams.tools.http import RUNS_MAX, HttpCaller
from streams.tools.port import CallMember, CallReport, Doubtful, Refused
from tests.support.raw_server import DEADLINE_SECONDS, FINE, SECRET, Server, call_of, calling, drips, sends, serving, whole

HEADERS = {"run_header": "X-Run", "receipt_header": "X-Receipt", "auth_scope_header": "X-Auth-Scope"}


def providers(url: str, **provider: Any) -> Providers:
    described = {"base_url": url, "auth": {"secret": "env:KEY"}, "tools": {"check": {"path": "/check"}}} | provider
    return Providers.model_validate({"providers": {"raw": described}})


async def sent(server: Server, runs: tuple[str, ...], batch: str = "", **provider: Any) -> dict[str, str]:
    """The headers of one call, by their names in lower case."""
    caller = HttpCaller(providers(server.url, **provider), environment={"KEY": SECRET})
    await caller.call(msgspec.structs.replace(call_of(), runs=runs, batch=batch))
    await caller.close()
    head = server.requests[-1].partition(b"\r\n\r\n")[0].decode()
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])}


async def test_P1_a_call_names_run_receipt_and_scope_in_the_headers_that_the_provider_asks_for() -> None:
    async with serving(sends(FINE)) as server:
        found = await sent(server, ("run-1",), **HEADERS)
        assert (found["x-run"], found["x-receipt"]) == ("run-1", "receipt")
        provider = providers(server.url, **HEADERS).provider("raw")
        assert provider is not None
        assert found["x-auth-scope"] == scope_of("raw", provider)
        assert SECRET not in found["x-auth-scope"]


async def test_P1_a_batch_is_named_as_such_and_runs_that_a_header_cannot_hold_are_left_out() -> None:
    async with serving(sends(FINE)) as server:
        found = await sent(server, tuple(f"r{number}" for number in range(20)), "batch:1", **HEADERS)
        assert found["x-run"].split(",") == [f"r{number}" for number in range(RUNS_MAX)]
        assert found["x-receipt"] == "batch:1"


async def test_P1_a_runs_name_cannot_break_out_of_its_header() -> None:
    async with serving(sends(FINE)) as server:
        found = await sent(server, ("a\r\nX-Evil: 1", "zoë"), **HEADERS)
        assert found["x-run"] == "a%0D%0AX-Evil:%201,zo%C3%AB"
        assert "x-evil" not in found


async def test_P1_nothing_is_told_that_is_not_asked_for() -> None:
    async with serving(sends(FINE)) as server:
        assert not {"x-run", "x-receipt", "x-auth-scope"} & set(await sent(server, ("run-1",)))


def test_P1_a_header_that_cannot_be_sent_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="'X Run' is no name for an HTTP header"):
        HttpCaller(providers("http://127.0.0.1:1", run_header="X Run"), environment={"KEY": SECRET})


async def test_B8_P5_a_batch_has_the_time_of_its_tool_which_is_that_of_each_of_its_members() -> None:
    slow = drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" ")
    members = (CallMember("r1", b"{}"), CallMember("r2", b"{}"))
    many = msgspec.structs.replace(call_of(), members=members, batched=True)
    async with (
        serving(slow) as server,
        calling(server, timeout_seconds=DEADLINE_SECONDS, batch={"size_max": 2, "path": "/batch"}) as caller,
    ):
        report: CallReport = await caller.call(many)
    assert DEADLINE_SECONDS <= report.seconds < DEADLINE_SECONDS + 1.0
    for outcome in report.outcomes:
        assert isinstance(outcome, Doubtful)
        assert outcome.fault.code == "deadline"
    assert len(report.outcomes) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error":{"code":"auth_scope_changed"}}', "scope"),
        (b'{"error":"auth_scope_changed"}', "scope"),
        (b'{"code":"auth_scope_changed"}', "scope"),
        (b'{"error":{"code":"key_reused"}}', "http_409"),
        (b"\xef\xbb\xbf" + b'{"code":"auth_scope_changed"}', "scope"),
        (b'{"message":"' + b"m" * 60_000 + b'","code":"auth_scope_changed"}', "scope"),
    ],
)
async def test_P4_a_409_with_the_providers_code_tells_the_scope_that_holds_now(body: bytes, code: str) -> None:
    async with serving(sends(whole(body, status="409 Conflict"))) as server:
        described = providers(server.url, auth_scope_changed_code="auth_scope_changed")
        caller = HttpCaller(described, environment={"KEY": SECRET})
        (outcome,) = (await caller.call(call_of())).outcomes
        await caller.close()
        provider = described.provider("raw")
        assert provider is not None
        assert isinstance(outcome, Refused)
        assert outcome.fault.code == (scope_changed(scope_of("raw", provider)) if code == "scope" else code)
        assert outcome.fault.repairable is (code == "scope")


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"auth_scope_changed", status="409 Conflict"),
        whole(b"", status="409 Conflict"),
        whole(b'{"m":"' + b"m" * 70_000 + b'","code":"auth_scope_changed"}', status="409 Conflict"),
        whole(zlib.compress(b'{"code":"auth_scope_changed"}'), "Content-Encoding: deflate", status="409 Conflict"),
    ],
    ids=["no JSON", "empty", "too long", "deflate"],
)
async def test_P4_a_409_that_cannot_be_read_is_asked_again_by_the_next_run(answer: bytes) -> None:
    """It ended the cell for good as http_409, though it may have said that the credentials belong to another account now."""
    for scope_code, repairable in (("auth_scope_changed", True), (None, False)):
        async with serving(sends(answer)) as server:
            caller = HttpCaller(providers(server.url, auth_scope_changed_code=scope_code), environment={"KEY": SECRET})
            (outcome,) = (await caller.call(call_of())).outcomes
            await caller.close()
        assert isinstance(outcome, Refused)
        assert (outcome.fault.code, outcome.fault.repairable) == ("http_409", repairable)
