"""A series of DICOM files (PS3.10) as a volume.

pydicom reads the files. Values are rescaled as the file says; MONOCHROME1, where high means dark, is inverted;
positions are in millimetres in the patient's frame: to the left, the back and the head (PS3.3, C.7.6.2). The
planes of a series are ordered by the projection of their positions onto the normal of their orientation, never
by file name; if no position is known, by the numbers of the images. The volume is turned as one from a NIfTI
file is.

No identifier of a patient leaves this module: pydicom's messages quote tags, and paths often hold patients'
names, so these messages are dropped, and errors refer to a file by its number in the order of paths.

Letters: R rows, C columns.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.files.tree import IMAGE_ENDINGS, SOUND_ENDINGS, file_ending, is_system_file
from unskew.data.kinds.volume import Volume, canonical_volume
from unskew.data.samples.reading_notes import Note, quantity
from unskew.errors import DataError

DICOM = "dicom"
"""The name of every set and folder of DICOM in messages, because folders are often named after patients."""
ENDINGS = frozenset((".dcm", ".dicom"))
"""Endings of DICOM files; a file with one of them that is not DICOM counts as damaged."""
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
    """The files of one series, in the order of paths. name: its name in messages, such as `dicom, series 3`.

    patient: PatientID. title: SeriesDescription. folder: names from the root to the folder that contains all
    its files.
    """

    name: str
    paths: tuple[Path, ...]
    patient: str
    title: str
    folder: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def is_dicom(path: Path) -> bool:
    """Whether a file has the mark of DICOM after its first 128 bytes; False for a file that cannot be
    opened."""
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def holds_dicom(path: Path) -> bool:
    """Whether a path is a DICOM file, or a folder with DICOM files, at least as many as pictures and
    sounds."""
    if path.is_file():
        return is_dicom(path)
    files = _regular_files(path)
    candidates = [file for file in files if file_ending(file) not in IMAGE_ENDINGS | SOUND_ENDINGS]
    return sum(map(is_dicom, candidates)) >= max(1, len(files) - len(candidates))


def find_series(root: Path) -> tuple[list[Series], list[Note]]:
    """(the series in or below a file or folder, in the order of paths; notes on omissions).

    Raises DataError: E401 for damaged files, E404 for a folder without images, and for a series of two
    patients.
    """
    files = _regular_files(root) if root.is_dir() else [root]
    top = root if root.is_dir() else root.parent
    members: dict[str, list[tuple[Path, str, str]]] = {}
    omissions: Counter[str] = Counter()
    for i, path in enumerate(files):
        name = f"{DICOM}, file {i + 1:,} of {len(files):,}"
        if any(is_system_file(part) for part in path.relative_to(top).parts):
            omissions["hidden or system file"] += 1
        elif not os.access(path, os.R_OK):
            raise DataError("E401", f"{name} may not be read; let this user read it, or take it away.")
        elif not is_dicom(path):
            if file_ending(path) in ENDINGS:
                raise DataError("E401", f"{name} is called .dcm and is not DICOM; export it again.")
            omissions["non-DICOM file"] += file_ending(path) not in (".csv", ".tsv")
        elif (tags := _read_head(path, name)) is None:
            omissions["imageless DICOM object"] += 1
        else:
            patient, title = (str(tags.get(k) or "").strip() for k in ("PatientID", "SeriesDescription"))
            members.setdefault(str(tags.SeriesInstanceUID), []).append((path, patient, title))
    if not members:
        raise DataError("E404", f"{DICOM} holds no image of DICOM; reports and segmentations are none.")
    series: list[Series] = []
    for number, items in enumerate(members.values()):
        name = f"{DICOM}, series {number + 1:,} of {len(members):,}"
        paths, (_, patient, title) = [path for path, _, _ in items], items[0]
        if any(other != patient for _, other, _ in items):
            raise DataError("E404", f"{name} is of several patients, by its PatientID; export it again.")
        folder = Path(os.path.commonpath([path.parent.relative_to(top) for path in paths])).parts
        series.append(Series(name, tuple(paths), patient, title, folder))
    return series, [("left out", quantity(n, noun)) for noun, n in omissions.items() if n]


def _regular_files(root: Path) -> list[Path]:
    """All regular files below a folder, in the order of `find -type f | LC_ALL=C sort`."""
    paths = (Path(place) / name for place, _, names in os.walk(root) for name in names)
    return sorted((p for p in paths if p.is_file() and not p.is_symlink()), key=os.fsencode)


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


def _read_head(path: Path, name: str) -> Any | None:
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


def stack_series(series: Series) -> Volume:
    """The volume of a series.

    Raises DataError: E401 for damaged files and missing planes, E403 for colours, for files of several frames
    and for compressed pixels that need another package, E404 for a series with images that do not form one
    stack.
    """
    planes = [_read_plane(path, f"{series}, file {i + 1:,}") for i, path in enumerate(series.paths)]
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


def _read_plane(path: Path, name: str) -> Plane:
    """The plane of a file."""
    with quiet_pydicom(name) as pydicom:
        tags = pydicom.dcmread(path)
        if int(tags.get("NumberOfFrames") or 1) > 1:
            raise DataError("E403", f"{name} holds several frames; convert it to NIfTI, as dcm2niix does.")
        light = str(tags.get("PhotometricInterpretation", ""))
        if int(tags.get("SamplesPerPixel") or 1) != 1 or light not in ("MONOCHROME1", "MONOCHROME2"):
            raise DataError("E403", f"{name} holds colours; give grey images, or leave it out (image=).")
        syntax = tags.file_meta.TransferSyntaxUID
        if syntax.is_encapsulated and not pydicom.pixels.get_decoder(syntax).is_available:
            raise DataError("E403", f"{name} is packed as {syntax.name}; {PLUGINS}, or export it unpacked.")
        stored = np.asarray(tags.pixel_array)
        if light == "MONOCHROME1":  # high numbers mean dark
            bits = int(tags.get("BitsStored") or 8 * stored.dtype.itemsize)
            total = {"u": (1 << bits) - 1, "i": -1}.get(stored.dtype.kind, 0)  # the lowest plus the highest
            stored = total - stored.astype(np.int64 if total else stored.dtype)
        with np.errstate(over="ignore"):  # infinite values are refused
            values_RC = pydicom.pixels.apply_modality_lut(stored, tags).astype(np.float32)

        def numbers(keyword: str, *shape: int) -> np.ndarray | None:
            value = tags.get(keyword)
            return None if value in (None, "") else np.array([float(v) for v in value]).reshape(shape)

        return Plane(
            values_RC,
            numbers("ImagePositionPatient", 3),
            numbers("ImageOrientationPatient", 2, 3),
            numbers("PixelSpacing", 2),
            abs(float(tags.get("SpacingBetweenSlices") or tags.get("SliceThickness") or 0)),
            None if tags.get("InstanceNumber") is None else int(tags.InstanceNumber),
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
        numbers = [plane.number for plane in stack]
        if len(stack) > 1 and (None in numbers or len(set(numbers)) < len(numbers)):
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
