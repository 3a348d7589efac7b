"""A lane without a shell, and short forms of what is queued in it."""

from __future__ import annotations

from collections.abc import Iterable

from streams.engine.buckets import ToolForm
from streams.engine.lanes import Departure, Lane, LanePace
from streams.engine.protocol import Need

WIDE = LanePace(concurrency=1000)
FORMS = {"p.batch": ToolForm(size_max=4, window_seconds=0.25)}


def need(n: int = 1, *, batch: str = "", epoch: int = 0) -> Need:
    return Need(n, epoch, n, 0, batch)


def lane(pace: LanePace = WIDE, forms: dict[str, ToolForm] | None = None, now: float = 0.0) -> Lane:
    return Lane(pace, FORMS if forms is None else forms, now)


def queue(it: Lane, names: Iterable[str], now: float, *, tool: str = "p.batch", run: str = "run", later: float = 0.0) -> None:
    for name in names:
        it.queue(name, tool, run, need(), now, now + later)


def left(departures: list[Departure]) -> list[str]:
    return ["".join(entry.receipt for entry in departure.entries) for departure in departures]


def run_dry(it: Lane, now: float = 0.0) -> list[Departure]:
    """All departures, when the lane is looked at just when it says so."""
    found: list[Departure] = []
    for _ in range(2_000):
        departures, again = it.plan(now)
        found += departures
        if again is None:
            return found
        assert again > now, "a busy loop"
        now = again
    raise AssertionError("the lane never runs dry")
