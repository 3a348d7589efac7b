"""The ``rows`` agent: control and results come before work, so that a cancel never queues behind a million rows."""

from __future__ import annotations

from streams.engine.rows import RowsEngine
from streams.engine.runsweep import RunSweepPolicy
from streams.turn import AgentSpec


def rows_agent(sweep: RunSweepPolicy | None = None) -> AgentSpec:
    """The single writer of the sheet, partitioned by dataset and row key; ``sweep``: when rows of ended runs are dropped."""
    topics = ("row-control", "tool-results", "row-work")
    return AgentSpec("rows", topics, RowsEngine(sweep), gather_seconds=0.1, cached_records=2_000)
