"""Recovery: read the changelog of a partition into its store, in bulk, after older owners were fenced.

Called from Faust's ``on_recovery_completed`` (Faust's own recovery is a no-op here, being slower and waiting for ever behind
transaction markers). Never called inside a rebalance callback, where aiokafka sends no heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.states import local_record
from streams.errors import StateError, Unreachable
from streams.kafka.consumers import reading
from streams.kafka.lostends import Lost
from streams.table import Store

log = logging.getLogger(__name__)

#: A transaction of a fenced owner has ended when its follower has started; its end is shown within this time, or was lost ...
SHOWN_SECONDS: Final = 3.0
#: ... and is given up when it is not shown by now.
SETTLED_SECONDS: Final = 15.0


async def recover(
    stores: Mapping[TopicPartition, Store],
    connection: Mapping[str, Any],
    *,
    still_owned: Callable[[], bool],
    lost: Lost | None = None,
    fetch_bytes_max: int = 4 * 1024 * 1024,
) -> int:
    """Bring every store up to the end of its changelog; returns the number of records read.

    Transactions whose end the broker lost are ended by ``lost``.

    Stops early, with the stores consistent but behind, when ``still_owned`` turns false. Raises ``Unreachable`` on trouble with the
    broker and ``StateError`` when a store is ahead of its changelog.
    """
    options: dict[str, Any] = {"max_partition_fetch_bytes": fetch_bytes_max, "fetch_max_wait_ms": 50}
    try:
        async with (
            reading(connection, **options, isolation_level="read_committed", auto_offset_reset="earliest") as consumer,
            reading(connection, **options, isolation_level="read_uncommitted") as witness,
        ):
            return await _read(consumer, witness, stores, still_owned, lost)
    except KafkaError as error:
        raise Unreachable(f"recovery: cannot read the changelogs: {error!r}") from error


async def _ends(
    consumer: AIOKafkaConsumer,
    witness: AIOKafkaConsumer,
    tps: list[TopicPartition],
    still_owned: Callable[[], bool],
    lost: Lost | None = None,
) -> dict[TopicPartition, int]:
    """Where the changelogs end, once no transaction is open in them. Raises ``Unreachable`` where one stays open.

    The owners before are fenced, so what they had committed is there, and nothing more can come. But committed records are shown
    only up to the first transaction whose end is not yet written there: with less than all, a turn would be taken a second time.
    """
    began = time.monotonic()
    warned: set[TopicPartition] = set()
    ended: set[TopicPartition] = set()
    while True:
        written = await witness.end_offsets(tps)
        shown: dict[TopicPartition, int] = await consumer.end_offsets(tps)
        open_ones = [tp for tp in tps if shown[tp] < written[tp]]
        if not open_ones or not still_owned():
            return shown
        tp = open_ones[0]
        where = f"{tp.topic}/{tp.partition}: a transaction is open behind offset {shown[tp]:,} of {written[tp]:,}"
        if time.monotonic() > began + SETTLED_SECONDS:
            raise Unreachable(f"{where}, though whoever wrote it is fenced")
        if tp not in warned:
            log.warning("%s; its end is waited for", where)
        warned.add(tp)
        if lost is not None and tp not in ended and time.monotonic() > began + SHOWN_SECONDS:
            await lost.end(tp, written[tp])
            ended.add(tp)
            # They are ended one by one: each gets its time, or those behind the first few would cost a restart.
            began = time.monotonic()
        await asyncio.sleep(0.05)


async def _read(
    consumer: AIOKafkaConsumer,
    witness: AIOKafkaConsumer,
    stores: Mapping[TopicPartition, Store],
    still_owned: Callable[[], bool],
    lost: Lost | None,
) -> int:
    tps = list(stores)
    consumer.assign(tps)
    witness.assign(tps)
    witness.pause(*tps)
    starts = await consumer.beginning_offsets(tps)
    ends = await _ends(consumer, witness, tps, still_owned, lost)
    if not still_owned():
        # It ended early then, perhaps before a transaction that a store has already: that would look like a store that is ahead.
        return 0
    behind: set[TopicPartition] = set()
    for tp, store in stores.items():
        stored = store.changelog_offset
        position = starts[tp] if stored is None else stored + 1
        if position > ends[tp]:
            raise StateError(
                f"{tp.topic}/{tp.partition}: the store in {store.folder} is at offset {position:,}, its changelog ends at "
                f"{ends[tp]:,}: the table is another broker's, or its changelog was made anew. Remove the table's folder "
                f"{Path(store.folder).parent}, which is read again from its changelog, and start again. Keep answers.journal*: "
                "answers that were paid for may be in it"
            )
        consumer.seek(tp, position)
        if position < ends[tp]:
            behind.add(tp)
    if not behind:
        return 0
    consumer.pause(*(tp for tp in tps if tp not in behind))
    count = 0
    while behind and still_owned():
        fetched = await consumer.getmany(*behind, timeout_ms=200)
        for tp, records in fetched.items():
            changes: dict[bytes, bytes | None] = {}
            for record in records:
                changes[record.key] = record.value
                local = local_record(record.key, record.value)
                if local is not None:
                    changes[local[0]] = local[1]
            stores[tp].write(changes, changelog_offset=records[-1].offset)
            count += len(records)
            await asyncio.sleep(0)
        for tp in list(behind):
            # Markers of transactions take offsets but are no records: only the position tells the end.
            if await consumer.position(tp) >= ends[tp]:
                behind.discard(tp)
    return count
