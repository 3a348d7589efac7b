"""What a person does to a cell or a receipt, on its way down the line: from ``operations`` by ``runs`` to ``rows`` or ``receipts``.

Pure. Each is answered once, taken or rejected, by the agent that knows: ``runs`` knows runs and columns, ``rows`` the cells,
``receipts`` the receipts. The answers stand on ``run-events`` beside the ledgers, and change none.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas import address
from schemas.commands import ForgettingRequested, ResolutionRequested
from schemas.events import CellResolved, CompiledPlay, ReceiptForgotten, RunClosed
from schemas.progress import OperationEvent
from schemas.states import RUN, Run, record_key
from streams.engine.cells import lane_partition
from streams.engine.port import Context, Outbox, PublicEvent, Records


def tell(outbox: Outbox, context: Context, event: OperationEvent) -> None:
    """Publish what became of an operation where its sender listens: at the home of its run, or of its receipt."""
    home = event.run or event.receipt
    data = event.model_dump_json(exclude_defaults=True, exclude_none=True).encode()
    identity = f"{home}/{event.type}/{event.operation or context.now_ms}"
    partition = address.partition_of(home, context.partitions)
    outbox.public.append(PublicEvent("run-events", home, f"paidonce.{event.type}", data, identity, partition))


def resolve(records: Records, outbox: Outbox, context: Context, event: ResolutionRequested) -> None:
    """Send a person's word about a cell to the partition of its row; rejected where run or column do not exist."""
    run = records.get(record_key(RUN, event.run), Run)
    partition = address.spread(event.row, context.partitions)
    if event.faults:
        code, message = "invalid_request", _listed(event.faults)
    elif run is None:
        code, message = "unknown_run", f"no run {event.run!r} was accepted here"
    elif event.column not in (names := [column.name for column in run.play.columns]):
        code, message = "unknown_column", f"run {event.run} computes no column {event.column!r}; it has {', '.join(names)}"
    elif partition not in run.shares:
        code, message = "unknown_row", f"run {event.run} has no row with the key {event.row}"
    else:
        resolved = CellResolved(event.run, event.row, event.column, event.output, event.who, event.why, event.operation)
        outbox.send("row-control", partition, resolved)
        return
    rejected = OperationEvent(
        type="cell.rejected",
        operation=event.operation,
        at_ms=context.now_ms,
        run=event.run,
        row=event.row,
        column=event.column,
        code=code,
        message=message,
    )
    tell(outbox, context, rejected)


def forget(outbox: Outbox, context: Context, event: ForgettingRequested) -> None:
    """Send the wish to forget a receipt to the partition of its lane."""
    if not event.faults:
        forgotten = ReceiptForgotten(event.receipt, event.who, event.why, event.operation)
        outbox.send("lane-control", lane_partition(event.lane, context.partitions), forgotten)
        return
    rejected = OperationEvent(
        type="receipt.rejected",
        operation=event.operation,
        at_ms=context.now_ms,
        receipt=event.receipt,
        code="invalid_request",
        message=_listed(event.faults),
    )
    tell(outbox, context, rejected)


def close(outbox: Outbox, context: Context, run: str, play: CompiledPlay) -> None:
    """Tell the owners of a run's lanes that it has ended: nothing is called on its behalf from now on."""
    for partition in sorted({lane_partition(column.lane, context.partitions) for column in play.columns}):
        outbox.send("lane-control", partition, RunClosed(run))


def _listed(faults: Sequence[str]) -> str:
    return "; ".join(faults)
