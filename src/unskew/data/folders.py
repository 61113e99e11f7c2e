"""A user's own files in folders: images by class, images with masks, sounds by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unskew.data import audio
from unskew.data.dataset import Dataset
from unskew.data.own import arrays, as_masks, images
from unskew.errors import DataError


def folder(path: str | Path, size: int = 64) -> Dataset:
    """What lies in `path/`, or in `path/train/` and `path/test/`; without the latter a fifth is held out.

    CLASS/*.png          images in class folders, squared to `size` pixels, [0, 1]
    CLASS/*.wav          sounds in class folders, as log-mel spectrograms (`unskew.data.audio`)
    images/ and masks/   images with masks of equal file names (the endings may differ), squared to `size` pixels
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError("E409", f"there is no folder {root}.")
    first = root / "train" if (root / "train").is_dir() else root
    test = root / "test" if first != root and (root / "test").is_dir() else None
    if (first / "images").is_dir() and (first / "masks").is_dir():
        pairs = [_with_masks(part, size) for part in (first, test) if part]
        return arrays(*(values for pair in pairs for values in pair), name=root.name)
    classes = _class_folders(first)
    if any(f.suffix.lower() == ".wav" for name in classes for f in _files(first / name)):
        return _sounds(root.name, classes, first, test)
    pairs = [_by_class(part, classes, size) for part in (first, test) if part]
    return arrays(*(values for pair in pairs for values in pair), classes=classes, name=root.name)


def _class_folders(root: Path) -> tuple[str, ...]:
    found = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if len(found) < 2:
        raise DataError(
            "E409",
            f"{root} holds {len(found)} class folders; images or sounds belong in {root}/CLASS/, two classes at least, "
            f"images with masks in {root}/images/ and {root}/masks/.",
        )
    return found


def _files(root: Path) -> list[Path]:
    found = root.iterdir() if root.is_dir() else ()
    return sorted(f for f in found if f.is_file() and not f.name.startswith("."))


def _labelled(root: Path, classes: tuple[str, ...], what: str) -> tuple[list[Path], np.ndarray]:
    files = [(file, label) for label, name in enumerate(classes) for file in _files(root / name)]
    if not files:
        raise DataError("E409", f"{root} holds no {what}.")
    return [f for f, _ in files], np.array([label for _, label in files], dtype=np.int64)


def _by_class(root: Path, classes: tuple[str, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
    files, y = _labelled(root, classes, "images")
    return images(np.stack([_pixels(f, size) for f in files])), y


def _with_masks(root: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    masks = {f.stem: f for f in _files(root / "masks")}
    files = _files(root / "images")
    if not files:
        raise DataError("E409", f"{root / 'images'} holds no images.")
    for f in files:
        if f.stem not in masks:
            raise DataError("E409", f"{f} has no mask: there is no {root / 'masks' / f.stem} with any ending.")
    x = images(np.stack([_pixels(f, size) for f in files]))
    return x, as_masks(np.stack([_pixels(masks[f.stem], size, mask=True) for f in files]))


def _pixels(file: Path, size: int, mask: bool = False) -> np.ndarray:
    """uint8 [size, size, 3], or the nearest values of a mask as they are stored, [size, size]."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            if not mask:
                return np.asarray(image.convert("RGB").resize((size, size)))
            plain = image if image.mode in ("L", "P", "I", "I;16", "1") else image.convert("L")
            found = np.asarray(plain.resize((size, size), Image.Resampling.NEAREST))
            return found.astype(np.uint8) if found.dtype == bool else found
    except (UnidentifiedImageError, OSError) as error:
        raise DataError("E401", f"{file} cannot be read as an image: {error}.") from error


def _sounds(name: str, classes: tuple[str, ...], train: Path, test: Path | None) -> Dataset:
    """Log-mel spectrograms; how sounds are cut is settled by the training files, so that test files cannot change it."""
    parts = [_labelled(part, classes, "sounds") for part in (train, test) if part]
    how = audio.fitting(parts[0][0])
    pairs = [(np.stack([audio.read(f, how) for f in files])[:, None], y) for files, y in parts]
    made = arrays(*(values for pair in pairs for values in pair), classes=classes, name=name)
    return made.with_constants()
