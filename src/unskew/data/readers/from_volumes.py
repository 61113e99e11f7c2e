"""A data set from medical volumes in folders, as slices: with masks, or with a class for each volume.

imagesTr/case.nii.gz + labelsTr/case.nii.gz
    images and masks in folders side by side (unskew.data.files.folder_tree)
[site/] patient/scan.nii.gz + patient/scan_seg.nii.gz
    a mask next to its image, or the only one of its folder
sub-01/anat/sub-01_T1w.nii.gz + derivatives/.../sub-01_dseg.nii.gz
    BIDS: subject and session identify the pair
[site/] CLASS/scan.nii.gz
    a class for each volume

A patient is what `sub-` names, else the folder below the site that holds a volume and its mask, else the
file; fewer than five folders of volumes with names of their own are sites. `group` names the patients
otherwise; folders that then hold files of one patient each are no sites. A table of patients
(participants.tsv as BIDS has it, patients.csv or patients.tsv) may add sites and classes. All volumes of a
patient, and so all slices, are on one side of a split.

The values of a .nii or .nii.gz file are those stored, times the header's slope plus its intercept, and the
axes are turned until they run to the patient's right, front and head. All slices are the same way up and in
proportion, however the file was stored: rows run from the front, or the head, downwards; columns to the
patient's right, in sagittal slices to the front.

Letters: X, Y, Z axes of a volume, N slices, H height, W width, S the side.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le

from unskew.data.files import cells
from unskew.data.files.archives import most_unpacked
from unskew.data.files.folder_tree import (
    CHANNEL_SUFFIX,
    MASK_FOLDERS,
    MASK_SUFFIXES,
    VOLUME_ENDINGS,
    File,
    FolderTree,
    folders_below_site,
    has_mask_folders,
    pair_masks,
    plain_name,
    read_tree,
)
from unskew.data.files.sheets import read_csv
from unskew.data.kinds.column_roles import (
    FEWEST_FILE_GROUPS,
    INDEPENDENT,
    column_named,
    file_groups,
    file_question,
)
from unskew.data.kinds.images import area_weights, read_each
from unskew.data.kinds.masks import as_masks
from unskew.data.readers.from_folder import files_by_class
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.dataset import Dataset, check_numbers, largest_remainder
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError

MASK_ENDINGS = (*MASK_SUFFIXES, "_dseg", "-label", "_labels")
"""The suffixes of a mask's name, after the name of its image."""
PATIENT_TABLES = ("participants.tsv", "patients.csv", "patients.tsv")
"""The names of tables of patients; the first column names patients."""
_SUBJECT = re.compile(r"(?:^|_)(sub-[A-Za-z0-9]+)")
_SESSION = re.compile(r"(?:^|_)(ses-[A-Za-z0-9]+)")


@dataclass(frozen=True)
class Scan:
    """A volume. mask: its mask, None if volumes have classes. label: its class, -1 if volumes have masks.
    Equal names of patients at two sites are two people."""

    path: Path
    patient: str
    site: str
    part: str
    mask: Path | None = None
    label: int = -1

    @property
    def owner(self) -> str:
        """The key of the patient; no split may separate the scans of one key."""
        return f"{self.site}/{self.patient}"


@dataclass(frozen=True)
class ScanLayout:
    """The volumes of a folder. scans: in the order of paths. classes: () if volumes have masks."""

    scans: tuple[Scan, ...]
    classes: tuple[str, ...]
    notes: tuple[Note, ...]


