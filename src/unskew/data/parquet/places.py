"""Which Parquet files a path stands for, and which of them hold training, test and validation rows.

x.parquet                         all rows
a folder with any *.parquet       all rows, the files in the order of their paths
train-*.parquet, test-*.parquet   training and test rows by the first word of the name, as the hub calls its shards
train/*.parquet, test/*.parquet   the same by folder
shards/part-*.parquet             the files that the pattern matches
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from unskew.data.intake.tree import IMAGES, PARTS, SOUNDS, VOLUMES
from unskew.errors import DataError, excerpt

ENDING = ".parquet"
BESIDE = (".", "_")
"""How names begin of files that are hidden, or that engines write beside their shards and into which they are still writing."""
WORD = re.compile(r"[A-Za-z]+")


def parts_of(path: Path) -> dict[str, list[Path]]:
    """The files below a path by what their rows are for: "train", and maybe "test" and "val".

    Raises DataError: E402 where there are none, E403 where it cannot be told what the rows of each are for.
    """
    files = [path] if path.is_file() else sorted(_below(path) if path.is_dir() else _matching(path))
    if not files:
        raise DataError("E402", f"there is no {ENDING} file at {excerpt(str(path))[1:-1]}.")
    _check_once(files)
    if path.is_file():
        return {"train": files}
    root = path if path.is_dir() else path.parent
    named = {file: _part(file.relative_to(root)) for file in files}
    if not any(named.values()):
        return {"train": files}
    if lacking := next((file for file, part in named.items() if not part), None):
        other = next(file for file, part in named.items() if part)
        raise DataError(
            "E403",
            f"{other} names what its rows are for, and {lacking} does not; begin every name with train or test, or none.",
        )
    _check_one_set(root, files)
    parts = {part: [file for file in files if named[file] == part] for part in ("train", "test", "val")}
    if not parts["train"]:
        raise DataError("E403", f"{root} holds no training rows; begin the name of a file with train.")
    return {part: several for part, several in parts.items() if several}


def holds_parquet(path: Path) -> bool:
    """Whether a folder holds Parquet files, and neither images, sounds nor volumes beside them."""
    there = False
    for _, _, names in os.walk(path):
        endings = {os.path.splitext(name)[1].lower() for name in names if not name.startswith(".")}
        if endings & (IMAGES | SOUNDS | VOLUMES):
            return False
        there = there or ENDING in endings
    return there


def is_pattern(text: str) -> bool:
    """Whether a text names Parquet files by a pattern that some match, such as `shards/part-*.parquet`."""
    return "*" in text and text.endswith(ENDING) and next(_matching(Path(text)), None) is not None


def _below(folder: Path) -> Iterator[Path]:
    """The Parquet files of a folder, without what is hidden or, as engines write beside their shards, begins with _."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(BESIDE))
        yield from (Path(place, n) for n in names if n.lower().endswith(ENDING) and not n.startswith(BESIDE))


def _matching(pattern: Path) -> Iterator[Path]:
    """The files of one folder whose names match; those that a folder is read without only where the pattern begins as they do."""
    beside = () if pattern.name.startswith(BESIDE) else BESIDE
    return (file for file in pattern.parent.glob(pattern.name) if file.is_file() and not file.name.startswith(beside))


def _part(file: Path) -> str:
    """What a file's rows are for, by a folder of that name or by the first word of its own; "" where neither says so."""
    word = WORD.match(file.name)
    names = [*file.parts[:-1], word[0] if word else ""]
    return next((PARTS[name.lower()] for name in names if name.lower() in PARTS), "")


def _check_once(files: list[Path]) -> None:
    """Raises DataError (E403) for one file under two names, such as two snapshots of the hub's cache."""
    real: dict[str, Path] = {}
    for file in files:
        if (other := real.setdefault(os.path.realpath(file), file)) is not file:
            raise DataError("E403", f"{other} and {file} are one file; name the folder that holds each once.")


def _check_one_set(root: Path, files: list[Path]) -> None:
    """Raises DataError (E403) where folders hold a whole set each, as the configurations of a repository of the hub do."""
    folders = sorted({str(file.parent) for file in files if not any(_is_part(n) for n in _folders(root, file))})
    if len(folders) > 1:
        raise DataError("E403", f"{root} holds several sets, {folders[0]} and {folders[1]}; name one of these folders.")


def _folders(root: Path, file: Path) -> tuple[str, ...]:
    return file.relative_to(root).parts[:-1]


def _is_part(name: str) -> bool:
    return name.lower() in PARTS
