"""A play: a dataset, a row key, and columns computed per row, as users write it in TOML or inside a run request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_serializer,
    model_serializer,
    model_validator,
)

from schemas.canonical import normalize
from schemas.fetch import FETCH, Fetch

ColumnName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


#: A path into JSON, as an extraction uses it: ``result.items.0``.
ValuePath = Annotated[str, StringConstraints(pattern=r"^[^{]")]
GetterName = Literal["email_status", "boolean", "number", "text"]
#: Places that a getter can be told of; where it is told nothing it looks under the usual names.
GETTER_PATHS: Final[Mapping[str, frozenset[str]]] = {"email_status": frozenset({"status", "catch_all"})}


#: Columns of a play: what the sheet says of a row's cells, beside their values, stands in one record.
COLUMNS_MAX: Final = 1000
#: Repeats of provider calls; events carry integers of 64 bits, and readers in other languages doubles.
RetriesMax = Annotated[int, Field(ge=0, le=2**53)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Getter(_Model):
    """A typed reading of what was extracted (P9)."""

    name: GetterName
    #: Where the getter finds what it reads.
    paths: dict[str, ValuePath] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _paths_are_known(self) -> Self:
        known = GETTER_PATHS.get(self.name, frozenset())
        if unknown := sorted(set(self.paths) - known):
            raise ValueError(
                f"getter {self.name!r} has no path {', '.join(unknown)}; known are: {', '.join(sorted(known)) or 'none'}"
            )
        return self


def _named(value: object) -> object:
    """``getter = "email_status"`` is short for a getter without paths."""
    return {"name": value} if isinstance(value, str) else value


class Column(_Model):
    """One computed column: a tool and a template over the row that becomes its input (C1), or a ``fetch`` (C2)."""

    name: ColumnName
    #: ``provider.tool`` of the providers file, with ``input``; absent with ``fetch``.
    tool: str | None = None
    input: dict[str, Any] | None = None
    fetch: Fetch | None = None
    #: Fields without which the cell is skipped; it then costs nothing (C3).
    needs: tuple[str, ...] = ()
    #: Path into the output that becomes the cell, or several by name, which become an object; absent: all of it.
    extract: Annotated[str, StringConstraints(pattern=r"^([^{]|$)")] | dict[str, ValuePath] | None = None
    #: How the cell is read from what was extracted; absent: as it is.
    getter: Annotated[Getter, BeforeValidator(_named)] | None = None
    #: For this column, instead of what its tool says: results are reused for so long; 0: never (K4).
    stale_after_seconds: int | None = Field(default=None, ge=0)
    #: For this column, before what its tool and the worker's setting say: how long its requests follow another run's call (R4).
    receipt_wait_ms: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if self.fetch is not None and (self.tool is not None or self.input is not None):
            raise ValueError(f"column {self.name!r} has fetch, and tool or input beside it; it needs exactly one of the two")
        if self.fetch is None and self.tool is None:
            raise ValueError(f"column {self.name!r} has neither tool nor fetch")
        if self.fetch is None and self.input is None:
            raise ValueError(f"column {self.name!r} has a tool and no input")
        if self.tool is not None and self.tool.partition(".")[0] == FETCH:
            # Its input would let a row name the secrets that are sent.
            raise ValueError(
                f"column {self.name!r}: {self.tool} is built in; write fetch = {{ url = ... }} instead of tool and input"
            )
        return self

    @field_serializer("input", when_used="json")
    def _as_rows_are(self, value: dict[str, Any] | None) -> Any:
        # By our rules and not by pydantic's, which write bytes as text: a value must have one key wherever it stands (case_D5).
        return normalize(value)

    @model_serializer(mode="wrap")
    def _without_the_other(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The dump is what a play's revision digests: a kind of column that a play does not use must not change it.
        unused = ["fetch"] if self.fetch is None else ["tool", "input"]
        if self.getter is None:
            unused.append("getter")
        if self.stale_after_seconds is None:
            unused.append("stale_after_seconds")
        if self.receipt_wait_ms is None:
            unused.append("receipt_wait_ms")
        return {name: value for name, value in handler(self).items() if name not in unused}

    @property
    def tool_name(self) -> str:
        """The tool that is asked, built-in ones included."""
        return self.fetch.tool if self.fetch is not None else self.tool or ""

    @property
    def tool_input(self) -> dict[str, Any]:
        """The template that becomes the tool's input."""
        return self.fetch.input if self.fetch is not None else self.input or {}

    @property
    def input_field(self) -> str:
        """The field of the column in which that template stands, for messages."""
        return "input" if self.fetch is None else "fetch"


class Play(_Model):
    """A named, versioned recipe."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$")]
    version: str = "1"
    #: Namespace of the sheet; the play's name where absent.
    dataset: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$")] | None = None
    #: Columns of the input that identify a row; absent: the whole row does.
    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = Field(min_length=1, max_length=COLUMNS_MAX)
    #: How many repeats of provider calls one run of it pays for; absent: any number (P2).
    retries_max: RetriesMax | None = None

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [column.name for column in self.columns]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise ValueError(f"column names appear twice: {', '.join(twice)}")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # As for columns; and a worker from before there were budgets takes a play that has none.
        return {name: value for name, value in handler(self).items() if name != "retries_max" or value is not None}

    @property
    def dataset_name(self) -> str:
        """The dataset, explicit or by the play's name."""
        return self.dataset or self.name
