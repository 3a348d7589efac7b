"""The dispatcher: claims what a lane lets go, calls the provider once the claim is granted, and publishes how it ended.

The asyncio shell around ``engine.lanes``, in the process of the ``receipts`` actors. It holds no state that matters: its claims,
heartbeats and completions are events, and only a claim that was folded in a committed turn of its own generation is called for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from schemas.events import BatchClaimed, ClaimedMember, Event, LeaseReleased, Probed
from schemas.providers import Providers
from streams.calling.calls import Calls, Flight
from streams.calling.gates import Gates
from streams.calling.journal import AnswerJournal
from streams.calling.leases import LeaseWatch, judgement, steady_clock
from streams.calling.outbox import EventPublisher
from streams.calling.ownership import OwnedPartition
from streams.calling.reconciler import Reconciler
from streams.calling.renewals import Renewals
from streams.calling.salvage import SalvageFile
from streams.calling.settlement import Settlement
from streams.calling.terms import TodaysTerms
from streams.companion import Companion
from streams.engine.effects import (
    ClaimFolded,
    KeptAside,
    LanePaused,
    LeaseOver,
    LeaseSeen,
    LeasesSeen,
    ProbeSeen,
    Queued,
    UnknownOver,
    UnknownSeen,
    Unqueued,
)
from streams.engine.lanes import Departure, Lane, forms_of, pace_of
from streams.engine.port import Context, Effect
from streams.errors import PaidonceError, StateError
from streams.loudly import called, heard
from streams.settings import Settings
from streams.tools.lookup import LookUp
from streams.tools.port import Caller, CallReport
from streams.turn import Actor, Checkpoint

log = logging.getLogger(__name__)

PROBED_TOPICS = ("receipt-claims", "lease-heartbeats", "receipt-completions")


class Dispatcher(Companion):
    """One lane for each organisation and provider of every owned partition."""

    def __init__(
        self,
        settings: Settings,
        providers: Providers,
        caller: Caller,
        publisher: EventPublisher,
        journal: AnswerJournal,
        *,
        fail: Callable[[PaidonceError], None],
        look_up: LookUp | None = None,
        checkpoint: Checkpoint = lambda _step: None,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self.settings, self._providers = settings, providers
        self._forms = forms_of(providers)
        self.settlement = Settlement(settings, publisher, journal, SalvageFile(settings.data / "salvage.jsonl"), clock)
        self.settlement.breaker.on_close = self._depart_all
        self.reconciler = Reconciler(look_up, self.settlement.say, fail, terms=TodaysTerms(providers))
        self._renewals = Renewals(settings.lease_seconds, self.settlement, clock)
        self._fail, self._checkpoint, self._clock = fail, checkpoint, clock
        self._partitions: dict[int, OwnedPartition] = {}
        self._beat: asyncio.Task[None] | None = None
        self._stopping = False
        self._publishing: set[asyncio.Task[None]] = set()
        self._gates = Gates(clock)
        self.calls = Calls(
            settings,
            providers,
            caller,
            self.settlement,
            slot=self._slot,
            may_send=self._ready,
            on_answer=self._answered,
            on_end=self._ended,
            fail=fail,
            checkpoint=checkpoint,
            clock=clock,
        )
        self.stale_values = 0

    # --- the worker's side -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Publish again what the last process read but may not have published, then begin to send heartbeats."""
        await self.settlement.start()
        self._beat = asyncio.create_task(self._heartbeats(), name="heartbeats")
        self._beat.add_done_callback(partial(heard, self._fail, "the heartbeats of calls in flight"))

    async def opened(self, table: str, actors: Mapping[int, Actor]) -> None:
        """Partitions are ours: their lanes are filled by the effects of their first turn."""
        if table == "receipts":
            for partition, actor in actors.items():
                watch = LeaseWatch(self.settings.lease_seconds, self._clock)
                self._partitions[partition] = OwnedPartition(actor, watch)

    async def revoked(self) -> None:
        """Make no new claims and give back what was not granted; calls in flight go on (dispatcher's rule 3)."""
        partitions, self._partitions = self._partitions, {}
        await self.reconciler.revoked()
        for number, partition in partitions.items():
            self._freeze(number, partition)

    def _freeze(self, number: int, partition: OwnedPartition) -> None:
        """Make no more claims, and give back what was not granted or has no slot yet."""
        for flight in partition.pending.values():
            self._say("receipt-claims", number, LeaseReleased(flight.lease, flight.members))
        partition.freeze()

    async def stop(self) -> None:
        """No new claims; wait for calls in flight up to the grace time; give back what was not sent."""
        self._stopping = True
        self.settlement.clean_up.begins()
        for number, partition in self._partitions.items():
            self._freeze(number, partition)
        await self.calls.drain(self.settings.grace_seconds)
        if self._beat is not None:
            self._beat.cancel()
        await self.reconciler.stop()
        if self._publishing:
            _, late = await asyncio.wait(self._publishing, timeout=5)
            for task in late:
                task.cancel()
        await self.settlement.stop()
        await self.calls.close()

    def effects(self, table: str, partition: int, effects: Sequence[Effect], context: Context) -> None:
        """Take note of what a committed turn queued, granted and ended."""
        owned = self._partitions.get(partition)
        if table != "receipts" or owned is None or not effects:
            return
        now = self._clock()
        moved: set[str] = set()
        probes: list[ProbeSeen] = []
        for effect in effects:
            match effect:
                case Queued():
                    if effect.receipt in owned.claimed:
                        continue
                    wait_ms = effect.need.not_before_ms - context.now_ms
                    lane = owned.lanes.get(effect.lane)
                    if lane is None:
                        lane = self._lane(owned, effect.lane, now)
                    not_before = now if wait_ms <= 0 else now + wait_ms / 1000
                    terms = (now, not_before, effect.bucket, effect.continues)
                    lane.queue(effect.receipt, effect.tool, effect.run, effect.need, *terms)
                    moved.add(effect.lane)
                case Unqueued():
                    if (lane := owned.lanes.get(effect.lane)) is not None:
                        for receipt in effect.receipts:
                            lane.unqueue(receipt)
                case ClaimFolded():
                    self._folded(partition, owned, effect)
                    moved.add(effect.lane)
                case LeaseSeen():
                    # A call of ours from before a rebalance counts like a foreign one: until its end is folded.
                    foreign = effect.lease not in owned.pending
                    if owned.watch.claimed(effect.lane, effect.lease, effect.members, foreign=foreign) and foreign:
                        self._lane(owned, effect.lane, now).in_flight += 1
                case LeasesSeen():
                    owned.watch.renewed(effect.leases)
                case LeaseOver():
                    owned.over(effect, moved)
                case ProbeSeen():
                    probes.append(effect)
                case LanePaused():
                    self._pause(owned, effect.lane, (effect.until_ms - context.now_ms) / 1000)
                case UnknownSeen() | UnknownOver():
                    self.reconciler.take(partition, owned.actor, effect)
                case KeptAside():
                    self.stale_values += 1
                    self.settlement.kept_aside(effect.receipt, effect.tool, effect.n, effect.output)
        # What ended in the same turn has ended: its lease is not judged.
        for probe in probes:
            self._probed(owned, probe)
        for name in moved:
            self._depart(partition, owned, name)

    # --- lanes -----------------------------------------------------------------------------------------------

    def _lane(self, owned: OwnedPartition, name: str, now: float) -> Lane:
        lane = owned.lanes.get(name)
        if lane is None:
            lane = owned.lanes[name] = Lane(pace_of(self._providers, name), self._forms, now)
            lane.pause(self._gates.until(name))
        return lane

    def _pause(self, owned: OwnedPartition | None, name: str, seconds: float) -> None:
        """Nothing of a lane leaves for so long, also after it was taken away and has come back (P3)."""
        until = self._gates.pause(name, seconds)
        if owned is not None and name in owned.lanes:
            owned.lanes[name].pause(until)

    def _ours(self, owned: OwnedPartition, lease: str) -> bool:
        return lease in owned.pending or self.calls.is_in_flight(lease)

    def _depart(self, partition: int, owned: OwnedPartition, name: str) -> None:
        """Claim what the lane lets go, and look again when it says so."""
        timer = owned.timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if self._stopping or self._partitions.get(partition) is not owned or self.settlement.breaker.is_open:
            return
        departures, look_again = owned.lanes[name].plan(self._clock())
        claims: list[Event] = []
        try:
            for departure in departures:
                flight = self._claim(partition, owned, name, departure)
                owned.pending[flight.lease] = flight
                owned.claimed.update(member.receipt for member in flight.members)
                claims.append(flight.claim)
        except PaidonceError as error:
            self._fail(error)
            return
        if claims:
            self._say("receipt-claims", partition, *claims)
        if look_again is not None:
            delay = max(0.0, look_again - self._clock())
            again = partial(called, self._fail, f"looking at lane {name}", self._depart, partition, owned, name)
            owned.timers[name] = asyncio.get_running_loop().call_later(delay, again)

    def _depart_all(self) -> None:
        for partition, owned in self._partitions.items():
            for name in owned.lanes:
                self._depart(partition, owned, name)

    def _depart_soon(self, partition: int, owned: OwnedPartition, name: str) -> None:
        owned.departing.discard(name)
        self._depart(partition, owned, name)

    def _claim(self, partition: int, owned: OwnedPartition, lane: str, departure: Departure) -> Flight:
        members = tuple(ClaimedMember(entry.receipt, entry.need.n, entry.need.epoch, entry.need.op) for entry in departure.entries)
        lease = uuid.uuid4().hex
        # The lease runs from the clock read before the claim is published (dispatcher's rule 2).
        claimed_at = self._clock()
        flight = self.calls.flight(owned.actor, partition, lane, departure, members, lease, claimed_at)
        flight.claim = BatchClaimed(
            lane=lane,
            tool=departure.tool,
            batch=flight.batch,
            lease=lease,
            generation=owned.actor.generation,
            members=members,
            payload=flight.payload if flight.payload != members else (),
            job=flight.job,
        )
        return flight

    def _folded(self, partition: int, owned: OwnedPartition, effect: ClaimFolded) -> None:
        """Our claim was folded: call for it whole, or give it back whole and let its members be batched anew."""
        flight = owned.pending.pop(effect.lease, None)
        if flight is None:
            return
        owned.claimed.difference_update(member.receipt for member in flight.members)
        if unanswered := effect.unanswered(flight.members):
            self._fail(
                StateError(f"the claim under lease {flight.lease} has no answer for {', '.join(unanswered)}; nothing was sent")
            )
            return
        self._checkpoint("dispatcher:granted")
        if effect.lost or not self._may_start(flight):
            granted = frozenset(effect.granted)
            kept = tuple(member for member in flight.members if member.receipt in granted)
            if kept:
                self._say("receipt-claims", partition, LeaseReleased(flight.lease, kept))
            owned.lanes[flight.lane].landed(batch=flight.is_batch, sent=False)
            return
        owned.lanes[flight.lane].took(grant_seconds=self._clock() - flight.claimed_at)
        self.calls.start(flight)

    async def _slot(self, flight: Flight) -> bool:
        """Wait until the lane has room for this call; false where the worker stops or the partition is taken away meanwhile."""
        owned = self._partitions.get(flight.partition)
        # Granted in the very moment of the stop: who waits for room from now on is woken by nobody.
        if self._stopping or owned is None or owned.actor is not flight.actor:
            return False
        lane = owned.lanes[flight.lane]
        while not lane.is_free(for_batch=flight.is_batch):
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            owned.waiting.setdefault((flight.lane, flight.is_batch), deque()).append(room)
            await room
            if self._stopping or self._partitions.get(flight.partition) is not owned:
                return False
        lane.sends(batch=flight.is_batch)
        flight.counted = True
        flight.send_at = lane.send_at(flight.send_at, self._clock())
        return True

    async def _ready(self, flight: Flight) -> bool:
        """The call may be made, and enough of its lease is left, by a renewal where it must be (L5); asked as the bytes leave."""
        enough = self.settlement.breaker.is_open or await self._renewals.ensure(flight)
        # Looked at last: while a renewal was waited for, the broker may have gone, or the worker begun to stop.
        return enough and not self._stopping and self._may_start(flight)

    def _may_start(self, flight: Flight) -> bool:
        """The lease runs, and neither the breaker is open nor has the provider asked everybody to wait meanwhile (P3).

        What it does not let through is given back, so a prevented call is counted once (S6).
        """
        if self.settlement.breaker.is_open:
            self.settlement.breaker.prevented += 1
            return False
        owned = self._partitions.get(flight.partition)
        lane = None if owned is None else owned.lanes.get(flight.lane)
        paused = lane is not None and self._clock() < lane.gate
        return not paused and self._renewals.left(flight) > 0

    def _answered(self, flight: Flight, report: CallReport) -> None:
        """The provider's answer is here: note how long it took. The slot is held until the outcome is published (P5)."""
        owned = self._partitions.get(flight.partition)
        if report.lane_pause_seconds:
            self._pause(owned, flight.lane, report.lane_pause_seconds)
        if owned is not None and owned.actor is flight.actor:
            owned.lanes[flight.lane].took(call_seconds=report.seconds)

    def _ended(self, flight: Flight) -> None:
        """A call has ended, and its outcome is published."""
        owned = self._partitions.get(flight.partition)
        if owned is None or flight.lane not in owned.lanes:
            return
        if owned.actor is flight.actor:
            owned.landed(flight)
        # Calls end in flocks, as their outcomes are acknowledged together: one look at the lane is enough for all of them.
        if flight.lane not in owned.departing:
            owned.departing.add(flight.lane)
            soon = partial(self._depart_soon, flight.partition, owned, flight.lane)
            asyncio.get_running_loop().call_soon(called, self._fail, f"looking at lane {flight.lane}", soon)

    # --- leases ----------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        """Renew the leases of calls in flight, and judge those that nobody renews."""
        every = self.settings.lease_seconds / 6
        tick = min(every, 0.25)
        beat_at, beats = self._clock() + every, 0
        while True:
            await asyncio.sleep(tick)
            self.reconciler.say()
            if self._clock() >= beat_at - tick / 2:
                beat_at, beats = self._clock() + every, beats + 1
                for partition, flights in self.calls.in_flight().items():
                    # Calls for one every second time, batches every time: more hangs on them (L1).
                    if due := flights if beats % 2 == 0 else [flight for flight in flights if flight.is_batch]:
                        self._watch(self._renewals.beat(partition, due))
            for partition, owned in self._partitions.items():
                if not owned.marks and owned.watch.run_out(partial(self._ours, owned)):
                    for topic, mark in owned.mark(PROBED_TOPICS).items():
                        self._say(topic, partition, Probed(mark))

    def _probed(self, owned: OwnedPartition, effect: ProbeSeen) -> None:
        if not owned.read_back(effect.probe):
            return
        for lease, members in owned.watch.run_out(partial(self._ours, owned)):
            log.warning("lease %s of %d receipts has expired", lease, len(members))
            owned.actor.inbox.command(judgement(lease, members, owned.actor, self._providers, self.settings.attempts_max))
            owned.watch.leases[lease].seen_at = self._clock()

    def _say(self, topic: str, partition: int, *events: Event) -> None:
        """Publish without waiting; trouble with the broker ends the worker."""
        self._watch(self._publish(topic, partition, events))

    def _watch(self, publishing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(publishing)
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)
        task.add_done_callback(partial(heard, self._fail, "publishing claims and heartbeats"))

    async def _publish(self, topic: str, partition: int, events: Sequence[Event]) -> None:
        try:
            await self.settlement.say(topic, partition, events)
        except PaidonceError as error:
            self._fail(error)
            return
        if topic == "receipt-claims" and any(isinstance(event, BatchClaimed) for event in events):
            self._checkpoint("dispatcher:claimed")
