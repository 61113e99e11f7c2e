"""Sets that hand out one sample at a time: torch's Datasets, Hugging Face's, and whatever has a length and items.

Nothing of these libraries is imported: a sample is a pair (x, y) or a dictionary, and an image is whatever Pillow makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from unskew.data.convert import array_of, depth_of
from unskew.data.intake.drawn import Drawn, scaling
from unskew.data.intake.gathered import first_row, gathered, row
from unskew.data.intake.images import channels_first, pixels_of
from unskew.data.intake.notes import Note, counted
from unskew.data.intake.numbering import names_of, unlike_parts
from unskew.data.intake.raw import Raw
from unskew.data.intake.room import fits, told
from unskew.data.intake.take_forms import has_several_inputs
from unskew.data.intake.targets import label_of
from unskew.data.packed import Packed
from unskew.data.rows import standing_in, streams
from unskew.errors import DataError, excerpt

INPUTS = ("x", "image", "img", "pixel_values", "input", "inputs", "features", "audio", "data")
READ_AGAIN = 4
"""Samples that are read twice, to see whether a random transform changes them."""
SIZE = 64
"""Side of images that differ in size."""


def from_items(items: Any, label: str = "", beside: int = 0) -> Raw:
    """All samples of a set with a length and items. label: of dictionaries, the key of labels. beside: bytes that samples
    of other clients take in memory.

    Raises DataError: E401 for an item that fails, E403 for items that are no pair and for samples of unequal shapes.
    """
    name = type(items).__name__
    notes: list[Note] = []
    if not _length(items, name):
        raise DataError("E403", f"{name} has no samples.")
    item = _read(items, 0, name)
    first = _sample(item, 0, name, label)
    if unused := _unused(item, label):
        notes.append(
            ("left out", f"{excerpt(unused)} of every sample: several inputs go into a dictionary of their own")
        )
    if has_several_inputs(first[0]):
        x, ys = _together(items, first, (name, label), beside, notes)
    elif fits(len(items), (like := channels_first(first[0])).shape, beside):
        xs, ys = zip(first, *(_item(items, i, name, label) for i in range(1, len(items))))
        x, ys = _stacked(list(xs), name, notes), list(ys)
    else:
        x, ys = _drawn(items, name, label, like, lambda x, _: channels_first(x), notes)
    if not streams(x) and (_has_transform(items) or _differs(items, (x, ys), name, label)):
        notes.append(("note", "every sample was read once: what a random transform did to it stays"))
    classes = _classes(items, ys, _keys(item, label)[0] if isinstance(item, Mapping) else None)
    if classes is None and (text := unlike_parts(items)):
        notes.append(("labels", text))
    return Raw(x, _labels(ys, name), classes=classes, notes=tuple(notes))


def _together(
    items: Any, first: tuple[Any, Any], named: tuple[str, str], beside: int, notes: list[Note]
) -> tuple[Packed, list[Any]]:
    """(samples with several inputs, their labels). first: the sample that is read already. named: the set and the label."""
    name, label = named
    one = first_row(name, first[0])
    if not fits(len(items), (one.layout.width,), beside):
        x, labels = _drawn(items, name, label, one.x[0], partial(row, name, one.layout), notes)
        return Packed(x, one.layout, one.notes), labels
    labels = []

    def give() -> Iterator[Any]:
        for i in range(len(items)):
            x, y = _item(items, i, name, label) if i else first
            labels.append(y)
            yield x

    return gathered(name, give()), labels


def _drawn(
    items: Any, name: str, label: str, like: np.ndarray, form: Callable[[Any, int], np.ndarray], notes: list[Note]
) -> tuple[np.ndarray, list[Any]]:
    """(what stands in for the samples, labels) of a set that does not fit into memory; labels are those of the first reading.

    like: sample 0. form: makes a sample of what the set gives, and its number.
    """
    labels: dict[int, Any] = {}

    def give(i: int) -> np.ndarray:
        x, y = _item(items, i, name, label)
        labels.setdefault(i, y)
        return form(x, i)

    source = Drawn(name, len(items), give, like)
    notes.append(told(len(items), like.shape))
    if text := scaling(source):
        notes.append(("scaled", text))
    return standing_in(source), [labels[i] for i in range(len(items))]


def _has_transform(items: Any) -> bool:
    return any(getattr(items, kind, None) is not None for kind in ("transform", "transforms"))


def _differs(items: Any, read: tuple[Any, list[Any]], name: str, label: str) -> bool:
    """Whether some samples, evenly spaced, are others when they are read once more. read: (samples, labels)."""
    x, ys = read
    if isinstance(x, Packed) or x.dtype.kind not in "biuf":
        return False
    for i in np.unique(np.linspace(0, len(ys) - 1, READ_AGAIN).astype(np.int64)).tolist():
        again, _ = _item(items, i, name, label)
        values = channels_first(again)
        if values.shape == x.shape[1:] and not np.array_equal(values, x[i], equal_nan=values.dtype.kind == "f"):
            return True
    return False


def _item(items: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    """Sample i and its label."""
    return _sample(_read(items, i, name), i, name, label)


def _read(items: Any, i: int, name: str) -> Any:
    """Item i. Raises DataError (E401) for one that fails."""
    try:
        return items[i]
    except Exception as error:  # whatever a user's set raises
        raise DataError("E401", f"{name}: sample {i} failed: {type(error).__name__}: {error}.") from error


def _length(items: Any, name: str) -> int:
    """How many samples a set has. Raises DataError (E403) for one that cannot tell."""
    try:
        return len(items)
    except Exception as error:  # whatever a user's set raises
        collect = "give x.collect()" if hasattr(items, "collect") else "collect them into (x, y) first"
        text = f"a {name} has no length; samples must be countable, so {collect}"
        raise DataError("E403", f"{text}.") from error


def _sample(item: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    x, y = _pair(item, i, name, label)
    if x is None:
        raise DataError("E403", f"{name}: sample {i} is None; leave it out.")
    return x, array_of(y) if hasattr(y, "detach") or isinstance(y, np.ndarray) else y


def _pair(item: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        key, inputs = _keys(item, label)
        if len(inputs) > 1:
            text = f"{name}: sample {i} has {excerpt(inputs)}, and which of them the model takes cannot be told"
            raise DataError(
                "E403", f"{text}; give ({{{inputs[0]!r}: ..., {inputs[1]!r}: ...}}, label), or leave one out."
            )
        if inputs and key in item:
            return item[inputs[0]], item[key]
        raise DataError(
            "E403",
            f"{name}: sample {i} has {excerpt(list(item))}; name the samples 'x' or 'image', the labels 'label', or give (a dictionary of inputs, label). Rows of a table go into a DataFrame.",
        )
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    what = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise DataError(
        "E403",
        f"{name}: sample {i} is {what}; it should be a pair (x, y); several inputs go into a tuple or a dictionary x.",
    )


def _keys(item: Mapping[Any, Any], label: str) -> tuple[Any, list[Any]]:
    """(the key of the label, the keys by which inputs usually go) of a sample that is a dictionary."""
    key = label or label_of(item)
    return key, [k for k in INPUTS if k in item and k != key]


def _unused(item: Any, label: str) -> list[Any]:
    """The keys of a sample that is a dictionary which are neither its input nor its label."""
    if not isinstance(item, Mapping):
        return []
    key, inputs = _keys(item, label)
    return [k for k in item if k not in (key, *inputs)]


def _stacked(xs: list[Any], name: str, notes: list[Note]) -> np.ndarray:
    """The samples as one array; images of unequal sizes are brought to one."""
    if all(hasattr(x, "getbands") for x in xs):
        shapes = {(x.size, x.mode) for x in xs}
        if len(shapes) == 1:
            return np.stack([channels_first(x) for x in xs])
        modes = sorted({mode for _, mode in shapes})
        if len({size for size, _ in shapes}) == 1 and not any(mode[0] in "IF" for mode in modes):
            notes.append(("scaled", f"images of several modes ({', '.join(modes)}) were read in colour"))
            return np.stack([channels_first(x.convert("RGB")) for x in xs])
        notes.append(
            ("scaled", f"{counted(len(xs), 'image')} of unequal sizes were padded and resized to {SIZE} x {SIZE}")
        )
        return np.stack([pixels_of(x, SIZE, "pad", f"image {i}")[0] for i, x in enumerate(xs)])
    values = [array_of(x) for x in xs]
    for i, v in enumerate(values):
        if v.ndim > 1 and v.dtype != values[0].dtype and (depth_of(v.dtype) or depth_of(values[0].dtype)):
            text = f"{name}: sample 0 is {values[0].dtype}, sample {i} is {v.dtype}, and whole numbers of images are scaled"
            raise DataError("E403", f"{text}; give all of one type.")
        if v.shape != values[0].shape:
            raise DataError(
                "E403",
                f"{name}: sample 0 is {list(values[0].shape)}, sample {i} is {list(v.shape)}; cut, pad or resize them to "
                "one shape.",
            )
    return np.stack(values)


def _labels(ys: list[Any], name: str) -> Any:
    """Labels, which are one array where each is one. Raises DataError (E404) for arrays of unequal shapes."""
    if not any(isinstance(y, np.ndarray) for y in ys):
        return ys
    for i, y in enumerate(ys):
        if np.shape(y) != np.shape(ys[0]):
            text = f"the label of sample 0 is {list(np.shape(ys[0]))}, that of sample {i} {list(np.shape(y))}"
            raise DataError("E404", f"{name}: {text}; give labels of one shape.")
    return np.stack(ys)


def _classes(items: Any, ys: list[Any], key: Any) -> tuple[str, ...] | None:
    """Names of the classes, where the set or the one below it has them for every label. key: of labels in dictionaries."""
    features = getattr(items, "features", None)
    names = getattr(features.get(key), "names", None) if isinstance(features, Mapping) else names_of(items)
    if not isinstance(names, list | tuple) or not all(_is_number(y) for y in ys):
        return None
    return tuple(map(str, names)) if max(map(int, ys)) < len(names) else None


def _is_number(y: Any) -> bool:
    return np.ndim(y) == 0 and np.asarray(y).dtype.kind in "biuf" and bool(np.isfinite(y))
