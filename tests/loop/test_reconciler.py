"""What is looked up when an outcome is unknown, in virtual time: found, absent, pending, and who hears of it (U3, U5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schemas import address
from schemas.events import AttemptEnded, Fault, Mode, ReceiptResolved
from schemas.providers import Reconcile
from schemas.states import RECEIPT, record_key
from streams.calling import reconciler
from streams.errors import Unreachable
from streams.tools.lookup import Absent, Found, NoWord, Pending, Word
from streams.tools.port import Answered, CallMember, Doubtful, Refused
from tests.support.dispatch import World
from tests.support.scripted_caller import LOST, doubtful
from tests.support.virtual_time import play

UNPAID = Reconcile(path="/x/{key}", absent_means="unpaid", absent_after_seconds=30)


class Words:
    """A look-up that says what the test wrote, the last word for ever."""

    def __init__(self, *words: Word | Exception, terms: Reconcile | None = UNPAID) -> None:
        self.words = list(words)
        self._terms = terms
        self.asked: list[tuple[float, str, tuple[CallMember, ...]]] = []
        self.closed = False
        self.open = self.open_max = 0

    def terms(self, tool: str) -> Reconcile | None:
        return self._terms

    async def ask(self, tool: str, key: str, members: tuple[CallMember, ...]) -> Word:
        self.asked.append((asyncio.get_running_loop().time(), key, members))
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        await asyncio.sleep(0.01)
        self.open -= 1
        word = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if isinstance(word, Exception):
            raise word
        return word

    async def close(self) -> None:
        self.closed = True


def resolved(world: World) -> list[ReceiptResolved]:
    found: list[ReceiptResolved] = world.log.of("receipt-completions", ReceiptResolved)
    return found


class Doubts(World):
    """A world with a look-up, whose clock for ages is the virtual one."""

    def __init__(self, folder: Path, words: Words) -> None:
        super().__init__(folder)
        self.words = words
        watched = reconciler.Reconciler(
            words,
            self.dispatcher.settlement.say,
            self.failures.append,
            now=lambda: self.began_ms / 1000 + self.time.now - self.began,
        )
        self.dispatcher.reconciler = watched
        self.watched = watched

    async def loses(self, names: str = "a", tool: str = "never") -> None:
        """Calls are made and their answers are lost."""
        self.caller.scripts.extend([doubtful] * len(names))
        await self.asks(names, tool)
        await self.passes(1)
        for _ in range(3):
            await self.turn()


def story(words: Words, told: Callable[[Doubts], Any], folder: Path) -> None:
    async def run() -> None:
        async with Doubts(folder, words) as world:
            await told(world)

    play(run())


def test_U3_what_the_provider_has_settles_the_attempt_and_the_row_gets_it(tmp_path: Path) -> None:
    words = Words(Found((Answered(b'"found"'),)))

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(1)
        assert resolved(world) == [ReceiptResolved("a", 1, 0, b'"found"', "reconcile", "the provider has it")]
        assert words.asked[0][1:] == (address.provider_key("a", 0, 1), (CallMember("a", b"{}"),))
        await world.turn()
        assert world.answers[-1].output == b'"found"'  # type: ignore[attr-defined]
        assert (world.watched.unknown, world.watched.seen, world.watched.reconciled) == (0, 1, 1)
        await world.passes(300)
        assert len(words.asked) == 1

    story(words, told, tmp_path)
    assert words.closed


def test_K5_a_forced_call_is_looked_up_under_the_key_that_it_was_sent_with(tmp_path: Path) -> None:
    words = Words(Pending())

    async def told(world: Doubts) -> None:
        world.caller.scripts.append(doubtful)
        await world.asks("a", "never", mode=Mode.FULL_REFRESH)
        await world.passes(1)
        for _ in range(3):
            await world.turn()
        await world.passes(1)
        assert {key for _, key, _ in words.asked} == {world.caller.calls[0].idempotency_key}
        assert world.caller.calls[0].idempotency_key != address.provider_key("a", 0, 1)

    story(words, told, tmp_path)


def test_U3_a_lost_batch_is_looked_up_under_the_key_that_it_was_sent_with(tmp_path: Path) -> None:
    words = Words(Found((Answered(b"1"), Answered(b"2"))))

    async def told(world: Doubts) -> None:
        await world.loses("ab", "once")
        await world.passes(5)
        assert sorted((event.receipt, event.output) for event in resolved(world)) == [("a", b"1"), ("b", b"2")]
        assert {key for _, key, _ in words.asked} == {world.caller.calls[0].idempotency_key}
        assert {members for _, _, members in words.asked} == {world.caller.calls[0].members}

    story(words, told, tmp_path)


def test_U3_never_heard_of_is_believed_after_a_while_and_only_where_the_providers_file_says_so(tmp_path: Path) -> None:
    """The lost call may still be on its way: what is absent now may be billed in a moment."""
    words = Words(Absent())

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(25)
        assert resolved(world) == []
        await world.passes(30)
        assert resolved(world) == [ReceiptResolved("a", 1, 0, None, "reconcile", "the provider never heard of it")]
        await world.turn()
        await world.passes(1)
        await world.turn()
        assert world.caller.asked == ["a", "a"]
        assert world.log.of("receipt-completions", AttemptEnded)[-1].n == 2

    story(words, told, tmp_path)


@pytest.mark.parametrize(
    "word",
    [Absent(), Pending(), NoWord(Fault("x", "no word")), Found((Doubtful(LOST),))],
    ids=["absent", "pending", "no word", "no use"],
)
def test_U3_look_ups_go_on_with_growing_waits_up_to_a_limit_and_then_a_person_is_needed(
    word: Word, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = Words(word, terms=Reconcile(path="/x/{key}"))

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(6_000)
        times = [at for at, _, _ in words.asked]
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert len(times) == reconciler.LOOK_UPS_MAX
        assert waits == sorted(waits)
        assert waits[-1] > reconciler.WAIT_SECONDS_MAX
        assert resolved(world) == []

    story(words, told, tmp_path)
    assert f"{reconciler.LOOK_UPS_MAX} look-ups brought nothing" in caplog.text


def test_a_refused_member_was_not_billed(tmp_path: Path) -> None:
    words = Words(Found((Refused(Fault("no", "bad address")),)))

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(1)
        assert [(event.output, event.why) for event in resolved(world)] == [(None, "bad address")]

    story(words, told, tmp_path)


def test_look_ups_of_one_lane_are_made_one_at_a_time_and_paced(tmp_path: Path) -> None:
    words = Words(Pending())

    async def told(world: Doubts) -> None:
        await world.loses("abcdef")
        await world.passes(2)
        assert words.open_max == 1
        times = [at for at, _, _ in words.asked]
        assert all(later - earlier >= reconciler.PACE_SECONDS for earlier, later in pairwise(times))

    story(words, told, tmp_path)


def test_what_somebody_settled_is_looked_up_no_more(tmp_path: Path) -> None:
    words = Words(Pending())

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(5)
        world.say("receipt-completions", ReceiptResolved("a", 1, 0, b"1", "ann"))
        await world.turn()
        asked = len(words.asked)
        await world.passes(300)
        assert len(words.asked) == asked

    story(words, told, tmp_path)


def test_the_next_owner_begins_anew_and_the_last_one_stops(tmp_path: Path) -> None:
    words = Words(Pending())

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.revoked()
        asked = len(words.asked)
        await world.passes(300)
        assert (len(words.asked), world.watched.unknown) == (asked, 0)
        words.words = [Found((Answered(b"1"),))]
        await world.returns()
        await world.passes(1)
        assert [event.output for event in resolved(world)] == [b"1"]

    story(words, told, tmp_path)


def test_U5_what_is_unknown_is_counted_and_its_age_said_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def told(world: Doubts) -> None:
        await world.loses("ab")
        await world.passes(3 * reconciler.SAY_SECONDS)

    with caplog.at_level(logging.WARNING):
        story(Words(Pending(), terms=None), told, tmp_path)
    lines = [record.getMessage() for record in caplog.records if "unknown_outcomes=" in record.getMessage()]
    assert len(lines) >= 3
    assert "unknown_outcomes=2" in lines[-1]
    ages = [int(line.partition("oldest_seconds=")[2].partition(" ")[0]) for line in lines]
    assert ages == sorted(ages)
    assert ages[-1] >= 2 * reconciler.SAY_SECONDS


def test_more_than_may_be_open_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "OPEN_MAX", 2)
    words = Words(Found((Answered(b"1"),)))

    async def told(world: Doubts) -> None:
        await world.loses("abcde")
        await world.passes(5)
        assert sorted(event.receipt for event in resolved(world)) == list("abcde")

    story(words, told, tmp_path)


def test_U3_never_heard_of_is_believed_after_hours_too_if_the_providers_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look-ups ended 67 minutes after the first, so that a longer ``absent_after_seconds`` had no effect and nobody was told."""
    monkeypatch.setattr(reconciler, "WAIT_SECONDS_MAX", 10.0)  # they would end after 2 minutes
    words = Words(Absent(), terms=Reconcile(path="/x/{key}", absent_means="unpaid", absent_after_seconds=400))

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(390)
        assert resolved(world) == []
        assert len(words.asked) > reconciler.LOOK_UPS_MAX
        await world.passes(reconciler.WAIT_SECONDS_MAX + 12)
        assert [event.why for event in resolved(world)] == ["the provider never heard of it"]
        waits = [later - earlier for (earlier, *_), (later, *_) in pairwise(words.asked)]
        assert max(waits) < reconciler.WAIT_SECONDS_MAX + 1

    story(words, told, tmp_path)


