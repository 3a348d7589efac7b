"""The journal as a row of files: small while calls overlap, readable after a kill at any step, and never the end of a start."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import zlib
from collections import deque
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from schemas.events import AttemptEnded, Value
from streams.calling.journal import DAMAGED, AnswerJournal

SMALL = 2_000


def answer(receipt: str) -> AttemptEnded:
    return AttemptEnded(receipt, 1, 0, "lease", Value(b'"' + b"x" * 100 + b'"'))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "answers.journal"


def files(path: Path) -> dict[str, int]:
    """Names and sizes of what is in the folder."""
    return {found.name: found.stat().st_size for found in sorted(path.parent.iterdir())}


def left(path: Path) -> list[str]:
    """Receipts that the next process finds."""
    with closing(AnswerJournal(path)) as journal:
        return [end.receipt for _, ends in journal.unpublished() for end in ends]


def killed_after(path: Path, *receipts: str, segment_bytes_max: int = SMALL) -> None:
    """A process that wrote these and was killed before anything was published."""
    with closing(AnswerJournal(path, segment_bytes_max=segment_bytes_max)) as journal:
        for receipt in receipts:
            journal.append(0, [answer(receipt)])


# --- small while calls overlap ------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [1, 2, 30])
def test_S5_a_journal_of_calls_that_overlap_stays_small(path: Path, overlap: int) -> None:
    """It was emptied only at moments at which nothing was under way: at 3,000 calls a second never, 686 MiB in ten minutes.

    A start reads and publishes all that stands there, in the time that a broker has, so it could start no more.
    """
    under_way: deque[tuple[str, object]] = deque()
    with closing(AnswerJournal(path, segment_bytes_max=SMALL)) as journal:
        largest = 0
        for number in range(3_000):
            under_way.append((f"r{number}", journal.append(0, [answer(f"r{number}")])))
            if len(under_way) > overlap:
                journal.published(under_way.popleft()[1])  # type: ignore[arg-type]
            if not number % 100:
                largest = max(largest, sum(files(path).values()))
        entry = 170
        assert largest < 2 * SMALL + (overlap + 2) * entry
        assert {receipt for receipt, _ in under_way} <= set(left(path))
        while under_way:
            journal.published(under_way.pop()[1])  # type: ignore[arg-type]
        assert (sum(files(path).values()), len(files(path))) == (0, 1)


def test_S5_an_answer_that_is_not_acknowledged_for_long_keeps_its_own_file_alone(path: Path) -> None:
    with closing(AnswerJournal(path, segment_bytes_max=SMALL)) as journal:
        stuck = journal.append(0, [answer("stuck")])
        for number in range(500):
            last = journal.append(0, [answer(f"r{number}")])
            journal.published(last)
        assert "stuck" in left(path)
        # What was acknowledged while its file was being written stands beside it; all other files are gone or empty.
        assert len(left(path)) < 20
        journal.published(stuck)
        assert left(path) == []


def test_S5_a_start_takes_all_files_in_order_and_begins_again_with_the_first_name(path: Path) -> None:
    receipts = [f"r{number}" for number in range(60)]
    killed_after(path, *receipts)
    assert len(files(path)) > 3
    assert left(path) == receipts
    with closing(AnswerJournal(path, segment_bytes_max=SMALL)) as journal:
        assert len(journal.unpublished()) == 60
        journal.clear()
        assert files(path) == {path.name: 0}
        journal.append(0, [answer("next")])
    assert left(path) == ["next"]
    assert path.name in files(path)


def test_S5_where_no_further_file_can_be_made_the_full_one_grows(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    receipts = [f"r{number}" for number in range(60)]
    with closing(AnswerJournal(path, segment_bytes_max=SMALL)) as journal:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            for receipt in receipts[:30]:
                journal.append(0, [answer(receipt)])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(files(path)) == 1
        # One line for each time that it has grown by as much again.
        assert 1 <= len([record for record in caplog.records if "grows beyond" in record.getMessage()]) <= 3
        for receipt in receipts[30:]:
            journal.append(0, [answer(receipt)])
        assert len(files(path)) == 3
    assert left(path) == receipts


# --- a kill at any step -------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from collections import deque
from pathlib import Path
from schemas.events import AttemptEnded, Value
from streams.calling.journal import AnswerJournal

STEPS = {"open", "os.truncate", "os.remove", "os.rename", "read", "published"}

def story(folder, said, step_of_death):
    steps = 0
    def hook(event, arguments):
        nonlocal steps
        if event in STEPS:
            steps += 1
            if steps == step_of_death:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    journal = AnswerJournal(folder / "answers.journal", segment_bytes_max=400)
    again = [end.receipt for _, ends in journal.unpublished() for end in ends]
    for receipt in again:
        os.write(said, f"published {receipt}\\n".encode())
    journal.clear()
    under_way = deque()
    for number in range(60):
        receipt = f"{folder.name}-{os.getpid()}-{number}"
        segment = journal.append(0, [AttemptEnded(receipt, 1, 0, "lease", Value(b'"' + b"x" * 60 + b'"'))])
        os.write(said, f"read {receipt}\\n".encode())
        sys.audit("read")
        under_way.append((receipt, segment))
        # Two overlap; now and then all are acknowledged, in either order.
        while len(under_way) > (2 if number % 6 else 0):
            receipt, segment = under_way.pop() if number % 4 == 0 else under_way.popleft()
            os.write(said, f"published {receipt}\\n".encode())
            journal.published(segment)
            sys.audit("published")

top, step = Path(sys.argv[1]), 1
while True:
    folder = top / f"step{step}"
    folder.mkdir()
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    killed = 0
    for _ in range(2):  # a second process finds what the first one left, and dies at the same step of its own
        child = os.fork()
        if child == 0:
            story(folder, said, step)
            os._exit(0)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    os.close(said)
    if not killed:
        break
    step += 1
print(step)
"""


