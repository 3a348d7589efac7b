"""One worker process: a Faust app that routes messages, and the actors of the partitions that it owns.

Faust decides which partitions are ours and delivers their messages; an actor for each table and partition folds them. This
module opens and closes actors, and ends the process when something is wrong that no retry within it can mend.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import faust
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.broker import topics
from streams.broker.faults import known_fault
from streams.companion import Companion
from streams.datafolder import DataFolder
from streams.errors import Fenced, PaidonceError, StateError, Unreachable
from streams.kafka.faust_tables import FAUST_SETTINGS, BulkTable
from streams.kafka.handover import HandOver
from streams.kafka.inbox import Delivery, Inbox
from streams.kafka.lostends import Lost
from streams.kafka.producers import ProducerPair
from streams.kafka.recovery import recover
from streams.kafka.transport import BulkConsumer, BulkTransport
from streams.settings import Settings
from streams.table import Store, StoreMemory
from streams.turn import Actor, AgentSpec, Checkpoint, TurnNames
from streams.watchdog import EXIT_CODE, Watchdog, end_by

log = logging.getLogger(__name__)

#: How often the worker knocks at the brokers, and how long it waits for one.
KNOCK_SECONDS = 5.0
#: What a stop may take beyond the grace time of calls in flight.
STOP_SECONDS = 15.0
#: A worker gives up when the group has assigned nothing to it for so long; a rebalance takes at most half of that.
JOIN_SECONDS = 120.0


class _App(faust.App):
    """Faust's app with our transport; ``paidonce`` is the worker that owns it."""

    paidonce: Worker

    def _new_transport(self) -> Any:
        return BulkTransport(self.conf.broker_consumer, self)

    async def on_stop(self) -> None:
        """Let the worker finish while its partitions are still its own; Faust signals no revocation here."""
        await self.paidonce.wind_down()
        await super().on_stop()


