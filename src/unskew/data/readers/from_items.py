"""A data set from an object that returns one sample at a time, such as torch's and Hugging Face's Datasets.

Nothing of these libraries is imported: a sample is a pair (x, y) or a dictionary, an image is what Pillow
makes, and the parts of a DataLoader are recognised by their names. A loader that changes the samples or their
selection is refused.

If the samples do not fit into memory, each is read once and goes to a scratch file.
Letters: N samples, D numbers of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from unskew.data.kinds.column_roles import column_named, label_column_in
from unskew.data.kinds.groups import INDEPENDENT, column_question, is_id_name
from unskew.data.kinds.images import channels_first, pixels_of
from unskew.data.readers.raw_samples import RawSamples, class_names_of
from unskew.data.samples.conversion import array_of, depth_of
from unskew.data.samples.intake import Note, quantity
from unskew.data.samples.memory_budget import fits_memory
from unskew.data.samples.packing import PackedSamples, pack, pack_to_layout
from unskew.data.storage.scratch import ScratchFile, scratch_note
from unskew.errors import DataError, excerpt
from unskew.formats.input_layout import Layout


def pack_items(name: str, xs: Iterable[Any]) -> PackedSamples:
    """The samples as rows. xs: the inputs of each sample, a dictionary by name or a tuple.

    Raises DataError (E403), with the number of the sample, if its inputs or their shapes differ from the
    first; and the errors of `pack`.
    """
    columns: dict[Any, list[np.ndarray]] = {}
    by_name = True
    for i, x in enumerate(xs):
        inputs = _item_inputs(x, i, name)
        if not i:
            columns, by_name = {key: [] for key in inputs}, isinstance(x, Mapping)
        if by_name != isinstance(x, Mapping) or inputs.keys() != columns.keys():
            text = f"sample 0 has the inputs {excerpt(list(columns))}, sample {i} {excerpt(list(inputs))}"
            raise DataError("E403", f"{name}: {text}; give every sample the same.")
        for key, value in inputs.items():
            columns[key].append(value)
    arrays = {key: _stack_input(values, f"{name}: {_key_name(key)}") for key, values in columns.items()}
    return pack(arrays if by_name else tuple(arrays.values()), name)


def pack_first(name: str, x: Any) -> PackedSamples:
    """Sample 0 as a row; its layout holds for all samples. Raises DataError as `pack_items` does."""
    return pack(_single_inputs(x, 0, name), name)


def pack_item(name: str, layout: Layout, x: Any, i: int) -> np.ndarray:
    """Sample i as a row, float32 [D]. Raises DataError: E403 if its inputs differ from sample 0, E405 as
    `pack_to_layout`."""
    return pack_to_layout(layout, _single_inputs(x, i, name), f"{name}: sample {i}")[0]


def _single_inputs(x: Any, i: int, name: str) -> Any:
    """The inputs of one sample, each with an axis [1, ...] in front."""
    inputs = {key: value[None] for key, value in _item_inputs(x, i, name).items()}
    return inputs if isinstance(x, Mapping) else tuple(inputs.values())


def _item_inputs(x: Any, i: int, name: str) -> dict[Any, np.ndarray]:
    """The inputs of sample i by name, or by number from 1."""
    if not isinstance(x, Mapping | tuple | list):
        kind = type(x).__name__
        raise DataError(
            "E403",
            f"{name}: sample 0 has several inputs, sample {i} a single {kind}; give every sample the same.",
        )
    inputs = x if isinstance(x, Mapping) else dict(enumerate(x, 1))
    return {
        key: _input_value(value, f"{name}: {_key_name(key)} of sample {i}") for key, value in inputs.items()
    }


def _input_value(value: Any, label: str) -> np.ndarray:
    if value is None or isinstance(value, str | bytes | Mapping):
        fault = "a dictionary" if isinstance(value, Mapping) else "text"
        fault = "missing" if value is None else fault
        raise DataError("E403", f"{label} is {fault}; an input is a number or an array of numbers.")
    return channels_first(value)


def _stack_input(values: list[np.ndarray], label: str) -> np.ndarray:
    for i, value in enumerate(values):
        if value.shape != values[0].shape:
            shapes = f"{list(values[0].shape)} in sample 0 and {list(value.shape)} in sample {i}"
            raise DataError("E403", f"{label} is {shapes}; cut, pad or resize it to one shape.")
    return np.stack(values)


def _key_name(key: Any) -> str:
    return f"input {key}" if isinstance(key, int) else f"input {excerpt(key)}"


def is_loader(data: Any) -> bool:
    """Whether the object returns batches of another set."""
    return hasattr(data, "dataset") and hasattr(data, "batch_size")


def loader_dataset(loader: Any) -> Any:
    """The set behind a DataLoader. Raises DataError (E403) if the loader leaves out or repeats samples by its
    sampler, or changes them by `batch_sampler` or `collate_fn`."""
    collate: Any = getattr(loader, "collate_fn", None)
    sampler: Any = getattr(loader, "sampler", None)
    batches: Any = getattr(loader, "batch_sampler", None)
    parts: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
        ("batch_sampler", batches, ("BatchSampler",)),
        ("sampler", sampler, ("SequentialSampler", "RandomSampler", "_InfiniteConstantSampler")),
        ("collate_fn", collate, ("default_collate", "default_convert")),
    )
    for part, item, names in parts:
        own: Any = item
        kind: Any = item if hasattr(item, "__name__") else type(item)
        plain = kind.__name__ in names and kind.__module__.startswith("torch.utils.data")
        part_of_set = part == "sampler" and hasattr(own, "__len__") and len(own) != len(loader.dataset)
        if item is not None and (not plain or part_of_set or getattr(item, "replacement", False)):
            raise DataError(
                "E403",
                f"the DataLoader has a {part} of its own ({kind.__name__}), which is not applied here; give"
                " a dataset that holds the samples as they are to be used, such as a"
                " torch.utils.data.Subset.",
            )
    return loader.dataset


def has_several_inputs(x: Any) -> bool:
    """Whether a sample's x is several inputs, a dictionary or a tuple of arrays, and not an array or a row
    of numbers."""
    return isinstance(x, Mapping) or (
        isinstance(x, tuple | list) and len(x) > 1 and any(map(_is_whole_input, x))
    )


def _is_whole_input(value: Any) -> bool:
    """Whether the value is an array, a tensor or an image, not a single number of a row."""
    return hasattr(value, "getbands") or len(getattr(value, "shape", ())) > 0


INPUT_KEYS = ("x", "image", "img", "pixel_values", "input", "inputs", "features", "audio", "data")
IMAGE_SIZE = 64
"""Side to which images of different sizes are resized."""


def from_items(items: Any, label: str = "", other_bytes: int = 0, group: str = "") -> RawSamples:
    """All samples of a set with a length and items.

    label, group: the keys of labels and of groups in dictionaries.
    other_bytes: bytes that samples of other clients take in memory.
    Raises DataError: E401 for an item that fails, E403 for items that are no pair and for samples of unequal
    shapes.
    """
    name = type(items).__name__
    notes: list[Note] = []
    if not _item_count(items, name):
        raise DataError("E403", f"{name} has no samples.")
    item = _get_item(items, 0, name)
    first = _checked_pair(item, 0, name, label)
    if unused := [key for key in _unused_keys(item, label) if key != group]:
        notes.append(
            (
                "left out",
                f"{excerpt(unused)} of every sample: several inputs go into a dictionary of their own",
            )
        )
    if has_several_inputs(first[0]):
        x, ys = _read_inputs(items, first, (name, label), other_bytes, notes)
    elif fits_memory(len(items), channels_first(first[0]).shape, other_bytes):
        xs, ys = zip(first, *(_item(items, i, name, label) for i in range(1, len(items))))
        x, ys = _stack_samples(list(xs), name, notes), list(ys)
    else:
        x, ys = _copied_items(items, name, label, first, lambda x, _: channels_first(x), notes)
    if any(getattr(items, kind, None) is not None for kind in ("transform", "transforms")):
        notes.append(("note", "every sample was read once: what a random transform did to it stays"))
    classes = _item_classes(items, ys, _item_keys(item, label)[0] if isinstance(item, Mapping) else None)
    group, columns = _item_groups(items, item, group, name, notes)
    return RawSamples(
        x, _stack_labels(ys, name), classes=classes, columns=columns, notes=tuple(notes), group=group
    )


def _item_groups(
    items: Any, first: Any, group: str, name: str, notes: list[Note]
) -> tuple[str, dict[str, np.ndarray]]:
    """(the key of groups or "", its values by key, [N]); the notes get the question whether a key is one.

    first: sample 0. Raises DataError (E403) for a key that samples do not have.
    """
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


def _read_inputs(
    items: Any, first: tuple[Any, Any], names: tuple[str, str], other_bytes: int, notes: list[Note]
) -> tuple[PackedSamples, list[Any]]:
    """(samples with several inputs, their labels). first: the sample that is read already. names: the set
    and the label."""
    name, label = names
    row = pack_first(name, first[0])
    if not fits_memory(len(items), (row.layout.width,), other_bytes):
        x, labels = _copied_items(items, name, label, first, partial(pack_item, name, row.layout), notes)
        return PackedSamples(x, row.layout, row.notes), labels
    labels = []

    def give() -> Iterator[Any]:
        for i in range(len(items)):
            x, y = _item(items, i, name, label) if i else first
            labels.append(y)
            yield x

    return pack_items(name, give()), labels


def _copied_items(
    items: Any,
    name: str,
    label: str,
    first: tuple[Any, Any],
    form: Callable[[Any, int], np.ndarray],
    notes: list[Note],
) -> tuple[np.ndarray, list[Any]]:
    """(samples in a scratch file, labels) of a set that does not fit into memory.

    first: the sample that is read already. form: makes a sample of an item and its number. Raises DataError
    (E403) for samples of unequal shapes or types.
    """
    like, labels = form(first[0], 0), list[Any]()
    bits = depth_of(like.dtype) if like.ndim > 1 else None
    full = (1 << bits) - 1 if bits else 1
    scratch = ScratchFile(name, (len(items), *like.shape))
    for i in range(len(items)):
        item, y = _item(items, i, name, label) if i else first
        x = form(item, i)
        if x.shape != like.shape or x.dtype != like.dtype:
            raise DataError(
                "E403",
                f"{name}: sample 0 is {like.dtype} {list(like.shape)}, sample {i} is {x.dtype}"
                f" {list(x.shape)}; cut, pad or resize them to one shape.",
            )
        scratch.put(i, x[None].astype(np.float32) / np.float32(full))
        labels.append(y)
    notes.append(scratch_note(scratch.shape))
    if bits:
        notes.append(("scaled", f"{bits}-bit whole numbers were divided by {full:,}"))
    return scratch.samples(), labels


def _item(items: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    """Sample i and its label."""
    return _checked_pair(_get_item(items, i, name), i, name, label)


def _get_item(items: Any, i: int, name: str) -> Any:
    """Item i. Raises DataError (E401) for one that fails."""
    try:
        return items[i]
    except Exception as error:  # whatever a user's set raises
        raise DataError("E401", f"{name}: sample {i} failed: {type(error).__name__}: {error}.") from error


def _item_count(items: Any, name: str) -> int:
    """The number of samples of a set. Raises DataError (E403) for a set without a length."""
    try:
        return len(items)
    except Exception as error:  # whatever a user's set raises
        collect = "give x.collect()" if hasattr(items, "collect") else "collect them into (x, y) first"
        text = f"a {name} has no length; samples must be countable, so {collect}"
        raise DataError("E403", f"{text}.") from error


def _checked_pair(item: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    x, y = _item_pair(item, i, name, label)
    if x is None:
        raise DataError("E403", f"{name}: sample {i} is None; leave it out.")
    return x, array_of(y) if hasattr(y, "detach") or isinstance(y, np.ndarray) else y


def _item_pair(item: Any, i: int, name: str, label: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        key, inputs = _item_keys(item, label)
        if len(inputs) > 1:
            text = (
                f"{name}: sample {i} has {excerpt(inputs)}, and which of them the model takes cannot be told"
            )
            raise DataError(
                "E403", f"{text}; give ({{{inputs[0]!r}: ..., {inputs[1]!r}: ...}}, label), or leave one out."
            )
        if inputs and key in item:
            return item[inputs[0]], item[key]
        raise DataError(
            "E403",
            f"{name}: sample {i} has {excerpt(list(item))}; name the samples 'x' or 'image', the labels"
            " 'label', or give (a dictionary of inputs, label). Rows of a table go into a DataFrame.",
        )
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    fault = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise DataError(
        "E403",
        f"{name}: sample {i} is {fault}; it should be a pair (x, y); several inputs go into a tuple or a"
        " dictionary x.",
    )


def _item_keys(item: Mapping[Any, Any], label: str) -> tuple[Any, list[Any]]:
    """(the key of the label, the usual keys of inputs) of a sample that is a dictionary."""
    key = label or label_column_in(item)
    return key, [k for k in INPUT_KEYS if k in item and k != key]


def _unused_keys(item: Any, label: str) -> list[Any]:
    """The keys of a dictionary sample that are neither its input nor its label."""
    if not isinstance(item, Mapping):
        return []
    key, inputs = _item_keys(item, label)
    return [k for k in item if k not in (key, *inputs)]


def _stack_samples(xs: list[Any], name: str, notes: list[Note]) -> np.ndarray:
    """The samples as one array; images of unequal sizes are resized."""
    if all(hasattr(x, "getbands") for x in xs):
        shapes = {(x.size, x.mode) for x in xs}
        if len(shapes) == 1:
            return np.stack([channels_first(x) for x in xs])
        modes = sorted({mode for _, mode in shapes})
        if len({size for size, _ in shapes}) == 1 and not any(mode[0] in "IF" for mode in modes):
            notes.append(("scaled", f"images of several modes ({', '.join(modes)}) were read in colour"))
            return np.stack([channels_first(x.convert("RGB")) for x in xs])
        notes.append(
            (
                "scaled",
                (
                    f"{quantity(len(xs), 'image')} of unequal sizes were padded and resized to {IMAGE_SIZE} x"
                    f" {IMAGE_SIZE}"
                ),
            )
        )
        return np.stack([pixels_of(x, IMAGE_SIZE, "pad", f"image {i}")[0] for i, x in enumerate(xs)])
    values = [array_of(x) for x in xs]
    for i, v in enumerate(values):
        if v.ndim > 1 and v.dtype != values[0].dtype and (depth_of(v.dtype) or depth_of(values[0].dtype)):
            text = (
                f"{name}: sample 0 is {values[0].dtype}, sample {i} is {v.dtype}, and whole numbers of images"
                " are scaled"
            )
            raise DataError("E403", f"{text}; give all of one type.")
        if v.shape != values[0].shape:
            raise DataError(
                "E403",
                f"{name}: sample 0 is {list(values[0].shape)}, sample {i} is {list(v.shape)}; cut, pad or"
                " resize them to one shape.",
            )
    return np.stack(values)


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
    """The names of the classes, if the set or the one below it has one for every label. key: the key of
    labels in dictionaries."""
    features = getattr(items, "features", None)
    names = (
        getattr(features.get(key), "names", None) if isinstance(features, Mapping) else class_names_of(items)
    )
    if not isinstance(names, list | tuple) or not all(_is_number(y) for y in ys):
        return None
    return tuple(map(str, names)) if max(map(int, ys)) < len(names) else None


def _is_number(y: Any) -> bool:
    return np.ndim(y) == 0 and np.asarray(y).dtype.kind in "biuf" and bool(np.isfinite(y))
