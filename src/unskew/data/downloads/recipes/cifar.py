"""CIFAR-10 and CIFAR-100, the Python and the binary version.

Python: pickles with `data` uint8 [n, 3072] and labels. Binary: records of one or two bytes of labels and
3,072 of pixels.

A pickle is a program. The reader here resolves only the three names of which arrays are made.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from unskew.data.downloads.catalogue import OriginalFiles, OriginalSamples, Recipe
from unskew.data.downloads.original_files import Files, Hub
from unskew.errors import DataError, excerpt


def read_pickle(content: bytes, place: str) -> dict[bytes, Any]:
    """The dictionary of a pickle, with bytes as keys. place: for messages.

    Raises DataError: E401 for a pickle that requests anything else or is damaged.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(error.code, f"{place}: {error.text}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            "E401", f"{place} is no whole pickle: {excerpt(str(error))}. Download it again."
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            "E401", f"{place} holds a {type(value).__name__}, not a dictionary. Download it again."
        )
    return value


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that resolves the three names of which NumPy's arrays are made, and no other."""

    names = {"_reconstruct": np.zeros(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.names:
            return self.names[name]
        text = f"this pickle is refused: it asks for {excerpt(f'{module}.{name}')}"
        raise DataError("E401", f"{text}; only arrays of numbers are read. Download it again.")


PIXELS = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CifarPart = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""(images, labels, superclasses or None)."""


def cifar10(origin: OriginalFiles) -> OriginalSamples:
    """50,000 and 10,000 images of ten classes."""
    files = origin.files
    if files.named("test_batch.bin"):
        train, test = (
            _binary_part(files, names, 1) for names in ([f"{b}.bin" for b in BATCHES], ["test_batch.bin"])
        )
        return _cifar_samples(train, test, _text_lines(files, "batches.meta.txt"))
    train, test = (_python_part(files, names, b"labels") for names in (BATCHES, ["test_batch"]))
    return _cifar_samples(train, test, _class_words(files, "batches.meta", b"label_names"))


def cifar100(origin: OriginalFiles) -> OriginalSamples:
    """50,000 and 10,000 images of 100 classes in 20 superclasses; the column `superclass`."""
    files = origin.files
    if files.named("test.bin"):
        train, test = (_binary_part(files, [name], 2) for name in ("train.bin", "test.bin"))
        coarse = _text_lines(files, "coarse_label_names.txt")
        return _cifar_samples(train, test, _text_lines(files, "fine_label_names.txt"), coarse)
    train, test = (_python_part(files, [name], b"fine_labels") for name in ("train", "test"))
    coarse = _class_words(files, "meta", b"coarse_label_names")
    return _cifar_samples(train, test, _class_words(files, "meta", b"fine_label_names"), coarse)


def _python_part(files: Files, names: list[str] | tuple[str, ...], labels: bytes) -> CifarPart:
    parts = [(name, read_pickle(files.read(name), f"{files.place}: {name}")) for name in names]
    x = [_check_part(batch.get(b"data"), f"{files.place}: {name}") for name, batch in parts]
    y = [
        _label_numbers(batch.get(labels), len(rows), f"{files.place}: {name}")
        for (name, batch), rows in zip(parts, x)
    ]
    if labels == b"labels":
        return np.concatenate(x), np.concatenate(y), None
    coarse = [
        _label_numbers(b.get(b"coarse_labels"), len(r), f"{files.place}: {n}") for (n, b), r in zip(parts, x)
    ]
    return np.concatenate(x), np.concatenate(y), np.concatenate(coarse)


def _check_part(data: object, place: str) -> np.ndarray:
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != PIXELS
    ):
        raise DataError(
            "E401", f"{place} holds no images: b'data' must be uint8 [n, {PIXELS:,}]. Download it again."
        )
    return data.reshape(-1, 3, 32, 32)


def _label_numbers(labels: object, count: int, place: str) -> np.ndarray:
    if not isinstance(labels, list) or len(labels) != count or not all(type(v) is int for v in labels):
        raise DataError(
            "E401", f"{place} does not hold one label for each of its {count:,} images. Download it again."
        )
    return np.array(labels, np.int64)


def _binary_part(files: Files, names: list[str], labels: int) -> CifarPart:
    """The images and labels of binary files. labels: number of label bytes before each image; with two the
    first is the superclass."""
    parts = []
    for name in names:
        content = files.read(name)
        if not content or len(content) % (PIXELS + labels):
            text = (
                f"{files.place}: {name} has {len(content):,} bytes, which are no records of"
                f" {PIXELS + labels:,}"
            )
            raise DataError("E401", f"{text}. Download it again.")
        parts.append(np.frombuffer(content, np.uint8).reshape(-1, PIXELS + labels))
    rows = np.concatenate(parts)
    coarse = rows[:, 0].astype(np.int64) if labels == 2 else None
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64), coarse


def _class_words(files: Files, name: str, key: bytes) -> tuple[str, ...]:
    words = read_pickle(files.read(name), f"{files.place}: {name}").get(key)
    if not isinstance(words, list) or not all(isinstance(w, bytes) for w in words):
        raise DataError("E401", f"{files.place}: {name} does not name the classes. Download it again.")
    return tuple(w.decode("utf-8", "replace") for w in words)


def _text_lines(files: Files, name: str) -> tuple[str, ...]:
    return tuple(line for line in files.read(name).decode("utf-8", "replace").split("\n") if line.strip())


def _cifar_samples(
    train: CifarPart, test: CifarPart, classes: tuple[str, ...], coarse: tuple[str, ...] = ()
) -> OriginalSamples:
    columns = {}
    if train[2] is not None and test[2] is not None:
        if max(train[2].max(), test[2].max()) >= len(coarse):
            raise DataError(
                "E401", f"a superclass has a number above {len(coarse) - 1}. Download the archive again."
            )
        names = np.array(coarse)
        columns = {"superclass": (names[train[2]], names[test[2]])}
    return OriginalSamples(train[0], train[1], test[0], test[1], classes, columns)


_ABOUT = ("www.cs.toronto.edu/~kriz/cifar.html", "")
SETS = {
    "cifar10": Recipe(
        "60,000 colour images of ten classes, 32x32 (Krizhevsky, 2009)",
        *_ABOUT,
        "cifar-10-python.tar.gz or cifar-10-binary.tar.gz, or the folder it unpacks to",
        cifar10,
        (50_000, 10_000),
        {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
        hub=Hub("uoft-cs/cifar10", "img"),
    ),
    "cifar100": Recipe(
        "60,000 colour images of 100 classes in 20 superclasses, 32x32 (Krizhevsky, 2009)",
        *_ABOUT,
        "cifar-100-python.tar.gz or cifar-100-binary.tar.gz, or the folder it unpacks to",
        cifar100,
        (50_000, 10_000),
        {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
        hub=Hub("uoft-cs/cifar100", "img", "fine_label"),
    ),
}
