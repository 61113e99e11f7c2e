"""A data set from medical volumes in folders, as slices: with masks, or with a class for each volume."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from unskew.data.files.tree import IMAGE_ENDINGS, SOUND_ENDINGS, VOLUME_ENDINGS, file_ending, read_tree
from unskew.data.kinds.dicom import DICOM, Series, holds_dicom, stack_series
from unskew.data.kinds.groups import INDEPENDENT
from unskew.data.kinds.images import read_each
from unskew.data.kinds.masks import MaskOrigin, as_masks
from unskew.data.kinds.volume import Axis, Volume, check_fits, cut_mask, cut_slices, read_nifti
from unskew.data.readers.from_arrays import arrays
from unskew.data.readers.scans import (
    Scan,
    ScanLayout,
    add_participants,
    are_test_scans,
    number_patients,
    read_dicom_scans,
    read_scans,
)
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.reading_notes import Intake, Note, quantity
from unskew.errors import DataError

LARGEST_SLICES = 4 << 30
"""Maximal size of slices in memory, in bytes."""
TEST_PATIENTS = 0.2
"""The share of patients that are held out if there is no folder test/."""


@dataclass(frozen=True)
class _Slices:
    """The slices of one volume: x float32 [N, S, S], y the masks int64 [N, S, S], or None if it has a class.

    dropped: number of slices left out. shape, stored: of the volume, as in `Volume`.
    """

    x: np.ndarray
    y: np.ndarray | None
    dropped: int
    shape: tuple[int, ...]
    stored: str


def volumes(
    path: str | Path,
    size: Annotated[int, Ge(8), Le(4096), "side of the slices, in pixels"] = 64,
    axis: Annotated[Axis, "direction of the slices"] = "axial",
    empty: Annotated[
        Literal["keep", "drop"], "slices without labels, or with a single value if there are no masks"
    ] = "keep",
    image: Annotated[str, "suffix of the images' names, if a patient has several kinds, such as T1w"] = "",
    *,
    site: Annotated[str, "in participants.tsv: the column of sites"] = "",
    label: Annotated[str, "in participants.tsv: the column of classes, for volumes without masks"] = "",
    group: Annotated[Literal["patient"], "slices that no split separates: those of a patient"] = "patient",
) -> Dataset:
    """The slices of all volumes (.nii, .nii.gz, or DICOM) below `path/`: float32 [N, 1, size, size], in the
    order of the files.

    unskew.data.readers.scans lists the layouts that are read. Columns: `patient`, and `site` if folders or a
    table name it. Without a folder test/, a fifth of the patients of every site is held out; no patient is on
    both sides.
    Raises DataError: E404 for other layouts and for masks that do not fit, E401 and E403 for files that are
    no volumes, E404 for labels that are not whole numbers.
    """
    root = Path(path)
    layout = _read_layout(root, image, site, label)
    name, scans = DICOM if layout.private else root.resolve().name, layout.scans
    test = are_test_scans(name, scans, TEST_PATIENTS)
    cuts = _cut_all(name, scans, axis, size, empty == "drop")
    counts = np.array([len(cut.x) for cut in cuts])
    if not counts[~test].any() or not counts[test].any():
        raise DataError(
            "E403", f"{name}: no slice is left to train or to test on (empty=drop); use empty=keep."
        )
    notes = [*layout.notes, *_slice_notes(scans, cuts, axis, size)]
    x, owner = np.concatenate([cut.x for cut in cuts])[:, None], np.repeat(np.arange(len(cuts)), counts)
    y, classes = _slice_labels(name, layout, cuts, owner, notes)
    columns = {"patient": np.array(_patients(scans))[owner]}
    if any(s.site for s in scans):
        columns["site"] = np.array([s.site for s in scans])[owner]
    in_test = test[owner]
    dataset = arrays(
        x[~in_test],
        y[~in_test],
        x[in_test],
        y[in_test],
        classes=classes,
        columns={n: v[~in_test] for n, v in columns.items()},
        test_columns={n: v[in_test] for n, v in columns.items()},
        name=name,
        notes=notes,
        layout="channels first",
        group=INDEPENDENT,  # the notes on patients are above
    )
    form = {"kind": "volumes", "size": size, "axis": axis}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form), group_column=group)


def _read_layout(root: Path, image: str, site: str, label: str) -> ScanLayout:
    tree = read_tree(root, VOLUME_ENDINGS)
    if tree.files or not holds_dicom(root):
        return add_participants(read_scans(tree, image, bool(label)), root, site, label)
    layout = read_dicom_scans(root, image, bool(label))
    try:
        return number_patients(add_participants(layout, root, site, label))
    except DataError as error:  # the path of the table may contain a name
        raise DataError(error.code, error.text.replace(str(root), DICOM)) from None


def holds_volumes(path: Path) -> bool:
    """Whether the first data file below a folder, folder by folder, is NIfTI, or most pictures below it
    are DICOM."""
    return _holds_nifti(path) or holds_dicom(path)


def _holds_nifti(path: Path) -> bool:
    for place, _, names in os.walk(path):
        kinds = {file_ending(Path(place) / name) for name in names}
        if kinds & VOLUME_ENDINGS:
            return True
        if kinds & (IMAGE_ENDINGS | SOUND_ENDINGS):
            return False
    return False


def prediction_slices(
    source: Path | Series, name: str, axis: Axis, size: int
) -> tuple[list[str], np.ndarray]:
    """(name of each slice, the slices [N, 1, size, size]) of a volume from which a model predicts."""
    x = cut_slices(_read_volume(source), axis, size)
    return [f"{name} slice {i}" for i in range(len(x))], x[:, None]


def _read_volume(source: Path | Series) -> Volume:
    return stack_series(source) if isinstance(source, Series) else read_nifti(source)


def _cut_all(name: str, scans: Sequence[Scan], axis: Axis, size: int, drop: bool) -> list[_Slices]:
    """The slices of every volume."""
    limit, count = LARGEST_SLICES // (4 * size**2), 0

    def cut(i: int) -> _Slices:
        nonlocal count
        piece = _cut_volume(scans[i], axis, size, drop)
        count += len(piece.x)
        if count > limit:
            fault = f"the first {i + 1:,} of {len(scans):,} volumes have {count:,} slices, and {limit:,} fit"
            remedy = f"({LARGEST_SLICES:,} bytes); take a smaller size, or fewer volumes"
            raise DataError("E403", f"{name}: {fault} {remedy}.")
        return piece

    return read_each([s.path for s in scans], cut)


def _cut_volume(scan: Scan, axis: Axis, size: int, drop: bool) -> _Slices:
    volume = _read_volume(scan.path)
    x, y = cut_slices(volume, axis, size), None
    if scan.mask is not None:
        mask = _read_volume(scan.mask)
        check_fits(volume, mask)
        y = cut_mask(mask, axis, size)
    full = x.min((1, 2)) < x.max((1, 2)) if y is None else y.any((1, 2))
    keep = full if drop else np.ones(len(x), bool)
    y = None if y is None else y[keep]
    return _Slices(x[keep], y, int((~keep).sum()), volume.values.shape, volume.stored)


def _patients(scans: Sequence[Scan]) -> list[str]:
    """The patient of each volume, with the site if several sites have patients of one name."""
    sites = {name: {s.site for s in scans if s.patient == name} for name in {s.patient for s in scans}}
    return [
        f"{s.site}/{s.patient}" if len(sites[s.patient]) > 1 and not s.person else s.patient for s in scans
    ]


def _slice_labels(
    name: str, layout: ScanLayout, cuts: Sequence[_Slices], owner: np.ndarray, notes: list[Note]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(masks [N, S, S] or classes [N], their names)."""
    if layout.classes:
        return np.array([scan.label for scan in layout.scans], np.int64)[owner], layout.classes
    sites = np.array([scan.site for scan in layout.scans])[owner]
    origin = MaskOrigin(sites, lambda i: str(layout.scans[owner[i]].mask))
    masks = np.concatenate([c.y for c in cuts if c.y is not None])
    (y,), classes = as_masks(name, [masks], None, notes, [origin])
    return y, classes


