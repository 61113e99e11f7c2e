"""The columns of a table in Parquet files as numbers to train on, decided as for any table but without holding them.

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.data.intake.features import LARGEST, Judged, Kinds, judged, kinds_of, names_rows
from unskew.data.intake.notes import Note
from unskew.data.intake.sheets import Sheet
from unskew.data.parquet.forms import Tabular
from unskew.data.parquet.reading import samples_of
from unskew.data.parquet.several import Shards
from unskew.data.parquet.values import values_of


@dataclass
class Extent:
    """What was seen of a column of numbers. whole: whether its numbers are whole ones. plain: whether none is missing or too large."""

    whole: bool = True
    plain: bool = True
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: np.ndarray) -> None:
        """Look at further values, in the column's own type, or objects where some are missing."""
        if values.dtype.kind == "O":
            self.plain = False
        if not self.plain or not len(values):
            return
        self.whole = self.whole and values.dtype.kind in "iu"
        low, high = values.min(), values.max()
        self.plain = bool(np.isfinite(low) and np.isfinite(high) and max(abs(float(low)), abs(float(high))) <= LARGEST)
        self.low, self.high = (
            min(self.low, int(low) if self.whole else float(low)),
            max(self.high, int(high) if self.whole else float(high)),
        )

    def counts(self, rows: int) -> bool:
        """Whether these may be so many whole numbers without a gap."""
        return self.whole and self.high - self.low == rows - 1


def numbers_in(
    table: Shards, sheet: Sheet, columns: Mapping[str, np.ndarray], notes: list[Note]
) -> tuple[np.ndarray, Kinds]:
    """As `numbers_of`, of the columns of a table, which are read row group by row group."""
    numbers = [column for column in columns if table.columns[column].kind == "number"]
    extents = _extents(table, numbers, sheet.test)
    rows = (len(table), len(table) if sheet.test is None else int((~sheet.test).sum()))

    def judge(column: str) -> Judged:
        if column in extents:
            whole, train = extents[column]
            suspect = names_rows(column) or whole.counts(rows[0]) or train.counts(rows[1])
            if whole.plain and not suspect:
                return Judged([])
        return judged(sheet, column, columns[column])[0]

    readable = [c for c in columns if table.columns[c].kind in ("number", "text", "value")]
    if others := [c for c in columns if c not in readable]:
        notes.append(("left out", f"column '{others[0]}' of {table.columns[others[0]].form}"))
    used = kinds_of(sheet, readable, judge, notes)
    return samples_of(table, Tabular(table, used), notes), used


def _extents(table: Shards, names: Sequence[str], test: np.ndarray | None) -> dict[str, tuple[Extent, Extent]]:
    """(of all rows, of the training rows) of every column of numbers, in one pass."""
    extents = {name: (Extent(), Extent()) for name in names}
    for begin, batch in table.batches(names) if names else ():
        train = None if test is None else ~test[begin : begin + batch.num_rows]
        for name, (whole, trained) in extents.items():
            values = table.converted(values_of, batch.column(table.columns[name].name), begin)
            whole.add(values)
            trained.add(values if train is None else values[train])
    return extents
