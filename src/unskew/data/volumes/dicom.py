"""DICOM files and series (PS3.10, read by pydicom): the planes of a file, and a series as a volume.

No identifier of a patient leaves this module: pydicom's messages quote tags, and paths often hold patients'
names, so these messages are dropped, and errors refer to a file by its number in the order of paths.

Values are rescaled as the file says; MONOCHROME1, where high means dark, is inverted. Positions are in
millimetres in the patient's frame: to the left, the back and the head (PS3.3, C.7.6.2). A file of several
frames has these tags for each frame in groups, for all frames in a shared group, or at its top.

The planes of a series are ordered by the projection of their positions onto the normal of their orientation,
never by file name; if no position is known, by the numbers of the images. A series is refused if it lacks a
plane, has two in one place, or mixes orientations or sizes. The volume is turned as one from a NIfTI file is.
Letters: F frames, R rows, C columns.
"""

from __future__ import annotations

import importlib
import logging
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.volumes.volume import Volume
from unskew.errors import DataError

LARGEST_DICOM = 1 << 30
"""Maximal size of one file, compressed or not, in bytes."""
DICOM = "dicom"
"""The name of every set and folder of DICOM in messages, because folders are often named after patients."""
MAGIC = b"DICM"
"""The mark of a DICOM file, after its first 128 bytes."""
HEAD_TAGS = ("PatientID", "SeriesInstanceUID", "SeriesDescription", "SOPClassUID", "Rows", "Columns")
"""The tags that identify a file's patient and series."""
_DEFLATE_SYNTAX = "1.2.840.10008.1.2.1.99"
_LABEL_OBJECTS = ("Segmentation Storage", "RT Dose Storage", "Surface Segmentation Storage")
"""Kinds of objects that have rows and columns but are no images: labels and doses."""


@dataclass(frozen=True)
class DicomFile:
    """A file. name: its name in messages, which is never its path."""

    path: Path
    name: str


def is_dicom(path: Path) -> bool:
    """Whether a file has the mark of DICOM; False for a file that cannot be opened."""
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == MAGIC
    except OSError:
        return False


@contextmanager
def quiet_pydicom(item: DicomFile) -> Iterator[Any]:
    """The package pydicom, with its warnings, logs and errors suppressed.

    Raises DataError: E401 for any error within the context, E403 if pydicom is not installed.
    """
    try:
        library = importlib.import_module("pydicom")
    except ImportError:
        raise DataError(
            "E403", f"reading {item.name} needs pydicom; pip install 'unskew[medical]'."
        ) from None
    log = logging.getLogger("pydicom")
    was = log.disabled
    try:
        log.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield library
    except DataError:
        raise
    except (
        Exception
    ) as error:  # pydicom raises many kinds of error for damaged files, and their text quotes tags
        raise dicom_error(item, f"it is cut off or damaged ({type(error).__name__})") from None
    finally:
        log.disabled = was


def dicom_error(item: DicomFile, reason: str) -> DataError:
    """The error for a file that cannot be read. reason: half a sentence without values of tags."""
    return DataError("E401", f"{item.name} cannot be read as DICOM: {reason}. Copy or export it again.")


def read_head(item: DicomFile) -> Any | None:
    """The tags HEAD_TAGS of a file that holds an image, None for other objects (reports, directories,
    segmentations).

    Raises DataError (E401) for a file that is damaged or too large.
    """
    with quiet_pydicom(item) as pydicom:
        _check_size(item, pydicom)
        tags = pydicom.dcmread(item.path, stop_before_pixels=True, specific_tags=list(HEAD_TAGS))
        # a truncated file or noise has none; omitting it would lose a slice unnoticed
        if not tags.get("SOPClassUID"):
            raise dicom_error(item, "it is cut off, or has no SOPClassUID")
        name = pydicom.uid.UID(tags.SOPClassUID).name
        sized = "Rows" in tags and "Columns" in tags
        if "Image Storage" not in name and (not sized or name in _LABEL_OBJECTS):
            return None
        for keyword in ("SeriesInstanceUID", "Rows", "Columns"):
            if not tags.get(keyword):
                raise dicom_error(item, f"it has no {keyword}")
        return tags


