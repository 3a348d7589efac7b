"""Provider calls in flight: from a granted claim to its published outcome.

Part of the dispatcher's shell. A call belongs to the process, not to the partition: it goes on when the partition is taken away,
and publishes its end under its own attempt and lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from schemas import address
from schemas.events import (
    Ambiguous,
    AttemptEnded,
    BatchClaimed,
    ClaimedMember,
    Failed,
    Fault,
    LeaseReleased,
    Outcome,
    Repeat,
    Retry,
    Value,
)
from schemas.providers import Providers
from schemas.states import ASK, BATCH, RECEIPT, Ask, Batch, Receipt, record_key
from streams.calling.guarded import Guarded, is_cancelled
from streams.calling.jobs import Jobs, job_started
from streams.calling.settlement import Settlement
from streams.calling.terms import TodaysTerms
from streams.engine.lanes import Departure
from streams.engine.protocol import job_of
from streams.engine.retries import backoff_ms, tries_max_of
from streams.engine.scopes import scope_in
from streams.errors import PaidonceError
from streams.settings import Settings
from streams.tools.jobs import of_job
from streams.tools.port import (
    Answered,
    Caller,
    CallMember,
    CallReport,
    Doubtful,
    MemberOutcome,
    NotDone,
    ProviderCall,
    Refused,
)
from streams.turn import Actor, Checkpoint

log = logging.getLogger(__name__)

#: What may pass at a stop until calls that were cut off before they were sent are given back.
GIVE_BACK_SECONDS: Final = 5.0


@dataclass(slots=True)
class Flight:
    """One provider call from its claim to its end."""

    actor: Actor
    partition: int
    lane: str
    tool: str
    lease: str
    claimed_at: float
    send_at: float
    members: tuple[ClaimedMember, ...]
    #: All members of the call in payload order; more than ``members`` only where a part of a repeated batch has settled.
    payload: tuple[ClaimedMember, ...]
    batch: str
    inputs: tuple[bytes, ...]
    #: Attempts that brought nothing so far, by receipt.
    tries: dict[str, int]
    #: Its lane counts it as a batch: also where the record of that is gone, or the lane would never get its place back (B9).
    is_batch: bool
    #: What the provider recognises each member's operation by (K5), in payload order, and the runs that asked first.
    keys: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    #: The provider's job that does the work; known from the start where an earlier attempt submitted it (P10).
    job: str | None = None
    #: It has its slot in the lane.
    counted: bool = False
    #: Its caller was asked: it may be at the provider.
    sent: bool = False
    #: When the last heartbeat that counts was sent (see ``renewals``).
    renewed_at: float = float("-inf")
    #: Outcomes decided without a call: its providers file forbids it, or the record of its batch is gone. Empty: it may be made.
    barred: tuple[MemberOutcome, ...] = ()
    claim: BatchClaimed = field(default=None)  # type: ignore[assignment]


class Calls:
    """The calls of this process that may be under way at their providers."""

    def __init__(
        self,
        settings: Settings,
        providers: Providers,
        caller: Caller,
        settlement: Settlement,
        *,
        slot: Callable[[Flight], Awaitable[bool]],
        may_send: Callable[[Flight], Awaitable[bool]],
        on_answer: Callable[[Flight, CallReport], None],
        on_end: Callable[[Flight], None],
        fail: Callable[[PaidonceError], None],
        checkpoint: Checkpoint,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._providers = providers
        self._caller = caller = Guarded(caller)
        self._settlement = settlement
        self._slot = slot
        self._may_send = may_send
        self._on_answer = on_answer
        self._on_end = on_end
        self._fail = fail
        self._checkpoint = checkpoint
        self._clock = clock
        self._tasks: dict[str, tuple[Flight, asyncio.Task[None]]] = {}
        #: The process stops: what waits for its moment is given back.
        self._ending = asyncio.Event()
        self._terms = TodaysTerms(providers)
        self._jobs = Jobs(providers, caller, ending=self._ending, clock=clock, checkpoint=checkpoint)
        self.made = 0

    def flight(
        self,
        actor: Actor,
        partition: int,
        lane: str,
        departure: Departure,
        members: tuple[ClaimedMember, ...],
        lease: str,
        claimed_at: float,
    ) -> Flight:
        """Prepare a call: its payload in order, and its inputs as the table has them."""
        payload, batch, lost = members, departure.batch, None
        if batch:
            stored = actor.record_of(record_key(BATCH, batch), Batch)
            lost = _lost(actor, batch, stored)
            # A claim without the name of its batch leaves no record of a batch that would be smaller than the one that was sent.
            payload, batch = (members, "") if stored is None else (_payload(stored, members), batch)
        elif len(members) > 1:
            names = [f"{member.receipt}:{member.epoch}:{member.op}" for member in members]
            batch = address.batch_key(departure.tool, names)
        read = payload if lost is None else ()
        receipts = actor.records_of([record_key(RECEIPT, member.receipt) for member in read], Receipt)
        inputs = [
            receipt.input if receipt.input is not None else actor.records_of([record_key(ASK, member.receipt)], Ask)[0].input
            for member, receipt in zip(read, receipts, strict=True)
        ]
        if lost is None:
            job = None if batch else job_of(receipts[0], payload[0].epoch, payload[0].op)
            barred = self._terms.barred(departure.tool, payload, receipts, inputs, job=job is not None)
        else:
            job, barred = None, tuple(Refused(lost) for _ in payload)
        return Flight(
            actor=actor,
            partition=partition,
            lane=lane,
            tool=departure.tool,
            lease=lease,
            claimed_at=claimed_at,
            send_at=departure.send_at,
            members=members,
            payload=payload,
            batch=batch,
            inputs=tuple(inputs),
            tries={entry.receipt: entry.need.tries for entry in departure.entries},
            is_batch=departure.is_batch,
            keys=tuple(map(operation_key, read, receipts)),
            runs=tuple(dict.fromkeys(receipt.run for receipt in receipts)),
            job=job,
            barred=barred,
        )

    def start(self, flight: Flight) -> None:
        """The claim is granted: make the call."""
        task = asyncio.create_task(self._run(flight), name=f"call/{flight.lease}")
        self._tasks[flight.lease] = (flight, task)
        task.add_done_callback(lambda _task: self._tasks.pop(flight.lease, None))

    def is_in_flight(self, lease: str) -> bool:
        """A call of this process under this lease has not yet told its end."""
        return lease in self._tasks

    def in_flight(self) -> dict[int, list[Flight]]:
        """Calls in flight, by partition."""
        found: dict[int, list[Flight]] = {}
        for flight, _ in self._tasks.values():
            found.setdefault(flight.partition, []).append(flight)
        return found

    async def drain(self, grace_seconds: float) -> None:
        """Give back what was not sent, and wait until all calls have told their end, or the grace time is over; the rest is left to
        their leases.
        """
        self._ending.set()
        flights = {task: flight for flight, task in self._tasks.values()}
        if flights:
            _, late = await asyncio.wait(flights, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                log.warning("%d calls had not ended after %g s of grace", len(late), grace_seconds)
                await asyncio.wait(late)
                await self._give_back([flights[task] for task in late if not flights[task].sent])

    async def _give_back(self, flights: Sequence[Flight]) -> None:
        """Nothing was sent for these, so none may end as unknown when its lease is over (L7)."""
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                await asyncio.gather(*map(self._release, flights))
        except TimeoutError:
            log.warning("some of %d calls that were not sent could not be given back", len(flights))
        except PaidonceError as error:
            self._fail(error)

    async def _release(self, flight: Flight) -> None:
        await self._settlement.say("receipt-claims", flight.partition, [LeaseReleased(flight.lease, flight.members)])

    async def close(self) -> None:
        """Release the caller's connections."""
        await self._caller.close()

    async def _run(self, flight: Flight) -> None:
        try:
            report = await self._call(flight)
            if report is None:
                await self._release(flight)
                self._tasks.pop(flight.lease, None)
                self._on_end(flight)
                return
            events = self._ends(flight, report)
            written = partial(self._checkpoint, "dispatcher:called")
            await self._settlement.settle(flight.tool, flight.partition, events, written=written)
            self._checkpoint("dispatcher:completed")
            self._tasks.pop(flight.lease, None)
            self._on_end(flight)
        except PaidonceError as error:
            self._fail(error)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            log.exception("a call of %s was cancelled from within", flight.tool)
            self._fail(PaidonceError(f"the dispatcher failed in a call of {flight.tool}: it was cancelled from within"))
        except Exception as error:  # the other shell that may: nothing that was queued may be stranded in silence (B11)
            log.exception("a call of %s ended in a defect", flight.tool)
            self._fail(PaidonceError(f"the dispatcher failed in a call of {flight.tool}: {error!r}"))

    async def _call(self, flight: Flight) -> CallReport | None:
        """Make the call; ``None`` where it may no longer be made, and nothing was sent."""
        if flight.barred:
            return CallReport(flight.barred)
        batched = len(flight.payload) > 1
        key = flight.keys[0]
        if batched:
            key = address.batch_provider_key(flight.batch, flight.keys, address.payload_digest(b"\n".join(flight.inputs)))
        if not await self._slot(flight):
            return None
        wait = flight.send_at - self._clock()
        if wait > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait)
        # The last look at the clock comes right before the bytes leave (dispatcher's rule 2).
        if self._ending.is_set() or not await self._may_send(flight):
            return None
        self.made += flight.job is None
        self._checkpoint("dispatcher:calling")
        members = zip(flight.payload, flight.inputs, strict=True)
        call = ProviderCall(
            tool=flight.tool,
            members=tuple(CallMember(member.receipt, text) for member, text in members),
            batched=batched,
            idempotency_key=key,
            request_id=address.request_id(key),
            runs=flight.runs,
            batch=flight.batch,
            job=flight.job,
        )
        flight.sent = True
        report = await self._jobs.followed(call, await self._caller.call(call), partial(self._announce, flight))
        self._on_answer(flight, report)
        return report

    async def _announce(self, flight: Flight, job: str) -> None:
        """A job was submitted: its name is in the log before anybody asks for it (P10)."""
        (member,) = flight.members
        events = job_started(member.receipt, member.n, flight.lease, job)
        await self._settlement.say("receipt-claims", flight.partition, events)
        flight.job = job

    def _ends(self, flight: Flight, report: CallReport) -> list[AttemptEnded]:
        """How each attempt ended, by the policy of retries: judged once, here, and written down."""
        claimed = {member.receipt: member for member in flight.members}
        found = self._providers.tool(flight.tool)
        repeat = Repeat.NEVER if found is None else found[1].repeat
        events = []
        # One moment and one throw of the dice for the whole call: a batch that is to be repeated is repeated as one.
        now, jitter = time.time(), random.random()
        for carried, outcome in zip(flight.payload, report.outcomes, strict=True):
            member = claimed.get(carried.receipt)
            if member is None:
                continue
            if flight.job is not None:
                # Asking again is no second call, whatever the tool says of calls.
                outcome, repeat = of_job(outcome), Repeat.WITH_KEY
            if isinstance(outcome, Refused) and (scope := scope_in(outcome.fault.code)) is not None:
                log.warning("auth_scope_changed_reclaim: receipt %s of %s, now under scope %s", member.receipt, flight.tool, scope)
            tries = flight.tries.get(member.receipt, 0) + 1
            end = outcome_of(outcome, repeat, tries, self._settings.attempts_max, now, jitter)
            events.append(AttemptEnded(member.receipt, member.n, member.epoch, flight.lease, end))
        return events


