"""What a chaos run does to a system and when: a pure function of its seed.

``chaos`` carries it out. Times are seconds from the first submission; a machine that is busy carries actions out later, in this
order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from streams.sandbox.faults import Fault, FaultKind

WORKERS = ("w1", "w2", "w3")
#: Actions end, and faults with them, when this part of the time is over: the rest is for what is left to do.
ROUGH = 0.8
#: Rows a second and calls a second of each provider, so that there is work for the whole time.
ROWS_PER_SECOND, CALLS_PER_SECOND = 5.0, 10
#: One disturbance of the broker for so many of workers.
WORKERS_PER_BROKER = 12


class Kind(StrEnum):
    """What is done."""

    SUBMIT = "submit"
    KILL = "kill"
    #: SIGKILL, and the data folder with its journal is gone.
    WIPE = "wipe"
    #: SIGTERM; started again once it has ended.
    STOP = "stop"
    #: SIGTERM; away until it joins.
    LEAVE = "leave"
    JOIN = "join"
    #: SIGSTOP and SIGCONT.
    PAUSE = "pause"
    RESUME = "resume"
    KILL_BROKER = "kill_broker"
    STOP_BROKER = "stop_broker"
    PAUSE_BROKER = "pause_broker"
    #: The provider's faults and latency are replaced.
    PROVIDER = "provider"


#: Disturbances of workers by how often they come.
WORKER_KINDS = {Kind.KILL: 8, Kind.WIPE: 1, Kind.STOP: 3, Kind.LEAVE: 1, Kind.PAUSE: 3}
BROKER_KINDS = (Kind.KILL_BROKER, Kind.STOP_BROKER, Kind.PAUSE_BROKER)


@dataclass(frozen=True)
class Action:
    """One thing that is done."""

    at: float
    kind: Kind
    worker: str = ""
    #: For how long the broker is away or paused.
    seconds: float = 0.0
    #: Which run is submitted.
    run: int = 0
    faults: tuple[Fault, ...] = ()
    latency_ms: float = 0.0


@dataclass(frozen=True)
class Asked:
    """One run: rows ``first`` to ``last``, in a dataset that it may share with other runs."""

    number: int
    #: Its tools may be repeated under their keys; else never.
    keyed: bool
    dataset: str
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Everything that a seed says."""

    runs: tuple[Asked, ...]
    actions: tuple[Action, ...]


def plan_of(seed: int, *, kills: int, seconds: float) -> Plan:
    """The plan of a seed: ``kills`` disturbances of workers, and of broker and provider besides, in ``seconds``."""
    dice = random.Random(f"chaos/{seed}/{kills}/{seconds:g}")
    rough = seconds * ROUGH
    runs = _runs(dice, seconds)
    # The first two at once; others come while rows of those are under way.
    actions = [Action(0.0 if run.number < 2 else dice.uniform(0.1, 0.6) * rough, Kind.SUBMIT, run=run.number) for run in runs]
    for at in _moments(dice, kills, rough):
        actions += _to_a_worker(dice, at, rough)
    for at in _moments(dice, max(1, kills // WORKERS_PER_BROKER) if kills else 0, rough * 0.9):
        actions.append(Action(at, dice.choice(BROKER_KINDS), seconds=round(dice.uniform(0.5, 6.0), 2)))
    for at in _moments(dice, max(2, int(rough / 6)), rough):
        actions.append(Action(at, Kind.PROVIDER, faults=_faults(dice), latency_ms=dice.choice((80, 300, 800, 1500))))
    actions.append(Action(rough, Kind.PROVIDER, latency_ms=50))
    return Plan(tuple(runs), tuple(sorted(actions, key=lambda action: action.at)))


def _moments(dice: random.Random, count: int, rough: float) -> list[float]:
    return sorted(round(dice.uniform(0.03, 0.97) * rough, 2) for _ in range(count))


def _runs(dice: random.Random, seconds: float) -> list[Asked]:
    """Some runs with keys and some without, over windows of rows that overlap; two of each share a dataset."""
    rows = max(20, int(seconds * ROWS_PER_SECOND))
    found: list[Asked] = []
    for keyed in (True, False):
        for number in range(3):
            first = 0 if number == 0 else dice.randrange(rows // 2)
            last = rows if number == 0 else min(rows, first + dice.randint(rows // 4, rows // 2))
            dataset = f"{'keyed' if keyed else 'never'}{number % 2}"
            found.append(Asked(2 * number + (not keyed), keyed, dataset, first, last))
    return sorted(found, key=lambda run: run.number)


def _to_a_worker(dice: random.Random, at: float, rough: float) -> Sequence[Action]:
    kind = dice.choices(list(WORKER_KINDS), list(WORKER_KINDS.values()))[0]
    worker = dice.choice(WORKERS)
    back = min(rough, round(at + dice.uniform(0.3, 8.0), 2))
    match kind:
        case Kind.LEAVE:
            return (Action(at, kind, worker), Action(back, Kind.JOIN, worker))
        case Kind.PAUSE:
            return (Action(at, kind, worker), Action(back, Kind.RESUME, worker))
        case _:
            return (Action(at, kind, worker),)


def _faults(dice: random.Random) -> tuple[Fault, ...]:
    """None to three faults at a time, each by chance."""
    # Items that fail one by one are the only way to a row that has failed.
    kinds = dice.sample([*FaultKind, FaultKind.ITEM_ERROR], dice.choice((0, 1, 2, 3)))
    return tuple(_fault(dice, kind) for kind in kinds)


def _fault(dice: random.Random, kind: FaultKind) -> Fault:
    chance = round(dice.uniform(0.02, 0.25), 3)
    # With 429 and 503 before any work, and 500 or 502 behind it.
    status = {FaultKind.ERROR_BEFORE_WORK: (429, 503), FaultKind.ERROR_AFTER_WORK: (500, 502)}.get(kind)
    return Fault(
        kind=kind,
        probability=chance,
        status=None if status is None else dice.choice(status),
        retryable=dice.random() < 0.5,
        seconds=round(dice.uniform(0.1, 2.0), 2),
    )
