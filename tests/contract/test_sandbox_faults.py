"""The sandbox when things go wrong: its faults over real HTTP, and its life as a process."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from streams.sandbox import Fault, FaultKind, SandboxFailed, SandboxProcess
from streams.sandbox.bill import read_bill
from tests.support.sandbox import (
    EMAIL,
    EMAILS,
    PHONE,
    TLS,
    batch_of,
    client_of,
    open_sandbox,
    with_key,
)
from tests.support.wait import until

# --- faults ---


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "billed"), [(FaultKind.CLOSE_BEFORE_WORK, 0), (FaultKind.CLOSE_AFTER_WORK, 1)])
async def test_a_closed_socket_says_nothing_about_the_bill(kind: FaultKind, billed: int) -> None:
    async with open_sandbox(faults=[Fault(kind=kind, next=1)]) as (sandbox, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(EMAIL, json={"email": "a@example.com"}, headers=with_key("k1"))
        assert sandbox.summary().billed_items == billed
        again = await client.post(EMAIL, json={"email": "a@example.com"}, headers=with_key("k1"))
    assert again.json()["verdict"] == "valid"
    assert sandbox.summary().billed_items == 1
    assert sandbox.summary().replayed_responses == billed
    assert sandbox.bill()[0].status == ("close_after_work" if billed else "200")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "status", "billed"),
    [(FaultKind.ERROR_BEFORE_WORK, 503, 0), (FaultKind.ERROR_AFTER_WORK, 500, 1)],
)
async def test_an_error_comes_before_the_work_or_after_it(kind: FaultKind, status: int, billed: int) -> None:
    async with open_sandbox(faults=[Fault(kind=kind, next=1)]) as (sandbox, client):
        answer = await client.post(EMAIL, json={"email": "a@example.com"})
        after = await client.post(EMAIL, json={"email": "b@example.com"})
    assert (answer.status_code, after.status_code) == (status, 200)
    assert "error" in answer.json()
    assert sandbox.summary().billed_items == billed + 1


@pytest.mark.asyncio
async def test_a_hanging_request_is_billed_and_its_key_gets_the_answer() -> None:
    async with open_sandbox(faults=[Fault(kind=FaultKind.HANG, next=1)]) as (sandbox, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.post(EMAIL, json={"email": "a@b.com"}, headers=with_key("k1"), timeout=0.2)
        assert sandbox.bill()[0].status == "hang"
        again = await client.post(EMAIL, json={"email": "a@b.com"}, headers=with_key("k1"))
    assert again.json()["verdict"] == "valid"
    assert sandbox.summary().billed_items == 1


@pytest.mark.asyncio
async def test_an_answer_may_be_html_or_cut_off_though_the_status_is_200() -> None:
    faults = [Fault(kind=FaultKind.HTML, next=1), Fault(kind=FaultKind.TRUNCATED, next=1)]
    async with open_sandbox(faults=faults) as (sandbox, client):
        html = await client.post(EMAIL, json={"email": "a@example.com"})
        truncated = await client.post(EMAIL, json={"email": "b@example.com"})
    assert (html.status_code, html.headers["Content-Type"].split(";")[0]) == (200, "text/html")
    assert (truncated.status_code, truncated.text[:10]) == (200, '{"email":"')
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        truncated.json()
    assert sandbox.summary().billed_items == 2


@pytest.mark.asyncio
async def test_an_answer_may_drip() -> None:
    faults = [Fault(kind=FaultKind.DRIP, contains="slow", seconds=0.05)]
    async with open_sandbox(faults=faults) as (sandbox, client):
        async with client.stream("POST", EMAIL, json={"email": "slow@example.com"}) as answer:
            chunks = answer.aiter_raw()
            assert [await anext(chunks) for _ in range(3)] == [b"{", b'"', b"e"]
        assert (await client.post(EMAIL, json={"email": "a@example.com"})).json()["verdict"] == "valid"
    assert [line.status for line in sandbox.bill()] == ["drip", "200"]


@pytest.mark.asyncio
async def test_items_of_a_batch_may_fail_and_are_not_billed() -> None:
    fault = Fault(kind=FaultKind.ITEM_ERROR, contains="bad", code="no_mx", retryable=False, status=207)
    async with open_sandbox(faults=[fault]) as (sandbox, client):
        answer = await client.post(EMAILS, json=batch_of("a@example.com", "bad@example.com"), headers=with_key("k"))
        again = await client.post(EMAILS, json=batch_of("a@example.com", "bad@example.com"), headers=with_key("k"))
    assert answer.status_code == again.status_code == 207
    assert answer.json()["results"][1] == {"id": 1, "error": {"code": "no_mx", "retryable": False}}
    assert answer.content == again.content
    assert [line.item for line in sandbox.bill()] == ["a@example.com"]


@pytest.mark.asyncio
async def test_under_the_same_key_only_items_that_failed_for_now_are_tried_again() -> None:
    fault = Fault(kind=FaultKind.ITEM_ERROR, contains="busy", next=1)
    async with open_sandbox(faults=[fault]) as (sandbox, client):
        first = await client.post(EMAILS, json=batch_of("a@b.com", "busy@b.com"), headers=with_key("k1"))
        again = await client.post(EMAILS, json=batch_of("a@b.com", "busy@b.com"), headers=with_key("k1"))
    assert first.json()["results"][1]["error"] == {"code": "unavailable", "retryable": True}
    assert [result["verdict"] for result in again.json()["results"]] == ["valid", "valid"]
    assert [(line.call, line.item) for line in sandbox.bill()] == [(1, "a@b.com"), (2, "busy@b.com")]


@pytest.mark.asyncio
async def test_faults_and_settings_change_at_run_time_and_reset_forgets_all(tmp_path: Path) -> None:
    async with open_sandbox(bill=tmp_path / "bill.csv") as (sandbox, client):
        assert (await client.get("/health")).json()["status"] == "ok"
        faults = {"faults": [{"kind": "error_before_work", "endpoint": "phone", "status": 502}]}
        assert (await client.post("/admin/faults", json=faults)).status_code == 200
        assert (await client.post(PHONE, json={"phone": "12"})).status_code == 502
        assert (await client.post(EMAIL, json={"email": "a@b.com"}, headers=with_key("k1"))).status_code == 200
        assert (await client.post("/admin/settings", json={"latency_ms": 5})).json()["latency_ms"] == 5
        for path, wrong in [("faults", {"faults": [{"kind": "gremlin"}]}), ("settings", {"speed": 1})]:
            assert (await client.post(f"/admin/{path}", json=wrong)).status_code == 422
        await client.post("/admin/reset")
        assert (await client.get("/admin/faults")).json() == {"faults": []}
        assert (await client.get("/admin/settings")).json() == {"latency_ms": 0, "rate": 0, "burst": 0, "job_ms": 0}
        assert sandbox.summary().requests == sandbox.summary().billed_items == 0
        assert read_bill(tmp_path / "bill.csv") == []
        await client.post(EMAIL, json={"email": "b@b.com"}, headers=with_key("k1"))
    assert [(line.sequence, line.item) for line in read_bill(tmp_path / "bill.csv")] == [(1, "b@b.com")]


# --- the process ---


def orphan(bill: Path) -> str:
    """Starts a sandbox from a process that then dies by SIGKILL; answers the sandbox's address."""
    script = (
        "import os, sys; from streams.sandbox import SandboxProcess\n"
        "print(SandboxProcess(api_key='k', bill=sys.argv[1]).start().url, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", script, str(bill)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


@pytest.mark.asyncio
async def test_the_process_ends_when_the_one_it_works_for_has_gone(tmp_path: Path) -> None:
    """Whoever started it may have been killed, and a sandbox left behind would keep its port and its file."""
    url = await asyncio.to_thread(orphan, tmp_path / "bill.csv")
    assert url.startswith("http://127.0.0.1:")

    async def is_gone() -> bool:
        try:
            async with httpx.AsyncClient(verify=TLS) as client:
                await client.get(f"{url}/health")
        except httpx.TransportError:
            return True
        return False

    await until("nothing listens any more", is_gone)


def test_a_process_takes_its_faults_from_the_command_line_and_stops_when_told(tmp_path: Path) -> None:
    faults = [Fault(kind=FaultKind.ERROR_BEFORE_WORK, contains="x@")]
    process = SandboxProcess(api_key="secret", bill=tmp_path / "bill.csv", faults=faults)
    with process, client_of(process) as client:
        assert client.get("/health").json()["pid"] == process.pid
        assert client.post(EMAIL, json={"email": "x@example.com"}).status_code == 503
        process.set_faults(Fault(kind=FaultKind.ERROR_AFTER_WORK))
        assert client.post(EMAIL, json={"email": "x@example.com"}).status_code == 500
        assert process.running
    assert not process.running


def test_a_process_that_cannot_start_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SandboxFailed, match="exit code"):
        SandboxProcess(api_key="secret", bill=tmp_path / "bill.csv", port=-1).start()
    command = [sys.executable, "-m", "streams.sandbox", "--api-key=k", "--bill=b", "--fault=gremlin=1"]
    assert subprocess.run(command, check=False).returncode == 2
    assert "close_after_work" in capfd.readouterr().err
