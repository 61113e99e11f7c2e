"""A set from Parquet files: the columns of a table, or a column of lists or of files with labels and facts beside it.

Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from unskew.data.dataset import Dataset
from unskew.data.from_arrays import arrays
from unskew.data.intake.columns import site_of
from unskew.data.intake.features import is_row_number
from unskew.data.intake.items import INPUTS
from unskew.data.intake.layout import check_layout
from unskew.data.intake.notes import Intake, Note, some
from unskew.data.intake.raw import Raw
from unskew.data.intake.several import names_in
from unskew.data.intake.sheets import Sheet
from unskew.data.intake.tables import by_part, labels_in, sheet_set, sites_in, wished, with_split
from unskew.data.intake.targets import column_named, label_of
from unskew.data.intake.worded import as_inputs
from unskew.data.parquet import given
from unskew.data.parquet.files import Images, samples_in, turned
from unskew.data.parquet.forms import Layout, Listed
from unskew.data.parquet.groups import RowGroups
from unskew.data.parquet.reading import samples_of
from unskew.data.parquet.several import Columns, Named, Shards, shards_at
from unskew.data.parquet.tabular import numbers_in
from unskew.data.rows import chosen
from unskew.data.target import Target
from unskew.errors import DataError, excerpt

PLAIN = ("number", "text", "value")
LONGEST = 100
"""Characters of a word by which clients can be formed, at most."""


def parquet(
    path: str | Path,
    label: Annotated[str, "the column of labels"] = "",
    site: Annotated[str, "the column that says where rows are from"] = "",
    x: Annotated[str, "the column of samples, where several hold lists or files; 'scan,age' for several inputs"] = "",
    layout: Annotated[
        Layout, "of lists that are images: which axis holds the channels; channels last also without any"
    ] = "auto",
    size: Annotated[int, Gt(0), Le(4096), "side to which images are resized, in pixels"] = 64,
    *,
    fit: Annotated[
        Literal["pad", "crop", "squash"],
        "images that are not square: padded with black, cut to the middle, or squashed",
    ] = "pad",
    bits: Annotated[int, Ge(9), Le(16), "bits that image files of 16 bits really use, such as 12"] = 16,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
) -> Dataset:
    """The set in Parquet files. path: a file, a folder with any number of them, or a pattern such as shards/part-*.parquet.

    A column of lists of numbers, or of files {bytes, path} as the hub keeps images and sounds, holds the samples, and the
    other columns facts about them; without one, all columns are features, see `table`. Files or folders called train and test
    say which rows are test rows. What would take more than a quarter of the memory is read when it is wanted.
    Raises DataError: E401 for files that cannot be read, or without pyarrow, E402 where there are none, E403 for columns
    and for shapes that differ, E404 for labels, E405 for missing values, E414 for what does not fit into memory.
    """
    aim = wished(target, label, center, scale)
    return tabled(shards_at(Path(path)), (x, label, site), layout, Images(size, fit, bits), aim)


def tabled(table: Shards, named: tuple[str, str, str], layout: Layout, images: Images, aim: Target | None) -> Dataset:
    """The set in a table, as `parquet` describes it. named: the columns of samples, labels and sites, "" for any."""
    x, label, site = named
    target = aim.name if aim else ""
    if len(inputs := names_in(x)) > 1 and x not in table.columns:
        return _several(table, inputs, (label, site), layout, images, aim)
    column = _samples_in(table, x, {label, *names_in(target)})
    heavy = [n for n in table.columns if table.heavy(n) and n not in {label, site, *names_in(target)}]
    names = [n for n, c in table.columns.items() if n not in heavy and (not column or c.kind in PLAIN)]
    sheet = Sheet(table.name, Columns(table, names), Named(table), test=table.test())
    left_out = [*table.more, *(f"column '{n}', whose words take too much memory" for n in heavy)]
    notes: tuple[Note, ...] = (("left out", some(left_out)),) if left_out else ()
    if not column:
        return sheet_set(sheet, label, site, None, aim, features=partial(numbers_in, table)).noted(*notes)
    if table.columns[column].kind == "list":
        return _lists(table, sheet, (column, label, site), layout, aim).noted(*notes)
    return _files(table, sheet, (column, label, site), images, aim).noted(*notes)


def _samples_in(table: Shards, x: str, labels: set[str]) -> str:
    """The column of lists or files that holds the samples, "" for a table of features. x: the one that is named.

    Raises DataError (E403) where several may be meant, and for a column that is named and holds neither.
    """
    if x:
        x = column_named(dict.fromkeys(table.columns), x, table.name)
        if table.columns[x].kind not in ("list", "packed"):
            form = excerpt(table.columns[x].form, 40)[1:-1]
            text = f"{table.name}: x={x} names a column of {form}; samples are lists of numbers, or files"
            raise DataError("E403", f"{text}: leave x out, and every column is a feature.")
        return x
    label = "" if labels - {""} else label_of(table.columns)
    rich = [n for n, c in table.columns.items() if c.kind in ("list", "packed") and n not in {*labels, label}]
    if len(rich) < 2:
        return rich[0] if rich else ""
    usual = [n for n in rich if n.lower() in INPUTS]
    if len(usual) != 1:
        raise DataError(
            "E403",
            f"{table.name} has several columns of samples, {some(rich)}: name one, x={rich[0]}, or for a model that takes "
            f"several inputs all of them, x='{rich[0]},{rich[1]}'.",
        )
    return usual[0]


def _several(
    table: Shards,
    named: tuple[str, ...],
    beside: tuple[str, str],
    layout: Layout,
    images: Images,
    aim: Target | None,
) -> Dataset:
    """A set whose samples have several inputs, each a column. beside: the columns of labels and sites."""
    columns = [column_named(dict.fromkeys(table.columns), name, table.name) for name in named]
    if twice := next((column for column in columns if columns.count(column) > 1), ""):
        raise DataError("E403", f"{table.name}: x names the column '{twice}' twice; name each input once.")
    labels = {beside[0], *names_in(aim.name if aim else "")} - {""} or {label_of(table.columns)}
    if labels == {""}:
        text = f"which column holds the labels is not said, and none of {some(list(table.columns), 8)} has a usual name"
        raise DataError("E403", f"{table.name}: {text}; name it, label=COLUMN.")
    if both := [column for column in columns if column in labels]:
        raise DataError("E403", f"{table.name}: column '{both[0]}' holds the labels; leave it out of x.")
    plain = [n for n, c in table.columns.items() if c.kind in PLAIN and n not in columns]
    sheet, notes = Sheet(table.name, Columns(table, plain), Named(table), test=table.test()), list[Note]()
    if table.more:
        notes.append(("left out", some(list(table.more))))
    raw, sheet = _beside(table, sheet, (tuple(columns), *beside), aim, notes)
    files = {c: turned(table, c, images) for c in columns if table.columns[c].kind == "packed"}
    words = [c for c in columns if table.columns[c].kind == "text"]
    worded, used = as_inputs(replace(sheet, columns=Columns(table, words)), words, notes)
    values = given.inputs(table, [c for c in columns if c not in words], layout, files, notes) | worded
    for column in columns:
        if layout == "auto" and table.columns[column].kind == "list":
            _check_layout(table.name, column, values[column])
    divided = by_part(replace(raw, x=np.arange(len(table))), sheet)
    parts = [None if rows is None else _at(values, rows) for rows in (divided.x, divided.x_test)]
    dataset = _set(table, replace(divided, x=parts[0], x_test=parts[1]), notes)
    form = {"kind": "arrays", "layout": layout, **({"files": files} if files else {})}
    form |= {"beside": [[column, kinds] for column, kinds in used.items()]} if used else {}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form, divided=beside[1]))


def _at(values: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of the samples at these numbers; where these are all of them, as they lie."""
    return {name: x if len(rows) == len(x) else chosen(x, rows) for name, x in values.items()}