def read_whole(item: DicomFile) -> Any:
    """All of a file, with its pixels not yet decoded. Raises DataError (E401)."""
    with quiet_pydicom(item) as pydicom:
        _check_size(item, pydicom)
        return pydicom.dcmread(item.path)


def _check_size(item: DicomFile, pydicom: Any) -> None:
    """Raises DataError (E401) for a file that is, or unpacks to, more than the maximal size."""
    if item.path.stat().st_size > LARGEST_DICOM:
        raise dicom_error(item, f"it has more than {LARGEST_DICOM:,} bytes")
    meta = pydicom.filereader.read_file_meta_info(item.path)
    if meta.get("TransferSyntaxUID") != _DEFLATE_SYNTAX:
        return
    with open(item.path, "rb") as file:
        file.seek(
            144 + int(meta.FileMetaInformationGroupLength)
        )  # 128 bytes, the magic, and the length itself
        content = file.read()
    if len(zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, LARGEST_DICOM + 1)) > LARGEST_DICOM:
        raise dicom_error(item, f"it unpacks to more than {LARGEST_DICOM:,} bytes")


PLUGINS = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
_RLE_SYNTAX = "1.2.840.10008.1.2.5"
_LARGEST_RLE = 1 << 25
"""Maximal size of a run-length encoded frame, in bytes; pydicom has no limit for it."""


@dataclass(frozen=True)
class Plane:
    """values: float32 [R, C]. position: position of its first pixel, [3]. directions: directions of
    increasing columns and rows, [2, 3].

    spacing: from row to row and from column to column. All are in millimetres, None if the file does not have
    them. step: distance to the next plane, 0 if unknown. number: number of the image in its series.
    """

    item: DicomFile
    values: np.ndarray
    position: np.ndarray | None
    directions: np.ndarray | None
    spacing: np.ndarray | None
    step: float
    number: int | None


def read_planes(item: DicomFile, tags: Any, room: int) -> list[Plane]:
    """The planes of a file. room: maximal number of voxels.

    Raises DataError: E401 for a damaged file or one that is shorter than its header promises, E403 for
    colours, for unsupported numbers, and for compressed pixels that need another package.
    """
    with quiet_pydicom(item) as pydicom:
        frames = _check_form(item, tags, room)
        _check_bits(item, tags)
        _check_compression(item, tags, frames, pydicom)
        stored = np.asarray(tags.pixel_array).reshape(frames, int(tags.Rows), int(tags.Columns))
        values_FRC = _brightness_order(tags, stored)
        return [_plane_of(item, tags, values_FRC[i], i) for i in range(frames)]


def _check_form(item: DicomFile, tags: Any, room: int) -> int:
    """The number of frames. Raises DataError, as `read_planes` does."""
    rows, columns, frames = int(tags.Rows), int(tags.Columns), int(tags.get("NumberOfFrames") or 1)
    light = str(tags.get("PhotometricInterpretation", ""))
    if int(tags.get("SamplesPerPixel") or 1) != 1 or light not in ("MONOCHROME1", "MONOCHROME2"):
        raise DataError(
            "E403",
            f"{item.name} holds colours; give grey images, one number a voxel, or leave it out (image=).",
        )
    if min(rows, columns, frames) < 1:
        raise dicom_error(item, "it says that it has no pixels")
    shape = f"{frames} x {rows} x {columns}"
    if frames * rows * columns > room:
        raise dicom_error(
            item, f"with it, at {shape}, the series has more than {LARGEST_DICOM // 2:,} voxels"
        )
    data = next(
        (tags[k].value for k in ("PixelData", "FloatPixelData", "DoubleFloatPixelData") if k in tags), None
    )
    if not data:
        raise dicom_error(item, "it has no pixels")
    if int(tags.BitsAllocated) not in (8, 16, 32, 64):
        raise DataError(
            "E403", f"{item.name} has {int(tags.BitsAllocated)} bits a pixel; 8, 16, 32 or 64 are read."
        )
    size = frames * rows * columns * int(tags.BitsAllocated) // 8
    if not tags.file_meta.TransferSyntaxUID.is_compressed and size > len(data):
        raise dicom_error(
            item, f"its header promises {shape} pixels, {size:,} bytes, and it holds {len(data):,}"
        )
    return frames


