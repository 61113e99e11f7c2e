"""A data set from an object that returns one sample at a time, such as torch's and Hugging Face's Datasets.

Nothing of these libraries is imported: a sample is a pair (x, y) or a dictionary, and an image is what Pillow
makes.

Each sample is read once; if they do not fit into memory together, they go to a scratch file.
Letters: N samples, D numbers of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unskew.data.kinds.column_roles import column_named, label_column_in
from unskew.data.kinds.groups import INDEPENDENT, column_question, is_id_name
from unskew.data.kinds.images import channels_first
from unskew.data.readers.raw_samples import RawSamples, class_names_of
from unskew.data.samples.conversion import array_of, depth_of, sample_array
from unskew.data.samples.packing import PackedSamples, pack, pack_to_layout
from unskew.data.samples.reading_notes import Note
from unskew.data.storage.scratch import SampleSink, fits_memory
from unskew.errors import DataError, excerpt


def _item_inputs(x: Any, name: str) -> Any:
    """The inputs of one sample, a dictionary by name or a tuple, each with an axis [1, ...] in front."""
    if not isinstance(x, Mapping | tuple | list):
        raise DataError("E403", f"{name} is a single {type(x).__name__}, and sample 0 has several inputs.")
    for key, value in x.items() if isinstance(x, Mapping) else enumerate(x, 1):
        if value is None or isinstance(value, str | bytes | Mapping):
            remedy = "an input is a number or an array of numbers"
            raise DataError("E403", f"{name}: input {excerpt(key)} is a {type(value).__name__}; {remedy}.")
    if isinstance(x, Mapping):
        return {key: channels_first(value)[None] for key, value in x.items()}
    return tuple(channels_first(value)[None] for value in x)


def has_several_inputs(x: Any) -> bool:
    """Whether a sample's x is several inputs, a dictionary or a tuple of arrays, and not an array or a row
    of numbers."""
    if isinstance(x, tuple | list):
        return len(x) > 1 and any(hasattr(v, "getbands") or len(getattr(v, "shape", ())) > 0 for v in x)
    return isinstance(x, Mapping)


INPUT_KEYS = ("x", "image", "img", "pixel_values", "input", "inputs", "features", "audio", "data")
TOKEN_KEYS = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs of a sample as tokenizers of Hugging Face return them."""


def from_items(items: Any, label: str = "", other_bytes: int = 0, group: str = "") -> RawSamples:
    """All samples of a set with a length and items.

    label, group: the keys of labels and of groups in dictionaries.
    other_bytes: bytes that samples of other clients take in memory.
    Raises DataError: E401 for an item that fails, E403 for items that are no pair and for samples of unequal
    shapes.
    """
    name, notes = type(items).__name__, list[Note]()
    try:
        count = len(items)
    except Exception as error:  # anything a user's set raises
        collect = "give x.collect()" if hasattr(items, "collect") else "collect them into (x, y) first"
        fault = f"a {name} has no length; samples must be countable"
        raise DataError("E403", f"{fault}, so {collect}.") from error
    if not count:
        raise DataError("E403", f"{name} has no samples.")
    item = _get_item(items, 0, name)
    key = (label or label_column_in(item)) if isinstance(item, Mapping) else ""
    first = _item_pair(item, 0, name, key)
    used = (key, group, *INPUT_KEYS, *TOKEN_KEYS)
    if unused := [k for k in item if k not in used] if isinstance(item, Mapping) else []:
        text = f"{excerpt(unused)} of every sample: several inputs go into a dictionary of their own"
        notes.append(("left out", text))
    several = has_several_inputs(first[0])
    packed = pack(_item_inputs(first[0], f"{name}: sample 0"), name) if several else None

    def form(x: Any, i: int) -> np.ndarray:
        """Sample i as an array, several inputs as a row; images of Pillow's as the first one."""
        if packed is None:
            has_modes = hasattr(x, "getbands") and hasattr(first[0], "getbands")
            return channels_first(x.convert("RGB") if has_modes and first[0].mode == "RGB" else x)
        place = f"{name}: sample {i}"
        return pack_to_layout(packed.layout, _item_inputs(x, place), place)[0]

    like = form(first[0], 0)
    sample_array(like[None], name)
    bits = depth_of(like.dtype) if like.ndim > 1 and packed is None else None
    full = np.float32((1 << bits) - 1 if bits else 1)
    shape, ys = (count, *like.shape), list[Any]()
    sink = SampleSink(name, shape, fits_memory(count, like.shape, other_bytes))
    for i in range(count):
        given, y = first if not i else _item_pair(_get_item(items, i, name), i, name, key)
        x = form(given, i)
        scaled = depth_of(x.dtype) or depth_of(like.dtype)
        if x.shape != like.shape or x.dtype.kind not in "biuf" or (scaled and x.dtype != like.dtype):
            remedy = "cut, pad or resize them to one shape, of one type"
            fault = f"sample 0 is {like.dtype} {list(like.shape)}, sample {i} is {x.dtype} {list(x.shape)}"
            raise DataError("E403", f"{name}: {fault}; {remedy}.")
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            sink.put(i, x[None].astype(np.float32) / full)
        ys.append(y)
    x = sink.samples(notes)
    if bits:
        notes.append(("scaled", f"{bits}-bit whole numbers were divided by {int(full):,}"))
    if any(getattr(items, kind, None) is not None for kind in ("transform", "transforms")):
        notes.append(("note", "every sample was read once: what a random transform did to it stays"))
    classes = _item_classes(items, ys, key)
    group, columns = _item_groups(items, item, group, name, notes)
    samples = x if packed is None else PackedSamples(x, packed.layout, packed.notes)
    y = _stack_labels(ys, name)
    dtype = str(like.dtype.newbyteorder("=")) if packed is None else ""
    return RawSamples(
        samples, y, classes=classes, columns=columns, notes=tuple(notes), group=group, source_dtype=dtype
    )


