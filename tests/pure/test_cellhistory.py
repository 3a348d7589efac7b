"""The time line of a cell where the topics hold what cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from schemas import envelope
from schemas.events import Event
from streams.engine.cells import call_of
from streams.errors import UsageError
from streams.public.cellhistory import History, history
from streams.public.operations import Operations
from tests.support import given as g

ROW = "c5" * 20
CALL = call_of("run", ROW, "check", 0)


@dataclass
class Topics:
    """A log that is what was put there, the same on each partition."""

    records: Mapping[str, list[Any]]

    def all(self, topic: str) -> list[TopicPartition]:
        """Eight partitions."""
        return [TopicPartition(topic, number) for number in range(8)]

    async def stored(self, partitions: Iterable[TopicPartition]) -> AsyncIterator[Any]:
        """What stands there."""
        for where in partitions:
            for record in self.records.get(where.topic, ()):
                yield SimpleNamespace(topic=where.topic, partition=where.partition, **vars(record))


def message(offset: int, value: bytes, *, key: bytes | None = None, headers: Any = ()) -> Any:
    return SimpleNamespace(offset=offset, value=value, key=key, headers=headers, timestamp=1000 + offset)


def envelope_of(offset: int, topic: str, event: Event) -> Any:
    (packed,) = envelope.pack([event])
    return message(offset, packed, headers=envelope.headers_of(topic))


def shown(**records: list[Any]) -> History:
    log: Any = Topics({name.replace("_", "-"): found for name, found in records.items()})
    column = SimpleNamespace(name="check", tool_name="p.t")
    request: Any = SimpleNamespace(run="run", org="org", play=SimpleNamespace(columns=[column], dataset_name="people"))
    return asyncio.run(history(log, 8, request, ROW, "check"))


def test_U3_a_message_that_is_with_the_dead_letters_is_a_line_of_the_time_line() -> None:
    """It ended the command with a traceback, for every cell that reads the partition, for ever."""
    asked = envelope_of(3, "tool-requests", g.request(CALL))
    cell = shown(tool_requests=[message(2, b"junk"), asked], receipt_claims=[message(9, b"junk")])
    assert [(step.at_ms, step.what) for step in cell.steps] == [(1002, "unreadable"), (1003, "asked"), (1009, "unreadable")]
    assert cell.steps[0].details.startswith("the message tool-requests/")
    assert "@2 is with the dead letters" in cell.steps[0].details


def test_U3_a_state_of_the_row_that_cannot_be_read_is_a_line_too() -> None:
    cell = shown(map_rows=[message(4, b"{}", key=f"org/people/{ROW}".encode())])
    (step,) = cell.steps
    assert (step.what, cell.cell) == ("unreadable", None)
    assert "@4 is no state of a row: map-rows: " in step.details


def test_U3_a_row_that_the_run_does_not_have_is_told() -> None:
    """A wrong key printed an empty time line and exit code 0."""
    operations = object.__new__(Operations)

    class Input(set[str]):
        def __exit__(self, *_: object) -> None: ...
        def __enter__(self) -> Input:
            return self

    async def input_of(_run: str) -> Any:
        return Input({ROW})

    operations.input_of = input_of  # type: ignore[method-assign]
    asyncio.run(operations.check_row("run", ROW))
    with pytest.raises(UsageError, match=r"row d{40}: none of the 1 rows of run 'run' has this key"):
        asyncio.run(operations.check_row("run", "d" * 40))
    for text in ("9" * 5000, "²", "٣", "z" * 40):
        with pytest.raises(UsageError, match="expected the row's position in the input"):
            asyncio.run(operations.row_key("run", text))
