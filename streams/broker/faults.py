"""What is known to be wrong with the brokers that one talks to, by what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import ApiVersionRequest

from streams.errors import Unreachable

#: Kafka 4.1 was the first to answer fetches of version 18.
_FETCH: Final = 1
_FETCH_OF_4_1: Final = 18

LOSES_ENDS: Final = (
    "it is Kafka 4.1 or later, of which the versions up to 4.4 at least can lose the end of a transaction where a partition has no "
    "leader for a moment (KAFKA-20734): nothing is paid twice over that, but a message can stay hidden until its sender sends "
    "another one there; 4.0.2 loses none"
)


async def known_fault(connection: Mapping[str, Any]) -> str | None:
    """What is wrong with the brokers at ``connection``, in words; ``None`` where nothing is known. Raises ``Unreachable``."""
    client = AIOKafkaClient(**connection)
    try:
        await client.bootstrap()
        response = await client.send(client.get_random_node(), ApiVersionRequest())
    except KafkaError as error:
        raise Unreachable(f"no Kafka broker answers at {connection['bootstrap_servers']}: {error}") from error
    finally:
        await client.close()
    newest = {key: newest for key, _, newest in response.api_versions}
    return LOSES_ENDS if newest[_FETCH] >= _FETCH_OF_4_1 else None
