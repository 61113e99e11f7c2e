"""The planes of a DICOM file: their values, and where each lies in the patient.

Values are rescaled as the file says; MONOCHROME1, where high means dark, is inverted. Positions are in millimetres in the
patient's frame: to the left, the back and the head (PS3.3, C.7.6.2). A file of several frames has these tags for each frame
in groups, for all frames in a shared group, or at its top.
Letters: F frames, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.data.volumes.dicom import MOST, Item, damaged, discreetly
from unskew.errors import DataError

PLUGINS = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
_RLE = "1.2.840.10008.1.2.5"
_MOST_RLE = 1 << 25
"""Bytes of a frame that is packed in run lengths, which pydicom unpacks without a limit of its own."""


@dataclass(frozen=True)
class Plane:
    """values: float32 [R, C]. position: of its first pixel, [3]; directions: of growing columns and growing rows, [2, 3];
    spacing: from row to row and from column to column; all in millimetres, None where the file does not say. step: to the
    next plane as the file says, 0 where it does not. number: of the image in its series."""

    item: Item
    values: np.ndarray
    position: np.ndarray | None
    directions: np.ndarray | None
    spacing: np.ndarray | None
    step: float
    number: int | None


def planes(item: Item, tags: Any, room: int) -> list[Plane]:
    """The planes of a file. room: voxels that may still be held.

    Raises DataError: E401 for what is damaged or promises more than the file holds, E403 for colours, for numbers that are
    not read, and for packed pixels that need another package.
    """
    with discreetly(item) as pydicom:
        frames = _check_form(item, tags, room)
        _check_bits(item, tags)
        _check_packed(item, tags, frames, pydicom)
        stored = np.asarray(tags.pixel_array).reshape(frames, int(tags.Rows), int(tags.Columns))
        values_FRC = _upright(tags, stored)
        return [_plane(item, tags, values_FRC[i], i) for i in range(frames)]


def _check_form(item: Item, tags: Any, room: int) -> int:
    """The number of frames. Raises DataError, as `planes` does."""
    rows, columns, frames = int(tags.Rows), int(tags.Columns), int(tags.get("NumberOfFrames") or 1)
    light = str(tags.get("PhotometricInterpretation", ""))
    if int(tags.get("SamplesPerPixel") or 1) != 1 or light not in ("MONOCHROME1", "MONOCHROME2"):
        raise DataError(
            "E403", f"{item.name} holds colours; give grey images, one number a voxel, or leave it out (image=)."
        )
    if min(rows, columns, frames) < 1:
        raise damaged(item, "it says that it has no pixels")
    shape = f"{frames} x {rows} x {columns}"
    if frames * rows * columns > room:
        raise damaged(item, f"with it, at {shape}, the series has more than {MOST // 2:,} voxels")
    data = next((tags[k].value for k in ("PixelData", "FloatPixelData", "DoubleFloatPixelData") if k in tags), None)
    if not data:
        raise damaged(item, "it has no pixels")
    if int(tags.BitsAllocated) not in (8, 16, 32, 64):
        raise DataError("E403", f"{item.name} has {int(tags.BitsAllocated)} bits a pixel; 8, 16, 32 or 64 are read.")
    promised = frames * rows * columns * int(tags.BitsAllocated) // 8
    if not tags.file_meta.TransferSyntaxUID.is_compressed and promised > len(data):
        raise damaged(item, f"its header promises {shape} pixels, {promised:,} bytes, and it holds {len(data):,}")
    return frames


def _check_packed(item: Item, tags: Any, frames: int, pydicom: Any) -> None:
    """Raises DataError: E403 for packed pixels that nothing installed unpacks, E401 for run lengths without end."""
    syntax = tags.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return
    try:
        decoder = pydicom.pixels.get_decoder(syntax)
    except NotImplementedError:
        raise DataError(
            "E403", f"{item.name} is packed in a way that pydicom does not know; export it unpacked."
        ) from None
    if not decoder.is_available:
        raise DataError("E403", f"{item.name} is packed as {syntax.name}; {PLUGINS}, or export it unpacked.")
    if syntax != _RLE:
        return
    frame = int(tags.Rows) * int(tags.Columns) * int(tags.BitsAllocated) // 8
    packed = pydicom.encaps.generate_frames(tags.PixelData, number_of_frames=frames)
    if frame > _MOST_RLE or any(len(part) > 1.25 * frame + 4096 for part in packed):
        raise damaged(
            item, f"a frame of {frame:,} bytes is packed into more than it needs, or has more than {_MOST_RLE:,}"
        )


def _check_bits(item: Item, tags: Any) -> None:
    """Raises DataError (E403) for numbers that do not lie in the lowest bits; pydicom itself clears those above them."""
    allocated = int(tags.BitsAllocated)
    used = int(tags.get("BitsStored") or allocated)
    if not 1 <= used <= allocated or int(tags.get("HighBit", used - 1)) != used - 1:
        raise DataError("E403", f"{item.name} keeps its {used} bits in the middle of {allocated}; export it again.")


def _upright(tags: Any, stored: np.ndarray) -> np.ndarray:
    """The values with more meaning brighter, in the numbers that the file has."""
    if str(tags.PhotometricInterpretation) != "MONOCHROME1":
        return stored
    if stored.dtype.kind not in "iu":
        return -stored
    used = int(tags.get("BitsStored") or 8 * stored.dtype.itemsize)
    total = -1 if stored.dtype.kind == "i" else (1 << used) - 1  # the lowest and the highest number together
    return total - stored.astype(np.int64)


def _plane(item: Item, tags: Any, values_RC: np.ndarray, i: int) -> Plane:
    slope, intercept = (
        _number(item, keyword, _tag(tags, i, "PixelValueTransformationSequence", keyword), default)
        for keyword, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
    )
    if not slope:
        raise damaged(item, "its RescaleSlope is 0")
    with np.errstate(over="ignore"):  # what has become infinite is refused
        scaled = (values_RC.astype(np.float64) * slope + intercept).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise damaged(item, "rescaled, some of its values are not finite")
    position = _numbers(item, "ImagePositionPatient", _tag(tags, i, "PlanePositionSequence", "ImagePositionPatient"), 3)
    directions = _directions(item, _tag(tags, i, "PlaneOrientationSequence", "ImageOrientationPatient"))
    spacing = _numbers(item, "PixelSpacing", _tag(tags, i, "PixelMeasuresSequence", "PixelSpacing"), 2)
    if spacing is not None and spacing.min() <= 0:
        raise damaged(item, "its PixelSpacing is not above 0")
    between, thick = (
        _number(item, keyword, _tag(tags, i, "PixelMeasuresSequence", keyword), 0.0)
        for keyword in ("SpacingBetweenSlices", "SliceThickness")
    )
    number = tags.get("InstanceNumber")
    return Plane(
        item, scaled, position, directions, spacing, abs(between) or abs(thick), None if number is None else int(number)
    )


def _tag(tags: Any, i: int, group: str, keyword: str) -> Any:
    """A tag of a frame: from its own group, the shared one, or the top of the file; None where none has it."""
    frames, shared = tags.get("PerFrameFunctionalGroupsSequence"), tags.get("SharedFunctionalGroupsSequence")
    if frames and i >= len(frames):
        return None
    for groups in (frames[i] if frames else None, shared[0] if shared else None):
        inner = groups.get(group) if groups is not None else None
        if inner and inner[0].get(keyword) is not None:
            return inner[0].get(keyword)
    return tags.get(keyword)


def _number(item: Item, keyword: str, value: Any, default: float) -> float:
    if value is None or value == "":
        return default
    if not np.isfinite(float(value)):
        raise damaged(item, f"its {keyword} is not finite")
    return float(value)


def _numbers(item: Item, keyword: str, value: Any, n: int) -> np.ndarray | None:
    if value is None or value == "":
        return None
    numbers = np.array([float(v) for v in value], np.float64)
    if len(numbers) != n or not np.isfinite(numbers).all():
        raise damaged(item, f"its {keyword} is not {n} finite numbers")
    return numbers


def _directions(item: Item, value: Any) -> np.ndarray | None:
    numbers = _numbers(item, "ImageOrientationPatient", value, 6)
    if numbers is None:
        return None
    pair = numbers.reshape(2, 3)
    if np.abs(pair @ pair.T - np.eye(2)).max() > 1e-2:
        raise damaged(item, "its ImageOrientationPatient is not two directions at a right angle")
    return pair
