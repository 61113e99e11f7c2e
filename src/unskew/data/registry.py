"""Data sets by name, and the texts that name data: a named set, a file or a folder."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

from unskew.data.files.archives import archive_path
from unskew.data.files.folder_tree import content_of
from unskew.data.files.sheets import CSV_ENDINGS, table_ending, table_files
from unskew.data.kinds.column_roles import column_named
from unskew.data.readers.from_folder import folder
from unskew.data.readers.from_npz import npz
from unskew.data.readers.from_parquet import parquet
from unskew.data.readers.from_tables import SITE_COLUMN, are_sites, csv_set
from unskew.data.readers.from_volumes import volumes
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError, excerpt, suggestion
from unskew.formats import arguments, calls
from unskew.system import python_files

SETS_FOLDER = Path(__file__).parent / "sets"
SET_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
BUILT_IN = ("diabetes", "digits", "two_digits")
"""The sets that need no archive."""


@cache
def files() -> dict[str, Path]:
    """The file of every named set, sorted by name."""
    return {path.stem: path for path in python_files.module_files(SETS_FOLDER)}


def names() -> tuple[str, ...]:
    """All named sets, in alphabetical order."""
    return tuple(files())


def describe() -> dict[str, str]:
    """A one-line description of each set with its arguments, and a note on sets that are not on this
    machine."""
    return {name: _description(name, path) for name, path in files().items()}


def reader_of(name: str) -> Callable[..., Dataset]:
    """The function that reads a named set. Raises UsageError (E125) if no set has that name."""
    if name not in files():
        from unskew.data.downloads import RECIPES

        if name in RECIPES:
            text = f"there is no data set {excerpt(name)} here, but its original files can be made into one"
            raise UsageError("E125", f"{text}: unskew data get {name} (unskew explain docs/data.md).")
        near = suggestion(name, [*files(), *RECIPES])
        hint = f"Known: {', '.join(files())}; or a path, looked for{python_files.folder_note(Path())}."
        raise UsageError("E125", f"unknown data {excerpt(name)}.{near} {hint}")
    return getattr(importlib.import_module(f"unskew.data.sets.{name}"), name)


def read(text: str | os.PathLike[str], **options: Any) -> Dataset:
    """The set that a text names: `digits`, `office_caltech10(size=128)`, `file.npz`, `folder/`,
    `scans/(size=128)`.

    options: further arguments, which take precedence over those in the text. `site` names the column that
    divides the set, for every reader.
    Raises UsageError (E125) for an unknown or unfitting name or argument, DataError for data that cannot be
    read.
    """
    return stored(text, **options).in_memory()


def stored(text: str | os.PathLike[str], **options: Any) -> Dataset:
    """As `read`, but images of a named set stay whole numbers, of which those are scaled that are indexed."""
    reader, place, settings = _reader_with_arguments(os.fspath(text), options)
    return reader(*place, **settings)


def check_text(text: str) -> None:
    """Raises UsageError (E125) unless the text is a path that exists, or a set with arguments that it
    accepts.

    Raises DataError (E402) for a missing archive. Whether a named set is on this machine is not checked.
    """
    _reader_with_arguments(text, {})


def _reader_with_arguments(
    text: str, options: Mapping[str, object]
) -> tuple[Callable[..., Dataset], tuple[str, ...], dict[str, Any]]:
    """(the reader of a text's data, the path that it reads or (), its arguments)."""
    place, settings = _split_text(text)
    if place:
        reader = READERS[_kind_of_path(Path(place))]
        owner, paths = f"{'folder' if os.path.isdir(place) else 'file'} {excerpt(place)}", (place,)
    else:
        _check_no_file(text)
        call = calls.parse(text, "data set", "E125")
        reader, settings = reader_of(call.name), call.arguments
        owner, paths = f"data set {excerpt(call.name)}", ()
    values = {**settings, **options}
    by_folder = reader is folder and values.get("site") == SITE_COLUMN  # SITE/CLASS/ has that column
    takes_site = "site" in signature(reader).parameters and not by_folder
    site = "" if takes_site else str(values.pop("site", ""))
    values = arguments.check(reader, values, owner, "E125")
    return partial(_divided, reader, site) if site else reader, paths, values


def _divided(reader: Callable[..., Dataset], site: str, *place: str, **settings: Any) -> Dataset:
    """The set. Raises DataError (E403) if it has no column `site`."""
    dataset = reader(*place, **settings)
    column_named(dataset.columns, site, dataset.name)
    return dataset


def place_of(text: str) -> tuple[str, dict[str, object]]:
    """(the path or name in a text, the arguments behind it in brackets).

    Raises UsageError (E125) for a text that cannot be read.
    """
    place, settings = _split_text(text)
    if place:
        return place, settings
    call = calls.parse(text, "data set", "E125")
    return call.name, call.arguments


def with_arguments(text: str, arguments: Mapping[str, object]) -> str:
    """A text that names data with further arguments. Raises UsageError (E125) as `place_of` does."""
    place, settings = place_of(text)
    return calls.call_text(place, settings | dict(arguments))


def divided_by(text: str) -> str:
    """The column that divides the data: `bank` for `credit.csv(site=bank)`, "" for none."""
    place, settings = _split_text(text)
    site = str(settings.get("site") or "")
    kind = _kind_of_path(Path(place)) if place and not os.path.isfile(place) else ""
    if kind == "tables" and are_sites(Path(place)):
        return site or SITE_COLUMN
    return "site" if site and kind in ("folders", "volumes") else site


def is_place(text: str) -> bool:
    """Whether a text names a file, folder or pattern that exists. Raises UsageError (E125) for arguments that
    cannot be read."""
    return bool(_split_text(text)[0])


def _check_no_file(text: str) -> None:
    """Raises DataError (E402) for a text that can only be the path of a file, if the file is missing."""
    name = text.partition("(")[0]
    if "://" in name:
        text = f"{excerpt(name)[1:-1]} is an address, and data is read from files"
        raise DataError("E402", f"{text}; fetch it, and give its path.")
    path, _, inside = name.partition(",")
    if "=" in inside and os.path.exists(path):
        text = f"there is no {excerpt(name)[1:-1]}; columns stand in brackets"
        raise DataError("E402", f'{text}: "{path}({inside})".')
    if table_ending(Path(name)) in ENDINGS or "/" in name:
        raise DataError("E402", f"there is no {excerpt(name)[1:-1]}{python_files.folder_note(Path(name))}.")


def _split_text(text: str) -> tuple[str, dict[str, object]]:
    """(the path that a text names, the arguments behind it in brackets); ("", {}) if it names no path.

    A name that is not a set of this package may be that of an archive in the folder of named sets. `~` is the
    home folder.
    """
    text = os.path.expanduser(text)
    if _is_there(text):
        return text, {}
    if SET_NAME.fullmatch(text) and text not in files() and (path := archive_path(text)):
        return str(path), {}
    if text.endswith(")"):
        for end in (i for i in reversed(range(len(text))) if text[i] == "("):
            if _is_there(path := text[:end].strip()):  # the path may contain brackets
                return path, calls.parse(f"path{text[end:]}", "data set", "E125").arguments
    return "", {}


def _is_there(text: str) -> bool:
    """Whether a text is the path of an existing file or folder, or a pattern that matches files."""
    path = Path(text)
    # unlike Path.exists, os.path.exists answers False for a name that is too long
    return os.path.exists(text) or ("*" in path.name and any(path.parent.glob(path.name)))


READERS: dict[str, Callable[..., Dataset]] = {
    "tables": csv_set,
    "folders": folder,
    "Parquet": parquet,
    "volumes": volumes,
    "arrays": npz,
}
"""The readers of a user's data by the kind of data."""
ENDINGS = {".npz": "arrays", ".npy": "arrays", **dict.fromkeys(CSV_ENDINGS, "tables"), ".parquet": "Parquet"}
"""The kind of data of each file ending."""


def _kind_of_path(path: Path) -> str:
    """The kind of the data at a path. Raises UsageError (E125) for a file of unknown kind."""
    if path.is_dir():
        return content_of(path)
    if not path.exists() and table_files(path):
        return "tables"
    if kind := ENDINGS.get(table_ending(path), "" if path.suffix else "arrays"):
        return kind
    text = f"{excerpt(str(path))} is not read; data are a folder, or a file of {', '.join(ENDINGS)}"
    raise UsageError("E125", f"{text}: save it as one.")


def at_hand(text: str) -> bool:
    """Whether the data that a text names are on this machine. Raises UsageError (E125) for a text that
    cannot be read."""
    if _split_text(text)[0]:
        return True
    return _is_here(calls.parse(text, "data set", "E125").name)


def _is_here(name: str) -> bool:
    return name in BUILT_IN or archive_path(name) is not None


def _description(name: str, path: Path) -> str:
    line = python_files.description(path)
    return line if _is_here(name) else f"{line}  (not found: set UNSKEW_DATA)"
