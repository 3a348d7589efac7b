"""``paidonce run receipts``: from a run and its calls to their receipts, without knowing the inputs (Y3).

Each cell of the sheet names its receipt and the run whose call made it; a call is named after run, row and column. The requests
themselves, on ``tool-requests``, hold the same pair for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import msgspec
import typer

from streams.cli.options import settings_of
from streams.cli.show import Json, Run, known_run
from streams.cli.terminal import put, put_json
from streams.client import Client
from streams.public.sheet import SheetLine


class Pointer(msgspec.Struct, frozen=True):
    """One cell's receipt: the line of the input and the column, the call, and how the cell stands."""

    position: int
    column: str
    call: str
    receipt: str
    status: str


def pointers(lines: Iterable[SheetLine]) -> Iterator[Pointer]:
    """The receipts of a run's cells, in order of its input; cells that asked for none have no line, duplicates have their row's."""
    for line in lines:
        if line.row is None:
            continue
        for column, cell in line.row.cells.items():
            if cell.receipt is not None:
                yield Pointer(line.position, column, f"{cell.run}:{line.row.key}:{column}", cell.receipt, cell.status)


def receipts(context: typer.Context, run: Run, json: Json = False) -> int:
    """The receipt of each of a run's cells: position, column, call, receipt and status, a line each."""
    return asyncio.run(_receipts(Client(settings_of(context)), run, json))


async def _receipts(client: Client, run: str, json: bool) -> int:
    async with client:
        await known_run(client, run)
        with await client.sheet(run) as sheet:
            for pointer in pointers(sheet):
                if json:
                    put_json(msgspec.to_builtins(pointer))
                else:
                    put("\t".join(str(value) for value in msgspec.structs.astuple(pointer)))
    return 0
