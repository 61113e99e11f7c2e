"""A data set from a table: a CSV file, a folder with train.csv and test.csv, files of sites, or a DataFrame.

A row is a sample. One column holds the labels, one may name the site of a row, and the others are features.
The DataFrames of several parts or clients are read together, so that a column, and a word in it, become one
number in all.
Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.files.cells import DecimalSetting, NumberFormat, ThousandsSetting
from unskew.data.files.folder_tree import PART_NAMES
from unskew.data.files.sheets import (
    CSV_ENDINGS,
    ColumnSubset,
    Sheet,
    join_sheets,
    read_sheet,
    table_ending,
    table_files,
)
from unskew.data.kinds.column_roles import (
    INDEPENDENT,
    column_named,
    column_question,
    file_question,
    group_setting,
    is_id_name,
    is_question,
    label_column,
    multilabel_columns,
    named_groups,
    names_columns,
    number_ids,
    part_column,
    repeated_numbers,
    site_column_in,
    site_column_of,
    target_column,
    target_numbers,
)
from unskew.data.kinds.features import Kinds, MissingSetting, encode_as, fill, fill_as, find_kinds
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.conversion import array_of
from unskew.data.samples.dataset import SAMPLE_WEIGHT, Constants, Dataset, Target
from unskew.data.samples.reading_notes import Intake, Note, abbreviate, quantity
from unskew.errors import DataError, excerpt

SITE_COLUMN = "site"
"""The column of the names of files of sites."""


def csv_set(
    path: str | Path,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    *,
    target: str = "",
    center: Constants | None = None,
    scale: Constants | None = None,
    decimal: DecimalSetting = "",
    thousands: ThousandsSetting = "",
    group: str = "",
    x: str | Sequence[str] = "",
    drop: str | Sequence[str] = "",
    missing: MissingSetting = "refuse",
    weight: str = "",
) -> Dataset:
    """The set in a CSV file, in a folder with train.csv and perhaps test.csv, or in all CSV files of a folder
    or pattern, of which each holds the rows of one site, by its name.

    Columns that some sites lack are left out, with a note. site: with files of sites, a column in their
    place; `site` stands for the files unless they have such a column. x, drop: the columns to train on, by
    default all, and columns to leave out; a list, or names joined by commas. missing: what becomes of cells
    without a value; see `missing_values`. See `read_table` for the other arguments, such as weight, and the
    errors.
    """
    place, numbers, notes = Path(path), NumberFormat.from_settings(decimal, thousands), list[Note]()
    choice = ColumnChoice(names_in(x), names_in(drop), missing, weight)
    aim = target_of(target, label, center, scale)
    if are_sites(place):
        sheet, site = _read_sites(place, numbers, site, notes), site or SITE_COLUMN
    elif place.is_dir():
        sheet = _read_parts(place, numbers, notes)
    else:
        return sheet_set(read_sheet(place, numbers), (label, site, group), classes, aim, choice=choice)
    dataset = sheet_set(sheet, (label, site, group), classes, aim, choice=choice).with_notes(*notes)
    return replace(dataset, name=(place if place.is_dir() else place.parent).resolve().name)


def are_sites(path: Path) -> bool:
    """Whether a folder or pattern, which `csv_set` reads, holds a table for each site, and not train.csv."""
    if path.is_dir():
        return "train" not in map(_part_of, path.iterdir())
    return not path.exists() and "*" in path.name


def _read_sites(path: Path, numbers: NumberFormat | None, site: str, notes: list[Note]) -> Sheet:
    """The tables of a folder, or those that a pattern matches, as one: each is a site, by its name."""
    files = table_files(path)
    names = [file.name.partition(".")[0] for file in files]
    for name in names:
        if name.lower() in PART_NAMES:
            fault = f"{path} holds a table called {name} among tables of sites"
            raise DataError("E403", f"{fault}; name it train, or as its site.")
        if names.count(name) > 1:
            raise DataError("E403", f"{path} holds two tables of the site {name}; leave one of them in it.")
    return _join_sites(dict(zip(names, (read_sheet(file, numbers) for file in files))), site, notes)


def _join_sites(sheets: Mapping[str, Sheet], site: str, notes: list[Note]) -> Sheet:
    """The rows of all sites with the columns that all have, and the column of sites; adds to the notes."""
    first = next(iter(sheets.values()))
    common = [c for c in first.columns if all(c in sheet.columns for sheet in sheets.values())]
    others = dict.fromkeys(c for sheet in sheets.values() for c in sheet.columns if c not in common)
    if not common:
        names = abbreviate(list(sheets), 5)
        raise DataError("E403", f"the tables {names} have no column in common; give them one header.")
    for column in others:
        owners = [name for name, sheet in sheets.items() if column in sheet.columns]
        notes.append(("left out", f"column '{column}', only in the tables of {abbreviate(owners, 5)}"))
    names = np.repeat(list(sheets), [len(sheet.places) for sheet in sheets.values()])
    sheet = join_sheets("the tables of sites", list(sheets.values()), common)
    sheet = replace(sheet, paths=names.tolist())
    if cells.word(site) in common:
        return sheet
    if site not in ("", SITE_COLUMN):
        text = f"{abbreviate(list(sheets), 5)} have no column '{site}' in common"
        raise DataError("E403", f"the tables {text}; leave site out, and each table is a site.")
    columns = dict(sheet.columns)
    stated = site_column_in(columns)
    is_copy = bool(stated) and np.array_equal(columns[stated], names)
    if stated and (is_copy or not is_id_name(stated)):  # patients are groups within the sites
        del columns[stated]
        if not is_copy:
            notes.append(("left out", f"column '{stated}', because the names of files are the sites"))
    return replace(sheet, columns={SITE_COLUMN: names, **columns})  # the last may be the labels


def _read_parts(folder: Path, numbers: NumberFormat | None, notes: list[Note]) -> Sheet:
    """The tables train.csv and perhaps test.csv of a folder as one, with columns matched by name."""
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if (part := _part_of(file)) and files.setdefault(part, file) != file:
            names = f"{files[part].name} and {file.name}"
            raise DataError("E403", f"{folder} has both {names}; leave one of them in it.")
    train = read_sheet(files["train"], numbers)
    if "val" in files:
        notes.append(("left out", f"{files['val'].name}: choose settings with validation=0.1"))
    if "test" not in files:
        return train
    test = read_sheet(files["test"], numbers)
    if more := [c for c in test.columns if c not in train.columns]:
        notes.append(("left out", f"column '{more[0]}', which only {test.name} has"))
    if lacking := [c for c in train.columns if c not in test.columns]:
        fault = f"{test.name} has no column '{lacking[0]}', which {train.name} has"
        raise DataError("E403", f"{fault}; it has: {abbreviate(list(test.columns), 12)}.")
    joined = join_sheets(train.name, [train, test], list(train.columns))
    return replace(joined, test=np.arange(len(joined.places)) >= len(train.places))


def _part_of(file: Path) -> str:
    """The part of the data that a table's name states, "" for other files."""
    is_table = table_ending(file) in CSV_ENDINGS
    return PART_NAMES.get(file.name.lower().partition(".")[0], "") if is_table else ""


