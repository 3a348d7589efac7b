"""Getting what was paid for into the log, also while the broker is away: journal, ladder, breaker and salvage (docs/design.md).

Between the dispatcher's calls and its publisher. A persistence failure never leads to a second provider call: the same bytes are
published again, which the fold makes harmless (S4), and new calls stop until something is acknowledged (S6).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from schemas.events import AttemptEnded, Event, LeasesRenewed, Value
from streams.calling.cleanup import CleanUp
from streams.calling.journal import AnswerJournal, Segment
from streams.calling.outbox import EventPublisher
from streams.calling.salvage import Salvaged, SalvageFile, Why
from streams.errors import Unreachable
from streams.settings import Settings

log = logging.getLogger(__name__)

#: Waits between publications of the same bytes (S3).
LADDER_SECONDS = (1.0, 3.0, 9.0)
#: So much of the budget must be left behind a wait, else there is no further one.
RESERVE_SECONDS = 10.0
COMPLETIONS = "receipt-completions"


@dataclass(slots=True)
class Breaker:
    """Open from the first persistence failure until something is acknowledged: no provider call starts meanwhile (S6)."""

    clock: Callable[[], float]
    opened_at: float | None = None
    #: Provider calls that did not start because of it, ever.
    prevented: int = 0
    on_close: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        """No provider call may start."""
        return self.opened_at is not None

    def trip(self, error: Unreachable) -> None:
        """Something could not be made durable."""
        if self.opened_at is None:
            self.opened_at = self.clock()
            log.error("no provider call starts until the broker acknowledges: %s", error)

    def close(self) -> None:
        """Something is durable."""
        if self.opened_at is not None:
            away, self.opened_at = self.clock() - self.opened_at, None
            log.warning("the broker acknowledges again after %.1f s; %d provider calls were prevented so far", away, self.prevented)
            self.on_close()


@dataclass(slots=True, eq=False)
class _Unpublished:
    """The end of one provider call that is not acknowledged yet."""

    tool: str
    events: Sequence[AttemptEnded]
    first_error_ms: int = 0
    error: str = ""


@dataclass
class Settlement:
    """Publishes for the dispatcher, come what may."""

    settings: Settings
    publisher: EventPublisher
    journal: AnswerJournal
    salvage: SalvageFile
    clock: Callable[[], float]
    breaker: Breaker = field(init=False)
    clean_up: CleanUp = field(default_factory=CleanUp)
    #: In the order of their answers.
    _unpublished: dict[_Unpublished, None] = field(default_factory=dict)
    #: A ladder has come to its end: those that begin later are cut short (S3).
    _exhausted: bool = False
    #: Publications that have failed and are tried again now.
    _failing: int = 0
    #: Held, by topic and partition, while what could not be published there is published again, one after the other.
    _repeating: dict[tuple[str, int], asyncio.Lock] = field(default_factory=dict)
    #: Copies of what is durable already, which may be acknowledged late.
    _copies: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.breaker = Breaker(self.clock)

    async def start(self) -> None:
        """Publish what the process before this one read but may not have published. Raises ``Unreachable``."""
        await self.publisher.start()
        unpublished = self.journal.unpublished()
        copies = {self.publisher.enqueue(COMPLETIONS, partition, events) for partition, events in unpublished}
        if copies:
            # The client would try for ever; nobody looks after the broker yet.
            await asyncio.wait(copies, timeout=self.settings.broker_seconds)
            for copy in copies:
                if not copy.done():
                    raise Unreachable(
                        f"{len(copies)} journalled answers were not acknowledged in {self.settings.broker_seconds:g} s"
                    )
                copy.result()
        again = [event for _, events in unpublished for event in events]
        if again:
            log.warning("published %d answers that the process before this one had read and may not have published", len(again))
        if self.salvage.path.exists():
            now = _now_ms()
            self.salvage.keep(Salvaged(Why.PUBLISHED, now, event.receipt, attempt=event.n) for event in again)
        self.journal.clear()

    async def settle(self, tool: str, partition: int, events: Sequence[AttemptEnded], *, written: Callable[[], None]) -> None:
        """Make the end of a provider call durable; ``written`` is called when it is in the journal.

        Raises ``Unreachable`` once the ladder has come to its end: the answers are in journal and salvage then.
        """
        kept = _Unpublished(tool, events)
        self._unpublished[kept] = None
        segment = self._written_down(tool, partition, events)
        written()
        await self._climb(COMPLETIONS, partition, events, kept)
        del self._unpublished[kept]
        if segment is not None:
            self.journal.published(segment)

    async def beat(self, partition: int, leases: Sequence[str], seconds: float | None = None) -> bool:
        """Renew leases; whether that was acknowledged in time (``broker_seconds`` where nothing is said).

        What cannot be published is logged, and the next beat is the retry (L5): an old one would help nobody.
        """
        beats = {self.publisher.enqueue("lease-heartbeats", partition, [LeasesRenewed(tuple(leases))])}
        error = await _acknowledged(beats, seconds or self.settings.broker_seconds, f"lease-heartbeats/{partition}")
        if error is None:
            return True
        self._forget(beats)
        log.warning("%d leases could not be renewed: %s", len(leases), error)
        await self.publisher.renew()
        return False

    async def say(self, topic: str, partition: int, events: Sequence[Event]) -> None:
        """Publish claims, releases and marks; they are repeated only where the publisher said that it failed, and in order.

        A release that overtook its claim would leave a lease that nobody gives back. Raises ``Unreachable`` once the ladder has
        come to its end.
        """
        self.clean_up.giving(events)
        await self._say(topic, partition, events)
        self.clean_up.gave(events)

    async def _say(self, topic: str, partition: int, events: Sequence[Event]) -> None:
        repeating = self._repeating.get((topic, partition))
        if repeating is None or not repeating.locked():
            error = await _acknowledged(
                {self.publisher.enqueue(topic, partition, events)}, self.settings.broker_seconds, f"{topic}/{partition}"
            )
            if error is None:
                self._durable()
                return
            self.breaker.trip(error)
        async with self._repeating.setdefault((topic, partition), asyncio.Lock()):
            await self._climb(topic, partition, events, None)

    async def stop(self) -> None:
        """The worker ends: write down what is not published (S5), then disconnect."""
        lines = [
            Salvaged(
                Why.UNPUBLISHED,
                _now_ms(),
                event.receipt,
                kept.tool,
                event.n,
                kept.first_error_ms,
                kept.error,
                msgspec.Raw(event.outcome.output),
            )
            for kept in self._unpublished
            for event in kept.events
            if isinstance(event.outcome, Value)
        ]
        self.salvage.keep(lines)
        if lines:
            log.error(
                "%d paid answers could not be published; the next start with this data folder publishes them, and %s shows them; "
                "%d provider calls were prevented",
                len(lines),
                self.salvage.path,
                self.breaker.prevented,
            )
        self.clean_up.tell([kept.events for kept in self._unpublished], self.settings.lease_seconds)
        for copy in self._copies:
            copy.cancel()
        await self.publisher.stop()

    def kept_aside(self, receipt: str, tool: str, n: int, output: bytes) -> None:
        """A value came for which its receipt has no use: it was paid for, so it is kept where a person finds it."""
        log.warning("receipt %s: a further value of attempt %d was kept aside, see %s", receipt, n, self.salvage.path)
        self.salvage.keep([Salvaged(Why.KEPT_ASIDE, _now_ms(), receipt, tool, n, output=msgspec.Raw(output))])

    def _written_down(self, tool: str, partition: int, events: Sequence[AttemptEnded]) -> Segment | None:
        """Journal the answers; a full disk must not keep paid answers from being published."""
        try:
            return self.journal.append(partition, events)
        except OSError as error:
            log.error("answers of %s are published without having been journalled: %s", tool, error)
            return None

    async def _climb(self, topic: str, partition: int, events: Sequence[Event], kept: _Unpublished | None) -> None:
        """Publish until one copy is acknowledged: at once, after 1, 3 and 9 s while the budget lasts, and wait to its end."""
        began, copies = self.clock(), set[asyncio.Future[None]]()
        # Doubt is for what was paid. A claim that lies there for long is given back when it is folded, not published twice.
        patience = self.settings.publish_seconds if kept is not None else self.settings.broker_seconds
        waits, failing, where, rungs = list(LADDER_SECONDS), False, f"{topic}/{partition}", 0
        try:
            while True:
                await self.publisher.renew()
                if rungs:
                    log.info("%s: the same bytes are published again, copy %d", where, rungs + 1)
                rungs += 1
                copies.add(self.publisher.enqueue(topic, partition, events))
                error = await _acknowledged(copies, patience, where)
                if error is None:
                    break
                self.breaker.trip(error)
                if not failing:
                    failing = True
                    self._failing += 1
                if kept is not None and not kept.first_error_ms:
                    kept.first_error_ms, kept.error = _now_ms(), str(error)
                left = began + self.settings.broker_seconds - self.clock()
                if self._exhausted or not waits or left < waits[0] + RESERVE_SECONDS:
                    if copies and await _acknowledged(copies, left, where) is None:
                        break
                    self._exhausted = True
                    raise error
                # What is in doubt may still be acknowledged while we wait.
                if await self._acknowledged_while_waiting(copies, waits.pop(0), where):
                    break
        finally:
            self._forget(copies)
            self._failing -= failing
        self._durable()

    def _durable(self) -> None:
        """Something was acknowledged; as long as something else is not, calls stay stopped."""
        self._exhausted = False
        if not self._failing:
            self.breaker.close()

    async def _acknowledged_while_waiting(self, copies: set[asyncio.Future[None]], seconds: float, where: str) -> bool:
        end = self.clock() + seconds
        if copies and await _acknowledged(copies, seconds, where) is None:
            return True
        await asyncio.sleep(max(0.0, end - self.clock()))
        return False

    def _forget(self, copies: set[asyncio.Future[None]]) -> None:
        """Stop waiting for these publications; they may still complete."""
        for copy in copies:
            self._copies.add(copy)
            copy.add_done_callback(self._heard)

    def _heard(self, copy: asyncio.Future[None]) -> None:
        self._copies.discard(copy)
        if not copy.cancelled():
            copy.exception()  # looked at, so that the loop does not complain: it was published by another copy


async def _acknowledged(copies: set[asyncio.Future[None]], seconds: float, where: str) -> Unreachable | None:
    """Wait until one copy is acknowledged; else the error, and in ``copies`` those that are still in doubt."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    failed: Unreachable | None = None
    while copies:
        await _moved(copies, end)
        done = [copy for copy in copies if copy.done()]
        if not done:
            return failed or Unreachable(f"{where}: nothing was acknowledged for {seconds:g} s")
        copies.difference_update(done)
        for copy in done:
            error = copy.exception()
            if error is None:
                return None
            if not isinstance(error, Unreachable):
                raise error
            failed = error
    return failed or Unreachable(f"{where}: nothing is under way")


async def _moved(copies: set[asyncio.Future[None]], end: float) -> None:
    """Wait until one is done or the time is over; ``asyncio.wait``, with half of its cost, for this is on the way of every call."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_copy: asyncio.Future[None] | None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_at(end, wake, None)
    for copy in copies:
        copy.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        for copy in copies:
            copy.remove_done_callback(wake)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
