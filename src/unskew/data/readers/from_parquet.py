"""A data set from Parquet files, or from a folder that Hugging Face Datasets has saved.

The columns of a table are features; or one column of lists or files holds the samples, and others the labels
and facts.
Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from unskew.data.files.sheets import Sheet
from unskew.data.kinds.column_roles import column_named, label_column_in, site_column_of
from unskew.data.kinds.features import encode_inputs, is_row_number
from unskew.data.kinds.groups import INDEPENDENT, group_setting
from unskew.data.kinds.images import BitsSetting, FitSetting, SizeSetting
from unskew.data.kinds.labels import label_names
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
    Roles,
    apply_split,
    check_sites,
    divide_by_part,
    group_column,
    read_label_columns,
    sheet_set,
    target_of,
)
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.conversion import AxisOrder, check_axes
from unskew.data.samples.dataset import Dataset, Target
from unskew.data.samples.intake import Intake, Note, abbreviate
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
) -> Dataset:
    """The set in Parquet files. path: a file, a folder with any number of them, or a pattern such as
    shards/part-*.parquet.

    A column of lists of numbers, or of files {bytes, path} as the hub keeps images and sounds, holds the
    samples, and the other columns facts about them. Without such a column, all columns are features, see
    `read_table`. Files or folders called train and test hold the training and test rows. Samples that would
    take more than a quarter of the memory are read during training.
    Raises DataError: E401 for files that cannot be read, or without pyarrow, E402 if there are none, E403 for
    columns and for shapes that differ, E404 for labels, E405 for missing values, E142 for anything that does
    not fit into memory.
    """
    aim = target_of(target, label, center, scale)
    return dataset_of_table(
        read_table(Path(path)), (x, label, site, group), layout, ImageSettings(size, fit, bits), aim
    )


def dataset_of_table(
    table: ShardTable,
    roles: tuple[str, str, str, str],
    layout: AxisOrder,
    images: ImageSettings,
    aim: Target | None,
) -> Dataset:
    """The set in a table, as `parquet` describes it. roles: the columns of samples, labels, sites and groups,
    "" to search for one."""
    x, *facts = roles
    label, site, group = facts
    target = aim.name if aim else ""
    if len(inputs := label_names(x)) > 1 and x not in table.columns:
        return _read_inputs(table, inputs, (label, site, group), layout, images, aim)
    column = _sample_column(table, x, {label, *label_names(target)})
    heavy = [n for n in table.columns if table.is_heavy(n) and n not in {*facts, *label_names(target)}]
    names = [n for n, c in table.columns.items() if n not in heavy and (not column or c.kind in TABLE_KINDS)]
    sheet = Sheet(table.name, LazyColumns(table, names), RowNames(table), test=table.test())
    left_out = [*table.omissions, *(f"column '{n}', whose words take too much memory" for n in heavy)]
    notes: tuple[Note, ...] = (("left out", abbreviate(left_out)),) if left_out else ()
    if not column:
        dataset = sheet_set(sheet, (label, site, group), None, aim, features=partial(encode_table, table))
        return dataset.with_notes(*notes)
    if table.columns[column].kind == "list":
        return _read_lists(table, sheet, (column, label, site, group), layout, aim).with_notes(*notes)
    return _read_files(table, sheet, (column, label, site, group), images, aim).with_notes(*notes)


def _sample_column(table: ShardTable, x: str, labels: set[str]) -> str:
    """The column of lists or files that holds the samples, "" for a table of features. x: the column that the
    user names.

    Raises DataError (E403) if several columns are possible, and if the named column holds neither lists nor
    files.
    """
    if x:
        x = column_named(dict.fromkeys(table.columns), x, table.name)
        if table.columns[x].kind not in ("list", "packed"):
            form = excerpt(table.columns[x].form, 40)[1:-1]
            text = f"{table.name}: x={x} names a column of {form}; samples are lists of numbers, or files"
            raise DataError("E403", f"{text}: leave x out, and every column is a feature.")
        return x
    label = "" if labels - {""} else label_column_in(table.columns)
    rich = [n for n, c in table.columns.items() if c.kind in ("list", "packed") and n not in {*labels, label}]
    if len(rich) < 2:
        return rich[0] if rich else ""
    usual = [n for n in rich if n.lower() in INPUT_KEYS]
    if len(usual) != 1:
        raise DataError(
            "E403",
            f"{table.name} has several columns of samples, {abbreviate(rich)}: name one, x={rich[0]}, or for"
            f" a model that takes several inputs all of them, x='{rich[0]},{rich[1]}'.",
        )
    return usual[0]


def _read_inputs(
    table: ShardTable,
    names: tuple[str, ...],
    roles: Roles,
    layout: AxisOrder,
    images: ImageSettings,
    aim: Target | None,
) -> Dataset:
    """A set with several inputs a sample, each a column."""
    columns = [column_named(dict.fromkeys(table.columns), name, table.name) for name in names]
    if twice := next((column for column in columns if columns.count(column) > 1), ""):
        raise DataError("E403", f"{table.name}: x names the column '{twice}' twice; name each input once.")
    labels = {roles[0], *label_names(aim.name if aim else "")} - {""} or {label_column_in(table.columns)}
    if labels == {""}:
        text = (
            f"which column holds the labels is not said, and none of {abbreviate(list(table.columns), 8)} has"
            " a usual name"
        )
        raise DataError("E403", f"{table.name}: {text}; name it, label=COLUMN.")
    if overlap := [column for column in columns if column in labels]:
        raise DataError("E403", f"{table.name}: column '{overlap[0]}' holds the labels; leave it out of x.")
    plain = [n for n, c in table.columns.items() if c.kind in TABLE_KINDS and n not in columns]
    sheet = Sheet(table.name, LazyColumns(table, plain), RowNames(table), test=table.test())
    notes = list[Note]()
    if table.omissions:
        notes.append(("left out", abbreviate(list(table.omissions))))
    raw, sheet = _read_facts(table, sheet, (tuple(columns), *roles), aim, notes)
    files = {c: file_settings(table, c, images) for c in columns if table.columns[c].kind == "packed"}
    words = [c for c in columns if table.columns[c].kind == "text"]
    encodings, used = encode_inputs(replace(sheet, columns=LazyColumns(table, words)), words, notes)
    values = (
        row_decoding.raw_inputs(table, [c for c in columns if c not in words], layout, files, notes)
        | encodings
    )
    for column in columns:
        if layout == "auto" and table.columns[column].kind == "list":
            _check_layout(table.name, column, values[column])
    split = divide_by_part(replace(raw, x=np.arange(len(table))), sheet)
    parts = [None if rows is None else _select(values, rows) for rows in (split.x, split.x_test)]
    dataset = _dataset_of(table, replace(split, x=parts[0], x_test=parts[1]), notes)
    form = {"kind": "arrays", "layout": layout, **({"files": files} if files else {})}
    form |= {"beside": [[column, kinds] for column, kinds in used.items()]} if used else {}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form, divided=roles[1]))


def _select(values: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of the samples at these rows; unchanged if these are all rows."""
    return {name: x if len(rows) == len(x) else select_samples(x, rows) for name, x in values.items()}


