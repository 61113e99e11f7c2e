"""A medical volume, read from a NIfTI file or a series of DICOM files (PS3.10), and cut into square slices.

The values of a .nii or .nii.gz file are those stored, times the header's slope plus its intercept, and the
axes are turned until they run to the patient's right, front and head.

All slices are the same way up and in proportion, however the file was stored: rows run from the front, or the
head, downwards; columns to the patient's right, in sagittal slices to the front.

No identifier of a patient leaves this module: pydicom's messages quote tags, and paths often hold patients'
names, so these messages are dropped, and errors refer to a file of DICOM by its number in the order of paths.

DICOM: values are rescaled as the file says; MONOCHROME1, where high means dark, is inverted; positions are in
millimetres in the patient's frame: to the left, the back and the head (PS3.3, C.7.6.2). A file of several
frames has these tags for each frame in groups, for all frames in a shared group, or at its top.

The planes of a series are ordered by the projection of their positions onto the normal of their orientation,
never by file name; if no position is known, by the numbers of the images. The volume is turned as one from a
NIfTI file is.

Letters: X, Y, Z axes of a volume, N slices, H height, W width, S the side, F frames, R rows, C columns.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


DICOM = "dicom"
"""The name of every set and folder of DICOM in messages, because folders are often named after patients."""
HEAD_TAGS = ("PatientID", "SeriesInstanceUID", "SeriesDescription", "SOPClassUID", "Rows", "Columns")
"""The tags that identify a file's patient and series."""
_LABEL_OBJECTS = ("Segmentation Storage", "RT Dose Storage", "Surface Segmentation Storage")
"""Kinds of objects that have rows and columns but are no images: labels and doses."""
PLUGINS = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
PLANE_TOLERANCE = 0.05
"""Tolerance of a plane's position, in millimetres or as a share of the step between planes; scanners
round."""


@dataclass(frozen=True)
class Series:
    """The files of one series, in the order of paths. name: its name in messages, such as `dicom, series
    3`."""

    name: str
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Plane:
    """values: float32 [R, C]. position: position of its first pixel, [3]. directions: directions of
    increasing columns and rows, [2, 3].

    spacing: from row to row and from column to column. All are in millimetres, None if the file does not have
    them. step: distance to the next plane, 0 if unknown. number: number of the image in its series.
    """

    values: np.ndarray
    position: np.ndarray | None
    directions: np.ndarray | None
    spacing: np.ndarray | None
    step: float
    number: int | None


def is_dicom(path: Path) -> bool:
    """Whether a file has the mark of DICOM after its first 128 bytes; False for a file that cannot be
    opened."""
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


@contextmanager
def quiet_pydicom(name: str) -> Iterator[Any]:
    """The package pydicom, with its warnings, logs and errors suppressed. name: of the file, for messages.

    Raises DataError: E401 for any error within the context, E403 if pydicom is not installed.
    """
    try:
        library = importlib.import_module("pydicom")
    except ImportError:
        raise DataError("E403", f"reading {name} needs pydicom; pip install 'unskew[medical]'.") from None
    log = logging.getLogger("pydicom")
    was = log.disabled
    try:
        log.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield library
    except DataError:
        raise
    except Exception as error:  # pydicom raises many kinds of error, and their text quotes tags
        fault = f"it is cut off or damaged ({type(error).__name__})"
        raise DataError("E401", f"{name} cannot be read as DICOM: {fault}. Export it again.") from None
    finally:
        log.disabled = was


def read_head(path: Path, name: str) -> Any | None:
    """The tags HEAD_TAGS of a file that holds an image, None for other objects (reports, directories,
    segmentations). Raises DataError (E401) for a damaged file."""
    with quiet_pydicom(name) as pydicom:
        tags = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(HEAD_TAGS))
        kind = pydicom.uid.UID(tags.SOPClassUID).name  # a truncated file has none, which is an error here
        sized = "Rows" in tags and "Columns" in tags
        if "Image Storage" not in kind and (not sized or kind in _LABEL_OBJECTS):
            return None
        if not tags.get("SeriesInstanceUID"):
            fault = "it has no SeriesInstanceUID"
            raise DataError("E401", f"{name} cannot be read as DICOM: {fault}. Export it again.")
        return tags


def stack_series(series: Series) -> Volume:
    """The volume of a series.

    Raises DataError: E401 for damaged files and missing planes, E403 for colours and for compressed pixels
    that need another package, E404 for a series with images that do not form one stack.
    """
    planes = [
        plane
        for i, path in enumerate(series.paths)
        for plane in _read_planes(path, f"{series}, file {i + 1:,}")
    ]
    stack = _sort_planes(series, planes)
    values = np.stack([plane.values.T for plane in stack], axis=2)  # columns, rows, planes: x, y, z of NIfTI
    if not np.isfinite(values).all():
        raise DataError("E401", f"{series}: rescaled, some of its values are not finite; export it again.")
    first = stack[0]
    if first.position is None or first.directions is None or first.spacing is None:
        # such as an X-ray; rows run downwards, so that pictures are upright
        row, column = (1.0, 1.0) if first.spacing is None else map(float, first.spacing)
        spacing = (column, row, first.step or 1.0)
        return Volume(Path(series.name), values[:, ::-1], np.diag([*spacing, 1.0]), spacing, "")
    return canonical_volume(Path(series.name), values, _affine(series, stack))


