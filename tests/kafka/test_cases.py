"""Cases of faults that people reported elsewhere (``case_…``), and what users were promised, with real parts.

These tests share one system with one worker."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from schemas import address
from schemas.events import Retry
from schemas.plays import Play
from streams.broker import topics
from streams.client import Client
from streams.errors import InputError
from streams.sandbox import Fault, FaultKind, SandboxProcess
from tests.support.cases import Line, counts, only
from tests.support.evidence import read_evidence
from tests.support.scripted_http import ScriptedProvider
from tests.support.system import KEY, System, people, play
from tests.support.wait import until

#: One process runs all of these tests: they share what one fixture prepares.
pytestmark = pytest.mark.xdist_group("cases")


@pytest.fixture(scope="module")
def line(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    system = System(broker, tmp_path_factory.mktemp("line"))
    asyncio.run(topics.apply(system.settings.connection(), system.name, system.partitions, 1, f"{system.name}."))
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        late_port = reserved.getsockname()[1]
    with ScriptedProvider() as scripted:
        sandbox = system.start_sandbox(size=5, window=1000)
        system.add_provider("strict", sandbox.url, repeat="never", size=5, window=1000)
        system.add_provider("scripted", scripted.url, repeat="never", concurrency=4)
        system.add_provider("late", f"http://127.0.0.1:{late_port}")
        system.add_provider("late_strict", f"http://127.0.0.1:{late_port}", repeat="never")
        system.worker("w1").wait_ready()
        yield Line(system, sandbox, scripted, late_port)
        still_runs = system.workers["w1"].running
        system.end()
    assert still_runs, "the worker did not outlive the tests"


async def publish(
    system: System, topic: str, key: str, value: Any, *, partition: int | None = None, client_partitions: bool = False
) -> None:
    """Publish a message as any Kafka client can, with nothing of ours; by default on the key's home partition."""
    producer = AIOKafkaProducer(bootstrap_servers=system.settings.broker)
    await producer.start()
    try:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await producer.send_and_wait(f"{system.name}.{topic}", body, key=key.encode(), partition=partition)
    finally:
        await producer.stop()


# --- what may be paid for is not asked for again -----------------------------------------------------------------------


async def test_case_A2_a_lost_answer_of_a_tool_that_may_not_be_repeated_is_unknown_after_one_call(line: Line) -> None:
    line.sandbox.set_faults(
        Fault(kind=FaultKind.CLOSE_BEFORE_WORK, contains="a2closed"),
        Fault(kind=FaultKind.CLOSE_AFTER_WORK, contains="a2cut"),
        Fault(kind=FaultKind.ERROR_AFTER_WORK, contains="a2failed"),
    )
    before = line.sandbox.summary().requests
    rows = [row for tag in ("a2closed", "a2cut", "a2failed") for row in people(1, tag=tag)]
    async with line.client() as client:
        end = await line.ended(client, play("email", provider="strict", name="a2never"), rows)
        again = await line.ended(client, play("email", provider="strict", name="a2never"), rows)
    assert (end.type, end.code, counts(end)) == ("run.completed", "unknown_outcomes", only(3, unknown=3))
    assert counts(again) == only(3, unknown=3)
    assert line.sandbox.summary().requests - before == 3
    assert [len(line.billed(tag)) for tag in ("a2closed", "a2cut", "a2failed")] == [0, 1, 1]


async def test_case_A2_a_lost_answer_of_a_tool_that_honours_keys_is_asked_for_again_under_the_same_key(line: Line) -> None:
    tags = ("a2kclosed", "a2kcut", "a2kfailed")
    line.sandbox.set_faults(
        Fault(kind=FaultKind.CLOSE_BEFORE_WORK, contains=tags[0], next=1),
        Fault(kind=FaultKind.CLOSE_AFTER_WORK, contains=tags[1], next=1),
        Fault(kind=FaultKind.ERROR_AFTER_WORK, contains=tags[2], next=1),
    )
    before = line.sandbox.summary()
    rows = [row for tag in tags for row in people(1, tag=tag)]
    async with line.client() as client:
        run = await client.submit(play("email", name="a2keyed"), rows)
        end, _ = await line.system.finish(client, run)
        receipts = [row.row.cells["check"].receipt async for row in client.rows(run) if row.row is not None]
    after = line.sandbox.summary()
    assert counts(end) == only(3, completed=3)
    assert after.requests - before.requests == 6
    # The provider knew the keys of the two whose work was done, and did nothing again.
    assert after.replayed_responses - before.replayed_responses == 2
    billed = [line.billed(tag) for tag in tags]
    assert [len(lines) for lines in billed] == [1, 1, 1]
    keys = [address.provider_key(receipt, 0, 1) for receipt in receipts if receipt is not None]
    assert [lines[0].idempotency_key for lines in billed] == keys


