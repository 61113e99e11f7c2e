"""The volumes of a folder of NIfTI files: patient, site, mask or class of each, and which patients are held
out.

imagesTr/case.nii.gz + labelsTr/case.nii.gz
    images and masks in folders side by side (unskew.data.files.tree)
[site/] patient/scan.nii.gz + patient/scan_seg.nii.gz
    a mask next to its image, or the only one of its folder
sub-01/anat/sub-01_T1w.nii.gz + derivatives/.../sub-01_dseg.nii.gz
    BIDS: subject and session identify the pair
[site/] CLASS/scan.nii.gz
    a class for each volume

A patient is what `sub-` names, else the folder of a volume and its mask, else the file.

A table of patients (participants.tsv as BIDS has it, patients.csv or patients.tsv) may add sites and classes.
All volumes of a patient, and so all slices, are on one side of a split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet, read_csv
from unskew.data.files.tree import (
    CHANNEL_SUFFIX,
    MASK_FOLDERS,
    MASK_SUFFIXES,
    File,
    FolderTree,
    has_mask_folders,
    pair_masks,
    plain_name,
)
from unskew.data.kinds.column_roles import column_named
from unskew.data.readers.from_folder import files_by_class
from unskew.data.samples.dataset import largest_remainder
from unskew.data.samples.reading_notes import Note, abbreviate
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
        scans = [Scan(p.image.path, _patient_of(p.image), p.site, p.image.part, p.mask.path) for p in pairs]
        return ScanLayout(tuple(scans), (), (*tree.notes, *notes))
    masks = [f for f in tree.files if is_mask_name(f)]
    images = [f for f in tree.files if not is_mask_name(f) and f.stem.endswith(image)]
    if not images:
        raise DataError("E404", f"{tree.root} holds no volumes but masks; check the setting image={image}.")
    if masks:
        return ScanLayout(tuple(_match_masks(tree.root, images, masks)), (), tree.notes)
    if labelled:
        return ScanLayout(tuple(Scan(f.path, _patient_of(f), "", f.part) for f in images), (), tree.notes)
    by_class = files_by_class(tree, images)
    sites = by_class.sites or [""] * len(images)
    by_folder = [
        Scan(f.path, _patient_of(f), site, f.part, None, label)
        for f, site, label in zip(by_class.files, sites, by_class.labels)
    ]
    return ScanLayout(tuple(by_folder), by_class.classes, (*tree.notes, *by_class.notes))


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
        patient, above = _patient_of(image), image.folders
        if key[-1] == "folder":
            above = image.folders[:-1]
            patient = patient if _SUBJECT.search(image.stem) else image.folders[-1:][0]
        elif _SUBJECT.search(image.stem):
            above = ()
        scans.append(Scan(image.path, patient, "/".join(above), image.part, matches[0].path))
    return scans


def _place_key(file: File) -> tuple[str, ...]:
    """What an image and its mask have in common if not the name: subject and session, else the folder."""
    if subject := _SUBJECT.search(file.stem):
        session = _SESSION.search(file.stem)
        return file.part, subject[1], session[1] if session else "", "subject"
    return (file.part, *file.folders, "folder")


def _patient_of(file: File) -> str:
    subject = _SUBJECT.search(file.stem)
    return subject[1] if subject else file.stem.removesuffix(CHANNEL_SUFFIX)


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
    rows = {str(v): i for i, v in reversed(list(enumerate(next(iter(sheet.columns.values())))))}
    if lacking := {scan.patient: None for scan in layout.scans if scan.patient not in rows}:
        text = f"{path} has no line for {abbreviate([*lacking])}"
        raise DataError("E403", f"{text}; its first column names patients.")
    scans = list(layout.scans)
    if site:
        values = _patient_column(sheet, site, path)
        scans = [replace(scan, site=values[rows[scan.patient]]) for scan in scans]
    if not label:
        return replace(layout, scans=tuple(scans))
    values = _patient_column(sheet, label, path)
    classes = tuple(sorted({values[rows[scan.patient]] for scan in scans}))
    labelled = [replace(scan, label=classes.index(values[rows[scan.patient]])) for scan in scans]
    return replace(layout, scans=tuple(labelled), classes=classes)


def _patient_column(sheet: Sheet, name: str, path: Path) -> list[str]:
    """The values of a column. Raises DataError (E403) for a column that does not exist or lacks values."""
    values = sheet.columns[column_named(sheet.columns, name, path.name)]
    if (missing := cells.missing(values)).any():
        where = sheet.where(int(missing.argmax()))
        raise DataError("E403", f"{path}: column '{name}' has no value {where}; fill it in.")
    return list(map(str, values))


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
    a kind."""
    rng = np.random.default_rng(1797)
    names, counts = np.unique(kinds, return_counts=True)
    quota = counts * share * max(1.0, 1 / (len(kinds) * share))
    numbers = largest_remainder(quota, np.maximum(counts - 1, 0))
    if not numbers.any():  # every kind has one patient
        numbers[0] = 1
    test = np.zeros(len(kinds), dtype=bool)
    for kind, number in zip(names, numbers):
        test[rng.permutation(np.flatnonzero(kinds == kind))[:number]] = True
    return test
