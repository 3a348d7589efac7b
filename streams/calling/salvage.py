"""Paid answers that did not become a receipt's value, as lines that a person can read: ``salvage.jsonl`` in the data folder.

Beside the journal, which is for the next process. Written when a worker ends with answers that it could not publish, and when a
value was kept aside because another came first (S5). Nothing reads it back.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

#: The file grows no further than this: it is for looking at, and the disk is needed for the journal.
BYTES_MAX = 64 << 20


class Why(StrEnum):
    """Why a line was written."""

    #: The broker could not be reached until the worker ended; the next start publishes it.
    UNPUBLISHED = "unpublished"
    #: What an earlier process could not publish is published now.
    PUBLISHED = "published"
    #: Another value of the receipt came first.
    KEPT_ASIDE = "kept_aside"
    #: No further outputs are written.
    CAPPED = "capped"


class Salvaged(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. Times are Unix milliseconds; ``output`` is the provider's answer as it came."""

    why: Why
    at_ms: int
    receipt: str = ""
    tool: str = ""
    attempt: int = 0
    first_error_ms: int = 0
    error: str = ""
    output: msgspec.Raw = msgspec.Raw(b"")


class SalvageFile:
    """Appends lines; its first line makes the file, readable by its owner alone. A full disk is told and never raised."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._capped = False
        #: Outputs that were left out beyond the cap.
        self.left_out = 0

    def keep(self, lines: Iterable[Salvaged]) -> None:
        """Append lines; beyond the cap one line says so, and outputs are only counted."""
        for line in lines:
            self._keep(line)

    def _keep(self, line: Salvaged) -> None:
        # Raw's empty default is no JSON; a line without output has no such field.
        text = msgspec.json.encode(line) + b"\n"
        try:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size + len(text) <= self._bytes_max:
                self._append(text)
                return
            self.left_out += 1
            if not self._capped:
                self._capped = True
                error = (
                    f"{self.path.name} has {size:,} bytes; with the {len(text):,} of receipt {line.receipt} it would grow beyond "
                    f"{self._bytes_max:,}: from here on outputs are left out"
                )
                log.error("%s", error)
                self._append(msgspec.json.encode(Salvaged(Why.CAPPED, time.time_ns() // 1_000_000, error=error)) + b"\n")
        except OSError as error:
            log.error("receipt %s, attempt %d is not in %s: %s", line.receipt, line.attempt, self.path, error)

    def _append(self, text: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, text) != len(text):
                os.ftruncate(descriptor, size)  # a line is whole or not there
                raise OSError("the disk is full")
        finally:
            os.close(descriptor)
