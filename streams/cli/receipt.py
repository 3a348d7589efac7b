"""``paidonce receipt list | show | forget``: the durable records of calls, and above all those whose outcome is unknown (U5).

Reads the table's changelog; only ``forget`` asks for a change, and it is the receipt's owner who judges that.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from schemas.address import DIGEST_CHARS
from schemas.canonical import dump_json
from streams.cli.options import settings_of
from streams.cli.show import Json
from streams.cli.terminal import OK, UNKNOWN_OUTCOMES, put, put_json, put_table, say
from streams.errors import Unreachable, UsageError
from streams.public import receiptview
from streams.public.operations import Operations, is_digest

Receipt = Annotated[str, typer.Argument(help="The receipt's key, as the sheet's cells name it.", show_default=False)]
Who = Annotated[str | None, typer.Option("--who", help="Who says so; default this user.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for those who look later.")]

app = typer.Typer(help="Receipts of paid calls: list, show, forget.", no_args_is_help=True)


@app.command("list")
def list_receipts(
    context: typer.Context,
    state: Annotated[str | None, typer.Option("--state", help=" | ".join(receiptview.STATES))] = None,
    json: Json = False,
) -> int:
    """Receipts, oldest first; with --state unknown, those that a person or a look-up should settle, with their age."""
    if state is not None and state not in receiptview.STATES:
        raise UsageError(f"--state {state}: expected {' | '.join(receiptview.STATES)}")
    found = asyncio.run(receiptview.lines(settings_of(context), state))
    now_ms = time.time_ns() // 1_000_000
    if json:
        put_json([line._asdict() | {"age_seconds": (now_ms - line.since_ms) // 1000} for line in found])
        return OK
    put_table(
        "",
        ("receipt", "state", "tool", "lane", "attempt", "first run", "age"),
        [(line.receipt, line.state, line.tool, line.lane, str(line.n), line.run, age(now_ms - line.since_ms)) for line in found],
    )
    return OK


@app.command()
def show(context: typer.Context, receipt: Receipt, json: Json = False) -> int:
    """One receipt: what was asked, its attempts, its callers."""
    found = asyncio.run(receiptview.detail(settings_of(context), _key(receipt)))
    if found is None:
        raise UsageError(f"there is no receipt {receipt!r}; paidonce receipt list shows what there is")
    told = receiptview.as_json(receipt, found)
    code = UNKNOWN_OUTCOMES if told["state"] == "unknown" else OK
    if json:
        put_json(told)
        return code
    attempts, callers = told.pop("attempts"), told.pop("callers")
    if (since := told["unknown_since_ms"]) is not None:
        told["unknown for"] = age(time.time_ns() // 1_000_000 - since)
    put_table("", ("what", "value"), [(name, _text(value)) for name, value in told.items() if value not in (None, "", [])])
    put_table(
        "attempts", ("what", "value"), [(f"{one['n']} {name}", _text(value)) for one in attempts for name, value in one.items()]
    )
    put_table("callers", ("call", "run", "told"), [(one["call"], one["run"], one["told"]) for one in callers])
    return code


@app.command()
def forget(context: typer.Context, receipt: Receipt, reason: Reason = "", who: Who = None) -> int:
    """Drop a receipt, so that the next request pays for it again; refused while open work refers to it."""
    settings = settings_of(context)
    found = asyncio.run(receiptview.detail(settings, _key(receipt)))
    if found is None or found.receipt is None or not found.receipt.lane:
        raise UsageError(f"there is no receipt {receipt!r}; paidonce receipt list shows what there is")
    lane = found.receipt.lane

    async def asked() -> int:
        async with Operations(settings) as operations:
            event = await operations.forget(receipt, lane, who=who, reason=reason)
        if event is None:
            raise Unreachable(f"the wish to forget {receipt} is durable, but no worker has answered; does one run?")
        if event.rejected:
            raise UsageError(f"{event.code}: {event.message}")
        say(f"receipt {receipt} is forgotten; attempts go on after {event.n}")
        put(receipt)
        return OK

    return asyncio.run(asked())


def _key(receipt: str) -> str:
    if not is_digest(receipt):
        raise UsageError(
            f"receipt {receipt!r}: expected a whole key, {DIGEST_CHARS} hexadecimal digits; paidonce receipt list has them"
        )
    return receipt


def age(milliseconds: int) -> str:
    """A time in words."""
    seconds = max(0, milliseconds // 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value).decode()
