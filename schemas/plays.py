"""A play: a dataset, a row key, and columns computed per row, as users write it in TOML or inside a run request."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

ColumnName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Model):
    """One computed column: a tool, and a template over the row that becomes the tool's input (C1)."""

    name: ColumnName
    #: ``provider.tool`` of the providers file.
    tool: str
    input: dict[str, Any]
    #: Fields without which the cell is skipped; it then costs nothing (C3).
    needs: tuple[str, ...] = ()
    #: Path into the output that becomes the cell; absent: all of it.
    extract: str | None = None


class Play(_Model):
    """A named, versioned recipe."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$")]
    version: str = "1"
    #: Namespace of the sheet; the play's name where absent.
    dataset: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$")] | None = None
    #: Columns of the input that identify a row; absent: the whole row does.
    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"column names appear twice: {', '.join(twice)}")
        return self

    @property
    def dataset_name(self) -> str:
        """The dataset, explicit or by the play's name."""
        return self.dataset or self.name
