"""The volumes of a folder: patient, site, mask or class of each, and which patients are held out.

NIfTI files:

imagesTr/case.nii.gz + labelsTr/case.nii.gz
    images and masks in folders side by side (unskew.data.files.tree)
[site/] patient/scan.nii.gz + patient/scan_seg.nii.gz
    a mask next to its image, or the only one of its folder
sub-01/anat/sub-01_T1w.nii.gz + derivatives/.../sub-01_dseg.nii.gz
    BIDS: subject and session identify the pair
[site/] CLASS/scan.nii.gz
    a class for each volume

A patient is what `sub-` names, else the folder of a volume and its mask, else the file.

DICOM: every file of an export is examined under any name; directories (DICOMDIR), reports, segmentations
and files of other kinds are left out, with a note, and links are not followed. Files of one SeriesInstanceUID
are a volume, and those of one PatientID are of one patient. Folders mean what they mean for NIfTI; a series
has the name of the folder that holds it alone, or of its file:

images/NAME/... + masks/NAME/...      [site/] patient/NAME/... + patient/NAME_seg/...
CLASS/...                             SITE/CLASS/..., if classes recur below sites and hold several patients

Folders are often named after patients. One that holds a single patient is therefore taken neither for a site
nor for a class, and patients are called by numbers, in the order of paths.

A table of patients (participants.tsv as BIDS has it, patients.csv or patients.tsv) may add sites and classes.
All volumes of a patient, and so all slices, are on one side of a split.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet, read_csv
from unskew.data.files.tree import (
    CHANNEL_SUFFIX,
    IMAGE_ENDINGS,
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    MASK_SUFFIXES,
    SOUND_ENDINGS,
    File,
    FolderTree,
    file_ending,
    has_mask_folders,
    is_system_file,
    pair_masks,
    plain_name,
    split_part,
)
from unskew.data.kinds.class_folders import files_by_class
from unskew.data.kinds.column_roles import column_named
from unskew.data.samples.dataset import largest_remainder
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.data.volumes.volume import DICOM, Series, is_dicom, read_head
from unskew.errors import DataError

DICOM_ENDINGS = frozenset((".dcm", ".dicom"))
"""Endings of DICOM files; a file with one of them that is not DICOM counts as damaged."""
MASK_ENDINGS = (*MASK_SUFFIXES, "_dseg", "-label", "_labels")
"""The suffixes of a mask's name, after the name of its image."""
PATIENT_TABLES = ("participants.tsv", "patients.csv", "patients.tsv")
"""The names of tables of patients; the first column names patients."""
TABLE_HINT = "name classes in a table (label=COLUMN of participants.tsv)"
_SUBJECT = re.compile(r"(?:^|_)(sub-[A-Za-z0-9]+)")
_SESSION = re.compile(r"(?:^|_)(ses-[A-Za-z0-9]+)")


@dataclass(frozen=True)
class Scan:
    """A volume, in a file or a series. mask: its mask, None if volumes have classes. label: its class, -1 if
    volumes have masks.

    person: the patient's name across sites; "" if equal names at two sites are two people.
    """

    path: Path | Series
    patient: str
    site: str
    part: str
    mask: Path | Series | None = None
    label: int = -1
    person: str = ""

    @property
    def owner(self) -> str:
        """The key of the patient; no split may separate the scans of one key."""
        return self.person or f"{self.site}/{self.patient}"


@dataclass(frozen=True)
class ScanLayout:
    """The volumes of a folder. scans: in the order of paths. classes: () if volumes have masks. private:
    whether patients have the names in their files, which no message may contain."""

    scans: tuple[Scan, ...]
    classes: tuple[str, ...]
    notes: tuple[Note, ...]
    private: bool = False


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


@dataclass(frozen=True)
class SeriesPlace:
    """A series.

    folder: names from the root to the folder that contains all its files. place: the path of the series as if
    it were one file, which is the last name. title: its SeriesDescription. Only the patient and the title
    come from tags.
    """

    series: Series
    patient: str
    title: str
    folder: tuple[str, ...]
    place: tuple[str, ...]


def holds_dicom(path: Path) -> bool:
    """Whether a path is a DICOM file, or a folder with DICOM files, at least as many as pictures and
    sounds."""
    if path.is_file():
        return is_dicom(path)
    files = _regular_files(path)
    candidates = [file for file in files if file_ending(file) not in IMAGE_ENDINGS | SOUND_ENDINGS]
    return sum(map(is_dicom, candidates)) >= max(1, len(files) - len(candidates))


