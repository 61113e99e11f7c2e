"""Which volumes a folder of DICOM holds: whose each is, from which site, with which mask or class.

Files of one SeriesInstanceUID are a volume, and those of one PatientID are of one patient. Folders mean what they mean for
NIfTI (unskew.data.volumes.layout), where a series is called like the folder that holds it and no other, or like its file:

images/NAME/... + masks/NAME/...      [site/] patient/NAME/... + patient/NAME_seg/...
CLASS/...                             SITE/CLASS/..., where the classes recur below the sites and hold several patients

Folders are often called after patients. One that holds a single patient is therefore taken neither for a site nor for a
class, and patients are called by numbers, in the order of paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unskew.data.intake.notes import Note
from unskew.data.intake.paired import has_masks
from unskew.data.intake.tree import File, Tree, in_part
from unskew.data.volumes.dicom import NAME
from unskew.data.volumes.exports import Found, found
from unskew.data.volumes.layout import Layout, Scan, is_mask, layout_of
from unskew.errors import DataError

TABLE = "name classes in a table (label=COLUMN of participants.tsv)"


def studies(root: Path, image: str = "", labelled: bool = False) -> Layout:
    """The volumes below a folder of DICOM. image: how names or descriptions of the series to take end, where a patient has
    several; "": each is one. labelled: a table says the class of each volume, folders do not.

    Patients are still called by their PatientID, by which a table names them; `numbered` takes it away.
    Raises DataError, as `found` does, and E409 for images without one mask, series without a PatientID and folders that
    name no classes.
    """
    series, notes = found(root)
    if lacking := sum(not one.patient for one in series):
        text = f"{NAME}: {lacking:,} of {len(series):,} series have no PatientID, so no patient can be kept together"
        raise DataError("E409", f"{text}; write a pseudonym for each patient.")
    split = any(part == "train" for part in (in_part(one.folder)[0] for one in series))
    files = [_file(root, one, split) for one in series]
    inner = frozenset(f.folders[:i] for f in files for i in range(1, len(f.folders) + 1))
    tree = Tree(root, tuple(files), inner, ())
    if has_masks(tree) or any(is_mask(f) for f in files):
        return _with_masks(tree, series, image, notes)
    taken = [one for one in series if one.place[-1].endswith(image) or one.title.endswith(image)]
    if not taken:
        raise DataError(
            "E409", f"{NAME}: no folder or description of a series ends in {image}; check the setting image."
        )
    if n := len(series) - len(taken):
        notes.append(("left out", f"{n:,} series of other kinds (image={image})"))
    if labelled:
        scans = tuple(_scan(one, split) for one in taken)
        return Layout(scans, (), tuple(notes), private=True)
    return _by_class(taken, split, notes)


def numbered(layout: Layout) -> Layout:
    """The layout with patients called by numbers, in the order of paths, in place of what their files call them."""
    numbers = {person: f"patient {i + 1}" for i, person in enumerate(dict.fromkeys(s.patient for s in layout.scans))}
    scans = [replace(s, patient=numbers[s.patient], person=numbers[s.patient]) for s in layout.scans]
    return replace(layout, scans=tuple(scans))


def _file(root: Path, one: Found, split: bool) -> File:
    """A series as the one file that its volume would be."""
    part, folders = in_part(one.place[:-1]) if split else ("", one.place[:-1])
    return File(root.joinpath(*one.place[:-1], f"{one.place[-1]}.dcm"), part or "train", folders)


def _scan(one: Found, split: bool, site: str = "", label: int = -1) -> Scan:
    part = in_part(one.folder)[0] if split else ""
    return Scan(one.series, one.patient, site, part or "train", None, label)


def _with_masks(tree: Tree, series: Sequence[Found], image: str, notes: list[Note]) -> Layout:
    """Images with masks. Raises DataError (E409) for one of them without the other, and for masks of another patient."""
    try:
        layout = layout_of(tree, image)
    except DataError:  # its text names folders
        text = (
            f"{NAME}: not every series of images has one mask, which is called like it; put them into images/NAME/ and"
        )
        raise DataError("E409", f"{text} masks/NAME/, or into NAME/ and NAME_seg/ side by side.") from None
    by_path = {file.path: one for file, one in zip(tree.files, series)}
    scans: list[Scan] = []
    for scan in layout.scans:
        picture, mask = (by_path[Path(str(p))] for p in (scan.path, scan.mask))
        if picture.patient != mask.patient:
            raise DataError(
                "E409", f"{mask.series} is of another PatientID than its image, series {picture.series.name}."
            )
        scans.append(replace(scan, path=picture.series, mask=mask.series, patient=picture.patient))
    if n := len(series) - 2 * len(scans):
        notes.append(("left out", f"{n:,} series without a mask or an image of their name"))
    return Layout(_without_people(scans, notes), (), tuple(notes), private=True)


def _without_people(scans: Sequence[Scan], notes: list[Note]) -> tuple[Scan, ...]:
    """The scans with sites that hold several patients each; folders that hold one patient are that patient's."""
    sites = [scan.site for scan in scans]
    while any(sites) and _are_people(sites, [scan.patient for scan in scans]):
        sites = [site.rpartition("/")[0] for site in sites]
    if not any(sites) and any(scan.site for scan in scans):
        notes.append(("sites", "folders that hold one patient each were not taken for sites"))
    return tuple(replace(scan, site=site) for scan, site in zip(scans, sites))


