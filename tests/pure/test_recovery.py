"""Where a changelog ends for who recovers it: all that was committed must be shown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from streams.errors import StateError, Unreachable
from streams.kafka import recovery

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


class Changelog(Ends):
    """A consumer that is asked where a changelog begins and ends, and is not read from."""

    async def beginning_offsets(self, _partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the partition begins."""
        return {TP: 0}

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Take these partitions."""

    def pause(self, *partitions: TopicPartition) -> None:
        """Do not read these."""

    def seek(self, partition: TopicPartition, position: int) -> None:
        """Read on from there."""


def read(stored: int, shown: int, written: int, owned: list[bool]) -> int:
    """Records that were read into a store that is at ``stored``, while ``owned`` says one word after the other."""
    store: Any = SimpleNamespace(changelog_offset=stored, folder="data/tables/receipts/0")
    consumer: Any = Changelog(shown)
    witness: Any = Changelog(written)
    return asyncio.run(recovery._read(consumer, witness, {TP: store}, lambda: owned.pop(0) if owned else False, None))


def test_S1_a_store_is_not_taken_for_another_brokers_where_the_partition_was_taken_away_meanwhile() -> None:
    """S1: the worker's own store had turn N+1, and turn N's end was not shown yet. Then a rebalance came, the end was not waited
    for, and the worker stopped with the advice to remove its data.
    """
    assert read(stored=120, shown=100, written=125, owned=[True]) == 0


def test_S1_a_store_that_is_ahead_of_its_changelog_is_told_with_what_to_remove_and_what_to_keep() -> None:
    with pytest.raises(StateError) as told:
        read(stored=120, shown=100, written=100, owned=[True, True])
    assert "changelog/0: the store in data/tables/receipts/0 is at offset 121, its changelog ends at 100" in str(told.value)
    assert "Remove the table's folder data/tables/receipts," in str(told.value)
    assert "Keep answers.journal*" in str(told.value)


def test_S1_each_transaction_that_is_ended_once_more_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ran from the start over all partitions: several lost ends, ended one by one, cost as many starts of the worker."""
    now, ended = [0.0], []
    tps = [TopicPartition("changelog", number) for number in range(4)]
    open_ones = set(tps)
    monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Lost:
        async def end(self, tp: TopicPartition, written: int) -> None:
            now[0] += recovery.SETTLED_SECONDS / 2
            ended.append((tp, written))
            open_ones.discard(tp)

    class Some:
        def __init__(self, *, all_of_it: bool) -> None:
            self.all_of_it = all_of_it

        async def end_offsets(self, asked: list[TopicPartition]) -> dict[TopicPartition, int]:
            now[0] += 1.0
            return {tp: 9 if self.all_of_it or tp not in open_ones else 7 for tp in asked}

    shown: Any = Some(all_of_it=False)
    written: Any = Some(all_of_it=True)
    lost: Any = Lost()
    assert asyncio.run(recovery._ends(shown, written, tps, lambda: True, lost)) == dict.fromkeys(tps, 9)
    assert ended == [(tp, 9) for tp in tps]
