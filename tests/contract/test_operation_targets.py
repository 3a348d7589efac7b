"""What an operation is about: the row of the request that was accepted, not of one that was refused under the same id (U3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError

from schemas.address import row_key
from streams.errors import Unreachable, UsageError
from streams.public.operations import Operations
from streams.public.publiclog import broker_errors
from streams.settings import Settings

RUN = "run-1"
ADA, BOB = {"email": "ada@x.test"}, {"email": "bob@x.test"}


@dataclass
class Record:
    key: bytes
    value: bytes | None


class Log:
    """The public topics of one run, as what is stored on them."""

    def __init__(self, requests: Sequence[bytes], refused: int) -> None:
        told = {"type": "run.refused", "run": RUN, "at_ms": 1}
        self._stored = {"run-requests": list(requests), "run-events": [json.dumps(told).encode()] * refused}

    def home(self, _run: str, topic: str) -> TopicPartition:
        return TopicPartition(topic, 0)

    async def stored(self, tps: Sequence[TopicPartition]) -> AsyncIterator[Record]:
        for tp in tps:
            for value in self._stored[tp.topic]:
                yield Record(b"another run", value)
                yield Record(RUN.encode(), value)


def requested(tool: str, *rows: dict[str, Any]) -> bytes:
    column = {"name": "check", "tool": tool, "input": {"e": "{{ row.email }}"}}
    play = {"name": "contacts", "key": ["email"], "columns": [column]}
    return json.dumps({"type": "run_requested", "run": RUN, "play": play, "rows": rows}).encode()


def operations(*requests: bytes, refused: int) -> Operations:
    found = Operations(Settings(broker="127.0.0.1:1"))
    found.log = Log(requests, refused)  # type: ignore[assignment]
    return found


def key_of(row: dict[str, Any]) -> str:
    return row_key("contacts", ("email",), row)


async def test_U3_a_position_names_a_row_of_the_request_that_was_accepted() -> None:
    """``cell resolve RUN 0`` settled another row's cell: the position was looked up in a request that had been refused."""
    asked = operations(requested("nope.x", BOB, ADA), requested("acme.check", ADA, BOB), refused=1)
    assert [await asked.row_key(RUN, place) for place in ("0", "1")] == [key_of(ADA), key_of(BOB)]
    request = await asked.request_of(RUN)
    assert (request.play.columns[0].tool, request.rows) == ("acme.check", None)


async def test_U3_another_request_under_an_id_in_use_names_nothing() -> None:
    asked = operations(requested("acme.check", ADA), requested("acme.other", BOB), refused=0)
    assert await asked.row_key(RUN, "0") == key_of(ADA)
    assert (await asked.request_of(RUN)).play.columns[0].tool == "acme.check"
    await asked.check_row(RUN, key_of(ADA))
    with pytest.raises(UsageError, match="none of the 1 rows"):
        await asked.check_row(RUN, key_of(BOB))


async def test_U3_what_is_no_json_was_refused_too() -> None:
    asked = operations(b'{"type":"run_requested",', requested("acme.check", ADA), refused=1)
    assert await asked.row_key(RUN, "0") == key_of(ADA)
    assert (await asked.request_of(RUN)).play.columns[0].tool == "acme.check"


async def test_U3_a_run_that_nobody_asked_for_is_told() -> None:
    with pytest.raises(UsageError, match="was ever asked for"):
        await operations(refused=0).request_of(RUN)


def test_U3_a_message_that_is_too_large_is_not_the_brokers_fault() -> None:
    """It read *no Kafka broker answers*, with the advice to start one."""
    with pytest.raises(UsageError, match="larger than a message may be, 9 MiB"):
        with broker_errors("127.0.0.1:9092"):
            raise MessageSizeTooLargeError("The message is 9999999 bytes")
    with pytest.raises(Unreachable, match="no Kafka broker answers"):
        with broker_errors("127.0.0.1:9092"):
            raise KafkaConnectionError("refused")
