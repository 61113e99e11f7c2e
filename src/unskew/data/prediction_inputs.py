"""Samples without labels, read as the training samples were: the inputs of a model that predicts.

x.npy, or an .npz with x or one array      samples [N, ...] of the kind that the model was trained on
a table                                    columns found by name, words encoded as in training
images, or a folder of them                size and fit as in training; with the columns of a CSV that lists
                                           them if these are further inputs
a Parquet file, or a folder of them        a table, lists or files: columns found by name
sounds, or a folder of them                spectrograms with the rate and length of the training files
a medical volume, or a folder of them      its slices, cut and resized as the training volumes were

Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from unskew.data.files.archives import Archive
from unskew.data.files.cells import NumberFormat
from unskew.data.files.folder_tree import (
    IMAGE_ENDINGS,
    PARQUET_ENDING,
    SOUND_ENDINGS,
    VOLUME_ENDINGS,
    content_of,
    file_ending,
    has_mask_folders,
    read_tree,
)
from unskew.data.files.parquet import LazyColumns, RowNames, read_table
from unskew.data.files.sheets import CSV_ENDINGS, Sheet, read_csv, table_ending
from unskew.data.kinds.features import encode_as, encode_inputs_as, fill_as
from unskew.data.kinds.images import read_each
from unskew.data.kinds.media_files import decode_paths
from unskew.data.readers.from_folder import find_listing
from unskew.data.readers.from_parquet import TABLE_KINDS, ListColumn, read_file_column
from unskew.data.readers.from_volumes import is_in_mask_folder, is_mask_name, prediction_slices
from unskew.data.samples.conversion import map_npy
from unskew.data.samples.packing import archive_inputs, archive_inputs_for, pack_to_layout
from unskew.data.samples.reading_notes import abbreviate
from unskew.errors import DataError, excerpt
from unskew.formats.input_layout import Layout

NamedSamples: TypeAlias = tuple[list[str], Any]
"""(name of each sample, the samples [N, ...], or a dictionary or tuple of them for several inputs)."""


ENDINGS = {"images": IMAGE_ENDINGS, "sounds": SOUND_ENDINGS}
"""The endings of files that are a sample each."""


def read_inputs(path: Path, form: Mapping[str, Any], layout: Layout | None = None) -> NamedSamples:
    """The samples in a file or folder.

    form: how the training samples were made (`Intake.form`). layout: of samples with several inputs; an .npz
    holds them by name, as `x.NAME` or `NAME`, or in their order as `numpy.savez(file, a, b)` writes them.
    An array's samples are named by their numbers from 0, a table's rows by their lines, files by their paths.
    Raises DataError: E402 for a missing file, E403 for another kind of input than the model was trained on,
    E401 and E405 for a file that cannot be read.
    """
    if not path.exists():
        raise DataError("E402", f"there is no {path}.")
    if layout:
        return _read_several(path, layout, form)
    kind, source_kind = str(form.get("kind", "arrays")), _kind_of(path)
    if source_kind not in ("arrays", kind) and (source_kind != "parquet" or kind == "volumes"):
        fault = f"{path} holds {source_kind or 'no samples that are read'}"
        raise DataError("E403", f"{fault}; the model was trained on {kind}, and also reads .npy and .npz.")
    if source_kind in ENDINGS:
        files, names = _files_below(path, ENDINGS[source_kind])
        return names, _decode(files, form)
    readers = {"arrays": _read_arrays, "table": _read_table, "volumes": _read_volumes}
    return readers.get(source_kind, _read_parquet)(path, form)


def _kind_of(path: Path) -> str:
    """One of the words "arrays", "table", "parquet", "images", "sounds" and "volumes"; "" for other files."""
    endings = {file_ending(path)}
    if path.is_dir():
        if content_of(path) == "Parquet":
            return "parquet"
        endings = {f.kind for f in read_tree(path, IMAGE_ENDINGS | SOUND_ENDINGS | VOLUME_ENDINGS).files}
    elif table_ending(path) in CSV_ENDINGS:
        return "table"
    kinds = {
        "parquet": {PARQUET_ENDING},
        "arrays": {".npy", ".npz"},
        "sounds": SOUND_ENDINGS,
        "images": IMAGE_ENDINGS,
        "volumes": VOLUME_ENDINGS,
    }
    return next((kind for kind, known in kinds.items() if endings & known), "")


def _read_arrays(path: Path, _form: Mapping[str, Any]) -> NamedSamples:
    if path.suffix.lower() == ".npy":
        x = map_npy(path)
    else:
        archive = Archive(path)
        archive_inputs(archive, "x", path)
        names = [name for name in ("x", "x_test") if name in archive] or list(archive)
        if len(names) != 1 and "x" not in names:
            holds = abbreviate(names, 8) or "no arrays"
            raise DataError("E403", f"{path} holds {holds}; call the one to predict from 'x'.")
        x = archive[names[0]]
    if not x.ndim:
        raise DataError("E403", f"{path} holds a single value; samples are [N, ...].")
    return [str(i) for i in range(len(x))], x


def _read_several(path: Path, layout: Layout, form: Mapping[str, Any]) -> NamedSamples:
    """Samples with several inputs, by name or place: an archive, or files with the columns of the CSV that
    lists them."""
    if path.is_dir() and "beside" in form:
        columns = {column: list(kinds) for column, kinds in form["beside"]}
        tree = read_tree(path, ENDINGS[form["kind"]], validation=True)
        listing = find_listing(tree, tree.files, {*columns})
        if listing is None:
            needs = f"the model takes {abbreviate(list(columns), 8)} beside files"
            raise DataError("E403", f"{path} holds no CSV that lists its files, and {needs}; write one.")
        rows = listing.by_path(listing.file_of)
        files = [listing.file_of[row].path for row in rows]
        x = {form["kind"].removesuffix("s"): _decode(files, form)}
        names = [str(file.relative_to(path)) for file in files]
        return names, {**x, **encode_inputs_as(listing.rows(rows), columns)}
    if path.suffix.lower() != ".npz":
        expected = "folder with a CSV that lists files" if "beside" in form else ".npz"
        raise DataError("E403", f"{path} is no {expected}; samples with {layout} are read from one.")
    archive = Archive(path)
    x = archive_inputs_for(archive, path) if layout.named else tuple(archive.values())
    return [str(i) for i in range(len(pack_to_layout(layout, x, str(path))))], x


def _read_parquet(path: Path, form: Mapping[str, Any]) -> NamedSamples:
    table = read_table(path)
    names, kind = list(RowNames(table)), str(form.get("kind", "arrays"))
    if kind == "table":
        plain = [n for n, column in table.columns.items() if column.kind in TABLE_KINDS]
        sheet = Sheet(table.name, LazyColumns(table, plain), RowNames(table))
        return names, encode_as(fill_as(sheet, form), dict(form["columns"]))
    packed, trained_column = kind in ENDINGS, str(form.get("column", ""))
    usable = [n for n, column in table.columns.items() if column.kind == ("packed" if packed else "list")]
    if trained_column not in usable and len(usable) != 1:
        fault = f"has as columns of {'files' if packed else 'lists'} {abbreviate(usable, 8) or 'none'}"
        remedy = f"the samples of training were in '{trained_column or 'x'}': give that column its name"
        raise DataError("E403", f"{table.name} {fault}; {remedy}.")
    column = trained_column if trained_column in usable else usable[0]
    if not packed:
        return names, ListColumn(table, column, form.get("layout", "auto")).raw()
    return names, read_file_column(table, column, form, [], in_memory=True)


def _read_table(path: Path, form: Mapping[str, Any]) -> NamedSamples:
    sheet = read_csv(path, NumberFormat(*form["numbers"]) if "numbers" in form else None)
    rows = encode_as(fill_as(sheet, form), dict(form["columns"]))
    return [place.removeprefix("line ") for place in sheet.places], rows


def _decode(files: Sequence[Path], form: Mapping[str, Any]) -> np.ndarray:
    """Images or sounds, as those of training were decoded."""
    return decode_paths("", files, form, [], in_memory=True)[0]


def _read_volumes(path: Path, form: Mapping[str, Any]) -> NamedSamples:
    files, names = _files_below(path, VOLUME_ENDINGS)
    axis, size = form["axis"], int(form["size"])
    read = read_each(files, lambda i: prediction_slices(files[i], names[i], axis, size))
    return [name for names, _ in read for name in names], np.concatenate([x for _, x in read])


def _files_below(path: Path, kinds: frozenset[str]) -> tuple[list[Path], list[str]]:
    """(the files of these kinds without masks next to images as in training, each one's path below the
    folder)."""
    if path.is_file():
        return [path], [path.name]
    tree = read_tree(path, kinds, validation=True)
    has_masks = has_mask_folders(tree)
    masks = [
        file
        for file in tree.files
        if (has_masks and is_in_mask_folder(file)) or (file.kind in VOLUME_ENDINGS and is_mask_name(file))
    ]
    files = [f.path for f in tree.files if f not in masks] or [f.path for f in masks]
    if not files:
        raise DataError("E403", f"{excerpt(str(path))} holds no file to predict from.")
    return files, [str(file.relative_to(path)) for file in files]
