"""Sets that hand out one sample at a time: torch's Datasets, Hugging Face's, and whatever has a length and items.

Nothing of these libraries is imported: a sample is a pair (x, y) or a dictionary, and an image is whatever Pillow makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unskew.data.convert import array_of
from unskew.data.intake.images import pixels_of
from unskew.data.intake.notes import Note, counted
from unskew.data.intake.raw import Raw
from unskew.data.intake.targets import label_of
from unskew.errors import DataError, excerpt

INPUTS = ("x", "image", "img", "pixel_values", "input", "inputs", "features", "audio", "data")
SIZE = 64
"""Side of images that differ in size."""


def from_items(items: Any, label: str = "") -> Raw:
    """All samples of a set with a length and items. label: of dictionaries, the key of labels.

    Raises DataError: E401 for an item that fails, E403 for items that are no pair and for samples of unequal shapes.
    """
    name = type(items).__name__
    if not hasattr(items, "__len__"):
        raise DataError(
            "E403", f"a {name} has no length; samples must be countable, so collect them into (x, y) first."
        )
    xs, ys = [], []
    for i in range(len(items)):
        try:
            item = items[i]
        except Exception as error:  # whatever a user's set raises
            raise DataError("E401", f"{name}: sample {i} failed: {type(error).__name__}: {error}.") from error
        x, y = _pair(item, i, name, label)
        xs.append(x)
        ys.append(array_of(y) if hasattr(y, "detach") or isinstance(y, np.ndarray) else y)
    if not xs:
        raise DataError("E403", f"{name} has no samples.")
    notes: list[Note] = []
    if getattr(items, "transform", None) is not None or getattr(items, "transforms", None) is not None:
        notes.append(("note", "every sample was read once: what a random transform did to it stays"))
    x = _stacked(xs, name, notes)
    return Raw(
        x, ys if not isinstance(ys[0], np.ndarray) else np.stack(ys), classes=_classes(items, ys), notes=tuple(notes)
    )


def _pair(item: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        key = label or label_of(item)
        x = next((k for k in INPUTS if k in item and k != key), None)
        if x is not None and key in item:
            return item[x], item[key]
        raise DataError(
            "E403",
            f"{name}: sample {i} has {excerpt(list(item))}; name the samples 'x' or 'image', the labels 'label'.",
        )
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    what = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise DataError("E403", f"{name}: sample {i} is {what}; it should be a pair (x, y). Models take one input.")


def _stacked(xs: list[Any], name: str, notes: list[Note]) -> np.ndarray:
    """The samples as one array; images of unequal sizes are brought to one."""
    if all(hasattr(x, "getbands") for x in xs):
        shapes = {(x.size, x.mode) for x in xs}
        if len(shapes) == 1:
            arrays = [np.asarray(x) for x in xs]
            return np.stack([a[None] if a.ndim == 2 else a.transpose(2, 0, 1) for a in arrays])
        notes.append(
            ("scaled", f"{counted(len(xs), 'image')} of unequal sizes were padded and resized to {SIZE} x {SIZE}")
        )
        return np.stack([pixels_of(x, SIZE, "pad", f"image {i}")[0] for i, x in enumerate(xs)])
    values = [array_of(x) for x in xs]
    for i, v in enumerate(values):
        if v.shape != values[0].shape:
            raise DataError(
                "E403",
                f"{name}: sample 0 is {list(values[0].shape)}, sample {i} is {list(v.shape)}; cut, pad or resize them to "
                "one shape.",
            )
    return np.stack(values)


def _classes(items: Any, ys: list[Any]) -> tuple[str, ...] | None:
    """Names of the classes, where the set or the one below it has them for every label."""
    features, names = getattr(items, "features", None), None
    if isinstance(features, Mapping):
        names = next((f.names for f in features.values() if getattr(f, "names", None)), None)
    while names is None and items is not None:
        names = getattr(items, "classes", None)
        items = getattr(items, "dataset", None)
    if not isinstance(names, list | tuple) or not all(isinstance(y, int | np.integer) or np.ndim(y) == 0 for y in ys):
        return None
    whole = [int(y) for y in ys if not isinstance(y, str)]
    return tuple(map(str, names)) if len(whole) == len(ys) and max(whole) < len(names) else None
