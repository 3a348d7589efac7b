"""How a state becomes the next one: what several kinds of steps do to it."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from schemas.events import ClaimedMember, LeaseReleased, Repeat
from tests.explorer.model import (
    EVENTS,
    Beat,
    Budget,
    Call,
    Claim,
    Process,
    R,
    Watched,
    World,
)

Lives = TypeVar("Lives", Beat, Call, Claim, Watched)


class Step(NamedTuple):
    """One thing that may happen; a fault need not."""

    words: str
    fault: bool
    world: World


def value_of(repeat: Repeat, n: int, epoch: int, op: int) -> bytes:
    """The provider's answer: one for each operation where it honours keys, else one for each call."""
    return (f'"e{epoch}o{op}"' if repeat is Repeat.WITH_KEY else f'"n{n}"').encode()


def spent(budget: Budget, what: str) -> Budget | None:
    """The budget after one more fault of a kind, ``None`` where it is used up."""
    left: int = getattr(budget, what)
    return budget._replace(**{what: left - 1, "faults": budget.faults - 1}) if left and budget.faults else None


def put(world: World, p: int, process: Process) -> World:
    """The state with another process ``p``."""
    processes = (process, world.processes[1]) if p == 0 else (world.processes[0], process)
    return world._replace(processes=processes)


def changed(world: World, p: int, **changes: Any) -> World:
    """The state with some fields of process ``p`` changed."""
    return put(world, p, world.processes[p]._replace(**changes))


def released(world: World, lease: str, n: int, epoch: int, op: int) -> World:
    """A claim is given back in the log."""
    event = LeaseReleased(lease, (ClaimedMember(R, n, epoch, op),))
    return world._replace(claims=(*world.claims, EVENTS.of(event)))


def without(world: World, call: Call) -> World:
    """The state without a call."""
    return world._replace(calls=tuple(other for other in world.calls if other is not call))


def moved(world: World, call: Call, **changes: Any) -> World:
    """The state with some fields of a call changed."""
    return world._replace(calls=tuple(sorted(call._replace(**changes) if other is call else other for other in world.calls)))


def older(items: tuple[Lives, ...]) -> tuple[Lives, ...]:
    """What has a life, a moment later."""
    return tuple(item._replace(life=max(0, item.life - 1)) for item in items)
