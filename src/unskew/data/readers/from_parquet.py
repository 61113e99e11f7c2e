"""A data set from Parquet files, or from a folder that Hugging Face Datasets has saved.

The columns of a table are features; or one column of lists or files holds the samples, and others the labels
and facts.
Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from unskew.data.files.sheets import Sheet
from unskew.data.kinds.column_roles import column_named, label_column_in, site_column_of
from unskew.data.kinds.features import encode_features, encode_inputs, is_row_number
from unskew.data.kinds.groups import INDEPENDENT, group_setting
from unskew.data.kinds.images import BitsSetting, FitSetting, SizeSetting
from unskew.data.kinds.labels import label_names
from unskew.data.kinds.missing_values import MissingSetting
from unskew.data.parquet import row_decoding
from unskew.data.parquet.row_decoding import (
    ImageSettings,
    ListColumn,
    encode_table,
    file_settings,
    read_file_column,
)
from unskew.data.parquet.saved_sets import read_saved_table
from unskew.data.parquet.table import LazyColumns, RowNames, ShardTable, read_table
from unskew.data.readers.from_arrays import arrays
from unskew.data.readers.from_items import INPUT_KEYS
from unskew.data.readers.from_tables import (
    ColumnChoice,
    Roles,
    apply_split,
    check_sites,
    divide_by_part,
    group_column,
    names_in,
    read_label_columns,
    sheet_set,
    target_of,
)
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.conversion import AxisOrder, check_axes
from unskew.data.samples.dataset import Dataset, Target
from unskew.data.samples.reading_notes import Intake, Note, abbreviate
from unskew.data.storage.sample_rows import select_samples
from unskew.errors import DataError, excerpt

TABLE_KINDS = ("number", "text", "value")
LONGEST_WORD = 100
"""Maximal number of characters in a word by which clients can be formed."""


def parquet(
    path: str | Path,
    label: Annotated[str, "the column of labels"] = "",
    site: Annotated[str, "the column of sites"] = "",
    x: Annotated[
        str, "the column of samples, if several hold lists or files; 'scan,age' for several inputs"
    ] = "",
    layout: Annotated[
        AxisOrder, "for lists in lists: 'channels last' for images, 'time first' for series"
    ] = "auto",
    size: SizeSetting = 64,
    *,
    fit: FitSetting = "pad",
    bits: BitsSetting = 16,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
    group: str = "",
    drop: str | Sequence[str] = "",
    missing: MissingSetting = "refuse",
) -> Dataset:
    """The set in Parquet files. path: a file, a folder with any number of them, or a pattern such as
    shards/part-*.parquet.

    A column of lists of numbers, or of files {bytes, path} as the hub keeps images and sounds, holds the
    samples, and the other columns facts about them. Without such a column, all columns are features, see
    `read_table`; drop and missing are then as for a CSV, and filled columns are kept in memory. Files or
    folders called train and test hold the training and test rows. Samples that would
    take more than a quarter of the memory are read during training.
    Raises DataError: E401 for files that cannot be read, or without pyarrow, E402 if there are none, E403 for
    columns and for shapes that differ, E404 for labels, E405 for missing values, E142 for anything that does
    not fit into memory.
    """
    aim, images = target_of(target, label, center, scale), ImageSettings(size, fit, bits)
    choice = ColumnChoice((), names_in(drop), missing)
    return dataset_of_table(read_table(Path(path)), x, (label, site, group), layout, images, aim, choice)


def dataset_of_table(
    table: ShardTable,
    x: str,
    roles: Roles,
    layout: AxisOrder,
    images: ImageSettings,
    aim: Target | None,
    choice: ColumnChoice | None = None,
) -> Dataset:
    """The set in a table, as `parquet` describes it. x: the column of samples, or several for several inputs;
    "" to search for one. Raises DataError (E403) for a choice of columns where lists or files are the
    samples."""
    choice = choice or ColumnChoice()
    target = label_names(aim.name if aim else "")
    inputs = label_names(x)
    if len(inputs) < 2 or x in table.columns:
        column = _sample_column(table, x, {roles[0], *target})
        inputs = (column,) if column else ()
    heavy = [n for n in table.columns if table.is_heavy(n) and n not in {*roles, *target, *inputs}]
    names = [
        n
        for n, c in table.columns.items()
        if n not in (*heavy, *inputs) and (not inputs or c.kind in TABLE_KINDS)
    ]
    sheet = Sheet(table.name, LazyColumns(table, names), RowNames(table), test=table.test())
    left_out = [*table.omissions, *(f"column '{n}', whose words take too much memory" for n in heavy)]
    notes: list[Note] = [("left out", abbreviate(left_out))] if left_out else []
    if not inputs:
        features = partial(encode_table, table) if choice.missing == "refuse" else encode_features
        return sheet_set(sheet, roles, None, aim, features=features, choice=choice).with_notes(*notes)
    if choice != ColumnChoice():
        fault = f"the samples are in {abbreviate([excerpt(c, 40) for c in inputs])}"
        raise DataError(
            "E403", f"{table.name}: {fault}; leave out drop and missing, which are for columns of features."
        )
    if len(inputs) > 1:
        return _read_inputs(table, sheet, inputs, roles, layout, images, aim, notes)
    (column,) = inputs
    raw, sheet = _read_facts(table, sheet, (column,), roles, aim, notes)
    if table.columns[column].kind == "packed":
        form = file_settings(table, column, images)
        samples, dtype = read_file_column(table, column, form, notes), ""
        if form["kind"] == "sounds":
            notes.append(("scaled", "spectrograms were standardised"))
    else:
        lists = ListColumn(table, column, layout)
        samples, form, dtype = lists.samples(notes), {"kind": "arrays", "layout": layout}, str(lists.kind)
        _check_layout(table.name, layout, {column: samples})
        if lists.full:
            kind = f"{lists.kind.itemsize * 8}-bit whole numbers"
            notes.append(("scaled", f"{kind} were divided by {lists.full:,}"))
    dataset = _dataset_of(table, divide_by_part(replace(raw, x=samples), sheet), notes)
    dataset = dataset.with_constants() if form["kind"] == "sounds" else dataset
    intake = dataset.intake or Intake()
    form = {**form, "column": column}
    return replace(dataset, intake=replace(intake, dtype=dtype or intake.dtype, form=form, divided=roles[1]))


def _sample_column(table: ShardTable, x: str, labels: set[str]) -> str:
    """The column of lists or files that holds the samples, "" for a table of features."""
    if x:
        x = column_named(table.columns, x, table.name)
        if table.columns[x].kind not in ("list", "packed"):
            fault = f"x={x} names a column of {excerpt(table.columns[x].form, 40)[1:-1]}"
            remedy = "samples are lists of numbers, or files: leave x out, and every column is a feature"
            raise DataError("E403", f"{table.name}: {fault}; {remedy}.")
        return x
    label = "" if labels - {""} else label_column_in(table.columns)
    rich = [n for n, c in table.columns.items() if c.kind in ("list", "packed") and n not in {*labels, label}]
    usual = [n for n in rich if n.lower() in INPUT_KEYS]
    if len(rich) > 1 and len(usual) != 1:
        remedy = f"name one, x={rich[0]}, or, for several inputs, all of them, x='{rich[0]},{rich[1]}'"
        raise DataError("E403", f"{table.name} has several columns of samples, {abbreviate(rich)}: {remedy}.")
    return (usual if len(rich) > 1 else [*rich, ""])[0]


def _read_inputs(
    table: ShardTable,
    sheet: Sheet,
    names: tuple[str, ...],
    roles: Roles,
    layout: AxisOrder,
    images: ImageSettings,
    aim: Target | None,
    notes: list[Note],
) -> Dataset:
    """A set with several inputs a sample, each a column."""
    columns = tuple(column_named(table.columns, name, table.name) for name in names)
    if twice := next((column for column in columns if columns.count(column) > 1), ""):
        raise DataError("E403", f"{table.name}: x names the column '{twice}' twice; name each input once.")
    labels = {roles[0], *label_names(aim.name if aim else "")} - {""} or {label_column_in(table.columns)}
    if labels == {""}:
        fault = f"none of {abbreviate(list(table.columns), 8)} has a usual name of labels"
        raise DataError("E403", f"{table.name}: {fault}; name it, label=COLUMN.")
    if overlap := [column for column in columns if column in labels]:
        raise DataError("E403", f"{table.name}: column '{overlap[0]}' holds the labels; leave it out of x.")
    raw, sheet = _read_facts(table, sheet, columns, roles, aim, notes)
    files = {c: file_settings(table, c, images) for c in columns if table.columns[c].kind == "packed"}
    words = [c for c in columns if table.columns[c].kind == "text"]
    encodings, used = encode_inputs(replace(sheet, columns=LazyColumns(table, words)), words, notes)
    arrays = [c for c in columns if c not in words]
    values = row_decoding.raw_inputs(table, arrays, layout, files, notes) | encodings
    _check_layout(table.name, layout, {c: values[c] for c in columns if table.columns[c].kind == "list"})
    split = divide_by_part(replace(raw, x=np.arange(len(table))), sheet)

    def select(rows: np.ndarray | None) -> dict[str, np.ndarray] | None:
        """The inputs of the samples at these rows; unchanged if these are all rows."""
        if rows is None or len(rows) == len(table):
            return None if rows is None else values
        return {name: select_samples(x, rows) for name, x in values.items()}

    dataset = _dataset_of(table, replace(split, x=select(split.x), x_test=select(split.x_test)), notes)
    form = {"kind": "arrays", "layout": layout, **({"files": files} if files else {})}
    form |= {"beside": [[column, kinds] for column, kinds in used.items()]} if used else {}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form, divided=roles[1]))


def _dataset_of(table: ShardTable, raw: RawSamples, notes: list[Note]) -> Dataset:
    tested = raw.x_test is not None
    return arrays(
        raw.x,
        raw.y,
        raw.x_test,
        raw.y_test,
        classes=raw.classes,
        columns=raw.columns,
        target=raw.target,
        notes=notes,
        test_columns=raw.test_columns if tested else None,
        name=Path(table.name).stem,
        layout="channels first",
        group=raw.group,
    )


def _read_facts(
    table: ShardTable,
    sheet: Sheet,
    sample_columns: tuple[str, ...],
    roles: Roles,
    aim: Target | None,
    notes: list[Note],
) -> tuple[RawSamples, Sheet]:
    """(labels and facts besides the samples, the sheet with its parts); adds to the notes."""
    label, site, group = roles
    lists = label or ("" if aim else label_column_in(table.columns))
    if lists in table.columns and table.columns[lists].kind == "list":
        sheet = apply_split(sheet, lists, notes)
        labels = (lists,)
        y = np.concatenate([values for _, values in ListColumn(table, lists, "auto").parts()])
        notes.append(("labels", f"from the column '{lists}'"))
    elif not sheet.columns:
        raise DataError("E403", f"{table.name} has no column of labels beside '{sample_columns[0]}'.")
    else:
        sheet = apply_split(sheet, label, notes)
        labels, y = read_label_columns(sheet, label, None, aim, notes)
    classes = table.classes(labels[0]) if y.dtype.kind in "iu" and y.ndim == 1 and not aim else None
    if classes and len(y) and int(y.max()) >= len(classes):
        classes = None
    remaining = [c for c in sheet.columns if c not in labels]
    group = group_column(sheet, remaining, group_setting(group, site), notes)
    site = site_column_of(sheet, remaining, site, group)
    known = (*labels, *sample_columns)
    left_out = [n for n, c in table.columns.items() if n not in known and c.kind not in TABLE_KINDS]
    facts: dict[str, np.ndarray] = {}
    for name in remaining:
        if name in (group, site):
            facts[name] = sheet.columns[name] if name == group else check_sites(sheet, name)
        elif (values := _fact_column(table, sheet, name)) is not None:
            facts[name] = values
        else:
            left_out.append(name)
    if left_out:
        notes.append(("left out", f"columns {abbreviate([excerpt(c, 40) for c in left_out], 5)}"))
    if site:
        notes.append(("sites", f"from the column '{site}'"))
    raw = RawSamples(None, y, classes=classes, columns=facts, target=aim, group=group or INDEPENDENT)
    return raw, sheet


def _fact_column(table: ShardTable, sheet: Sheet, name: str) -> np.ndarray | None:
    """The values of a column by which clients can be formed, [N]; None for any other column."""
    if table.columns[name].kind == "value":
        return None
    values = sheet.columns[name]
    if values.dtype.kind not in "biuUS" or is_row_number(name, values):
        return None
    return values if values.dtype.kind in "biu" or values.dtype.itemsize <= 4 * LONGEST_WORD else None


def _check_layout(name: str, layout: AxisOrder, columns: Mapping[str, np.ndarray]) -> None:
    """Raises DataError (E403), with the setting to use, for lists that look like images with channels last
    or without any."""
    for column, x in columns.items() if layout == "auto" else ():
        try:
            check_axes(name, x)
        except DataError:
            fault = f"lists in column '{column}' are {list(x.shape[1:])}, whose channels may come last"
            remedy = "write layout='channels last' for images, 'time first' for series, or 'channels first'"
            raise DataError("E403", f"{name}: {fault} or be missing; {remedy}.") from None


def saved(
    path: str | Path,
    label: Annotated[str, "the column of labels"] = "",
    site: Annotated[str, "the column of sites"] = "",
    x: Annotated[str, "the column of samples, if several hold lists or files"] = "",
    split: Annotated[str, "the split to train on, if it is not the one called train"] = "",
    layout: Annotated[
        AxisOrder, "for lists in lists: 'channels last' for images, 'time first' for series"
    ] = "auto",
    *,
    size: SizeSetting = 64,
    fit: FitSetting = "pad",
    bits: BitsSetting = 16,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
    group: str = "",
    drop: str | Sequence[str] = "",
    missing: MissingSetting = "refuse",
) -> Dataset:
    """The set that was saved in a folder, a Dataset or a DatasetDict.

    Columns become samples, labels and facts as those of Parquet files do (unskew.data.readers.from_parquet).
    Raises DataError: E402 for files that are missing, E401 for damaged ones and without pyarrow, E403 for a
    DatasetDict without a split called train, for features that are not read, and for columns and shapes that
    differ, E404 for labels, E405 for missing values, E142 for anything that does not fit into memory.
    """
    aim, images = target_of(target, label, center, scale), ImageSettings(size, fit, bits)
    table = read_saved_table(Path(path), split)
    choice = ColumnChoice((), names_in(drop), missing)
    return dataset_of_table(table, x, (label, site, group), layout, images, aim, choice)
