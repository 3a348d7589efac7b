"""A dispatcher in virtual time: its actor is the real receipts engine over memory, its log a list, its provider a script.

Time stands still while anything can run and jumps to the next timer when nothing can, so a story takes as long as its words say and
no real time. Nothing is folded until a turn is taken, so a test decides what a committed turn has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from schemas.commands import RecoveryEnded
from schemas.events import (
    AttemptEnded,
    BatchClaimed,
    CallsAnswered,
    ClaimedMember,
    Event,
    LeaseReleased,
    Mode,
    Repeat,
    ToolRequested,
)
from schemas.providers import Providers
from schemas.states import RECEIPT, Receipt
from streams.calling.journal import AnswerJournal
from streams.dispatcher import Dispatcher
from streams.engine.port import Context, Wake
from streams.engine.receipts import ReceiptsEngine
from streams.errors import PaidonceError, StateError
from streams.settings import Settings
from streams.table import WorkingSet
from tests.support.memory import Table
from tests.support.scripted_caller import ScriptedCaller
from tests.support.virtual_time import VirtualLoop, play

S = TypeVar("S", bound=msgspec.Struct)
#: Order in which the receipts agent reads its topics.
TOPICS = ("receipt-completions", "receipt-claims", "lease-heartbeats", "tool-requests")
LANE = "org/p"


# --- the log and the actor ----------------------------------------------------------------------------------


class Log:
    """What was published, in order; it acknowledges at once unless it is held up or broken."""

    def __init__(self) -> None:
        self.published: list[tuple[str, int, Event]] = []
        self.acknowledges = asyncio.Event()
        self.acknowledges.set()
        self.trouble: PaidonceError | None = None
        self.before: Callable[[str, Sequence[Event]], None] = lambda _topic, _events: None
        self.running = False
        self.renewed = 0

    async def start(self) -> None:
        """Connect."""
        self.running = True

    def enqueue(self, topic: str, partition: int, events: Sequence[Event]) -> asyncio.Future[None]:
        """Publish events; the future is done when they are acknowledged."""
        assert self.running, "published before the start or after the stop"
        if self.trouble is not None:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(self.trouble)
            return failed
        self.before(topic, events)
        self.published += [(topic, partition, event) for event in events]
        return asyncio.ensure_future(self._acknowledged())

    async def _acknowledged(self) -> None:
        await self.acknowledges.wait()

    async def publish(self, topic: str, partition: int, events: Sequence[Event]) -> None:
        """Publish events and wait until they are acknowledged."""
        await self.enqueue(topic, partition, events)

    async def renew(self) -> None:
        """Replace a producer that has failed."""
        self.renewed += 1

    async def stop(self) -> None:
        """Disconnect."""
        self.running = False

    def of(self, topic: str, kind: type[Event] = Event) -> list[Any]:
        """Events of a topic."""
        return [event for name, _, event in self.published if name == topic and isinstance(event, kind)]


class Commands:
    """The inbox of an actor, as far as the dispatcher uses it."""

    def __init__(self) -> None:
        self.waiting: list[Event] = []

    def command(self, event: Event) -> None:
        """Queue a judgement for the next turn."""
        self.waiting.append(event)


class Owner:
    """One owner of a partition of ``receipts``: what the dispatcher sees of an actor."""

    def __init__(self, table: Table, generation: int) -> None:
        self.table = table
        self.generation = generation
        self.inbox = Commands()

    def record_of(self, key: bytes, kind: type[S]) -> S | None:
        """A committed record."""
        return WorkingSet(self.table.reader).get(key, kind)

    def records_of(self, keys: Sequence[bytes], kind: type[S]) -> list[S]:
        """Committed records that must exist. Raises ``StateError``, as an actor does."""
        found = []
        for key in keys:
            record = self.record_of(key, kind)
            if record is None:
                raise StateError(f"receipts/0: no record {key!r}")
            found.append(record)
        return found


# --- the whole ----------------------------------------------------------------------------------------------

PROVIDER: dict[str, Any] = {
    "base_url": "https://p.example",
    "pace": {"concurrency": 100},
    "tools": {
        "never": {"path": "/n"},
        "key": {"path": "/k", "repeat": "with-key"},
        "batch": {"path": "/b", "repeat": "with-key", "batch": {"size_max": 3, "window_ms": 250}},
        "once": {"path": "/o", "batch": {"size_max": 3, "window_ms": 250}},
        "job": {"path": "/j", "job": {"poll_path": "/j/{job}", "deadline_seconds": 60}},
    },
}
REPEATS = {"never": Repeat.NEVER, "key": Repeat.WITH_KEY, "batch": Repeat.WITH_KEY, "once": Repeat.NEVER, "job": Repeat.NEVER}


class World:
    """A dispatcher with one owned partition, its log and its provider."""

    def __init__(self, folder: Path, *, pace: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualLoop)
        self.time: VirtualLoop = self.loop
        self.providers = Providers.model_validate({"providers": {"p": PROVIDER | {"pace": pace or PROVIDER["pace"]}}})
        self.settings = Settings(**({"lease_seconds": 3.0, "grace_seconds": 5.0, "data": folder} | settings))
        self.caller = ScriptedCaller()
        self.log = Log()
        self.journal = AnswerJournal(folder / "answers.journal")
        self.failures: list[PaidonceError] = []
        self.steps: list[str] = []
        self.table = Table(ReceiptsEngine(), partitions=1)
        self.owner = Owner(self.table, 1)
        self.folded = 0
        self.began, self.began_ms = self.time.now, int(time.time() * 1000)
        self.answers: list[Event] = []
        self.wakes: list[Wake] = []
        self.dispatcher = Dispatcher(
            self.settings,
            self.providers,
            self.caller,
            self.log,  # type: ignore[arg-type]
            self.journal,
            fail=self.failures.append,
            checkpoint=self.steps.append,
            clock=self.time.time,
        )

    async def __aenter__(self) -> World:
        await self.dispatcher.start()
        await self.opens()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.log.acknowledges.set()
        if self.log.running:
            self.log.trouble = None
            await self.dispatcher.stop()
        self.journal.close()

    async def opens(self) -> None:
        """The partition is ours: it takes its first turn."""
        await self.dispatcher.opened("receipts", {0: self.owner})  # type: ignore[dict-item]
        self.owner.inbox.command(RecoveryEnded())
        await self.turn()

    async def revoked(self) -> None:
        """The partition is taken away."""
        await self.dispatcher.revoked()
        await self.settles()

    async def returns(self) -> None:
        """The partition comes back: a new owner of the next generation."""
        self.table.generation += 1
        self.owner = Owner(self.table, self.table.generation)
        await self.opens()

    async def settles(self) -> None:
        """Let everything run that can run now."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def passes(self, seconds: float) -> None:
        """Virtual time passes; no turn is taken."""
        await asyncio.sleep(seconds)
        await self.settles()

    def freezes(self, seconds: float) -> None:
        """The whole process stands still for a while (SIGSTOP): its clock goes on, and nothing ran in between."""
        self.time.now += seconds

    def say(self, topic: str, *events: Event) -> None:
        """Somebody publishes."""
        self.log.published += [(topic, 0, event) for event in events]

    def table_is_open(self, *receipts: str) -> bool:
        """These receipts wait to be called for, or are being called: nothing has ended them."""
        found = [self.owner.record_of(RECEIPT + name.encode(), Receipt) for name in receipts]
        return all(receipt is not None and receipt.open for receipt in found)

    async def asks(self, names: str, tool: str = "never", *, run: str = "run", mode: Mode = Mode.NORMAL) -> None:
        """Cells ask for receipts, one for each letter; a turn folds that."""
        refresh = None if mode is Mode.NORMAL else f"refresh-{run}"
        for name in names:
            request = ToolRequested(name, f"{run}:{name}", run, 0, LANE, f"p.{tool}", REPEATS[tool], b"{}", mode, refresh)
            self.say("tool-requests", request)
        await self.turn()

    async def turn(self, *, without: Sequence[str] = ()) -> None:
        """Fold all that was published, some topics left unread, in one committed turn."""
        await self.settles()
        # The wall clock and the steady one go at one rate; the dispatcher reads the real one for moments that it writes down.
        self.table.now_ms = self.began_ms + int((self.time.now - self.began) * 1000)
        unread, self.log.published[self.folded :] = self.log.published[self.folded :], []
        kept = [entry for entry in unread if entry[0] in without]
        read = [entry for entry in unread if entry[0] not in without]
        self.log.published += read
        self.folded = len(self.log.published)
        self.log.published += kept
        commands, self.owner.inbox.waiting = self.owner.inbox.waiting, []
        ordered = [event for topic in TOPICS for name, _, event in read if name == topic]
        outbox = self.table.turn([*commands, *ordered])
        for (topic, partition), events in outbox.events.items():
            if topic == "tool-results":
                self.answers += events
            else:
                self.log.published += [(topic, partition, event) for event in events]
        context = Context(0, 1, self.table.generation, self.table.now_ms)
        self.dispatcher.effects("receipts", 0, outbox.effects, context)
        self.wakes += [effect for effect in outbox.effects if isinstance(effect, Wake)]
        await self.settles()

    async def turns(self, seconds: float, *, every: float = 0.005) -> None:
        """Turns are taken all the time for a while."""
        end = self.time.now + seconds
        while self.time.now < end:
            await self.passes(every)
            await self.turn()

    # What a test looks at.

    @property
    def claims(self) -> list[BatchClaimed]:
        """Claims in order."""
        return self.log.of("receipt-claims", BatchClaimed)

    @property
    def claimed(self) -> list[str]:
        """Receipts of each claim."""
        return ["".join(member.receipt for member in claim.members) for claim in self.claims]

    @property
    def released(self) -> list[str]:
        """Receipts of each release."""
        return ["".join(member.receipt for member in event.members) for event in self.log.of("receipt-claims", LeaseReleased)]

    @property
    def ends(self) -> list[AttemptEnded]:
        """Completions in order."""
        return self.log.of("receipt-completions", AttemptEnded)