def _read_lists(
    table: ShardTable, sheet: Sheet, roles: tuple[str, str, str, str], layout: AxisOrder, aim: Target | None
) -> Dataset:
    """A set with lists as samples. roles: the columns of samples, labels, sites and groups."""
    notes = list[Note]()
    raw, sheet = _read_facts(table, sheet, ((roles[0],), *roles[1:]), aim, notes)
    form = ListColumn(table, roles[0], layout)
    x = form.samples(notes)
    if layout == "auto":
        _check_layout(table.name, roles[0], x)
    if form.full:
        notes.append(("scaled", f"{form.kind.itemsize * 8}-bit whole numbers were divided by {form.full:,}"))
    dataset = _dataset_of(table, divide_by_part(replace(raw, x=x), sheet), notes)
    intake_form = {"kind": "arrays", "column": roles[0], "layout": layout}
    intake = replace(dataset.intake or Intake(), dtype=str(form.kind), divided=roles[2], form=intake_form)
    return replace(dataset, intake=intake)


def _read_files(
    table: ShardTable,
    sheet: Sheet,
    roles: tuple[str, str, str, str],
    images: ImageSettings,
    aim: Target | None,
) -> Dataset:
    """A set with images or sounds as samples. roles: the columns of samples, labels, sites and groups."""
    notes = list[Note]()
    raw, sheet = _read_facts(table, sheet, ((roles[0],), *roles[1:]), aim, notes)
    into = file_settings(table, roles[0], images)
    x = read_file_column(table, roles[0], into, notes)
    if into["kind"] == "sounds":
        notes.append(("scaled", "spectrograms were standardised"))
    dataset = _dataset_of(table, divide_by_part(replace(raw, x=x), sheet), notes)
    dataset = dataset.with_constants() if into["kind"] == "sounds" else dataset
    form = {**into, "column": roles[0]}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form, divided=roles[2]))


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
    roles: tuple[tuple[str, ...], str, str, str],
    aim: Target | None,
    notes: list[Note],
) -> tuple[RawSamples, Sheet]:
    """(labels and facts besides the samples, the sheet with its parts); adds to the notes."""
    sample_columns, label, site, group = roles
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
    facts: dict[str, np.ndarray] = {}
    left_out = [
        c
        for c, one in table.columns.items()
        if c not in (*labels, *sample_columns) and one.kind not in TABLE_KINDS
    ]
    for name in remaining:
        values = sheet.columns[name] if name == group else _fact_column(table, sheet, name, name == site)
        if values is None:
            left_out.append(name)
        else:
            facts[name] = values
    if left_out:
        notes.append(("left out", f"columns {abbreviate([excerpt(c, 40) for c in left_out], 5)}"))
    if site:
        notes.append(("sites", f"from the column '{site}'"))
    group = group or INDEPENDENT
    return RawSamples(None, y, classes=classes, columns=facts, target=aim, group=group), sheet


