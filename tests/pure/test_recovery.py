"""Where a changelog ends for who recovers it: all that was committed must be shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition

from streams import recovery
from streams.errors import Unreachable

TP = TopicPartition("changelog", 0)


class Ends:
    """A consumer that says one end after the other, and then the last again."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)

    async def end_offsets(self, _partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the partition ends."""
        return {TP: self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]}


def ends(shown: Ends, written: Ends, *, owned: bool = True) -> int:
    consumer: Any = shown
    witness: Any = written
    return asyncio.run(recovery._ends(consumer, witness, [TP], lambda: owned))[TP]


def test_S1_the_end_is_waited_for_until_no_transaction_is_open() -> None:
    """S1: with what is shown meanwhile the last turn would be taken a second time."""
    assert ends(Ends(7, 7, 9), Ends(9)) == 9
    assert ends(Ends(9), Ends(9)) == 9


def test_S1_who_lost_the_partition_waits_for_nothing() -> None:
    assert ends(Ends(7), Ends(9), owned=False) == 7


def test_S1_a_transaction_that_stays_open_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SETTLED_SECONDS", 0.0)
    with pytest.raises(
        Unreachable, match="changelog/0: a transaction is open behind offset 7 of 9, though whoever wrote it is fenced"
    ):
        ends(Ends(7), Ends(9))
