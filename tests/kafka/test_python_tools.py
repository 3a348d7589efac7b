"""Tools in Python on the real line: the same promises as over HTTP, and the cells that getters make of their results."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.plays import Play
from streams.client import Client
from tests.support.python_tools import bill
from tests.support.system import System

PROVIDERS = """
[providers.acme]
kind = "python"
account = "test"
secrets = {{ bill = "file:{reference}" }}

[providers.acme.tools.check]
entry_point = "tests.support.python_tools:check"

[providers.acme.tools.checks]
entry_point = "tests.support.python_tools:check"
batch = {{ entry_point = "tests.support.python_tools:checks", size_max = 20, window_ms = 50, match = "key" }}
"""


def play(tool: str, name: str = "first") -> Play:
    column = {"name": "check", "tool": f"acme.{tool}", "input": {"email": "{{ row.email }}"}, "extract": "data"}
    return Play.model_validate({"name": name, "key": ["id"], "columns": [column | {"getter": "email_status"}]})


def people() -> list[dict[str, Any]]:
    names = ["bad0", "lost0", "all0", *(f"p{index}" for index in range(40))]
    # Each address twice: the second ask is no second payment.
    return [{"id": f"{name}/{again}", "email": f"{name}@example.com"} for name in names for again in range(2)]


@pytest.mark.parametrize("tool", ["check", "checks"])
async def test_U1_a_python_tool_is_paid_once_for_equal_asks_runs_and_lost_answers(system: System, tool: str) -> None:
    paid = system.folder / "paid.txt"
    (system.folder / "bill.secret").write_text(str(paid))
    system.providers.write_text(PROVIDERS.format(reference=system.folder / "bill.secret"))
    system.worker()
    async with Client(system.settings) as client:
        run = await client.submit(play(tool), people())
        end, _ = await system.finish(client, run)
        cells = {line.row.fields["email"]: line.row.cells["check"] async for line in client.rows(run) if line.row is not None}
        once = bill(paid)
        again = await client.submit(play(tool, "second"), people())
        repeated, _ = await system.finish(client, again)
    assert end.counts is not None
    assert (end.counts.total, end.counts.completed, end.counts.failed, end.counts.unknown) == (86, 82, 2, 2)
    assert sorted(once) == sorted(["lost0@example.com", "all0@example.com", *(f"p{index}@example.com" for index in range(40))])
    # P9: what stands in the cell is what to do, and the domain's own flag counts.
    assert cells["p7@example.com"].value == {"status": "valid", "verdict": "send", "verified": True}
    assert cells["all0@example.com"].value == {"status": "catch_all", "verdict": "verify_next", "verified": False}
    assert cells["bad0@example.com"].code == "no_such_domain"
    assert cells["lost0@example.com"].status == "unknown"
    assert cells["lost0@example.com"].error == "acme." + tool + ": ConnectionResetError: the answer is lost"
    # Nothing is paid again, whatever became of it; least of all what may have been billed.
    assert repeated.counts is not None
    assert repeated.counts.unknown == 2
    assert bill(paid) == once


async def test_a_worker_whose_tool_is_missing_ends_with_78_and_names_it(system: System) -> None:
    (system.folder / "bill.secret").write_text("nowhere")
    text = PROVIDERS.format(reference=system.folder / "bill.secret")
    system.providers.write_text(text.replace("python_tools:checks", "python_tools:cheques"))
    worker = system.worker()
    assert worker.wait() == 78
    place = "providers.acme.tools.checks.batch.entry_point: 'tests.support.python_tools:cheques' cannot be loaded: AttributeError"
    assert place in worker.text()