async def test_case_A2_R6_U4_a_refused_connection_is_tried_again_whatever_the_tool_allows(line: Line, tmp_path: Path) -> None:
    async with line.client() as client:
        runs = [
            await client.submit(play("email", provider=provider, name=provider), people(1, tag=f"a2{provider}"))
            for provider in ("late", "late_strict")
        ]

        async def both_were_refused() -> bool:
            ends = [end for _, end in (await read_evidence(line.system.settings)).ends]
            refused = [end for end in ends if isinstance(end.outcome, Retry) and end.outcome.fault.code == "unreachable"]
            return len({end.receipt for end in refused}) == 2

        await until("both calls were refused a connection", both_were_refused)
        with SandboxProcess(api_key=KEY, bill=tmp_path / "late.csv", port=line.late_port) as late:
            ends = [(await line.system.finish(client, run))[0] for run in runs]
            bill = late.summary()
    assert [counts(end) for end in ends] == [only(1, completed=1)] * 2
    assert (bill.requests, bill.billed_items) == (2, 2)


@pytest.mark.parametrize("status", [200, 207])
async def test_case_F5_members_of_a_batch_end_each_by_itself(line: Line, status: int) -> None:
    tag = f"f5s{status}n"
    line.sandbox.set_faults(
        Fault(kind=FaultKind.ITEM_ERROR, contains=f"{tag}1@", next=1, status=status),
        Fault(kind=FaultKind.ITEM_ERROR, contains=f"{tag}3@", status=status, retryable=False, code="no_such_thing"),
    )
    before = line.sandbox.summary()
    async with line.client() as client:
        run = await client.submit(play("emails", name=tag), people(5, tag=tag))
        end, _ = await line.system.finish(client, run)
        states = [row.row.status async for row in client.rows(run) if row.row is not None]
    assert (end.code, counts(end)) == ("partial_failures", only(5, completed=4, failed=1))
    assert states == ["completed", "completed", "completed", "failed", "completed"]
    assert [(sample.position, sample.column) for sample in end.failed_samples] == [(3, "check")]
    assert line.sandbox.summary().requests - before.requests == 2
    billed = line.billed(tag)
    assert sorted((found.item.partition("@")[0], found.batch_size) for found in billed) == [
        (f"{tag}0", 5),
        (f"{tag}1", 1),
        (f"{tag}2", 5),
        (f"{tag}4", 5),
    ]


async def test_case_F5_a_whole_batch_that_fails_is_unknown_member_by_member_and_not_resent(line: Line) -> None:
    line.sandbox.set_faults(Fault(kind=FaultKind.ERROR_BEFORE_WORK, status=500, contains="f5whole"))
    before = line.sandbox.summary().requests
    async with line.client() as client:
        end = await line.ended(client, play("phones", name="f5whole"), people(5, tag="f5whole"))
    assert (end.code, counts(end)) == ("unknown_outcomes", only(5, unknown=5))
    assert line.sandbox.summary().requests - before == 1


# --- numbers -----------------------------------------------------------------------------------------------------------


NUMBERS = (
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
    "19933688932870350000",
    "-9223372036854775809",
    "0.30000000000000004",
    "null",
)
NUMBERED = Play.model_validate(
    {
        "name": "numbers",
        "key": ["id"],
        "columns": [{"name": "n", "tool": "scripted.email", "input": {"value": "{{ row.value }}"}}],
    }
)


async def test_case_D3_numbers_reach_the_provider_digit_for_digit_each_with_a_key_of_its_own(line: Line) -> None:
    rows = [{"id": str(place), "value": json.loads(text)} for place, text in enumerate(NUMBERS)]
    before = len(line.scripted.requests)
    async with line.client() as client:
        end = await line.ended(client, NUMBERED, [*rows, {"id": "minus zero", "value": -0.0}])
    asked = line.scripted.requests[before:]
    assert counts(end) == only(len(NUMBERS) + 1, completed=len(NUMBERS) + 1)
    bodies = {request.body.decode().replace(" ", "") for request in asked}
    assert {f'{{"value":{text}}}' for text in NUMBERS} <= bodies
    assert len({request.key for request in asked}) == len(asked) == len(bodies) == len(NUMBERS) + 1


