"""``paidonce broker``: a local Apache Kafka, without Docker or an installed Java.

Starts and stops what ``streams.broker.local`` knows; topics are another command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streams.broker.local import LocalBroker, RunningBroker
from streams.cli.options import broker_folder, options_of
from streams.cli.terminal import put, say

NOT_RUNNING = 69

app = typer.Typer(help="A local Apache Kafka, without Docker or Java.", no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option(help="Where its data is; default <data>/broker.")]


def _broker(context: typer.Context, folder: Path | None) -> LocalBroker:
    settings = options_of(context).settings(find_broker=False)
    return LocalBroker(folder or broker_folder(settings), on_progress=say)


def _show(running: RunningBroker) -> None:
    put(running.bootstrap)
    say(f"Apache Kafka runs as process {running.pid}, its data and log in {running.folder}")


@app.command()
def start(context: typer.Context, folder: Folder = None) -> int:
    """Start it, or find it running; prints its address. It stays when this command has ended."""
    running = _broker(context, folder).start()
    _show(running)
    say(f"Next: export PAIDONCE_BROKER={running.bootstrap}; paidonce topics apply")
    return 0


@app.command()
def status(context: typer.Context, folder: Folder = None) -> int:
    """Print its address, or end with 69 when it does not run."""
    broker = _broker(context, folder)
    running = broker.status()
    if running is None:
        say(f"no broker runs in {broker.folder}. Next: paidonce broker start")
        return NOT_RUNNING
    _show(running)
    return 0


@app.command()
def stop(context: typer.Context, folder: Folder = None) -> int:
    """Stop it; its data stays."""
    broker = _broker(context, folder)
    say("Apache Kafka stopped" if broker.stop() else f"no broker ran in {broker.folder}")
    return 0


@app.command()
def reset(context: typer.Context, folder: Folder = None) -> int:
    """Stop it and delete all its data: every run, receipt and result on it is lost."""
    broker = _broker(context, folder)
    broker.reset()
    say(f"the broker's data in {broker.folder} is deleted; delete the workers' data folders as well")
    return 0
