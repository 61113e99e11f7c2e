"""A NIfTI file, .nii or .nii.gz, as a volume: values as stored, times the header's slope plus its intercept.

Axes are turned until they run to the patient's right, front and head. A file is unpacked in memory up to a limit and never
beyond it, and its header is believed only as far as the bytes behind it go.
"""

from __future__ import annotations

import gzip
import importlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.checks import check_numbers
from unskew.data.volumes.volume import Volume
from unskew.errors import DataError

MOST = 1 << 30
"""Bytes that one file unpacks to at most, and half as many voxels at most."""
_SECOND = (b"\x1c\x02\x00\x00", b"\x00\x00\x02\x1c")
"""How a file of NIfTI-2 begins, in either order of bytes."""


def nifti(path: Path) -> Volume:
    """The volume in a file.

    Raises DataError: E401 for one that is damaged or too large; E405 for NaN and infinity; E403 for one that is no single volume of numbers, and
    where nibabel is not installed.
    """
    library = _nibabel(path)
    content = _content(path)
    try:
        image = getattr(library, "Nifti2Image" if content[:4] in _SECOND else "Nifti1Image").from_bytes(content)
        _check(path, image.shape, image.get_data_dtype(), len(content))
        known = bool(image.header["sform_code"] or image.header["qform_code"])
        stored = "".join(library.aff2axcodes(image.affine)) if known else ""
        turned = library.as_closest_canonical(image)
        values = np.asarray(turned.dataobj, dtype=np.float32)
        check_numbers(values, str(path))
        affine = np.asarray(turned.affine, dtype=np.float64)
        x, y, z = map(float, library.affines.voxel_sizes(affine))
    except DataError:
        raise
    except Exception as error:  # nibabel raises many kinds of error for damaged headers
        raise _damaged(path, error) from error
    return Volume(path, values.reshape(values.shape[:3]), affine, (x, y, z), stored)


def _nibabel(path: Path) -> Any:
    try:
        return importlib.import_module("nibabel")
    except ImportError:
        raise DataError("E403", f"reading {path} needs nibabel; pip install 'unskew[medical]'.") from None


def _content(path: Path) -> bytes:
    """The file's bytes, unpacked if it is packed. Raises DataError (E401) beyond the limit."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as file:
            content = file.read(MOST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error
    if len(content) > MOST:
        raise DataError("E401", f"{path} unpacks to more than {MOST:,} bytes; save it as int16, or cut it.")
    return content


def _check(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> None:
    """Raises DataError: E403 for what is no volume of numbers, E401 for a header that promises more than the file holds."""
    written = " x ".join(map(str, shape))
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        what = f"{len(shape)}-D, {written}" + (": a series of volumes" if len(shape) > 3 else "")
        raise DataError("E403", f"{path} is {what}; give one volume with three axes a file.")
    if dtype.kind not in "biuf":
        raise DataError("E403", f"{path} holds colours or complex numbers ({dtype}); give one number a voxel.")
    voxels = float(np.prod([float(n) for n in shape]))
    if min(shape) < 1 or voxels * dtype.itemsize > size or voxels > MOST / 2:
        raise DataError("E401", f"{path}: its header promises {written} voxels, and the file holds {size:,} bytes.")


def _damaged(path: Path, error: Exception) -> DataError:
    why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{path} cannot be read as NIfTI: {why}. Copy it again.")
