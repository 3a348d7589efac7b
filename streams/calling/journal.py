"""The local journal of paid answers: what was read from a provider is on disk before it is published.

A killed process thus loses no answer that it had already read; the next one under the same data folder publishes it again, and
the fold of ``receipt-completions`` makes a second publication harmless. The journal is a row of files, so that it stays small
while calls overlap: ``answers.journal``, then ``answers.journal.1``, and so on. Nothing is renamed or copied on the way, so a
kill between any two steps leaves every unpublished answer where it was written.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from schemas.events import AttemptEnded

log = logging.getLogger(__name__)

#: A file of this size is full, and the next one is begun: seconds of answers at full speed. What a start reads and publishes
#: again is what stands in the last one, and in those before it of which some answer is not acknowledged.
SEGMENT_BYTES_MAX: Final = 4 << 20
#: What of a file cannot be read is kept under its name with this ending.
DAMAGED: Final = ".damaged"

#: Before each entry: its partition and size; in entries with ``_CHECKED`` the sum of their bytes, too. Older ones have none.
_HEADER = struct.Struct(">II")
_SUM = struct.Struct(">I")
_CHECKED = 1 << 31
#: A kill in the middle of a write; the provider call of such an entry will be told as lost.
_CUT = "cut off"
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[AttemptEnded])

Entry = tuple[int, list[AttemptEnded]]


@dataclass(slots=True, eq=False)
class Segment:
    """One file of the journal, and how many of its entries this process has not published."""

    path: Path
    pending: int = 0


class AnswerJournal:
    """Append-only files of events and the partition each belongs to; a file goes when nothing in it is unpublished."""

    def __init__(self, path: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._segment_bytes_max = segment_bytes_max
        #: Files of this process.
        self._own: set[Path] = set()
        #: What the process before this one left: read, never written to, for its end may be damaged.
        self._inherited = self._files()
        #: Those of them that cannot be read to their ends.
        self._damaged: set[Path] = set()
        #: Of the file that is written to: its descriptor, its size, and the size at which the next one is begun.
        self._fd: int
        self._size: int
        self._full_at: int
        self._written = False
        self._open(self._inherited[-1] if self._inherited else path)

    def unpublished(self) -> list[Entry]:
        """What the process before this one read but may not have published: partition and events."""
        found: list[Entry] = []
        files = self._files()
        if not self._written:
            # Opened before the folder was locked: whoever was in it may have written to the file since, or removed it.
            os.close(self._fd)
            self._own.clear()
            self._open(files[-1] if files else self._path)
            files = self._files()
        self._inherited = [path for path in files if path not in self._own]
        for path in files:
            data = path.read_bytes()
            entries, end, why = _read(data)
            found += entries
            if end < len(data):
                self._damaged.add(path)
                log.error(
                    "%s cannot be read from byte %d to its end at %d (%s): %d entries before it are used, the file is kept as %s",
                    path,
                    end,
                    len(data),
                    why,
                    len(entries),
                    path.name + DAMAGED,
                )
        return found

    def append(self, partition: int, events: Sequence[AttemptEnded]) -> Segment:
        """Write events down; returns once the operating system has them, which survives a kill of the process.

        What it returns is for ``published``. Raises ``OSError`` where the disk is full.
        """
        self._written = True
        if self._size >= self._full_at:
            self._begin_next()
        body = _encode(list(events))
        entry = _HEADER.pack(partition | _CHECKED, len(body)) + _SUM.pack(zlib.crc32(body)) + body
        segment = self._active
        try:
            written = os.write(self._fd, entry)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}", str(segment.path)) from error
        if written != len(entry):
            # A torn entry would hide the ones behind it.
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, "the disk is full", str(segment.path))
        self._size += len(entry)
        segment.pending += 1
        return segment

    def published(self, segment: Segment) -> None:
        """The events of one ``append`` are acknowledged by the broker."""
        segment.pending -= 1
        if segment.pending:
            return
        if segment is not self._active:
            self._own.discard(segment.path)
            _remove(segment.path)
        elif self._size:
            os.ftruncate(self._fd, 0)
            self._size, self._full_at = 0, self._segment_bytes_max

    def clear(self) -> None:
        """All that ``unpublished`` returned is acknowledged."""
        left, self._inherited = [path for path in self._inherited if path not in self._own], []
        ours = self._active.path in self._own
        if not ours:
            os.close(self._fd)
        for path in left:
            if path in self._damaged:
                _keep_aside(path)
            else:
                _remove(path)
        if not ours:
            self._open(self._path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _open(self, path: Path, flags: int = 0) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | flags, 0o600)
        self._active = Segment(path)
        self._size = os.fstat(self._fd).st_size
        # What somebody else wrote to is full for us.
        self._full_at = 0 if self._size else self._segment_bytes_max
        if not self._size:
            self._own.add(path)

    def _begin_next(self) -> None:
        """Go on in a new file. Where none can be made, a full one of our own grows by as much again."""
        full = self._fd
        try:
            self._open(self._next(), os.O_EXCL)
        except OSError as error:
            if self._active.path not in self._own:
                raise
            log.error("%s grows beyond %d bytes: %s", self._active.path, self._size, error)
            self._full_at = self._size + self._segment_bytes_max
            return
        os.close(full)

    def _next(self) -> Path:
        """A name behind those of all files there are."""
        taken = max((_number(self._path, path) or 0 for path in self._files()), default=0)
        return self._path.with_name(f"{self._path.name}.{taken + 1}")

    def _files(self) -> list[Path]:
        """All files of the journal, in the order in which they were written."""
        numbered = ((_number(self._path, path), path) for path in self._path.parent.iterdir())
        return [path for _, path in sorted((number, path) for number, path in numbered if number is not None)]


def _number(first: Path, path: Path) -> int | None:
    """Which file of a journal a path is, 0 for the first one; ``None`` for other files."""
    if path.name == first.name:
        return 0
    number = path.name.removeprefix(first.name + ".")
    return int(number) if number != path.name and number.isascii() and number.isdigit() else None


def _read(data: bytes) -> tuple[list[Entry], int, str]:
    """The entries of a file as far as it can be read, where that ends, and why."""
    found: list[Entry] = []
    position = 0
    while position < len(data):
        start = position + _HEADER.size
        if start > len(data):
            return found, position, _CUT
        partition, size = _HEADER.unpack_from(data, position)
        checked = partition & _CHECKED
        start += _SUM.size if checked else 0
        body = data[start : start + size]
        if start + size > len(data):
            return found, position, _CUT
        if checked and _SUM.unpack_from(data, start - _SUM.size)[0] != zlib.crc32(body):
            return found, position, "its sum is wrong"
        try:
            events = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return found, position, f"no entry: {error}"
        found.append((partition & ~_CHECKED, events))
        position = start + size
    return found, position, ""


def _keep_aside(path: Path) -> None:
    """Give a file a name that no start reads; what cannot be read of it was paid for, perhaps."""
    place = path.with_name(path.name + DAMAGED)
    number = 1
    while place.exists():
        number += 1
        place = path.with_name(f"{path.name}{DAMAGED}.{number}")
    try:
        path.rename(place)
    except OSError as error:
        log.error("%s stays, and the next start reads it again: %s", path, error)
    else:
        log.error("%s is kept as %s", path, place)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error("%s stays, and the next start publishes it again, which does no harm: %s", path, error)