def read_scans(tree: FolderTree, image: str = "", labelled: bool = False) -> ScanLayout:
    """The volumes below a folder.

    image: suffix of the images' names if a patient has several files, "" to take each. labelled: whether a
    table has the classes of the volumes, instead of folders.
    Raises DataError (E404) for images without a mask or with several, and for folders that name no
    classes.
    """
    if has_mask_folders(tree):
        files = tuple(f for f in tree.files if is_in_mask_folder(f) or f.stem.endswith(image))
        pairs, notes = pair_masks(FolderTree(tree.root, files, tree.folders, ()))
        scans = [
            Scan(
                p.image.path,
                _patient_of(p.image, folders_below_site(p.image)),
                p.site,
                p.image.part,
                p.mask.path,
            )
            for p in pairs
        ]
        return ScanLayout(tuple(scans), (), (*tree.notes, *notes))
    masks = [f for f in tree.files if is_mask_name(f)]
    images = [f for f in tree.files if not is_mask_name(f) and f.stem.endswith(image)]
    if not images:
        raise DataError("E404", f"{tree.root} holds no volumes but masks; check the setting image={image}.")
    if masks:
        return ScanLayout(tuple(_match_masks(tree.root, images, masks)), (), tree.notes)
    if labelled:
        inner = _patient_folders(images)
        listed = [Scan(f.path, _patient_of(f, f.folders if inner else ()), "", f.part) for f in images]
        return ScanLayout(tuple(listed), (), tree.notes)
    files, raw = files_by_class(tree, images)
    sites = raw.columns.get("site", [""] * len(files))
    by_folder = [
        Scan(file.path, _patient_of(file, ()), str(site), file.part, None, label)
        for file, site, label in zip(files, sites, raw.y.tolist())
    ]
    return ScanLayout(tuple(by_folder), raw.classes or (), (*tree.notes, *raw.notes))


def is_in_mask_folder(file: File) -> bool:
    """Whether a file is in a folder with a usual name for masks."""
    return any(plain_name(name) in MASK_FOLDERS for name in file.folders)


def is_mask_name(file: File) -> bool:
    """Whether a file has a usual name for a mask."""
    stem = file.stem.lower()
    return stem in MASK_FOLDERS or stem.endswith(MASK_ENDINGS)


def _match_masks(root: Path, images: Sequence[File], masks: Sequence[File]) -> list[Scan]:
    """Each image with its mask, by name, by subject and session, or by folder."""
    by_key: dict[tuple[str, ...], list[File]] = {}
    stems = {(f.part, *f.folders, f.stem) for f in images}
    for mask in masks:
        base = next((mask.stem[: -len(e)] for e in MASK_ENDINGS if mask.stem.lower().endswith(e)), "")
        place = (mask.part, *mask.folders, base)
        by_key.setdefault((*place, "name") if place in stems else _place_key(mask), []).append(mask)
    scans: list[Scan] = []
    images_by_key: dict[tuple[str, ...], File] = {}
    inner = _patient_folders(images)
    for image in images:
        key = (image.part, *image.folders, image.stem, "name")
        key = key if key in by_key else _place_key(image)
        matches = by_key.get(key, [])
        if len(matches) != 1:
            fault = f"has {len(matches)} masks" if matches else "has no mask"
            remedy = f"put one beside it, called {image.stem}_seg.nii.gz, or give images/ and masks/"
            raise DataError("E404", f"{image.path} {fault}; {remedy}.")
        if twin := images_by_key.get(key):
            fault = f"{twin.path} and {image.path} would share the mask {matches[0].path.name}"
            example = f"{root}/(image={image.stem.rpartition('_')[2]})"
            raise DataError("E404", f"{fault}; name the ending of the images' names, such as {example}.")
        images_by_key[key] = image
        above = image.folders[:-1] if inner else image.folders
        above = () if _SUBJECT.search(image.stem) else above
        patient = _patient_of(image, image.folders if inner else ())
        scans.append(Scan(image.path, patient, "/".join(above), image.part, matches[0].path))
    return scans


def _place_key(file: File) -> tuple[str, ...]:
    """What an image and its mask have in common if not the name: subject and session, else the folder."""
    if subject := _SUBJECT.search(file.stem):
        session = _SESSION.search(file.stem)
        return file.part, subject[1], session[1] if session else "", "subject"
    return (file.part, *file.folders, "folder")


def _patient_folders(images: Sequence[File]) -> bool:
    """Whether volumes lie in folders of patients. Few folders, of several volumes with names that no other
    folder has, are sites."""
    folders, stems = {file.folders for file in images}, {file.stem for file in images}
    return len(folders) >= FEWEST_FILE_GROUPS or not len(folders) < len(stems) == len(images)


