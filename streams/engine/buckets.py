"""What waits in a lane for its first call, in buckets: requests of one tool that may share a call (B4).

Pure. Finds the bucket that may leave next without a look at all of them: a bucket key may be as fine as the rows themselves.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from streams.engine.protocol import Need

#: Window of requests that follow from an answer on this lane while nothing else is under way on it (B1): whoever could join
#: them comes at the same moment, or not soon.
JOIN_SECONDS: Final = 0.005

#: A tool, the text that its requests must share to share a call, and whether each goes alone whatever they share.
Place: TypeAlias = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class ToolForm:
    """What a lane must know of a tool: how many requests make a batch, and how long they may wait for company."""

    size_max: int = 1
    window_seconds: float = 0.0


_ALONE = ToolForm()


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
        """The bucket that it waits in.

        What is in doubt goes alone, as it went before: its key would be another in a batch, and paid for once more (K5).
        """
        return self.tool, self.bucket, self.need.op != self.need.n


class Bucket:
    """Requests that may share a call, by run and in order, so that runs take turns (N7)."""

    __slots__ = ("first", "form", "runs", "size")

    def __init__(self, form: ToolForm, entry: Entry) -> None:
        self.form = form
        self.runs = {entry.run: {entry.receipt: entry}}
        self.size = 1
        #: The one that came first; of each run only its first is looked at, for they come nearly in order.
        self.first = entry

    @property
    def batches(self) -> bool:
        """Its next call is one for several."""
        return min(self.size, self.form.size_max) > 1

    @property
    def full(self) -> bool:
        """Nobody is waited for any more."""
        return self.size >= self.form.size_max

    def ready_at(self, *, idle: bool) -> float:
        """When it may leave: full at once, else when the window of the one that came first is over. ``idle``: the lane is."""
        if self.full:
            return self.first.since
        window = self.form.window_seconds
        return self.first.since + (min(JOIN_SECONDS, window) if idle and self.first.continues else window)

    def add(self, entry: Entry) -> None:
        """One more."""
        mine = self.runs.get(entry.run)
        self.size += 1
        if mine is not None:
            mine[entry.receipt] = entry
            return
        self.runs[entry.run] = {entry.receipt: entry}
        if entry.since < self.first.since:
            self.first = entry

    def remove(self, entry: Entry) -> None:
        """One fewer; the bucket may be empty then."""
        mine = self.runs[entry.run]
        del mine[entry.receipt]
        if not mine:
            del self.runs[entry.run]
        self.size -= 1
        if entry is self.first:
            self._look_for_first()

    def take(self) -> tuple[Entry, ...]:
        """As many as share a call, runs in turn; a run that was served goes to the end of the line."""
        count = self.form.size_max
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
        self._look_for_first()
        return tuple(taken)

    def _look_for_first(self) -> None:
        if self.runs:
            self.first = min((next(iter(mine.values())) for mine in self.runs.values()), key=lambda entry: entry.since)


class Agenda:
    """Places by the times at which they may leave: one time each."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[Place, float] = {}
        #: What no longer agrees with the times is passed over.
        self._heap: list[tuple[float, Place]] = []

    def set(self, place: Place, at: float) -> None:
        """A place may leave at this time, and at no other."""
        if self._times.get(place) != at:
            self._times[place] = at
            heapq.heappush(self._heap, (at, place))
            if len(self._heap) > 2 * len(self._times) + 64:
                self._heap = [(at, place) for place, at in self._times.items()]
                heapq.heapify(self._heap)

    def drop(self, place: Place) -> None:
        """A place does not leave."""
        self._times.pop(place, None)
        if not self._times:
            self._heap.clear()

    def first(self) -> tuple[float, Place] | None:
        """The earliest."""
        heap = self._heap
        while heap:
            at, place = heap[0]
            if self._times.get(place) == at:
                return heap[0]
            heapq.heappop(heap)
        return None


@dataclass(slots=True)
class _Tool:
    """The buckets of one tool by when they may leave, those whose call is a batch apart."""

    batches: Agenda = field(default_factory=Agenda)
    singles: Agenda = field(default_factory=Agenda)

    def set(self, place: Place, bucket: Bucket, *, idle: bool) -> None:
        one, other = (self.batches, self.singles) if bucket.batches else (self.singles, self.batches)
        one.set(place, bucket.ready_at(idle=idle))
        other.drop(place)

    def drop(self, place: Place) -> None:
        self.batches.drop(place)
        self.singles.drop(place)

    def first(self, *, batches: bool) -> tuple[float, Place] | None:
        singles = self.singles.first()
        found = self.batches.first() if batches else None
        return min(singles, found) if singles and found else singles or found


