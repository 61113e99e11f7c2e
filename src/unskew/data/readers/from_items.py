"""A data set from an object that returns one sample at a time, such as torch's and Hugging Face's Datasets.

Nothing of these libraries is imported: a sample is a pair (x, y) or a dictionary, and an image is what Pillow
makes. Each sample is read once; if those with one input do not fit into memory together, they go to a scratch
file.
Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from unskew.data.kinds.column_roles import (
    INDEPENDENT,
    column_named,
    column_question,
    label_column_in,
)
from unskew.data.kinds.images import channels_first
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.conversion import array_of, depth_of, sample_array
from unskew.data.samples.reading_notes import Note
from unskew.data.storage.rows_on_disk import SampleSink
from unskew.errors import DataError, excerpt

INPUT_KEYS = ("x", "image", "img", "pixel_values", "input", "inputs", "features", "audio", "data")
TOKEN_KEYS = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs of a sample as tokenizers of Hugging Face return them."""


def from_items(
    items: Any, label: str = "", group: str = "", facts_of: dict[str, np.ndarray] | None = None
) -> RawSamples:
    """All samples of a set with a length and items.

    label, group: the keys of labels and of groups in dictionaries. facts_of: where to put what may be groups,
    [N] each, if it is asked about later, with that of another part.
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
    group, facts = _fact_lists(item, key, group, name)
    used = (key, group, *INPUT_KEYS, *TOKEN_KEYS)
    if unused := [k for k in item if k not in used] if isinstance(item, Mapping) else []:
        text = f"{excerpt(unused)} of every sample: several inputs go into a dictionary of their own"
        notes.append(("left out", text))

    def pairs_of_items() -> Pairs:
        for i in range(count):
            one = _get_item(items, i, name) if i else item
            for fact, values in facts.items():
                values.append(one.get(fact) if isinstance(one, Mapping) else None)
            yield _item_pair(one, i, name, key) if i else first

    pairs = pairs_of_items()
    ys, dtype = list[Any](), ""
    if has_several_inputs(first[0]):
        x: Any = _stack_inputs(pairs, name, ys)
    else:
        x, dtype = _read_samples(pairs, count, name, ys, notes)
    if any(getattr(items, kind, None) is not None for kind in ("transform", "transforms")):
        notes.append(("note", "every sample was read once: what a random transform did to it stays"))
    classes = _item_classes(items, ys, key)
    columns = {fact: np.array(values) for fact, values in facts.items()}
    if facts_of is not None and not group:
        facts_of |= columns
    elif not group:
        notes += column_question(columns)
    group = group if group in columns else ""
    columns = {group: columns[group]} if group else {}
    y = _stack_labels(ys, name)
    return RawSamples(
        x, y, classes=classes, columns=columns, notes=tuple(notes), group=group, source_dtype=dtype
    )


Pairs = Iterator[tuple[Any, Any]]
"""(x, y) of every sample."""


def _read_samples(
    pairs: Pairs, count: int, name: str, ys: list[Any], notes: list[Note]
) -> tuple[np.ndarray, str]:
    """(the samples, float32 [N, ...], scaled; their original type); fills `ys` with labels, adds to notes."""
    sink, like, full, coloured = None, np.zeros(0), np.float32(1), False
    for i, (given, y) in enumerate(pairs):
        # images of Pillow's are read as the first one
        coloured = getattr(given, "mode", "") == "RGB" if sink is None else coloured
        x = channels_first(given.convert("RGB") if coloured and hasattr(given, "getbands") else given)
        if sink is None:
            like, sink = x, SampleSink(name, (count, *x.shape))
            sample_array(like[None], name)
            if x.ndim > 1 and (bits := depth_of(x.dtype)):
                full = np.float32((1 << bits) - 1)
                notes.append(("scaled", f"{bits}-bit whole numbers were divided by {int(full):,}"))
        _check_form(name, x, like, i)
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            sink.put(i, x[None].astype(np.float32) / full)
        ys.append(y)
    assert sink is not None
    return sink.samples(notes), str(like.dtype.newbyteorder("="))


def _stack_inputs(pairs: Pairs, name: str, ys: list[Any]) -> Any:
    """The inputs of all samples, [N, ...] each: a dictionary by name, or a tuple; fills `ys` with labels."""
    columns: dict[Any, list[np.ndarray]] = {}
    by_name = False
    for i, (x, y) in enumerate(pairs):
        if not isinstance(x, Mapping | tuple | list):
            fault = f"{name}: sample {i} is a single {type(x).__name__}"
            raise DataError("E403", f"{fault}, and sample 0 has several inputs.")
        by_name = isinstance(x, Mapping) if not i else by_name
        inputs: Any = x if isinstance(x, Mapping) else dict(enumerate(x, 1))
        if columns and inputs.keys() != columns.keys():
            fault = f"sample {i} has the inputs {excerpt(list(inputs))}, sample 0 {excerpt(list(columns))}"
            raise DataError("E403", f"{name}: {fault}.")
        for key, value in inputs.items():
            if value is None or isinstance(value, str | bytes | Mapping):
                fault = f"{name}: sample {i}: input {excerpt(key)} is a {type(value).__name__}"
                raise DataError("E403", f"{fault}; an input is a number or an array of numbers.")
            column = columns.setdefault(key, [])
            column.append(channels_first(value))
            _check_form(f"{name}: input {excerpt(key)}", column[-1], column[0], i)
        ys.append(y)
    stacked = {key: np.stack(column) for key, column in columns.items()}
    return stacked if by_name else tuple(stacked.values())


def _check_form(name: str, x: np.ndarray, like: np.ndarray, i: int) -> None:
    """Raises DataError (E403) for sample i of another shape or kind than the first one, `like`."""
    scaled = depth_of(x.dtype) or depth_of(like.dtype)
    if x.shape != like.shape or x.dtype.kind not in "biuf" or (scaled and x.dtype != like.dtype):
        fault = f"sample 0 is {like.dtype} {list(like.shape)}, sample {i} is {x.dtype} {list(x.shape)}"
        raise DataError("E403", f"{name}: {fault}; cut, pad or resize them to one shape, of one type.")


def has_several_inputs(x: Any) -> bool:
    """Whether a sample's x is several inputs, a dictionary or a tuple of arrays, and not an array or a row
    of numbers."""
    if isinstance(x, tuple | list):
        return len(x) > 1 and any(hasattr(v, "getbands") or len(getattr(v, "shape", ())) > 0 for v in x)
    return isinstance(x, Mapping)


def _fact_lists(first: Any, label: Any, group: str, name: str) -> tuple[str, dict[str, list[Any]]]:
    """(the key of groups, `none` or "", an empty list for each key of a sample that may hold groups)."""
    keys = list(first) if isinstance(first, Mapping) else []
    if group and group != INDEPENDENT:
        group = column_named(dict.fromkeys(keys), group, name)
        return group, {group: []}
    values = {key: array_of(first[key]) for key in keys if isinstance(key, str) and key != label}
    return group, {
        key: [] for key, v in values.items() if not group and not v.ndim and v.dtype.kind in "biufU"
    }


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
    below = items  # a torch.utils.data.Subset has the names of the set below it
    while getattr(below, "classes", None) is None and hasattr(below, "dataset"):
        below = below.dataset
    names = getattr(features.get(key), "names", None) if is_table else getattr(below, "classes", None)
    if not isinstance(names, list | tuple):
        return None
    numbers = all(np.ndim(y) == 0 and np.asarray(y).dtype.kind in "biuf" and np.isfinite(y) for y in ys)
    fits = numbers and min(map(int, ys)) >= 0 and max(map(int, ys)) < len(names)
    return tuple(map(str, names)) if fits else None
