"""What is explored: the three rules for repeating, each with callers that only ask, refresh or withdraw."""

from __future__ import annotations

from schemas.events import CallWithdrawn, Event, Mode, Repeat
from tests.explorer.model import Budget, R, Scenario, asked

#: One of each fault. A claim given back before its fold, a stall behind a commit and renewals have scenarios of their own among
#: the traps.
ONE_OF_EACH = Budget(crashes=1, takeovers=1, pauses=1, duplicates=1, lost=1, failures=1, retries=1, early=1)
CALLERS = ("one", "refresh when failed", "two refresh when failed", "forced", "full refresh", "withdrawal")


def script(callers: str, repeat: Repeat) -> tuple[tuple[Event, str], ...]:
    """What callers publish, and what each waits for before."""
    first = (asked("c1", repeat), "")
    match callers:
        case "one":
            return (first,)
        case "refresh when failed":
            # As ``rows`` does for a repairable failure that it met.
            return (first, (asked("c2", repeat, Mode.FAILED_REFRESH, "f1"), "c1 failed"))
        case "two refresh when failed":
            return (
                first,
                (asked("c2", repeat, Mode.FAILED_REFRESH, "f1"), "c1 failed"),
                (asked("c3", repeat, Mode.FAILED_REFRESH, "f2"), "c1 failed"),
            )
        case "forced":
            return (first, (asked("c2", repeat, Mode.FAILED_REFRESH, "f1"), ""))
        case "full refresh":
            return (first, (asked("c2", repeat, Mode.FULL_REFRESH, "f1"), ""))
        case "withdrawal":
            return (first, (asked("c2", repeat), ""), (CallWithdrawn(R, "c1"), ""))
        case _:
            raise ValueError(f"no such callers: {callers}; known are {', '.join(CALLERS)}")


def scenario(repeat: Repeat, callers: str, budget: Budget, *also: str) -> Scenario:
    """A scenario of these callers within a budget of faults; ``also`` names promises beyond those of protocol.md."""
    name = f"{callers}, {repeat.value}, {budget.faults} faults"
    return Scenario(name, repeat, budget, script(callers, repeat), also=frozenset(also))
