"""What users publish on ``run-requests`` and ``operations``: plain JSON, one event a message.

Anyone may publish these with any Kafka client. An unknown field is an error that names it; an unknown type is parked. The
message key is the run id. CloudEvents headers are welcome, but the ``type`` field decides.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.envelope import EVENT_BYTES_MAX
from schemas.plays import Play

CONTRACT_VERSION = 1
#: Events carry integers of 64 bits, and readers in other languages doubles.
ROWS_MAX = 2**53
#: Bytes of one row as canonical JSON: it travels in one event, with what stands around it, and is one record of the sheet.
ROW_BYTES_MAX = EVENT_BYTES_MAX - (64 << 10)
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
Org = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Version of this contract; another one is refused with both versions named (V5).
    contract: int = CONTRACT_VERSION


class _Request(_Message):
    run: RunId


class RunRequested(_Request):
    """A run is asked for. Its rows stand in it, or follow in ``rows_appended`` events and end with ``rows_sealed``."""

    type: Literal["run_requested"] = "run_requested"
    org: Org = "default"
    play: Play
    #: The rows, or ``None`` when they follow.
    rows: list[dict[str, Any]] | None = None
    expected_rows: int | None = Field(default=None, ge=0, le=ROWS_MAX)
    #: Digest of rows that follow, so that the same run id with other rows is told apart; any text that identifies them.
    rows_digest: str | None = Field(default=None, max_length=128)
    #: Recompute rows that stand, and try failed receipts again (R2).
    force: bool = False
    #: Call providers again even for completed receipts (R2).
    force_tool_refresh: bool = False


class RowsAppended(_Request):
    """A chunk of a run's rows; ``first`` is the position of its first row in the run's input."""

    type: Literal["rows_appended"] = "rows_appended"
    first: int = Field(ge=0, le=ROWS_MAX)
    rows: list[dict[str, Any]] = Field(min_length=1)


class RowsSealed(_Request):
    """All rows of a run were appended."""

    type: Literal["rows_sealed"] = "rows_sealed"
    total: int = Field(ge=0, le=ROWS_MAX)


class RunCancelled(_Request):
    """A person wants a run to stop (``operations``)."""

    type: Literal["run_cancelled"] = "run_cancelled"
    who: str = ""


class _Operation(_Message):
    """What a person does, with who and why; ``operation`` comes back in what is told of it on ``run-events``."""

    who: str = Field(default="", max_length=200)
    reason: str = Field(default="", max_length=2000)
    operation: str = Field(default="", max_length=128)


class CellResolved(_Operation, _Request):
    """A person says what became of a call whose outcome is unknown (``operations``, key: the run id; U3)."""

    type: Literal["cell_resolved"] = "cell_resolved"
    #: The row's key as ``map-rows`` shows it.
    row: Digest
    column: str = Field(min_length=1, max_length=200)
    #: ``paid``: the provider did it and billed it, and ``value`` is its output. ``unpaid``: it may be called again.
    outcome: Literal["paid", "unpaid"]
    #: The tool's output as its receipt would hold it, before the column's ``extract``; ``null`` where it found nothing.
    value: Any = None

    @model_validator(mode="after")
    def _value_goes_with_paid(self) -> Self:
        if self.outcome == "paid" and "value" not in self.model_fields_set:
            raise ValueError("paid needs a value, which may be null")
        if self.outcome == "unpaid" and self.value is not None:
            raise ValueError("unpaid has no value")
        return self


class ReceiptForgotten(_Operation):
    """A person wants a receipt to be dropped, so that the next request pays for it again (``operations``, key: the receipt)."""

    type: Literal["receipt_forgotten"] = "receipt_forgotten"
    receipt: Digest
    #: Where the receipt lives, as ``paidonce receipt show`` tells it.
    lane: str = Field(min_length=1, max_length=1000)


PublicRequest = Annotated[
    RunRequested | RowsAppended | RowsSealed | RunCancelled | CellResolved | ReceiptForgotten, Field(discriminator="type")
]
