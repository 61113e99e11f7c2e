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
from unskew.data.intake.targets import column_named
from unskew.data.intake.worded import inputs_as
from unskew.data.parquet.files import samples_in
from unskew.data.parquet.given import inputs, lists
from unskew.data.parquet.several import Columns, Named, Shards, shards_at
from unskew.errors import DataError

READ = ("table", "arrays", "images", "sounds")
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
        columns = [column_named(dict.fromkeys(table.columns), each.name, table.name) for each in layout.inputs]
        words = {column: list(kinds) for column, kinds in form.get("beside", ())}
        words |= {c: [] for c in columns if table.columns[c].kind == "text" and c not in words}
        sheet = Sheet(table.name, Columns(table, [c for c in columns if c in words]), Named(table))
        rest = inputs(table, [c for c in columns if c not in words], turned, form.get("files", {}))
        return names, rest | inputs_as(sheet, {c: words[c] for c in columns if c in words})
    kind = str(form.get("kind", "arrays"))
    if kind == "table":
        if isinstance(form["columns"], Mapping):  # early runs, whose files name the columns in alphabetical order
            raise DataError(
                "E403", f"this run does not say in which order its columns were; train it again to use {path}."
            )
        plain = [n for n, column in table.columns.items() if column.kind in PLAIN]
        sheet = Sheet(table.name, Columns(table, plain), Named(table))
        return names, numbers_as(sheet, dict(form["columns"]))
    trained = str(form.get("column", ""))
    if kind in ("images", "sounds"):
        into = {name: value for name, value in form.items() if name != "column"}
        return names, samples_in(table, _column(table, trained, "packed"), into, [], in_memory=True)
    return names, lists(table, _column(table, trained, "list"), turned)


def _column(table: Shards, trained: str, kind: str) -> str:
    """The column of lists, or of files, that holds the samples: that of training, or the only one."""
    usable = [n for n, column in table.columns.items() if column.kind == kind]
    if trained in usable:
        return trained
    if len(usable) != 1:
        text = f"{some(usable, 8) or 'none'}; the samples of training were in '{trained or 'x'}'"
        what = {"list": "lists", "packed": "files"}[kind]
        raise DataError("E403", f"{table.name} has as columns of {what} {text}: give that column its name.")
    return usable[0]
