"""What tells the forms of data apart: a pair of arrays, a list of samples, a DataLoader whose order and batches are its own.

Nothing of torch is imported: a loader's parts are known by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unskew.data.intake.targets import label_of
from unskew.data.packed import are_inputs
from unskew.errors import DataError

WHOLE_SAMPLERS = ("SequentialSampler", "RandomSampler")
PLAIN_COLLATES = ("default_collate", "default_convert")


def is_loader(data: Any) -> bool:
    """Whether it hands out batches of another set."""
    return hasattr(data, "dataset") and hasattr(data, "batch_size")


def set_of(loader: Any) -> Any:
    """The set that a DataLoader hands out. Raises DataError (E403) if the loader changes what is in it.

    A loader changes it by a sampler that leaves out or repeats samples, by batches of its own, or by `collate_fn`.
    """
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if batches is not None and not _is_torchs(batches, ("BatchSampler",)):
        raise _changed("batch_sampler", type(batches).__name__)
    if sampler is not None and not _is_whole(sampler, loader.dataset):
        raise _changed("sampler", type(sampler).__name__)
    collate = getattr(loader, "collate_fn", None)
    if collate is not None and not _is_torchs(collate, PLAIN_COLLATES):
        raise _changed("collate_fn", getattr(collate, "__name__", type(collate).__name__))
    return loader.dataset


def _changed(part: str, name: str) -> DataError:
    return DataError(
        "E403",
        f"the DataLoader has a {part} of its own ({name}), which is not applied here; give a dataset that holds the samples "
        "as they are to be used, such as a torch.utils.data.Subset.",
    )


def _is_whole(sampler: Any, dataset: Any) -> bool:
    """Whether every sample of the set is drawn once."""
    if not _is_torchs(sampler, WHOLE_SAMPLERS):
        return type(sampler).__name__ == "_InfiniteConstantSampler"  # of a set without length, refused where it is read
    return not getattr(sampler, "replacement", False) and len(sampler) == len(dataset)


def _is_torchs(thing: Any, names: tuple[str, ...]) -> bool:
    name = getattr(thing, "__name__", type(thing).__name__)
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return name in names and module.startswith("torch.utils.data")


def is_pair(data: Any) -> bool:
    """Whether it is (x, y), arrays with a row for each sample, and not two samples or two rows; x may be several inputs."""
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Mapping | tuple):
        return len(getattr(data[1], "shape", ())) > 0 and are_inputs(*data)
    if not (isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data)):
        return False
    x, y = (tuple(part.shape) for part in data)
    return len(x) > 1 and bool(y) and x[0] == y[0] and x != y


def is_sample(data: Any) -> bool:
    """Whether it is a sample with its label, one number or word: a pair, or a dictionary that names them."""
    if isinstance(data, Mapping):
        label = data.get(label_of(data))
        return len(data) > 1 and label is not None and np.ndim(label) == 0
    if not (isinstance(data, tuple | list) and len(data) == 2 and np.ndim(data[1]) == 0):
        return False
    return hasattr(data[0], "shape") or has_several_inputs(data[0])


def has_several_inputs(x: Any) -> bool:
    """Whether a sample's x is several inputs, a dictionary or a tuple of arrays, and not an array or a row of numbers."""
    return isinstance(x, Mapping) or (isinstance(x, tuple | list) and len(x) > 1 and any(map(_is_whole_input, x)))


def _is_whole_input(value: Any) -> bool:
    """Whether it is an array, a tensor or an image, not a single number of a row."""
    return hasattr(value, "getbands") or len(getattr(value, "shape", ())) > 0


def check_instance(data: Any) -> None:
    """Raises DataError (E403) for a class where a set of that class is needed."""
    if isinstance(data, type):
        raise DataError(
            "E403", f"{data.__name__} is a class, not a set of samples; create it first: {data.__name__}(...)."
        )
