"""The local journal of paid answers: what was read from a provider is on disk before it is published.

A killed process thus loses no answer that it had already read; the next one under the same data folder publishes it again, and
the fold of ``receipt-completions`` makes a second publication harmless.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from schemas.events import AttemptEnded

_HEADER = struct.Struct(">II")
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[AttemptEnded])


class AnswerJournal:
    """An append-only file of events and the partition each belongs to; emptied when nothing in it is unpublished."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._pending = 0
        self._size = path.stat().st_size if path.exists() else 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def unpublished(self) -> list[tuple[int, list[AttemptEnded]]]:
        """What the process before this one read but may not have published: partition and events."""
        data = self._path.read_bytes()
        found: list[tuple[int, list[AttemptEnded]]] = []
        position = 0
        while position + _HEADER.size <= len(data):
            partition, size = _HEADER.unpack_from(data, position)
            start = position + _HEADER.size
            if start + size > len(data):
                break  # cut off by the kill: its provider call will be told as lost
            found.append((partition, _decoder.decode(data[start : start + size])))
            position = start + size
        return found

    def append(self, partition: int, events: Sequence[AttemptEnded]) -> None:
        """Write events down; returns once the operating system has them, which survives a kill of the process."""
        body = _encode(list(events))
        entry = _HEADER.pack(partition, len(body)) + body
        try:
            written = os.write(self._fd, entry)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}", str(self._path)) from error
        if written != len(entry):
            # A torn entry would hide the ones behind it.
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, "the disk is full", str(self._path))
        self._size += len(entry)
        self._pending += 1

    def published(self) -> None:
        """The events of one ``append`` are acknowledged by the broker."""
        self._pending -= 1
        if self._pending == 0 and self._size:
            os.ftruncate(self._fd, 0)
            self._size = 0

    def clear(self) -> None:
        """All that ``unpublished`` returned is acknowledged."""
        if self._pending == 0:
            os.ftruncate(self._fd, 0)
            self._size = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
