"""MedMNIST's sets of images with one label each: `train_images`, `train_labels`, ... in an .npz file."""

from __future__ import annotations

import numpy as np

from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, Recipe
from unskew.data.files.archives import read_archive
from unskew.errors import DataError

NAMES = (
    "pathmnist",
    "dermamnist",
    "octmnist",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
    "bloodmnist",
    "tissuemnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
)


def medmnist(origin: OriginalFiles) -> OriginalSamples:
    """uint8 [N, 1 or 3, size, size]; the validation images are left out."""
    path = origin.path / f"{origin.name}.npz" if origin.path.is_dir() else origin.path
    archive = read_archive(path)
    (x, y), (x_test, y_test) = (
        _part(archive[f"{p}_images"], archive[f"{p}_labels"], str(path)) for p in ("train", "test")
    )
    classes = tuple(map(str, range(int(max(y.max(), y_test.max())) + 1)))
    count = len(archive["val_images"]) if "val_images" in archive else 0
    return OriginalSamples(
        x, y, x_test, y_test, classes, notes=(f"{count:,} validation images were left out",) if count else ()
    )


def _part(x: np.ndarray, y: np.ndarray, place: str) -> tuple[np.ndarray, np.ndarray]:
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or not len(x):
        raise DataError(
            "E401",
            f"{place}: images are {x.dtype} {list(x.shape)}; expected uint8 [N, H, W] or [N, H, W, 3].",
        )
    if y.dtype.kind not in "ui" or y.size != len(x) or y.ndim > 2:
        raise DataError(
            "E401",
            f"{place}: labels are {y.dtype} {list(y.shape)}; expected one whole number for each image.",
        )
    images = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return images, y.reshape(-1).astype(np.int64)


SETS = {
    name: Recipe(
        f"medical images of MedMNIST, the set {name} (Yang et al., 2023)",
        "medmnist.com",
        "CC BY 4.0" if name != "dermamnist" else "CC BY-NC 4.0",
        f"{name}.npz, or the folder that holds it",
        medmnist,
    )
    for name in NAMES
}