def read_table(
    columns: Mapping[str, Any],
    name: str,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    *,
    target: str = "",
    center: Constants | None = None,
    scale: Constants | None = None,
    group: str = "",
    weight: str = "",
) -> Dataset:
    """A set from columns of equal length, [N] each.

    label: the column of labels, by default one with a usual name, else the last.
    target: in place of a label: columns of zeros and ones, "fever,cough", for several labels a sample; or the
    column of a number to predict, or several columns, each learnt as (y - center) / scale, by default with
    the training rows' mean and standard deviation.
    site: the column of sites, by which the set is then divided; by default one with a usual name, if there is
    one. A column `split` of train and test divides the rows.
    group: the column of groups, such as patients, that no split divides; it is no feature. "none" if rows are
    independent; otherwise a column that looks like one of groups is pointed out.
    weight: the column of weights of samples in the loss of training; it is no feature.
    Raises DataError: E403 for columns that do not exist, E404 for labels, E405 for missing values and for
    other cells than numbers in a column of numbers.
    """
    facts = {cells.word(c): v if isinstance(v, np.ndarray) else np.asarray(v) for c, v in columns.items()}
    aim = target_of(target, label, center, scale)
    choice = ColumnChoice(weight=weight)
    return sheet_set(Sheet(name, facts), (label, site, group), classes, aim, choice=choice)


