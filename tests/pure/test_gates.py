"""What the log says of a lane that its provider wants to wait (P3)."""

from __future__ import annotations

import pytest

from schemas.commands import RecoveryEnded
from schemas.events import AttemptEnded, BatchClaimed, ClaimedMember, Fault, Repeat, Retry, ToolRequested
from streams.calling.gates import Gates
from streams.engine.effects import LanePaused
from streams.engine.port import Outbox
from streams.engine.receipts import ReceiptsEngine
from streams.engine.retries import BACKOFF_MAX_MS
from tests.support.memory import Table

BUSY = Fault("http_429", "slowly", True)


def paused(outbox: Outbox) -> list[tuple[str, int]]:
    return [(effect.lane, effect.until_ms) for effect in outbox.effects if isinstance(effect, LanePaused)]


def ended(fault: Fault, wait_ms: int, *, lane: str = "org/p", batch: str = "") -> tuple[Table, Outbox, int]:
    table = Table(ReceiptsEngine(), partitions=1)
    table.given(ToolRequested("r", "run:r", "run", 0, lane, "p.t", Repeat.NEVER, b"{}"))
    table.given(BatchClaimed(lane, "p.t", batch, "lease", table.generation, (ClaimedMember("r", 1, 0, 1),)))
    until = table.now_ms + wait_ms
    return table, table.given(AttemptEnded("r", 1, 0, "lease", Retry(fault, until))), until


@pytest.mark.parametrize("batch", ["", "batch-1"])
def test_P3_an_owner_hears_of_a_pause_from_an_end_and_the_next_one_from_the_receipt(batch: str) -> None:
    table, outbox, until = ended(BUSY, 600_000, batch=batch)
    assert paused(outbox) == [("org/p", until)]
    assert paused(table.given(RecoveryEnded())) == [("org/p", until)]


@pytest.mark.parametrize(
    ("fault", "wait_ms", "lane", "batch"),
    [
        (BUSY, BACKOFF_MAX_MS, "org/p", ""),
        (BUSY, -1, "org/p", ""),
        (BUSY, 600_000, "org/fetch", ""),
        (Fault("not_done", "this one later", True), 600_000, "org/p", "batch-1"),
    ],
)
def test_P3_waits_of_ours_of_one_server_and_of_one_member_pause_no_lane(fault: Fault, wait_ms: int, lane: str, batch: str) -> None:
    table, outbox, _ = ended(fault, wait_ms, lane=lane, batch=batch)
    assert paused(outbox) == paused(table.given(RecoveryEnded())) == []


def test_P3_a_python_tool_that_wants_to_wait_pauses_its_lane() -> None:
    _, outbox, until = ended(Fault("not_done", "later", True), 600_000)
    assert paused(outbox) == [("org/p", until)]


def test_P3_the_longest_pause_counts_and_what_is_over_is_forgotten() -> None:
    now = 100.0
    gates = Gates(lambda: now)
    assert gates.until("a") == 0.0
    assert (gates.pause("a", 60.0), gates.pause("a", 5.0), gates.until("a")) == (160.0, 160.0, 160.0)
    now = 200.0
    gates.pause("b", 1.0)
    assert (gates.until("a"), gates.until("b")) == (0.0, 201.0)