def _lists(table: Shards, sheet: Sheet, named: tuple[str, str, str], layout: Layout, aim: Target | None) -> Dataset:
    """A set whose samples are lists. named: the columns of samples, labels and sites."""
    notes = list[Note]()
    raw, sheet = _beside(table, sheet, ((named[0],), *named[1:]), aim, notes)
    form = Listed(table, named[0], layout)
    x = samples_of(table, form, notes)
    if layout == "auto":
        _check_layout(table.name, named[0], x)
    if form.full:
        notes.append(("scaled", f"{form.kind.itemsize * 8}-bit whole numbers were divided by {form.full:,}"))
    dataset = _set(table, by_part(replace(raw, x=x), sheet), notes)
    read = {"kind": "arrays", "column": named[0], "layout": layout}
    came = replace(dataset.intake or Intake(), dtype=str(form.kind), divided=named[2], form=read)
    return replace(dataset, intake=came)


def _files(table: Shards, sheet: Sheet, named: tuple[str, str, str], images: Images, aim: Target | None) -> Dataset:
    """A set whose samples are images or sounds. named: the columns of samples, labels and sites."""
    notes = list[Note]()
    raw, sheet = _beside(table, sheet, ((named[0],), *named[1:]), aim, notes)
    into = turned(table, named[0], images)
    x = samples_in(table, named[0], into, notes)
    if into["kind"] == "sounds":
        notes.append(("scaled", "spectrograms were standardised"))
    dataset = _set(table, by_part(replace(raw, x=x), sheet), notes)
    dataset = dataset.with_constants() if into["kind"] == "sounds" else dataset
    form = {**into, "column": named[0]}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form, divided=named[2]))


