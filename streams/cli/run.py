"""``paidonce run submit | watch``: ask for runs and follow them to their ends, through the Python client.

Shows what the public topics say; it knows no table and no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.plays import Play
from schemas.progress import MapProgress, RunEvent
from streams.cli import receipts, show
from streams.cli.options import options_of, settings_of
from streams.cli.show import Json, Run, known_run
from streams.cli.terminal import USAGE, LiveBar, exit_code_of, put, put_json, say
from streams.client import Client
from streams.errors import UsageError
from streams.public.rowfile import read_rows
from streams.public.runview import RunView
from streams.public.submission import check_retries_max, check_run_id
from streams.userfiles import check_tools, load_play, load_providers

#: After this long without a word from a worker people want to know why.
SILENCE_SECONDS = 10.0
#: How long a run id in use may take to be rejected.
REJECTION_SECONDS = 3.0
INTERRUPTED = 130

app = typer.Typer(help="Submit runs, follow them, export their rows.", no_args_is_help=True)
app.command("list")(show.list_runs)
app.command()(show.show)
app.command()(show.export)
app.command()(show.cancel)
app.command()(receipts.receipts)


@dataclass
class _Counted:
    """The rows of a file, counted as they pass."""

    path: Path
    count: int = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with contextlib.closing(read_rows(self.path)) as rows:
            for row in rows:
                self.count += 1
                yield row


@app.command()
def submit(
    context: typer.Context,
    play: Annotated[Path, typer.Argument(help="TOML file of the play.", show_default=False)],
    rows: Annotated[Path, typer.Option("--rows", help="CSV, or JSON lines (.jsonl).", show_default=False)],
    run: Annotated[str | None, typer.Option("--run", help="Id of the run; default a new one.")] = None,
    org: Annotated[str, typer.Option("--org", help="Whose receipts it may share.")] = "default",
    force: Annotated[bool, typer.Option("--force", help="Recompute rows; ask failed calls again.")] = False,
    force_tool_refresh: Annotated[bool, typer.Option("--force-tool-refresh", help="Pay again even for what is known.")] = False,
    retries_max: Annotated[
        int | None, typer.Option("--retries-max", help="Repeats of calls that it pays for; default what the play says.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    json: Json = False,
) -> int:
    """Check a play and its rows, then ask for a run; prints the run's id."""
    options = options_of(context)
    loaded = load_play(play)
    if run is not None:
        check_run_id(run)
    if retries_max is not None:
        check_retries_max(retries_max)
    settings = options.settings()
    if settings.providers is not None:
        providers = load_providers(settings.providers)
        check_tools(loaded, play, providers, settings.providers, options.environment)
    asked: dict[str, Any] = {"org": org, "run": run, "force": force, "force_tool_refresh": force_tool_refresh}
    asked["retries_max"] = retries_max
    asked |= {"source": str(rows), "play_source": str(play)}
    return _interruptible(_submit(Client(settings), loaded, _Counted(rows), asked, watch=watch, json=json))


async def _submit(client: Client, play: Play, rows: _Counted, asked: dict[str, Any], *, watch: bool, json: bool) -> int:
    async with client:
        known: RunView | None = None
        since = 0
        if asked["run"] is not None:
            known, since = await client.run(asked["run"]), await client.ledger_end(asked["run"])
        run = await client.submit(play, rows, **asked)
        say(f"run {run}: {rows.count:,} rows submitted")
        if known is not None and known.status not in ("refused", "submitted"):
            say(f"run {run} exists already and is {known.status}: the same request changes nothing")
            rejected = await client.rejection(run, since, REJECTION_SECONDS)
            if rejected is not None:
                raise UsageError(rejected.message)
            since = 0
        if not watch:
            if json:
                put_json({"run": run, "rows": rows.count, "status": "submitted"})
            else:
                put(run)
                say(f"Next: paidonce run watch {run}")
            return 0
        return await _watch(client, run, since=since, json=json)


@app.command()
def watch(context: typer.Context, run: Run, json: Json = False) -> int:
    """Follow a run to its end; ends with the exit code that the run means."""
    return _interruptible(_watch_known(Client(settings_of(context)), run, json=json), run)


async def _watch_known(client: Client, run: str, *, json: bool) -> int:
    async with client:
        await known_run(client, run)
        return await _watch(client, run, json=json)


async def _watch(client: Client, run: str, *, since: int = 0, json: bool) -> int:
    last = await follow(client, run, since=since)
    status = last.type.removeprefix("run.")
    say(f"run {run} {status}" + (f": {last.message}" if last.message else ""))
    for fault in last.faults:
        say(f"  {fault}")
    for sample in last.failed_samples:
        say(f"  row {sample.position}, {sample.column}: {sample.message}")
    code = exit_code_of(last)
    if json:
        counts = None if last.counts is None else last.counts.model_dump()
        told = {"run": run, "status": status, "code": last.code, "message": last.message}
        put_json({**told, "faults": list(last.faults), "counts": counts, "exit_code": code})
    else:
        put(run)
        if code != USAGE:
            say(f"Next: paidonce run export {run} --to {run}.csv")
    return code


async def follow(client: Client, run: str, *, since: int = 0) -> RunEvent:
    """Show a run's progress until its terminal event, and return that."""
    loop = asyncio.get_running_loop()
    with LiveBar(run) as bar:
        hint = "nothing was heard of this run yet; does a worker run? (paidonce worker)"
        silence = loop.call_later(SILENCE_SECONDS, bar.note, hint)
        try:
            async with contextlib.aclosing(client.progress(run, since=since)) as events:
                async for event in events:
                    silence.cancel()
                    if isinstance(event, MapProgress):
                        bar.show(event)
                    elif event.type == "run.rejected":
                        bar.note(event.message)
                    last = event
        finally:
            silence.cancel()
    assert isinstance(last, RunEvent)
    return last


def _interruptible(work: Coroutine[Any, Any, int], run: str = "RUN") -> int:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        say(f"\nstopped looking; what was submitted goes on. Next: paidonce run watch {run} or cancel {run}")
        return INTERRUPTED
