"""Breadth-first search through all states of a scenario, until a promise is broken or the bounds are reached."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

from streams.engine.port import Engine
from streams.engine.receipts import ReceiptsEngine
from tests.explorer import promises
from tests.explorer.model import Scenario, World, beginning
from tests.explorer.steps import Steps
from tests.explorer.turns import Turns

#: Part of a random way's steps that may be faults.
FAULT_SHARE = 0.3


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
    # States are known by their hashes (a clash of two among ten million has a probability of some 3 in a million), with the state
    # before and the number of the step from it.
    came: dict[int, tuple[int, int]] = {_name(first): (0, -1)}
    frontier: deque[tuple[World, int, int]] = deque([(first, _name(first), 0)])
    until = time.monotonic() + seconds_max
    while frontier:
        if len(came) >= states_max or time.monotonic() > until:
            found.states = len(came)
            return found
        world, me, depth = frontier.popleft()
        found.depth = depth
        quiet = True
        for number, step in enumerate(steps.of(world)):
            found.transitions += 1
            quiet = quiet and step.fault
            name = _name(step.world)
            if name in came:
                continue
            came[name] = (me, number)
            found.broken = promises.check(step.world, scenario)
            if found.broken:
                return _told(found, came, name, first, steps)
            frontier.append((step.world, name, depth + 1))
        if quiet and not scenario.bill_only and (broken := promises.ended(world)):
            found.broken = broken
            return _told(found, came, me, first, steps)
    found.states, found.exhausted = len(came), True
    return found


def walk(scenario: Scenario, *, walks_max: int, seed: int, seconds_max: float = float("inf")) -> Found:
    """Go to the end of so many random ways: where there are too many states to see them all. Ends at the first broken promise."""
    dice = random.Random(seed)
    turns = Turns(ReceiptsEngine())
    steps = Steps(scenario, turns)
    found = Found(f"{scenario.name}, random walks from {seed}")
    until = time.monotonic() + seconds_max
    for _ in range(walks_max):
        if time.monotonic() > until:
            break
        world, found.way = beginning(scenario), []
        while not found.broken and (choices := steps.of(world)):
            calm = [step for step in choices if not step.fault]
            if not calm and not scenario.bill_only:
                found.broken = promises.ended(world)
            # Faults are spread over the whole way, or all of them would come before the first call.
            step = dice.choice(calm if calm and dice.random() > FAULT_SHARE else choices)
            world = step.world
            found.way.append(step.words)
            found.transitions += 1
            found.broken = found.broken or promises.check(world, scenario)
        found.states += len(found.way)
        found.depth = max(found.depth, len(found.way))
        found.broken = found.broken or ("" if choices or scenario.bill_only else promises.ended(world))
        if found.broken:
            return found
    found.way = []
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


def _told(found: Found, came: dict[int, tuple[int, int]], name: int, world: World, steps: Steps) -> Found:
    """Walk the way to a state once more, and put its steps into words."""
    found.states = len(came)
    numbers: list[int] = []
    while (before := came[name])[1] >= 0:
        name = before[0]
        numbers.append(before[1])
    for number in reversed(numbers):
        step = steps.of(world)[number]
        found.way.append(step.words)
        world = step.world
    return found
