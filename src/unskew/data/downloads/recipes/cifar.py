"""CIFAR-10 and CIFAR-100, the Python version: pickles with `data` uint8 [n, 3072] and labels.

A pickle is a program. The reader here resolves only the three names of which arrays are made.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from unskew.data.downloads.original_files import Files, OriginalFiles, OriginalSamples, Recipe
from unskew.errors import DataError, excerpt

PIXELS = 3 * 32 * 32


def read_pickle(content: bytes, place: str) -> dict[bytes, Any]:
    """The dictionary of a pickle, with bytes as keys. place: for messages.

    Raises DataError: E401 for a pickle that requests anything else or is damaged.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(error.code, f"{place}: {error.text}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise _damaged(f"{place} is no whole pickle: {excerpt(str(error))}") from error
    if not isinstance(value, dict):
        raise _damaged(f"{place} holds a {type(value).__name__}, not a dictionary")
    return value


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that resolves the three names of which NumPy's arrays are made, and no other."""

    names = {"_reconstruct": np.zeros(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.names:
            return self.names[name]
        raise _damaged(f"this pickle is refused: it asks for {excerpt(f'{module}.{name}')}")


def _damaged(problem: str) -> DataError:
    return DataError("E401", f"{problem}. Download it again.")


def _read_part(files: Files, names: Sequence[str], *keys: bytes) -> tuple[np.ndarray, ...]:
    """The images of pickles, uint8 [n, 3, 32, 32], and their labels under each of these keys, int64 [n]."""
    x: list[np.ndarray] = []
    labels: list[list[np.ndarray]] = [[] for _ in keys]
    for name in names:
        place = f"{files.place}: {name}"
        batch = read_pickle(files.read(name), place)
        data = batch.get(b"data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
            raise _damaged(f"{place} holds no images: b'data' must be uint8 [n, {PIXELS:,}]")
        x.append(data.reshape(-1, 3, 32, 32))
        for key, parts in zip(keys, labels):
            numbers = batch.get(key)
            if not isinstance(numbers, list) or [type(n) for n in numbers] != [int] * len(data):
                raise _damaged(f"{place} does not hold one label for each of its {len(data):,} images")
            parts.append(np.array(numbers, np.int64))
    return np.concatenate(x), *map(np.concatenate, labels)


def _class_words(files: Files, name: str, key: bytes) -> tuple[str, ...]:
    words = read_pickle(files.read(name), f"{files.place}: {name}").get(key)
    if not isinstance(words, list) or not all(isinstance(w, bytes) for w in words):
        raise _damaged(f"{files.place}: {name} does not name the classes")
    return tuple(w.decode("utf-8", "replace") for w in words)


def cifar10(origin: OriginalFiles) -> OriginalSamples:
    """50,000 and 10,000 images of ten classes."""
    files = origin.files
    x, y = _read_part(files, [f"data_batch_{i}" for i in range(1, 6)], b"labels")
    x_test, y_test = _read_part(files, ["test_batch"], b"labels")
    return OriginalSamples(x, y, x_test, y_test, _class_words(files, "batches.meta", b"label_names"))


def cifar100(origin: OriginalFiles) -> OriginalSamples:
    """50,000 and 10,000 images of 100 classes in 20 superclasses; the column `superclass`."""
    files, keys = origin.files, (b"fine_labels", b"coarse_labels")
    (x, y, coarse), (x_test, y_test, coarse_test) = (_read_part(files, [n], *keys) for n in ("train", "test"))
    names = np.array(_class_words(files, "meta", b"coarse_label_names"))
    if max(coarse.max(), coarse_test.max()) >= len(names):
        raise _damaged(f"{files.place}: a superclass has a number above {len(names) - 1}")
    columns = {"superclass": (names[coarse], names[coarse_test])}
    return OriginalSamples(x, y, x_test, y_test, _class_words(files, "meta", b"fine_label_names"), columns)


_ABOUT = ("www.cs.toronto.edu/~kriz/cifar.html", "")
SETS = {
    "cifar10": Recipe(
        "60,000 colour images of ten classes, 32x32 (Krizhevsky, 2009)",
        *_ABOUT,
        "cifar-10-python.tar.gz, or the folder it unpacks to",
        cifar10,
        {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    ),
    "cifar100": Recipe(
        "60,000 colour images of 100 classes in 20 superclasses, 32x32 (Krizhevsky, 2009)",
        *_ABOUT,
        "cifar-100-python.tar.gz, or the folder it unpacks to",
        cifar100,
        {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
    ),
}