def _patient_of(file: File, folders: Sequence[str]) -> str:
    """The patient of a volume: what `sub-` names, else the innermost of these folders, else the file."""
    subject = _SUBJECT.search(file.stem)
    return subject[1] if subject else [file.stem.removesuffix(CHANNEL_SUFFIX), *folders][-1]


def with_patients(layout: ScanLayout, patients: np.ndarray) -> ScanLayout:
    """The layout with these patients, [N]. The innermost folders of sites, if each holds files of one patient
    only, are those of patients, not sites."""
    scans = [replace(scan, patient=patient) for scan, patient in zip(layout.scans, patients.tolist())]
    notes = layout.notes
    while depth := max(len(_site_folders(scan)) for scan in scans):
        innermost = {(scan.site, scan.patient) for scan in scans if len(_site_folders(scan)) == depth}
        if len({site for site, _ in innermost}) < len(innermost):
            break  # the folder of several patients is a site's, and so are those beside it
        scans = [replace(scan, site="/".join(_site_folders(scan)[: depth - 1])) for scan in scans]
        notes = tuple((t, text.replace("site", "patient") if t == "sites" else text) for t, text in notes)
    return replace(layout, scans=tuple(scans), notes=notes)


def _site_folders(scan: Scan) -> list[str]:
    return scan.site.split("/") if scan.site else []


def group_question(root: Path, layout: ScanLayout) -> list[Note]:
    """The question whether what counts as several patients, by their folders and names, is one."""
    first = [*{scan.owner: scan for scan in layout.scans}.values()]
    classes = np.array([scan.label for scan in first]) if layout.classes else np.zeros((len(first), 0))
    test = np.array([scan.part == "test" for scan in first])
    paths, patients = _paths_below(root, first), [scan.patient for scan in first]
    return file_question(paths, classes, test if test.any() else None, stems=patients)


def _paths_below(root: Path, scans: Sequence[Scan]) -> list[str]:
    return [scan.path.relative_to(root).as_posix() for scan in scans]


def add_participants(layout: ScanLayout, root: Path, site: str, label: str) -> ScanLayout:
    """The layout with sites and classes from these columns of the patients' table; "" for none.

    Raises DataError: E402 without a table, E403 for a column or a patient that it lacks, and for classes of
    volumes that have masks.
    """
    if not site and not label:
        return layout
    if label and any(scan.mask for scan in layout.scans):
        raise DataError("E403", f"{root}: label={label} names classes, and these volumes have masks.")
    path = next((root / name for name in PATIENT_TABLES if (root / name).is_file()), None)
    if path is None:
        tables = ", ".join(PATIENT_TABLES)
        raise DataError("E402", f"{root} holds none of {tables}, which site= and label= read; write one.")
    sheet = read_csv(path)
    patients = list(map(str, next(iter(sheet.columns.values()))))
    if lacking := {scan.patient: None for scan in layout.scans if scan.patient not in patients}:
        text = f"{path} has no line for {abbreviate([*lacking])}"
        raise DataError("E403", f"{text}; its first column names patients.")
    of_patient: dict[str, dict[str, str]] = {}
    for name in filter(None, (site, label)):
        values = sheet.columns[column_named(sheet.columns, name, path.name)]
        if (missing := cells.missing(values)).any():
            where = sheet.where(int(missing.argmax()))
            raise DataError("E403", f"{path}: column '{name}' has no value {where}; fill it in.")
        of_patient[name] = dict(zip(reversed(patients), map(str, reversed(values.tolist()))))
    scans, classes = layout.scans, layout.classes
    if site:
        scans = tuple(replace(scan, site=of_patient[site][scan.patient]) for scan in scans)
    if label:
        classes = tuple(sorted({of_patient[label][scan.patient] for scan in scans}))
        labels = [classes.index(of_patient[label][scan.patient]) for scan in scans]
        scans = tuple(replace(scan, label=k) for scan, k in zip(scans, labels))
    return replace(layout, scans=scans, classes=classes)


