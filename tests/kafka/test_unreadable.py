"""What other clients and a cluster's defaults may do to a message before a worker reads it: how it is packed, and what is in it."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from streams.broker import topics
from streams.client import Client
from tests.support.system import System, people, play
from tests.support.wait import eventually


async def settings_of(system: System, topic: str) -> dict[str, str]:
    """The settings of a topic as the broker has them."""
    admin = AIOKafkaAdminClient(**system.settings.connection())
    await admin.start()
    try:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    finally:
        await admin.close()
    ((*_, entries),) = answer.resources
    return {entry[0]: entry[1] for entry in entries}


async def packs(system: System, topic: str, codec: str) -> None:
    """From here on the broker packs what is published to a topic like this."""
    admin = AIOKafkaAdminClient(**system.settings.connection())
    await admin.start()
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"compression.type": codec})
        await admin.alter_configs([resource])
    finally:
        await admin.close()


async def test_B4_B11_messages_are_read_however_they_are_packed(system: System) -> None:
    """One message packed by lz4, snappy or zstd ended the worker, and each next one at the same offset: aiokafka knows gzip alone,
    and the others by a library that was not asked for.
    """
    system.start_sandbox()
    worker = system.worker("w1")
    async with Client(system.settings) as client:
        for codec in ("lz4", "snappy", "zstd", "gzip"):
            await packs(system, f"{system.name}.run-requests", codec)
            run = await client.submit(play("emails"), people(3))
            end, _ = await system.finish(client, run)
            assert end.type == "run.completed", codec
    assert worker.running


async def test_S1_topics_keep_what_was_published_as_it_was_whatever_the_cluster_does_by_default(system: System) -> None:
    """A cluster's ``compression.type`` repacked them, and its ``log.message.timestamp.type`` replaced a turn's time."""
    for topic in (f"{system.name}.turns", f"{system.settings.app}-receipts-changelog"):
        found = await settings_of(system, topic)
        assert {name: found[name] for name in topics.AS_PUBLISHED} == {
            "compression.type": "producer",
            "message.timestamp.type": "CreateTime",
        }


class Raw(str):
    """A header's name as a client may send it that does not look at it."""

    __slots__ = ()

    def encode(self, *_arguments: object) -> bytes:  # type: ignore[override]
        """No UTF-8."""
        return b"\xff\xfe"


async def test_B11_a_record_that_cannot_be_taken_apart_is_named_by_the_worker(system: System) -> None:
    """The worker said that an unknown byte had been found, and neither where nor in which topic."""
    system.start_sandbox()
    topic = f"{system.name}.run-requests"
    producer = AIOKafkaProducer(**system.settings.connection())
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"{}", key=b"run", partition=1)
        batch = producer.create_batch()
        # The one that is compiled would not take such a name.
        batch._builder = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, -1, 1 << 14)
        batch.append(key=b"run", value=b"{}", timestamp=None, headers=[(Raw("xx"), b"1")])
        batch.close()
        await (await producer.send_batch(batch, topic, partition=1))
    finally:
        await producer.stop()
    worker = system.worker("w1")
    await eventually("the worker has ended", lambda: not worker.running, seconds=60)
    assert f"worker stops: {topic}/1@1: this record" in worker.text()
    assert "UnicodeDecodeError" in worker.text()