@pytest.mark.parametrize("value", [10**5000, float("nan"), float("inf"), float("-inf")], ids=["10**5000", "nan", "inf", "-inf"])
async def test_case_D3_what_json_cannot_carry_is_refused_by_the_client_with_row_and_column(line: Line, value: object) -> None:
    async with line.client() as client:
        with pytest.raises(InputError, match=r"row 1 \(the first is 0\), value"):
            await client.submit(NUMBERED, [{"id": "0", "value": 1}, {"id": "1", "value": value}])


@pytest.mark.parametrize("text", ["1" + 5000 * "0", "NaN", "Infinity", "-Infinity"], ids=["10**5000", "nan", "inf", "-inf"])
async def test_case_D3_what_json_cannot_carry_is_refused_by_the_worker_which_stays_up(line: Line, text: str) -> None:
    run = f"d3-{abs(hash(text)) % 10**9}-{time.time_ns()}"
    body = json.dumps({"type": "run_requested", "run": run, "play": NUMBERED.model_dump(mode="json"), "rows": "ROWS"})
    rows = f'[{{"id":"0","value":1}},{{"id":"1","value":{text}}}]'
    before = len(line.scripted.requests)
    await publish(line.system, "run-requests", run, body.replace('"ROWS"', rows).encode())
    async with line.client() as client:
        end, _ = await line.system.finish(client, run)
    assert end.type == "run.refused"
    assert re.search(r"row 1\b|rows\.1\b|rows\[1\]", " ".join(end.faults)), end.faults
    assert "value" in " ".join(end.faults)
    assert len(line.scripted.requests) == before


# --- requests ----------------------------------------------------------------------------------------------------------


async def test_M1_an_invalid_request_is_refused_with_every_fault_and_nothing_is_half_started(line: Line) -> None:
    columns = [
        {"name": "a", "tool": "sandbox.mail", "input": {"email": "{{ row.email }}"}},
        {"name": "b", "tool": "nobody.email", "input": {"email": "{{ row.email }}"}},
        {"name": "c", "tool": "sandbox.email", "input": {"email": "{{ row.email"}},
    ]
    request = {"type": "run_requested", "play": {"name": "bad", "key": ["id"], "columns": columns}, "rows": people(2)}
    before = await line.system.ends()
    async with line.client() as client:
        run = f"refused-{time.time_ns()}"
        await publish(line.system, "run-requests", run, {**request, "run": run})
        refused, _ = await line.system.finish(client, run)
        other = f"refused-{time.time_ns()}"
        await publish(line.system, "run-requests", other, {**request, "run": other, "play": {"name": "!"}, "row": 1})
        malformed, _ = await line.system.finish(client, other)
    assert (refused.type, refused.code) == ("run.refused", "invalid_request")
    for place, name in (("columns.0", "sandbox.mail"), ("columns.1", "nobody.email"), ("columns.2", "row.email")):
        assert any(place in fault and name in fault for fault in refused.faults), refused.faults
    assert malformed.type == "run.refused"
    for place in ("play.name", "play.columns", "row"):
        assert any(fault.startswith(f"{place}: ") for fault in malformed.faults), malformed.faults
    after = await line.system.ends()
    grown = {topic for topic in after if after[topic] != before[topic]}
    assert grown <= {"run-requests", "run-events", "lease-heartbeats"}


@pytest.mark.parametrize("partition", ["the client's own", "another"])
async def test_V1_a_plain_producer_starts_a_run_whatever_partition_it_chose(line: Line, partition: str) -> None:
    run = f"plain-{time.time_ns()}"
    home = address.partition_of(run, line.system.partitions)
    chosen = None if partition == "the client's own" else (home + 1) % line.system.partitions
    request = {
        "type": "run_requested",
        "run": run,
        "play": {
            "name": "plain",
            "dataset": run,
            "key": ["id"],
            "columns": [{"name": "check", "tool": "sandbox.emails", "input": {"email": "{{ row.email }}"}}],
        },
        "rows": people(5, tag="plain"),
    }
    await publish(line.system, "run-requests", run, request, partition=chosen)
    async with line.client() as client:
        end, samples = await line.system.finish(client, run)
        ledger = await line.system.ledger(client, run)
    assert counts(end) == only(5, completed=5)
    assert samples[-1].counts.done == 5
    assert [event.type for event in ledger] == ["run.started", "run.completed"]


