"""Files with a label each: which of the folders above a file names its class, and which its site.

Masks in class folders are refused: a model that is trained on them as images learns nothing and scores well.
A file looks like a mask if it holds at most 20 different values, or black and white with blurred edges, and
has the name of an image of equal size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import numpy as np

from unskew.data.files.tree import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    MASK_SUFFIXES,
    File,
    FolderTree,
    empty_folder_notes,
)
from unskew.data.kinds.features import Kinds
from unskew.data.kinds.masks import UNNAMED_CLASSES, are_black_and_white
from unskew.data.samples.dataset import Target
from unskew.data.samples.reading_notes import Note, quantity
from unskew.errors import DataError

FILES_PROBED = 5
"""Number of files by which a folder is judged."""
MASK_FOLDERS_HINT = (
    "put images into images/ and their masks into masks/ beside it (or SITE/images/ and SITE/masks/)"
)


def check_no_masks(files: Sequence[File], place: int) -> None:
    """Raises DataError (E404) for files that look like masks of others: x_mask.png next to x.png, or a class
    folder with the file names of another. place: position of the class among a file's folders."""
    folders: dict[tuple[object, ...], dict[str, dict[str, Path]]] = {}
    by_name = {(f.path.parent, f.path.stem.lower()): f.path for f in files}
    for f in files:
        stems = IMAGE_FOLDERS if f.path.stem.lower() in MASK_FOLDERS else {_stem(f.path)}
        image = next((by_name[f.path.parent, s] for s in stems if (f.path.parent, s) in by_name), f.path)
        if image != f.path and _is_mask(f.path, image):
            raise DataError("E404", f"{f.path} looks like the mask of {image}; {MASK_FOLDERS_HINT}.")
        key = (f.part, *f.folders[:place], *f.folders[place + 1 :])
        folders.setdefault(key, {}).setdefault(f.folders[place], {})[_stem(f.path)] = f.path
    for classes in folders.values():
        for (name, masks), (image_class, images) in permutations(classes.items(), 2):
            stems = sorted(masks.keys() & images.keys())
            if len(stems) < 2 or len(stems) < 0.8 * len(masks):
                continue
            pairs = [(masks[stem], images[stem]) for stem in stems[:: max(1, len(stems) // FILES_PROBED)]]
            if all(_is_mask(*pair) for pair in pairs) and not any(_is_mask(*pair[::-1]) for pair in pairs):
                fault = f"looks like the mask of {pairs[0][1]}, but '{name}' would be a class like"
                raise DataError("E404", f"{pairs[0][0]} {fault} '{image_class}'; {MASK_FOLDERS_HINT}.")


def _stem(path: Path) -> str:
    stem = path.stem.lower()
    return next((stem.removesuffix(s) for s in MASK_SUFFIXES if stem.endswith(s)), stem)


def _is_mask(path: Path, image: Path) -> bool:
    """Whether a file looks like a mask and has the size of an image; a uniformly grey file does not."""
    from PIL import Image

    try:
        with Image.open(path) as file, Image.open(image) as picture:
            if file.size != picture.size:
                return False
            values = np.asarray(
                file if file.mode in ("L", "P", "1") or file.mode[0] in "IF" else file.convert("L")
            )
    except Exception:  # damaged files are refused where they are read
        return False
    different = len(np.unique(values))
    return 1 < different <= UNNAMED_CLASSES or (
        different > 1 and values.dtype == np.uint8 and are_black_and_white([values[None]])
    )


@dataclass(frozen=True)
class LabelledFiles:
    """Files with a label each.

    classes: names in order, () if labels are no classes. labels: the label of every file, [N]. sites: None
    without sites. facts: further columns by which clients can be formed, [N] each. target: set if labels are
    numbers, or several a file.
    group: the setting that says which files belong together.
    beside: further inputs of every sample, by name. used: the encoding of the columns from which these come.
    """

    files: tuple[File, ...]
    classes: tuple[str, ...]
    labels: np.ndarray
    sites: tuple[str, ...] | None
    notes: tuple[Note, ...] = ()
    facts: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    target: Target | None = None
    beside: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    used: Kinds = field(default_factory=dict[str, list[str]])
    group: str = ""


def files_by_class(tree: FolderTree, files: Sequence[File]) -> LabelledFiles:
    """Files sorted by the folders that name their class, and those that name their site.

    Raises DataError (E404) for fewer than two classes, for files at different depths and for masks among the
    files.
    """
    remedy = "put all files into CLASS/, or into SITE/CLASS/"
    depths = {len(f.folders): f for f in files}
    if len(depths) > 1:
        first, second = (f.path for f in list(depths.values())[:2])
        raise DataError("E404", f"{tree.root}: {first} and {second} lie at different depths; {remedy}.")
    depth = next(iter(depths), 1)
    if depth == 0 or depth > 2:
        position = "directly in it" if depth == 0 else f"{depth} folders deep, such as {files[0].path}"
        raise DataError("E404", f"{tree.root} holds its files {position}; {remedy}.")
    below: dict[str, set[str]] = {}
    for f in files:
        below.setdefault(f.folders[0], set()).add(f.folders[-1])
    total = sum(map(len, below.values()))
    recurring = total - len(set().union(*below.values()))
    # in a/b/file, b is the class if its names recur below most of a
    inner = depth == 2 and (len(below) == 1 or recurring * 2 >= total / len(below))
    place = 1 if inner else 0
    names = {f.folders[place] for f in files} | {d[place] for d in tree.folders if len(d) == depth}
    classes = tuple(sorted(names))
    if len(classes) < 2:
        fault = f"{tree.root} holds {quantity(len(classes), 'class folder')}"
        remedy = f"put files into {tree.root}/CLASS/, at least two"
        remedy += " (an empty folder for one of which there are no samples)"
        masks = f"images with masks into {tree.root}/images/ and {tree.root}/masks/"
        raise DataError("E404", f"{fault}; {remedy}, and {masks}.")
    check_no_masks(files, place)
    number = {name: i for i, name in enumerate(classes)}
    sorted_files = sorted(files, key=lambda f: (number[f.folders[place]], f.path))
    labels = np.array([number[f.folders[place]] for f in sorted_files], dtype=np.int64)
    if depth == 1:
        return LabelledFiles(tuple(sorted_files), classes, labels, None)
    note: Note = ("sites", f"folders were read as {'site/class' if inner else 'class/site'}")
    sites = tuple(f.folders[1 - place] for f in sorted_files)
    return LabelledFiles(tuple(sorted_files), classes, labels, sites, (note, *empty_folder_notes(tree, 1)))
