"""Lane planning: what may leave now, and when to look again.

One lane coalesces, batches and paces the calls of one organisation to one provider. Pure: the shell (``streams.dispatcher``) owns
clock and sockets and passes the time in, in seconds of one steady clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from schemas.providers import Providers
from streams.engine.buckets import Buckets, Entry, Place, ToolForm
from streams.engine.protocol import Need

#: Calls are claimed at most this long before the pace lets them go, so that a claim is granted when its turn comes.
CLAIM_AHEAD_SECONDS = 0.05
#: Claims ahead of the ceiling, at most so many times the ceiling.
AHEAD_MAX = 2
#: Weight of the newest measurement in a running mean.
WEIGHT = 0.1
#: Members of a batch that is to be repeated are gathered this long.
GATHER_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class LanePace:
    """How fast a lane may call: a rate with burst (GCRA), and a ceiling of calls in flight (G1)."""

    requests_per_second: float | None = None
    burst: int = 1
    concurrency: int = 4
    #: How many of the calls in flight may be batches; ``None``: all (B9).
    batches: int | None = None


def forms_of(providers: Providers) -> dict[str, ToolForm]:
    """Batch forms of all tools, by ``provider.tool``."""
    return {
        f"{name}.{tool_name}": ToolForm(tool.batch.size_max, tool.batch.window_ms / 1000)
        for name, provider in providers.providers.items()
        for tool_name, tool in provider.tools.items()
        if tool.batch is not None
    }


def pace_of(providers: Providers, lane: str) -> LanePace:
    """The pace of a lane, ``org/provider``; a provider that the file does not have gets none."""
    provider = providers.provider(lane.partition("/")[2])
    if provider is None:
        return LanePace()
    return LanePace(provider.pace.requests_per_second, provider.pace.burst, provider.pace.ceiling, provider.pace.batches)


class Departure(msgspec.Struct, frozen=True):
    """One provider call that is to be claimed now and may be sent at ``send_at``."""

    tool: str
    entries: tuple[Entry, ...]
    send_at: float
    #: The batch that is repeated as it was, or ``""``.
    batch: str = ""

    @property
    def is_batch(self) -> bool:
        """It carries several members, or did when it was called first."""
        return len(self.entries) > 1 or bool(self.batch)


class Gcra:
    """Generic cell rate algorithm: the least state that keeps a rate with a burst."""

    def __init__(self, pace: LanePace, now: float) -> None:
        self._interval = 0.0 if pace.requests_per_second is None else 1 / pace.requests_per_second
        self._tolerance = self._interval * (pace.burst - 1)
        # A new owner begins with an empty burst: it cannot know what the last one used up.
        self._arrival = now + self._tolerance

    def next_at(self, now: float) -> float:
        """When the next call may go."""
        return max(now, self._arrival - self._tolerance)

    def take(self, now: float) -> float:
        """Use up the next call, and return when it may go."""
        at = self.next_at(now)
        self._arrival = max(at, self._arrival) + self._interval
        return at


class Lane:
    """The queue, the pace and the gate of one lane."""

    def __init__(self, pace: LanePace, forms: Mapping[str, ToolForm], now: float) -> None:
        self.pace = pace
        self.rate = Gcra(pace, now)
        self._sending = Gcra(pace, now)
        #: Calls that count against the ceiling: ours that are being sent, and foreign ones whose leases live.
        self.in_flight = 0
        #: Claims of ours that are not yet being sent.
        self.claimed = 0
        #: Batches among our claims and calls, and those of them that are being sent.
        self.batches = 0
        self.batches_in_flight = 0
        #: How long a call and a grant take here, in seconds: a running mean of each.
        self.call_seconds = 1.0
        self.grant_seconds = 0.0
        #: The retry-after gate: nothing leaves before.
        self.gate = 0.0
        self._entries: dict[str, Entry] = {}
        self._buckets = Buckets(forms)
        self._repeats: dict[str, dict[str, Entry]] = {}
        self._later: list[tuple[float, int, Entry]] = []
        self._number = itertools.count(1)
        #: When each tool's bucket was served last, as a running number.
        self._served: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def queue(
        self,
        receipt: str,
        tool: str,
        run: str,
        need: Need,
        now: float,
        not_before: float,
        bucket: str = "",
        continues: bool = False,
    ) -> None:
        """A receipt needs a claim from ``not_before`` on; replaces what was queued for it."""
        old = self._entries.get(receipt)
        if old is not None:
            if old.need == need:
                return
            self.unqueue(receipt)
        entry = Entry(receipt, tool, run, need, max(now, not_before), bucket, continues)
        self._entries[receipt] = entry
        if not_before > now:
            heapq.heappush(self._later, (not_before, next(self._number), entry))
        else:
            self._place(entry)

    def unqueue(self, receipt: str) -> None:
        """A receipt needs no claim."""
        entry = self._entries.pop(receipt, None)
        if entry is None:
            return
        repeat = self._repeats.get(entry.need.batch)
        if repeat is not None and receipt in repeat:
            del repeat[receipt]
            if not repeat:
                del self._repeats[entry.need.batch]
            return
        self._buckets.remove(entry)

    @property
    def ahead(self) -> int:
        """How many claims are made beyond the ceiling, so that the next is granted just when a call ends.

        As many calls end while a claim is granted. Where calls are slow it is none: a claim that waits for its turn would be in
        doubt after a crash, although it was never sent.
        """
        return self._ahead_of(self.pace.concurrency)

    def _ahead_of(self, ceiling: int) -> int:
        return min(AHEAD_MAX * ceiling, int(ceiling * self.grant_seconds / max(self.call_seconds, 0.001)))

    def is_free(self, *, for_batch: bool) -> bool:
        """Another call may be sent now."""
        if for_batch and self.pace.batches is not None and self.batches_in_flight >= self.pace.batches:
            return False
        return self.in_flight < self.pace.concurrency

    def sends(self, *, batch: bool) -> None:
        """A claim of ours is granted and has its place: it is being sent."""
        self.claimed -= 1
        self.in_flight += 1
        self.batches_in_flight += batch

    def landed(self, *, batch: bool, sent: bool) -> None:
        """A call of ours has ended; ``sent``: it had its place."""
        self.batches -= batch
        if sent:
            self.in_flight = max(0, self.in_flight - 1)
            self.batches_in_flight -= batch
        else:
            self.claimed -= 1

    def took(self, *, grant_seconds: float | None = None, call_seconds: float | None = None) -> None:
        """Note how long a grant or a call took."""
        if grant_seconds is not None:
            self.grant_seconds += (grant_seconds - self.grant_seconds) * WEIGHT
        if call_seconds is not None:
            self.call_seconds += (call_seconds - self.call_seconds) * WEIGHT

    def pause(self, until: float) -> None:
        """Nothing of this lane leaves before ``until`` (P3)."""
        self.gate = max(self.gate, until)

    def plan(self, now: float) -> tuple[list[Departure], float | None]:
        """The calls to claim now, and when to look again although nothing happens (``None``: not until something does)."""
        while self._later and self._later[0][0] <= now:
            entry = heapq.heappop(self._later)[2]
            if self._entries.get(entry.receipt) is entry:
                self._place(entry)
        departures: list[Departure] = []
        if now < self.gate:
            return [], self.gate if self._entries else None
        look_again = self._later[0][0] if self._later else None
        ceiling = self.pace.concurrency + self.ahead
        # Tools take turns, so that a long run of one does not hold up the runs of others; what is repeated goes first.
        repeats = self._due_repeats(now)
        line = self._buckets.line(now, self._served, idle=self._idle)
        while self.in_flight + self.claimed < ceiling:
            batch = repeats.popleft() if repeats and self._may_batch else ""
            place = self._place_of(batch) if batch else line.next(batches=self._may_batch)
            if place is None:
                break
            # The very number that is compared is returned, or rounding could name a moment at which nothing leaves.
            at = self.rate.next_at(now) - CLAIM_AHEAD_SECONDS
            if at > now:
                line.close()
                return departures, at if look_again is None else min(look_again, at)
            entries = self._taken(place, batch, now)
            if not entries:
                continue
            self.claimed += 1
            departure = Departure(place[0], entries, self.rate.take(now), batch)
            self.batches += departure.is_batch
            self._served[place[0]] = next(self._number)
            departures.append(departure)
            if not batch:
                line.served(place)
        line.close()
        if self.in_flight + self.claimed >= ceiling:
            return departures, look_again
        return departures, min((at for at in (look_again, self._next_at(now)) if at is not None), default=None)

    def _next_at(self, now: float) -> float | None:
        """When the next bucket or repeat may leave that may not yet."""
        again = [at for at, _ in self._repeats_at() if at > now]
        bucket = self._buckets.next_at(idle=self._idle, batches=self._may_batch)
        if bucket is not None and bucket > now:
            again.append(bucket)
        return min(again, default=None)

    @property
    def _may_batch(self) -> bool:
        limit = self.pace.batches
        return limit is None or self.batches < limit + self._ahead_of(limit)

    def send_at(self, planned: float, now: float) -> float:
        """When a granted call may be sent, so that calls of which the grants came late do not all leave at once (G1)."""
        return self._sending.take(max(planned, now))

    def _place(self, entry: Entry) -> None:
        if entry.need.batch:
            self._repeats.setdefault(entry.need.batch, {})[entry.receipt] = entry
        else:
            self._buckets.add(entry)

    @property
    def _idle(self) -> bool:
        return not self.in_flight and not self.claimed

    def _repeats_at(self) -> Iterator[tuple[float, str]]:
        """When each batch that is to be repeated may leave."""
        for batch, members in self._repeats.items():
            yield next(iter(members.values())).since + GATHER_SECONDS, batch

    def _due_repeats(self, now: float) -> deque[str]:
        """Batches to be repeated now, the tools in turn."""
        due = [
            (self._served.get(self._place_of(batch)[0], 0), at, self._place_of(batch), batch)
            for at, batch in self._repeats_at()
            if at <= now
        ]
        return deque(batch for *_, batch in sorted(due))

    def _place_of(self, batch: str) -> Place:
        return next(iter(self._repeats[batch].values())).place

    def _taken(self, place: Place, batch: str, now: float) -> tuple[Entry, ...]:
        if batch:
            entries = tuple(self._repeats.pop(batch).values())
        else:
            bucket = self._buckets.get(place)
            if bucket is None or bucket.ready_at(idle=self._idle) > now:
                return ()
            entries = self._buckets.take(place)
        for entry in entries:
            del self._entries[entry.receipt]
        return entries
