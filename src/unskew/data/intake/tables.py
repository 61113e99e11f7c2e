"""Tables of samples: a row each, a column of labels, perhaps a column that says where a row is from, and features."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.intake import cells
from unskew.data.intake.columns import site_of
from unskew.data.intake.features import Kinds, numbers_of
from unskew.data.intake.notes import Intake, Note
from unskew.data.intake.numbers import target_column
from unskew.data.intake.raw import Raw
from unskew.data.intake.several import in_columns, several_columns
from unskew.data.intake.sheets import Only, Sheet, check_header, joined, read_csv
from unskew.data.intake.split import left_out, part_column
from unskew.data.intake.targets import column_named, labels_of
from unskew.data.intake.tree import IMAGES, PARTS, SOUNDS
from unskew.data.rows import chosen
from unskew.data.target import Target
from unskew.errors import DataError

CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""How the names of tables in text files end."""


def csv_set(
    path: str | Path,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    *,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
) -> Dataset:
    """The set that a CSV holds; see `table`."""
    return sheet_set(_sheet(Path(path)), label, site, classes, wished(target, label, center, scale))


def csv_pair(
    path: str | Path,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    *,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
) -> Dataset:
    """The set of a folder with train.csv and perhaps test.csv, whose columns are matched by name; see `table`.

    Raises DataError (E403) for a column that the test table lacks; what else it has is left out and told.
    """
    files = _parts(Path(path))
    train = _sheet(files["train"])
    name, notes = Path(path).resolve().name, list[Note]()
    if "val" in files:
        notes.append(("left out", f"{files['val'].name}: choose settings with validation=0.1"))
    if "test" in files:
        test = _sheet(files["test"])
        if more := [c for c in test.columns if c not in train.columns]:
            notes.append(("left out", f"column '{more[0]}', which only {test.name} has"))
        train = joined(train, test)
    return replace(
        sheet_set(train, label, site, classes, wished(target, label, center, scale)).noted(*notes), name=name
    )


def is_csv_pair(path: Path) -> bool:
    """Whether a folder holds train.csv, and neither images nor sounds that it might list."""
    if all(_part(file) != "train" for file in path.iterdir()):
        return False
    endings = {os.path.splitext(name)[1].lower() for _, _, names in os.walk(path) for name in names}
    return not endings & (IMAGES | SOUNDS)


def _parts(folder: Path) -> dict[str, Path]:
    """The tables of a folder by the part that their names say. Raises DataError (E403) for two of one part."""
    parts: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        part = _part(file)
        if part in parts:
            raise DataError("E403", f"{folder} has both {parts[part].name} and {file.name}; leave one of them in it.")
        if part:
            parts[part] = file
    return parts


def _part(file: Path) -> str:
    """The part that a table's name says it is, "" for other files."""
    return PARTS.get(file.name.lower().partition(".")[0], "") if ending(file) in CSV else ""


def ending(path: Path) -> str:
    """How a file's name ends, in small letters: `.csv`, and with what it is packed in, `.csv.gz`."""
    endings = path.suffixes[-2:] if path.suffix.lower() == ".gz" else [path.suffix]
    return "".join(endings).lower()


def _sheet(path: Path) -> Sheet:
    sheet = read_csv(path)
    check_header(str(path), list(sheet.columns))
    return sheet


def table(
    columns: Mapping[str, Any],
    name: str,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    *,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
) -> Dataset:
    """A set from columns of equal length, [N] each.

    label: the column of labels, by default one of a usual name, else the last. target: instead, columns of zeros and ones,
    "fever,cough", which say which of several labels a sample has; or the column of a number to predict, which is learnt as (y - center) / scale, by default with the training rows' mean and standard deviation. site: the column that says where rows are
    from, by which the set is then divided; by default one of a usual name, if there is one. A column `split` of train and
    test divides the rows.
    Raises DataError: E403 for columns that are not there, E404 for labels, E405 for missing values and for what is no
    number in a column of numbers.
    """
    facts = {cells.word(c): v if isinstance(v, np.ndarray) else np.asarray(v) for c, v in columns.items()}
    return sheet_set(Sheet(name, facts), label, site, classes, wished(target, label, center, scale))


def wished(target: str, label: str, center: float | None, scale: float | None) -> Target | None:
    """The target that is named, if one is. Raises DataError (E403) where labels are named, too, or constants of no target."""
    if label and target:
        raise DataError("E403", f"label={label} names classes, and target={target} a number; give one of them.")
    if not target:
        if center is not None or scale is not None:
            raise DataError("E403", "center and scale are a target's: name its column, target=COLUMN.")
        return None
    return Target.wished(target, center, scale)


Features = Callable[[Sheet, Mapping[str, np.ndarray], list[Note]], tuple[np.ndarray, Kinds]]
"""What makes samples of the columns that are features; see `numbers_of`."""