def operation_key(member: ClaimedMember, receipt: Receipt) -> str:
    """What a provider recognises a member's operation by (K5): of a forced call, the demand that forced it goes into it."""
    forced = 0 < member.epoch <= len(receipt.refreshes)
    invocation = ("refresh", receipt.refreshes[member.epoch - 1]) if forced else None
    return address.provider_key(member.receipt, member.epoch, member.op, invocation=invocation)


def _lost(actor: Actor, batch: str, stored: Batch | None) -> Fault | None:
    """What keeps a batch from being repeated as it was: a record that is gone, although nothing drops it before its time.

    A call of what is left would be another operation, and paid again. So nothing is sent, and this attempt is a refusal; behind
    the one in doubt that makes its member *unknown*, which a look-up or a person settles.
    """
    gone = [batch] if stored is None else [name for name, _, _ in stored.members if not _has_input(actor, name)]
    if not gone:
        return None
    message = f"{batch} cannot be repeated as it was: there is no record any more of what was asked by {', '.join(gone[:3])}"
    log.error("%s; its members are not called for", message)
    return Fault("batch_lost", message, True)


def _has_input(actor: Actor, name: str) -> bool:
    receipt = actor.record_of(record_key(RECEIPT, name), Receipt)
    return receipt is not None and (receipt.input is not None or actor.record_of(record_key(ASK, name), Ask) is not None)


