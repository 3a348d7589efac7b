"""How long a provider wants a whole lane to wait (P3), as the log tells it to who did not hear the provider's answer. Pure.

Whoever reads the answer pauses the lane at once. This is for the other owners: of a later start, in another process, or of the lane
while a call of the owner before was still under way. They have the ends of attempts, which say when the next one may be made.
"""

from __future__ import annotations

from schemas.events import Fault
from schemas.fetch import FETCH
from streams.engine.effects import LanePaused
from streams.engine.port import Context, Outbox
from streams.engine.retries import BACKOFF_MAX_MS


def note(outbox: Outbox, context: Context, lane: str, batch: str, fault: Fault | None, not_before_ms: int) -> None:
    """An attempt was not done and is repeated: tell the lane to wait where that moment must be the provider's own word.

    No wait of ours is as long. That of one member of a Python tool's batch is about this member, and a fetch's about one server of
    many.
    """
    if not_before_ms - context.now_ms <= BACKOFF_MAX_MS or lane.endswith(f"/{FETCH}"):
        return
    if fault is not None and (fault.code.startswith("http_") or not batch):
        outbox.effects.append(LanePaused(lane, not_before_ms))
