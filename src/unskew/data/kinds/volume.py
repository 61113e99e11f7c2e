"""A medical volume, read from a NIfTI file and cut into square slices.

The values of a .nii or .nii.gz file are those stored, times the header's slope plus its intercept, and the
axes are turned until they run to the patient's right, front and head. `dicom.py` makes the same of DICOM.

All slices are the same way up and in proportion, however the file was stored: rows run from the front, or the
head, downwards; columns to the patient's right, in sagittal slices to the front.

Letters: X, Y, Z axes of a volume, N slices, H height, W width, S the side.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from unskew.data.kinds.images import area_weights
from unskew.data.samples.dataset import check_numbers
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

    Raises DataError: E401 for a damaged file, E405 for NaN and infinity, E403 for anything but a single
    volume of numbers, and if nibabel is not installed.
    """
    library = _nibabel(path)
    try:
        image = library.load(path)
        shape, dtype = image.shape, image.get_data_dtype()
        if len(shape) < 3 or any(n != 1 for n in shape[3:]):
            fault = f"{len(shape)}-D, {' x '.join(map(str, shape))}"
            raise DataError("E403", f"{path} is {fault}; give one volume with three axes a file.")
        if dtype.kind not in "biuf":
            raise DataError("E403", f"{path} holds {dtype}; give one number a voxel.")
        volume = _turned(path, image, bool(image.header["sform_code"] or image.header["qform_code"]))
        check_numbers(volume.values, str(path))
    except DataError:
        raise
    except Exception as error:  # nibabel raises many kinds of error for damaged headers
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise DataError("E401", f"{path} cannot be read as NIfTI: {reason}. Copy it again.") from error
    return volume


def canonical_volume(path: Path, values: np.ndarray, affine: np.ndarray) -> Volume:
    """The volume of these values, turned to the patient's axes. affine: from voxels to millimetres."""
    return _turned(path, _nibabel(path).Nifti1Image(values, affine), True)


def _turned(path: Path, image: Any, has_orientation: bool) -> Volume:
    library = _nibabel(path)
    canonical = library.as_closest_canonical(image)
    values = np.ascontiguousarray(canonical.dataobj, dtype=np.float32)
    affine = np.asarray(canonical.affine, dtype=np.float64)
    x, y, z = map(float, library.affines.voxel_sizes(affine))
    stored = "".join(library.aff2axcodes(image.affine)) if has_orientation else ""
    return Volume(path, values.reshape(values.shape[:3]), affine, (x, y, z), stored)


def _nibabel(path: Path) -> Any:
    try:
        return importlib.import_module("nibabel")
    except ImportError:
        raise DataError("E403", f"reading {path} needs nibabel; pip install 'unskew[medical]'.") from None


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
