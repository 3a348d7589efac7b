"""Jobs on the real line (P10): a worker is killed between submission and result, and the bill shows one submission for each."""

from __future__ import annotations

import asyncio
import signal

from schemas.plays import Play
from streams.client import Client
from streams.sandbox.bill import read_bill
from streams.sandbox.settings import Settings
from tests.support.system import System

PROVIDERS = """
[providers.slow]
base_url = "{url}"
auth = {{ secret = "env:SANDBOX_KEY" }}
pace = {{ concurrency = 4 }}

# The sandbox ignores keys here, so that what is submitted twice is billed twice.
[providers.slow.tools.enrich]
path = "/v1/email/jobs"
repeat = "never"
result = "result.verdict"
job = {{ id = "job.id", poll_path = "/v1/email/jobs/{{job}}", interval_seconds = 0.1 }}
"""
ROWS = 4


async def test_P10_a_killed_worker_leaves_its_jobs_to_the_next_one_and_nothing_is_submitted_twice(system: System) -> None:
    sandbox = system.start_sandbox()
    sandbox.set_settings(Settings(job_ms=3_000))
    system.providers.write_text(PROVIDERS.format(url=sandbox.url))
    # Killed as soon as the last of the four jobs is in the log, while all of them are under way.
    worker = system.worker(kill_at="dispatcher:job_started", kill_after=ROWS - 1)
    play = Play.model_validate(
        {"name": "enriched", "key": ["id"], "columns": [{"name": "c", "tool": "slow.enrich", "input": {"email": "{{ row.id }}"}}]}
    )
    async with Client(system.settings) as client:
        run = await client.submit(play, [{"id": f"p{number}@example.com"} for number in range(ROWS)])
        code = await asyncio.to_thread(worker.wait, 60)
        assert code == -signal.SIGKILL, worker.text()
        submitted = sandbox.summary().calls
        worker.start()
        end, _ = await system.finish(client, run)
        cells = [line.row.cells["c"] async for line in client.rows(run) if line.row is not None]
    assert end.counts is not None
    assert (end.counts.completed, end.counts.unknown, end.counts.failed) == (ROWS, 0, 0)
    assert [cell.value for cell in cells] == ["valid"] * ROWS
    assert submitted == ROWS
    bill = read_bill(system.folder / "bill.csv")
    assert sorted(line.item for line in bill) == [f"p{number}@example.com" for number in range(ROWS)]
