"""The named sets that need an archive: the recipe of each, and the place of its archive.

A recipe converts the original files (`unskew data get`); the recipes are in `recipes/`, one
file for each original format. Archives are in the folder that the environment variable UNSKEW_DATA names.
Letters: N samples.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.downloads.original_files import Recipe
from unskew.data.files.archives import Archive, read_archive
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError, excerpt, suggestion
from unskew.system import python_files


@cache
def recipes() -> dict[str, Recipe]:
    """The recipe of every set, sorted by name."""
    rooms = [
        importlib.import_module(f"unskew.data.downloads.recipes.{path.stem}")
        for path in python_files.module_files(Path(__file__).parent / "recipes")
    ]
    return dict(sorted((name, recipe) for room in rooms for name, recipe in room.SETS.items()))


def recipe_of(name: str) -> Recipe:
    """The recipe of a set. Raises UsageError (E125) for an unknown name."""
    by_name = recipes()
    if name not in by_name:
        near, known = suggestion(name, by_name), ", ".join(by_name)
        raise UsageError("E125", f"unskew data get knows no {excerpt(name)}.{near} Known: {known}.")
    return by_name[name]


class NamedArchive(Archive):
    """The archive of a named set. source: its origin. `more` in both methods: further fields of `Dataset`."""

    def __init__(self, archive: Archive, source: str):
        super().__init__(archive.path, archive)
        self.source = source

    def dataset(self, x: np.ndarray, x_test: np.ndarray, **more: Any) -> Dataset:
        """A set with a test part; labels are `y_train` and `y_test`."""
        y, y_test = self.labels("y_train"), self.labels("y_test")
        return Dataset(
            self.path.stem, x, y, x_test, y_test, self.words("classes"), source=self.source, **more
        )

    def images(self, part: str, size: int) -> np.ndarray:
        """The images of a part, uint8, from `x_PART` or the strips `PART_webp`."""
        return self[f"x_{part}"] if f"x_{part}" in self else self.pictures(f"{part}_webp", size)

    def split(self, x: np.ndarray, test: np.ndarray, columns: tuple[str, ...], **more: Any) -> Dataset:
        """A set in one piece. test: the test rows, bool [N]. Labels are `y`."""
        y = self.labels("y")
        train_columns, test_columns = ({name: self[name][rows] for name in columns} for rows in (~test, test))
        parts = (x[~test], y[~test], x[test], y[test])
        classes = self.words("classes")
        return Dataset(
            self.path.stem, *parts, classes, train_columns, test_columns, source=self.source, **more
        )


def archive_path(name: str) -> Path | None:
    """The archive of a named set on this machine, or None."""
    folder = os.environ.get("UNSKEW_DATA")
    path = Path(folder) / f"{name}.npz" if folder else None
    return path if path and path.exists() else None


def open_archive(name: str, source: str) -> NamedArchive:
    """The archive of a named set. Raises DataError: E402, with its origin, if it is missing, E401 if it is
    damaged."""
    if path := archive_path(name):
        return NamedArchive(read_archive(path), source)

    folder = os.environ.get("UNSKEW_DATA")
    reason = f"'{name}' is looked for in the folder UNSKEW_DATA, which is not set"
    if folder:
        reason = f"there is no {Path(folder) / name}.npz"
    remedy = f"pack it as {name}.npz (its arrays: unskew explain docs/data-sets.md), and name its folder"
    if name in recipes():
        origin = "" if recipes()[name].addresses else " --from ARCHIVE"
        remedy = f"make the set of it, unskew data get {name}{origin} --out FOLDER, and name that folder"
    text = f"{reason}. Get it from {source}, {remedy}: export UNSKEW_DATA=FOLDER."
    raise DataError("E402", f"{text} The set 'digits' needs no file.")
