"""The promises of the protocol, read off the logs, the bill and what callers were told; none of them asks the engine.

Each function returns what is broken in words, or ``""``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from schemas.events import (
    AttemptEnded,
    BatchClaimed,
    CallWithdrawn,
    Failed,
    LeaseExpired,
    LeaseReleased,
    Mode,
    ReceiptResolved,
    Repeat,
    ToolRequested,
    Value,
)
from tests.explorer.model import BILLED, EVENTS, SENT, Call, Scenario, World
from tests.explorer.turns import Turns, receipt_of

#: For one call the first of these is final.
FINAL = ("completed", "failed")


def granted(world: World, n: int, lease: str) -> str:
    """A grant goes to a live claim that somebody waits for, and never for what is known already."""
    claim = None
    for event in _events(world.claims[: world.read.claims]):
        match event:
            case BatchClaimed() if event.members[0].n == n:
                claim = claim or event
            case LeaseReleased() | LeaseExpired() if event.lease == lease and event.members[0].n == n:
                return f"attempt {n} is granted although {type(event).__name__} was folded for it"
            case _:
                pass
    if claim is None or claim.lease != lease:
        return f"attempt {n} is granted to {lease}, which did not win it"
    for event in _events(world.completions[: world.read.completions]):
        match event:
            case AttemptEnded(outcome=Value()) if event.epoch >= claim.members[0].epoch:
                return f"attempt {n} is granted although the value of attempt {event.n} was folded"
            case AttemptEnded() | ReceiptResolved() if event.n == n:
                return f"attempt {n} is granted although its end was folded"
            case _:
                pass
    if not _wanted(world.requests[: world.read.requests]):
        return f"attempt {n} is granted although nobody waits for it"
    return ""


def looked(world: World, call: Call, scenario: Scenario) -> str:
    """A call leaves only with a grant, and while no later attempt was granted: one live caller."""
    if (call.n, call.lease) not in world.granted:
        return f"attempt {call.n} is sent under {call.lease} without a grant of an owner that was not fenced"
    later = [n for n, _ in world.granted if n > call.n]
    if later and world.budget.early == scenario.budget.early:
        return f"two live callers: attempt {call.n} looks at its clock and sends although attempt {later[0]} was granted"
    return ""


def answered(world: World, answers: Iterable[tuple[str, str, int]], scenario: Scenario) -> str:
    """A caller is told exactly its final; unknown and failed only where that is true."""
    told = list(world.told)
    for call, answer, n in answers:
        before = [(other, m) for name, other, m in told if name == call]
        if "completed" in (other for other, _ in before):
            return f"{call} is told {answer} after it was completed"
        # One told failed may hear unknown of a later refresh, and what follows that; for its row the first of the two is final.
        after = before if "once" in scenario.also else before[-1:]
        if answer in FINAL and "failed" in (other for other, _ in after):
            return f"{call} is told {answer} after it was told failed"
        # Whoever was told unknown waits again while a later call is claimed, since a refresh asked for it, and is told anew where
        # that is given back: the same word on the same attempt, which its row takes as that.
        if before[-1:] == [(answer, n)] and not (answer == "unknown" and _claimed_after(world, n)):
            return f"{call} is told {answer} twice"
        if answer == "failed" and "failures" in scenario.also:
            epoch = _value_epoch(world.requests[: world.read.requests], call)
            doubtful = [other.n for other in world.calls if SENT <= other.stage <= BILLED and other.epoch >= epoch]
            bills = [bill for bill in world.bills if bill[0] >= epoch]
            if doubtful or bills:
                return f"{call} is told failed although attempts {doubtful} may be billed, and billed is {bills}"
        if answer == "unknown":
            if n not in (m for m, _ in world.granted):
                return f"{call} is told unknown of attempt {n}, which was never granted"
            # A refusal that leaves an earlier call under the same key in doubt is unknown: failed means not billed.
            refused = scenario.repeat is Repeat.WITH_KEY and _refused(world, n)
            if scenario.repeat is not Repeat.NEVER and scenario.tries_max > 3 and not refused:
                return f"{call} is told unknown although the tool may be repeated"
        if call in _withdrawn(world.requests[: world.read.requests]):
            return f"{call} is told {answer} although it was withdrawn"
        told.append((call, answer, n))
    return ""


def _claimed_after(world: World, n: int) -> bool:
    claims = (EVENTS[number] for number in world.claims)
    return any(member.n > n for event in claims if isinstance(event, BatchClaimed) for member in event.members)


def settled(before: int, after: int) -> str:
    """The value of an epoch never changes, and what is complete stays so."""
    old, new = receipt_of(before).current, receipt_of(after).current
    if old is not None and (new is None or new[0] < old[0] or (new[0] == old[0] and new != old)):
        return f"the value of epoch {old[0]} was that of attempt {old[1]} and is now {new}"
    return ""


def folded(world: World, turns: Turns) -> str:
    """After a turn the record is the fold of its topics, and holds all that was paid for."""
    return _nothing_lost(world) or _one_fold(world, turns)


def check(world: World, scenario: Scenario) -> str:
    """What must hold in every state."""
    if scenario.bill_only:
        return _bill(world, scenario)
    return world.broken or _bill(world, scenario) or _one_operation(world)


def _bill(world: World, scenario: Scenario) -> str:
    epochs = {epoch for epoch, _ in world.bills}
    if "receipt" in scenario.also and len(world.bills) > 1 + _full_refreshes(world):
        return f"a receipt is billed {len(world.bills)} times though nobody asked for it anew: {list(world.bills)}"
    if scenario.repeat is Repeat.FREELY:
        # Each further bill has an answer that did not come in time behind it.
        spent = scenario.budget.faults - world.budget.faults
        if len(world.bills) > len(epochs) + spent:
            return f"billed {len(world.bills)} times, with {spent} faults"
        return ""
    for epoch in epochs:
        bills = [op for other, op in world.bills if other == epoch]
        if len(bills) > 1:
            return f"epoch {epoch} is billed {len(bills)} times, for operations {bills}"
    return ""


def _one_operation(world: World) -> str:
    """No second key of an epoch exists while a call under the first may be billed, or was."""
    keys = {(call.epoch, call.op) for call in world.calls if SENT <= call.stage <= BILLED} | set(world.bills)
    epochs = [epoch for epoch, _ in keys]
    if len(set(epochs)) < len(epochs):
        return f"two operations of one epoch at once: {sorted(keys)}"
    return ""


def _nothing_lost(world: World) -> str:
    """What was paid for and stands in the log is in the record."""
    receipt = receipt_of(world.table)
    for event in _events(world.completions[: world.read.completions]):
        if isinstance(event, AttemptEnded) and isinstance(event.outcome, Value):
            digest = hashlib.blake2b(event.outcome.output, digest_size=16).hexdigest()
            attempt = receipt.attempts.get(event.n)
            if (attempt is None or attempt.value != digest) and (event.n, digest) not in receipt.aside:
                return f"the value of attempt {event.n} was folded and is lost"
    return ""


def _one_fold(world: World, turns: Turns) -> str:
    """The record is what the logs say, in whatever order their events were folded."""
    read = world.read
    folded = turns.folded(world.requests[: read.requests], world.claims[: read.claims], world.completions[: read.completions])
    if turns.digest(world.table) != folded:
        return "the record is not the fold of its topics"
    return ""


def ended(world: World) -> str:
    """Where nothing more will happen, every caller has its end."""
    withdrawn = _withdrawn(world.requests)
    newest = {call: answer for call, answer, _ in world.told}
    for event in _events(world.requests):
        if not isinstance(event, ToolRequested) or event.call in withdrawn:
            continue
        if event.call not in newest:
            return f"{event.call} waits for ever"
    if any(process.pending for process in world.processes) or world.calls:
        return "a call is stranded"
    return ""


def _full_refreshes(world: World) -> int:
    events = _events(world.requests)
    return len({event.refresh for event in events if isinstance(event, ToolRequested) and event.mode is Mode.FULL_REFRESH})


def _value_epoch(requests: tuple[int, ...], call: str) -> int:
    """The lowest epoch of which this caller takes a value."""
    refreshes: list[str] = []
    for event in _events(requests):
        if isinstance(event, ToolRequested):
            if event.refresh is not None and event.refresh not in refreshes:
                refreshes.append(event.refresh)
            if event.call == call:
                return refreshes.index(event.refresh) + 1 if event.refresh is not None and event.mode is Mode.FULL_REFRESH else 0
    return 0


def _wanted(requests: tuple[int, ...]) -> bool:
    withdrawn = _withdrawn(requests)
    return any(isinstance(event, ToolRequested) and event.call not in withdrawn for event in _events(requests))


def _withdrawn(requests: tuple[int, ...]) -> set[str]:
    return {event.call for event in _events(requests) if isinstance(event, CallWithdrawn)}


def _refused(world: World, n: int) -> bool:
    """Attempt ``n`` was refused."""
    ends = [event for event in _events(world.completions) if isinstance(event, AttemptEnded)]
    return any(event.n == n and isinstance(event.outcome, Failed) for event in ends)


def _events(numbers: tuple[int, ...]) -> list[object]:
    return [EVENTS[number] for number in numbers]
