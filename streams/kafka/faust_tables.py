"""Faust's table protocol, adapted: Faust places and watches the tables, the bulk table keeps them.

Faust's assignor puts partition n of every topic on one worker as long as the app has a table; that is all these tables are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP
from mode import Service


class BulkTable(faust.Table[bytes, bytes]):
    """A table that holds nothing itself and tells the worker which partitions are ours."""

    opened: Callable[[str, set[int]], Awaitable[None]]

    async def on_start(self) -> None:
        """Nothing to declare: ``paidonce topics apply`` made the changelog, and the worker checked it."""

    def persisted_offset(self, tp: TP) -> int | None:
        """Faust need not read the changelog."""
        return None

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        """Open our partitions; whoever wrote them before is fenced by that."""
        await self.opened(self.name, {tp.partition for tp in active_tps})


class NoRecovery(Recovery):
    """Faust's recovery with nothing to read, so that it goes straight to ``on_recovery_completed``."""

    async def _build_highwaters(self, consumer: Any, tps: set[TP], destination: Any, title: str) -> None:
        destination.clear()

    async def _build_offsets(self, consumer: Any, tps: set[TP], destination: Any, title: str) -> None:
        """Offsets are in our stores."""

    async def _seek_offsets(self, consumer: Any, tps: set[TP], offsets: Any, title: str) -> None:
        """Nothing is read through Faust."""

    def need_recovery(self) -> bool:
        """Never by Faust."""
        return False

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        """Open the tables, set positions, and only then let messages in.

        Faust lets partitions be fetched first, seeks then, and empties its queues last: what came in between from a stale
        position would be folded ahead of what lies before it, or dropped.
        """
        app, consumer = self.app, self.app.consumer
        await app.on_rebalance_complete.send()
        self._set_recovery_ended()
        await asyncio.wait(
            [
                asyncio.ensure_future(table.on_recovery_completed(self.actives_for_table[table], self.standbys_for_table[table]))
                for table in self.tables.values()
            ]
        )
        if app.consumer_generation_id != generation_id:
            return
        assignment = consumer.assignment()
        if assignment:
            await self._wait(consumer.perform_seek(), timeout=app.conf.broker_request_timeout)
        self.completed.set()
        app.flow_control.resume()
        consumer.resume_partitions({tp for tp in assignment if tp.topic not in app.tables.changelog_topics})
        consumer.resume_flow()
        await app._fetcher.maybe_start()
        self.tables.on_actives_ready()
        self.tables.on_standbys_ready()
        app.on_rebalance_end()

    @Service.task  # type: ignore[untyped-decorator]  # Faust is untyped
    async def _slurp_changelogs(self) -> None:
        """No changelog record ever comes through Faust."""

    @Service.task  # type: ignore[untyped-decorator]  # Faust is untyped
    async def _publish_stats(self) -> None:
        """Our own recovery reports itself."""


class BulkTableManager(TableManager):
    """Faust's table manager with our recovery and without its second of waiting at the start."""

    _own: Recovery | None = None

    @property
    def recovery(self) -> Recovery:
        """The recovery service of this worker."""
        if self._own is None:
            self._own = self._recovery = NoRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._own

    async def on_start(self) -> None:
        """Register the tables and wait for partitions."""
        await self._update_channels()
        await self.recovery.start()


FAUST_SETTINGS: Mapping[str, Any] = {
    "TableManager": BulkTableManager,
    "store": "memory://",
    "autodiscover": False,
    "topic_disable_leader": True,
    "topic_allow_declare": False,
    "stream_wait_empty": False,
    "stream_recovery_delay": 0.0,
    "stream_buffer_maxsize": 64,
    "table_standby_replicas": 0,
    # A worker without partitions never polls; aiokafka would throw it out of the group after the interval.
    "broker_max_poll_interval": 10 * 24 * 3600.0,
    "broker_commit_interval": 2.0,
    "broker_request_timeout": 40.0,
    "consumer_auto_offset_reset": "earliest",
    "web_enabled": False,
    "web_in_thread": False,
}
