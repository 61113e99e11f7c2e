"""What the folders above a file stand for: which is its class, and which its site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unskew.data.intake.notes import Note
from unskew.data.intake.tree import File, Tree
from unskew.errors import DataError

IMAGES = frozenset(("images", "image", "imgs", "img"))
MASKS = frozenset(("masks", "mask", "labels", "label", "annotations", "segmentations", "segmentation", "gt", "manual"))
SUFFIXES = ("_mask", "_masks", "_seg", "_segmentation", "_label", "_gt", "-mask", "-seg")


@dataclass(frozen=True)
class Sorted:
    """Files with a class each. classes: names in order; labels: the class of every file; sites: None without sites."""

    files: tuple[File, ...]
    classes: tuple[str, ...]
    labels: tuple[int, ...]
    sites: tuple[str, ...] | None
    notes: tuple[Note, ...] = ()


def has_masks(tree: Tree) -> bool:
    """Whether images/ and masks/ (or labels/) lie side by side, at the root or at every site."""
    names = {folders[-1].lower() for folders in tree.folders if folders}
    return bool(names & IMAGES and names & MASKS)


def pairs(tree: Tree) -> list[tuple[File, File, str]]:
    """(image, its mask, its site or "") in the order of images. Raises DataError (E409) for an image without a mask."""
    masks: dict[tuple[str, str, str], File] = {}
    images: list[tuple[File, str]] = []
    for file in tree.files:
        kind = next((n.lower() for n in file.folders if n.lower() in IMAGES | MASKS), "")
        site = next((n for n in file.folders if n.lower() not in IMAGES | MASKS), "")
        if kind in IMAGES:
            images.append((file, site))
        elif kind in MASKS:
            masks[file.part, site, _stem(file)] = file
    if not images:
        raise DataError("E409", f"{tree.root} holds no images in images/.")
    paired = []
    for file, site in images:
        drawn = masks.get((file.part, site, file.path.stem))
        if drawn is None:
            name = f"{file.path.stem} with any ending in masks/ beside {file.path.parent.name}/"
            raise DataError("E409", f"{file.path} has no mask: there is no {name}.")
        paired.append((file, drawn, site))
    return paired


def _stem(file: File) -> str:
    stem = file.path.stem
    return next((stem.removesuffix(s) for s in SUFFIXES if stem.lower().endswith(s)), stem)


def by_class(tree: Tree, files: Sequence[File]) -> Sorted:
    """Files sorted by the folders that name their class, and those that name their site.

    Raises DataError (E409) for fewer than two classes and for files at different depths.
    """
    depths = {len(f.folders): f for f in files}
    if len(depths) > 1:
        one, other = (f.path for f in list(depths.values())[:2])
        raise DataError(
            "E409",
            f"{tree.root}: {one} and {other} lie at different depths; put all files into CLASS/, or into SITE/CLASS/.",
        )
    depth = next(iter(depths), 1)
    if depth == 0 or depth > 2:
        where = "directly in it" if depth == 0 else f"{depth} folders deep, such as {files[0].path}"
        raise DataError(
            "E409", f"{tree.root} holds its files {where}; put them into CLASS/, or into SITE/CLASS/, to name classes."
        )
    inner = depth == 2 and _second_is_class(files)
    place = 1 if inner else 0
    names = {f.folders[place] for f in files} | {d[place] for d in tree.folders if len(d) == depth}
    classes = tuple(sorted(names))
    if len(classes) < 2:
        raise DataError(
            "E409",
            f"{tree.root} holds {len(classes)} class folders; put images or sounds into {tree.root}/CLASS/, at least two "
            f"classes, and images with masks into {tree.root}/images/ and {tree.root}/masks/.",
        )
    number = {name: i for i, name in enumerate(classes)}
    ordered = sorted(files, key=lambda f: (number[f.folders[place]], f.path))
    labels = tuple(number[f.folders[place]] for f in ordered)
    if depth == 1:
        return Sorted(tuple(ordered), classes, labels, None)
    note: Note = ("sites", f"folders were read as {'site/class' if inner else 'class/site'}")
    return Sorted(tuple(ordered), classes, labels, tuple(f.folders[1 - place] for f in ordered), (note,))


def _second_is_class(files: Sequence[File]) -> bool:
    """Of folders a/b/file: whether b names the class. Its names then recur below most of a; else a names it."""
    below: dict[str, set[str]] = {}
    for file in files:
        below.setdefault(file.folders[0], set()).add(file.folders[1])
    recurring = sum(len(names) for names in below.values()) - len(set().union(*below.values()))
    return len(below) == 1 or recurring * 2 >= sum(len(names) for names in below.values()) / len(below)
