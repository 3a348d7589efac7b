"""Plain consumers, without a group: started, and stopped whatever has become of their broker.

Under recovery, replay and the client's side. Faust's consumer, the only one with a group, is ``transport``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import UnsupportedCodecError

from streams.errors import StateError

#: What aiokafka raises as a record is taken apart: a header's name that is no text, a compression that it does not know.
UNREADABLE: Final = (UnicodeDecodeError, UnsupportedCodecError)


@contextlib.asynccontextmanager
async def reading(
    connection: Mapping[str, Any], *, start_seconds: float | None = None, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer with these options of aiokafka's; lets ``KafkaError`` out, and ``TimeoutError`` where the start takes longer.

    Raises ``StateError`` for a record that cannot be taken apart.
    """
    consumer = AIOKafkaConsumer(**connection, group_id=None, enable_auto_commit=False, **options)
    try:
        await asyncio.wait_for(consumer.start(), start_seconds)
        yield consumer
    except UNREADABLE as error:
        if (told := unreadable(consumer, error)) is not None:
            raise told from error
        raise
    finally:
        await _stop(consumer)


def unreadable(consumer: AIOKafkaConsumer, error: Exception) -> StateError | None:
    """Which record cannot be taken apart, where that is what ``error`` of a fetch says; aiokafka does not tell.

    Nobody may go on with this consumer: it has dropped what it had taken from the fetch before that record, and would step over it.
    """
    for tp, fetched in consumer._fetcher._records.items():  # there is no public way
        records = getattr(fetched, "_partition_records", None)
        if records is None or records._records_iterator is None or records._records_iterator.gi_frame is not None:
            continue
        return StateError(
            f"{tp.topic}/{tp.partition}@{records.next_fetch_offset}: this record, or the batch that it begins, cannot be taken "
            f"apart ({error!r}); whoever wrote it breaks Kafka's protocol. Nothing was folded from it, and nothing behind it can be"
        )
    return None


async def _stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, also while its broker is away.

    aiokafka 0.14 awaits the fetches that it has just cancelled, and so lets a CancelledError out that nobody asked for and skips
    the rest (Fetcher.close). No ``except Exception`` would see it, so who reads would end without a word.
    """
    task = asyncio.current_task()
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await consumer._client.close()  # what it skipped; there is no public way
        if task is not None and task.cancelling():
            raise