def test_S5_a_kill_before_any_step_leaves_every_unpublished_answer_readable(tmp_path: Path) -> None:
    """Real processes, killed before each opening, cutting, deleting or renaming of a file, and after each answer."""
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    steps = int(ran.stdout)
    assert steps > 100
    for step in range(1, steps + 1):
        folder = tmp_path / f"step{step}"
        words = [line.split() for line in (folder / "said").read_text().splitlines()]
        read, published = ({receipt for word, receipt in words if word == which} for which in ("read", "published"))
        assert read - published <= set(left(folder / "answers.journal")), step


# --- damage -------------------------------------------------------------------------------------------------------


def started(path: Path) -> list[str]:
    """A start: what it publishes; then the journal is cleared, and one further answer is written."""
    with closing(AnswerJournal(path, segment_bytes_max=SMALL)) as journal:
        found = [end.receipt for _, ends in journal.unpublished() for end in ends]
        journal.clear()
        journal.append(0, [answer("next")])
    return found


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 64, b"\0", b"\xff" * 64, struct.pack(">II", 0, 3) + b"\x91\x93\x01", struct.pack(">II", 0, 4) + b"\x91\xa2\xff\xff"],
    ids=["zeros", "one byte", "ones", "another list", "no text"],
)
def test_S5_a_damaged_tail_stops_no_start_and_is_kept_aside(path: Path, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """After a power loss a file may end in zeros: a decoder's error without path or place ended every start from then on."""
    killed_after(path, "r1", "r2")
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert started(path) == ["r1", "r2"]
    assert f"{path} cannot be read from byte {len(whole)} to its end at {len(whole) + len(tail)}" in caplog.text
    assert (path.parent / (path.name + DAMAGED)).read_bytes() == whole + tail
    assert left(path) == ["next"]


def test_S5_a_second_damage_does_not_take_the_place_of_the_first(path: Path) -> None:
    for number in range(3):
        killed_after(path, f"r{number}")
        path.write_bytes(path.read_bytes() + b"\0" * (10 + number))
        assert started(path)[-1] == f"r{number}"
    names = [path.name + DAMAGED + ending for ending in ("", ".2", ".3")]
    assert [(path.parent / name).read_bytes()[-number:] for name, number in zip(names, (10, 11, 12), strict=True)] == [
        b"\0" * number for number in (10, 11, 12)
    ]


def test_S5_what_stands_in_files_behind_a_damaged_one_is_published_all_the_same(path: Path) -> None:
    receipts = [f"r{number}" for number in range(40)]
    killed_after(path, *receipts)
    second = path.with_name(path.name + ".1")
    there = path.with_name(path.name + ".2")
    second.write_bytes(b"\0" + second.read_bytes()[1:])
    found = started(path)
    assert found[-1] == "r39"
    assert len(found) < 40
    assert set(receipts) - set(found)
    assert not there.exists()
    assert files(path).keys() == {path.name, second.name + DAMAGED}


def test_S5_an_answer_whose_bytes_have_changed_is_not_published(path: Path) -> None:
    """Zeros in the middle of an output, after a power loss, decode as well as the output does: a wrong value, paid and kept."""
    killed_after(path, "r1", "r2")
    data = path.read_bytes()
    assert data[-30:-10] == b"x" * 20
    path.write_bytes(data[:-30] + b"\0" * 20 + data[-10:])
    assert started(path) == ["r1"]


def test_S5_entries_of_an_older_version_which_have_no_sum_are_read(path: Path) -> None:
    body = msgspec.msgpack.encode([answer("old")])
    path.parent.mkdir()
    path.write_bytes(struct.pack(">II", 7, len(body)) + body)
    with closing(AnswerJournal(path)) as journal:
        segment = journal.append(511, [answer("new")])
        assert segment.path.read_bytes()[:12] == struct.pack(
            ">III", 1 << 31 | 511, len(body), zlib.crc32(msgspec.msgpack.encode([answer("new")]))
        )
        assert [(partition, end.receipt) for partition, (end,) in journal.unpublished()] == [(7, "old"), (511, "new")]


def test_S5_a_damaged_file_that_cannot_be_kept_aside_ends_no_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    killed_after(path, "r1")
    path.write_bytes(path.read_bytes() + b"\0")
    with closing(AnswerJournal(path)) as journal:
        assert len(journal.unpublished()) == 1
        path.unlink()
        journal.clear()
        journal.append(0, [answer("next")])
    assert "stays, and the next start reads it again" in caplog.text
    assert left(path) == ["next"]
