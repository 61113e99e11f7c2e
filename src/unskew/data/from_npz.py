"""A set from a NumPy archive, or from .npy files beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew import own
from unskew.data.archives import read_archive
from unskew.data.convert import mapped
from unskew.data.dataset import Dataset
from unskew.data.dotted import inputs_in
from unskew.data.from_arrays import arrays
from unskew.data.intake.kept import FACTS, kept
from unskew.data.intake.notes import Note, some
from unskew.data.target import Target
from unskew.errors import DataError

NAMES = ("x", "y", "x_train", "y_train", "x_test", "y_test")


def npz(path: str | Path, *, target: str = "", center: float | None = None, scale: float | None = None) -> Dataset:
    """A set from an archive with x and y, or x_train and y_train, and perhaps x_test and y_test; y are labels or masks.

    Samples with several inputs are x.NAME for each. Further arrays of their length are columns: NAME, or NAME_train and NAME_test. `classes` names the classes. target: what
    y is called where it is a number to predict, learnt as (y - center) / scale.
    Raises DataError: E401 and E402 for the file, and as `arrays` does.
    """
    archive = read_archive(Path(path))
    if FACTS in archive:
        try:
            return kept(archive)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text = f"{path} says that unskew wrote it, and what it holds is damaged ({own.in_one_line(error)})"
            raise DataError("E401", f"{text}; write it again.") from error
    wished = Target.wished(target, center, scale) if target else None
    others: list[Note] = (
        [("left out", f"files that are no arrays: {some(list(archive.others))}")] if archive.others else []
    )
    return _set(archive, Path(path), Path(path).stem, wished, others)


def npy(path: str | Path, *, target: str = "", center: float | None = None, scale: float | None = None) -> Dataset:
    """A set from .npy files of the names that `npz` knows, in one folder, each memory-mapped.

    path: the folder, or the file of the samples in it. target, center, scale: as for `npz`. Raises DataError (E401) where the labels are missing.
    """
    root = Path(path)
    if root.suffix == ".npy":
        if not root.is_file():
            raise DataError("E402", f"there is no {root}.")
        if root.stem not in ("x", "x_train"):
            raise DataError(
                "E401",
                f"{root} holds an array without labels; call it x.npy with y.npy beside it, or give both in Python: "
                f"unskew.data.arrays('{root.name}', y).",
            )
        root = root.parent
    files = {file.stem: mapped(file) for file in sorted(root.glob("*.npy"))}
    if "classes" in files:
        files["classes"] = np.asarray(files["classes"])
    return _set(files, root, root.resolve().name, Target.wished(target, center, scale) if target else None)


def is_npy_folder(path: Path) -> bool:
    """Whether a folder holds samples as .npy files."""
    return (path / "x.npy").is_file() or (path / "x_train.npy").is_file()


def _set(
    archive: Mapping[str, np.ndarray], path: Path, name: str, target: Target | None = None, others: Sequence[Note] = ()
) -> Dataset:
    classes = tuple(str(c) for c in archive["classes"]) if "classes" in archive else None
    part = "_train" if _samples(archive, "x_train", path) is not None else ""
    if part and (_samples(archive, "x", path) is not None or "y" in archive):
        raise DataError(
            "E401", f"{path} holds both x and x_train, or y and y_train; keep those of the training samples."
        )
    x, y = _samples(archive, f"x{part}", path), archive.get(f"y{part}")
    if x is None or y is None:
        raise DataError(
            "E401",
            f"{path} holds {some(list(archive), 8) or 'no arrays'}; it needs x and y, or x_train and y_train, and, if there "
            "is a test set, x_test and y_test; of samples with several inputs, x.NAME for each.",
        )
    if single := [n for n in NAMES if n in archive and not np.ndim(archive[n])]:
        raise DataError("E401", f"{path}: the array '{single[0]}' is a single value; it must hold one for each sample.")
    test: tuple[Any, Any] = _samples(archive, "x_test", path), archive.get("y_test")
    tested = test[1] is not None
    columns, left_out = _columns(archive, part, len(y), tested)
    notes = [*others]
    if left_out:
        shapes = [f"{k} {list(archive[k].shape)}" for k in left_out]
        notes.append(("left out", f"arrays that are no columns: {some(shapes)}"))
    in_both: dict[str, np.ndarray] | None = None
    if tested:
        test_columns, unlike = _columns(archive, "_test", len(test[1]), tested)
        if wrong := next((k for k in unlike if k.endswith("_test") and k.removesuffix("_test") in columns), ""):
            text = f"the array '{wrong}' is {list(archive[wrong].shape)} for {len(test[1])} test samples"
            raise DataError("E403", f"{path}: {text}; give one value per sample, or leave it out.")
        in_both = {n: test_columns[n] for n in columns.keys() & test_columns.keys()}
    return arrays(
        x, y, *test, name=name, classes=classes, columns=columns, test_columns=in_both, notes=notes, target=target,
    )  # fmt: skip


def _samples(archive: Mapping[str, np.ndarray], name: str, path: Path) -> Any:
    """The array of this name, or several inputs by theirs: `x.image` and `x.age`; None for neither."""
    inputs = inputs_in(archive, name, path)
    return archive.get(name, inputs or None)


def _columns(
    archive: Mapping[str, np.ndarray], part: str, n: int, tested: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """(the columns of a part by name, arrays that are none). part: "_train", "_test" or "". tested: whether there is a test set,
    of which `NAME_test` is then a column."""
    inputs = (key for key in archive for name in NAMES if name not in archive and key.startswith(f"{name}."))
    others = {*NAMES, "classes", *inputs}
    of_test = tested and part != "_test"
    mine = {
        key: values
        for key, values in archive.items()
        if key.endswith(part) and key not in others and not (of_test and key.endswith("_test"))
    }
    columns = {k.removesuffix(part): v for k, v in mine.items() if v.ndim == 1 and len(v) == n}
    rest = [k for k in archive if k not in others and k not in mine and not k.endswith(("_train", "_test"))]
    return columns, [k for k in mine if k.removesuffix(part) not in columns] + (rest if part else [])
