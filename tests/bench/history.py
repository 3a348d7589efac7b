"""Writes the changelog of a system that has a million settled receipts behind it, the way its worker would have left it."""

from __future__ import annotations

import hashlib

import msgspec
from aiokafka import AIOKafkaProducer

from schemas.address import spread
from schemas.events import Repeat
from schemas.states import RECEIPT, Attempt, Flag, Out, Receipt, Waiter, record_key
from streams.engine.compile import lane_of
from streams.settings import Settings

_encode = msgspec.msgpack.Encoder().encode


def record(index: int, lane: str) -> tuple[bytes, bytes]:
    """Key and value of one settled receipt."""
    receipt = hashlib.blake2b(str(index).encode(), digest_size=20).hexdigest()
    output = b'{"email":"p%d@example.com","verdict":"valid","normalized":"p%d@example.com","domain":"example.com"}' % (
        index,
        index,
    )
    attempt = Attempt("f" * 32, 1, 0, 1, "", out=Out.VALUE, value="0" * 32, output=output)
    state = Receipt(
        waiters={f"run-history:{receipt}:check": Waiter("run-history", 3, flag=Flag.DONE)},
        attempts={1: attempt},
        current=(0, 1),
        repeat=Repeat.WITH_KEY,
        lane=lane,
        tool="sandbox.email",
        run="run-history",
        input=b'{"email":"p%d@example.com"}' % index,
    )
    return record_key(RECEIPT, receipt), _encode(state)


async def write_history(settings: Settings, receipts: int) -> None:
    """Publish ``receipts`` settled receipts to the changelog of the lane's partition."""
    lane = lane_of("default", "sandbox")
    partition = spread(lane, settings.partitions)
    topic = f"{settings.app}-receipts-changelog"
    producer = AIOKafkaProducer(**settings.connection(), max_batch_size=1 << 20, linger_ms=0, acks="all")
    await producer.start()
    try:
        builder = producer.create_batch()
        pending = []
        for index in range(receipts):
            key, value = record(index, lane)
            if builder.append(timestamp=None, key=key, value=value) is None:
                builder.close()
                pending.append(await producer.send_batch(builder, topic, partition=partition))
                builder = producer.create_batch()
                builder.append(timestamp=None, key=key, value=value)
            if len(pending) > 20:
                await pending.pop(0)
        builder.close()
        pending.append(await producer.send_batch(builder, topic, partition=partition))
        for future in pending:
            await future
    finally:
        await producer.stop()
