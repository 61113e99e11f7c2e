"""Samples without labels from Parquet, read as the training samples were: for a model that predicts.

Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.data import layout as layouts
from unskew.data.intake.features import numbers_as
from unskew.data.intake.notes import some
from unskew.data.intake.sheets import Sheet
from unskew.data.parquet.given import inputs, lists
from unskew.data.parquet.several import Columns, Named, Shards, shards_at
from unskew.errors import DataError

READ = ("table", "arrays")
PLAIN = ("number", "text", "value")


def rows_in(path: Path, form: Mapping[str, Any], layout: layouts.Layout | None = None) -> tuple[list[str], Any]:
    """(where each sample stands, the samples [N, ...], or a dictionary of several inputs).

    form: how the training samples were made (`Intake.form`). layout: of samples with several inputs, which columns of
    their names hold. Raises DataError: E401 and E402 for files, E403 for columns, E405 for missing values, E414 for more
    than memory holds.
    """
    table = shards_at(path)
    names, turned = list(Named(table)), form.get("layout", "auto")
    if layout:
        if not layout.named:
            raise DataError("E403", f"{path} names its columns, and this model takes inputs by place; give an .npz.")
        return names, inputs(table, [each.name for each in layout.inputs], turned)
    kind = str(form.get("kind", "arrays"))
    if kind == "table":
        if isinstance(form["columns"], Mapping):  # early runs, whose files name the columns in alphabetical order
            raise DataError(
                "E403", f"this run does not say in which order its columns were; train it again to use {path}."
            )
        plain = [n for n, column in table.columns.items() if column.kind in PLAIN]
        sheet = Sheet(table.name, Columns(table, plain), Named(table))
        return names, numbers_as(sheet, dict(form["columns"]))
    return names, lists(table, _column(table, str(form.get("column", ""))), turned)


def _column(table: Shards, trained: str) -> str:
    """The column of lists that holds the samples: that of training, or the only one."""
    listed = [n for n, column in table.columns.items() if column.kind == "list"]
    if trained in listed:
        return trained
    if len(listed) != 1:
        text = f"{some(listed, 8) or 'none'}; the samples of training were in '{trained or 'x'}'"
        raise DataError("E403", f"{table.name} has as columns of lists {text}: give that column its name.")
    return listed[0]
