"""The ``rows`` agent: control and results come before work, so that a cancel never queues behind a million rows."""

from __future__ import annotations

from streams.engine.rows import RowsEngine
from streams.turn import AgentSpec


def rows_agent() -> AgentSpec:
    """The single writer of the sheet, partitioned by dataset and row key."""
    return AgentSpec("rows", ("row-control", "tool-results", "row-work"), RowsEngine(), gather_seconds=0.1, cached_records=2_000)
