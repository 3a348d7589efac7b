"""A short chaos run with a fixed seed; ``make chaos`` is the long one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from streams.broker.local import LocalBroker
from tests.bench.chaos import run_chaos
from tests.bench.chaosplan import Kind, plan_of

SEED, KILLS, SECONDS = 15, 6, 18.0


@pytest.mark.timeout(200)
async def test_R9_L6_S7_nothing_is_lost_or_paid_twice_while_workers_broker_and_provider_are_disturbed(tmp_path: Path) -> None:
    """Runs with overlapping rows, tools with keys and without; live tables, changelogs and a replay agree at the end."""
    plan = plan_of(SEED, kills=KILLS, seconds=SECONDS)
    kinds = {action.kind for action in plan.actions}
    assert {Kind.KILL, Kind.WIPE, Kind.PAUSE, Kind.STOP, Kind.KILL_BROKER, Kind.PROVIDER} < kinds
    broker = LocalBroker(tmp_path / "broker")
    try:
        figures = await run_chaos(broker, tmp_path / "system", plan, settle_seconds=90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            broker.kill()
    assert figures["wrong"] == [], figures
    assert figures["runs"] == len(plan.runs)
    assert figures["rows"] == sum(run.last - run.first for run in plan.runs)
    assert figures["billed_items"], figures
