"""Samples without labels from files, read as the training samples were: for a model that predicts.

x.npy, or an .npz with x or one array      samples [N, ...] of the kind that was given for training
a table                                    its columns found by name, words turned into the numbers they were before
images, or a folder of them                of the size, and fitted, as the folder that was trained on; with the columns of
                                           a CSV that lists them where these are further inputs
a Parquet file, or a folder of them        of a table or of lists: columns found by name
sounds, or a folder of them                spectrograms of the training files' rate and length
a medical volume, or a folder of them      its slices, cut and resized as the training volumes were
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.archives import read_archive
from unskew.data.convert import mapped
from unskew.data.dotted import inputs_for, inputs_in
from unskew.data.from_volumes import unlabelled
from unskew.data.intake.features import numbers_as
from unskew.data.intake.images import each, picture
from unskew.data.intake.listing import listing_of
from unskew.data.intake.notes import some
from unskew.data.intake.paired import has_masks
from unskew.data.intake.sheets import read_csv
from unskew.data.intake.tables import CSV, ending
from unskew.data.intake.tree import IMAGES, SOUNDS, VOLUMES, File, Tree, kind_of, tree_of
from unskew.data.intake.worded import inputs_as
from unskew.data.layout import Layout
from unskew.data.packed import rows_of
from unskew.data.parquet.places import ENDING, holds_parquet
from unskew.data.parquet.unlabelled import READ, rows_in
from unskew.data.volumes.exports import found, holds_dicom
from unskew.data.volumes.layout import in_masks, is_mask
from unskew.data.wav import Format, spectrogram
from unskew.errors import DataError, excerpt

Read = tuple[list[str], Any]
"""(what each sample is called, the samples [N, ...], or a dictionary or tuple of them where each has several inputs)."""


def read(path: Path, form: Mapping[str, Any], layout: Layout | None = None) -> Read:
    """The samples in a file or folder. form: how the training samples were made (`Intake.form`). layout: of samples with
    several inputs, which an .npz holds by their names, as `x.NAME` or `NAME`, or in their order as `numpy.savez(file, a, b)`
    writes them.

    An array's samples are called by their numbers from 0, a table's rows by their lines, files by their paths.
    Raises DataError: E402 for what is not there, E403 for another kind of input than the model was trained on, E401 and
    E405 for what cannot be read.
    """
    if not path.exists():
        raise DataError("E402", f"there is no {path}.")
    if layout:
        return _several(path, layout, form)
    kind = str(form.get("kind", "arrays"))
    came = _kind_of(path)
    if came not in ("arrays", kind) and not (came == "parquet" and kind in READ):
        expects = {"table": "a table"}.get(kind, kind)
        what = {"": "no samples that are read", "table": "a table", "parquet": "Parquet"}.get(came, came)
        raise DataError(
            "E403", f"{path} holds {what}; the model was trained on {expects}, and also reads .npy and .npz."
        )
    return READERS[came](path, form)


def _kind_of(path: Path) -> str:
    """arrays, table, parquet, images or sounds; "" for none of them."""
    if path.suffix.lower() == ENDING or (path.is_dir() and holds_parquet(path)):
        return "parquet"
    if path.is_dir():
        kinds = {f.kind for f in tree_of(path, IMAGES | SOUNDS | VOLUMES, validation=True).files}
        if not kinds & VOLUMES and holds_dicom(path):
            return "volumes"
        return "sounds" if kinds & SOUNDS else "images" if kinds & IMAGES else "volumes" if kinds else ""
    suffix = kind_of(path)
    if suffix in (".npy", ".npz"):
        return "arrays"
    if ending(path) in CSV:
        return "table"
    kinds = {"images": IMAGES, "sounds": SOUNDS, "volumes": VOLUMES}
    return next((kind for kind, endings in kinds.items() if suffix in endings), "volumes" if holds_dicom(path) else "")


def _arrays(path: Path, form: Mapping[str, Any]) -> Read:
    if path.suffix.lower() == ".npy":
        x = mapped(path)
    else:
        archive = read_archive(path)
        inputs_in(archive, "x", path)
        names = [name for name in ("x", "x_test") if name in archive] or list(archive)
        if len(names) != 1 and "x" not in names:
            raise DataError("E403", f"{path} holds {some(names, 8) or 'no arrays'}; call the one to predict from 'x'.")
        x = archive[names[0]]
    if not x.ndim:
        raise DataError("E403", f"{path} holds a single value; samples are [N, ...].")
    return [str(i) for i in range(len(x))], x


def _several(path: Path, layout: Layout, form: Mapping[str, Any]) -> Read:
    """Samples with several inputs, by name or place."""
    if _kind_of(path) == "parquet":
        return rows_in(path, form, layout)
    listed = "beside" in form and form["kind"] in DECODED
    if path.is_dir() and listed:
        return _listed(path, form)
    if path.suffix.lower() != ".npz":
        lacks = "no folder with a CSV that lists files" if listed else "no .npz"
        raise DataError(
            "E403", f"{path} is {lacks}; samples with several inputs are read from one that holds {layout}."
        )
    archive = dict(read_archive(path))
    x = inputs_for(layout, archive, path) if layout.named else tuple(archive.values())
    return [str(i) for i in range(len(rows_of(layout, x, str(path))))], x


def _listed(path: Path, form: Mapping[str, Any]) -> Read:
    """Images or sounds with columns of the CSV that lists them, by name."""
    tree = tree_of(path, SOUNDS if form["kind"] == "sounds" else IMAGES, validation=True)
    columns = {column: list(kinds) for column, kinds in form["beside"]}
    listing = listing_of(tree, tree.files, list(columns))
    if listing is None:
        text = f"{path} holds no CSV that lists its files, beside which the model takes {some(list(columns), 8)}"
        raise DataError("E403", f"{text}; write one, as in training.")
    names = [str(file.path.relative_to(path)) for file in listing.files]
    pixels = DECODED[form["kind"]]([file.path for file in listing.files], form)
    key = {"images": "image", "sounds": "sound"}[form["kind"]]
    return names, {key: pixels, **inputs_as(listing.sheet, columns)}


def _table(path: Path, form: Mapping[str, Any]) -> Read:
    if isinstance(form["columns"], Mapping):  # early runs, whose files name the columns in alphabetical order
        raise DataError("E403", f"this run does not say in which order its columns were; train it again to use {path}.")
    sheet = read_csv(path)
    return [place.removeprefix("line ") for place in sheet.places], numbers_as(sheet, dict(form["columns"]))


def _images(path: Path, form: Mapping[str, Any]) -> Read:
    files, names = _files(path, IMAGES)
    return names, _pictures(files, form)


def _pictures(files: list[Path], form: Mapping[str, Any]) -> np.ndarray:
    pictures = each(files, lambda i: picture(files[i], int(form["size"]), form["fit"], int(form["bits"])))
    return np.stack([pixels for pixels, _ in pictures])


def _sounds(path: Path, form: Mapping[str, Any]) -> Read:
    files, names = _files(path, SOUNDS)
    return names, _spectrograms(files, form)


def _spectrograms(files: list[Path], form: Mapping[str, Any]) -> np.ndarray:
    format = Format(int(form["rate"]), float(form["seconds"]), int(form["window"]))
    return np.stack(each(files, lambda i: spectrogram(files[i], format)))[:, None]


def _volumes(path: Path, form: Mapping[str, Any]) -> Read:
    dicom = kind_of(path) not in VOLUMES and not (path.is_dir() and tree_of(path, VOLUMES, validation=True).files)
    series = [one.series for one in found(path)[0]] if dicom else []
    sources, called = (series, list(map(str, series))) if dicom else _files(path, VOLUMES)
    read = each(sources, lambda i: unlabelled(sources[i], called[i], form["axis"], int(form["size"])))
    return [name for names, _ in read for name in names], np.concatenate([x for _, x in read])


def _files(path: Path, kinds: frozenset[str]) -> tuple[list[Path], list[str]]:
    """(the files of these kinds without masks, each one's path below the folder)."""
    if path.is_file():
        return [path], [path.name]
    files = [f.path for f in _without_masks(tree_of(path, kinds, validation=True))]
    if not files:
        raise DataError("E403", f"{excerpt(str(path))} holds no file to predict from.")
    return files, [str(file.relative_to(path)) for file in files]


def _without_masks(tree: Tree) -> Sequence[File]:
    """The files of a folder without masks that lie beside images as in training; all of them where no other is left."""
    beside = has_masks(tree)
    images = [
        file for file in tree.files if not (beside and in_masks(file)) and not (file.kind in VOLUMES and is_mask(file))
    ]
    return images or tree.files


READERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Read]] = {
    "arrays": _arrays,
    "table": _table,
    "parquet": rows_in,
    "images": _images,
    "sounds": _sounds,
    "volumes": _volumes,
}
"""What reads each kind of input."""
DECODED = {"images": _pictures, "sounds": _spectrograms}
"""What makes samples of files."""