def are_test_scans(name: str, scans: Sequence[Scan], share: float) -> np.ndarray:
    """Whether each volume belongs to the test part, bool [N]: by its folder, else a share of the patients of
    every site and class.

    Raises DataError: E404 for a patient in both parts, E403 if there is a single patient.
    """
    test = np.array([scan.part == "test" for scan in scans])
    owners = np.array([scan.owner for scan in scans])
    if test.any():
        if both := sorted(set(owners[test]) & set(owners[~test])):
            fault = f"the patient {both[0]} is in train/ and in test/"
            raise DataError("E404", f"{name}: {fault}; move all of each one into one of them.")
        return test
    patients, first = np.unique(owners, return_index=True)
    if len(patients) < 2:
        fault = f"all volumes are of one patient, {scans[0].patient}, so none is left to test on"
        raise DataError("E403", f"{name}: {fault}; add others.")
    kinds = np.array([f"{scans[i].site}/{scans[i].label}" for i in first])
    return np.isin(owners, patients[hold_out_patients(kinds, share)])


def hold_out_patients(kinds: np.ndarray, share: float) -> np.ndarray:
    """Which of these patients are held out, bool [N]: a share of each kind, at least one, and never all of
    a kind; a share of all patients if every kind has one."""
    rng = np.random.default_rng(1797)
    if len(np.unique(kinds)) == len(kinds):  # every kind has one patient
        kinds = np.zeros(len(kinds))
    names, counts = np.unique(kinds, return_counts=True)
    quota = counts * share * max(1.0, 1 / (len(kinds) * share))
    numbers = largest_remainder(quota, np.maximum(counts - 1, 0))
    test = np.zeros(len(kinds), dtype=bool)
    for kind, number in zip(names, numbers):
        test[rng.permutation(np.flatnonzero(kinds == kind))[:number]] = True
    return test


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
    with damage_as_error(path, "NIfTI", "copy it again"):
        image = library.load(path)
        shape, dtype = image.shape, image.get_data_dtype()
        if len(shape) < 3 or any(n != 1 for n in shape[3:]):
            fault = f"{len(shape)}-D, {' x '.join(map(str, shape))}"
            raise DataError("E403", f"{path} is {fault}; give one volume with three axes a file.")
        if dtype.kind not in "biuf":
            raise DataError("E403", f"{path} holds {dtype}; give one number a voxel.")
        if 2 * math.prod(shape) > most_unpacked(path.stat().st_size):
            fault = f"its {path.stat().st_size:,} bytes announce {' x '.join(map(str, shape))} voxels"
            raise DataError("E401", f"{path}: {fault}; cut it, or copy it again.")
        has_orientation = bool(image.header["sform_code"] or image.header["qform_code"])
        stored = "".join(library.aff2axcodes(image.affine)) if has_orientation else ""
        turned = library.as_closest_canonical(image)
        values = np.ascontiguousarray(turned.dataobj, dtype=np.float32).reshape(turned.shape[:3])
        check_numbers(values, str(path))
        affine = np.asarray(turned.affine, dtype=np.float64)
        x, y, z = map(float, library.affines.voxel_sizes(affine))
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


TEST_PATIENTS = 0.2
"""The share of patients that are held out if there is no folder test/."""


