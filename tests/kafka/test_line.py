"""The whole line with real parts: rows in, paid calls once, rows out."""

from __future__ import annotations

from streams.client import Client
from tests.support.system import System, people, play


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
