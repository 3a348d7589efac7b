"""What people see: messages and a live bar on stderr, tables on stdout.

Shows what it is given; it asks nobody.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from schemas.canonical import dump_json
from schemas.progress import MapProgress, RunEvent

LINE_EVERY_SECONDS = 2.0
#: Width of a table that is piped into something.
PIPE_WIDTH = 200

OK, FAILED_ROWS, USAGE, CANCELLED, UNKNOWN_OUTCOMES = 0, 1, 2, 3, 5


def say(message: str) -> None:
    """A message for people, on stderr, as it is: no wrapping, no markup."""
    print(message, file=sys.stderr, flush=True)


def put(line: str) -> None:
    """A line of data, on stdout."""
    print(line)


def put_json(value: Any) -> None:
    """A line of JSON, on stdout."""
    print(dump_json(value).decode())


def put_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table, on stdout; numbers are for people, programs take ``--json``."""
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=PIPE_WIDTH)
    console.print(table)


def exit_code_of(last: RunEvent) -> int:
    """The exit code that a run's terminal event means."""
    counts = last.counts
    match last.type:
        case "run.cancelled":
            return CANCELLED
        case "run.refused":
            return USAGE
        case _ if counts is not None and counts.unknown:
            return UNKNOWN_OUTCOMES
        case _ if last.type == "run.failed" or (counts is not None and counts.failed):
            return FAILED_ROWS
        case _:
            return OK


class LiveBar:
    """A run's progress on stderr: a bar on a terminal, now and then a line elsewhere. A context manager."""

    def __init__(self, label: str, *, total: int | None = None) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[notes]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=total, notes="")
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, sample: MapProgress) -> None:
        """The newest sample."""
        counts = sample.counts
        notes = [f"{counts.calls_live:,} live"] + [
            f"{number:,} {word}"
            for number, word in (
                (counts.calls_in_flight, "coalesced"),
                (counts.calls_cache + counts.reused, "reused"),
                (counts.skipped, "skipped"),
                (counts.failed, "failed"),
                (counts.unknown, "unknown"),
                (counts.retries, "retries"),
            )
            if number
        ]
        self.advance(counts.done, counts.total, ", ".join(notes), sample.message)

    def advance(self, done: int, total: int | None, notes: str, line: str) -> None:
        """How far it is; ``line`` says the same where there is no terminal."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=total, notes=notes)
            return
        now = time.monotonic()
        if line != self._said and now - self._said_at >= LINE_EVERY_SECONDS:
            self._said, self._said_at = line, now
            say(line)

    def note(self, message: str) -> None:
        """A message that stays above the bar."""
        if self._console.is_terminal:
            self._bar.console.print(message)
        else:
            say(message)
