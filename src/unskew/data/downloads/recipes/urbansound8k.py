"""UrbanSound8K: audio/foldN/*.wav and metadata/UrbanSound8K.csv, as log-mel spectrograms.

Mono, 22,050 Hz, cut or padded to 4 s, 64 mel bands, windows of 1,024: the form of `urbansound8k_part`.
"""

from __future__ import annotations

import csv

import numpy as np

from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, Recipe
from unskew.data.kinds.images import read_each
from unskew.data.kinds.sounds import SoundFormat, spectrogram
from unskew.errors import DataError

TABLE = "metadata/UrbanSound8K.csv"
TEST_FOLD = 10
FORMAT = SoundFormat(22_050, 4.0, 1024)


def urbansound8k(origin: OriginalFiles) -> OriginalSamples:
    """uint8 [N, 1, 64, 87], in decibels from 0 to 80; fold 10 is the test part; the columns `fold` and
    `recording`."""
    table = origin.path / TABLE
    if not table.is_file():
        raise DataError(
            "E401", f"there is no {table}; unpack UrbanSound8K.tar.gz, and give the folder UrbanSound8K."
        )
    try:
        with open(table, newline="", encoding="utf-8") as file:
            rows = [
                (r["slice_file_name"], int(r["fold"]), int(r["fsID"]), int(r["classID"]), r["class"])
                for r in csv.DictReader(file)
            ]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            "E401", f"{table} is not the table of UrbanSound8K ({error}). Download it again."
        ) from error
    if not rows or any("/" in name or "\\" in name for name, *_ in rows):
        raise DataError("E401", f"{table} names no files, or files elsewhere. Download it again.")
    paths = [origin.path / "audio" / f"fold{fold}" / name for name, fold, *_ in rows]
    if missing := next((p for p in paths if not p.is_file()), None):
        raise DataError("E401", f"{table} names {missing}, which is not there; unpack the archive again.")
    x = np.stack(read_each(paths, lambda i: np.rint(spectrogram(paths[i], FORMAT)).astype(np.uint8)))[:, None]
    fold, recording, y = (np.array([row[i] for row in rows], np.int64) for i in (1, 2, 3))
    classes = {row[3]: row[4] for row in rows}
    if sorted(classes) != list(range(len(classes))):
        raise DataError(
            "E401", f"{table}: the numbers of the classes are not 0 to {len(classes) - 1}. Download it again."
        )
    test = fold == TEST_FOLD
    columns = {
        name: (v[~test], v[test] if test.any() else None)
        for name, v in (("fold", fold), ("recording", recording))
    }
    parts = (x[test], y[test]) if test.any() else (None, None)
    return OriginalSamples(
        x[~test], y[~test], *parts, tuple(classes[i] for i in range(len(classes))), columns
    )


SETS = {
    "urbansound8k": Recipe(
        "8,732 sounds of a city in ten classes, with fold and recording (Salamon et al., 2014)",
        "urbansounddataset.weebly.com", "CC BY-NC 3.0", "the folder UrbanSound8K", urbansound8k, (7_895, 837),
    )
}  # fmt: skip