def find_series(root: Path) -> tuple[list[SeriesPlace], list[Note]]:
    """(the series in or below a file or folder, in the order of paths; notes on omissions).

    Raises DataError: E401 for damaged files, E404 for a folder without images, and for a series of two
    patients.
    """
    files = _regular_files(root) if root.is_dir() else [root]
    members: dict[str, list[tuple[Path, str, str]]] = {}
    omissions: Counter[str] = Counter()
    for i, path in enumerate(files):
        name = f"{DICOM}, file {i + 1:,} of {len(files):,}"
        if any(is_system_file(part) for part in path.relative_to(root).parts):
            omissions["hidden or system file"] += 1
        elif not os.access(path, os.R_OK):
            raise DataError("E401", f"{name} may not be read; let this user read it, or take it away.")
        elif not is_dicom(path):
            if file_ending(path) in DICOM_ENDINGS:
                raise DataError("E401", f"{name} is called .dcm and is not DICOM; export it again.")
            omissions["non-DICOM file"] += file_ending(path) not in (".csv", ".tsv")
        elif (tags := read_head(path, name)) is None:
            omissions["imageless DICOM object"] += 1
        else:
            patient, title = (str(tags.get(k) or "").strip() for k in ("PatientID", "SeriesDescription"))
            members.setdefault(str(tags.SeriesInstanceUID), []).append((path, patient, title))
    if not members:
        raise DataError("E404", f"{DICOM} holds no image of DICOM; reports and segmentations are none.")
    notes: list[Note] = [("left out", quantity(n, noun)) for noun, n in omissions.items() if n]
    return _place_series(root, list(members.values())), notes


def _regular_files(root: Path) -> list[Path]:
    """All regular files below a folder, in the order of `find -type f | LC_ALL=C sort`."""
    paths = (Path(place) / name for place, _, names in os.walk(root) for name in names)
    return sorted((p for p in paths if p.is_file() and not p.is_symlink()), key=os.fsencode)


def _place_series(root: Path, members: list[list[tuple[Path, str, str]]]) -> list[SeriesPlace]:
    """Each series with its patient and its place. Raises DataError (E404) for a series of two patients."""
    root = root if root.is_dir() else root.parent
    within: dict[tuple[str, ...], set[int]] = {}
    for number, items in enumerate(members):
        for path, _, _ in items:
            parts = path.relative_to(root).parts[:-1]
            for depth in range(len(parts) + 1):
                within.setdefault(parts[:depth], set()).add(number)
    series: list[SeriesPlace] = []
    for number, items in enumerate(members):
        name = f"{DICOM}, series {number + 1:,} of {len(members):,}"
        paths, (_, patient, title) = [path for path, _, _ in items], items[0]
        if any(other != patient for _, other, _ in items):
            raise DataError("E404", f"{name} is of several patients, by its PatientID; export it again.")
        folder = Path(os.path.commonpath([path.parent.relative_to(root) for path in paths])).parts
        place = (*folder, f"series {number + 1:06}")
        if folder and len(within[folder]) == 1 and plain_name(folder[-1]) not in IMAGE_FOLDERS | MASK_FOLDERS:
            place = folder
        elif len(paths) == 1:
            file = paths[0]
            place = (*folder, file.stem if file_ending(file) in DICOM_ENDINGS else file.name)
        series.append(SeriesPlace(Series(name, tuple(paths)), patient, title, folder, place))
    return series


def read_dicom_scans(root: Path, image: str = "", labelled: bool = False) -> ScanLayout:
    """The volumes below a folder of DICOM.

    image: suffix of the names or descriptions of the series to take if a patient has several, "" to take
    each. labelled: whether a table has the classes of the volumes, instead of folders.
    Patients still have their PatientID, which a table may use; `number_patients` removes it. Raises DataError
    as `find_series` does, and E404 for images without one mask, series without a PatientID and folders that
    name no classes.
    """
    series, notes = find_series(root)
    if lacking := sum(not item.patient for item in series):
        text = f"{lacking:,} of {len(series):,} series have no PatientID; write a pseudonym for each patient"
        raise DataError("E404", f"{DICOM}: {text}.")
    split = any(split_part(item.folder)[0] == "train" for item in series)
    files = [_series_file(root, item, split) for item in series]
    folders = frozenset(f.folders[:i] for f in files for i in range(1, len(f.folders) + 1))
    tree = FolderTree(root, tuple(files), folders, ())
    if has_mask_folders(tree) or any(is_mask_name(f) for f in files):
        return _match_series(tree, series, image, notes)
    matches = [item for item in series if item.place[-1].endswith(image) or item.title.endswith(image)]
    if not matches:
        raise DataError("E404", f"{DICOM}: no name or description of a series ends in image={image}.")
    if n := len(series) - len(matches):
        notes.append(("left out", f"{n:,} series of other kinds (image={image})"))
    if labelled:
        return ScanLayout(tuple(_scan_of(item, split) for item in matches), (), tuple(notes), private=True)
    return _scans_by_class(matches, split, notes)


