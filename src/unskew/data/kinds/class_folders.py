"""Files with a label each: which of the folders above a file names its class, and which its site.

Masks in class folders are refused: a model that is trained on them as images learns nothing and scores well.
A file looks like a mask if it holds at most 20 different values, or black and white with blurred edges, and
has the name of an image of equal size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unskew.data.files.tree import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    MASK_SUFFIXES,
    File,
    FolderTree,
    empty_folder_notes,
    plain_name,
)
from unskew.data.kinds.features import Kinds
from unskew.data.kinds.masks import UNNAMED_CLASSES, are_black_and_white
from unskew.data.samples.dataset import Target
from unskew.data.samples.intake import Note, quantity
from unskew.errors import DataError

FILES_PROBED = 5
"""Number of files by which a folder is judged."""
MASK_FOLDERS_HINT = (
    "put images into images/ and their masks into masks/ beside it (or SITE/images/ and SITE/masks/)"
)


def check_no_masks(files: Sequence[File], place: int) -> None:
    """Raises DataError (E404) for files that look like masks of others. place: position of the class among
    a file's folders."""
    _check_folder(files)
    folders: dict[tuple[object, ...], dict[str, dict[str, Path]]] = {}
    for f in files:
        key = (f.part, *f.folders[:place], *f.folders[place + 1 :])
        folders.setdefault(key, {}).setdefault(f.folders[place], {})[_stem(f.path)] = f.path
    for classes in folders.values():
        _check_classes(classes)


def _check_folder(files: Sequence[File]) -> None:
    """Raises DataError (E404) for one folder with x.png and x_mask.png, or image.png and mask.png."""
    stems = {(f.path.parent, f.path.stem.lower()): f.path for f in files}
    for (folder, stem), path in stems.items():
        image = stems.get(
            (folder, next((stem.removesuffix(s) for s in MASK_SUFFIXES if stem.endswith(s)), ""))
        )
        if stem in MASK_FOLDERS:
            image = image or next(
                (stems[folder, name] for name in sorted(IMAGE_FOLDERS) if (folder, name) in stems), None
            )
        if image and _is_mask(path, image):
            raise DataError(
                "E404",
                f"{path} looks like the mask of {image} beside it; {MASK_FOLDERS_HINT}, or take masks away to"
                " learn classes.",
            )


def _check_classes(classes: dict[str, dict[str, Path]]) -> None:
    """Raises DataError (E404) if one class folder holds the masks of another. classes: files by stem, by
    class."""
    for name, masks in classes.items():
        for image_class, images in classes.items():
            stems = sorted(masks.keys() & images.keys())
            if image_class == name or len(stems) < 2 or len(stems) < 0.8 * len(masks):
                continue
            pairs = [(masks[stem], images[stem]) for stem in stems[:: max(1, len(stems) // FILES_PROBED)]]
            if all(_is_mask(*pair) for pair in pairs) and (
                plain_name(name) in MASK_FOLDERS or not any(_is_mask(image, mask) for mask, image in pairs)
            ):
                raise DataError(
                    "E404",
                    f"{pairs[0][0]} looks like the mask of {pairs[0][1]}, but '{name}' would be a class like"
                    f" '{image_class}'; {MASK_FOLDERS_HINT}.",
                )


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


def files_by_class(tree: FolderTree, files: Sequence[File]) -> LabelledFiles:
    """Files sorted by the folders that name their class, and those that name their site.

    Raises DataError (E404) for fewer than two classes, for files at different depths and for masks among the
    files.
    """
    depths = {len(f.folders): f for f in files}
    if len(depths) > 1:
        first, second = (f.path for f in list(depths.values())[:2])
        raise DataError(
            "E404",
            f"{tree.root}: {first} and {second} lie at different depths; put all files into CLASS/, or into"
            " SITE/CLASS/.",
        )
    depth = next(iter(depths), 1)
    if depth == 0 or depth > 2:
        position = "directly in it" if depth == 0 else f"{depth} folders deep, such as {files[0].path}"
        raise DataError(
            "E404",
            f"{tree.root} holds its files {position}; put them into CLASS/, or into SITE/CLASS/, to name"
            " classes.",
        )
    inner = depth == 2 and _second_is_class(files)
    place = 1 if inner else 0
    names = {f.folders[place] for f in files} | {d[place] for d in tree.folders if len(d) == depth}
    classes = tuple(sorted(names))
    if len(classes) < 2:
        text = (
            f"{tree.root} holds {quantity(len(classes), 'class folder')}; put images or sounds into"
            f" {tree.root}/CLASS/, at least"
        )
        second = (
            "two classes (an empty folder for one of which there are no samples, as a site may lack some)"
        )
        masks = f"images with masks into {tree.root}/images/ and {tree.root}/masks/"
        raise DataError("E404", f"{text} {second}, and {masks}.")
    check_no_masks(files, place)
    number = {name: i for i, name in enumerate(classes)}
    sorted_files = sorted(files, key=lambda f: (number[f.folders[place]], f.path))
    labels = np.array([number[f.folders[place]] for f in sorted_files], dtype=np.int64)
    if depth == 1:
        return LabelledFiles(tuple(sorted_files), classes, labels, None)
    note: Note = ("sites", f"folders were read as {'site/class' if inner else 'class/site'}")
    sites = tuple(f.folders[1 - place] for f in sorted_files)
    return LabelledFiles(tuple(sorted_files), classes, labels, sites, (note, *empty_folder_notes(tree, 1)))


def _second_is_class(files: Sequence[File]) -> bool:
    """Whether b is the class in paths a/b/file: its names then recur below most of a. Otherwise a is the
    class."""
    below: dict[str, set[str]] = {}
    for file in files:
        below.setdefault(file.folders[0], set()).add(file.folders[1])
    recurring = sum(len(names) for names in below.values()) - len(set().union(*below.values()))
    return len(below) == 1 or recurring * 2 >= sum(len(names) for names in below.values()) / len(below)