async def test_case_I4_a_run_id_means_one_run(broker: str, tmp_path: Path) -> None:
    """The same request twice, another one under its id, a restart in mid-run, and the same again when all is over."""
    async with System(broker, tmp_path / "system", partitions=2) as system:
        sandbox = system.start_sandbox(repeat="with-key", concurrency=2, size=5, latency_ms=150)
        worker = system.worker("w1")
        rows, other = people(60), people(61, tag="other")
        async with Client(system.settings) as client:
            run = await client.submit(play("emails"), rows, run="X")
            await client.submit(play("emails"), rows, run="X")
            await client.submit(play("emails"), other, run="X")
            await system.ledger(client, run, until="run.rejected")
            assert sandbox.summary().billed_items < 60
            worker.kill()
            system.worker("w1")
            end, samples = await system.finish(client, run)
            await client.submit(play("emails"), rows, run="X")
            await client.submit(play("emails"), people(3, tag="after"), run="after")
            await system.finish(client, "after")
            ledger = await system.ledger(client, run)
            lines = [line async for line in client.rows(run)]
            bill = sandbox.summary()
    assert counts(end) == only(60, completed=60)
    assert {sample.counts.total for sample in samples} == {60}
    assert [event.type for event in ledger] == ["run.started", "run.rejected", "run.completed"]
    assert ledger[1].code == "run_id_in_use"
    assert [line.fields for line in lines] == rows
    assert (bill.billed_items, bill.billed_twice) == (63, 0)


# --- rows --------------------------------------------------------------------------------------------------------------


async def test_M2_a_second_run_of_a_dataset_reuses_what_stands(line: Line) -> None:
    line.sandbox.set_faults()
    asked, rows = play("emails", name="stands"), people(10, tag="stands")
    async with line.client() as client:
        first = await line.ended(client, asked, rows)
        before = line.sandbox.summary().requests
        second = await line.ended(client, asked, [*rows, *people(1, tag="more")])
    assert counts(first) == only(10, completed=10)
    assert counts(second) == only(11, reused=10, completed=1)
    assert line.sandbox.summary().requests - before == 1
    assert len(line.billed("stands")) == 10


async def test_M5_lines_with_the_same_row_key_are_computed_once_and_counted(line: Line) -> None:
    line.sandbox.set_faults()
    rows = [people(5, tag="twice")[number % 5] for number in range(10)]
    async with line.client() as client:
        run = await client.submit(play("emails", name="twice"), rows)
        end, _ = await line.system.finish(client, run)
        lines = [found async for found in client.rows(run)]
    assert counts(end) == only(10, completed=5, duplicate=5)
    assert [found.fields["id"] for found in lines] == [row["id"] for row in rows]
    assert all(found.row is not None and found.row.status == "completed" for found in lines)
    assert len(line.billed("twice")) == 5


async def test_M6_a_failed_row_stops_no_other(line: Line) -> None:
    line.sandbox.set_faults(Fault(kind=FaultKind.ERROR_BEFORE_WORK, status=422, contains="fails1@"))
    rows = people(4, tag="fails")
    del rows[2]["email"]
    async with line.client() as client:
        end = await line.ended(client, play("email", name="fails"), rows)
    assert (end.type, end.code, counts(end)) == ("run.completed", "partial_failures", only(4, completed=2, failed=2))
    assert [(sample.position, sample.column) for sample in end.failed_samples] == [(1, "check"), (2, "check")]
    assert "email" in end.failed_samples[1].message


async def test_M15_a_cancelled_run_makes_no_new_call_and_what_is_under_way_settles_its_receipts(line: Line) -> None:
    rows, asked = people(12, tag="cancel"), play("email", provider="scripted", name="cancel")
    before = len(line.scripted.requests)
    line.scripted.hold()
    try:
        async with line.client() as client:
            run = await client.submit(asked, rows)

            async def four_calls() -> bool:
                return len(line.scripted.requests) - before == 4

            await until("four calls are under way", four_calls)
            await client.cancel(run)
            await client.cancel(run)
            end, samples = await line.system.finish(client, run)
            line.scripted.let_go()
            paid = {request.body for request in line.scripted.requests[before:]}

            async def all_have_ended() -> bool:
                evidence = await read_evidence(line.system.settings)
                ended = [end for _, end in evidence.ends if end.lease in leases_of(evidence)]
                return len(ended) >= 4

            def leases_of(evidence: Any) -> set[str]:
                return {attempt.lease for numbered in evidence.attempts.values() for attempt in numbered.values()}

            await until("the calls under way have ended", all_have_ended)
            assert len(line.scripted.requests) - before == 4
            again = await line.ended(client, asked, rows)
            ledger = await line.system.ledger(client, run)
    finally:
        line.scripted.let_go()
    assert (end.type, counts(end)) == ("run.cancelled", only(12, skipped=12))
    assert samples[-1].counts.done == 12
    assert [event.type for event in ledger] == ["run.started", "run.cancelled"]
    assert counts(again) == only(12, completed=12)
    requests = line.scripted.requests[before:]
    assert len(requests) == len({request.body for request in requests}) == 12
    assert len(paid) == 4