def _payload(batch: Batch, members: tuple[ClaimedMember, ...]) -> tuple[ClaimedMember, ...]:
    """A batch as it was, with the attempt numbers of the members that are claimed again."""
    claimed = {member.receipt: member for member in members}
    return tuple(claimed.get(receipt) or ClaimedMember(receipt, 0, epoch, op) for receipt, epoch, op in batch.members)


def outcome_of(outcome: MemberOutcome, repeat: Repeat, tries: int, tries_max: int, now: float, jitter: float) -> Outcome:
    """The event's outcome for a member: what is worth another attempt, when, and what is final."""
    match outcome:
        case Answered(output=output):
            return Value(output)
        case Refused(fault=fault):
            return Failed(fault)
        case NotDone(fault=fault, retry_after_seconds=retry_after):
            limit = tries_max_of(fault.code, has_retry_after=retry_after is not None, attempts_max=tries_max)
            if tries >= limit:
                return Failed(Fault(fault.code, f"{fault.message} (given up after {tries} attempts)", True))
            wait = max(retry_after or 0.0, backoff_ms(tries, jitter=jitter) / 1000)
            return Retry(fault, int((now + wait) * 1000))
        case Doubtful(fault=fault, used_up=used_up):
            if used_up is not None:
                return Ambiguous(fault, used_up=used_up)
            # Also where the tool may never be repeated: its receipt may be from a day on which it might (U1).
            if repeat is Repeat.NEVER or tries >= tries_max:
                return Ambiguous(fault, used_up=True)
            return Ambiguous(fault, int(now * 1000) + backoff_ms(tries, jitter=jitter))
