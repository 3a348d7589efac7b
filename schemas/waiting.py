"""Records of ``rows`` about what waits: rows that are not admitted yet, and cells that nobody knows the outcome of.

Part of ``states``, which hands these on. This module holds no behaviour.
"""

from __future__ import annotations

import msgspec

from schemas.events import AddedRow


class UnknownCell(msgspec.Struct, array_like=True):
    """A cell whose outcome is unknown, and the attempt in doubt as its receipt's owner told it."""

    receipt: str
    n: int
    epoch: int


class WaitingRows(msgspec.Struct, array_like=True):
    """A chunk of a run's rows that are not admitted yet."""

    rows: tuple[AddedRow, ...]
