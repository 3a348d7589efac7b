"""``paidonce run list | show | export | cancel``: look at runs, take their rows away, ask for their end.

Shows what the public topics say; following a run is ``run``'s.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from streams.cli.options import settings_of
from streams.cli.terminal import put, put_json, put_table, say
from streams.client import Client
from streams.errors import UsageError
from streams.public.rowfile import check_export_name, write_export
from streams.public.runview import RunView

Run = Annotated[str, typer.Argument(help="The run's id.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def list_runs(context: typer.Context, json: Json = False) -> int:
    """All runs that a worker has told of, oldest first."""
    views = asyncio.run(_views(Client(settings_of(context))))
    if json:
        put_json([view.model_dump(mode="json") for view in views])
        return 0
    put_table(
        "",
        ("run", "status", "play", "done", "total", "failed", "unknown", "started"),
        [(view.run, view.status, view.play, *_numbers(view), _clock(view.started_ms)) for view in views],
    )
    return 0


async def _views(client: Client) -> list[RunView]:
    async with client:
        return await client.runs()


def _numbers(view: RunView) -> tuple[str, str, str, str]:
    counts = view.counts
    if counts is None:
        return "", "", "", ""
    total = "?" if counts.total is None else f"{counts.total:,}"
    return f"{counts.done:,}", total, f"{counts.failed:,}", f"{counts.unknown:,}"


def _clock(unix_ms: int | None) -> str:
    return "" if unix_ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))


def show(context: typer.Context, run: Run, json: Json = False) -> int:
    """What is known of one run."""
    view = asyncio.run(_with(Client(settings_of(context)), run))
    if json:
        put_json(view.model_dump(mode="json"))
        return 0
    told = view.model_dump(mode="json", exclude={"counts", "faults", "failed_samples", "rejections"})
    lines = [(name, str(value)) for name, value in told.items() if value not in ("", None, 0)]
    lines = [(name, _clock(int(value)) if name.endswith("_ms") else value) for name, value in lines]
    if view.counts is not None:
        lines += [(name, f"{value:,}") for name, value in view.counts.model_dump().items() if value]
    lines += [("fault", fault) for fault in view.faults]
    lines += [("failed row", f"{row.position}, {row.column}: {row.message}") for row in view.failed_samples]
    lines += [("rejected", text) for text in view.rejections]
    put_table("", ("what", "value"), [(name.removesuffix("_ms"), value) for name, value in lines])
    return 0


async def _with(client: Client, run: str) -> RunView:
    async with client:
        return await known_run(client, run)


async def known_run(client: Client, run: str) -> RunView:
    """A run's status; raises ``UsageError`` where nobody asked for it."""
    view = await client.run(run)
    if view is None:
        raise UsageError(f"no run {run!r} was ever asked for here; paidonce run list shows what there is")
    return view


def export(
    context: typer.Context,
    run: Run,
    to: Annotated[Path, typer.Option("--to", help="A .csv or .jsonl file.", show_default=False)],
) -> int:
    """Write a run's rows, N lines in, N lines out, with the sheet's newest values as of now."""
    check_export_name(to)
    return asyncio.run(_export(Client(settings_of(context)), run, to))


async def _export(client: Client, run: str, to: Path) -> int:
    async with client:
        view = await known_run(client, run)
        if not view.ended:
            say(f"run {run} is {view.status}: this is how far it is now")
        say(f"{await export_run(client, run, to):,} rows written")
        put(str(to))
    return 0


async def export_run(client: Client, run: str, to: Path) -> int:
    """Write a run's export and return the number of its lines."""
    with await client.sheet(run) as sheet:
        lines = ((line.fields, {} if line.row is None else line.row.cells) for line in sheet)
        return write_export(to, list(sheet.fields), sheet.computed, lines)


def cancel(context: typer.Context, run: Run) -> int:
    """Ask for a run's end: no new calls start, those in flight are paid for and settle."""
    return asyncio.run(_cancel(Client(settings_of(context)), run))


async def _cancel(client: Client, run: str) -> int:
    async with client:
        view = await known_run(client, run)
        if view.ended:
            say(f"run {run} is {view.status} already")
            return 0
        await client.cancel(run)
        say(f"asked for the end of run {run}. Next: paidonce run watch {run}")
    return 0