def number_patients(layout: ScanLayout) -> ScanLayout:
    """The layout with numbers in place of patients' names, in the order of paths."""
    people = dict.fromkeys(s.patient for s in layout.scans)
    numbers = {person: f"patient {i + 1}" for i, person in enumerate(people)}
    scans = [replace(s, patient=numbers[s.patient], person=numbers[s.patient]) for s in layout.scans]
    return replace(layout, scans=tuple(scans))


def _series_file(root: Path, place: SeriesPlace, split: bool) -> File:
    """A series as a single file."""
    part, folders = split_part(place.place[:-1]) if split else ("", place.place[:-1])
    return File(root.joinpath(*place.place[:-1], f"{place.place[-1]}.dcm"), part or "train", folders)


def _scan_of(place: SeriesPlace, split: bool, site: str = "", label: int = -1) -> Scan:
    part = split_part(place.folder)[0] if split else ""
    return Scan(place.series, place.patient, site, part or "train", None, label)


def _match_series(
    tree: FolderTree, series: Sequence[SeriesPlace], image: str, notes: list[Note]
) -> ScanLayout:
    """Images with masks."""
    try:
        layout = read_scans(tree, image)
    except DataError:  # its text names folders
        text = "not every series of images has one mask, which is called like it; put them into"
        remedy = "images/NAME/ and masks/NAME/, or into NAME/ and NAME_seg/ side by side"
        raise DataError("E404", f"{DICOM}: {text} {remedy}.") from None
    by_path = {file.path: one for file, one in zip(tree.files, series)}
    scans: list[Scan] = []
    for scan in layout.scans:
        picture, mask = (by_path[Path(str(p))] for p in (scan.path, scan.mask))
        if picture.patient != mask.patient:
            raise DataError(
                "E404", f"{mask.series} is of another PatientID than its image, {picture.series}."
            )
        scans.append(replace(scan, path=picture.series, mask=mask.series, patient=picture.patient))
    if n := len(series) - 2 * len(scans):
        notes.append(("left out", f"{n:,} series without a mask or an image of their name"))
    return ScanLayout(_drop_patient_folders(scans, notes), (), tuple(notes), private=True)


def _drop_patient_folders(scans: Sequence[Scan], notes: list[Note]) -> tuple[Scan, ...]:
    """The scans with sites that hold several patients each; a folder with one patient is not a site."""
    sites = [scan.site for scan in scans]
    while any(sites) and _are_patients(sites, [scan.patient for scan in scans]):
        sites = [site.rpartition("/")[0] for site in sites]
    if not any(sites) and any(scan.site for scan in scans):
        notes.append(("sites", "folders that hold one patient each were not taken for sites"))
    return tuple(replace(scan, site=site) for scan, site in zip(scans, sites))


def _are_patients(names: Sequence[str], patients: Sequence[str]) -> bool:
    """Whether most of these names, one for each volume, belong to a single patient each."""
    counts = Counter(name for name, _ in set(zip(names, patients)))
    return 2 * sum(n == 1 for n in counts.values()) > len(counts)


def _scans_by_class(series: Sequence[SeriesPlace], split: bool, notes: list[Note]) -> ScanLayout:
    """Volumes with the class, and the site, of their outermost folders."""
    folders = [split_part(one.folder)[1] if split else one.folder for one in series]
    if not all(folders):
        raise DataError(
            "E404", f"{DICOM}: a series lies in no folder of a class; use CLASS/, or {TABLE_HINT}."
        )
    inner = _recurs_below(folders)
    labels = [f[1] if inner else f[0] for f in folders]
    classes = tuple(sorted(set(labels)))
    places = ["/".join(f[:2]) if inner else f[0] for f in folders]
    if len(classes) < 2 or _are_patients(places, [one.patient for one in series]):
        text = f"it has {len(classes):,}, and those of one patient each are patients'"
        remedy = f"use CLASS/, at least two, or images/ and masks/, or {TABLE_HINT}"
        raise DataError("E404", f"{DICOM} holds no folders of classes: {text}; {remedy}.")
    topic = "site/class" if inner else "class"
    notes.append(("sites" if inner else "labels", f"folders were read as {topic}"))
    scans = [
        _scan_of(one, split, folder[0] if inner else "", classes.index(label))
        for one, folder, label in zip(series, folders, labels)
    ]
    return ScanLayout(_drop_patient_folders(scans, notes), classes, tuple(notes), private=True)


def _recurs_below(folders: Sequence[tuple[str, ...]]) -> bool:
    """Whether b is the class in paths a/b/...: its names then recur below most of a."""
    if any(len(f) < 2 for f in folders):
        return False
    below = {f[0]: {g[1] for g in folders if g[0] == f[0]} for f in folders}
    total, names = sum(map(len, below.values())), set().union(*below.values())
    return len(below) > 1 and len(names) > 1 and 2 * (total - len(names)) >= total / len(below)


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
        text = f"{len(lacking):,} of the patients, by PatientID" if layout.private else abbreviate([*lacking])
        raise DataError("E403", f"{path} has no line for {text}; its first column names patients.")
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
