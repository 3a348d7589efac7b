"""``paidonce replay``: any past state from the log alone, and the proof that live tables equal it.

Shows what ``streams.replay`` found.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from streams.cli.options import settings_of
from streams.cli.terminal import put_json, put_table, say
from streams.errors import UsageError
from streams.replay import Plan, Replayed
from streams.replay import replay as replayed
from streams.replaying.until import parse_until

EQUAL, DIFFERENT = 0, 1


def replay(
    context: typer.Context,
    until: Annotated[
        str | None, typer.Option(help="A time, topic/partition@offset or table/partition@turn: the last that is folded.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Compare with the live tables at the same turns; 1 if they differ.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="With --diff: told flags and late marks count, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    processes: Annotated[int, typer.Option(min=0, help="Processes that share the partitions; 0: one for each core.")] = 0,
) -> int:
    """Fold all tables again from the topics and print a digest of each; publishes nothing and calls nobody."""
    if strict and not diff:
        raise UsageError("--strict says how --diff compares; give both")
    settings = settings_of(context)
    cut = None if until is None else parse_until(until, partitions=settings.partitions, topic_prefix=settings.topic_prefix)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="paidonce-replay-") as folder:
        found, pace = replayed(Plan(settings, Path(folder), diff=diff, exact=diff), cut, processes=processes or os.cpu_count() or 1)
    different = [part for part in found if part.live and (part.live.differing or (strict and part.live.told_differing))]
    if json:
        put_json(
            {
                "until": until,
                "equal": not different if diff else None,
                "turns": pace.turns,
                "events": pace.events,
                "fold_seconds": round(pace.seconds, 3),
                "seconds": round(time.monotonic() - started, 3),
                "tables": [_plain(part) for part in found],
            }
        )
    else:
        _show(found, diff=diff)
        rate = f" ({pace.events / pace.seconds:,.0f} a second)" if pace.seconds else ""
        say(f"{pace.events:,} events in {pace.turns:,} turns folded in {pace.seconds:.1f} s{rate}")
    for part in different:
        _say_different(part)
    if diff and not different:
        say("live tables equal the log")
    return DIFFERENT if different else EQUAL


def _show(found: list[Replayed], *, diff: bool) -> None:
    columns = ["table", "turn", "at", "records", "events", "digest", *(["live"] if diff else [])]
    put_table("", columns, [_line(part) for part in found])


def _line(part: Replayed) -> list[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(part.at_ms / 1000)) if part.turn else ""
    numbers = [f"{part.digests.records:,}", f"{part.events:,}"]
    line = [f"{part.table}/{part.partition}", f"{part.turn:,}", at, *numbers, part.digests.state]
    if part.live is not None:
        line.append(f"{part.live.differing:,} differ" if part.live.differing else "equal")
    return line


def _plain(part: Replayed) -> dict[str, Any]:
    plain = dataclasses.asdict(part)
    plain["digests"] = part.digests._asdict()
    if part.live is not None:
        plain["live"]["digests"] = part.live.digests._asdict()
        plain["live"]["named"] = list(part.live.named)
    return plain


def _say_different(part: Replayed) -> None:
    assert part.live is not None
    where = f"{part.table}/{part.partition} at turn {part.turn:,}"
    told = f"{part.live.told_differing:,} in what waiters were told only"
    say(f"{where}: {part.live.differing:,} records differ in their state, {told}")
    for name in part.live.named:
        say(f"  {name}")
    if part.live.differing > len(part.live.named):
        say(f"  and {part.live.differing - len(part.live.named):,} more")
