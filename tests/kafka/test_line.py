"""The whole line with real parts: rows in, paid calls once, rows out."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

from streams.client import Client
from tests.support.system import System, people, play
from tests.support.wait import wait_until


async def test_rows_come_back_computed_and_each_was_paid_once(system: System) -> None:
    sandbox = system.start_sandbox()
    system.worker("w1")
    rows = people(300)
    async with Client(system.settings) as client:
        run = await client.submit(play("emails"), rows)
        end, samples = await system.finish(client, run)
        lines = [line async for line in client.rows(run)]
    assert end.type == "run.completed"
    assert end.counts is not None
    assert end.counts.completed == end.counts.total == 300
    assert samples[-1].counts.done == 300
    assert [line.position for line in lines] == list(range(300))
    assert all(line.row is not None and line.row.cells["check"].status == "completed" for line in lines)
    bill = sandbox.summary()
    assert (bill.billed_items, bill.billed_twice) == (300, 0)
    assert bill.calls < 60


PLAY = """
name = "contacts"
key = ["id"]

[[columns]]
name = "check"
tool = "sandbox.emails"
input = { email = "{{ row.email }}" }
"""


async def test_Y3_three_workers_share_the_partitions_and_a_csv_becomes_a_result(system: System, tmp_path: Path) -> None:
    """By the command line, as a user would: submit a file, follow it, export it."""
    sandbox = system.start_sandbox()
    workers = [system.worker(name) for name in ("w1", "w2", "w3")]

    def all_share() -> bool:
        return all(worker.partitions for worker in workers) and sum(worker.partitions for worker in workers) == 12

    await asyncio.to_thread(wait_until, "three workers own all partitions", all_share, seconds=60)
    # Partition n of every table is with one worker.
    assert {worker.partitions % 3 for worker in workers} == {0}
    play_file, rows_file, result_file = tmp_path / "play.toml", tmp_path / "rows.csv", tmp_path / "result.csv"
    rows = people(500)
    with await asyncio.to_thread(rows_file.open, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    await asyncio.to_thread(play_file.write_text, PLAY)
    told = await asyncio.to_thread(
        system.command, "run", "submit", str(play_file), "--rows", str(rows_file), "--run", "csv", "--watch", "--json"
    )
    summary = json.loads(told)
    assert (summary["run"], summary["status"], summary["exit_code"]) == ("csv", "completed", 0)
    assert summary["counts"]["completed"] == summary["counts"]["total"] == 500
    await asyncio.to_thread(system.command, "run", "export", "csv", "--to", str(result_file))
    with await asyncio.to_thread(result_file.open, newline="") as file:
        found = list(csv.DictReader(file))
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert all("valid" in " ".join(row.values()) for row in found)
    bill = sandbox.summary()
    assert (bill.billed_items, bill.billed_twice) == (500, 0)
    told = await asyncio.to_thread(system.command, "run", "receipts", "csv", "--json")
    pointers = [json.loads(line) for line in told.splitlines()]
    assert [pointer["position"] for pointer in pointers] == list(range(500))
    assert all(pointer["call"].startswith("csv:") and pointer["call"].endswith(":check") for pointer in pointers)
    assert len({pointer["receipt"] for pointer in pointers}) == 500
    assert all(worker.running for worker in workers)