def _item_groups(
    items: Any, first: Any, group: str, name: str, notes: list[Note]
) -> tuple[str, dict[str, np.ndarray]]:
    """(the key of groups or "", its values by key, [N])."""
    keys = list(first) if isinstance(first, Mapping) else []
    if group and group != INDEPENDENT:
        key = column_named(dict.fromkeys(keys), group, name)
        return group, {group: _item_column(items, key, name)}
    if not group:
        ids = [key for key in keys if isinstance(key, str) and is_id_name(key) and not np.ndim(first[key])]
        notes += column_question({key: _item_column(items, key, name) for key in ids})
    return "", {}


def _item_column(items: Any, key: Any, name: str) -> np.ndarray:
    """One value of every sample, [N]; a set that has columns is not read sample by sample."""
    if hasattr(items, "column_names"):
        return np.asarray(items[key][:])
    return np.array([_get_item(items, i, name)[key] for i in range(len(items))])


def _get_item(items: Any, i: int, name: str) -> Any:
    """Item i. Raises DataError (E401) for one that fails."""
    try:
        return items[i]
    except Exception as error:  # whatever a user's set raises
        raise DataError("E401", f"{name}: sample {i} failed: {type(error).__name__}: {error}.") from error


def _item_pair(item: Any, i: int, name: str, key: Any) -> tuple[Any, Any]:
    """(x, y) of sample i. key: the key of labels in dictionaries."""
    if isinstance(item, Mapping):
        inputs = [k for k in INPUT_KEYS if k in item and k != key]
        if len(inputs) > 1:
            remedy = f"give ({{{inputs[0]!r}: ..., {inputs[1]!r}: ...}}, label), or leave one out"
            raise DataError("E403", f"{name}: sample {i} has several inputs, {excerpt(inputs)}; {remedy}.")
        tokens = {k: item[k] for k in TOKEN_KEYS if k in item}
        if not (inputs or tokens) or key not in item:
            fault = (
                f"sample {i} has {excerpt(list(item))}; name the samples 'x' or 'image', the labels 'label'"
            )
            remedy = "or give (a dictionary of inputs, label). Rows of a table go into a DataFrame"
            raise DataError("E403", f"{name}: {fault}, {remedy}.")
        x, y = item[inputs[0]] if inputs else tokens, item[key]
    elif isinstance(item, tuple | list) and len(item) == 2:
        x, y = item
    else:
        kind = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        remedy = "several inputs go into a tuple or a dictionary x"
        raise DataError("E403", f"{name}: sample {i} is {kind}; it should be a pair (x, y); {remedy}.")
    if x is None:
        raise DataError("E403", f"{name}: sample {i} is None; leave it out.")
    return x, array_of(y) if hasattr(y, "detach") or isinstance(y, np.ndarray) else y


def _stack_labels(ys: list[Any], name: str) -> Any:
    """Labels, stacked if each is an array. Raises DataError (E404) for arrays of unequal shapes."""
    if not any(isinstance(y, np.ndarray) for y in ys):
        return ys
    for i, y in enumerate(ys):
        if np.shape(y) != np.shape(ys[0]):
            text = f"the label of sample 0 is {list(np.shape(ys[0]))}, that of sample {i} {list(np.shape(y))}"
            raise DataError("E404", f"{name}: {text}; give labels of one shape.")
    return np.stack(ys)


def _item_classes(items: Any, ys: list[Any], key: Any) -> tuple[str, ...] | None:
    """The names of the classes, if the set or the one below it has one for every label."""
    features = getattr(items, "features", None)
    is_table = isinstance(features, Mapping)
    names = getattr(features.get(key), "names", None) if is_table else class_names_of(items)
    if not isinstance(names, list | tuple):
        return None
    numbers = all(np.ndim(y) == 0 and np.asarray(y).dtype.kind in "biuf" and np.isfinite(y) for y in ys)
    fits = numbers and min(map(int, ys)) >= 0 and max(map(int, ys)) < len(names)
    return tuple(map(str, names)) if fits else None
