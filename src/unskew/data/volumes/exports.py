"""The series that an export of DICOM holds, whatever its files are called and however deep they lie.

Every file is looked at, not its name: a directory (DICOMDIR), reports, segmentations and files of other kinds are left out
and told. Links are not followed.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from unskew.data.intake.notes import Note, counted
from unskew.data.intake.paired import IMAGES as IMAGE_FOLDERS
from unskew.data.intake.paired import MASKS, plain
from unskew.data.intake.tree import IMAGES, SOUNDS, is_litter, kind_of
from unskew.data.volumes.dicom import NAME, Item, head, is_dicom
from unskew.data.volumes.series import Series
from unskew.errors import DataError

ENDINGS = frozenset((".dcm", ".dicom"))
"""Files that claim to be DICOM by name; one that is not is damaged, and not left out."""


@dataclass(frozen=True)
class Found:
    """A series. folder: the names that lead from the root to where all its files are; place: those of the series, as if it
    were a file, the last its own. title: its SeriesDescription. None but the patient and the title come from tags."""

    series: Series
    patient: str
    title: str
    folder: tuple[str, ...]
    place: tuple[str, ...]


def holds_dicom(path: Path) -> bool:
    """Whether a folder holds files of DICOM, and no more pictures or sounds than those; or whether a file is one."""
    if path.is_file():
        return is_dicom(path)
    others, rest = 0, []
    for file in _files(path):
        if kind_of(file) in IMAGES | SOUNDS:
            others += 1
        else:
            rest.append(file)
    return sum(map(is_dicom, rest)) >= max(1, others)


def found(root: Path) -> tuple[list[Found], list[Note]]:
    """(the series in or below a file or folder, in the order of paths; what was left out).

    Raises DataError: E401 for damaged files, E409 for a folder without images, and for a series of two patients.
    """
    files = _files(root) if root.is_dir() else [root]
    members: dict[str, list[tuple[Item, str, str]]] = {}
    left: Counter[str] = Counter()
    for i, path in enumerate(files):
        item = Item(path, f"{NAME}, file {i + 1:,} of {len(files):,}")
        if any(is_litter(part) for part in path.relative_to(root).parts):
            left["hidden or system file"] += 1
        elif not os.access(path, os.R_OK):
            raise DataError(
                "E401", f"{item.name} may not be read; let this user read it, or take it out of the folder."
            )
        elif not is_dicom(path):
            if kind_of(path) in ENDINGS:
                raise DataError("E401", f"{item.name} is called .dcm and is not DICOM; copy or export it again.")
            left["non-DICOM file"] += kind_of(path) not in (".csv", ".tsv")
        elif (tags := head(item)) is None:
            left["imageless DICOM object"] += 1
        else:
            patient, title = (str(tags.get(k) or "").strip() for k in ("PatientID", "SeriesDescription"))
            members.setdefault(str(tags.SeriesInstanceUID), []).append((item, patient, title))
    if not members:
        raise DataError("E409", f"{NAME} holds no image of DICOM; directories, reports and segmentations are none.")
    notes: list[Note] = [("left out", counted(n, noun)) for noun, n in left.items() if n]
    return _series(root, list(members.values())), notes


def _files(root: Path) -> list[Path]:
    """All regular files below a folder, in the order in which `find -type f | LC_ALL=C sort` lists them."""
    paths = (Path(place) / name for place, _, names in os.walk(root) for name in names)
    return sorted((p for p in paths if p.is_file() and not p.is_symlink()), key=os.fsencode)


def _series(root: Path, members: list[list[tuple[Item, str, str]]]) -> list[Found]:
    """Each series with its patient and its place. Raises DataError (E409) for a series of two patients."""
    within: dict[tuple[str, ...], set[int]] = {}
    for number, items in enumerate(members):
        for item, _, _ in items:
            parts = item.path.relative_to(root).parts[:-1]
            for depth in range(len(parts) + 1):
                within.setdefault(parts[:depth], set()).add(number)
    series: list[Found] = []
    for number, items in enumerate(members):
        called = f"{NAME}, series {number + 1:,} of {len(members):,}"
        if len({patient for _, patient, _ in items}) > 1:
            raise DataError("E409", f"{called} is of several patients, by its files' PatientID; export it again.")
        paths = [item.path.relative_to(root).parts for item, _, _ in items]
        folder = Path(os.path.commonpath([Path(*path[:-1]) for path in paths])).parts
        if folder and len(within[folder]) == 1 and plain(folder[-1]) not in IMAGE_FOLDERS | MASKS:
            place = folder
        elif len(paths) == 1 and paths[0]:
            file = items[0][0].path
            place = (*folder, file.name.removesuffix(file.suffix) if kind_of(file) in ENDINGS else file.name)
        else:
            place = (*folder, f"series {number + 1:06}")
        series.append(
            Found(Series(called, tuple(item for item, _, _ in items)), items[0][1], items[0][2], folder, place)
        )
    return series