@dataclass(frozen=True)
class _Slices:
    """The slices of one volume: x float32 [N, S, S], y the masks int64 [N, S, S], or None if it has a class.
    dropped: number of slices left out. stored: as in `Volume`."""

    x: np.ndarray
    y: np.ndarray | None
    dropped: int
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
    group: Annotated[
        str,
        "what no split separates: `patient`, as folders and names say, or a regular expression that finds the"
        " patient in the files' names or paths",
    ] = "",
) -> Dataset:
    """The slices of all volumes (.nii, .nii.gz) below `path/`: float32 [N, 1, size, size], in the
    order of the files.

    The docstring of this file lists the layouts that are read. Columns: `patient`, and `site` if folders or a
    table name it. Without a folder test/, a fifth of the patients of every site is held out; no patient is on
    both sides.
    Raises DataError: E404 for other layouts and for masks that do not fit, E401 and E403 for files that are
    no volumes, E404 for labels that are not whole numbers.
    """
    root = Path(path)
    layout = read_scans(read_tree(root, VOLUME_ENDINGS), image, bool(label))
    questions = [] if group else group_question(root, layout)
    if group not in ("", "patient", INDEPENDENT):
        layout = with_patients(layout, file_groups(_paths_below(root, layout.scans), group, str(root)))
    layout = add_participants(layout, root, site, label)
    name, scans = root.resolve().name, layout.scans
    test = are_test_scans(name, scans, TEST_PATIENTS)
    cuts = read_each([s.path for s in scans], lambda i: _cut_volume(scans[i], axis, size, empty == "drop"))
    counts = np.array([len(cut.x) for cut in cuts])
    if not counts[~test].any() or not counts[test].any():
        raise DataError(
            "E403", f"{name}: no slice is left to train or to test on (empty=drop); use empty=keep."
        )
    notes = [*layout.notes, *questions, *_slice_notes(scans, cuts, axis, size)]
    x, owner = np.concatenate([cut.x for cut in cuts])[:, None], np.repeat(np.arange(len(cuts)), counts)
    y, classes = np.array([scan.label for scan in scans], np.int64)[owner], layout.classes
    if not classes:
        masks = np.concatenate([cut.y for cut in cuts if cut.y is not None])
        (y,), classes = as_masks(name, [masks], None, notes, [lambda i: str(scans[owner[i]].mask)])
    columns = {"patient": np.array(_patients(scans))[owner]}
    if any(s.site for s in scans):
        columns["site"] = np.array([s.site for s in scans])[owner]
    form = {"kind": "volumes", "size": size, "axis": axis}
    raw = RawSamples(
        x, y, classes=classes, columns=columns, notes=tuple(notes), form=form, layout="channels first"
    )  # the notes on patients are above
    return replace(raw.divided(test[owner]).dataset(name), group_column="patient")


def prediction_slices(path: Path, name: str, axis: Axis, size: int) -> tuple[list[str], np.ndarray]:
    """(name of each slice, the slices [N, 1, size, size]) of a volume from which a model predicts."""
    x = cut_slices(read_nifti(path), axis, size)
    return [f"{name} slice {i}" for i in range(len(x))], x[:, None]


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
    return _Slices(x[keep], y, int((~keep).sum()), volume.stored)


def _patients(scans: Sequence[Scan]) -> list[str]:
    """The patient of each volume, with the site if several sites have patients of one name."""
    sites = {name: {s.site for s in scans if s.patient == name} for name in {s.patient for s in scans}}
    return [f"{s.site}/{s.patient}" if len(sites[s.patient]) > 1 else s.patient for s in scans]


def _slice_notes(scans: Sequence[Scan], cuts: Sequence[_Slices], axis: Axis, size: int) -> list[Note]:
    """Notes on patients, orientations, shapes and empty slices."""
    stored = Counter(cut.stored or "unknown" for cut in cuts)
    orientations = ", ".join(f"{orientation} {n:,}" for orientation, n in stored.most_common())
    of_patients = f"{quantity(len(scans), 'volume')} of {quantity(len({s.owner for s in scans}), 'patient')}"
    notes: list[Note] = [
        ("note", f"{of_patients}, whose slices are on one side of the test split"),
        ("scaled", f"orientations as stored: {orientations}; all were turned to RAS, in {axis} slices"),
        ("scaled", f"volumes became slices of {size} x {size}, in proportion (size={size})"),
    ]
    if "unknown" in stored:
        text = f"{quantity(stored['unknown'], 'volume')} without an orientation, taken as they are stored"
        notes.append(("note", f"{text}; look at some slices before you train"))
    if n := sum(cut.dropped for cut in cuts):
        notes.append(
            ("left out", f"{quantity(n, 'empty slice')} (empty=drop); scores are on the others only")
        )
    return notes
