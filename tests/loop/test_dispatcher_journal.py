"""The dispatcher in virtual time: a paid answer is in the journal before it is published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from schemas.events import (
    AttemptEnded,
    Value,
)
from streams.calling.journal import AnswerJournal
from tests.support.dispatch import World, story, world
from tests.support.virtual_time import play


@story()
async def test_S5_the_journal_has_the_answer_before_it_is_published_and_forgets_it_once_it_is_acknowledged(it: World) -> None:
    seen: list[list[str]] = []

    def look(topic: str, _events: object) -> None:
        if topic == "receipt-completions":
            seen.append([end.receipt for _, ends in it.journal.unpublished() for end in ends])

    it.log.before = look
    await it.asks("ab")
    it.log.acknowledges.clear()
    await it.turn()
    assert seen == [["a"], ["a", "b"]]
    assert len(it.journal.unpublished()) == 2
    it.log.acknowledges.set()
    await it.settles()
    assert it.journal.unpublished() == []


@story()
async def test_S5_a_full_disk_keeps_no_paid_answer_from_being_published(it: World) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, it.journal._fd)
    os.close(full)
    published: list[str] = []

    def look(topic: str, events: Any) -> None:
        if topic == "receipt-completions":
            published.extend(end.receipt for end in events)

    it.log.before = look
    await it.asks("ab")
    await it.turn()
    await it.settles()
    assert sorted(published) == ["a", "b"]


def test_S5_what_a_killed_process_had_read_is_published_by_the_next_one(tmp_path: Path) -> None:
    end = AttemptEnded("a", 1, 0, "L", Value(b'"paid"'))

    async def again() -> None:
        journal = AnswerJournal(tmp_path / "answers.journal")
        journal.append(0, [end])
        journal.append(3, [end, end])
        journal.close()
        with (tmp_path / "answers.journal").open("ab") as file:
            file.write(b"\x00\x00\x00\x00\x00\x00\x01\x00cut off")
        async with world(tmp_path) as it:
            assert [(partition, event) for topic, partition, event in it.log.published if topic == "receipt-completions"] == [
                (0, end),
                (3, end),
                (3, end),
            ]
            assert it.journal.unpublished() == []

    play(again())


def test_S5_a_worker_starts_over_a_damaged_journal_and_publishes_what_can_be_read(tmp_path: Path) -> None:
    """A file that ends in zeros after a power loss ended every start, and with it all work of this data folder."""
    end = AttemptEnded("a", 1, 0, "L", Value(b'"paid"'))

    async def again() -> None:
        journal = AnswerJournal(tmp_path / "answers.journal")
        journal.append(3, [end])
        journal.close()
        with (tmp_path / "answers.journal").open("ab") as file:
            file.write(b"\0" * 64)
        async with world(tmp_path) as it:
            assert [(partition, event) for topic, partition, event in it.log.published if topic == "receipt-completions"] == [
                (3, end)
            ]
            assert it.journal.unpublished() == []
            assert (tmp_path / "answers.journal.damaged").read_bytes()[-64:] == b"\0" * 64

    play(again())
