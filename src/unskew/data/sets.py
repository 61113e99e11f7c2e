"""Named sets: the digits of scikit-learn, always there, and those found in the folder UNSKEW_DATA.

Nothing is downloaded. The folder holds NumPy archives, read without pickle.
"""

from __future__ import annotations

import ast
import io
import os
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.federation import Dataset
from unskew.errors import DataError, UsageError, suggestion

DIGITS_TEST = 360


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 (UCI, in scikit-learn): 1,437 to train, a fixed stratified 360 to test."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return _split(
        "digits", x, y.astype(np.int64), tuple("0123456789"), DIGITS_TEST / len(y), mean=(0.3053,), std=(0.3760,)
    )


def fashion_mnist() -> Dataset:
    """Fashion-MNIST (Xiao et al., 2017): 60,000 and 10,000 grey images of 28x28."""
    z = _archive("fashion_mnist")
    x, x_test = (_images(z[n][:, None]) for n in ("x_train", "x_test"))
    return Dataset("fashion_mnist", x, z["y_train"], x_test, z["y_test"], _names(z), mean=(0.2860,), std=(0.3530,))


def cifar10() -> Dataset:
    """CIFAR-10 (Krizhevsky, 2009): 50,000 and 10,000 colour images of 32x32."""
    z = _archive("cifar10")
    x, x_test = (_images(_strips(z[f"{p}_webp"], z[f"{p}_off"], 32)) for p in ("train", "test"))
    return Dataset(
        "cifar10",
        x,
        z["y_train"],
        x_test,
        z["y_test"],
        _names(z),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )


def uci_har(signals: int = 3) -> Dataset:
    """UCI-HAR (Anguita et al., 2013): 7,352 and 2,947 windows of 128 samples, the first `signals` of 9, as 1x128xS."""
    if not 1 <= signals <= 9:
        raise UsageError("E109", f"uci_har has 9 signals; signals={signals} does not fit.")
    z = _archive("uci_har")
    x, x_test = (z[n][:, None, :, :signals].astype(np.float32) for n in ("x_train", "x_test"))
    columns = ({"subject": z["subject_train"]}, {"subject": z["subject_test"]})
    return Dataset("uci_har", x, z["y_train"], x_test, z["y_test"], _names(z), *columns)


def office_caltech10(size: int = 64) -> Dataset:
    """Office-Caltech-10: 2,533 photographs of ten objects in four domains, at 64 or 128 pixels."""
    if size not in (64, 128):
        raise UsageError("E109", f"office_caltech10 comes in size=64 and size=128, not {size}.")
    z = _archive("office_caltech10")
    x = _images(_strips(z["x64_webp"], z["x64_off"], 64) if size == 64 else _strips(z["x128_jpeg"], z["x128_off"], 128))
    test = z["split"] == 1
    domains = ("amazon", "caltech", "dslr", "webcam")
    columns = ({"domain": z["domain"][~test]}, {"domain": z["domain"][test]}, {"domain": domains})
    return Dataset("office_caltech10", x[~test], z["y"][~test], x[test], z["y"][test], _names(z), *columns)


_SETS: dict[str, tuple[Callable[..., Dataset], str]] = {
    "digits": (digits, "1,797 handwritten digits, 8x8; always there"),
    "fashion_mnist": (fashion_mnist, "70,000 grey images of clothing, 28x28"),
    "cifar10": (cifar10, "60,000 colour images, 32x32"),
    "uci_har": (uci_har, "10,299 movement windows, 1x128x3, with the subject of each; signals=3"),
    "office_caltech10": (office_caltech10, "2,533 photographs of ten objects in four domains; size=64 or 128"),
}


def describe() -> dict[str, str]:
    here = os.environ.get("UNSKEW_DATA", "")

    def where(name: str) -> str:
        return (
            ""
            if name == "digits" or (here and (Path(here) / f"{name}.npz").exists())
            else "  (not found: set UNSKEW_DATA)"
        )

    return {name: text + where(name) for name, (_, text) in _SETS.items()}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """`office_caltech10(size=64)` -> its name and options."""
    name, _, arguments = text.strip().partition("(")
    try:
        call = ast.parse(f"f({arguments}" if arguments else "f()", mode="eval").body
        return name.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}  # type: ignore[attr-defined]
    except (SyntaxError, ValueError) as error:
        raise UsageError("E125", f"cannot read data '{text}'; write name or name(option=value).") from error


def load(name: str, **options: Any) -> Dataset:
    """A named set. Raises UsageError (E125) for an unknown name, DataError (E401, E402) if damaged or not there."""
    if name not in _SETS:
        raise UsageError(
            "E125", f"unknown data '{name}'.{suggestion(name, _SETS)} Known: {', '.join(_SETS)}; or a path."
        )
    try:
        return _SETS[name][0](**options)
    except TypeError as error:
        raise UsageError("E125", f"data '{name}': {str(error).partition('() ')[2] or error}.") from error


def arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    classes: tuple[str, ...] | None = None,
    columns: dict[str, Any] | None = None,
    name: str = "arrays",
    test: float = 0.2,
) -> Dataset:
    """A set from arrays or tensors: x [N, ...] channels first, y [N] whole numbers from 0.

    Without x_test a stratified share `test` is held out. Memory-mapped x is not copied. columns: facts per row, by
    which clients can be formed (`--skew column:NAME`).
    """
    x, y = _floats(x), np.asarray(y)
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError("E404", f"{name}: labels are {y.dtype}; they must be whole numbers from 0.")
    y = y.astype(np.int64)
    if len(x) != len(y):
        raise DataError("E403", f"{name}: {len(x)} samples but {len(y)} labels; give one label a sample.")
    named = classes or tuple(str(c) for c in range(int(y.max()) + 1 if len(y) else 0))
    facts = {n: np.asarray(v) for n, v in (columns or {}).items()}
    if x_test is not None:
        return Dataset(name, x, y, _floats(x_test), np.asarray(y_test).astype(np.int64), named, facts)
    return _split(name, x, y, named, test, columns=facts)


