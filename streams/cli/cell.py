"""``paidonce cell show | resolve``: the time line of one cell, and a person's word about an outcome that nobody knows (U3)."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any

import typer

from schemas.canonical import InvalidJson, dump_json, parse_json
from streams.cli.options import settings_of
from streams.cli.receipt import Reason, Who
from streams.cli.show import Json, Run
from streams.cli.terminal import OK, UNKNOWN_OUTCOMES, put, put_json, put_table, say
from streams.errors import Unreachable, UsageError
from streams.public.cellhistory import History, history
from streams.public.operations import Operations
from streams.settings import Settings
from streams.userfiles import load_providers

Row = Annotated[str, typer.Argument(help="The row's position in the input (from 0), or its key.", show_default=False)]
Column = Annotated[str, typer.Argument(help="The computed column.", show_default=False)]

app = typer.Typer(help="One cell: how it came about, and what became of an unknown call.", no_args_is_help=True)


@app.command()
def show(context: typer.Context, run: Run, row: Row, column: Column, json: Json = False) -> int:
    """The cell's time line: request, claims with their owners, attempts, batch, outcome, receipt and price."""
    settings = settings_of(context)
    found = asyncio.run(_history(settings, run, row, column))
    price = price_of(settings, found.tool)
    if json:
        put_json(found.as_json() | {"price": price})
    else:
        told = [(name, value if isinstance(value, str) else dump_json(value).decode()) for name, value in found.facts().items()]
        put_table("", ("what", "value"), [*told, ("price", "unknown" if price is None else dump_json(price).decode())])
        put_table("", ("when", "what", "details"), [(_clock(step.at_ms), step.what, step.details) for step in found.steps])
    return UNKNOWN_OUTCOMES if found.status == "unknown" else OK


async def _history(settings: Settings, run: str, row: str, column: str) -> History:
    async with Operations(settings) as operations:
        await operations.log.ready()
        key = await operations.row_key(run, row)
        found = await history(operations.log, settings.partitions, await operations.request_of(run), key, column)
        if found.cell is None and not found.receipts:
            await operations.check_row(run, key)
        return found


def price_of(settings: Settings, tool: str) -> dict[str, Any] | None:
    """A tool's price by the providers file at hand; ``None`` where it is unknown, which is not zero (N1)."""
    found = None if settings.providers is None else load_providers(settings.providers).tool(tool)
    price = {} if found is None else found[1].price.model_dump(exclude_none=True)
    return price if len(price) > 1 else None


@app.command()
def resolve(
    context: typer.Context,
    run: Run,
    row: Row,
    column: Column,
    outcome: Annotated[str, typer.Option("--as", help="paid | unpaid", show_default=False)],
    value: Annotated[str | None, typer.Option("--value", help="With paid: the tool's output as JSON; null for none.")] = None,
    reason: Reason = "",
    who: Who = None,
) -> int:
    """Say what became of a call whose outcome is unknown: paid, with its value, or unpaid, so that it may be called again."""
    if outcome not in ("paid", "unpaid"):
        raise UsageError(f"--as {outcome}: expected paid or unpaid")
    if (outcome == "paid") is not (value is not None):
        raise UsageError("--as paid needs --value JSON (null where the tool found nothing); --as unpaid has none")
    try:
        said = None if value is None else parse_json(os.fsencode(value))
    except InvalidJson as error:
        raise UsageError(f"--value: {error}") from error

    async def asked() -> int:
        async with Operations(settings_of(context)) as operations:
            event = await operations.resolve(run, row, column, outcome, said, who=who, reason=reason)
        if event is None:
            raise Unreachable(f"the resolution of {run}, row {row}, {column} is durable, but no worker has answered; does one run?")
        if event.rejected:
            raise UsageError(f"{event.code}: {event.message}")
        say(f"attempt {event.n} of receipt {event.receipt} is {event.code}, says {event.who or 'somebody'}")
        put(event.receipt)
        return OK

    return asyncio.run(asked())


def _clock(unix_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000)) + f".{unix_ms % 1000:03d}"
