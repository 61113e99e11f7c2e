"""A set from a NumPy archive of a user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unskew.data.archives import Archive, read_archive
from unskew.data.dataset import Dataset
from unskew.data.from_arrays import arrays
from unskew.errors import DataError


def npz(path: str | Path) -> Dataset:
    """A set from an archive with x_train, y_train, x_test, y_test, or with x and y; y are labels or masks.

    Further arrays of their length are columns: NAME, or NAME_train and NAME_test. `classes` names the classes.
    Raises DataError: E401 and E402 for the file, and as `arrays` does.
    """
    archive = read_archive(Path(path))
    name, classes = Path(path).stem, archive.words("classes") if "classes" in archive else None
    if "x_train" in archive:
        columns, test_columns = (_columns(archive, part) for part in ("_train", "_test"))
        x, y, x_test, y_test = (archive[n] for n in ("x_train", "y_train", "x_test", "y_test"))
        in_both = {n: test_columns[n] for n in columns.keys() & test_columns.keys()}
        return arrays(x, y, x_test, y_test, name=name, classes=classes, columns=columns, test_columns=in_both)
    if "x" not in archive or "y" not in archive:
        raise DataError(
            "E401", f"{path} holds {', '.join(archive)}; it needs x and y, or x_train, y_train, x_test and y_test."
        )
    return arrays(archive["x"], archive["y"], name=name, classes=classes, columns=_columns(archive, ""))


def _columns(archive: Archive, part: str) -> dict[str, np.ndarray]:
    """The columns of a part by name. part: "_train", "_test" or ""."""
    n, others = len(archive[f"y{part}"]), {f"x{part}", f"y{part}", "classes"}
    return {
        key.removesuffix(part): values
        for key, values in archive.items()
        if key.endswith(part) and key not in others and values.ndim == 1 and len(values) == n
    }
