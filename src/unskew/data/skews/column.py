"""One client for each value of a column of the data: sites, subjects, speakers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from unskew.data.clients.partition import Index, Partition, Request, draw_rows
from unskew.errors import DataError, suggestion


@dataclass(frozen=True)
class Column(Partition):
    """One client for each value of a column of the data: sites, subjects, speakers.

    With the setting `samples`, each keeps at most that many, drawn in proportion to its classes."""

    column: Annotated[str, "which column"]
    name = "column"
    value = ("column",)
    example = "column:site"
    by_class = False
    own_clients = True

    def values(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """The column's values in the order of clients. Raises DataError (E103) if the set has no such
        column."""
        if self.column not in columns:
            hint, names = suggestion(self.column, columns), ", ".join(columns) or "none"
            if not columns:
                hint = f" Of a table, name it behind the file: table.csv(site={self.column})."
            raise DataError("E103", f"the set has no column '{self.column}'; it has: {names}.{hint}")
        return np.unique(columns[self.column])

    def deal(self, request: Request, rng: np.random.Generator) -> Index:
        values = self.values(request.columns)
        index = Index.by_owner(np.searchsorted(values, request.columns[self.column]), len(values))
        if request.samples is None:
            return index
        y, limit = request.y, request.samples
        return Index.of([rows[draw_rows(y[rows], min(limit, len(rows)), rng)] for rows in index])


@dataclass(frozen=True)
class Domain(Column):
    """The column `domain`."""

    column: str = field(default="domain", init=False)
    name = "domain"
    value = ()
    example = "domain"
