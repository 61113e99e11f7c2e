"""Masks that lie where classes are expected: training on them as images would learn nothing, and score well.

A file looks like a mask if it holds at most 20 different values, or black and white with blurred edges. Such files are
refused as samples where they bear the names of images that they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unskew.data.intake.greys import are_black_and_white
from unskew.data.intake.masks import MOST_CLASSES
from unskew.data.intake.paired import IMAGES, MASKS, SUFFIXES, plain
from unskew.data.intake.tree import File
from unskew.errors import DataError

LOOKED_AT = 5
"""Files of a folder by which it is judged."""
LAYOUT = "put images into images/ and their masks into masks/ beside it (or SITE/images/ and SITE/masks/)"


def check_no_masks(files: Sequence[File], place: int) -> None:
    """Raises DataError (E409) for files that look like masks of others. place: of the class among a file's folders."""
    _check_beside(files)
    folders: dict[tuple[object, ...], dict[str, dict[str, Path]]] = {}
    for f in files:
        rest = (f.part, *f.folders[:place], *f.folders[place + 1 :])
        folders.setdefault(rest, {}).setdefault(f.folders[place], {})[_stem(f.path)] = f.path
    for classes in folders.values():
        _check_classes(classes)


def _check_beside(files: Sequence[File]) -> None:
    """x.png with x_mask.png, or image.png with mask.png, in one folder."""
    stems = {(f.path.parent, f.path.stem.lower()): f.path for f in files}
    for (folder, stem), path in stems.items():
        image = stems.get((folder, next((stem.removesuffix(s) for s in SUFFIXES if stem.endswith(s)), "")))
        if stem in MASKS:
            image = image or next((stems[folder, name] for name in sorted(IMAGES) if (folder, name) in stems), None)
        if image and _is_mask(path, image):
            raise DataError(
                "E409",
                f"{path} looks like the mask of {image} beside it; {LAYOUT}, or take masks away to learn classes.",
            )


def _check_classes(classes: dict[str, dict[str, Path]]) -> None:
    """Class folders, each with its files by stem, of which one holds the masks of another's."""
    for name, masks in classes.items():
        for other, images in classes.items():
            shared = sorted(masks.keys() & images.keys())
            if other == name or len(shared) < 2 or len(shared) < 0.8 * len(masks):
                continue
            pairs = [(masks[stem], images[stem]) for stem in shared[:: max(1, len(shared) // LOOKED_AT)]]
            if all(_is_mask(*pair) for pair in pairs) and (
                plain(name) in MASKS or not any(_is_mask(image, mask) for mask, image in pairs)
            ):
                raise DataError(
                    "E409",
                    f"{pairs[0][0]} looks like the mask of {pairs[0][1]}, but '{name}' would be a class like '{other}'; "
                    f"{LAYOUT}.",
                )


def _stem(path: Path) -> str:
    stem = path.stem.lower()
    return next((stem.removesuffix(s) for s in SUFFIXES if stem.endswith(s)), stem)


def _is_mask(path: Path, image: Path) -> bool:
    """Whether a file looks like a mask and has the size of an image; a file in one grey throughout does not."""
    from PIL import Image

    try:
        with Image.open(path) as file, Image.open(image) as other:
            if file.size != other.size:
                return False
            values = np.asarray(file if file.mode in ("L", "P", "1") or file.mode[0] in "IF" else file.convert("L"))
    except Exception:  # damaged files are refused where they are read
        return False
    different = len(np.unique(values))
    return 1 < different <= MOST_CLASSES or (
        different > 1 and values.dtype == np.uint8 and are_black_and_white([values[None]])
    )
