"""UCI-HAR: nine signals of a smartphone in windows of 128, as text files, with the subject of each window."""

from __future__ import annotations

import io

import numpy as np

from unskew.data.downloads.original_files import (
    READ_ERRORS,
    Files,
    OriginalFiles,
    OriginalSamples,
    Recipe,
    open_zip,
)
from unskew.errors import DataError

INNER = "UCI HAR Dataset.zip"
"""The inner zip in UCI's current archive."""
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")


def uci_har(origin: OriginalFiles) -> OriginalSamples:
    """7,352 and 2,947 windows, float32 [N, 1, 128, 9]; the column `subject`."""
    files = origin.files
    if files.named(INNER):
        place = f"{files.place}: {INNER}"
        try:
            files = open_zip(files.read(INNER), place)
        except READ_ERRORS as error:
            raise DataError("E401", f"{place} is damaged: {error}. Download it again.") from error
    lines = files.read("activity_labels.txt").decode("ascii", "replace").split("\n")
    classes = tuple(line.split()[1] for line in lines if len(line.split()) == 2)
    (x, y, subject), (x_test, y_test, subject_test) = (_part(files, part) for part in ("train", "test"))
    return OriginalSamples(x, y, x_test, y_test, classes, {"subject": (subject, subject_test)})


def _part(files: Files, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(windows, labels from 0, subjects)."""
    signals = [_numbers(files, f"Inertial Signals/{name}_{part}.txt", 128) for name in SIGNALS]
    y, subject = (_numbers(files, f"{kind}_{part}.txt", 1)[:, 0] for kind in ("y", "subject"))
    if len({len(rows) for rows in (*signals, y, subject)}) > 1:
        raise DataError(
            "E401", f"{files.place}: the files of the part '{part}' differ in length. Download it again."
        )
    return np.stack(signals, -1)[:, None], y.astype(np.int64) - 1, subject.astype(np.int64)


def _numbers(files: Files, name: str, columns: int) -> np.ndarray:
    """The table of numbers in a text file, float32 [n, columns]."""
    text = files.read(name)
    try:
        rows = np.loadtxt(io.BytesIO(text), dtype=np.float32, ndmin=2, comments=None)
    except ValueError as error:
        raise DataError(
            "E401", f"{files.place}: {name} is no table of numbers: {error}. Download it again."
        ) from error
    if rows.shape[1:] != (columns,) or not np.isfinite(rows).all():
        raise DataError(
            "E401", f"{files.place}: {name} has not {columns} numbers in each line. Download it again."
        )
    return rows


SETS = {
    "uci_har": Recipe(
        "10,299 windows of a smartphone's nine signals, with the subject of each (Anguita et al., 2013)",
        "archive.ics.uci.edu/dataset/240",
        "",
        "the zip archive, or the folder it unpacks to",
        uci_har,
        {
            "UCI HAR Dataset.zip": "2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
            "human+activity+recognition+using+smartphones.zip": "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",  # noqa: E501
        },
        addresses=(
            "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        ),
    )
}
