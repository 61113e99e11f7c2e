"""A user's own data: arrays, tensors, files mapped into memory, archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import archives
from unskew.data.dataset import Dataset, check_finite, strata
from unskew.data.partitions import largest_remainder
from unskew.errors import DataError

BIG = 1 << 30
"""Bytes of a mapped file above which nothing of it is copied into memory."""


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
    """A set from arrays or tensors: x [N, ...] channels first (bytes become [0, 1]), y [N] whole numbers from 0.

    Or y are masks [N, H, W] (also [N, 1, H, W]) for x [N, channels, H, W]; 0 and 255 alone count as 0 and 1.

    x, x_test: also the path of a .npy file, which is mapped into memory; of a float32 file nothing is copied.
    Without x_test a stratified share `test` is held out. columns: facts per row, by which clients can be formed
    (`--skew column:NAME`); test_columns: the same for x_test, so that clients have test rows of their own.
    """
    x = _values(x, name)
    y = _labels(y, name, x)
    if len(x) != len(y):
        raise DataError("E403", f"{name}: {len(x)} samples but {len(y)} labels; give one label a sample.")
    facts, tests = ({n: _array(v) for n, v in (c or {}).items()} for c in (columns, test_columns))
    if (x_test is None) != (y_test is None):
        raise DataError("E403", f"{name}: x_test and y_test belong together; give both or neither.")
    if x_test is not None:
        x_test = _values(x_test, name)
        y_test = _labels(y_test, name, x_test)
        return Dataset(name, x, y, x_test, y_test, _class_names(classes, y, y_test), facts, tests)
    if not 0 <= test < 1:
        raise DataError("E403", f"{name}: test={test} should be at least 0 and below 1.")
    if test == 0:
        return Dataset(name, x, y, x[:0], y[:0], _class_names(classes, y), facts, {n: v[:0] for n, v in facts.items()})
    if isinstance(x, np.memmap) and x.nbytes > BIG:
        raise DataError(
            "E403",
            f"{name}: {x.nbytes:,} bytes are mapped from a file, and holding out a test set would copy them; "
            "give x_test and y_test, or test=0.",
        )
    return split(name, x, y, _class_names(classes, y), test, columns=facts)


def npz(path: str | Path) -> Dataset:
    """An archive with x_train, y_train, x_test, y_test, or x and y; y are labels or masks.

    Further arrays of their length are columns (NAME, or NAME_train and NAME_test); `classes` names the classes.
    """
    z = archives.read(Path(path))
    name, classes = Path(path).stem, z.words("classes") if "classes" in z else None
    if "x_train" in z:
        columns, tests = (_columns(z, part) for part in ("_train", "_test"))
        x, y, x_test, y_test = (z[n] for n in ("x_train", "y_train", "x_test", "y_test"))
        both = columns.keys() & tests.keys()
        return arrays(
            x, y, x_test, y_test, name=name, classes=classes, columns=columns, test_columns={n: tests[n] for n in both}
        )
    if "x" not in z or "y" not in z:
        raise DataError(
            "E401", f"{path} holds {', '.join(z)}; it needs x and y, or x_train, y_train, x_test and y_test."
        )
    return arrays(z["x"], z["y"], name=name, classes=classes, columns=_columns(z, ""))


def _columns(z: archives.Archive, part: str) -> dict[str, np.ndarray]:
    n, own = len(z[f"y{part}"]), {f"x{part}", f"y{part}", "classes"}
    return {
        key.removesuffix(part): v
        for key, v in z.items()
        if key.endswith(part) and key not in own and v.ndim == 1 and len(v) == n
    }


def images(x: np.ndarray) -> np.ndarray:
    """uint8 to [0, 1], channels first."""
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[-1] == 3 else x
    return np.ascontiguousarray(x, dtype=np.float32) / np.float32(255)


def split(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    classes: tuple[str, ...],
    test: float,
    columns: dict[str, np.ndarray] | None = None,
    **more: Any,
) -> Dataset:
    """Hold out a share of every class (of samples with masks, a share of all); always the same rows."""
    check_finite(name, "", x)  # by the number it has in the file
    rng, kinds = np.random.default_rng(1797), strata(y)
    counts = np.bincount(kinds[kinds >= 0], minlength=len(classes))
    wanted = largest_remainder(counts * test, counts)
    mask = np.zeros(len(y), dtype=bool)
    for c, w in enumerate(wanted):
        mask[rng.permutation(np.flatnonzero(kinds == c))[:w]] = True
    if mask.all():  # nothing to train on, as with no samples at all: the checks of the whole set say what is wrong
        mask[:] = False
    train, held = ({n: v[m] for n, v in (columns or {}).items()} for m in (~mask, mask))
    return Dataset(name, x[~mask], y[~mask], x[mask], y[mask], classes, train, held, **more)


def _array(values: Any) -> np.ndarray:
    """An array of what may be a tensor, on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def _values(x: Any, name: str) -> np.ndarray:
    """float32; mapped files stay mapped."""
    x = _mapped(Path(x)) if isinstance(x, str | Path) else _array(x)
    if not x.ndim or not (np.issubdtype(x.dtype, np.number) or x.dtype == bool) or np.iscomplexobj(x):
        raise DataError("E403", f"{name}: x is {x.dtype} {list(x.shape)}; it must be numbers [N, ...], channels first.")
    if x.dtype == np.float32:
        return x
    if isinstance(x, np.memmap) and x.nbytes > BIG:
        raise DataError(
            "E403",
            f"{name}: a mapped file of {x.nbytes:,} bytes is used as it lies; save it as float32, not {x.dtype}.",
        )
    x = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)
    return np.asarray(x)


def _mapped(path: Path) -> np.ndarray:
    """A .npy file: pages are read when looked at, and writing to them would not change the file."""
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise DataError("E401", f"{path} is not a whole .npy file: {error}. Copy it again.") from error


def _labels(y: Any, name: str, x: np.ndarray) -> np.ndarray:
    """int64 [N], or masks as bytes (int64 above 256 classes)."""
    y = _array(y)
    whole = np.issubdtype(y.dtype, np.integer) or (y.dtype == bool and y.ndim > 1)
    if y.size and (not whole or y.ndim not in (1, x.ndim - 1, x.ndim)):
        raise DataError(
            "E404",
            f"{name}: labels are {y.dtype} {list(y.shape)}; they must be whole numbers from 0, [N], or masks [N, H, W].",
        )
    return (
        y.astype(np.int64)
        if y.ndim == 1 or not y.size
        else as_masks(y.squeeze(1) if y.ndim == x.ndim and y.shape[1] == 1 else y)
    )


def as_masks(y: np.ndarray) -> np.ndarray:
    """Whole numbers as bytes while they suffice; masks drawn in black and white (0 and 255) become 0 and 1."""
    if y.max() == 255 and np.isin(y, (0, 255)).all():
        y = y == 255
    return y.astype(np.int64 if y.min() < 0 or y.max() > 255 else np.uint8)


def _class_names(classes: Sequence[str] | None, *labels: np.ndarray) -> tuple[str, ...]:
    if classes is not None:
        return tuple(str(c) for c in classes)
    count = max((int(y.max()) + 1 for y in labels if y.size), default=0)
    if any(y.ndim > 1 for y in labels) and count <= 2:
        return ("background", "foreground")
    return tuple(map(str, range(count)))