def _check_compression(item: DicomFile, tags: Any, frames: int, pydicom: Any) -> None:
    """Raises DataError: E403 for compressed pixels that no installed package decodes, E401 for oversized
    run lengths."""
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
    if syntax != _RLE_SYNTAX:
        return
    frame = int(tags.Rows) * int(tags.Columns) * int(tags.BitsAllocated) // 8
    parts = pydicom.encaps.generate_frames(tags.PixelData, number_of_frames=frames)
    if frame > _LARGEST_RLE or any(len(part) > 1.25 * frame + 4096 for part in parts):
        raise dicom_error(
            item,
            f"a frame of {frame:,} bytes is packed into more than it needs, or has more than"
            f" {_LARGEST_RLE:,}",
        )


def _check_bits(item: DicomFile, tags: Any) -> None:
    """Raises DataError (E403) for numbers that are not in the lowest bits; pydicom itself clears the bits
    above them."""
    allocated = int(tags.BitsAllocated)
    bits = int(tags.get("BitsStored") or allocated)
    if not 1 <= bits <= allocated or int(tags.get("HighBit", bits - 1)) != bits - 1:
        raise DataError(
            "E403", f"{item.name} keeps its {bits} bits in the middle of {allocated}; export it again."
        )


def _brightness_order(tags: Any, stored: np.ndarray) -> np.ndarray:
    """The values in the file's numbers, inverted if high values mean dark."""
    if str(tags.PhotometricInterpretation) != "MONOCHROME1":
        return stored
    if stored.dtype.kind not in "iu":
        return -stored
    bits = int(tags.get("BitsStored") or 8 * stored.dtype.itemsize)
    total = -1 if stored.dtype.kind == "i" else (1 << bits) - 1  # the lowest and the highest number together
    return total - stored.astype(np.int64)


def _plane_of(item: DicomFile, tags: Any, values_RC: np.ndarray, i: int) -> Plane:
    slope, intercept = (
        _tag_number(item, keyword, _tag(tags, i, "PixelValueTransformationSequence", keyword), default)
        for keyword, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
    )
    if not slope:
        raise dicom_error(item, "its RescaleSlope is 0")
    with np.errstate(over="ignore"):  # infinite values are refused
        scaled = (values_RC.astype(np.float64) * slope + intercept).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise dicom_error(item, "rescaled, some of its values are not finite")
    position = _tag_numbers(
        item, "ImagePositionPatient", _tag(tags, i, "PlanePositionSequence", "ImagePositionPatient"), 3
    )
    directions = _directions(item, _tag(tags, i, "PlaneOrientationSequence", "ImageOrientationPatient"))
    spacing = _tag_numbers(item, "PixelSpacing", _tag(tags, i, "PixelMeasuresSequence", "PixelSpacing"), 2)
    if spacing is not None and spacing.min() <= 0:
        raise dicom_error(item, "its PixelSpacing is not above 0")
    between, thick = (
        _tag_number(item, keyword, _tag(tags, i, "PixelMeasuresSequence", keyword), 0.0)
        for keyword in ("SpacingBetweenSlices", "SliceThickness")
    )
    number = tags.get("InstanceNumber")
    return Plane(
        item,
        scaled,
        position,
        directions,
        spacing,
        abs(between) or abs(thick),
        None if number is None else int(number),
    )


