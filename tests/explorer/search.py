"""Breadth-first search through all states of a scenario, until a promise is broken or the bounds are reached."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from streams.engine.port import Engine
from streams.engine.receipts import ReceiptsEngine
from tests.explorer import promises
from tests.explorer.model import Scenario, World, beginning
from tests.explorer.steps import Steps
from tests.explorer.turns import Turns


@dataclass(slots=True)
class Found:
    """What a search found."""

    scenario: str
    states: int = 0
    transitions: int = 0
    #: Steps of the longest of all shortest ways.
    depth: int = 0
    #: Every state within the bounds was seen.
    exhausted: bool = False
    broken: str = ""
    #: The shortest way to the broken promise.
    way: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """A report for a person."""
        size = f"{self.states} states, {self.transitions} transitions, depth {self.depth}"
        if not self.broken:
            return f"{self.scenario}: kept in {size}" + ("" if self.exhausted else " (not all)")
        steps = "\n".join(f"  {number:2}. {words}" for number, words in enumerate(self.way, 1))
        return f"{self.scenario}: BROKEN after {size}: {self.broken}\n{steps}"


def search(scenario: Scenario, *, states_max: int, seconds_max: float = float("inf"), engine: Engine | None = None) -> Found:
    """Look at every state that the scenario allows, nearest first; ends at the first broken promise."""
    turns = Turns(engine or ReceiptsEngine())
    steps = Steps(scenario, turns)
    found = Found(scenario.name)
    first = beginning(scenario)
    # States are known by their hashes: a clash of two among ten million has a probability below one in a hundred thousand.
    came: dict[int, tuple[int, str]] = {_name(first): (0, "")}
    frontier: deque[tuple[World, int]] = deque([(first, 0)])
    until = time.monotonic() + seconds_max
    while frontier:
        if len(came) >= states_max or (found.transitions & 1023 == 0 and time.monotonic() > until):
            found.states = len(came)
            return found
        world, depth = frontier.popleft()
        found.depth = depth
        quiet = True
        me = _name(world)
        for step in steps.of(world):
            found.transitions += 1
            quiet = quiet and step.fault
            name = _name(step.world)
            if name in came:
                continue
            came[name] = (me, step.words)
            found.broken = promises.check(step.world, scenario)
            if found.broken:
                return _told(found, came, name)
            frontier.append((step.world, depth + 1))
        if quiet and not scenario.bill_only and (broken := promises.ended(world, scenario)):
            found.broken = broken
            return _told(found, came, me)
    found.states, found.exhausted = len(came), True
    return found


def _name(world: World) -> int:
    """The hash of a state without what no step looks at any more: events that were folded stand in the table."""
    if any(process.view for process in world.processes):
        return hash(world)
    read = world.read
    seen = (
        world.requests[read.requests :],
        world.claims[read.claims :],
        world.completions[read.completions :],
        world.beats[read.beats :],
    )
    again = (frozenset(world.requests), frozenset(world.claims), frozenset(world.completions)) if world.budget.duplicates else ()
    return hash((world[4:6], world[7:], seen, again))


def _told(found: Found, came: dict[int, tuple[int, str]], name: int) -> Found:
    found.states = len(came)
    while True:
        before, words = came[name]
        if not words:
            break
        found.way.append(words)
        name = before
    found.way.reverse()
    return found
