"""How large a row may grow: its fields and cells are one record of the sheet and one message on ``map-rows``.

Pure. A cell that has no room fails alone, and says so; its receipt keeps the value, which is paid for. A larger record would be
refused by its topic, and with it this turn of every owner of the partition.
"""

from __future__ import annotations

import msgspec

from schemas.events import Fault
from schemas.states import Task

#: Bytes of a row's fields and its cells' values as JSON. A message has 9 MiB; the rest is for what stands around them: names,
#: receipts and runs of a thousand cells, a fault, and Kafka's own.
ROW_BYTES_MAX = (9 << 20) - (512 << 10)
#: Characters of a fault in a cell.
FAULT_CHARS_MAX = 8_192


def excess(task: Task, column: str, value: bytes) -> Fault | None:
    """Why a row has no room for the value of its next cell, ``None`` where it has."""
    size = len(task.row.fields)
    for cell in task.cells.values():
        if cell.value is not None:
            size += len(cell.value)
    if size + len(value) <= ROW_BYTES_MAX:
        return None
    return Fault(
        "too_large",
        f"column {column}: its value has {len(value):,} bytes, which its row has no room for: its fields and cells have {size:,} "
        f"of at most {ROW_BYTES_MAX:,} bytes. The receipt keeps the value",
    )


def brief(fault: Fault | None) -> Fault | None:
    """A fault as a cell carries it."""
    if fault is None or len(fault.message) <= FAULT_CHARS_MAX:
        return fault
    return msgspec.structs.replace(fault, message=fault.message[:FAULT_CHARS_MAX])
