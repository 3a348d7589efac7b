"""What users publish on ``run-requests`` and ``operations``: plain JSON, one event a message.

Anyone may publish these with any Kafka client. An unknown field is an error that names it; an unknown type is parked. The
message key is the run id. CloudEvents headers are welcome, but the ``type`` field decides.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from schemas.plays import Play

CONTRACT_VERSION = 1
#: Events carry integers of 64 bits, and readers in other languages doubles.
ROWS_MAX = 2**53
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
Org = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    run: RunId
    #: Version of this contract; another one is refused with both versions named (V5).
    contract: int = CONTRACT_VERSION


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


PublicRequest = Annotated[RunRequested | RowsAppended | RowsSealed | RunCancelled, Field(discriminator="type")]
