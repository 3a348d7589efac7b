"""The ``receipts`` agent: control, completions and claims come before requests, so that what is known settles first."""

from __future__ import annotations

from streams.engine.receipts import ReceiptsEngine
from streams.engine.sweep import SweepPolicy
from streams.engine.waits import Waits
from streams.turn import AgentSpec


def receipts_agent(wait: Waits | None = None, sweep: SweepPolicy | None = None) -> AgentSpec:
    """The single writer of receipts, partitioned by lane; ``wait``: how long followers wait; ``sweep``: what is dropped when."""
    topics = ("lane-control", "receipt-completions", "receipt-claims", "lease-heartbeats", "tool-requests")
    engine = ReceiptsEngine(wait, sweep)
    return AgentSpec("receipts", topics, engine, gather_seconds=0.02, gather_events=200, cached_records=8_000)