def _slice_notes(scans: Sequence[Scan], cuts: Sequence[_Slices], axis: Axis, size: int) -> list[Note]:
    """Notes on patients, orientations, shapes and empty slices."""
    stored = Counter(cut.stored or "unknown" for cut in cuts)
    orientations = ", ".join(f"{orientation} {n:,}" for orientation, n in stored.most_common())
    of_patients = f"{quantity(len(scans), 'volume')} of {quantity(len({s.owner for s in scans}), 'patient')}"
    shape = " x ".join(map(str, Counter(cut.shape for cut in cuts).most_common(1)[0][0]))
    notes: list[Note] = [
        ("note", f"{of_patients}, whose slices are on one side of the test split"),
        ("scaled", f"orientations as stored: {orientations}; all were turned to RAS, in {axis} slices"),
        ("scaled", f"volumes such as {shape} became slices of {size} x {size}, in proportion (size={size})"),
    ]
    if "unknown" in stored:
        text = f"{quantity(stored['unknown'], 'volume')} without an orientation, taken as they are stored"
        notes.append(("note", f"{text}; look at some slices before you train"))
    if n := sum(cut.dropped for cut in cuts):
        notes.append(
            ("left out", f"{quantity(n, 'empty slice')} (empty=drop); scores are on the others only")
        )
    return notes