class Buckets:
    """All buckets of a lane in which something waits."""

    def __init__(self, forms: Mapping[str, ToolForm]) -> None:
        self.forms = forms
        self._buckets: dict[Place, Bucket] = {}
        self._tools: dict[str, _Tool] = {}
        #: Those that leave sooner while the lane is idle.
        self._joining = Agenda()

    def get(self, place: Place) -> Bucket | None:
        """The bucket at a place, ``None`` where nothing waits."""
        return self._buckets.get(place)

    def add(self, entry: Entry) -> None:
        """A request waits."""
        place = entry.place
        bucket = self._buckets.get(place)
        if bucket is None:
            form = _ALONE if place[2] else self.forms.get(entry.tool, _ALONE)
            bucket = self._buckets[place] = Bucket(form, entry)
        else:
            bucket.add(entry)
            if bucket.first is not entry and 2 < bucket.size != bucket.form.size_max:
                return  # when it may leave is as before
        self.note(place)

    def remove(self, entry: Entry) -> None:
        """A request waits no more, if it did."""
        bucket = self._buckets.get(entry.place)
        if bucket is not None and bucket.runs.get(entry.run, {}).get(entry.receipt) is entry:
            bucket.remove(entry)
            self.note(entry.place)

    def take(self, place: Place) -> tuple[Entry, ...]:
        """The next call of a bucket; when it may leave again is to be noted afterwards."""
        bucket = self._buckets[place]
        taken = bucket.take()
        if not bucket.size:
            del self._buckets[place]
        return taken

    def line(self, now: float, served: Mapping[str, int], *, idle: bool) -> Line:
        """Those that may leave by now, the tools in the order in which they were ``served`` last; to be closed afterwards."""
        joined: list[Place] = []
        while idle and (found := self._joining.first()) and found[0] <= now:
            self._joining.drop(found[1])
            self._tools[found[1][0]].set(found[1], self._buckets[found[1]], idle=True)
            joined.append(found[1])
        tools: dict[int, list[_Tool]] = {}
        for name, tool in self._tools.items():
            tools.setdefault(served.get(name, 0), []).append(tool)
        return Line(self, [tools[turn] for turn in sorted(tools)], joined, now)

    def next_at(self, *, idle: bool, batches: bool) -> float | None:
        """When the next bucket may leave; ``batches``: also one whose call is a batch."""
        firsts = [tool.first(batches=batches) for tool in self._tools.values()]
        if idle and (first := self._joining.first()) and (batches or not self._buckets[first[1]].batches):
            firsts.append(first)
        return min((first[0] for first in firsts if first), default=None)

    def hide(self, place: Place) -> None:
        """A bucket is not found until it is noted again."""
        self._tools[place[0]].drop(place)

    def note(self, place: Place) -> None:
        """Work out anew when a bucket may leave."""
        tool = self._tools.get(place[0])
        if tool is None:
            tool = self._tools[place[0]] = _Tool()
        bucket = self._buckets.get(place)
        if bucket is None or not bucket.size:
            self._buckets.pop(place, None)
            tool.drop(place)
            self._joining.drop(place)
            return
        tool.set(place, bucket, idle=False)
        if bucket.first.continues and not bucket.full:
            self._joining.set(place, bucket.ready_at(idle=True))
        else:
            self._joining.drop(place)


class Line:
    """The buckets that may leave at one moment, one after the other; one that was served comes again behind all others."""

    __slots__ = ("_again", "_buckets", "_now", "_seen", "_tools")

    def __init__(self, buckets: Buckets, tools: Iterable[list[_Tool]], joined: list[Place], now: float) -> None:
        self._buckets = buckets
        #: Those that come before the others; several where none of them was ever served.
        self._tools = deque(tools)
        self._again: deque[Place] = deque()
        #: Places that are not where they belong meanwhile.
        self._seen = joined
        self._now = now

    def next(self, *, batches: bool) -> Place | None:
        """The next place, ``None`` where there is none; without ``batches`` those are passed over whose call is one."""
        while self._tools:
            firsts = [first for tool in self._tools[0] if (first := tool.first(batches=batches)) and first[0] <= self._now]
            if firsts:
                _, place = min(firsts)
                self._buckets.hide(place)
                self._seen.append(place)
                return place
            self._tools.popleft()
        while self._again:
            place = self._again.popleft()
            bucket = self._buckets.get(place)
            if bucket is not None and (batches or not bucket.batches):
                return place
        return None

    def served(self, place: Place) -> None:
        """A call of this place has left; there may be another one."""
        self._again.append(place)

    def close(self) -> None:
        """Nothing leaves any more at this moment."""
        for place in self._seen:
            self._buckets.note(place)
