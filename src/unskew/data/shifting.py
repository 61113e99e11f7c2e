"""A federation whose clients see their samples through feature shifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.data.rows import streams
from unskew.data.shifts import Client, Shift
from unskew.errors import DataError, UsageError

View = Callable[[np.ndarray], np.ndarray]
"""What gives of samples [n, ...] a part of each as a view, [n, ...]."""


def shifted(federation: Federation, shifts: Sequence[Shift], dataset: Dataset) -> Federation:
    """The federation with every client's training, validation and test samples changed by the shifts, in their order.

    Every client then has samples of its own: a row that two clients shared becomes two. What the server holds back
    stays as it is. Of several inputs images of floats are changed, and others are not: a device of its own sees these alone.
    dataset: the set from which the federation was made.
    Raises DataError (E406) for a memory-mapped set, UsageError (E103) for samples that a shift cannot change, or without any
    image among several inputs.
    """
    f = federation
    views = _views(f, shifts)
    if isinstance(dataset.x, np.memmap) or streams(dataset.x) or streams(dataset.x_test):
        raise DataError(
            "E406", f"{f.name} is read from files row by row; a feature skew needs a set that fits into memory."
        )
    rows = np.concatenate([f.train.rows, f.val.rows])
    x, x_test = dataset.to_natural(dataset.x[rows]), dataset.to_natural(dataset.x_test).copy()
    y, y_test = f.y[rows], f.y_test.copy()
    units = [bool(len(x)) and view(x).min() > -1e-5 and view(x).max() < 1 + 1e-5 for view in views]
    n_train = len(f.train.rows)
    train = Index(np.arange(n_train), f.train.offsets)
    val = Index(np.arange(n_train, len(rows)), f.val.offsets)
    for part, (values, labels, index) in enumerate(((x, y, train), (x, y, val), (x_test, y_test, f.test))):
        for k in np.flatnonzero(index.sizes).tolist():
            samples, masks = values[index[k]], labels[index[k]]
            for j, (view, unit) in enumerate(zip(views, units)):
                for i, shift in enumerate(shifts):
                    client = Client(k, stream=3 * (i + j * len(shifts)) + part)
                    view(samples)[:] = shift.seen(view(samples), client, unit)
                    masks = shift.apply(masks, client) if f.masks and shift.turns else masks
            values[index[k]], labels[index[k]] = samples, masks
    reserved = np.arange(len(rows), len(rows) + len(f.reserved))
    rows = np.concatenate([rows, f.reserved])
    return replace(
        f,
        x=np.concatenate([dataset.from_natural(x), dataset.x[f.reserved]]),
        y=np.concatenate([y, f.y[f.reserved]]),
        x_test=dataset.from_natural(x_test),
        y_test=y_test,
        train=train,
        val=val,
        columns={name: values[rows] for name, values in f.columns.items()},
        reserved=reserved,
    )


def _views(f: Federation, shifts: Sequence[Shift]) -> list[View]:
    """What a device sees of samples: all of them, or of several inputs each image. Raises UsageError (E103) where none is one."""
    if not f.layout:
        return [lambda x: x]
    images = f.layout.images
    if not images:
        text = f"feature skew '+{shifts[0].name}' changes images, and none of a sample's inputs is one"
        raise UsageError("E103", f"{text}: {f.layout}; give a skew without it.")
    return [lambda x, each=each, a=a, b=b: x[:, a:b].reshape(len(x), *each.shape) for each, a, b in images]
