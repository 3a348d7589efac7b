"""What goes wrong, on purpose: a list of faults, each by chance, for the next N, or for certain items.

Pure but for its own seeded dice. It says which fault befalls a request; the provider carries it out.
"""

from collections.abc import Sequence
from enum import StrEnum
from random import Random

import msgspec

from streams.sandbox.endpoints import Item


class FaultKind(StrEnum):
    """Named by what the caller sees and whether it was billed."""

    CLOSE_BEFORE_WORK = "close_before_work"
    ERROR_BEFORE_WORK = "error_before_work"
    CLOSE_AFTER_WORK = "close_after_work"
    ERROR_AFTER_WORK = "error_after_work"
    HANG = "hang"
    HTML = "html"
    TRUNCATED = "truncated"
    DRIP = "drip"
    ITEM_ERROR = "item_error"


BEFORE_WORK = frozenset({FaultKind.CLOSE_BEFORE_WORK, FaultKind.ERROR_BEFORE_WORK})
_STATUS = {FaultKind.ERROR_BEFORE_WORK: 503, FaultKind.ERROR_AFTER_WORK: 500}


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong, and when.

    It strikes what matches `endpoint` (part of the path) and `contains` (part of an item's content): the
    first `next` of those, or each with `probability`, or, with neither, every one. For `item_error` what
    is struck, and counted, are items of a batch; for all others, requests.
    """

    kind: FaultKind
    probability: float | None = None
    next: int | None = None
    contains: str = ""
    endpoint: str = ""
    status: int | None = None
    code: str = "unavailable"
    retryable: bool = True
    seconds: float = 0.5

    @property
    def http_status(self) -> int:
        """The status of the answer: as given, else 503 before the work, 500 after it, and 200."""
        return self.status or _STATUS.get(self.kind, 200)


class _Armed:
    """A fault with its dice and what is left of its count."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self._left = fault.next
        self._dice = Random(seed)

    def concerns(self, path: str, item: Item) -> bool:
        return self.fault.endpoint in path and self.fault.contains in item.content

    def strikes(self) -> bool:
        if self._left is not None:
            self._left -= 1
            return self._left >= 0
        if self.fault.probability is not None:
            return self._dice.random() < self.fault.probability
        return True


class FaultPlan:
    """The faults in force; the first in the list that strikes a request wins."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        armed = [_Armed(fault, f"{seed}/{place}/{fault.kind}") for place, fault in enumerate(faults)]
        self._for_requests = [one for one in armed if one.fault.kind is not FaultKind.ITEM_ERROR]
        self._for_items = [one for one in armed if one.fault.kind is FaultKind.ITEM_ERROR]

    def for_request(self, path: str, items: Sequence[Item]) -> Fault | None:
        """The fault that befalls this request, if any."""
        for armed in self._for_requests:
            if any(armed.concerns(path, item) for item in items) and armed.strikes():
                return armed.fault
        return None

    def for_item(self, path: str, item: Item) -> Fault | None:
        """The error this one item of a batch ends in, if any."""
        for armed in self._for_items:
            if armed.concerns(path, item) and armed.strikes():
                return armed.fault
        return None
