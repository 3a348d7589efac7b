"""What may happen next in a state: turns, claims, calls, answers, and faults as far as the budget goes.

The owner's turns run the real engine, lanes are planned by the real ``Lane`` (built anew from what was queued, since one receipt
has one need), and answers become events by the real ``outcome_of``. What the asyncio shell does with effects is written down here
once more: ``_effects`` is ``Dispatcher.effects`` for one receipt.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from schemas.commands import LeaseJudgedExpired, RecoveryEnded
from schemas.events import AttemptEnded, BatchClaimed, ClaimedMember, Fault, LeaseReleased, LeasesRenewed, ReceiptResolved, Repeat
from streams.calls import outcome_of
from streams.engine.effects import ClaimFolded, LeaseOver, LeaseSeen, LeasesSeen, Queued, Unqueued
from streams.engine.lanes import Lane, LanePace
from streams.engine.port import Effect
from streams.engine.protocol import Need
from streams.tools.port import Answered, Doubtful, MemberOutcome, NotDone, Refused
from tests.explorer import promises
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
    Budget,
    Call,
    Claim,
    Process,
    R,
    Read,
    Scenario,
    Watched,
    World,
)
from tests.explorer.turns import Turns, words

#: Later than any wait that a retry may ask for, in seconds.
LATE = 1e9
RECOVERY = EVENTS.of(RecoveryEnded())
REFUSED = Fault("refused", "the provider refused", True)


class Step(NamedTuple):
    """One thing that may happen; a fault need not."""

    words: str
    fault: bool
    world: World


@cache
def planned(need: Need, busy: int) -> Need | None:
    """The claim that a lane makes for a queued need with so many calls under way."""
    lane = Lane(LanePace(), {}, 0.0)
    lane.in_flight = busy
    lane.queue(R, TOOL, "run", need, 0.0, need.not_before_ms / 1000)
    departures, _ = lane.plan(LATE)
    return departures[0].entries[0].need if departures else None


def value_of(repeat: Repeat, n: int, epoch: int, op: int) -> bytes:
    """The provider's answer: one for each operation where it honours keys, else one for each call."""
    return (f'"e{epoch}o{op}"' if repeat is Repeat.WITH_KEY else f'"n{n}"').encode()


def spent(budget: Budget, what: str) -> Budget | None:
    """The budget after one more fault of a kind, ``None`` where it is used up."""
    left: int = getattr(budget, what)
    return budget._replace(**{what: left - 1, "faults": budget.faults - 1}) if left and budget.faults else None


