"""A set from a user's medical volumes in folders, as slices: with masks, or with a class for each volume."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from unskew.data.dataset import Dataset
from unskew.data.from_arrays import arrays
from unskew.data.intake.images import each
from unskew.data.intake.masks import Origin, as_masks
from unskew.data.intake.notes import Intake, Note, counted
from unskew.data.intake.tree import IMAGES, SOUNDS, VOLUMES, kind_of, tree_of
from unskew.data.volumes.apart import parts_of
from unskew.data.volumes.dicom import NAME
from unskew.data.volumes.exports import holds_dicom
from unskew.data.volumes.layout import Layout, Scan, layout_of
from unskew.data.volumes.nifti import nifti
from unskew.data.volumes.participants import with_participants
from unskew.data.volumes.series import Series, stacked
from unskew.data.volumes.slices import Axis, mask_slices, slices
from unskew.data.volumes.studies import numbered, studies
from unskew.data.volumes.volume import Volume, check_fits
from unskew.errors import DataError

MOST = 4 << 30
"""Bytes of slices that are held in memory."""
TEST_SHARE = 0.2
"""Of the patients, where no folder test/ says who they are."""


@dataclass(frozen=True)
class _Cut:
    """One volume cut. x: float32 [N, S, S]; y: masks, int64 [N, S, S], None where the volume has a class; dropped: slices."""

    x: np.ndarray
    y: np.ndarray | None
    dropped: int
    shape: tuple[int, ...]
    stored: str


def volumes(
    path: str | Path,
    size: Annotated[int, Ge(8), Le(4096), "side of the slices, in pixels"] = 64,
    axis: Annotated[Axis, "which way volumes are cut"] = "axial",
    empty: Annotated[
        Literal["keep", "drop"], "slices without any label, or with a single value where there are no masks"
    ] = "keep",
    image: Annotated[str, "how names of images end, where a patient has several kinds, such as T1w"] = "",
    *,
    site: Annotated[str, "in participants.tsv: the column that says where a patient is from"] = "",
    label: Annotated[str, "in participants.tsv: the column of classes, for volumes without masks"] = "",
) -> Dataset:
    """The slices of all volumes (.nii, .nii.gz, or DICOM) below `path/`: float32 [N, 1, size, size], in the order of the files.

    unskew.data.volumes.layout says which layouts are read, and unskew.data.volumes.studies for DICOM. Columns: `patient`, and `site` where folders or a table name it.
    Without a folder test/, a fifth of the patients of every site is held out; no patient is on both sides.
    Raises DataError: E409 for other layouts and for masks that do not fit, E401 and E403 for files that are no volumes, E404
    for labels that are not whole numbers.
    """
    root = Path(path)
    layout = _layout(root, image, site, label)
    name, scans = NAME if layout.private else root.resolve().name, layout.scans
    test = parts_of(name, scans, TEST_SHARE)
    cuts = _cuts(name, scans, axis, size, empty == "drop")
    counts = np.array([len(cut.x) for cut in cuts])
    if not counts[~test].any() or not counts[test].any():
        raise DataError("E403", f"{name}: no slice is left to train or to test on (empty=drop); use empty=keep.")
    notes = [*layout.notes, *_remarks(scans, cuts, axis, size)]
    x, owner = np.concatenate([cut.x for cut in cuts])[:, None], np.repeat(np.arange(len(cuts)), counts)
    y, classes = _labels(name, layout, cuts, owner, notes)
    columns = {"patient": np.array(_people(scans))[owner]}
    if any(s.site for s in scans):
        columns["site"] = np.array([s.site for s in scans])[owner]
    held = test[owner]
    dataset = arrays(
        x[~held], y[~held], x[held], y[held],
        classes=classes, columns={n: v[~held] for n, v in columns.items()},
        test_columns={n: v[held] for n, v in columns.items()}, name=name, notes=notes, layout="channels first",
    )  # fmt: skip
    form = {"kind": "volumes", "size": size, "axis": axis, "together": "patient"}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form))


def _layout(root: Path, image: str, site: str, label: str) -> Layout:
    tree = tree_of(root, VOLUMES)
    if tree.files or not holds_dicom(root):
        return with_participants(layout_of(tree, image, bool(label)), root, site, label)
    layout = studies(root, image, bool(label))
    try:
        return numbered(with_participants(layout, root, site, label))
    except DataError as error:  # of the table, whose path may name somebody
        raise DataError(error.code, error.text.replace(str(root), NAME)) from None


def holds_volumes(path: Path) -> bool:
    """Whether the first file of data below a folder, folder by folder, is NIfTI, or most pictures below it are DICOM."""
    return _holds_nifti(path) or holds_dicom(path)


def _holds_nifti(path: Path) -> bool:
    for place, _, names in os.walk(path):
        kinds = {kind_of(Path(place) / name) for name in names}
        if kinds & VOLUMES:
            return True
        if kinds & (IMAGES | SOUNDS):
            return False
    return False


def unlabelled(source: Path | Series, name: str, axis: Axis, size: int) -> tuple[list[str], np.ndarray]:
    """(what each slice is called, the slices [N, 1, size, size]) of a volume of this name, to predict from."""
    x = slices(_volume(source), axis, size)
    return [f"{name} slice {i}" for i in range(len(x))], x[:, None]


def _volume(source: Path | Series) -> Volume:
    return stacked(source) if isinstance(source, Series) else nifti(source)


def _cuts(name: str, scans: Sequence[Scan], axis: Axis, size: int, drop: bool) -> list[_Cut]:
    """Every volume cut. Raises DataError (E403) as soon as the slices take more than may be held, and as `_cut` does."""
    most, held = MOST // (4 * size**2), 0

    def cut(i: int) -> _Cut:
        nonlocal held
        piece = _cut(scans[i], axis, size, drop)
        held += len(piece.x)
        if held > most:
            text = f"{name}: the first {i + 1:,} of {len(scans):,} volumes have {held:,} slices, and {most:,} fit"
            raise DataError("E403", f"{text} ({MOST:,} bytes); take a smaller size, or fewer volumes.")
        return piece

    return each([s.path for s in scans], cut)


def _cut(scan: Scan, axis: Axis, size: int, drop: bool) -> _Cut:
    volume = _volume(scan.path)
    x, y = slices(volume, axis, size), None
    if scan.mask is not None:
        mask = _volume(scan.mask)
        check_fits(volume, mask)
        y = mask_slices(mask, axis, size)
        full = y.any((1, 2))
    else:
        full = x.min((1, 2)) < x.max((1, 2))
    kept = full if drop else np.ones(len(x), bool)
    return _Cut(x[kept], None if y is None else y[kept], int((~kept).sum()), volume.values.shape, volume.stored)


def _people(scans: Sequence[Scan]) -> list[str]:
    """The patient of each volume, with the site where several sites have patients of one name."""
    sites = {name: {s.site for s in scans if s.patient == name} for name in {s.patient for s in scans}}
    return [f"{s.site}/{s.patient}" if len(sites[s.patient]) > 1 and not s.person else s.patient for s in scans]


def _labels(
    name: str, layout: Layout, cuts: Sequence[_Cut], owner: np.ndarray, notes: list[Note]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(masks [N, S, S] or classes [N], their names)."""
    if layout.classes:
        return np.array([scan.label for scan in layout.scans], np.int64)[owner], layout.classes
    sites = np.array([scan.site for scan in layout.scans])[owner]
    origin = Origin(sites, lambda i: str(layout.scans[owner[i]].mask))
    (y,), classes = as_masks(name, [np.concatenate([c.y for c in cuts if c.y is not None])], None, notes, [origin])
    return y, classes


def _remarks(scans: Sequence[Scan], cuts: Sequence[_Cut], axis: Axis, size: int) -> list[Note]:
    """What became of orientations, shapes and empty slices."""
    ways = Counter(cut.stored or "not told" for cut in cuts)
    ways_text = ", ".join(f"{way} {n:,}" for way, n in ways.most_common())
    patients = len({scan.owner for scan in scans})
    shape = " x ".join(map(str, Counter(cut.shape for cut in cuts).most_common(1)[0][0]))
    notes: list[Note] = [
        ("note", f"{counted(len(scans), 'volume')} of {counted(patients, 'patient')}, whose slices are on one side of the test split"),
        ("scaled", f"orientations as stored: {ways_text}; all were turned to RAS and cut into {axis} slices"),
        ("scaled", f"volumes such as {shape} became slices of {size} x {size}, in proportion (size={size})"),
    ]  # fmt: skip
    if "not told" in ways:
        text = f"{counted(ways['not told'], 'volume')} without an orientation, taken as they are stored"
        notes.append(("note", f"{text}; look at some slices before you train"))
    if n := sum(cut.dropped for cut in cuts):
        notes.append(("left out", f"{counted(n, 'empty slice')} (empty=drop); scores are on the others only"))
    return notes