def _fact_column(table: ShardTable, sheet: Sheet, name: str, is_site: bool) -> np.ndarray | None:
    """The values of a column by which clients can be formed, [N]; None for any other column."""
    if is_site:
        return check_sites(sheet, name, sheet.columns[name])
    if table.columns[name].kind == "value":
        return None
    values = sheet.columns[name]
    if values.dtype.kind not in "biuUS" or is_row_number(name, values):
        return None
    return values if values.dtype.kind in "biu" or values.dtype.itemsize <= 4 * LONGEST_WORD else None


def _check_layout(name: str, column: str, x: np.ndarray) -> None:
    """Raises DataError (E403), with the setting to use, for lists that look like images with channels last
    or without any."""
    try:
        check_axes(name, x)
    except DataError:
        shape = list(x.shape[1:])
        raise DataError(
            "E403",
            f"{name}: lists in column '{column}' are {shape}, whose channels may come last or be missing;"
            " write layout='channels last' for images, layout='time first' for series, or layout='channels"
            " first' if the first axis does hold channels.",
        ) from None


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
) -> Dataset:
    """The set that was saved in a folder, a Dataset or a DatasetDict.

    Columns become samples, labels and facts as those of Parquet files do (unskew.data.readers.from_parquet).
    Raises DataError: E402 for files that are missing, E401 for damaged ones and without pyarrow, E403 for a
    DatasetDict without a split called train, for features that are not read, and for columns and shapes that
    differ, E404 for labels, E405 for missing values, E142 for anything that does not fit into memory.
    """
    aim = target_of(target, label, center, scale)
    return dataset_of_table(
        read_saved_table(Path(path), split),
        (x, label, site, group),
        layout,
        ImageSettings(size, fit, bits),
        aim,
    )
