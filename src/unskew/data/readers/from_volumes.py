"""A data set from medical volumes in folders, as slices: with masks, or with a class for each volume.

The values of a .nii or .nii.gz file are those stored, times the header's slope plus its intercept, and the
axes are turned until they run to the patient's right, front and head.

All slices are the same way up and in proportion, however the file was stored: rows run from the front, or the
head, downwards; columns to the patient's right, in sagittal slices to the front.

Letters: X, Y, Z axes of a volume, N slices, H height, W width, S the side.
"""

from __future__ import annotations

import importlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le

from unskew.data.files.archives import most_unpacked
from unskew.data.files.tree import IMAGE_ENDINGS, SOUND_ENDINGS, VOLUME_ENDINGS, file_ending, read_tree
from unskew.data.kinds.images import area_weights, read_each
from unskew.data.kinds.masks import MaskOrigin, as_masks
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.readers.scans import (
    Scan,
    ScanLayout,
    add_participants,
    are_test_scans,
    read_scans,
)
from unskew.data.samples.dataset import Dataset, check_numbers
from unskew.data.samples.reading_notes import Note, quantity
from unskew.errors import DataError

TOLERANCE = 1e-2
"""Tolerance in millimetres between the corners of an image and its mask; formats round."""


@dataclass(frozen=True)
class Volume:
    """A volume with axes to the patient's right, front and head.

    values: float32 [X, Y, Z]. affine: float64 [4, 4], from voxels to millimetres. spacing: of voxels along X,
    Y and Z, in millimetres. stored: directions of the file's axes, such as "LPS"; "" if unknown.
    """

    path: Path
    values: np.ndarray
    affine: np.ndarray
    spacing: tuple[float, float, float]
    stored: str


def check_fits(image: Volume, mask: Volume) -> None:
    """Raises DataError: E404 for a mask of another shape or position than its image, E404 for values that
    are no labels."""
    if image.values.shape != mask.values.shape:
        mask_shape, image_shape = (" x ".join(map(str, v.values.shape)) for v in (mask, image))
        fault = f"{mask.path} is {mask_shape}, its image {image.path} {image_shape}"
        raise DataError("E404", f"{fault}; resample the mask to its image's voxels.")
    ends = np.array([[0, 0, 0, 1], [*(n - 1 for n in image.values.shape), 1]]).T
    distance = float(np.abs((image.affine - mask.affine) @ ends).max())
    if distance > TOLERANCE:
        fault = f"{mask.path} lies {distance:.3g} mm from its image {image.path}, by the affines"
        remedy = "resample the mask, or copy the image's affine if only the header is wrong"
        raise DataError("E404", f"{fault}; {remedy}.")
    odd = mask.values[(mask.values != np.round(mask.values)) | (mask.values < 0)]
    if odd.size or not np.isfinite(mask.values).all():
        example = f", such as {odd[0]:.4g}" if odd.size else " that are not finite"
        remedy = "labels are whole numbers from 0: resample by nearest neighbours, or threshold it"
        raise DataError("E404", f"{mask.path} holds values{example}; {remedy}.")


def read_nifti(path: Path) -> Volume:
    """The volume in a file.

    Raises DataError: E401 for a damaged file and for far more voxels than its size makes likely, E405 for NaN
    and infinity, E403 for anything but a single volume of numbers, and if nibabel is not installed.
    """
    try:
        library: Any = importlib.import_module("nibabel")
    except ImportError:
        raise DataError("E403", f"reading {path} needs nibabel; pip install 'unskew[medical]'.") from None
    try:
        image = library.load(path)
        shape, dtype = image.shape, image.get_data_dtype()
        if len(shape) < 3 or any(n != 1 for n in shape[3:]):
            fault = f"{len(shape)}-D, {' x '.join(map(str, shape))}"
            raise DataError("E403", f"{path} is {fault}; give one volume with three axes a file.")
        if dtype.kind not in "biuf":
            raise DataError("E403", f"{path} holds {dtype}; give one number a voxel.")
        if 2 * math.prod(shape) > most_unpacked(path):
            fault = f"its {path.stat().st_size:,} bytes announce {' x '.join(map(str, shape))} voxels"
            raise DataError("E401", f"{path}: {fault}; cut it, or copy it again.")
        has_orientation = bool(image.header["sform_code"] or image.header["qform_code"])
        stored = "".join(library.aff2axcodes(image.affine)) if has_orientation else ""
        turned = library.as_closest_canonical(image)
        values = np.ascontiguousarray(turned.dataobj, dtype=np.float32).reshape(turned.shape[:3])
        check_numbers(values, str(path))
        affine = np.asarray(turned.affine, dtype=np.float64)
        x, y, z = map(float, library.affines.voxel_sizes(affine))
    except DataError:
        raise
    except Exception as error:  # nibabel raises many kinds of error for damaged headers
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise DataError("E401", f"{path} cannot be read as NIfTI: {reason}. Copy it again.") from error
    return Volume(path, values, affine, (x, y, z), stored)


