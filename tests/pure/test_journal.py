"""The journal of paid answers: what was written down is there after a kill, and gone once all of it is published."""

from __future__ import annotations

import resource
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import AttemptEnded, Failed, Fault, Value
from streams.calling.journal import AnswerJournal


def answer(receipt: str, output: bytes = b'"paid"') -> AttemptEnded:
    return AttemptEnded(receipt, 1, 0, "lease", Value(output))


REFUSED = AttemptEnded("r9", 2, 1, "lease", Failed(Fault("http_402", "no credit", True)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "answers.journal"


@pytest.fixture
def journal(path: Path) -> Iterator[AnswerJournal]:
    with closing(AnswerJournal(path)) as opened:
        yield opened


def left(path: Path) -> list[tuple[int, list[AttemptEnded]]]:
    """What the next process finds."""
    with closing(AnswerJournal(path)) as journal:
        return journal.unpublished()


def killed_while_writing(path: Path, *batches: Sequence[AttemptEnded]) -> None:
    """A process that wrote each batch for the partition of its index and was killed before anything was published."""
    with closing(AnswerJournal(path)) as journal:
        for partition, events in enumerate(batches):
            journal.append(partition, events)


# --- what survives ------------------------------------------------------------------------------------------


def test_a_new_journal_is_empty_and_nobody_elses_business(path: Path, journal: AnswerJournal) -> None:
    """Answers are customers' data."""
    assert journal.unpublished() == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_written_is_found_by_the_next_process_with_its_partition_in_order(path: Path) -> None:
    with closing(AnswerJournal(path)) as journal:
        journal.append(511, [answer("r1"), REFUSED])
        journal.append(0, [answer("r2", b"x" * 3_000_000)])
        journal.append(511, [])
    expected = [(511, [answer("r1"), REFUSED]), (0, [answer("r2", b"x" * 3_000_000)]), (511, [])]
    assert left(path) == expected
    assert left(path) == expected


def test_what_was_written_is_in_the_file_before_append_returns(path: Path, journal: AnswerJournal) -> None:
    journal.append(3, [answer("r1")])
    assert left(path) == [(3, [answer("r1")])]


def test_a_process_adds_to_what_the_one_before_left(path: Path) -> None:
    killed_while_writing(path, [answer("r1")])
    with closing(AnswerJournal(path)) as journal:
        journal.append(1, [answer("r2")])
    assert left(path) == [(0, [answer("r1")]), (1, [answer("r2")])]


# --- a tail that was cut off --------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.binary(max_size=20).map(lambda output: answer("r", output)), max_size=3), min_size=1, max_size=4),
    st.data(),
)
def test_of_a_journal_cut_off_anywhere_all_whole_entries_are_found(batches: list[list[AttemptEnded]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, ends = Path(folder) / "answers.journal", []
        with closing(AnswerJournal(path)) as journal:
            for partition, events in enumerate(batches):
                journal.append(partition, events)
                ends.append(path.stat().st_size)
        cut = data.draw(st.integers(0, ends[-1]))
        path.write_bytes(path.read_bytes()[:cut])
        whole = sum(1 for end in ends if end <= cut)
        assert left(path) == list(enumerate(batches[:whole]))


def test_a_cut_off_tail_is_gone_when_the_rest_is_published(path: Path) -> None:
    """Else what is written next would stand behind a tail, and be taken for a part of it."""
    killed_while_writing(path, [answer("r1")], [answer("r2")])
    path.write_bytes(path.read_bytes()[:-1])
    with closing(AnswerJournal(path)) as journal:
        assert journal.unpublished() == [(0, [answer("r1")])]
        journal.clear()
        journal.append(5, [answer("r3")])
    assert left(path) == [(5, [answer("r3")])]


def test_a_journal_of_nothing_but_a_tail_is_emptied_too(path: Path) -> None:
    killed_while_writing(path, [answer("r1")])
    path.write_bytes(path.read_bytes()[:5])
    with closing(AnswerJournal(path)) as journal:
        assert journal.unpublished() == []
        journal.clear()
        journal.append(5, [answer("r2")])
    assert left(path) == [(5, [answer("r2")])]


def test_a_full_disk_is_told_and_leaves_what_stands_before_and_after_readable(path: Path, journal: AnswerJournal) -> None:
    """A write that fits only in part returns fewer bytes and no error; what is written next would stand behind a tail."""
    journal.append(0, [answer("r1")])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"answers\.journal"):
            journal.append(1, [answer("r2", b"x" * 1_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.append(2, [answer("r3")])
    assert left(path) == [(0, [answer("r1")]), (2, [answer("r3")])]


# --- publishing ---------------------------------------------------------------------------------------------


def test_the_file_is_emptied_when_all_is_published_and_not_before(path: Path, journal: AnswerJournal) -> None:
    segments = [journal.append(number, [answer(f"r{number}")]) for number in range(3)]
    journal.published(segments[1])
    journal.published(segments[0])
    assert len(left(path)) == 3
    journal.published(segments[2])
    assert path.stat().st_size == 0
    assert left(path) == []


def test_an_emptied_journal_is_written_from_its_beginning_again(path: Path, journal: AnswerJournal) -> None:
    for number in range(3):
        journal.published(journal.append(number, [answer(f"r{number}")]))
        assert path.stat().st_size == 0
    journal.append(7, [answer("r7")])
    assert left(path) == [(7, [answer("r7")])]


def test_clearing_takes_away_what_the_process_before_left(path: Path) -> None:
    killed_while_writing(path, [answer("r1")])
    with closing(AnswerJournal(path)) as journal:
        journal.clear()
        assert path.stat().st_size == 0
        journal.clear()
    assert left(path) == []


def test_clearing_leaves_what_this_process_has_not_published(path: Path) -> None:
    killed_while_writing(path, [answer("r1")])
    with closing(AnswerJournal(path)) as journal:
        segment = journal.append(1, [answer("r2")])
        journal.clear()
        assert left(path) == [(1, [answer("r2")])]
        journal.published(segment)
        assert left(path) == []


def test_S2_what_was_written_or_removed_between_the_opening_and_the_first_look_is_seen(path: Path) -> None:
    """It is opened before its folder is locked. A process that was still in it wrote on, and a short write then cut off older
    answers; or it removed the file, and answers were written to one that had no name any more.
    """
    with closing(AnswerJournal(path)) as older, closing(AnswerJournal(path)) as newer:
        older.append(0, [answer("theirs")])
        assert newer.unpublished() == [(0, [answer("theirs")])]
        newer.append(1, [answer("ours")])
        assert newer._active.path != path, "what somebody else wrote to is never written to"
        path.unlink()
        with closing(AnswerJournal(path)) as third:
            assert third.unpublished() == [(1, [answer("ours")])]
    with closing(AnswerJournal(path)) as newer:
        for file in path.parent.iterdir():
            file.unlink()
        assert newer.unpublished() == []
        newer.append(2, [answer("kept")])
        assert left(path) == [(2, [answer("kept")])]