class Steps:
    """The steps of one scenario."""

    def __init__(self, scenario: Scenario, turns: Turns) -> None:
        self.scenario = scenario
        self.turns = turns
        self._off = scenario.off
        self._unfenced = bool({"fencing", "stores", "effects"} & scenario.off)

    def of(self, world: World) -> list[Step]:
        """All that may happen next."""
        steps: list[Step] = []
        for parts in (self._asks, self._owners, self._dispatchers, self._provider, self._time, self._faults, self._people):
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

    # --- owners ----------------------------------------------------------------------------------------------

    def _owners(self, world: World) -> Iterator[Step]:
        for p, process in enumerate(world.processes):
            if not process.generation:
                continue
            if process.mail:
                after = self._effects(self._with(world, p, mail=()), p, process.mail)
                yield Step(f"P{p} wakes and acts on its last turn", False, after)
            if p != world.owner and not self._unfenced:
                yield Step(f"P{p} finds itself fenced and drops the partition", False, self._dropped(world, p))
                continue
            if process.mail:
                continue
            yield from self._turns(world, p, process)
            yield from self._judges(world, p, process)

    def _turns(self, world: World, p: int, process: Process) -> Iterator[Step]:
        read = process.view[1] if process.view else world.read
        ends = Read(len(world.requests), len(world.claims), len(world.completions), len(world.beats))
        choices = []
        if process.new:
            choices.append(read)
        else:
            choices += [
                read._replace(**{topic: getattr(read, topic) + 1})
                for topic in Read._fields
                if getattr(read, topic) < getattr(ends, topic)
            ]
        if ends != read and ends not in choices:
            choices.append(ends)
        for upto in choices:
            # In the topics' order of precedence.
            events = (
                *((RECOVERY,) if process.new else ()),
                *world.completions[read.completions : upto.completions],
                *world.claims[read.claims : upto.claims],
                *world.beats[read.beats : upto.beats],
                *world.requests[read.requests : upto.requests],
            )
            folded = ", ".join(words(EVENTS[number]) for number in events)
            who = f"P{p} (generation {process.generation}) folds {folded}"
            yield Step(who, False, self._turn(world, p, events, upto))
            left = spent(world.budget, "stalls")
            if left is not None:
                after = self._turn(world, p, events, upto, stalls=True)._replace(budget=left)
                yield Step(who + ", commits, and stalls", True, after)

    def _turn(self, world: World, p: int, events: tuple[int, ...], upto: Read, *, stalls: bool = False) -> World:
        process = world.processes[p]
        table = process.view[0] if process.view else world.table
        turned = self.turns.turn(table, events, process.generation)
        fenced = p != world.owner
        if fenced and "effects" in self._off:
            # The transaction fails, but what it was to grant is called for all the same (T4).
            world = self._effects(self._with(world, p, new=False), p, turned.effects)
            return self._with(world, p, generation=0, queued=None, watch=())
        view = (turned.table, upto) if self._unfenced else None
        world = self._with(world, p, new=False, view=view)
        if fenced and "stores" in self._off:
            # A late write of its own reaches the changelog behind the new owner's records, and with it the store's offset (T3).
            return self._with(world, p, ahead=True)
        broken = world.broken or promises.answered(world, turned.answers, self.scenario)
        world = world._replace(
            table=turned.table,
            read=upto,
            generation=process.generation,
            claims=world.claims + turned.claims,
            told=world.told + turned.answers,
            broken=broken or promises.settled(world.table, turned.table),
        )
        if not world.broken and not fenced:
            world = world._replace(broken=promises.folded(world, self.turns))
        if not fenced:
            world = self._granted(world, turned.effects)
        if stalls:
            return self._with(world, p, mail=turned.effects)
        return self._effects(world, p, turned.effects)

    def _granted(self, world: World, effects: tuple[Effect, ...]) -> World:
        for effect in effects:
            if isinstance(effect, ClaimFolded) and effect.granted:
                n = next(
                    event.members[0].n
                    for event in (EVENTS[number] for number in reversed(world.claims[: world.read.claims]))
                    if isinstance(event, BatchClaimed) and event.lease == effect.lease
                )
                broken = world.broken or promises.granted(world, n, effect.lease)
                world = world._replace(granted=tuple(sorted({*world.granted, (n, effect.lease)})), broken=broken)
        return world

    def _judges(self, world: World, p: int, process: Process) -> Iterator[Step]:
        if process.new or p != world.owner:
            return
        read = process.view[1] if process.view else world.read
        if "ends" not in self._off and (read.claims, read.completions) != (len(world.claims), len(world.completions)):
            return
        if "beats" not in self._off and read.beats != len(world.beats):
            return
        ours = {claim.lease for claim in process.pending} | {call.lease for call in world.calls if call.process == p}
        for watched in process.watch:
            if watched.lease in ours:
                continue
            budget: Budget | None = world.budget
            if watched.life:
                budget = spent(world.budget, "early")
                if budget is None:
                    continue
            member = ClaimedMember(R, watched.n, watched.epoch, watched.op)
            event = EVENTS.of(LeaseJudgedExpired(watched.lease, (member,)))
            after = self._turn(world, p, (event,), read)
            again = tuple(w._replace(life=self.scenario.ttl) if w.lease == watched.lease else w for w in process.watch)
            after = self._with(after, p, watch=again)._replace(budget=budget)
            early = " too early" if watched.life else ""
            yield Step(f"P{p} judges {watched.lease} of attempt {watched.n} expired{early}", bool(watched.life), after)

    def _effects(self, world: World, p: int, effects: tuple[Effect, ...]) -> World:
        for effect in effects:
            process = world.processes[p]
            match effect:
                case Queued() if not process.pending:
                    world = self._with(world, p, queued=effect.need)
                case Unqueued():
                    world = self._with(world, p, queued=None)
                case ClaimFolded():
                    world = self._claim_folded(world, p, effect)
                case LeaseSeen():
                    (member,) = effect.members
                    seen = Watched(effect.lease, member.n, member.epoch, member.op, self.scenario.ttl)
                    others = tuple(w for w in process.watch if w.lease != effect.lease)
                    world = self._with(world, p, watch=tuple(sorted((*others, seen))))
                case LeasesSeen():
                    renewed = tuple(w._replace(life=self.scenario.ttl) if w.lease in effect.leases else w for w in process.watch)
                    world = self._with(world, p, watch=renewed)
                case LeaseOver():
                    world = self._with(world, p, watch=tuple(w for w in process.watch if w.lease != effect.lease))
                case _:
                    pass
        return world

    def _claim_folded(self, world: World, p: int, effect: ClaimFolded) -> World:
        process = world.processes[p]
        claim = next((claim for claim in process.pending if claim.lease == effect.lease), None)
        if claim is None:
            return world
        world = self._with(world, p, pending=tuple(other for other in process.pending if other is not claim))
        life = self.scenario.ttl if "grant clock" in self._off else claim.life
        if effect.lost or not life:
            return self._released(world, claim.lease, claim.n, claim.epoch, claim.op) if effect.granted else world
        call = Call(claim.n, claim.epoch, claim.op, claim.lease, p, GRANTED, life, claim.tries)
        return world._replace(calls=tuple(sorted((*world.calls, call))))

    def _dropped(self, world: World, p: int) -> World:
        """Make no more claims, and give back what was not granted."""
        for claim in world.processes[p].pending:
            world = self._released(world, claim.lease, claim.n, claim.epoch, claim.op)
        return self._put(world, p, Process())

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
                    after = self._with(world, p, pending=(), queued=need)._replace(budget=left)
                    after = self._released(after, claim.lease, claim.n, claim.epoch, claim.op)
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
        after = self._with(world, p, queued=None, pending=(*process.pending, claim))
        after = after._replace(claims=(*world.claims, EVENTS.of(event)), leases=world.leases + 1)
        return Step(f"P{p} publishes {words(event)}", False, after)

    def _calling(self, world: World, call: Call) -> Iterator[Step]:
        who = f"P{call.process}, attempt {call.n}:"
        if call.stage == GRANTED:
            released = self._released(self._without(world, call), call.lease, call.n, call.epoch, call.op)
            if call.life:
                broken = world.broken or promises.looked(world, call, self.scenario)
                # Between this look and the bytes leaving a pause may come; it looks like a slow provider.
                what = f"{who} looks at the clock and sends, key e{call.epoch}o{call.op}"
                yield Step(what, False, self._moved(world, call, stage=SENT)._replace(broken=broken))
                if not world.processes[call.process].generation:
                    yield Step(f"{who} is given back with its partition", False, released)
                left = spent(world.budget, "beats")
                if left is not None:
                    beat = Beat(call.lease, call.process, self.scenario.ttl)
                    after = world._replace(renewals=(*world.renewals, beat), budget=left)
                    if "ack" in self._off:
                        after = self._moved(after, call, life=self.scenario.ttl)
                    yield Step(f"{who} sends a renewal", True, after)
            else:
                yield Step(f"{who} finds its lease over and gives it back", False, released)
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
        return self._without(world, call)._replace(completions=(*world.completions, EVENTS.of(event)))

    # --- the provider ----------------------------------------------------------------------------------------

    def _provider(self, world: World) -> Iterator[Step]:
        for call in world.calls:
            if call.stage != SENT:
                continue
            key = (call.epoch, call.op)
            what = f"the provider {{}} the request of attempt {call.n}, key e{call.epoch}o{call.op}"
            known = self.scenario.repeat is Repeat.WITH_KEY and key in world.bills
            gone = self._without(world, call)
            billed = self._moved(world, call, stage=BILLED) if call.process != NOBODY else gone
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
                    after = self._moved(world, call, stage=stage) if call.process != NOBODY else gone
                    yield Step(what.format(verb), True, after._replace(budget=left))
            if call.process == NOBODY and self.scenario.budget.resolutions:
                yield Step(what.format("never gets"), True, gone)

    # --- time and faults -------------------------------------------------------------------------------------

    def _time(self, world: World) -> Iterator[Step]:
        lives = [
            *world.calls,
            *world.renewals,
            *(item for process in world.processes for item in (*process.pending, *process.watch)),
        ]
        if not any(item.life for item in lives):
            return
        busy = any(process.pending for process in world.processes) or any(call.process != NOBODY for call in world.calls)
        budget = spent(world.budget, "pauses") if busy or world.renewals else world.budget
        if budget is None:
            return
        processes = tuple(
            process._replace(pending=_older(process.pending), watch=_older(process.watch)) for process in world.processes
        )
        after = world._replace(
            calls=_older(world.calls),
            renewals=_older(world.renewals),
            processes=processes,
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
            yield Step(f"P{1 - world.owner} takes over", False, self._taken_over(world, 1 - world.owner))
        elif (takeovers := spent(world.budget, "takeovers")) is not None and not owner.new:
            for p in (0, 1):
                after = self._taken_over(world, p)._replace(budget=takeovers)
                yield Step(f"P{p} takes over" if p != world.owner else f"P{p} loses its partition and gets it back", True, after)
        duplicates = spent(world.budget, "duplicates")
        if duplicates is not None:
            for topic in ("requests", "claims", "completions"):
                log: tuple[int, ...] = getattr(world, topic)
                for number in dict.fromkeys(log):
                    after = world._replace(budget=duplicates, **{topic: (*log, number)})
                    yield Step(f"{words(EVENTS[number])} comes once more", True, after)

    def _died(self, world: World, p: int) -> World:
        calls = [
            call if call.process != p else call._replace(process=NOBODY, life=0)
            for call in world.calls
            if call.process != p or call.stage == SENT
        ]
        renewals = tuple(beat for beat in world.renewals if beat.process != p)
        return self._put(world, p, Process())._replace(calls=tuple(sorted(calls)), renewals=renewals)

    def _taken_over(self, world: World, p: int) -> World:
        old = world.processes[p]
        if old.generation:
            world = self._dropped(world, p)
        if old.ahead and old.view is not None:
            # Its store says that it has all of the changelog, so it reads nothing more (T3).
            world = world._replace(table=old.view[0], read=old.view[1])
        if p != world.owner and not self._unfenced:
            # What a fenced owner watches does not matter any more.
            world = self._with(world, world.owner, watch=())
        view = (world.table, world.read) if self._unfenced else None
        return self._put(world, p, Process(generation=world.generation + 1, new=True, view=view))._replace(owner=p)

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

    # --- changing a state ------------------------------------------------------------------------------------

    def _put(self, world: World, p: int, process: Process) -> World:
        processes = (process, world.processes[1]) if p == 0 else (world.processes[0], process)
        return world._replace(processes=processes)

    def _with(self, world: World, p: int, **changes: object) -> World:
        return self._put(world, p, world.processes[p]._replace(**changes))

    def _released(self, world: World, lease: str, n: int, epoch: int, op: int) -> World:
        event = LeaseReleased(lease, (ClaimedMember(R, n, epoch, op),))
        return world._replace(claims=(*world.claims, EVENTS.of(event)))

    def _without(self, world: World, call: Call) -> World:
        return world._replace(calls=tuple(other for other in world.calls if other is not call))

    def _moved(self, world: World, call: Call, **changes: int) -> World:
        return world._replace(calls=tuple(sorted(call._replace(**changes) if other is call else other for other in world.calls)))


def _older(items: tuple) -> tuple:
    return tuple(item._replace(life=max(0, item.life - 1)) for item in items)