@dataclass
class Worker:
    """A worker: build it, ``await run()``, and end the process with what that returns."""

    settings: Settings
    specs: Sequence[AgentSpec]
    companion: Companion = field(default_factory=Companion)
    checkpoint: Checkpoint = lambda _step: None
    actors: dict[tuple[str, int], Actor] = field(default_factory=dict)
    #: Called when partitions were opened or closed.
    on_change: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.connection: Mapping[str, Any] = self.settings.connection()
        self.failure: PaidonceError | None = None
        self.recovered_records = 0
        #: Generation of the consumer group in which our partitions were opened.
        self._generation = -1
        self._stop = asyncio.Event()
        self._memory = StoreMemory(write_buffer_bytes=self.settings.write_buffer_bytes, cache_bytes=self.settings.block_cache_bytes)
        self._folder = DataFolder(self.settings.data)
        self._joined = asyncio.Event()
        tables = {topic: spec.table for spec in self.specs for topic in spec.topics}
        self.handover = HandOver(self.actors, tables, self.settings.topic_prefix)
        #: Grows with each revocation: what was begun before it is given up.
        self._tenure = 0
        #: One opening or closing of a table at a time: a rebalance may come while another one's partitions are being opened.
        self._placing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables of this worker."""
        return tuple(spec.table for spec in self.specs)

    async def run(self) -> int:
        """Work until stopped; returns the exit code: 0 after an orderly stop."""
        try:
            self._folder.lock()
            await topics.check(
                self.connection, self.settings.app, self.settings.partitions, self.settings.topic_prefix, self.tables
            )
            if (fault := await known_fault(self.connection)) is not None:
                log.warning("the broker at %s: %s", self.settings.broker, fault)
            self._folder.claim(f"{self.settings.app} on cluster {await topics.cluster_of(self.connection)}")
            await self.companion.start()
            self.app = self._build()
            await self._live()
        except PaidonceError as error:
            self.failure = self.failure or error
        except KafkaError as error:  # the broker went just now; Faust's own producer lets that through
            self.failure = self.failure or Unreachable(f"no Kafka broker answers at {self.settings.broker}: {error!r}")
        finally:
            self._folder.release()
        if self.failure is None and getattr(self, "app", None) is not None and self.app.crash_reason is not None:
            reason = self.app.crash_reason
            ours = isinstance(reason, PaidonceError)
            self.failure = reason if ours else PaidonceError(f"the stream client crashed: {reason!r}")
        if self.failure is not None:
            log.error("worker stops: %s", self.failure)
            return self.failure.exit_code
        return 0

    async def _live(self) -> None:
        """Start the app, wait until it is to stop, and stop it; where its start failed, too: its actors need the folder's lock."""
        looking = asyncio.create_task(self._knock()), asyncio.create_task(self._join_in_time())
        try:
            watchdog = await self._started()
            if watchdog is not None:
                await self.app.wait_for_stopped(self._stop)
                watchdog.stop()
        finally:
            deadline = end_by(self.settings.grace_seconds + STOP_SECONDS, self.failure.exit_code if self.failure else EXIT_CODE)
            for task in looking:
                task.cancel()
            await self.app.stop()
            deadline.cancel()

    async def _started(self) -> Watchdog | None:
        """Start the app; ``None`` where a stop was asked for meanwhile: a start that waits for a broker does not hear of it."""
        starting = asyncio.create_task(self.app.start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return None
        await starting
        return self._watch()

    async def _join_in_time(self) -> None:
        """Stop with an error when the group never answers: aiokafka keeps an error of the first join to itself (0.14)."""
        try:
            await asyncio.wait_for(self._joined.wait(), JOIN_SECONDS)
        except TimeoutError:
            self.fail(Unreachable(f"the consumer group {self.settings.app} gave this worker no word for {JOIN_SECONDS:g} s"))

    def _watch(self) -> Watchdog:
        """End the process when it only looks alive: its partitions must go to someone who folds them."""
        watchdog, limit = Watchdog(), self.settings.stall_seconds
        consumer = cast(BulkConsumer, self.app.consumer)
        watchdog.expect("fetcher", consumer.last_fetch, limit * 2)
        watchdog.expect("group heartbeat", consumer.last_beat, limit)
        watchdog.start(asyncio.get_running_loop(), loop_limit_seconds=limit)
        return watchdog

    async def _knock(self) -> None:
        """Stop with an error when no broker has taken a connection for ``broker_seconds``: the clients would retry for ever."""
        loop = asyncio.get_running_loop()
        answered = loop.time()
        while True:
            await asyncio.sleep(KNOCK_SECONDS)
            if await self._a_broker_answers():
                answered = loop.time()
            elif loop.time() - answered > self.settings.broker_seconds:
                self.fail(Unreachable(f"no Kafka broker at {self.settings.broker} for {self.settings.broker_seconds:g} s"))
                return

    async def _a_broker_answers(self) -> bool:
        for address in self.settings.broker.split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), KNOCK_SECONDS)
            except (OSError, TimeoutError, ValueError):
                continue
            writer.close()
            return True
        return False

    def stop(self) -> None:
        """Ask for an orderly stop."""
        self._stop.set()

    def fail(self, error: PaidonceError) -> None:
        """Stop with an error, unless a newer owner merely took a partition."""
        if isinstance(error, Fenced):
            asyncio.get_running_loop().call_later(self.settings.session_seconds * 2, self._check_fenced, error)
            return
        self.failure = self.failure or error
        self._stop.set()

    def _check_fenced(self, error: Fenced) -> None:
        """A fenced partition must have been revoked by now; if not, this process and the group disagree."""
        if any(actor.fenced for actor in self.actors.values()):
            self.failure = self.failure or error
            self._stop.set()

    def _build(self) -> _App:
        settings = self.settings
        folder = settings.data.resolve()
        instance = self._folder.instance_id()
        app = _App(
            settings.app,
            broker=[f"kafka://{address}" for address in settings.broker.split(",")],
            datadir=str(folder / "faust"),
            topic_partitions=settings.partitions,
            broker_session_timeout=settings.session_seconds,
            broker_heartbeat_interval=settings.session_seconds / 4,
            broker_rebalance_timeout=60.0,
            consumer_group_instance_id=instance,
            canonical_url=f"http://{instance}",
            **FAUST_SETTINGS,
        )
        app.paidonce = self
        self.names = TurnNames(settings.app, instance, settings.partitions, settings.topic_prefix)
        for spec in self.specs:
            table = BulkTable(app, name=spec.table, partitions=settings.partitions, key_type=bytes, value_type=bytes)
            table.opened = self._open
            app.tables.add(table)
            self._route(app, spec)
        app.on_partitions_revoked.connect(self._on_revoked)
        app.on_partitions_assigned.connect(self._on_assigned)
        app.finalize()
        return app

    def _route(self, app: _App, spec: AgentSpec) -> None:
        """A Faust agent that only puts each message into its partition's inbox."""
        prefix = self.settings.topic_prefix
        topic = app.topic(
            *(prefix + name for name in spec.topics),
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            acks=True,
        )

        consumer = cast(BulkConsumer, app.consumer)

        async def route(stream: Any) -> None:
            async for event in stream.noack().events():
                message = event.message
                actor = self.actors.get((spec.table, message.partition))
                # A message fetched before a rebalance must not overtake those that are read again after it.
                if actor is not None and message.generation_id == self._generation:
                    actor.inbox.deliver(
                        Delivery(
                            message.topic[len(prefix) :],
                            message.offset,
                            message.key,
                            message.value,
                            list((message.headers or {}).items())
                            if isinstance(message.headers, Mapping)
                            else message.headers or (),
                            event,
                            consumer.position_behind(message.tp, message.offset),
                        )
                    )

        app.agent(topic, name=spec.table)(route)

    async def _open(self, table: str, partitions: set[int]) -> None:
        """Fence older owners, recover, and start the actors of these partitions."""
        tenure, generation = self._tenure, self.app.consumer_generation_id

        def still_owned() -> bool:
            return self._tenure == tenure and self.app.consumer_generation_id == generation

        try:
            async with self._placing[table]:
                if still_owned() and self.app.consumer.flow_active:
                    await self._open_owned(table, partitions, still_owned)
                    self._generation = generation
        except Exception as error:  # Faust would swallow it and wait for ever
            # What goes wrong while the partitions are taken away says nothing of them: their next owner would hear of it, too.
            if self._stop.is_set() or not still_owned():
                log.info("opening %s was overtaken: %r", table, error)
                return
            if isinstance(error, PaidonceError):
                self.fail(error)
                return
            log.exception("opening %s failed", table)
            self.fail(StateError(f"cannot open partitions of {table}: {error!r}"))

    async def _open_owned(self, table: str, partitions: set[int], still_owned: Callable[[], bool]) -> None:
        await self._close(table)
        spec = next(spec for spec in self.specs if spec.table == table)
        opened = await self._recover(spec, sorted(partitions), still_owned)
        if not still_owned():
            await asyncio.gather(*(actor.stop() for actor in opened.values()))
            return
        self.actors.update({(table, partition): actor for partition, actor in opened.items()})
        await self.companion.opened(table, opened)
        for actor in opened.values():
            actor.start()
        self.on_change()

    async def _recover(self, spec: AgentSpec, partitions: Sequence[int], still_owned: Callable[[], bool]) -> dict[int, Actor]:
        pairs = {
            partition: ProducerPair(
                f"{self.settings.app}/{spec.table}/{partition}",
                self.connection,
                list(topics.topics_of(self.settings.app, self.settings.topic_prefix, self.tables)),
            )
            for partition in partitions
        }
        stores: dict[int, Store] = {}
        changelog = self.names.changelog(spec.table)
        try:
            await asyncio.gather(*(pair.start() for pair in pairs.values()))
            for partition in partitions:
                stores[partition] = Store(self.settings.data / "tables" / spec.table / str(partition), self._memory)
            self.recovered_records += await recover(
                {TopicPartition(changelog, partition): store for partition, store in stores.items()},
                self.connection,
                still_owned=still_owned,
                lost=Lost(
                    self.connection,
                    spec.table,
                    self.settings.topic_prefix + "turns",
                    {TopicPartition(changelog, partition): pair for partition, pair in pairs.items()},
                ),
            )
        except BaseException:
            for store in stores.values():
                store.close()
            await asyncio.gather(*(pair.stop() for pair in pairs.values()))
            raise
        return {partition: self._actor(spec, partition, stores[partition], pairs[partition]) for partition in partitions}

    def _actor(self, spec: AgentSpec, partition: int, store: Store, pair: ProducerPair) -> Actor:
        consumer, prefix = self.app.consumer, self.settings.topic_prefix
        inbox = Inbox(
            spec.topics,
            bytes_max=self.settings.inbox_bytes_max,
            turn_bytes_max=self.settings.turn_bytes_max,
            on_full=lambda topic: consumer.on_buffer_full(TP(prefix + topic, partition)),
            on_drained=lambda topic: consumer.on_buffer_drop(TP(prefix + topic, partition)),
        )
        return Actor(
            spec,
            partition,
            self.names,
            store,
            pair,
            inbox,
            on_effects=lambda p, effects, context: self.companion.effects(spec.table, p, effects, context),
            on_failure=self.fail,
            on_published=self.handover.published,
            checkpoint=self.checkpoint,
        )

    def positions(self) -> dict[TP, int]:
        """Next offset to fold of every source partition that was ever folded here."""
        return {
            TP(self.settings.topic_prefix + topic, partition): offset
            for (_, partition), actor in self.actors.items()
            for topic, offset in actor.record.offsets.items()
        }

    async def _on_assigned(self, *_args: Any, **_kwargs: Any) -> None:
        self._joined.set()

    async def _on_revoked(self, *_args: Any, **_kwargs: Any) -> None:
        self._tenure += 1
        await self.companion.revoked()
        for table in self.tables:
            async with self._placing[table]:
                await self._close(table)
        self.on_change()

    async def _close(self, table: str) -> None:
        mine = [key for key in self.actors if key[0] == table]
        await asyncio.gather(*(self.actors.pop(key).stop() for key in mine))

    async def wind_down(self) -> None:
        """Orderly stop: let calls in flight end while turns still go on, then close the partitions."""
        await self.companion.stop()
        self._tenure += 1
        for table in self.tables:
            async with self._placing[table]:
                await self._close(table)
