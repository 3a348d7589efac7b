"""Unknown outcomes with real parts: a call that a kill made doubtful, and the ways in which it is settled (U2, U3, U5)."""

from __future__ import annotations

import json
from typing import Any

from schemas.events import AttemptEnded, Value
from schemas.progress import RowCell, RunEvent
from streams.calling.outbox import EventPublisher
from streams.client import Client
from streams.engine.cells import lane_partition
from streams.engine.compile import lane_of
from streams.sandbox import SandboxProcess
from tests.support.system import System, people, play
from tests.support.wait import until

ROWS = 3


async def cells(client: Client, run: str) -> list[RowCell | None]:
    """The cells of a run's only column, in input order."""
    return [None if line.row is None else line.row.cells["check"] async for line in client.rows(run)]


async def settled(client: Client, run: str, position: int, status: str) -> RowCell:
    """A cell, once it has a status."""
    found: list[RowCell] = []

    async def has() -> bool:
        cell = (await cells(client, run))[position]
        found[:] = [cell] if cell is not None else []
        return cell is not None and cell.status == status

    await until(f"row {position} of {run} is {status}", has)
    return found[0]


async def lost(system: System, client: Client, sandbox: SandboxProcess, run: str) -> RunEvent:
    """A run of the tool ``phone`` (never to be repeated) whose calls are billed while their worker is killed."""
    worker = system.worker().wait_ready()
    await client.submit(play("phone"), people(ROWS), run=run)
    await system.calls_under_way(ROWS)
    worker.kill()
    await until("the calls are billed", lambda: _billed(sandbox, ROWS))
    system.worker()
    end, _ = await system.finish(client, run)
    return end


async def _billed(sandbox: SandboxProcess, count: int) -> bool:
    return sandbox.summary().billed_items >= count


def receipts(system: System, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(system.command("receipt", "list", "--json", *arguments))
    return found


async def test_U2_U3_a_killed_call_is_unknown_and_a_person_settles_it(system: System) -> None:
    """One is resolved as paid, one as unpaid and is called once more by the next run, one is settled by its late answer."""
    sandbox = system.start_sandbox(latency_ms=3000)
    async with Client(system.settings) as client:
        end = await lost(system, client, sandbox, "first")
        assert end.counts is not None
        assert (end.type, end.code, end.counts.unknown, end.counts.completed) == ("run.completed", "unknown_outcomes", ROWS, 0)
        assert sandbox.summary().billed_items == ROWS
        system.command("run", "watch", "first", code=5)
        # A rerun does not call again.
        await client.submit(play("phone"), people(ROWS), run="again")
        again, _ = await system.finish(client, "again")
        assert again.counts is not None
        assert again.counts.unknown == ROWS
        assert sandbox.summary().billed_items == ROWS
        listed = receipts(system, "--state", "unknown")
        assert [line["state"] for line in listed] == ["unknown"] * ROWS
        assert all(0 <= line["age_seconds"] < 600 for line in listed)

        for arguments in ((), ("--json",)):
            system.command("receipt", "show", listed[0]["receipt"], *arguments, code=5)

        # As paid: the cell of both runs is completed, the ledger stays.
        value = json.dumps({"valid": True})
        said = ("cell", "resolve", "first", "0", "check", "--as", "paid", "--value", value, "--reason", "bill")
        key = system.command(*said).strip()
        cell = await settled(client, "again", 0, "cached")  # it asked when the outcome was there already: unknown
        assert (cell.value, cell.receipt) == ({"valid": True}, key)
        view = await client.run("first")
        assert view is not None
        assert view.counts is not None
        assert (view.status, view.counts.unknown) == ("completed", ROWS)
        refused = system.command("cell", "resolve", "first", "0", "check", "--as", "unpaid", code=2)
        assert refused == ""

        # As unpaid: nobody calls, until the next run asks.
        system.command("cell", "resolve", "again", "1", "check", "--as", "unpaid", "--who", "ann")
        assert (await settled(client, "again", 1, "failed")).code == "resolved_unpaid"
        assert sandbox.summary().billed_items == ROWS

        # A late answer, as a worker's journal would publish it, settles the third.
        (third,) = receipts(system, "--state", "unknown")
        lane = lane_of("default", "sandbox")
        publisher = EventPublisher(system.settings.connection(), system.settings.topic_prefix)
        await publisher.start()
        late = AttemptEnded(third["receipt"], third["n"], 0, "", Value(b'{"late":true}'))
        await publisher.publish("receipt-completions", lane_partition(lane, system.partitions), [late])
        await publisher.stop()
        assert (await settled(client, "again", 2, "cached")).value == {"late": True}
        assert receipts(system, "--state", "unknown") == []

        await client.submit(play("phone"), people(ROWS), run="last")
        last, _ = await system.finish(client, "last")
        assert last.counts is not None
        assert (last.counts.completed + last.counts.reused, last.counts.unknown) == (ROWS, 0)
        assert sandbox.summary().billed_items == ROWS + 1

        shown = json.loads(system.command("cell", "show", "again", "1", "check", "--json"))
        steps = [step["what"] for step in shown["steps"]]
        assert [what for what in steps if what in ("claimed", "expired", "resolved", "completed")] == [
            "claimed",
            "expired",
            "resolved",
            "claimed",
            "completed",
        ]
        assert "by ann" in next(step["details"] for step in shown["steps"] if step["what"] == "resolved")

        # Forgetting is refused while a run is open only; then the next run pays again.
        system.command("receipt", "show", key)
        system.command("receipt", "forget", key, "--reason", "wrong value")
        await client.submit(play("phone", name="other"), people(1), run="forgot")
        forgot, _ = await system.finish(client, "forgot")
        assert forgot.counts is not None
        assert forgot.counts.calls_live == 1
        assert sandbox.summary().billed_items == ROWS + 2
        state = json.loads(system.command("receipt", "show", key, "--json"))
        assert [attempt["n"] for attempt in state["attempts"]] == [1, 2]


async def test_U3_a_look_up_settles_what_a_kill_made_unknown(system: System) -> None:
    sandbox = system.start_sandbox(latency_ms=3000)
    text = system.providers.read_text()
    table = '[providers.sandbox.tools.phone]\npath = "/v1/phone/check"\n'
    assert table in text
    look_up = 'reconcile = { path = "/v1/operations/{key}", absent_means = "unpaid" }\n'
    system.providers.write_text(text.replace(table, table + look_up))
    async with Client(system.settings) as client:
        await lost(system, client, sandbox, "first")
        for position in range(ROWS):
            assert isinstance((await settled(client, "first", position, "completed")).value, dict)
        await client.submit(play("phone", name="other"), people(ROWS), run="again")
        again, _ = await system.finish(client, "again")
        assert again.counts is not None
        assert (again.counts.completed, again.counts.calls_cache) == (ROWS, ROWS)
        assert sandbox.summary().billed_items == ROWS
        shown = json.loads(system.command("cell", "show", "first", "0", "check", "--json"))
        assert any("by reconcile" in step["details"] for step in shown["steps"])
    assert "unknown_outcomes=" in system.workers["w1"].text()
