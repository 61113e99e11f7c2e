"""A set from a user's files in folders: images by class, images with masks, sounds by class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Gt

from unskew.data.convert import as_masks, unit_interval
from unskew.data.dataset import Dataset
from unskew.data.from_arrays import arrays
from unskew.data.wav import format_of, spectrogram
from unskew.errors import DataError


def folder(
    path: str | Path,
    size: Annotated[int, Gt(0), "side to which images are resized, in pixels"] = 64,
) -> Dataset:
    """The set that lies in `path/`, or in `path/train/` and `path/test/`; without the latter a fifth is held out.

    CLASS/*.png          images in class folders, resized to squares of `size` pixels, in [0, 1]
    CLASS/*.wav          sounds in class folders, as log-mel spectrograms (unskew.data.wav)
    images/ and masks/   images with masks of equal file names (endings may differ), resized to squares as well

    Raises DataError: E409 for folders without the expected files, E401 for a file that cannot be read.
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError("E409", f"there is no folder {root}.")
    train = root / "train" if (root / "train").is_dir() else root
    test = root / "test" if train != root and (root / "test").is_dir() else None
    parts = [part for part in (train, test) if part]
    if (train / "images").is_dir() and (train / "masks").is_dir():
        return arrays(*(values for part in parts for values in _with_masks(part, size)), name=root.name)
    classes = _class_folders(train)
    if any(file.suffix.lower() == ".wav" for name in classes for file in _files(train / name)):
        return _sounds(root.name, classes, parts)
    images = (values for part in parts for values in _by_class(part, classes, size))
    return arrays(*images, classes=classes, name=root.name)


def _class_folders(root: Path) -> tuple[str, ...]:
    names = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if len(names) < 2:
        raise DataError(
            "E409",
            f"{root} holds {len(names)} class folders; put images or sounds into {root}/CLASS/, at least two classes, "
            f"and images with masks into {root}/images/ and {root}/masks/.",
        )
    return names


def _files(root: Path) -> list[Path]:
    files = root.iterdir() if root.is_dir() else ()
    return sorted(f for f in files if f.is_file() and not f.name.startswith("."))


def _labelled(root: Path, classes: tuple[str, ...], what: str) -> tuple[list[Path], np.ndarray]:
    """(the files in the folders of these classes, their classes [N]). what: "images" or "sounds", for the message."""
    files = [(file, label) for label, name in enumerate(classes) for file in _files(root / name)]
    if not files:
        raise DataError("E409", f"{root} holds no {what}.")
    return [file for file, _ in files], np.array([label for _, label in files], dtype=np.int64)


def _by_class(root: Path, classes: tuple[str, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
    files, y = _labelled(root, classes, "images")
    return unit_interval(np.stack([_pixels(file, size) for file in files])), y


def _with_masks(root: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    masks = {file.stem: file for file in _files(root / "masks")}
    files = _files(root / "images")
    if not files:
        raise DataError("E409", f"{root / 'images'} holds no images.")
    for file in files:
        if file.stem not in masks:
            raise DataError("E409", f"{file} has no mask: there is no {root / 'masks' / file.stem} with any ending.")
    x = unit_interval(np.stack([_pixels(file, size) for file in files]))
    return x, as_masks(np.stack([_mask(masks[file.stem], size) for file in files]))


def _pixels(file: Path, size: int) -> np.ndarray:
    """A colour image, uint8 [size, size, 3]."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((size, size)))
    except Exception as error:  # Pillow's readers raise many kinds of error for damaged files
        raise DataError("E401", f"{file} cannot be read as an image: {error}.") from error


def _mask(file: Path, size: int) -> np.ndarray:
    """The nearest values of a mask as they are stored, [size, size]."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            grey = image if image.mode in ("L", "P", "I", "I;16", "1") else image.convert("L")
            values = np.asarray(grey.resize((size, size), Image.Resampling.NEAREST))
    except Exception as error:  # as above
        raise DataError("E401", f"{file} cannot be read as an image: {error}.") from error
    return values.astype(np.uint8) if values.dtype == bool else values


def _sounds(name: str, classes: tuple[str, ...], parts: list[Path]) -> Dataset:
    """Log-mel spectrograms, in the format of the training files, so that test files cannot change it."""
    labelled = [_labelled(part, classes, "sounds") for part in parts]
    format = format_of(labelled[0][0])
    values = (v for files, y in labelled for v in (np.stack([spectrogram(f, format) for f in files])[:, None], y))
    return arrays(*values, classes=classes, name=name).with_constants()
