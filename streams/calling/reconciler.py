"""Unknown outcomes of this process's partitions: counted and logged with their ages (U5), and looked up where a tool can be (U3).

Beside the dispatcher, which hands it what committed turns say. What a look-up finds becomes the same event as a person's word, with
``who`` *reconcile*; nothing here is state, so a new owner begins again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, assert_never

from schemas import address
from schemas.events import ClaimedMember, Event, Fault, ReceiptResolved
from schemas.providers import Reconcile
from schemas.states import ASK, BATCH, RECEIPT, Ask, Batch, Receipt, record_key
from streams.calling.calls import operation_key
from streams.calling.terms import TodaysTerms
from streams.engine.effects import UnknownOver, UnknownSeen
from streams.engine.protocol import batch_of
from streams.errors import PaidonceError, StateError
from streams.loudly import heard
from streams.tools.lookup import Absent, Found, LookUp, NoWord, Pending
from streams.tools.port import Answered, CallMember, Refused
from streams.turn import Actor

log = logging.getLogger(__name__)

WHO: Final = "reconcile"
#: Waits between look-ups of one call: they double up to the longest, and end after so many; then it is a person's turn. Where
#: *never heard of* is to be believed later than that, they go on until then.
WAIT_SECONDS_MIN: Final = 1.0
WAIT_SECONDS_MAX: Final = 600.0
LOOK_UPS_MAX: Final = 16
#: Look-ups of one lane are at least this far apart, one at a time.
PACE_SECONDS: Final = 0.1
#: Look-ups of one partition that go on at once; further ones wait for their turn.
OPEN_MAX: Final = 100
#: How often what is unknown is said again, with the age of the oldest.
SAY_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Owned:
    """What is unknown on one owned partition, by receipt; and the look-ups under way."""

    actor: Actor
    unknown: dict[str, UnknownSeen] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    #: Receipts whose look-up has not begun.
    waiting: dict[str, None] = field(default_factory=dict)


class Reconciler:
    """Watches unknown outcomes; ``look_up`` is ``None`` where nothing can be looked up.

    ``say`` makes events durable, by topic and partition, and raises ``Unreachable`` once it has given up.
    """

    def __init__(
        self,
        look_up: LookUp | None,
        say: Callable[[str, int, Sequence[Event]], Awaitable[None]],
        fail: Callable[[PaidonceError], None],
        *,
        terms: TodaysTerms | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._look_up = look_up
        self._say = say
        self._terms = terms
        self._fail = fail
        self._now = now
        self._owned: dict[int, _Owned] = {}
        self._lanes: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._said_at = float("-inf")
        self._stopped = False
        #: Metrics of this process: seen since its start, and settled by a look-up.
        self.seen = 0
        self.reconciled = 0

    @property
    def unknown(self) -> int:
        """Receipts of owned partitions whose outcome is unknown now."""
        return sum(len(owned.unknown) for owned in self._owned.values())

    def take(self, partition: int, actor: Actor, effect: UnknownSeen | UnknownOver) -> None:
        """Note what a committed turn of a partition says."""
        owned = self._owned.get(partition)
        if owned is None or owned.actor is not actor:
            owned = self._owned[partition] = _Owned(actor)
        task = owned.tasks.pop(effect.receipt, None)
        if task is not None:
            task.cancel()
        if isinstance(effect, UnknownOver):
            owned.unknown.pop(effect.receipt, None)
            owned.waiting.pop(effect.receipt, None)
        else:
            owned.unknown[effect.receipt] = effect
            self.seen += 1
            owned.waiting[effect.receipt] = None
        self._begin(partition, owned)
        self.say()

    def _begin(self, partition: int, owned: _Owned) -> None:
        """Begin look-ups as long as there is room."""
        while owned.waiting and not self._stopped and len(owned.tasks) < OPEN_MAX:
            receipt = next(iter(owned.waiting))
            del owned.waiting[receipt]
            effect = owned.unknown[receipt]
            terms = None if self._look_up is None else self._look_up.terms(effect.tool)
            if self._look_up is not None and terms is not None:
                work = self._reconcile(self._look_up, partition, owned, effect, terms)
                task = owned.tasks[receipt] = asyncio.create_task(work, name=f"reconcile/{receipt}")
                task.add_done_callback(partial(heard, self._fail, f"the look-up of receipt {receipt}"))

    def say(self) -> None:
        """One line of figures now and then, as long as something is unknown."""
        now = self._now()
        if not self.unknown or now - self._said_at < SAY_SECONDS:
            return
        self._said_at = now
        oldest = min(effect.since_ms for owned in self._owned.values() for effect in owned.unknown.values())
        log.warning(
            "unknown_outcomes=%d oldest_seconds=%d seen=%d reconciled=%d; list them with paidonce receipt list --state unknown",
            self.unknown,
            max(0, int(now - oldest / 1000)),
            self.seen,
            self.reconciled,
        )

    async def revoked(self) -> None:
        """The partitions are taken away: their next owner looks up."""
        owned, self._owned = self._owned, {}
        tasks = [task for one in owned.values() for task in one.tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """End look-ups and release connections."""
        self._stopped = True
        await self.revoked()
        if self._look_up is not None:
            await self._look_up.close()

    async def _reconcile(self, look_up: LookUp, partition: int, owned: _Owned, effect: UnknownSeen, terms: Reconcile) -> None:
        try:
            event = await self._settled(look_up, owned, effect, terms)
            if event is not None:
                await self._say("receipt-completions", partition, [event])
                self.reconciled += 1
        except PaidonceError as error:
            self._fail(error)
        finally:
            if owned.tasks.get(effect.receipt) is asyncio.current_task():
                del owned.tasks[effect.receipt]
                if self._owned.get(partition) is owned:
                    self._begin(partition, owned)

    async def _settled(self, look_up: LookUp, owned: _Owned, effect: UnknownSeen, terms: Reconcile) -> ReceiptResolved | None:
        """Look up until something settles the receipt; ``None`` where that is left to a person or to a later time."""
        try:
            key, members = call_of(owned.actor, effect)
            elsewhere = self._elsewhere(owned.actor, effect, members)
        except StateError as error:
            # A receipt of its batch was forgotten, and with it an input that the key is made of. That harms nobody else.
            log.error("receipt %s cannot be looked up, and waits for a person: %s", effect.receipt, error)
            return None
        if elsewhere is not None:
            log.warning("receipt %s is not looked up: %s", effect.receipt, elsewhere.message)
            return None
        wait, asked = WAIT_SECONDS_MIN, 0
        while True:
            young = terms.absent_means == "unpaid" and self._age_seconds(effect) < terms.absent_after_seconds
            # As values: whatever goes wrong in a look-up must neither end it in silence nor end the worker.
            (said,) = await asyncio.gather(self._asked(look_up, effect, terms, key, members), return_exceptions=True)
            if isinstance(said, BaseException):
                log.error("receipt %s: the look-up failed, and is made again later", effect.receipt, exc_info=said)
            elif said is not None:
                return said
            asked += 1
            if asked >= LOOK_UPS_MAX and not young:
                log.warning("receipt %s: %d look-ups brought nothing; it waits for a person", effect.receipt, asked)
                return None
            if asked >= LOOK_UPS_MAX and owned.waiting:
                # Its place is for those that were not asked for yet; it comes again behind them.
                owned.waiting[effect.receipt] = None
                return None
            await asyncio.sleep(wait)
            wait = min(2 * wait, WAIT_SECONDS_MAX)

    def _age_seconds(self, effect: UnknownSeen) -> float:
        return self._now() - effect.since_ms / 1000

    def _elsewhere(self, actor: Actor, effect: UnknownSeen, members: tuple[CallMember, ...]) -> Fault | None:
        """Why nobody knows of this call where this worker would look it up. *Never heard of* would have it paid for again (D6)."""
        if self._terms is None:
            return None
        (receipt,) = actor.records_of([record_key(RECEIPT, effect.receipt)], Receipt)
        text = next(member.input for member in members if member.receipt == effect.receipt)
        return self._terms.other_scope(effect.tool, receipt, text)

    async def _asked(
        self, look_up: LookUp, effect: UnknownSeen, terms: Reconcile, key: str, members: tuple[CallMember, ...]
    ) -> ReceiptResolved | None:
        """One look-up: the event that it is worth, or ``None``."""
        async with self._lanes[effect.lane]:
            word = await look_up.ask(effect.tool, key, members)
            await asyncio.sleep(PACE_SECONDS)
        match word:
            case Found(outcomes=outcomes):
                places = [member.receipt for member in members]
                outcome = outcomes[places.index(effect.receipt)]
                if isinstance(outcome, Answered):
                    return ReceiptResolved(effect.receipt, effect.n, effect.epoch, outcome.output, WHO, "the provider has it")
                if isinstance(outcome, Refused):
                    return ReceiptResolved(effect.receipt, effect.n, effect.epoch, None, WHO, outcome.fault.message)
                log.warning("receipt %s: the look-up's answer is of no use: %s", effect.receipt, outcome.fault.message)
            case Absent():
                if terms.absent_means == "unpaid" and self._age_seconds(effect) >= terms.absent_after_seconds:
                    return ReceiptResolved(effect.receipt, effect.n, effect.epoch, None, WHO, "the provider never heard of it")
            case NoWord(fault=fault):
                log.warning("receipt %s: %s", effect.receipt, fault.message)
            case Pending():
                pass
            case _:
                assert_never(word)
        return None


def call_of(actor: Actor, effect: UnknownSeen) -> tuple[str, tuple[CallMember, ...]]:
    """The idempotency key and the members of the call that is in doubt, as it was sent. Raises ``StateError``."""
    (receipt,) = actor.records_of([record_key(RECEIPT, effect.receipt)], Receipt)
    batch = batch_of(receipt, effect.epoch, effect.op)
    if not batch:
        member = ClaimedMember(effect.receipt, effect.n, effect.epoch, effect.op)
        return operation_key(member, receipt), (_member(actor, effect.receipt, receipt),)
    (stored,) = actor.records_of([record_key(BATCH, batch)], Batch)
    receipts = actor.records_of([record_key(RECEIPT, name) for name, _, _ in stored.members], Receipt)
    members, keys = [], []
    for (name, epoch, op), one in zip(stored.members, receipts, strict=True):
        members.append(_member(actor, name, one))
        keys.append(operation_key(ClaimedMember(name, 0, epoch, op), one))
    payload = address.payload_digest(b"\n".join(member.input for member in members))
    return address.batch_provider_key(batch, keys, payload), tuple(members)


def _member(actor: Actor, name: str, receipt: Receipt) -> CallMember:
    text = receipt.input if receipt.input is not None else actor.records_of([record_key(ASK, name)], Ask)[0].input
    return CallMember(name, text)