def target_of(target: str, label: str, center: Constants | None, scale: Constants | None) -> Target | None:
    """The target that is named, if there is one. Raises DataError (E403) if labels are named too, or
    constants without a target."""
    if label and target:
        fault = f"label={label} names classes, and target={target} a number"
        raise DataError("E403", f"{fault}; give one of them.")
    if not target and (center is not None or scale is not None):
        raise DataError("E403", "center and scale are a target's: name its column, target=COLUMN.")
    return Target.from_settings(target, center, scale) if target else None


@dataclass(frozen=True)
class ColumnChoice:
    """x: the columns of features; () for all. drop: columns that are left out, before any has a role.
    missing: what becomes of cells without a value. weight: the column of weights of samples, "" without."""

    x: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: MissingSetting = "refuse"
    weight: str = ""

    def kept(self, columns: Iterable[str], name: str) -> list[str]:
        """The columns that are not left out. name: name of the table. Raises DataError (E403) for one that
        does not exist."""
        every = list(columns)
        dropped = [column_named(every, column, name) for column in self.drop]
        return [column for column in every if column not in dropped]

    def split_weights(self, sheet: Sheet) -> tuple[Sheet, dict[str, np.ndarray]]:
        """(the sheet without the column of weights, the weights by the name of their column in a set, {}
        without). Raises DataError: E403 for a column that does not exist, E404 for words, E405 for missing
        values."""
        if not self.weight:
            return sheet, {}
        column = column_named(sheet.columns, self.weight, sheet.name)
        weights = target_numbers(sheet, column, "a number of at least 0")
        rest = ColumnSubset(sheet.columns, [c for c in sheet.columns if c != column])
        return replace(sheet, columns=rest), {SAMPLE_WEIGHT: weights}


