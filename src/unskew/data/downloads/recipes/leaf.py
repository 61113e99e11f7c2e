"""LEAF's JSON files: FEMNIST by writer, Shakespeare by role.

Format: `{"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from unskew.data.downloads.original_files import Files, OriginalFiles, OriginalSamples, Recipe
from unskew.errors import DataError

CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
"""FEMNIST's classes, in order."""
WINDOW = 80
"""Number of characters from which the next one is predicted."""
Client = tuple[str, np.ndarray, list[Any]]
"""(name, samples, labels) of a client."""


def femnist(origin: OriginalFiles) -> OriginalSamples:
    """uint8 [N, 1, 28, 28] of 62 classes, dark on white as LEAF has them; the column `writer`."""

    def image(values: Any) -> np.ndarray:
        pixels = np.asarray(values, np.float32)
        if pixels.shape != (784,) or not ((pixels >= 0) & (pixels <= 1)).all():
            raise ValueError("an image is not 784 numbers from 0 to 1")
        return np.rint(pixels * 255).astype(np.uint8).reshape(1, 28, 28)

    parts = _parts(origin.files, image)
    return _samples(parts, CHARACTERS, lambda label: int(label), "writer")


def shakespeare(origin: OriginalFiles) -> OriginalSamples:
    """Codes of 80 characters, uint8 [N, 80], and the next one; classes are the characters; the column
    `role`."""
    files = origin.files
    texts = _parts(files, _window)
    characters = sorted(
        {c for part in texts.values() for _, x, y in part for text in (*x, *y) for c in str(text)}
    )
    if len(characters) > 256:
        raise DataError(
            "E401", f"{files.place} holds {len(characters)} different characters; is it the right text?"
        )
    number = {c: i for i, c in enumerate(characters)}
    parts = {
        part: [
            (role, np.array([[number[c] for c in str(t)] for t in x], np.uint8), y) for role, x, y in clients
        ]
        for part, clients in texts.items()
    }
    return _samples(parts, tuple(characters), lambda label: number[label], "role")


def _window(text: Any) -> Any:
    if isinstance(text, str) and len(text) == WINDOW:
        return text
    raise ValueError(f"a sample is not a text of {WINDOW} characters")


def _parts(files: Files, read: Callable[[Any], Any]) -> dict[str, list[Client]]:
    """The clients of "train" and "test" if the files are in folders of these names, else all in "train"."""
    names = sorted(name for name in files.reading if name.endswith(".json"))
    if not names:
        raise DataError("E401", f"{files.place} holds no .json file; LEAF's preprocess.sh makes them.")
    split = {part: [n for n in names if f"/{part}/" in f"/{n}"] for part in ("train", "test")}
    split = split if all(split.values()) else {"train": names, "test": []}
    return {part: [c for name in of for c in _clients(files, name, read)] for part, of in split.items()}


def _clients(files: Files, name: str, read: Callable[[Any], Any]) -> Iterator[Client]:
    try:
        users = json.loads(files.read(name))["user_data"]
        for user, rows in users.items():
            if len(rows["x"]) != len(rows["y"]):
                raise ValueError(f"{user} has {len(rows['x'])} samples and {len(rows['y'])} labels")
            if rows["x"]:
                yield str(user), np.stack([np.asarray(read(x)) for x in rows["x"]]), list(rows["y"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError("E401", f"{files.place}: {name} is no file of LEAF's: {error}.") from error


def _samples(
    parts: dict[str, list[Client]], classes: tuple[str, ...], number: Callable[[Any], int], column: str
) -> OriginalSamples:
    arrays: list[tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]] = []
    for part in ("train", "test"):
        if not (clients := parts[part]):
            arrays.append((None, None, None))
            continue
        y = np.array([number(label) for _, _, labels in clients for label in labels], np.int64)
        owners = np.array([name for name, x, _ in clients for _ in range(len(x))])
        arrays.append((np.concatenate([x for _, x, _ in clients]), y, owners))
    (x, y, owners), (x_test, y_test, owners_test) = arrays
    if x is None or y is None or owners is None:
        raise DataError("E401", "the files hold no training samples; is it the right archive?")
    return OriginalSamples(x, y, x_test, y_test, classes, {column: (owners, owners_test)})


SETS = {
    "femnist": Recipe(
        "handwritten characters of 62 classes, 28x28, with the writer of each"
        " (LEAF, Caldas et al., 2018; EMNIST)",
        "github.com/TalwalkarLab/leaf",
        "",
        "the folder data/ that LEAF's preprocess.sh has made (JSON)",
        femnist,
    ),
    "shakespeare": Recipe(
        "lines of Shakespeare's roles, to predict the next character (McMahan et al., 2017; LEAF)",
        "github.com/TalwalkarLab/leaf",
        "the text is in the public domain",
        "the folder data/ that LEAF's preprocess.sh has made (JSON)",
        shakespeare,
    ),
}