def _tag(tags: Any, i: int, group: str, keyword: str) -> Any:
    """A tag of a frame: from the frame's group, the shared group, or the top of the file; None without
    one."""
    frames, common = tags.get("PerFrameFunctionalGroupsSequence"), tags.get("SharedFunctionalGroupsSequence")
    if frames and i >= len(frames):
        return None
    for groups in (frames[i] if frames else None, common[0] if common else None):
        inner = groups.get(group) if groups is not None else None
        if inner and inner[0].get(keyword) is not None:
            return inner[0].get(keyword)
    return tags.get(keyword)


def _tag_number(item: DicomFile, keyword: str, value: Any, default: float) -> float:
    if value is None or value == "":
        return default
    if not np.isfinite(float(value)):
        raise dicom_error(item, f"its {keyword} is not finite")
    return float(value)


def _tag_numbers(item: DicomFile, keyword: str, value: Any, n: int) -> np.ndarray | None:
    if value is None or value == "":
        return None
    numbers = np.array([float(v) for v in value], np.float64)
    if len(numbers) != n or not np.isfinite(numbers).all():
        raise dicom_error(item, f"its {keyword} is not {n} finite numbers")
    return numbers


def _directions(item: DicomFile, value: Any) -> np.ndarray | None:
    numbers = _tag_numbers(item, "ImageOrientationPatient", value, 6)
    if numbers is None:
        return None
    pair = numbers.reshape(2, 3)
    if np.abs(pair @ pair.T - np.eye(2)).max() > 1e-2:
        raise dicom_error(item, "its ImageOrientationPatient is not two directions at a right angle")
    return pair


PLANE_TOLERANCE = 0.05
"""Tolerance of a plane's position, in millimetres or as a share of the step between planes; scanners
round."""


@dataclass(frozen=True)
class Series:
    """The files of one series, in the order of paths. name: its name in messages, such as `scans, series
    3`."""

    name: str
    items: tuple[DicomFile, ...]

    def __str__(self) -> str:
        return self.name


def stack_series(series: Series) -> Volume:
    """The volume of a series.

    Raises DataError: E401 for damaged files, missing planes and series that are too large, E403 for colours,
    E404 for a series with images that do not form one stack.
    """
    stack: list[Plane] = []
    room = LARGEST_DICOM // 2
    for item in series.items:
        more = read_planes(item, read_whole(item), room)
        room -= sum(plane.values.size for plane in more)
        stack += more
    _check_planes(series, stack)
    stack = _sort_planes(series, stack)
    values = np.stack([plane.values.T for plane in stack], axis=2)  # columns, rows, planes: x, y, z of NIfTI
    directions, spacing = stack[0].directions, stack[0].spacing
    if directions is None or spacing is None:
        return _without_position(series, stack, values)
    return _turn_axes(series, values, _affine(series, stack, directions, spacing))


def _check_planes(series: Series, stack: Sequence[Plane]) -> None:
    """Raises DataError: E404 for planes that do not form one stack, E401 for positions without a pixel
    spacing."""
    first = stack[0]
    for plane in stack[1:]:
        first_shape, shape = (" x ".join(map(str, p.values.shape)) for p in (first, plane))
        if first_shape != shape:
            raise _stack_error(series, f"holds images of {first_shape} and of {shape}")
        if (first.position is None) != (plane.position is None):
            raise _stack_error(series, "says of some of its images where they lie, and not of others")
        for a, b, noun in (
            (first.directions, plane.directions, "orientations"),
            (first.spacing, plane.spacing, "pixel sizes"),
        ):
            if a is None and b is None:
                continue
            if a is None or b is None or np.abs(a - b).max() > 1e-3:
                raise _stack_error(series, f"holds images of several {noun}")
    if (first.position is None) != (first.directions is None):
        raise DataError(
            "E401",
            f"{series} has one of ImagePositionPatient and ImageOrientationPatient; export it with both.",
        )
    if first.position is not None and first.spacing is None:
        raise DataError(
            "E401", f"{series} has no PixelSpacing, so its proportions are not known; export it again."
        )


