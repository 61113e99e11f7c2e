"""A set from a folder that Hugging Face Datasets has written with save_to_disk, read without that package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Le

from unskew.data.dataset import Dataset
from unskew.data.from_parquet import tabled
from unskew.data.intake.images import Fit
from unskew.data.intake.tables import wished
from unskew.data.parquet.files import Images
from unskew.data.parquet.forms import Layout
from unskew.data.parquet.saved import saved_at


def saved(
    path: str | Path,
    label: Annotated[str, "the column of labels"] = "",
    site: Annotated[str, "the column that says where rows are from"] = "",
    x: Annotated[str, "the column of samples, where several hold lists or files"] = "",
    split: Annotated[str, "the split to train on, where none is called train, or not the one that is"] = "",
    layout: Annotated[
        Layout, "of lists that are images: which axis holds the channels; channels last also without any"
    ] = "auto",
    *,
    size: Annotated[int, Gt(0), Le(4096), "side to which images are resized, in pixels"] = 64,
    fit: Annotated[Fit, "images that are not square: padded with black, cut to the middle, or squashed"] = "pad",
    bits: Annotated[int, Ge(9), Le(16), "bits that image files of 16 bits really use, such as 12"] = 16,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
) -> Dataset:
    """The set that was saved in a folder, a Dataset or a DatasetDict. Columns become samples, labels and facts as those of
    Parquet files do (unskew.data.from_parquet), and so do samples that do not fit into memory.

    Raises DataError: E402 for files that are missing, E401 for damaged ones and without pyarrow, E403 for a DatasetDict of whose
    splits none is called train, for features that are not read, and for columns and shapes that differ, E404 for labels, E405
    for missing values, E414 for what does not fit into memory.
    """
    aim = wished(target, label, center, scale)
    return tabled(saved_at(Path(path), split), (x, label, site), layout, Images(size, fit, bits), aim)
