"""What an owner may do next: turns of the real engine, judgements about leases, and what the shell does with their effects.

What the asyncio shell does is written down here once more: ``_effects`` is ``Dispatcher.effects`` for one receipt.
"""

from __future__ import annotations

from collections.abc import Iterator

from schemas.commands import RecoveryEnded
from schemas.events import BatchClaimed, ClaimedMember
from streams.engine.effects import ClaimFolded, LeaseOver, LeaseSeen, LeasesSeen, Queued, Unqueued
from streams.engine.lostleases import judged
from streams.engine.port import Effect
from tests.explorer import promises
from tests.explorer.changes import Step, changed, put, released, spent
from tests.explorer.model import (
    EVENTS,
    GRANTED,
    Call,
    Process,
    R,
    Read,
    Scenario,
    Watched,
    World,
)
from tests.explorer.turns import Turns, receipt_of, words

RECOVERY = EVENTS.of(RecoveryEnded())


class Owners:
    """The owners' steps in one scenario."""

    def __init__(self, scenario: Scenario, turns: Turns) -> None:
        self.scenario = scenario
        self.turns = turns
        self._off = scenario.off
        self._unfenced = bool({"fencing", "stores", "effects"} & scenario.off)

    def of(self, world: World) -> Iterator[Step]:
        """All that an owner may do next."""
        for p, process in enumerate(world.processes):
            if not process.generation:
                continue
            if process.mail:
                after = self._effects(changed(world, p, mail=()), p, process.mail)
                yield Step(f"P{p} wakes and acts on its last turn", False, after)
            if p != world.owner and not self._unfenced:
                yield Step(f"P{p} finds itself fenced and drops the partition", False, self.dropped(world, p))
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
            world = self._effects(changed(world, p, new=False), p, turned.effects)
            return changed(world, p, generation=0, queued=None, watch=())
        view = (turned.table, upto) if self._unfenced else None
        world = changed(world, p, new=False, view=view)
        if fenced and "stores" in self._off:
            # A late write of its own reaches the changelog behind the new owner's records, and with it the store's offset (T3).
            return changed(world, p, ahead=True)
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
            return changed(world, p, mail=turned.effects)
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
            budget = spent(world.budget, "early") if watched.life else world.budget
            if budget is None:
                continue
            member = ClaimedMember(R, watched.n, watched.epoch, watched.op)
            table = receipt_of(process.view[0] if process.view else world.table)
            judgement = judged(watched.lease, [(member, table)], self.scenario.repeat, self.scenario.tries_max, 0, 0.0)
            event = EVENTS.of(judgement)
            after = self._turn(world, p, (event,), read)
            again = tuple(w._replace(life=self.scenario.ttl) if w.lease == watched.lease else w for w in process.watch)
            after = changed(after, p, watch=again)._replace(budget=budget)
            early = " too early" if watched.life else ""
            yield Step(f"P{p} judges {watched.lease} of attempt {watched.n} expired{early}", bool(watched.life), after)

    def _effects(self, world: World, p: int, effects: tuple[Effect, ...]) -> World:
        for effect in effects:
            process = world.processes[p]
            match effect:
                case Queued() if not process.pending:
                    world = changed(world, p, queued=effect.need)
                case Unqueued():
                    world = changed(world, p, queued=None)
                case ClaimFolded():
                    world = self._claim_folded(world, p, effect)
                case LeaseSeen():
                    (member,) = effect.members
                    seen = Watched(effect.lease, member.n, member.epoch, member.op, self.scenario.ttl)
                    others = tuple(w for w in process.watch if w.lease != effect.lease)
                    world = changed(world, p, watch=tuple(sorted((*others, seen))))
                case LeasesSeen():
                    renewed = tuple(w._replace(life=self.scenario.ttl) if w.lease in effect.leases else w for w in process.watch)
                    world = changed(world, p, watch=renewed)
                case LeaseOver():
                    world = changed(world, p, watch=tuple(w for w in process.watch if w.lease != effect.lease))
                case _:
                    pass
        return world

    def _claim_folded(self, world: World, p: int, effect: ClaimFolded) -> World:
        process = world.processes[p]
        claim = next((claim for claim in process.pending if claim.lease == effect.lease), None)
        if claim is None:
            return world
        world = changed(world, p, pending=tuple(other for other in process.pending if other is not claim))
        life = self.scenario.ttl if "grant clock" in self._off else claim.life
        if effect.lost or not life:
            return released(world, claim.lease, claim.n, claim.epoch, claim.op) if effect.granted else world
        call = Call(claim.n, claim.epoch, claim.op, claim.lease, p, GRANTED, life, claim.tries)
        return world._replace(calls=tuple(sorted((*world.calls, call))))

    def dropped(self, world: World, p: int) -> World:
        """Make no more claims, and give back what was not granted."""
        for claim in world.processes[p].pending:
            world = released(world, claim.lease, claim.n, claim.epoch, claim.op)
        return put(world, p, Process())

    def taken_over(self, world: World, p: int) -> World:
        """Process ``p`` becomes the owner, of the next generation."""
        old = world.processes[p]
        if old.generation:
            world = self.dropped(world, p)
        if old.ahead and old.view is not None:
            # Its store says that it has all of the changelog, so it reads nothing more (T3).
            world = world._replace(table=old.view[0], read=old.view[1])
        if p != world.owner and not self._unfenced:
            # What a fenced owner watches does not matter any more.
            world = changed(world, world.owner, watch=())
        view = (world.table, world.read) if self._unfenced else None
        return put(world, p, Process(generation=world.generation + 1, new=True, view=view))._replace(owner=p)