def sheet_set(
    sheet: Sheet,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    target: Target | None = None,
    *,
    features: Features = numbers_of,
) -> Dataset:
    """The set that a sheet holds; see `table`. features: what makes samples of the columns that are neither labels nor sites."""
    raw = sheet_raw(sheet, (label, site), classes, target, features)
    dataset = raw.dataset(Path(sheet.name.removesuffix(".gz")).stem)
    divided = column_named(dict.fromkeys(sheet.columns), site, sheet.name) if site else ""
    return replace(dataset, intake=replace(dataset.intake or Intake(), divided=divided))


def sheet_raw(
    sheet: Sheet,
    named: tuple[str, str],
    classes: Sequence[str] | None = None,
    target: Target | None = None,
    features: Features = numbers_of,
) -> Raw:
    """The samples that a sheet holds, with a test part if it says so. named: the columns of labels and of sites, "" for any."""
    if not sheet.columns:
        raise DataError("E403", f"{sheet.name} has no columns.")
    notes, (label, site) = list[Note](), named
    sheet = with_split(sheet, label, notes)
    labels, y = labels_in(sheet, label, classes, target, notes)
    rest = [column for column in sheet.columns if column not in labels]
    site = column_named(dict.fromkeys(rest), site, sheet.name) if site else site_of(dict.fromkeys(rest))
    places = {site: sites_in(sheet, site, sheet.columns[site])} if site else {}
    x, used = features(sheet, Only(sheet.columns, [column for column in rest if column != site]), notes)
    if site:
        notes.append(("sites", f"from the column '{site}'"))
    form = {"kind": "table", "columns": [[column, kinds] for column, kinds in used.items()]}  # their order counts
    known = None if classes is None else tuple(classes)
    return by_part(
        Raw(x, y, columns=places, notes=tuple(notes), target=target, classes=known, form=form),
        sheet,
    )


def with_split(sheet: Sheet, label: str, notes: list[Note]) -> Sheet:
    """The sheet with its rows divided as a column of train, test and val says, if there is one.

    Raises DataError (E403) as `part_column` does, where no row is for training, and where the column and the names of files
    say different things of a row; adds to the notes.
    """
    column, parts = part_column(sheet.columns, {label}, sheet.name)
    if parts is None:
        return sheet
    if sheet.test is not None and (unlike := (parts != "val") & ((parts == "test") != sheet.test)).any():
        row = int(np.argmax(unlike))
        said = f"column '{column}' says {parts[row]} {sheet.where(row)}, and the file's name says another part"
        raise DataError("E403", f"{sheet.name}: {said}; leave the column out, or put all rows into one file.")
    if not (parts == "train").any():
        raise DataError("E403", f"{sheet.name}: column '{column}' says of no row that it is for training.")
    notes += left_out(int((parts == "val").sum()))
    columns = Only(sheet.columns, [c for c in sheet.columns if c != column])
    return replace(sheet, test=parts == "test", unused=parts == "val", columns=columns)


def labels_in(
    sheet: Sheet, label: str, classes: Sequence[str] | None, target: Target | None, notes: list[Note]
) -> tuple[tuple[str, ...], np.ndarray]:
    """(the columns of labels, their values). Raises DataError as `labels_of` does; adds to the notes."""
    if target and in_columns(sheet.columns, target.name):
        return several_columns(sheet, target.name)
    column, y = target_column(sheet, target) if target else labels_of(sheet, label, classes, notes)
    return (column,), y


def by_part(raw: Raw, sheet: Sheet) -> Raw:
    """A sheet's samples by the parts that it says they belong to, without those that are in none."""
    unused, test = sheet.unused, sheet.test
    if unused is not None and unused.any():
        columns = {c: v[~unused] for c, v in raw.columns.items()}
        raw = replace(raw, x=chosen(raw.x, ~unused), y=raw.y[~unused], columns=columns)
        test = None if test is None else test[~unused]
    if test is None or not test.any():
        return raw
    columns, test_columns = ({c: v[part] for c, v in raw.columns.items()} for part in (~test, test))
    parts = {"x": chosen(raw.x, ~test), "y": raw.y[~test], "x_test": chosen(raw.x, test), "y_test": raw.y[test]}
    return replace(raw, **parts, columns=columns, test_columns=test_columns)


def sites_in(sheet: Sheet, site: str, values: np.ndarray) -> np.ndarray:
    """The column of sites, [N]. Raises DataError (E403) for missing ones."""
    missing = cells.missing(values)
    if missing.any():
        raise DataError(
            "E403",
            f"{sheet.name}: column '{site}' has no site {sheet.where(int(np.argmax(missing)))} ({int(missing.sum()):,} are "
            "missing); fill it, or leave these rows out.",
        )
    return values