Axis: TypeAlias = Literal["axial", "coronal", "sagittal"]
_AXES: dict[str, tuple[int, int, int]] = {"axial": (2, 1, 0), "coronal": (1, 2, 0), "sagittal": (0, 2, 1)}
"""The axes of slices, rows and columns."""


def cut_slices(volume: Volume, axis: Axis, size: int) -> np.ndarray:
    """Slices float32 [N, size, size]: each pixel is the mean over its area; the volume's smallest value
    pads the square."""
    planes_NHW = _ordered_planes(volume, axis)
    height, width = _inner_size(volume, axis, size)
    rows, columns = area_weights(planes_NHW.shape[1], height), area_weights(planes_NHW.shape[2], width)
    return _square(rows @ planes_NHW @ columns.T, size, float(planes_NHW.min()))


def cut_mask(volume: Volume, axis: Axis, size: int) -> np.ndarray:
    """Slices int64 [N, size, size]: each pixel is the nearest label; 0 pads the square."""
    planes_NHW = _ordered_planes(volume, axis)
    rows, columns = (
        ((np.arange(inner) + 0.5) * n / inner).astype(np.int64)
        for inner, n in zip(_inner_size(volume, axis, size), planes_NHW.shape[1:])
    )
    return _square(planes_NHW[:, rows[:, None], columns].astype(np.int64), size, 0)


def _ordered_planes(volume: Volume, axis: Axis) -> np.ndarray:
    return volume.values.transpose(_AXES[axis])[:, ::-1]


def _inner_size(volume: Volume, axis: Axis, size: int) -> tuple[int, int]:
    """(height, width) in pixels of a slice with its longer side, in millimetres, as long as the square."""
    _, row, column = _AXES[axis]
    sides = [volume.values.shape[i] * volume.spacing[i] for i in (row, column)]
    height, width = (min(size, max(1, round(size * side / max(sides)))) for side in sides)
    return height, width


def _square(planes_NHW: np.ndarray, size: int, filling: float) -> np.ndarray:
    n, height, width = planes_NHW.shape
    square = np.full((n, size, size), filling, planes_NHW.dtype)
    top, left = (size - height) // 2, (size - width) // 2
    square[:, top : top + height, left : left + width] = planes_NHW
    return square


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
    """The slices of all volumes (.nii, .nii.gz) below `path/`: float32 [N, 1, size, size], in the
    order of the files.

    unskew.data.readers.scans lists the layouts that are read. Columns: `patient`, and `site` if folders or a
    table name it. Without a folder test/, a fifth of the patients of every site is held out; no patient is on
    both sides.
    Raises DataError: E404 for other layouts and for masks that do not fit, E401 and E403 for files that are
    no volumes, E404 for labels that are not whole numbers.
    """
    root = Path(path)
    layout = read_scans(read_tree(root, VOLUME_ENDINGS), image, bool(label))
    layout = add_participants(layout, root, site, label)
    name, scans = root.resolve().name, layout.scans
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
    form = {"kind": "volumes", "size": size, "axis": axis}
    raw = RawSamples(
        x, y, classes=classes, columns=columns, notes=tuple(notes), form=form, layout="channels first"
    )  # the notes on patients are above
    return replace(raw.divided(test[owner]).dataset(name), group_column=group)


def holds_volumes(path: Path) -> bool:
    """Whether the first data file below a folder, folder by folder, is NIfTI."""
    for place, _, names in os.walk(path):
        kinds = {file_ending(Path(place) / name) for name in names}
        if kinds & VOLUME_ENDINGS:
            return True
        if kinds & (IMAGE_ENDINGS | SOUND_ENDINGS):
            return False
    return False


def prediction_slices(path: Path, name: str, axis: Axis, size: int) -> tuple[list[str], np.ndarray]:
    """(name of each slice, the slices [N, 1, size, size]) of a volume from which a model predicts."""
    x = cut_slices(read_nifti(path), axis, size)
    return [f"{name} slice {i}" for i in range(len(x))], x[:, None]


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
    volume = read_nifti(scan.path)
    x, y = cut_slices(volume, axis, size), None
    if scan.mask is not None:
        mask = read_nifti(scan.mask)
        check_fits(volume, mask)
        y = cut_mask(mask, axis, size)
    full = x.min((1, 2)) < x.max((1, 2)) if y is None else y.any((1, 2))
    keep = full if drop else np.ones(len(x), bool)
    y = None if y is None else y[keep]
    return _Slices(x[keep], y, int((~keep).sum()), volume.values.shape, volume.stored)


def _patients(scans: Sequence[Scan]) -> list[str]:
    """The patient of each volume, with the site if several sites have patients of one name."""
    sites = {name: {s.site for s in scans if s.patient == name} for name in {s.patient for s in scans}}
    return [f"{s.site}/{s.patient}" if len(sites[s.patient]) > 1 else s.patient for s in scans]


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
