"""The sandbox provider over real HTTP: its answers, its keys, its bill.

The bill is the judge of every other test of "paid once", so here the judge is judged.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from streams.sandbox import SandboxProcess
from streams.sandbox.bill import read_bill
from tests.support.sandbox import (
    EMAIL,
    EMAILS,
    PHONE,
    PHONES,
    batch_of,
    client_of,
    open_sandbox,
    with_key,
)
from tests.support.wait import until

# --- the work ---


@pytest.mark.asyncio
async def test_an_email_is_checked() -> None:
    async with open_sandbox() as (_, client):
        good = await client.post(EMAIL, json={"email": "Ada@Example.COM"})
        bad = await client.post(EMAIL, json={"email": "ada@@example.com"})
    assert good.status_code == bad.status_code == 200
    assert good.json() == {
        "email": "Ada@Example.COM",
        "verdict": "valid",
        "normalized": "Ada@example.com",
        "domain": "example.com",
        "reason": None,
    }
    assert bad.json()["verdict"] == "invalid"
    assert bad.json()["normalized"] is None
    assert "@" in bad.json()["reason"]


@pytest.mark.asyncio
async def test_a_batch_answers_each_item_under_its_own_id_whatever_json_that_is() -> None:
    ids = [7, "seven", {"row": [1, None]}, None]
    async with open_sandbox() as (sandbox, client):
        body = {"items": [{"id": one, "email": f"a{place}@example.com"} for place, one in enumerate(ids)]}
        answer = await client.post(EMAILS, json=body)
    results = answer.json()["results"]
    assert [result["id"] for result in results] == ids
    assert [result["email"] for result in results] == [f"a{place}@example.com" for place in range(4)]
    assert [line.item_id for line in sandbox.bill()] == ["7", '"seven"', '{"row":[1,null]}', "null"]


@pytest.mark.asyncio
async def test_a_phone_number_is_checked_singly_and_in_a_batch() -> None:
    async with open_sandbox() as (_, client):
        good = await client.post(PHONE, json={"phone": "020 7946 0018", "country": "GB"})
        batch = await client.post(
            PHONES,
            json={"items": [{"id": 1, "phone": "12", "country": "GB"}, {"id": 2, "phone": "+442079460018"}]},
        )
    assert good.json() == {
        "phone": "020 7946 0018",
        "country": "GB",
        "valid": True,
        "e164": "+442079460018",
        "region": "GB",
        "type": "fixed_line",
        "reason": None,
    }
    assert [result["valid"] for result in batch.json()["results"]] == [False, True]


@pytest.mark.asyncio
async def test_text_that_is_no_unicode_cannot_harm_the_bill() -> None:
    async with open_sandbox() as (sandbox, client):
        assert (await client.post(EMAIL, content=b'{"email": "\\ud800@b.com"}')).status_code == 422
        odd = {b"Idempotency-Key": b"\xff\xfe"}
        assert (await client.post(EMAIL, json={"email": "a@b.com"}, headers=odd)).status_code == 200
        assert (await client.get("/admin/bill")).json()["item"] == "a@b.com"
    assert sandbox.summary().billed_items == 1


# --- refusals ---


@pytest.mark.asyncio
@pytest.mark.parametrize("headers", [{"Authorization": ""}, {"Authorization": "Bearer wrong"}])
async def test_without_the_key_nothing_is_done(headers: dict[str, str]) -> None:
    async with open_sandbox() as (sandbox, client):
        answer = await client.post(EMAIL, json={"email": "a@example.com"}, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"
    assert sandbox.summary().billed_items == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (EMAIL, b""),
        (EMAIL, b"{"),
        (EMAIL, b'{"email": null}'),
        (EMAIL, b'{"email": "\xff"}'),
        (EMAILS, b'{"items": []}'),
        (EMAILS, b'{"items": [{"email": "no id"}]}'),
        (EMAILS, b'{"items": [{"id": 1}]}'),
        (PHONE, b'{"country": "GB"}'),
        (PHONES, b"[]"),
    ],
)
async def test_a_malformed_body_is_refused_and_not_billed(path: str, body: bytes) -> None:
    async with open_sandbox() as (sandbox, client):
        answer = await client.post(path, content=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "malformed"
    assert sandbox.summary().calls == 0


@pytest.mark.asyncio
async def test_a_batch_may_have_a_hundred_items_and_no_more() -> None:
    async with open_sandbox() as (sandbox, client):
        hundred = await client.post(EMAILS, json=batch_of(*["a@example.com"] * 100))
        more = await client.post(EMAILS, json=batch_of(*["a@example.com"] * 101))
        huge = await client.post(EMAILS, content=b" " * 2_000_000)
    assert [hundred.status_code, more.status_code, huge.status_code] == [200, 413, 413]
    assert sandbox.summary().billed_items == 100


@pytest.mark.asyncio
async def test_other_paths_and_methods_are_refused() -> None:
    async with open_sandbox() as (_, client):
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.get(EMAIL)).status_code == 405


@pytest.mark.asyncio
async def test_over_the_rate_the_answer_is_429_with_retry_after_and_no_bill() -> None:
    async with open_sandbox(rate=0.1, burst=2) as (sandbox, client):
        answers = [await client.post(EMAIL, json={"email": "a@example.com"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2].headers["Retry-After"]) <= 10
        assert answers[2].json()["error"]["code"] == "rate_limited"
        await client.post("/admin/settings", json={"rate": 0})
        assert (await client.post(EMAIL, json={"email": "a@example.com"})).status_code == 200
    summary = sandbox.summary()
    assert (summary.requests, summary.billed_items, summary.rejected_429) == (4, 3, 1)


# --- idempotency keys ---


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "body"), [(EMAIL, {"email": "a@example.com"}), (EMAILS, batch_of("a@b.com", "c"))])
async def test_the_same_key_gets_the_same_answer_and_is_billed_once(path: str, body: dict[str, Any]) -> None:
    async with open_sandbox() as (sandbox, client):
        first = await client.post(path, json=body, headers=with_key("k1"))
        again = await client.post(path, json=body, headers=with_key("k1"))
    assert first.content == again.content
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    summary = sandbox.summary()
    assert (summary.calls, summary.replayed_responses, summary.billed_twice) == (1, 1, 0)


@pytest.mark.asyncio
async def test_a_key_used_with_another_body_is_a_conflict() -> None:
    async with open_sandbox() as (sandbox, client):
        await client.post(EMAIL, json={"email": "a@example.com"}, headers=with_key("k1"))
        other = await client.post(EMAIL, json={"email": "b@example.com"}, headers=with_key("k1"))
        elsewhere = await client.post(EMAILS, json=batch_of("a@example.com"), headers=with_key("k1"))
    assert other.status_code == elsewhere.status_code == 409
    assert other.json()["error"]["code"] == "key_reused"
    assert sandbox.summary().billed_items == 1


@pytest.mark.asyncio
async def test_the_same_key_during_the_first_request_waits_for_its_answer() -> None:
    async with open_sandbox(latency_ms=300) as (sandbox, client):
        body, started = {"email": "a@example.com"}, time.monotonic()
        answers = await asyncio.gather(*(client.post(EMAIL, json=body, headers=with_key("k1")) for _ in range(3)))
        assert time.monotonic() - started >= 0.3
    assert len({answer.content for answer in answers}) == 1
    summary = sandbox.summary()
    assert (summary.billed_items, summary.replayed_responses, summary.in_flight_max) == (1, 2, 3)


@pytest.mark.asyncio
async def test_the_phone_endpoints_ignore_keys_and_bill_every_call() -> None:
    async with open_sandbox() as (sandbox, client):
        for _ in range(2):
            await client.post(PHONE, json={"phone": "020 7946 0018", "country": "GB"}, headers=with_key("k1"))
        await client.post(PHONE, json={"phone": "020 7946 0099", "country": "GB"}, headers=with_key("k1"))
    summary = sandbox.summary()
    assert (summary.billed_items, summary.distinct_items, summary.billed_twice) == (3, 2, 1)
    assert summary.billed_twice_examples == ["phone: 020 7946 0018|GB"]
    assert summary.replayed_responses == 0


# --- the bill ---


@pytest.mark.asyncio
async def test_the_bill_names_every_item_in_memory_and_in_the_file(tmp_path: Path) -> None:
    async with open_sandbox(bill=tmp_path / "bill.csv") as (sandbox, client):
        await client.post(EMAILS, json=batch_of('we,ird"@x\n', "b@example.com"), headers=with_key("k1", "r1"))
        await client.post(PHONE, json={"phone": "12", "country": "GB"})
        served = (await client.get("/admin/bill")).text.splitlines()
        assert (await client.get("/admin/bill/summary")).json()["billed_items"] == 3
    lines = sandbox.bill()
    assert [(line.sequence, line.call, line.item, line.batch_size) for line in lines] == [
        (1, 1, 'we,ird"@x\n', 2),
        (2, 1, "b@example.com", 2),
        (3, 2, "12|GB", 1),
    ]
    assert (lines[1].endpoint, lines[1].idempotency_key, lines[1].request_id) == (EMAILS, "k1", "r1")
    assert lines[0].time_ns <= lines[2].time_ns <= time.time_ns()
    assert read_bill(tmp_path / "bill.csv") == lines
    assert len(served) == 3
    assert httpx.Response(200, text=served[1]).json()["item_id"] == 1
    assert httpx.Response(200, text=served[2]).json()["item_id"] is None


@pytest.mark.asyncio
async def test_one_item_asked_for_singly_and_in_a_batch_is_billed_twice() -> None:
    async with open_sandbox() as (sandbox, client):
        await client.post(EMAIL, json={"email": "a@example.com"})
        await client.post(EMAILS, json=batch_of("a@example.com", "b@example.com"))
    assert sandbox.summary().billed_twice_examples == ["email: a@example.com"]


@pytest.mark.asyncio
async def test_who_leaves_before_the_answer_has_been_billed() -> None:
    async with open_sandbox(latency_ms=60_000) as (sandbox, client):

        async def is_billed() -> bool:
            return sandbox.summary().billed_items == 1

        async def is_idle() -> bool:
            return sandbox.summary().in_flight == 0

        asking = asyncio.create_task(client.post(EMAIL, json={"email": "a@example.com"}))
        await until("the work is billed", is_billed)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])
        await until("the sandbox has noticed", is_idle)
    assert sandbox.summary().billed_items == 1


def test_the_bill_survives_a_sigkill_and_goes_on_after_it(tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    process = SandboxProcess(api_key="secret", bill=bill).start()
    with client_of(process) as client:
        client.post(EMAILS, json=batch_of("a@example.com", "b@example.com")).raise_for_status()
        process.kill()
        with pytest.raises(httpx.TransportError):
            client.post(EMAIL, json={"email": "c@example.com"})
    assert [line.item for line in read_bill(bill)] == ["a@example.com", "b@example.com"]
    with bill.open("ab") as file:
        file.write(b"3,2,17000")
    with SandboxProcess(api_key="secret", bill=bill) as process, client_of(process) as client:
        client.post(EMAIL, json={"email": "a@example.com"}).raise_for_status()
        summary = process.summary()
    assert (summary.calls, summary.billed_items, summary.billed_twice) == (2, 3, 1)
    assert [line.sequence for line in read_bill(bill)] == [1, 2, 3]
