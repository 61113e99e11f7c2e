"""MedMNIST's sets of images with one label each: `train_images`, `train_labels`, ... in an .npz file."""

from __future__ import annotations

import numpy as np

from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, Recipe
from unskew.data.files.archives import Archive
from unskew.errors import DataError

MD5 = {
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc",
    "organcmnist": "b9ceb9546e10131b32923c5bbeaea2b1",
    "organsmnist": "9ab87b696fb54e2a387ebe992d6ed5f1",
}
"""Of the files with images of 28 x 28, as version 3.0.2 of MedMNIST publishes them."""


def medmnist(origin: OriginalFiles) -> OriginalSamples:
    """uint8 [N, 1 or 3, size, size]; the validation images are left out."""
    path = origin.path / f"{origin.name}.npz" if origin.path.is_dir() else origin.path
    archive = Archive(path)
    (x, y), (x_test, y_test) = (
        _part(archive[f"{p}_images"], archive[f"{p}_labels"], str(path)) for p in ("train", "test")
    )
    classes = tuple(map(str, range(int(max(y.max(), y_test.max())) + 1)))
    count = archive.shapes.get("val_images", (0,))[0]
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
        files={f"{name}.npz": f"md5:{md5}"},
        addresses=(f"https://zenodo.org/records/10519652/files/{name}.npz?download=1",),
    )
    for name, md5 in MD5.items()
}