@contextlib.asynccontextmanager
async def world(folder: Path, **options: Any) -> Any:
    """A world that is started and stopped, with nothing failed unless the test took note of it."""
    it = World(folder, **options)
    async with it:
        yield it
    assert not it.failures, it.failures


Story = Callable[[World], Coroutine[Any, Any, None]]


def story(**options: Any) -> Callable[[Story], Callable[[Path], None]]:
    """A test that is played in virtual time, with a world made with these options."""

    def decorate(told: Story) -> Callable[[Path], None]:
        async def play_it(folder: Path) -> None:
            async with world(folder, **options) as it:
                await told(it)

        @functools.wraps(told)
        def test(tmp_path: Path) -> None:
            play(play_it(tmp_path))

        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would take the story's own parameters for fixtures
        return test

    return decorate


def member(name: str, n: int = 1, op: int = 1) -> ClaimedMember:
    """A receipt in a claim."""
    return ClaimedMember(name, n, 0, op)


def told(it: World) -> list[tuple[str, str]]:
    """What callers were told, by receipt."""
    return [(event.receipt, event.answer.value) for event in it.answers if isinstance(event, CallsAnswered)]


async def foreign_lease(it: World) -> None:
    """A call of a process that is gone: its claim was granted to an owner before us."""
    it.say("tool-requests", ToolRequested("a", "run:a", "run", 0, LANE, "p.never", Repeat.NEVER, b"{}"))
    it.say("receipt-claims", BatchClaimed(LANE, "p.never", "", "gone", 1, (member("a"),)))
    await it.turn()
    await it.revoked()
    await it.returns()
