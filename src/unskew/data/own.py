"""A user's own data: arrays, tensors, files mapped into memory, archives, folders of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import archives
from unskew.data.dataset import Dataset
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

    x, x_test: also the path of a .npy file, which is mapped into memory; of a float32 file nothing is copied.
    Without x_test a stratified share `test` is held out. columns: facts per row, by which clients can be formed
    (`--skew column:NAME`); test_columns: the same for x_test, so that clients have test rows of their own.
    """
    x, y = _values(x, name), _labels(y, name)
    if len(x) != len(y):
        raise DataError("E403", f"{name}: {len(x)} samples but {len(y)} labels; give one label a sample.")
    facts, tests = ({n: _array(v) for n, v in (c or {}).items()} for c in (columns, test_columns))
    if (x_test is None) != (y_test is None):
        raise DataError("E403", f"{name}: x_test and y_test belong together; give both or neither.")
    if x_test is not None:
        x_test, y_test = _values(x_test, name), _labels(y_test, name)
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
    """An archive with x_train, y_train, x_test, y_test, or x and y.

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


def folder(path: str | Path, size: int = 64) -> Dataset:
    """Images in `folder/class/`, or `folder/train/class/` and `folder/test/class/`; squared to `size` pixels, [0, 1]."""
    root = Path(path)
    if not root.is_dir():
        raise DataError("E409", f"there is no folder {root}.")
    if (root / "train").is_dir():
        classes = _class_folders(root / "train")
        x, y = _read_images(root / "train", classes, size)
        x_test, y_test = _read_images(root / "test", classes, size) if (root / "test").is_dir() else (None, None)
        return arrays(x, y, x_test, y_test, classes=classes, name=root.name)
    classes = _class_folders(root)
    x, y = _read_images(root, classes, size)
    return arrays(x, y, classes=classes, name=root.name)


def _class_folders(root: Path) -> tuple[str, ...]:
    found = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if len(found) < 2:
        raise DataError(
            "E409", f"{root} holds {len(found)} class folders; images belong in {root}/CLASS/, two classes at least."
        )
    return found


def _read_images(root: Path, classes: tuple[str, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image, UnidentifiedImageError

    pixels, labels = [], []
    for label, name in enumerate(classes):
        files = (root / name).iterdir() if (root / name).is_dir() else ()
        for file in sorted(f for f in files if f.is_file() and not f.name.startswith(".")):
            try:
                with Image.open(file) as image:
                    pixels.append(np.asarray(image.convert("RGB").resize((size, size))))
            except (UnidentifiedImageError, OSError) as error:
                raise DataError("E401", f"{file} cannot be read as an image: {error}.") from error
            labels.append(label)
    if not pixels:
        raise DataError("E409", f"{root} holds no images.")
    return images(np.stack(pixels)), np.array(labels, dtype=np.int64)


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
    """Hold out a share of every class; always the same rows."""
    rng = np.random.default_rng(1797)
    counts = np.bincount(y[y >= 0], minlength=len(classes))
    wanted = largest_remainder(counts * test, counts)
    mask = np.zeros(len(y), dtype=bool)
    for c, w in enumerate(wanted):
        mask[rng.permutation(np.flatnonzero(y == c))[:w]] = True
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


def _labels(y: Any, name: str) -> np.ndarray:
    y = _array(y)
    if y.size and (y.ndim != 1 or not np.issubdtype(y.dtype, np.integer)):
        raise DataError(
            "E404", f"{name}: labels are {y.dtype} {list(y.shape)}; they must be whole numbers from 0, [N]."
        )
    return y.astype(np.int64)


def _class_names(classes: Sequence[str] | None, *labels: np.ndarray) -> tuple[str, ...]:
    if classes is not None:
        return tuple(str(c) for c in classes)
    return tuple(str(c) for c in range(max((int(y.max()) + 1 for y in labels if len(y)), default=0)))