def test_U3_look_ups_that_go_on_for_long_keep_no_others_from_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a place each, of so many; with that the first would have kept it until the last second."""
    monkeypatch.setattr(reconciler, "OPEN_MAX", 2)
    monkeypatch.setattr(reconciler, "LOOK_UPS_MAX", 3)
    words = Words(Absent(), terms=Reconcile(path="/x/{key}", absent_means="unpaid", absent_after_seconds=200))

    async def told(world: Doubts) -> None:
        await world.loses("abcde")
        await world.passes(20)
        assert {member.receipt for _, _, (member,) in words.asked} == set("abcde")
        assert resolved(world) == []
        await world.passes(300)
        assert sorted(event.receipt for event in resolved(world)) == list("abcde")

    story(words, told, tmp_path)


def test_U3_a_look_up_that_fails_in_itself_is_told_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An answer nested 300 deep ended the task with an error that nobody heard of, and with it all look-ups of the receipt."""
    words = Words(ValueError("nested deeper"), Found((Answered(b"1"),)))

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(3)
        assert [event.output for event in resolved(world)] == [b"1"]

    story(words, told, tmp_path)
    assert "receipt a: the look-up failed, and is made again later" in caplog.text
    assert "nested deeper" in caplog.text


def test_B11_what_was_sent_and_is_not_there_any_more_cannot_be_looked_up_and_the_worker_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B11: the look-up of a batch of which a member's record was gone ended the worker, and each next owner of the partition."""
    words = Words(Pending())

    async def told(world: Doubts) -> None:
        await world.loses("ab", "once")
        await world.loses("c")
        words.asked.clear()
        del world.table.reader.data[record_key(RECEIPT, "a")]
        await world.revoked()
        await world.returns()
        await world.passes(10)
        assert {members[0].receipt for _, _, members in words.asked} == {"c"}
        assert world.watched.unknown == 3
        assert world.failures == []

    with caplog.at_level(logging.ERROR):
        story(words, told, tmp_path)
    missing = [record.getMessage() for record in caplog.records if "cannot be looked up" in record.msg]
    assert sorted(message.split()[1] for message in missing) == ["a", "b"]


