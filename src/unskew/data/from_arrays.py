"""A set from a user's arrays, tensors or memory-mapped files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.data.convert import LARGE, array_of, labels, samples
from unskew.data.dataset import Dataset
from unskew.data.holdout import with_test_set
from unskew.errors import DataError


def arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    classes: Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    test_columns: Mapping[str, Any] | None = None,
    name: str = "arrays",
    test: float = 0.2,
) -> Dataset:
    """A set from arrays or tensors.

    x: [N, ...], channels first; uint8 is divided by 255. Also the path of a .npy file, which is memory-mapped: of a
    float32 file nothing is copied.
    y: labels [N], whole numbers from 0; or masks [N, H, W] (also [N, 1, H, W]) for x [N, channels, H, W], in which 0 and
    255 alone count as 0 and 1.
    x_test, y_test: the same; without them the share `test` of every class is held out.
    columns: facts per row, [N] each, by which clients can be formed (`--skew column:NAME`). test_columns: the same for
    x_test, which gives clients test rows of their own.
    Raises DataError: E403 for lengths and shapes, E404 for labels, E405 for NaN and infinity, E401 and E402 for files.
    """
    x = samples(x, name)
    y = labels(y, name, x)
    if len(x) != len(y):
        raise DataError("E403", f"{name}: {len(x)} samples but {len(y)} labels; give one label per sample.")
    facts, test_facts = ({n: array_of(v) for n, v in (given or {}).items()} for given in (columns, test_columns))
    if (x_test is None) != (y_test is None):
        raise DataError("E403", f"{name}: x_test and y_test belong together; give both or neither.")
    if x_test is not None:
        x_test = samples(x_test, name)
        y_test = labels(y_test, name, x_test)
        return Dataset(name, x, y, x_test, y_test, _class_names(classes, y, y_test), facts, test_facts)
    if not 0 <= test < 1:
        raise DataError("E403", f"{name}: test must be at least 0 and below 1; got {test}.")
    if test and isinstance(x, np.memmap) and x.nbytes > LARGE:
        raise DataError(
            "E403",
            f"{name}: {x.nbytes:,} bytes are mapped from a file, and holding out a test set would copy them; "
            "give x_test and y_test, or test=0.",
        )
    no_facts = {n: v[:0] for n, v in facts.items()}
    whole = Dataset(name, x, y, x[:0], y[:0], _class_names(classes, y), facts, no_facts)
    return with_test_set(whole, test) if test else whole


def _class_names(classes: Sequence[str] | None, *labels: np.ndarray) -> tuple[str, ...]:
    if classes is not None:
        return tuple(str(c) for c in classes)
    count = max((int(y.max()) + 1 for y in labels if y.size), default=0)
    if any(y.ndim > 1 for y in labels) and count <= 2:
        return ("background", "foreground")
    return tuple(map(str, range(count)))
