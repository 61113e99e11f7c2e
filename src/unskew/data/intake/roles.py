"""What the folders above a file stand for: which is its class, and which its site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from unskew.data.intake.features import Kinds
from unskew.data.intake.mistaken import check_no_masks
from unskew.data.intake.notes import Note, counted
from unskew.data.intake.tree import File, Tree, empty_folders
from unskew.data.target import Target
from unskew.errors import DataError


@dataclass(frozen=True)
class Sorted:
    """Files with a label each. classes: names in order, () where labels are no classes; labels: of every file, [N]; sites: None
    without sites. facts: what else clients can be formed by, [N] each. target: of labels that are numbers, or several a file.
    beside: further inputs of every sample, by name; used: what became of the columns that they were."""

    files: tuple[File, ...]
    classes: tuple[str, ...]
    labels: np.ndarray
    sites: tuple[str, ...] | None
    notes: tuple[Note, ...] = ()
    facts: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    target: Target | None = None
    beside: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    used: Kinds = field(default_factory=dict[str, list[str]])


def by_class(tree: Tree, files: Sequence[File]) -> Sorted:
    """Files sorted by the folders that name their class, and those that name their site.

    Raises DataError (E409) for fewer than two classes, for files at different depths and for masks among the files.
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
        text = f"{tree.root} holds {counted(len(classes), 'class folder')}; put images or sounds into {tree.root}/CLASS/, at least"
        other = "two classes (an empty folder for one of which there are no samples, as a site may lack some)"
        masks = f"images with masks into {tree.root}/images/ and {tree.root}/masks/"
        raise DataError("E409", f"{text} {other}, and {masks}.")
    check_no_masks(files, place)
    number = {name: i for i, name in enumerate(classes)}
    ordered = sorted(files, key=lambda f: (number[f.folders[place]], f.path))
    labels = np.array([number[f.folders[place]] for f in ordered], dtype=np.int64)
    if depth == 1:
        return Sorted(tuple(ordered), classes, labels, None)
    note: Note = ("sites", f"folders were read as {'site/class' if inner else 'class/site'}")
    sites = tuple(f.folders[1 - place] for f in ordered)
    return Sorted(tuple(ordered), classes, labels, sites, (note, *empty_folders(tree, 1)))


def _second_is_class(files: Sequence[File]) -> bool:
    """Of folders a/b/file: whether b names the class. Its names then recur below most of a; else a names it."""
    below: dict[str, set[str]] = {}
    for file in files:
        below.setdefault(file.folders[0], set()).add(file.folders[1])
    recurring = sum(len(names) for names in below.values()) - len(set().union(*below.values()))
    return len(below) == 1 or recurring * 2 >= sum(len(names) for names in below.values()) / len(below)
