"""What may happen next in a state: turns, claims, calls, answers, and faults as far as the budget goes.

The owner's turns run the real engine (``owners``), lanes are planned by the real ``Lane`` (built anew from what was queued, since
one receipt has one need), and answers become events by the real ``outcome_of``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from schemas.events import AttemptEnded, BatchClaimed, ClaimedMember, Fault, LeasesRenewed, ReceiptResolved, Repeat
from streams.calling.calls import outcome_of
from streams.engine.lanes import Lane, LanePace
from streams.engine.protocol import Need
from streams.tools.port import Answered, Doubtful, MemberOutcome, NotDone, Refused
from tests.explorer import promises
from tests.explorer.changes import Step, changed, moved, older, put, released, spent, value_of, without
from tests.explorer.model import (
    BILLED,
    EVENTS,
    FAILED,
    GRANTED,
    LANE,
    NOBODY,
    RETRY,
    SENT,
    TOOL,
    Beat,
    Call,
    Claim,
    Process,
    R,
    Scenario,
    Watched,
    World,
)
from tests.explorer.owners import Owners
from tests.explorer.turns import Turns, words

#: Later than any wait that a retry may ask for, in seconds.
LATE = 1e9
REFUSED = Fault("refused", "the provider refused", True)


@cache
def planned(need: Need, busy: int) -> Need | None:
    """The claim that a lane makes for a queued need with so many calls under way."""
    lane = Lane(LanePace(), {}, 0.0)
    lane.in_flight = busy
    lane.queue(R, TOOL, "run", need, 0.0, need.not_before_ms / 1000)
    departures, _ = lane.plan(LATE)
    return departures[0].entries[0].need if departures else None


class Steps:
    """The steps of one scenario."""

    def __init__(self, scenario: Scenario, turns: Turns) -> None:
        self.scenario = scenario
        self._owners = Owners(scenario, turns)
        self._off = scenario.off

    def of(self, world: World) -> list[Step]:
        """All that may happen next."""
        steps: list[Step] = []
        for parts in (self._asks, self._owners.of, self._dispatchers, self._provider, self._time, self._faults, self._people):
            steps.extend(parts(world))
        return steps

    # --- callers ---------------------------------------------------------------------------------------------

    def _asks(self, world: World) -> Iterator[Step]:
        if world.asked >= len(self.scenario.script):
            return
        event, after = self.scenario.script[world.asked]
        if after and after not in {f"{call} {answer}" for call, answer, _ in world.told}:
            return
        requests = (*world.requests, EVENTS.of(event))
        # A caller may never ask, so this is no step that must come; what it waits for may never happen either.
        yield Step(f"rows publishes {words(event)}", True, world._replace(requests=requests, asked=world.asked + 1))

    # --- dispatchers -----------------------------------------------------------------------------------------

    def _dispatchers(self, world: World) -> Iterator[Step]:
        for p, process in enumerate(world.processes):
            if process.queued is not None and not (process.pending or process.new or process.mail):
                own = {call.lease for call in world.calls if call.process == p}
                busy = len(own) + sum(w.lease not in own for w in process.watch)
                need = planned(process.queued, busy)
                if need is not None:
                    yield self._claims(world, p, process, need)
            for claim in process.pending:
                left = spent(world.budget, "returns")
                if left is not None and not claim.life:
                    need = Need(claim.n, claim.epoch, claim.op, 0, "", claim.tries)
                    after = changed(world, p, pending=(), queued=need)._replace(budget=left)
                    after = released(after, claim.lease, claim.n, claim.epoch, claim.op)
                    yield Step(f"P{p} gives {claim.lease} back before it is folded", True, after)
        for call in world.calls:
            if call.process != NOBODY:
                yield from self._calling(world, call)
        for beat in world.renewals:
            beats = (*world.beats, EVENTS.of(LeasesRenewed((beat.lease,))))
            # It counts from when it was sent, and not at all where the lease was over before it stood in the log: an owner may have
            # judged by then.
            calls = tuple(
                c._replace(life=max(c.life, beat.life)) if c.lease == beat.lease and (c.life or "late ack" in self._off) else c
                for c in world.calls
            )
            rest = tuple(other for other in world.renewals if other is not beat)
            after = world._replace(beats=beats, calls=tuple(sorted(calls)), renewals=rest)
            yield Step(f"the renewal of {beat.lease} is acknowledged", False, after)

    def _claims(self, world: World, p: int, process: Process, need: Need) -> Step:
        lease = f"P{p}n{need.n}" if "lease ids" in self._off else f"L{world.leases + 1}"
        member = ClaimedMember(R, need.n, need.epoch, need.op)
        event = BatchClaimed(LANE, TOOL, "", lease, process.generation, (member,))
        claim = Claim(lease, need.n, need.epoch, need.op, self.scenario.ttl, need.tries)
        after = changed(world, p, queued=None, pending=(*process.pending, claim))
        after = after._replace(claims=(*world.claims, EVENTS.of(event)), leases=world.leases + 1)
        return Step(f"P{p} publishes {words(event)}", False, after)

    def _calling(self, world: World, call: Call) -> Iterator[Step]:
        who = f"P{call.process}, attempt {call.n}:"
        if call.stage == GRANTED:
            back = released(without(world, call), call.lease, call.n, call.epoch, call.op)
            if call.life:
                broken = world.broken or promises.looked(world, call, self.scenario)
                # Between this look and the bytes leaving a pause may come; it looks like a slow provider.
                what = f"{who} looks at the clock and sends, key e{call.epoch}o{call.op}"
                yield Step(what, False, moved(world, call, stage=SENT)._replace(broken=broken))
                if not world.processes[call.process].generation:
                    yield Step(f"{who} is given back with its partition", False, back)
                left = spent(world.budget, "beats")
                if left is not None:
                    beat = Beat(call.lease, call.process, self.scenario.ttl)
                    after = world._replace(renewals=(*world.renewals, beat), budget=left)
                    if "ack" in self._off:
                        after = moved(after, call, life=self.scenario.ttl)
                    yield Step(f"{who} sends a renewal", True, after)
            else:
                yield Step(f"{who} finds its lease over and gives it back", False, back)
        elif call.stage != SENT:
            yield Step(f"{who} publishes its answer", False, self._ended(world, call, self._answer(call)))
        left = spent(world.budget, "lost")
        if left is not None and call.stage >= SENT:
            after = self._ended(world, call, Doubtful(Fault("lost", "no answer")))._replace(budget=left)
            if call.stage == SENT:
                after = after._replace(calls=tuple(sorted((*after.calls, call._replace(process=NOBODY, life=0)))))
            yield Step(f"{who} gives up waiting, the answer is lost", True, after)

    def _answer(self, call: Call) -> MemberOutcome:
        if call.stage == FAILED:
            return Refused(REFUSED)
        if call.stage == RETRY:
            return NotDone(Fault("busy", "not now"))
        return Answered(value_of(self.scenario.repeat, call.n, call.epoch, call.op))

    def _ended(self, world: World, call: Call, outcome: MemberOutcome) -> World:
        how = outcome_of(outcome, self.scenario.repeat, call.tries + 1, self.scenario.tries_max, 0.0, 0.0)
        event = AttemptEnded(R, call.n, call.epoch, call.lease, how)
        return without(world, call)._replace(completions=(*world.completions, EVENTS.of(event)))

    # --- the provider ----------------------------------------------------------------------------------------

    def _provider(self, world: World) -> Iterator[Step]:
        for call in world.calls:
            if call.stage != SENT:
                continue
            key = (call.epoch, call.op)
            what = f"the provider {{}} the request of attempt {call.n}, key e{call.epoch}o{call.op}"
            known = self.scenario.repeat is Repeat.WITH_KEY and key in world.bills
            gone = without(world, call)
            billed = moved(world, call, stage=BILLED) if call.process != NOBODY else gone
            yield Step(
                what.format("knows" if known else "does and bills"),
                False,
                billed if known else billed._replace(bills=tuple(sorted((*world.bills, key)))),
            )
            if known:
                continue
            for kind, stage, verb in (("failures", FAILED, "refuses"), ("retries", RETRY, "puts off")):
                left = spent(world.budget, kind)
                if left is not None:
                    after = moved(world, call, stage=stage) if call.process != NOBODY else gone
                    yield Step(what.format(verb), True, after._replace(budget=left))
            if call.process == NOBODY and self.scenario.budget.resolutions:
                yield Step(what.format("never gets"), True, gone)

    # --- time and faults -------------------------------------------------------------------------------------

    def _time(self, world: World) -> Iterator[Step]:
        lives: list[Call | Beat | Claim | Watched] = [
            *world.calls,
            *world.renewals,
            *(claim for process in world.processes for claim in process.pending),
            *(watched for process in world.processes for watched in process.watch),
        ]
        if not any(item.life for item in lives):
            return
        busy = any(process.pending for process in world.processes) or any(call.process != NOBODY for call in world.calls)
        budget = spent(world.budget, "pauses") if busy or world.renewals else world.budget
        if budget is None:
            return
        one, other = (process._replace(pending=older(process.pending), watch=older(process.watch)) for process in world.processes)
        after = world._replace(
            calls=older(world.calls),
            renewals=older(world.renewals),
            processes=(one, other),
            budget=budget,
        )
        yield Step("time passes" + (", somebody is paused" if busy else ""), bool(busy or world.renewals), after)

    def _faults(self, world: World) -> Iterator[Step]:
        crashes = spent(world.budget, "crashes")
        for p, process in enumerate(world.processes):
            # What neither owns, nor calls, nor has claimed anything leaves nothing behind.
            busy = p == world.owner or process.pending or any(call.process == p for call in world.calls)
            if crashes is not None and busy and (process.generation or p != world.owner or world.calls):
                yield Step(f"P{p} dies", True, self._died(world, p)._replace(budget=crashes))
        owner = world.processes[world.owner]
        if not owner.generation:
            yield Step(f"P{1 - world.owner} takes over", False, self._owners.taken_over(world, 1 - world.owner))
        elif (takeovers := spent(world.budget, "takeovers")) is not None and not owner.new:
            for p in (0, 1):
                after = self._owners.taken_over(world, p)._replace(budget=takeovers)
                yield Step(f"P{p} takes over" if p != world.owner else f"P{p} loses its partition and gets it back", True, after)
        duplicates = spent(world.budget, "duplicates")
        if duplicates is not None:
            for topic in ("requests", "claims", "completions"):
                log: tuple[int, ...] = getattr(world, topic)
                for number in dict.fromkeys(log):
                    again: Any = {topic: (*log, number)}
                    after = world._replace(budget=duplicates, **again)
                    yield Step(f"{words(EVENTS[number])} comes once more", True, after)

    def _died(self, world: World, p: int) -> World:
        calls = [
            call if call.process != p else call._replace(process=NOBODY, life=0)
            for call in world.calls
            if call.process != p or call.stage == SENT
        ]
        renewals = tuple(beat for beat in world.renewals if beat.process != p)
        return put(world, p, Process())._replace(calls=tuple(sorted(calls)), renewals=renewals)

    def _people(self, world: World) -> Iterator[Step]:
        left = spent(world.budget, "resolutions")
        if left is None:
            return
        newest = {call: (answer, n) for call, answer, n in world.told}
        for n in sorted({n for answer, n in newest.values() if answer == "unknown"}):
            claim = next(
                event.members[0]
                for event in (EVENTS[number] for number in world.claims)
                if isinstance(event, BatchClaimed) and event.members[0].n == n
            )
            # This person looks at the provider's books, and waits until nothing of it is under way.
            if any(call.n == n for call in world.calls):
                continue
            paid = (claim.epoch, claim.op) in world.bills
            output = value_of(self.scenario.repeat, n, claim.epoch, claim.op) if paid else None
            event = ReceiptResolved(R, n, claim.epoch, output, "somebody")
            after = world._replace(completions=(*world.completions, EVENTS.of(event)), budget=left)
            yield Step(f"a person resolves attempt {n} as {'paid' if paid else 'unpaid'}", True, after)
