"""Writes the changelog of a system that has a million settled receipts behind it, the way its worker would have left it."""

from __future__ import annotations

import hashlib

import msgspec
from aiokafka import AIOKafkaProducer

from schemas.address import spread
from schemas.events import Repeat
from schemas.states import RECEIPT, VALUE, Attempt, Flag, Out, Receipt, StoredValue, Waiter, record_key
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


def large_records(index: int, lane: str, output_bytes: int) -> list[tuple[bytes, bytes]]:
    """One settled receipt whose value is so large that it is a record of its own."""
    key, value = record(index, lane)
    state = msgspec.msgpack.decode(value, type=Receipt)
    state.attempts[1].output = None
    output = b'"' + hashlib.blake2b(key).hexdigest().encode() * (output_bytes // 128) + b'"'
    return [(key, _encode(state)), (record_key(VALUE, key[1:].decode(), "1"), _encode(StoredValue(output)))]


async def write_history(settings: Settings, receipts: int, *, first: int = 0, output_bytes: int = 0) -> None:
    """Publish settled receipts to the changelog of the lane's partition; with ``output_bytes`` their values are that large."""
    lane = lane_of("default", "sandbox")
    partition = spread(lane, settings.partitions)
    topic = f"{settings.app}-receipts-changelog"
    producer = AIOKafkaProducer(**settings.connection(), max_batch_size=1 << 20, linger_ms=0, acks="all")
    await producer.start()
    try:
        builder = producer.create_batch()
        pending = []
        history = (
            pair
            for index in range(first, first + receipts)
            for pair in (large_records(index, lane, output_bytes) if output_bytes else [record(index, lane)])
        )
        for key, value in history:
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