def test_S3_what_a_look_up_found_is_published_again_while_the_broker_is_away(tmp_path: Path) -> None:
    """It went past ladder and breaker: one error of the broker ended the worker."""
    words = Words(Pending(), Found((Answered(b"1"),)))

    async def told(world: Doubts) -> None:
        await world.loses()
        await world.passes(0.5)
        world.log.trouble = Unreachable("no broker")
        await world.passes(3)
        assert world.dispatcher.settlement.breaker.is_open
        assert (resolved(world), world.failures) == ([], [])
        world.log.trouble = None
        await world.passes(10)
        assert [event.output for event in resolved(world)] == [b"1"]
        assert (world.dispatcher.settlement.breaker.is_open, world.failures, len(words.asked)) == (False, [], 2)

    story(words, told, tmp_path)


def test_B11_a_defect_in_a_look_up_is_heard_of(tmp_path: Path) -> None:
    """Only our own errors ended the worker; any other one ended the look-up, and nobody heard of it."""

    async def told(world: Doubts) -> None:
        async def broken(*_arguments: object) -> None:
            raise ZeroDivisionError

        world.watched._say = broken
        await world.loses()
        await world.passes(1)
        assert [str(error) for error in world.failures] == ["the look-up of receipt a ended in a defect: ZeroDivisionError()"]

    story(Words(Found((Answered(b'"found"'),))), told, tmp_path)
