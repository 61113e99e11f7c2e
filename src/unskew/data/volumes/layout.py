"""Which volumes a folder holds: whose each is, from which site, with which mask or class.

imagesTr/case.nii.gz + labelsTr/case.nii.gz          images and masks in folders side by side (unskew.data.intake.paired)
[site/] patient/scan.nii.gz + patient/scan_seg.nii.gz    a mask beside its image, or the only one of its folder
sub-01/anat/sub-01_T1w.nii.gz + derivatives/.../sub-01_dseg.nii.gz     BIDS: subject and session say which belong together
[site/] CLASS/scan.nii.gz                            a class for each volume

A patient is what `sub-` names, else the folder of a volume and its mask, else the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.data.intake.notes import Note
from unskew.data.intake.paired import CHANNEL, MASKS, SUFFIXES, has_masks, pairs, plain
from unskew.data.intake.roles import by_class
from unskew.data.intake.tree import File, Tree
from unskew.data.volumes.series import Series
from unskew.errors import DataError

ENDINGS = (*SUFFIXES, "_dseg", "-label", "_labels")
"""Behind the name of an image, in the name of its mask."""
_SUBJECT = re.compile(r"(?:^|_)(sub-[A-Za-z0-9]+)")
_SESSION = re.compile(r"(?:^|_)(ses-[A-Za-z0-9]+)")


@dataclass(frozen=True)
class Scan:
    """A volume, in a file or a series. mask: where its mask is, None where volumes have classes; label: its class, -1 where
    they have masks. person: who the patient is, at whichever site; "" where patients of two sites are two people."""

    path: Path | Series
    patient: str
    site: str
    part: str
    mask: Path | Series | None = None
    label: int = -1
    person: str = ""

    @property
    def owner(self) -> str:
        """The person, whose scans no split may part."""
        return self.person or f"{self.site}/{self.patient}"


@dataclass(frozen=True)
class Layout:
    """scans: in the order of paths. classes: () where volumes have masks. private: patients are called by what their files
    call them, which no message may say."""

    scans: tuple[Scan, ...]
    classes: tuple[str, ...]
    notes: tuple[Note, ...]
    private: bool = False


def layout_of(tree: Tree, image: str = "", labelled: bool = False) -> Layout:
    """The volumes below a folder. image: how the names of the images end, where a patient has several; "": each is one.
    labelled: a table says the class of each volume, folders do not.

    Raises DataError (E409) for links that lead out of the folder, for images without a mask or with several, and for
    folders that name no classes.
    """
    _check_links(tree)
    if has_masks(tree):
        files = tuple(f for f in tree.files if in_masks(f) or f.stem.endswith(image))
        paired, notes = pairs(Tree(tree.root, files, tree.folders, ()))
        scans = [Scan(p.image.path, _patient(p.image), p.site, p.image.part, p.mask.path) for p in paired]
        return Layout(tuple(scans), (), (*tree.notes, *notes))
    masks = [f for f in tree.files if is_mask(f)]
    images = [f for f in tree.files if not is_mask(f) and f.stem.endswith(image)]
    if not images:
        ending = f" whose names end in {image}" if image else ""
        raise DataError("E409", f"{tree.root} holds no volumes{ending} that are not masks; check the setting image.")
    if masks:
        return Layout(tuple(_beside(tree.root, images, masks)), (), tree.notes)
    if labelled:
        return Layout(tuple(Scan(f.path, _patient(f), "", f.part) for f in images), (), tree.notes)
    ordered = by_class(tree, images)
    sites = ordered.sites or [""] * len(images)
    by_folder = [
        Scan(f.path, _patient(f), site, f.part, None, label)
        for f, site, label in zip(ordered.files, sites, ordered.labels)
    ]
    return Layout(tuple(by_folder), ordered.classes, (*tree.notes, *ordered.notes))


def _check_links(tree: Tree) -> None:
    """Raises DataError (E409) for a file that lies elsewhere and is only linked to."""
    root = tree.root.resolve()
    for file in tree.files:
        if not file.path.resolve().is_relative_to(root):
            raise DataError(
                "E409", f"{file.path} is a link that leads out of {tree.root}; copy what it points to into the folder."
            )


def in_masks(file: File) -> bool:
    """Whether a file lies in a folder that is called as those of masks are."""
    return any(plain(name) in MASKS for name in file.folders)


def is_mask(file: File) -> bool:
    """Whether a file is called as a mask is."""
    stem = file.stem.lower()
    return stem in MASKS or stem.endswith(ENDINGS)


def _beside(root: Path, images: Sequence[File], masks: Sequence[File]) -> list[Scan]:
    """Each image with the mask of its name, of its subject and session, or else of its folder."""
    by_key: dict[tuple[str, ...], list[File]] = {}
    stems = {(f.part, *f.folders, f.stem) for f in images}
    for mask in masks:
        by_key.setdefault(_key(mask, stems), []).append(mask)
    scans: list[Scan] = []
    taken: dict[tuple[str, ...], File] = {}
    for image in images:
        key = _key(image, stems, set(by_key))
        drawn = by_key.get(key, [])
        if len(drawn) != 1:
            what = f"{len(drawn)} masks, such as {drawn[0].path.name}" if drawn else "no mask"
            raise DataError(
                "E409",
                f"{image.path} has {what}; put one beside it, called {image.stem}_seg.nii.gz, or give images/ and masks/.",
            )
        if twin := taken.get(key):
            raise DataError(
                "E409",
                f"{twin.path} and {image.path} would share the mask {drawn[0].path.name}; name the kind of image by how its "
                f"files end, such as {root}/(image={image.stem.rpartition('_')[2]}).",
            )
        taken[key] = image
        alone = key[-1] == "folder"
        patient = (
            _patient(image) if not alone or not image.folders or _SUBJECT.search(image.stem) else image.folders[-1]
        )
        above = image.folders[:-1] if alone else () if _SUBJECT.search(image.stem) else image.folders
        scans.append(Scan(image.path, patient, "/".join(above), image.part, drawn[0].path))
    return scans


def _key(file: File, images: set[tuple[str, ...]], masks: set[tuple[str, ...]] | None = None) -> tuple[str, ...]:
    """What an image and its mask have in common. images: by part, folders and name; masks: keys of masks, for an image."""
    place = (file.part, *file.folders)
    if masks is not None and (*place, file.stem, "name") in masks:
        return (*place, file.stem, "name")
    if masks is None:
        base = next((file.stem[: -len(e)] for e in ENDINGS if file.stem.lower().endswith(e)), "")
        if (*place, base) in images:
            return (*place, base, "name")
    if subject := _SUBJECT.search(file.stem):
        session = _SESSION.search(file.stem)
        return file.part, subject[1], session[1] if session else "", "subject"
    return (*place, "folder")


def _patient(file: File) -> str:
    subject = _SUBJECT.search(file.stem)
    return subject[1] if subject else file.stem.removesuffix(CHANNEL)
