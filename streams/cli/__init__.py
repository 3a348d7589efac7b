"""The command line: each command asks the client or starts processes; it decides nothing about runs itself.

Data goes to stdout, progress and messages to stderr. A command returns its exit code; an error is one line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from streams.cli import broker, cell, demo, dev, doctor, receipt, replay, run, topics, worker
from streams.cli.options import GLOBAL_OPTIONS, Options
from streams.cli.terminal import say
from streams.errors import PaidonceError

INTERRUPTED = 130

app = typer.Typer(
    name="paidonce",
    help="Compute columns over rows with paid HTTP providers, durably on Kafka, and pay for each call once.",
    epilog="Exit codes: 0 all settled, 1 finished with failed rows (replay --diff: tables differ), 2 usage or bad input, "
    "3 cancelled, 5 unknown outcomes, 69 broker or provider unreachable, 70 a defect or a damaged state, 78 bad configuration, "
    "130 interrupted.",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(broker.app, name="broker")
app.add_typer(topics.app, name="topics")
app.add_typer(run.app, name="run")
app.add_typer(cell.app, name="cell")
app.add_typer(receipt.app, name="receipt")
app.command()(worker.worker)
app.command()(doctor.doctor)
app.command()(replay.replay)
app.command()(dev.dev)
app.command()(demo.demo)


@app.callback()
def _options(
    context: typer.Context,
    broker: Annotated[str | None, typer.Option(help="host:port of Kafka; comma-separated.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the worker's and the local broker's data.")] = None,
    providers: Annotated[Path | None, typer.Option(help="TOML file of providers and their tools.")] = None,
    app: Annotated[str | None, typer.Option(help="Name of the system.")] = None,
) -> None:
    """These options may stand anywhere; every setting can also be given as PAIDONCE_<NAME>."""
    context.obj = Options(broker=broker, data=data, providers=providers, app=app, environment=os.environ)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``arguments`` default to those of the process."""
    # aiokafka logs what it then raises; the worker sets up logging of its own.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=global_first(given), prog_name="paidonce", standalone_mode=False)
        sys.stdout.flush()
    except PaidonceError as error:
        say(f"paidonce: {error}")
        return error.exit_code
    except typer.TyperException as error:
        # Without arguments the message is the help.
        message = error.format_message()
        say(f"paidonce: {message} Try --help." if given else message)
        return error.exit_code
    except typer.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; else Python would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def global_first(arguments: Sequence[str]) -> list[str]:
    """Move global options before the command, since people write them behind it as well."""
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument in GLOBAL_OPTIONS:
            first += [argument, *(value for value in (next(remaining, None),) if value is not None)]
        elif argument.partition("=")[0] in GLOBAL_OPTIONS:
            first.append(argument)
        else:
            rest.append(argument)
    return first + rest