def _are_people(names: Sequence[str], patients: Sequence[str]) -> bool:
    """Whether most of these names, one a volume, hold a single patient each."""
    held = Counter(name for name, _ in set(zip(names, patients)))
    return 2 * sum(n == 1 for n in held.values()) > len(held)


def _by_class(series: Sequence[Found], split: bool, notes: list[Note]) -> Layout:
    """Volumes with the class, and the site, that their outermost folders name. Raises DataError (E409) without classes."""
    folders = [in_part(one.folder)[1] if split else one.folder for one in series]
    people = [one.patient for one in series]
    if n := sum(not f for f in folders):
        raise DataError(
            "E409", f"{NAME}: {n:,} of {len(series):,} series lie in no folder of a class; use CLASS/, or {TABLE}."
        )
    inner = _second_recurs(folders)
    if inner and not any(
        n > 1 for n in Counter(f[:2] for f, _ in {(f[:2], p) for f, p in zip(folders, people)}).values()
    ):
        text = f"{NAME}: folders such as SITE/CLASS/ are there, and each holds one patient, so they may be patients'"
        raise DataError("E409", f"{text}; give patients' folders names of their own, or {TABLE}.")
    labels = [f[1] if inner else f[0] for f in folders]
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2 or _are_people(labels, people):
        text = (
            f"{NAME} holds no folders of classes: it has {len(classes):,}, and those of one patient each are patients'"
        )
        raise DataError("E409", f"{text}; use CLASS/, at least two, or images/ and masks/, or {TABLE}.")
    notes.append(("sites" if inner else "labels", f"folders were read as {'site/class' if inner else 'class'}"))
    scans = [
        _scan(one, split, folder[0] if inner else "", classes.index(label))
        for one, folder, label in zip(series, folders, labels)
    ]
    return Layout(_without_people(scans, notes), classes, tuple(notes), private=True)


def _second_recurs(folders: Sequence[tuple[str, ...]]) -> bool:
    """Whether, of folders a/b/..., b names the class: its names then recur below most of a."""
    if any(len(f) < 2 for f in folders):
        return False
    below = {f[0]: {g[1] for g in folders if g[0] == f[0]} for f in folders}
    total, names = sum(map(len, below.values())), set().union(*below.values())
    return len(below) > 1 and len(names) > 1 and 2 * (total - len(names)) >= total / len(below)
