"""Lane planning: what may leave now, and when to look again.

One lane coalesces, batches and paces the calls of one organisation to one provider. Pure: the shell (``streams.dispatcher``) owns
clock and sockets and passes the time in, in seconds of one steady clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from schemas.providers import Providers
from streams.engine.protocol import Need

#: Calls are claimed at most this long before the pace lets them go, so that a claim is granted when its turn comes.
CLAIM_AHEAD_SECONDS = 0.05
#: Claims ahead of the ceiling, at most so many times the ceiling.
AHEAD_MAX = 2
#: Weight of the newest measurement in a running mean.
WEIGHT = 0.1
#: Window of requests that follow from an answer on this lane while nothing else is under way on it (B1): whoever could join
#: them comes at the same moment, or not soon.
JOIN_SECONDS = 0.005
#: Members of a batch that is to be repeated are gathered this long.
GATHER_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ToolForm:
    """What a lane must know of a tool: how many requests make a batch, and how long they may wait for company."""

    size_max: int = 1
    window_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LanePace:
    """How fast a lane may call: a rate with burst (GCRA), and a ceiling of calls in flight (G1)."""

    requests_per_second: float | None = None
    burst: int = 1
    concurrency: int = 4
    #: How many of the calls in flight may be batches; ``None``: all (B9).
    batches: int | None = None


#: A tool, and the text that its requests must share to share a call.
Place: TypeAlias = tuple[str, str]


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


class Entry(msgspec.Struct, frozen=True):
    """One queued receipt."""

    receipt: str
    tool: str
    run: str
    need: Need
    #: When it came into its bucket.
    since: float
    #: Only entries of one tool with the same text here may share a call (B4).
    bucket: str = ""
    #: It follows from an answer on this lane (B1).
    continues: bool = False

    @property
    def place(self) -> Place:
        """The bucket that it waits in."""
        return self.tool, self.bucket


class Departure(msgspec.Struct, frozen=True):
    """One provider call that is to be claimed now and may be sent at ``send_at``."""

    tool: str
    entries: tuple[Entry, ...]
    send_at: float
    #: The batch that is repeated as it was, or ``""``.
    batch: str = ""


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


@dataclass(slots=True)
class _Bucket:
    """Requests that may share a call, by run and in order, so that runs take turns (N7)."""

    runs: dict[str, dict[str, Entry]] = field(default_factory=dict)
    size: int = 0

    def add(self, entry: Entry) -> None:
        mine = self.runs.get(entry.run)
        if mine is None:
            mine = self.runs[entry.run] = {}
        mine[entry.receipt] = entry
        self.size += 1

    def remove(self, entry: Entry) -> None:
        mine = self.runs[entry.run]
        del mine[entry.receipt]
        if not mine:
            del self.runs[entry.run]
        self.size -= 1

    def ready_at(self, form: ToolForm, *, idle: bool) -> float:
        """When it may leave: full at once, else when the window of the one that came first is over. ``idle``: the lane is."""
        first = min((next(iter(mine.values())) for mine in self.runs.values()), key=lambda entry: entry.since)
        if self.size >= form.size_max:
            return first.since
        joins = idle and first.continues
        return first.since + (min(JOIN_SECONDS, form.window_seconds) if joins else form.window_seconds)

    def take(self, count: int) -> tuple[Entry, ...]:
        """Up to ``count`` entries, runs in turn; a run that was served goes to the end of the line."""
        taken: list[Entry] = []
        # One share for all: what is left over by rounding, or by a short run, goes on in turn.
        share = max(1, count // max(1, len(self.runs)))
        while len(taken) < count and self.runs:
            run, mine = next(iter(self.runs.items()))
            for receipt in list(itertools.islice(mine, min(share, count - len(taken)))):
                taken.append(mine.pop(receipt))
            del self.runs[run]
            if mine:
                self.runs[run] = mine
        self.size -= len(taken)
        return tuple(taken)


class Lane:
    """The queue, the pace and the gate of one lane."""

    def __init__(self, pace: LanePace, forms: Mapping[str, ToolForm], now: float) -> None:
        self.pace = pace
        self.forms = forms
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
        #: Those in which something waits.
        self._buckets: dict[Place, _Bucket] = {}
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
        bucket = self._buckets.get(entry.place)
        if bucket is not None and receipt in bucket.runs.get(entry.run, ()):
            bucket.remove(entry)
            if not bucket.size:
                del self._buckets[entry.place]

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
        # Tools take turns, so that a long run of one does not hold up the runs of others; what is repeated goes first.
        ready = deque(
            sorted(
                (candidate for candidate in self._candidates() if candidate[0] <= now),
                key=lambda candidate: (not candidate[2], self._served.get(candidate[1][0], 0), candidate),
            )
        )
        ceiling = self.pace.concurrency + self.ahead
        while ready and self.in_flight + self.claimed < ceiling:
            # The very number that is compared is returned, or rounding could name a moment at which nothing leaves.
            at = self.rate.next_at(now) - CLAIM_AHEAD_SECONDS
            if at > now:
                return departures, at if look_again is None else min(look_again, at)
            ready_at, place, batch = ready.popleft()
            if not self._may_batch and (batch or self._is_batch(place)):
                continue  # looked at again when a batch has ended
            entries = self._taken(place, batch, now)
            if not entries:
                continue
            self.claimed += 1
            self.batches += len(entries) > 1 or bool(batch)
            self._served[place[0]] = next(self._number)
            departures.append(Departure(place[0], entries, self.rate.take(now), batch))
            if not batch:
                ready.append((ready_at, place, batch))
        if self.in_flight + self.claimed >= ceiling:
            return departures, look_again
        again = min((ready_at for ready_at, _, _ in self._candidates() if ready_at > now), default=None)
        if again is not None:
            look_again = again if look_again is None else min(look_again, again)
        return departures, look_again

    @property
    def _may_batch(self) -> bool:
        limit = self.pace.batches
        return limit is None or self.batches < limit + self._ahead_of(limit)

    def _is_batch(self, place: Place) -> bool:
        bucket = self._buckets.get(place)
        return bucket is not None and min(bucket.size, self.forms.get(place[0], _ALONE).size_max) > 1

    def send_at(self, planned: float, now: float) -> float:
        """When a granted call may be sent, so that calls of which the grants came late do not all leave at once (G1)."""
        return self._sending.take(max(planned, now))

    def _place(self, entry: Entry) -> None:
        if entry.need.batch:
            self._repeats.setdefault(entry.need.batch, {})[entry.receipt] = entry
        else:
            bucket = self._buckets.get(entry.place)
            if bucket is None:
                bucket = self._buckets[entry.place] = _Bucket()
            bucket.add(entry)

    @property
    def _idle(self) -> bool:
        return not self.in_flight and not self.claimed

    def _candidates(self) -> Iterator[tuple[float, Place, str]]:
        """When each bucket and each batch to be repeated may leave."""
        idle = self._idle
        for place, bucket in self._buckets.items():
            yield bucket.ready_at(self.forms.get(place[0], _ALONE), idle=idle), place, ""
        for batch, members in self._repeats.items():
            first = next(iter(members.values()))
            yield first.since + GATHER_SECONDS, first.place, batch

    def _taken(self, place: Place, batch: str, now: float) -> tuple[Entry, ...]:
        if batch:
            entries = tuple(self._repeats.pop(batch, {}).values())
        else:
            bucket = self._buckets.get(place)
            form = self.forms.get(place[0], _ALONE)
            if bucket is None or bucket.ready_at(form, idle=self._idle) > now:
                return ()
            entries = bucket.take(form.size_max)
            if not bucket.size:
                del self._buckets[place]
        for entry in entries:
            del self._entries[entry.receipt]
        return entries


_ALONE = ToolForm()
