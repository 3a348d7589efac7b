"""How a provider call ended, and why something did not succeed: parts of internal events and of records.

Kept by Kafka like the events that carry them, so never edited either (see ``events``). No behaviour here.
"""

from __future__ import annotations

import msgspec


class Fault(msgspec.Struct, array_like=True, frozen=True):
    """Why a call, a cell or a run did not succeed, in words for people and one code for programs."""

    code: str
    message: str
    #: A repairable failure is asked for again by the next run; a terminal one is final (R5).
    repairable: bool = False


class Value(msgspec.Struct, array_like=True, frozen=True, tag="value"):
    """The provider answered; ``output`` is exact JSON, ``null`` meaning *no result* (B10)."""

    output: bytes


class Failed(msgspec.Struct, array_like=True, frozen=True, tag="failed"):
    """The provider refused and has not billed."""

    fault: Fault


class Retry(msgspec.Struct, array_like=True, frozen=True, tag="retry"):
    """Not billed, and worth another attempt at ``not_before_ms`` (Unix time)."""

    fault: Fault
    not_before_ms: int


class Ambiguous(msgspec.Struct, array_like=True, frozen=True, tag="ambiguous"):
    """The call may have been made and billed, and its answer is lost.

    ``used_up`` says that the tool's budget of repeats is spent, so that the receipt becomes unknown whatever its tool allows.
    """

    fault: Fault
    not_before_ms: int = 0
    used_up: bool = False


Outcome = Value | Failed | Retry | Ambiguous
