"""Where a replay stops: a time, a message or a turn, and what that means for every partition.

A turn or a message names one partition, which stops right behind it; all others stop at the time of that turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from schemas.states import TurnRecord
from streams.errors import UsageError
from streams.replaying.refold import TABLES

_PLACE = re.compile(r"(?P<name>[^/@\s]+)/(?P<partition>\d{1,6})@(?P<number>\d{1,18})")
#: Unix times from here on are milliseconds.
_MILLISECONDS = 1e11


@dataclass(frozen=True, slots=True)
class UntilTime:
    """Every turn up to this Unix time in milliseconds."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class UntilTurn:
    """Up to a turn of one table's partition."""

    table: str
    partition: int
    turn: int


@dataclass(frozen=True, slots=True)
class UntilOffset:
    """Up to the turn that folded the message at this offset."""

    table: str
    topic: str
    partition: int
    offset: int


Until = UntilTime | UntilTurn | UntilOffset


def parse_until(text: str, *, partitions: int, topic_prefix: str = "") -> Until:
    """What a user means by ``--until``. Raises ``UsageError`` saying what can be meant.

    A time is ISO 8601 (in the system's zone where none is given) or Unix seconds or milliseconds.
    """
    place = _PLACE.fullmatch(text)
    if place is None:
        return UntilTime(_time_ms(text))
    name, partition, number = place["name"], int(place["partition"]), int(place["number"])
    if partition >= partitions:
        raise UsageError(f"--until {text}: partition {partition} is none of the {partitions} that this system has")
    if name in TABLES:
        if number < 1:
            raise UsageError(f"--until {text}: turns are counted from 1")
        return UntilTurn(name, partition, number)
    topic = name.removeprefix(topic_prefix)
    for table, folded in TABLES.items():
        if topic in folded.topics:
            return UntilOffset(table, topic, partition, number)
    known = ", ".join(sorted(topic for folded in TABLES.values() for topic in folded.topics))
    raise UsageError(f"--until {text}: {name!r} is no table ({', '.join(TABLES)}) and no topic that one reads ({known})")


def _time_ms(text: str) -> int:
    try:
        seconds = float(text)
        return int(seconds if seconds >= _MILLISECONDS else seconds * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--until {text!r}: expected a time (2026-11-29T14:00:00Z or Unix seconds), topic/partition@offset "
            "or table/partition@turn"
        ) from error


@dataclass(frozen=True, slots=True)
class Cut:
    """The last turn of each partition: one named turn, for all others a time."""

    at_ms: int
    table: str = ""
    partition: int = -1
    turn: int = 0

    def holds(self, table: str, partition: int, record: TurnRecord) -> bool:
        """Whether a turn belongs to what is folded."""
        if table == self.table and partition == self.partition:
            return record.turn <= self.turn
        return record.at_ms <= self.at_ms


EVERYTHING = Cut(1 << 62)
