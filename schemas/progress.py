"""What users consume: map progress, run events and map rows, as plain JSON with CloudEvents headers.

Consumers get pydantic models here; unknown fields are ignored by them, so that a newer worker does not break an older reader.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Counts(_Event):
    """Rows of a run by state; all but ``total`` are disjoint and never fall (O3)."""

    #: Input lines; ``None`` while more may be appended and no number was announced.
    total: int | None = None
    received: int = 0
    completed: int = 0
    failed: int = 0
    #: Rows that were not computed: nothing was needed, or the run was cancelled.
    skipped: int = 0
    #: Rows whose earlier result stands.
    reused: int = 0
    #: Input lines whose row key came before in the same run.
    duplicate: int = 0
    unknown: int = 0
    #: Cells by how their value came (R8).
    calls_live: int = 0
    calls_in_flight: int = 0
    calls_cache: int = 0
    #: Repeats of provider calls that it paid for, a batch's members counted each (P2).
    retries: int = 0

    @property
    def done(self) -> int:
        """Input lines that need nothing more."""
        return self.completed + self.failed + self.skipped + self.reused + self.duplicate + self.unknown


class FailedRow(_Event):
    """A sample of a failed row (M13)."""

    position: int
    column: str
    message: str


class MapProgress(_Event):
    """One sample of a run's progress on ``map-progress`` (O1)."""

    run: str
    attempt: int = 0
    status: str
    counts: Counts
    message: str = ""
    started_ms: int
    updated_ms: int
    ended_ms: int | None = None


class RunEvent(_Event):
    """One entry of a run's ledger on ``run-events`` (E1)."""

    type: Literal["run.started", "run.refused", "run.rejected", "run.completed", "run.failed", "run.cancelled"]
    run: str
    sequence: int = 0
    at_ms: int
    play: str = ""
    dataset: str = ""
    code: str = ""
    message: str = ""
    faults: tuple[str, ...] = ()
    counts: Counts | None = None
    failed_samples: tuple[FailedRow, ...] = ()

    @property
    def terminal(self) -> bool:
        """The run ends with this event."""
        return self.type in ("run.completed", "run.failed", "run.cancelled", "run.refused")


class OperationEvent(_Event):
    """What became of an operation, on ``run-events`` beside the ledgers: taken, or rejected with the reason."""

    type: Literal["cell.resolved", "cell.rejected", "receipt.forgotten", "receipt.rejected"]
    #: As its request named itself.
    operation: str = ""
    at_ms: int
    run: str = ""
    row: str = ""
    column: str = ""
    receipt: str = ""
    #: Attempt that is settled.
    n: int = 0
    code: str = ""
    message: str = ""
    who: str = ""
    why: str = ""

    @property
    def rejected(self) -> bool:
        """It changed nothing."""
        return self.type.endswith(".rejected")


class RowCell(_Event):
    """One cell of a row in the sheet (M14)."""

    status: Literal["running", "completed", "cached", "failed", "skipped", "unknown"]
    value: Any = None
    receipt: str | None = None
    code: str | None = None
    error: str | None = None
    mark: str | None = None
    run: str = ""


class MapRow(_Event):
    """The newest state of a row of an organisation's dataset on ``map-rows``, keyed ``org/dataset/row key``."""

    #: Empty in rows from before there was one sheet for each organisation.
    org: str = ""
    dataset: str
    key: str
    status: Literal["open", "completed", "failed", "skipped", "unknown"]
    run: str
    position: int
    fields: dict[str, Any]
    cells: dict[str, RowCell] = Field(default_factory=dict)
    updated_ms: int
