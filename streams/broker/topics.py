"""The topics of a system: their names and settings, making them, and checking that they are as they must be.

One partition count for all keyed topics makes Faust place partition n of each on one worker. A worker refuses to start when a
topic is missing or has another count (case H5): receipts would be looked up in the wrong place and paid again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from streams.errors import TopicsError, Unreachable

#: How long a broker may take to show topics that its controller has made.
SEEN_SECONDS = 30.0

FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
WEEK = {"retention.ms": str(7 * 24 * 3600 * 1000)}
MONTH = {"retention.ms": str(30 * 24 * 3600 * 1000)}
#: A worker's data folder that was away for longer than ``delete.retention.ms`` may miss removals, so that is long.
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5", "delete.retention.ms": str(90 * 24 * 3600 * 1000)}
LARGE = {"max.message.bytes": str(9 * 1024 * 1024)}
#: Whatever a cluster's defaults are: no broker packs what we publish anew, in a form that a reader may not know, and records keep
#: the times that their writers gave them.
AS_PUBLISHED = {"compression.type": "producer", "message.timestamp.type": "CreateTime"}

TABLES = ("runs", "rows", "receipts")
TOPICS: Mapping[str, Mapping[str, str]] = {
    "run-requests": FOREVER,
    "operations": FOREVER,
    "map-progress": WEEK,
    "run-events": FOREVER,
    "map-rows": COMPACTED,
    "row-work": FOREVER,
    "row-control": FOREVER,
    "tool-requests": FOREVER,
    "lane-control": FOREVER,
    "receipt-claims": FOREVER,
    "lease-heartbeats": FOREVER,
    "receipt-completions": FOREVER,
    "tool-results": FOREVER,
    "row-progress": FOREVER,
    "turns": FOREVER,
    "dead-letters": MONTH,
}


def topics_of(app: str, prefix: str = "", tables: tuple[str, ...] = TABLES) -> dict[str, dict[str, str]]:
    """All topics of a system with their settings, the tables' changelogs included."""
    topics = {prefix + name: {**settings, **LARGE, **AS_PUBLISHED} for name, settings in TOPICS.items()}
    for table in tables:
        topics[f"{app}-{table}-changelog"] = {**COMPACTED, **LARGE, **AS_PUBLISHED}
    return topics


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic as it is: its partition count, or ``None`` where it is missing."""

    name: str
    expected: int
    found: int | None

    @property
    def right(self) -> bool:
        """The topic exists with the expected count."""
        return self.found == self.expected

    def __str__(self) -> str:
        found = "missing" if self.found is None else f"{self.found} partitions"
        return f"{self.name}: {found}, expected {self.expected}"


async def inspect(
    connection: Mapping[str, Any], app: str, partitions: int, prefix: str = "", tables: tuple[str, ...] = TABLES
) -> list[TopicState]:
    """State of every topic of the system. Raises ``Unreachable``."""
    async with _admin(connection) as admin:
        described = await admin.describe_topics()
    counts = {topic["topic"]: len(topic["partitions"]) for topic in described}
    return [TopicState(name, partitions, counts.get(name)) for name in topics_of(app, prefix, tables)]


async def cluster_of(connection: Mapping[str, Any]) -> str:
    """Identity of the Kafka cluster. Raises ``Unreachable``."""
    async with _admin(connection) as admin:
        described = await admin.describe_cluster()
    if not described["brokers"]:
        # It answers, and even knows its topics, a moment before it takes part; a group member that starts now would never join.
        raise Unreachable(f"the Kafka broker at {connection['bootstrap_servers']} has not joined its cluster yet")
    return str(described["cluster_id"])


async def check(
    connection: Mapping[str, Any], app: str, partitions: int, prefix: str = "", tables: tuple[str, ...] = TABLES
) -> None:
    """Raise ``TopicsError`` naming every topic that is missing or has another partition count."""
    wrong = [state for state in await inspect(connection, app, partitions, prefix, tables) if not state.right]
    if wrong:
        raise TopicsError(
            "topics are not as they must be: "
            + "; ".join(map(str, wrong))
            + ". Run `paidonce topics apply` for missing ones; a count is fixed for the life of a system"
        )


async def apply(
    connection: Mapping[str, Any],
    app: str,
    partitions: int,
    replication: int = 1,
    prefix: str = "",
    tables: tuple[str, ...] = TABLES,
) -> list[str]:
    """Create what is missing and return its names; raises ``TopicsError`` where a topic has another count."""
    states = await inspect(connection, app, partitions, prefix, tables)
    if any(state.found is not None and not state.right for state in states):
        await check(connection, app, partitions, prefix, tables)
    missing = [state.name for state in states if state.found is None]
    if not missing:
        return []
    settings = topics_of(app, prefix, tables)
    async with _admin(connection) as admin:
        answer = await admin.create_topics(
            [NewTopic(name, partitions, replication, topic_configs=settings[name]) for name in missing],
            timeout_ms=30_000,
        )
        for name, code, *text in answer.topic_errors:
            kind = for_code(code)
            if code and kind is not TopicAlreadyExistsError:
                raise TopicsError(f"cannot create topic {name}: {kind.__name__} {text}")
    await _until_seen(connection, app, partitions, prefix, tables)
    return missing


async def _until_seen(connection: Mapping[str, Any], app: str, partitions: int, prefix: str, tables: tuple[str, ...]) -> None:
    """Wait for the broker to show what its controller has made, or the worker that comes next would miss topics."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not all(state.right for state in await inspect(connection, app, partitions, prefix, tables)):
        if time.monotonic() > deadline:
            await check(connection, app, partitions, prefix, tables)
            return
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _admin(connection: Mapping[str, Any]) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client; a broker that is just coming up fails in the middle of a question, too."""
    admin = AIOKafkaAdminClient(**connection, request_timeout_ms=15_000)
    try:
        await admin.start()
        yield admin
    except KafkaError as error:
        raise Unreachable(f"no Kafka broker answers at {connection['bootstrap_servers']}: {error}") from error
    finally:
        await admin.close()