def _read_planes(path: Path, name: str) -> list[Plane]:
    """The planes of a file."""
    with quiet_pydicom(name) as pydicom:
        tags = pydicom.dcmread(path)
        light = str(tags.get("PhotometricInterpretation", ""))
        if int(tags.get("SamplesPerPixel") or 1) != 1 or light not in ("MONOCHROME1", "MONOCHROME2"):
            raise DataError("E403", f"{name} holds colours; give grey images, or leave it out (image=).")
        syntax = tags.file_meta.TransferSyntaxUID
        if syntax.is_encapsulated and not pydicom.pixels.get_decoder(syntax).is_available:
            raise DataError("E403", f"{name} is packed as {syntax.name}; {PLUGINS}, or export it unpacked.")
        stored = np.asarray(tags.pixel_array).reshape(-1, int(tags.Rows), int(tags.Columns))
        if light == "MONOCHROME1":  # high numbers mean dark
            bits = int(tags.get("BitsStored") or 8 * stored.dtype.itemsize)
            total = {"u": (1 << bits) - 1, "i": -1}.get(stored.dtype.kind, 0)  # the lowest plus the highest
            stored = total - stored.astype(np.int64 if total else stored.dtype)
        return [_plane_of(tags, values_RC, i) for i, values_RC in enumerate(stored)]


def _plane_of(tags: Any, values_RC: np.ndarray, i: int) -> Plane:
    def tag(group: str, keyword: str, default: Any = None) -> Any:
        """A tag of the frame: from its group, the shared group, or the top of the file."""
        frames, common = (tags.get(f"{name}FunctionalGroupsSequence") for name in ("PerFrame", "Shared"))
        for groups in (frames[i] if frames else None, common[0] if common else None):
            inner = groups.get(group) if groups is not None else None
            if inner and inner[0].get(keyword) not in (None, ""):
                return inner[0].get(keyword)
        value = tags.get(keyword)
        return default if value in (None, "") else value

    def numbers(group: str, keyword: str, *shape: int) -> np.ndarray | None:
        value = tag(group, keyword)
        return None if value is None else np.array([float(v) for v in value], np.float64).reshape(shape)

    slope, intercept = (
        float(tag("PixelValueTransformationSequence", keyword, default))
        for keyword, default in (("RescaleSlope", 1), ("RescaleIntercept", 0))
    )
    with np.errstate(over="ignore"):  # infinite values are refused
        scaled = (values_RC.astype(np.float64) * slope + intercept).astype(np.float32)
    between, thick = (
        abs(float(tag("PixelMeasuresSequence", keyword, 0)))
        for keyword in ("SpacingBetweenSlices", "SliceThickness")
    )
    number = tags.get("InstanceNumber")
    return Plane(
        scaled,
        numbers("PlanePositionSequence", "ImagePositionPatient", 3),
        numbers("PlaneOrientationSequence", "ImageOrientationPatient", 2, 3),
        numbers("PixelMeasuresSequence", "PixelSpacing", 2),
        between or thick,
        None if number is None else int(number),
    )


def _sort_planes(series: Series, stack: Sequence[Plane]) -> list[Plane]:
    """The planes along their normal, or by their numbers."""

    def error(fault: str) -> DataError:
        remedy = "as scouts and localisers do; leave them out, or export a series for each"
        return DataError("E404", f"{series} {fault}, {remedy}.")

    first = stack[0]
    for plane in stack[1:]:
        first_shape, shape = (" x ".join(map(str, p.values.shape)) for p in (first, plane))
        if first_shape != shape:
            raise error(f"holds images of {first_shape} and of {shape}")
        for noun in ("position", "directions", "spacing"):
            a, b = getattr(first, noun), getattr(plane, noun)
            differ = noun != "position" and a is not None and b is not None and np.abs(a - b).max() > 1e-3
            if (a is None) != (b is None) or differ:
                raise error(f"holds images that differ in their {noun}")
    if first.position is None or first.directions is None:
        if len(series.paths) == 1:  # the frames of one file are in order
            return list(stack)
        numbers = [plane.number for plane in stack]
        if None in numbers or len(set(numbers)) < len(numbers):
            raise error("has neither positions nor an image number of its own for each image")
        return sorted(stack, key=lambda plane: plane.number or 0)
    if first.spacing is None:
        raise DataError("E401", f"{series} has no PixelSpacing; export it again.")
    normal = np.cross(*first.directions)
    along = np.array([normal @ p.position for p in stack])
    order = np.argsort(along, kind="stable")
    steps = np.diff(along[order])
    if steps.size and steps.min() < 1e-3:
        text = f"{series} has two images in one place: it holds several times, echoes or copies"
        raise DataError("E404", f"{text}; give one volume a series.")
    return [stack[i] for i in order]


def _affine(series: Series, stack: Sequence[Plane]) -> np.ndarray:
    """The matrix from [column, row, plane] to millimetres to the right, front and head, [4, 4]."""
    directions, spacing = stack[0].directions, stack[0].spacing
    assert directions is not None and spacing is not None  # noqa: PT018
    positions = np.array([plane.position for plane in stack])
    step = np.cross(*directions) * (stack[0].step or 1.0)
    if len(stack) > 1:
        step = (positions[-1] - positions[0]) / (len(stack) - 1)
        distance = np.abs(positions - (positions[0] + np.arange(len(stack))[:, None] * step)).max()
        if distance > max(PLANE_TOLERANCE, PLANE_TOLERANCE * float(np.linalg.norm(step))):
            text = f"{series} lacks images, or has some that lie {distance:.4g} mm off the line of the others"
            raise DataError("E401", f"{text}; copy or export all of it.")
    affine = np.eye(4)
    affine[:3, 0] = directions[0] * spacing[1]
    affine[:3, 1] = directions[1] * spacing[0]
    affine[:3, 2], affine[:3, 3] = step, positions[0]
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # DICOM counts to the left and the back