def _stack_error(series: Series, fault: str) -> DataError:
    return DataError(
        "E404", f"{series} {fault}, as scouts and localisers do; leave them out, or export a series for each."
    )


def _sort_planes(series: Series, stack: Sequence[Plane]) -> list[Plane]:
    """The planes along their normal, or by their numbers. Raises DataError (E404) for two planes in one
    place."""
    first = stack[0]
    if first.position is None or first.directions is None:
        if len(series.items) == 1:  # the frames of one file are in order
            return list(stack)
        numbers = [plane.number for plane in stack]
        if None in numbers or len(set(numbers)) < len(numbers):
            raise _stack_error(series, "has neither positions nor an image number of its own for each image")
        return sorted(stack, key=lambda plane: plane.number or 0)
    normal = np.cross(*first.directions)
    along = np.array([normal @ p.position for p in stack])
    order = np.argsort(along, kind="stable")
    steps = np.diff(along[order])
    if steps.size and steps.min() < 1e-3:
        text = f"{series} has two images in one place: it holds several times, echoes or copies"
        raise DataError("E404", f"{text}; give one volume a series.")
    if (
        steps.size
        and steps.max() - (usual := float(np.sort(steps)[(len(steps) - 1) // 2])) > PLANE_TOLERANCE * usual
    ):
        text = (
            f"{series} lacks images: one lies {steps.max():.4g} mm behind its neighbour, others"
            f" {usual:.4g} mm"
        )
        raise DataError("E401", f"{text}; copy or export all of it.")
    return [stack[i] for i in order]


def _affine(
    series: Series, stack: Sequence[Plane], directions: np.ndarray, spacing: np.ndarray
) -> np.ndarray:
    """The matrix from [column, row, plane] to millimetres to the right, front and head, [4, 4].

    Raises DataError (E401) if planes are not on a line at equal steps.
    """
    first = stack[0]
    positions = np.array([plane.position for plane in stack])
    if len(stack) > 1:
        step = (positions[-1] - positions[0]) / (len(stack) - 1)
        distance = np.abs(positions - (positions[0] + np.arange(len(stack))[:, None] * step)).max()
        if distance > max(PLANE_TOLERANCE, PLANE_TOLERANCE * float(np.linalg.norm(step))):
            text = (
                f"{series} has images that lie {distance:.4g} mm off the line of the others, or at unequal"
                " steps"
            )
            raise DataError("E401", f"{text}; copy or export all of it.")
    else:
        step = np.cross(*directions) * (first.step or 1.0)
    affine = np.eye(4)
    affine[:3, 0] = directions[0] * spacing[1]
    affine[:3, 1] = directions[1] * spacing[0]
    affine[:3, 2], affine[:3, 3] = step, positions[0]
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # DICOM counts to the left and the back


def _turn_axes(series: Series, values: np.ndarray, affine: np.ndarray) -> Volume:
    library = _nibabel(series)
    orientation = library.orientations.io_orientation(affine)
    canonical = library.orientations.apply_orientation(values, orientation)
    canonical_affine = affine @ library.orientations.inv_ornt_aff(orientation, values.shape)
    x, y, z = map(float, library.affines.voxel_sizes(canonical_affine))
    stored = "".join(library.aff2axcodes(affine))
    return Volume(Path(series.name), np.ascontiguousarray(canonical), canonical_affine, (x, y, z), stored)


def _without_position(series: Series, stack: Sequence[Plane], values: np.ndarray) -> Volume:
    """A volume without a position in the patient, such as an X-ray; rows run downwards, so that pictures
    are upright."""
    first = stack[0]
    row, column = (1.0, 1.0) if first.spacing is None else map(float, first.spacing)
    spacing = (column, row, first.step or 1.0)
    return Volume(Path(series.name), values[:, ::-1], np.diag([*spacing, 1.0]), spacing, "")


def _nibabel(series: Series) -> Any:
    try:
        return importlib.import_module("nibabel")
    except ImportError:
        raise DataError("E403", f"reading {series} needs nibabel; pip install 'unskew[medical]'.") from None