def names_in(text: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns: a list, or joined by commas."""
    return tuple(
        name.strip() for name in (text.split(",") if isinstance(text, str) else text) if name.strip()
    )


Roles = tuple[str, str, str]
"""The columns of labels, of sites and of groups; "" to search for one, and `none` for no groups."""
Encode = Callable[[Sheet, Kinds, Mapping[str, np.ndarray]], np.ndarray]
"""A function that makes samples of the feature columns; see `encode_as`."""


def sheet_set(
    sheet: Sheet,
    roles: Roles = ("", "", ""),
    classes: Sequence[str] | None = None,
    target: Target | None = None,
    *,
    choice: ColumnChoice | None = None,
    encode: Encode = encode_as,
) -> Dataset:
    """The set in a sheet; see `read_table`. encode: makes samples of the columns that are neither labels nor
    sites nor groups."""
    raw = sheet_raw(sheet, roles, classes, target, choice, encode=encode)
    dataset = raw.dataset(Path(sheet.name.removesuffix(".gz")).stem)
    column = column_named(dict.fromkeys(sheet.columns), roles[1], sheet.name) if roles[1] else ""
    return replace(dataset, intake=replace(dataset.intake or Intake(), divided=column))


def sheet_raw(
    sheet: Sheet,
    roles: Roles,
    classes: Sequence[str] | None = None,
    target: Target | None = None,
    choice: ColumnChoice | None = None,
    used: Kinds | None = None,
    encode: Encode = encode_as,
) -> RawSamples:
    """The samples of a sheet, with a test part if it has one. used: how columns become numbers, None to find
    it."""
    if not sheet.columns:
        raise DataError("E403", f"{sheet.name} has no columns.")
    notes, (label, site, group) = list[Note](), roles
    weights = dict[str, np.ndarray]()
    if choice:
        kept = ColumnSubset(sheet.columns, choice.kept(sheet.columns, sheet.name))
        sheet, weights = choice.split_weights(replace(sheet, columns=kept))
    sheet = apply_split(sheet, label, notes)
    labels, y = read_label_columns(sheet, label, classes, target, notes)
    remaining = [column for column in sheet.columns if column not in labels]
    asks = not group_setting(group, site)
    group, groups_N = read_groups(sheet, remaining, group_setting(group, site))
    site = site_column_of(sheet, remaining, site, group)
    places = {site: check_sites(sheet, site)} if site else {}
    if groups_N is not None:
        places[group] = groups_N
    feature_columns = [column for column in remaining if column not in places]
    filled = None
    columns: Mapping[str, np.ndarray] = ColumnSubset(sheet.columns, feature_columns)
    if choice:
        chosen = [column_named(feature_columns, name, sheet.name) for name in choice.x]
        columns = ColumnSubset(sheet.columns, chosen or feature_columns)
        if choice.missing != "refuse":
            filled = fill(sheet, columns, choice.missing, places.get(site), notes)
            columns = filled.columns
    used = find_kinds(sheet, columns, notes) if used is None else used
    if asks:
        notes += group_question(sheet, [c for c in remaining if is_id_name(c) or c != site], y)
    x = encode(sheet, used, columns)
    if site:
        notes.append(("sites", f"from the column '{site}'"))
    # a list, because the order of the columns counts
    form: dict[str, Any] = {"kind": "table", "columns": [[column, kinds] for column, kinds in used.items()]}
    if filled:
        form["missing"] = dict(filled.medians)
    if sheet.numbers:
        form["numbers"] = [sheet.numbers.decimal, sheet.numbers.thousands]
    raw = RawSamples(
        x, y, classes=None if classes is None else tuple(classes), columns=places | weights,
        notes=tuple(notes), target=target, group=group, form=form, gaps=filled.gaps if filled else {},
    )  # fmt: skip
    return raw.divided(sheet.test, sheet.unused)


def read_groups(sheet: Sheet, columns: Sequence[str], group: str) -> tuple[str, np.ndarray | None]:
    """(the column of groups among these, the index and the paths of rows, its values [N]), ("", None) without
    groups. group: what the user names, `none`, or "". Raises the errors of `named_groups`."""
    if group in sheet.index:
        return group, sheet.index[group]
    group, groups_N = named_groups(ColumnSubset(sheet.columns, columns), group, sheet.paths, sheet.name)
    return ("" if groups_N is None else group), groups_N


def group_question(sheet: Sheet, columns: Iterable[str], y: np.ndarray) -> list[Note]:
    """The question whether one of these columns, or of the index, is one of groups, or whether the names of
    the rows' files identify any. y: the labels of the rows."""
    used = slice(None) if sheet.unused is None else ~sheet.unused
    test = sheet.test[used] if sheet.test is not None and sheet.test[used].any() else None
    kept = dict[str, np.ndarray]()
    for column in (*columns, *sheet.index):  # one at a time, because memory may not hold all
        values = sheet.index[column] if column in sheet.index else sheet.columns[column]
        if is_question(column, values) or repeated_numbers(column, values) is not None:
            kept[column] = values
    numbered = number_ids(kept, sheet.columns)
    question = column_question({column: values[used] for column, values in kept.items()}, test, numbered)
    if question or not sheet.paths:
        return question
    site = sheet.columns[SITE_COLUMN][used] if SITE_COLUMN in sheet.columns else None
    return file_question(np.array(sheet.paths)[used].tolist(), y[used], test, site)


def apply_split(sheet: Sheet, label: str, notes: list[Note]) -> Sheet:
    """The sheet with its rows divided by a column of train, test and val, if there is one; adds to the notes.

    Raises DataError (E403) as `part_column` does, if no row is for training, and if the column contradicts
    the names of the files.
    """
    column, parts = part_column(sheet.columns, {label}, sheet.name)
    if parts is None:
        return sheet
    if sheet.test is not None and (unlike := (parts != "val") & ((parts == "test") != sheet.test)).any():
        row = int(np.argmax(unlike))
        fault = f"column '{column}' says {parts[row]} {sheet.where(row)}, and the file's name says another"
        raise DataError("E403", f"{sheet.name}: {fault} part; leave the column out.")
    if not (parts == "train").any():
        raise DataError("E403", f"{sheet.name}: column '{column}' says of no row that it is for training.")
    if validation := int((parts == "val").sum()):
        text = f"{quantity(validation, 'row')} for validation: choose settings with validation=0.1"
        notes.append(("left out", text))
    columns = ColumnSubset(sheet.columns, [c for c in sheet.columns if c != column])
    return replace(sheet, test=parts == "test", unused=parts == "val", columns=columns)


def read_label_columns(
    sheet: Sheet, label: str, classes: Sequence[str] | None, target: Target | None, notes: list[Note]
) -> tuple[tuple[str, ...], np.ndarray]:
    """(the columns of labels, their values). Raises DataError as `label_column` does; adds to the notes."""
    if target and names_columns(sheet.columns, target.name):
        return multilabel_columns(sheet, target.name)
    column, y = target_column(sheet, target) if target else label_column(sheet, label, classes, notes)
    return (column,), y


def check_sites(sheet: Sheet, site: str) -> np.ndarray:
    """The column of sites, [N]. Raises DataError (E403) for missing values."""
    if (missing := cells.missing(sheet.columns[site])).any():
        fault = f"column '{site}' has no site {sheet.where(int(np.argmax(missing)))}"
        remedy = f"({int(missing.sum()):,} are missing); fill it, or leave these rows out"
        raise DataError("E403", f"{sheet.name}: {fault} {remedy}.")
    return sheet.columns[site]


def frame_columns(frame: Any, name: str = "table") -> dict[str, np.ndarray]:
    """The columns of a table by name, [N] each. name: name of the table, for messages.

    Raises DataError (E403) for two columns of one name, and for cells that hold several values.
    """
    columns = dict[str, np.ndarray]()
    for column in list(getattr(frame, "column_names", None) or frame.columns):
        word, cells_N = cells.word(column), frame[column]
        values = np.asarray(cells_N.to_numpy() if hasattr(cells_N, "to_numpy") else cells_N)
        if word in columns:
            raise DataError("E403", f"{name} has two columns called {excerpt(word)}; give each another name.")
        is_object = values.dtype.kind == "O"
        if is_object and (several := [i for i, v in enumerate(values.tolist()) if np.ndim(v)]):
            fault = f"column '{word}' holds several values in row {several[0]}"
            raise DataError("E403", f"{name}: {fault}; give arrays (x, y), or a column for each.")
        columns[word] = values
    return columns


def frame_sheet(frame: Any, name: str = "table") -> Sheet:
    """A table with its columns, and the named levels of pandas' index. Raises the errors of
    `frame_columns`."""
    columns, index = frame_columns(frame, name), getattr(frame, "index", None)
    names = list(getattr(index, "names", None) or [getattr(index, "name", None)])
    levels = [index] if len(names) == 1 else [index.get_level_values(i) for i in range(len(names))]  # pyright: ignore[reportOptionalMemberAccess]
    named = {cells.word(n): np.asarray(level) for n, level in zip(names, levels) if isinstance(n, str)}
    return Sheet(name, columns, index={n: level for n, level in named.items() if n not in columns})


def add_labels(x: Any, y: Any, name: str, label: str) -> Sheet:
    """A table with a further column, called `label`, such as labels or groups. name: name of the table, for
    messages.

    Raises DataError (E403) for values of another length or order, by pandas' index, and if a column already
    has the name.
    """
    sheet, values = frame_sheet(x, name), array_of(y)
    columns = sheet.columns
    index, y_index = getattr(x, "index", None), getattr(y, "index", None)
    if hasattr(index, "equals") and hasattr(y_index, "equals") and not index.equals(y_index):  # pyright: ignore[reportOptionalMemberAccess]
        fault = f"x and '{label}' have different indexes, so which a row has cannot be told"
        remedy = "give y.loc[x.index], or y.to_numpy() if they are in one order"
        raise DataError("E403", f"{name}: {fault}; {remedy}.")
    if label in columns:
        raise DataError("E403", f"{name}: column '{label}' is in the table, too; name that column.")
    rows = len(next(iter(columns.values()), values))
    if values.shape != (rows,):
        fault = f"the table has {rows} rows, and '{label}' is {list(values.shape)}"
        raise DataError("E403", f"{name}: {fault}; give one value for each row.")
    return replace(sheet, columns={**columns, label: values})


def read_frames(
    sheets: Mapping[str, Sheet], label: str, target: str = "", group: str = ""
) -> dict[str, RawSamples]:
    """The samples of each table by name, with one meaning of columns and words in all of them.

    label, target, group: the column of labels, or of the numbers to predict, and the column of groups, as for
    `read_table`. Raises DataError (E403) for a column that one table lacks, and as `read_table` does.
    """
    joined, notes, aim = _join_tables(sheets), list[Note](), target_of(target, label, None, None)
    labels, used = ("",), None
    if len(sheets) > 1:
        split = apply_split(joined, label, [])
        labels, y = read_label_columns(split, label, None, aim, [])
        remaining = [column for column in split.columns if column not in labels]
        asks = not group
        group = read_groups(split, remaining, group)[0] or INDEPENDENT
        remaining = [column for column in remaining if column != group]
        site = site_column_in(dict.fromkeys(remaining))
        used = find_kinds(split, ColumnSubset(split.columns, [c for c in remaining if c != site]), notes)
        notes += group_question(split, remaining, y) if asks else []
    roles = (label if aim else label or labels[0], "", group)
    raws = {name: sheet_raw(sheet, roles, None, aim, used=used) for name, sheet in sheets.items()}
    return {name: replace(raw, notes=(*raw.notes, *notes)) for name, raw in raws.items()}


def encode_frame(frame: Any, form: Mapping[str, Any], name: str) -> np.ndarray:
    """float32 [N, columns] of a table from which a model predicts; columns are found by name, in any order.

    form: how the training samples were made (`Intake.form`). Raises DataError as `encode_as` does.
    """
    return encode_as(fill_as(Sheet(name, frame_columns(frame, name)), form), dict(form["columns"]))


def _join_tables(sheets: Mapping[str, Sheet]) -> Sheet:
    """The rows of all tables, with the columns of the first."""
    name, first = next(iter(sheets.items()))
    for column in first.columns:
        if lacks := next((other for other, sheet in sheets.items() if column not in sheet.columns), ""):
            fault = f"{excerpt(lacks)} has no column '{column}', which {excerpt(name)} has"
            names = abbreviate(list(sheets[lacks].columns), 12)
            raise DataError("E403", f"{fault}; it has: {names}.")
    title = "table" if len(sheets) < 2 else f"the tables of {abbreviate(list(sheets))}"
    index = [n for n in first.index if all(n in sheet.index for sheet in sheets.values())]
    levels = {n: np.concatenate([sheet.index[n] for sheet in sheets.values()]) for n in index}
    return replace(join_sheets(title, list(sheets.values()), list(first.columns)), index=levels)
