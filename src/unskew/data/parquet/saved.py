"""Folders that Hugging Face Datasets has written with save_to_disk, and which of their parts hold training and test rows.

dataset_dict.json, NAME/, NAME/   a DatasetDict: {"splits": [NAME, NAME]}
state.json                        a Dataset: {"_data_files": [{"filename": NAME}], ...}, the files in their order
dataset_info.json                 beside it: {"features": {COLUMN: {"_type": ...}}}

These files may be anybody's: a name in them is that of something in the folder, or it is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.data.intake.notes import some
from unskew.data.intake.tree import PARTS
from unskew.data.parquet.several import Shards, table_of
from unskew.data.parquet.shards import Shard
from unskew.data.parquet.stream import stream
from unskew.errors import DataError, excerpt

SPLITS, STATE, FACTS = "dataset_dict.json", "state.json", "dataset_info.json"
LARGEST = 1 << 24
"""Bytes of such a file at most."""
FEATURES = frozenset(
    ("Value", "ClassLabel", "Image", "Audio", "List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D", "Array5D",
     "Translation", "TranslationVariableLanguages")
)  # fmt: skip
"""Kinds of columns whose values are what they are stored as; a dictionary of several is a structure, which is left out."""


def is_saved(path: Path) -> bool:
    """Whether a folder is what save_to_disk has written."""
    return (path / SPLITS).is_file() or ((path / STATE).is_file() and any(_beside(path)))


def _beside(path: Path) -> Iterator[bool]:
    """Whether there is what lies beside a state.json of Datasets."""
    yield (path / FACTS).is_file()
    yield any(name.endswith(".arrow") for name in os.listdir(path))


def saved_at(path: Path, split: str) -> Shards:
    """The table in a folder. split: the part of a DatasetDict to train on, "" for what its names say.

    Raises DataError: E402 for a file that is missing, E401 for a damaged one, E403 for parts of which none is named and for
    features that are not read, and whatever else `table_of` does.
    """
    if not (path / SPLITS).is_file():
        if split:
            raise DataError("E403", f"{path} is one Dataset without splits; leave split={excerpt(split)[1:-1]} out.")
        return table_of(path, _files(path), (), ())
    splits = _names(_read(path / SPLITS).get("splits"), path / SPLITS)
    train, test = _chosen(path, splits, split)
    rest = [one for one in splits if one not in (train, test)]
    more = tuple(f"split '{excerpt(one, 40)[1:-1]}'" for one in rest)
    return table_of(path, _files(path / train), _files(path / test) if test else (), more)


def _chosen(path: Path, splits: list[str], split: str) -> tuple[str, str]:
    """(the split to train on, the one to test on, "" for none)."""
    if split and split not in splits:
        raise DataError("E403", f"{path} has no split {excerpt(split)}; it has {some(splits, 8)}.")
    if split or len(splits) == 1:
        return split or splits[0], ""
    parts = {part: [one for one in splits if PARTS.get(one.lower()) == part] for part in ("train", "test")}
    if len(parts["train"]) != 1 or len(parts["test"]) > 1:
        text = f"{path} holds the splits {some(splits, 8)}, none or several of which are called train"
        raise DataError("E403", f"{text}: name the one to train on, such as split={splits[0]}.")
    return parts["train"][0], parts["test"][0] if parts["test"] else ""


def _files(folder: Path) -> list[Shard]:
    """The files of a Dataset, in their order."""
    state = _read(folder / STATE)
    if state.get("_indices_data_files"):
        raise DataError(
            "E403",
            f"{folder} was saved with an order of its rows apart (indices); save it again with a newer version of Datasets.",
        )
    _check_features(folder, _read(folder / FACTS).get("features"))
    listed = state.get("_data_files")
    files = (
        [one.get("filename") if isinstance(one, Mapping) else None for one in listed]
        if isinstance(listed, list)
        else []
    )
    names = _names(files, folder / STATE)
    if len({*names}) < len(names):
        raise DataError("E401", f"{folder / STATE} lists a file twice; save the set again.")
    return [stream(folder / name) for name in names]


def _check_features(folder: Path, features: Any) -> None:
    """Raises DataError (E403) for a column of a kind that is not known, such as videos."""
    if not isinstance(features, Mapping):
        raise DataError("E401", f"{folder / FACTS} says nothing of the columns (features); save the set again.")
    for column, feature in features.items():
        kind = feature.get("_type") if isinstance(feature, Mapping) else None
        if isinstance(feature, Mapping) and "_type" in feature and kind not in FEATURES:
            text = f"column {excerpt(str(column), 40)} of {folder} is a feature {excerpt(str(kind), 40)}, which is not read"
            raise DataError("E403", f"{text}; remove the column, and save the set again.")


def _names(given: Any, where: Path) -> list[str]:
    """Names of things in a folder. Raises DataError (E401) for anything else, such as a path that leads out of it."""
    names: list[Any] = given if isinstance(given, list) and given else [None]
    for name in names:
        if not isinstance(name, str) or name in ("", ".", "..") or {*"/\\\0"} & {*name} or Path(name).is_absolute():
            what = "lists nothing" if name is None else f"lists {excerpt(name, 60)}, which is no name in this folder"
            raise DataError("E401", f"{where} {what}; save the set again.")
        if (where.parent / name).is_symlink():
            raise DataError("E401", f"{where.parent / name} is a link; copy what it leads to.")
    return names


def _read(path: Path) -> dict[str, Any]:
    """What a JSON file holds. Raises DataError: E402 without it, E401 for a damaged one."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise DataError("E402", f"{path} is missing, which save_to_disk writes; copy the whole folder.") from None
    except OSError as error:
        raise DataError("E401", f"{path} cannot be read: {error.strerror}.") from error
    try:
        facts = json.loads(content) if len(content) <= LARGEST else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise DataError("E401", f"{path} is damaged; save the set again.")
    return facts
