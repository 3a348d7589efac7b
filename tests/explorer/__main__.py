"""The explorer as a command: as deep as time and memory allow.

    python -m tests.explorer --minutes 10 --faults 4 --crashes 2 --repeat never --callers "full refresh"
    python -m tests.explorer --walks 20000 --faults 8 --crashes 2 --pauses 3
    python -m tests.explorer --trap T8

Without ``--repeat`` or ``--callers`` all of them are explored, each with an equal share of the time. The exit code is 1 where a
promise was broken. A state takes some 150 bytes while it is remembered and some 2 KB while it waits to be looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from schemas.events import Repeat
from tests.explorer.model import Budget
from tests.explorer.scenarios import CALLERS, ONE_OF_EACH, scenario
from tests.explorer.search import search, walk
from tests.explorer.traps import TRAPS


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.explorer", description="Explore the receipt protocol on the real engine.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all scenarios together (default: 10)")
    parser.add_argument("--states", type=int, default=3_000_000, help="at most, for each scenario (default: 3,000,000)")
    parser.add_argument(
        "--walks", type=int, default=0, help="go so many random ways to their ends instead of looking at all states"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random ways (default: 1)")
    parser.add_argument("--repeat", type=Repeat, choices=list(Repeat), help="the tool's rule for repeating (default: all)")
    parser.add_argument("--callers", choices=CALLERS, help="who asks (default: all)")
    parser.add_argument("--also", action="append", default=[], choices=("failures", "receipt", "once"), help="a further promise")
    parser.add_argument("--trap", choices=[trap.name for trap in TRAPS], help="break this rule, and explore its own scenario")
    parser.add_argument("--faults", type=int, default=4, help="of all kinds together (default: 4)")
    for kind, most in ONE_OF_EACH._asdict().items():
        if kind != "faults":
            parser.add_argument(f"--{kind}", type=int, default=most, help=f"at most (default: {most})")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Explore and print what was found; 1 where a promise was broken."""
    options = _arguments().parse_args(arguments)
    seconds = options.minutes * 60
    if options.trap:
        trap = next(trap for trap in TRAPS if trap.name == options.trap)
        found = trap.springs(options.states, seconds)
        print(found)
        return 1 if found.broken else 0
    budget = Budget(**{kind: getattr(options, kind) for kind in Budget._fields})
    chosen = [
        scenario(repeat, callers, budget, *options.also)
        for repeat in ([options.repeat] if options.repeat else Repeat)
        for callers in ([options.callers] if options.callers else CALLERS)
    ]
    broken = False
    for one in chosen:
        if options.walks:
            found = walk(one, walks_max=options.walks, seed=options.seed, seconds_max=seconds / len(chosen))
        else:
            found = search(one, states_max=options.states, seconds_max=seconds / len(chosen))
        print(found, flush=True)
        broken = broken or bool(found.broken)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