def npz(path: str | Path) -> Dataset:
    """An archive with x_train, y_train, x_test, y_test, or x and y; further arrays of their length are columns."""
    z = _read(Path(path))
    if "x_train" in z:
        missing = [n for n in ("y_train", "x_test", "y_test") if n not in z]
        if missing:
            raise DataError("E401", f"{path} has x_train but no {', '.join(missing)}.")
        return arrays(z["x_train"], z["y_train"], z["x_test"], z["y_test"], name=Path(path).stem)
    if "x" not in z or "y" not in z:
        raise DataError(
            "E401", f"{path} holds {', '.join(z)}; it needs x and y, or x_train, y_train, x_test and y_test."
        )
    columns = {n: v for n, v in z.items() if n not in ("x", "y") and v.ndim == 1 and len(v) == len(z["y"])}
    return arrays(z["x"], z["y"], name=Path(path).stem, columns=columns)


def folder(path: str | Path, size: int = 64) -> Dataset:
    """Images in `folder/class/`, or `folder/train/class/` and `folder/test/class/`; squared to `size` pixels, [0, 1]."""
    root = Path(path)
    if (root / "train").is_dir():
        classes = _class_folders(root / "train")
        x, y = _read_images(root / "train", classes, size)
        x_test, y_test = _read_images(root / "test", classes, size) if (root / "test").is_dir() else (None, None)
        return arrays(x, y, x_test, y_test, classes=classes, name=root.name)
    classes = _class_folders(root)
    x, y = _read_images(root, classes, size)
    return arrays(x, y, classes=classes, name=root.name)


def _class_folders(root: Path) -> tuple[str, ...]:
    found = tuple(sorted(p.name for p in root.iterdir() if p.is_dir()))
    if len(found) < 2:
        raise DataError(
            "E409", f"{root} holds {len(found)} class folders; images belong in {root}/CLASS/, two classes at least."
        )
    return found


def _read_images(root: Path, classes: tuple[str, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image, UnidentifiedImageError

    images, labels = [], []
    for label, name in enumerate(classes):
        for file in sorted((root / name).iterdir() if (root / name).is_dir() else ()):
            try:
                with Image.open(file) as image:
                    images.append(np.asarray(image.convert("RGB").resize((size, size))))
            except (UnidentifiedImageError, OSError) as error:
                raise DataError("E401", f"{file} cannot be read as an image: {error}.") from error
            labels.append(label)
    if not images:
        raise DataError("E409", f"{root} holds no images.")
    return _images(np.stack(images)), np.array(labels, dtype=np.int64)


def _split(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    classes: tuple[str, ...],
    test: float,
    columns: dict[str, np.ndarray] | None = None,
    **more: Any,
) -> Dataset:
    """Hold out a share of every class; always the same rows."""
    from unskew.data.partitions import largest_remainder

    rng = np.random.default_rng(1797)
    counts = np.bincount(y, minlength=len(classes))
    wanted = largest_remainder(counts * test, counts)
    held = np.concatenate(
        [rng.permutation(np.flatnonzero(y == c))[:w] for c, w in enumerate(wanted)] or [np.zeros(0, int)]
    )
    mask = np.zeros(len(y), dtype=bool)
    mask[held.astype(np.int64)] = True
    train, test_ = ({n: v[m] for n, v in (columns or {}).items()} for m in (~mask, mask))
    return Dataset(name, x[~mask], y[~mask], x[mask], y[mask], classes, train, test_, **more)


def _floats(x: Any) -> np.ndarray:
    x = x if isinstance(x, np.memmap) else np.asarray(x)
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    return x if x.dtype == np.float32 else x.astype(np.float32)


def _images(x: np.ndarray) -> np.ndarray:
    """uint8 to [0, 1], channels first."""
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[-1] == 3 else x
    return np.ascontiguousarray(x, dtype=np.float32) / np.float32(255)


def _strips(buffer: np.ndarray, offsets: np.ndarray, height: int) -> np.ndarray:
    """Images packed as vertical strips: uint8 [N, h, h, 3]."""
    from PIL import Image

    def strip(a: int, b: int) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(buffer[a:b].tobytes())).convert("RGB")).reshape(-1, height, height, 3)

    return np.concatenate([strip(a, b) for a, b in pairwise(offsets.tolist())])


def _names(z: dict[str, np.ndarray]) -> tuple[str, ...]:
    return tuple(str(c) for c in z["classes"])


def _archive(name: str) -> dict[str, np.ndarray]:
    here = os.environ.get("UNSKEW_DATA")
    if not here:
        raise DataError(
            "E402",
            f"'{name}' is looked for in the folder UNSKEW_DATA, which is not set; point it to a folder with {name}.npz.",
        )
    path = Path(here) / f"{name}.npz"
    if not path.exists():
        raise DataError(
            "E402", f"there is no {path}; put {name}.npz there (docs/data.md says what it holds), or use digits."
        )
    return _read(path)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as z:
            return {n: z[n] for n in z.files}
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise DataError(
            "E401", f"{path} ({size:,} bytes) is not a whole NumPy archive: {error}. Copy it again."
        ) from error