def _set(table: Shards, raw: Raw, notes: list[Note]) -> Dataset:
    tested = raw.x_test is not None
    return arrays(
        raw.x, raw.y, raw.x_test, raw.y_test, classes=raw.classes, columns=raw.columns, target=raw.target, notes=notes,
        test_columns=raw.test_columns if tested else None, name=Path(table.name).stem, layout="channels first",
    )  # fmt: skip


def _beside(
    table: Shards, sheet: Sheet, named: tuple[tuple[str, ...], str, str], aim: Target | None, notes: list[Note]
) -> tuple[Raw, Sheet]:
    """(labels and facts beside columns of samples, the sheet with its parts); adds to the notes."""
    taken, label, site = named
    lists = label or ("" if aim else label_of(table.columns))
    if lists in table.columns and table.columns[lists].kind == "list":
        sheet = with_split(sheet, lists, notes)
        labels, y = (
            (lists,),
            np.concatenate([held for _, held in RowGroups(table, Listed(table, lists, "auto")).passed()]),
        )
        notes.append(("labels", f"from the column '{lists}'"))
    elif not sheet.columns:
        raise DataError("E403", f"{table.name} has no column of labels beside '{taken[0]}'.")
    else:
        sheet = with_split(sheet, label, notes)
        labels, y = labels_in(sheet, label, None, aim, notes)
    classes = table.classes(labels[0]) if y.dtype.kind in "iu" and y.ndim == 1 and not aim else None
    if classes and len(y) and int(y.max()) >= len(classes):
        classes = None
    rest = [c for c in sheet.columns if c not in labels]
    site = column_named(dict.fromkeys(rest), site, sheet.name) if site else site_of(dict.fromkeys(rest))
    facts: dict[str, np.ndarray] = {}
    left_out = [c for c, one in table.columns.items() if c not in (*labels, *taken) and one.kind not in PLAIN]
    for name in rest:
        values = _fact(table, sheet, name, name == site)
        if values is None:
            left_out.append(name)
        else:
            facts[name] = values
    if left_out:
        notes.append(("left out", f"columns {some([excerpt(c, 40) for c in left_out], 5)}"))
    if site:
        notes.append(("sites", f"from the column '{site}'"))
    return Raw(None, y, classes=classes, columns=facts, target=aim), sheet


def _fact(table: Shards, sheet: Sheet, name: str, is_site: bool) -> np.ndarray | None:
    """The values of a column by which clients can be formed, [N]; None for one by which they cannot."""
    if is_site:
        return sites_in(sheet, name, sheet.columns[name])
    if table.columns[name].kind == "value":
        return None
    values = sheet.columns[name]
    if values.dtype.kind not in "biuUS" or is_row_number(name, values):
        return None
    return values if values.dtype.kind in "biu" or values.dtype.itemsize <= 4 * LONGEST else None


def _check_layout(name: str, column: str, x: np.ndarray) -> None:
    """Raises DataError (E403), with what to write, for lists that look like images with their channels last, or without any."""
    try:
        check_layout(name, x)
    except DataError:
        shape = list(x.shape[1:])
        raise DataError(
            "E403",
            f"{name}: lists in column '{column}' are {shape}, which looks like images whose channels come last or are missing; "
            "write layout='channels last', or layout='channels first' if the first axis does hold channels.",
        ) from None
