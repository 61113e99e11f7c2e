"""A table beside sounds or images that lists them by file name, with their labels and sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from unskew.data.intake.columns import site_of
from unskew.data.intake.labels import in_order
from unskew.data.intake.notes import Note, counted
from unskew.data.intake.roles import Sorted
from unskew.data.intake.sheets import read_csv
from unskew.data.intake.split import part_column
from unskew.data.intake.targets import column_named, label_of
from unskew.data.intake.tree import File, Tree
from unskew.errors import DataError

LEAST_LISTED = 0.5
"""Share of a column's values that are names of files, for the column to count as theirs."""


def listed(tree: Tree, files: Sequence[File], label: str, site: str) -> Sorted | None:
    """The files that a CSV below the folder lists, with its labels and sites; None where no CSV does.

    label, site: the columns; "" looks for usual names. Raises DataError (E409) where the labels are not to be seen.
    """
    by_name = {f.path.name: f for f in files} | {f.path.stem: f for f in files}
    for path in sorted(tree.root.rglob("*.csv")):
        columns = {c: v.tolist() for c, v in read_csv(path).columns.items()}
        key = next((c for c, values in columns.items() if _are_names(values, by_name)), None)
        if key is not None:
            return _sorted(path, columns, key, by_name, (label, site), len(files))
    return None


def _are_names(values: Sequence[str], by_name: Mapping[str, File]) -> bool:
    return bool(values) and sum(Path(v).name in by_name for v in values) >= LEAST_LISTED * len(values)


def _sorted(
    path: Path,
    columns: Mapping[str, Sequence[str]],
    key: str,
    by_name: Mapping[str, File],
    named_columns: tuple[str, str],
    files: int,
) -> Sorted:
    others = {c: v for c, v in columns.items() if c != key}
    label = column_named(others, named_columns[0], str(path)) if named_columns[0] else label_of(others)
    if not label:
        raise DataError(
            "E409",
            f"{path} lists files but no column is called label, class, category or target; name it: label=COLUMN.",
        )
    site = column_named(others, named_columns[1], str(path)) if named_columns[1] else site_of(others)
    _, parts = part_column({c: np.asarray(v) for c, v in others.items()}, {label, site}, str(path))
    rows = [(i, by_name[Path(v).name]) for i, v in enumerate(columns[key]) if Path(v).name in by_name]
    kept, validation = [], 0
    for i, file in rows:
        named = file.part if parts is None else str(parts[i])
        validation += named == "val"
        if named != "val":
            kept.append((File(file.path, named, file.folders), others[label][i], others[site][i] if site else ""))
    kept.sort(key=lambda row: row[0].path)
    classes = in_order({word for _, word, _ in kept})
    number = {word: i for i, word in enumerate(classes)}
    notes: list[Note] = [("labels", f"from the column '{label}' of {path.name}, files by '{key}'")]
    for n, why in (
        (len(columns[key]) - len(rows), f"in {path.name} without a file"),
        (files - len({file.path for _, file in rows}), f"that {path.name} does not list"),
        (validation, f"for validation in {path.name}"),
    ):
        if n:
            notes.append(("left out", f"{counted(n, 'row' if 'without' in why else 'file')} {why}"))
    sites = tuple(place for _, _, place in kept) if site else None
    return Sorted(
        tuple(f for f, _, _ in kept), classes, tuple(number[word] for _, word, _ in kept), sites, tuple(notes)
    )
