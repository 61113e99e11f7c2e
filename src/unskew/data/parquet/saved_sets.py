"""Folders that Hugging Face Datasets has written with save_to_disk, read without that package.

dataset_dict.json, NAME/, NAME/   a DatasetDict: {"splits": [NAME, NAME]}
state.json                        a Dataset: {"_data_files": [{"filename": NAME}], ...}, the files in order

Each file is an Arrow stream. Anyone may have written these files, so names in them must be those of entries
of the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.data.files.tree import PART_NAMES
from unskew.data.parquet.shard import Shard, read_stream
from unskew.data.parquet.table import ShardTable, join_shards
from unskew.data.samples.reading_notes import abbreviate
from unskew.errors import DataError, excerpt

SPLITS_FILE, STATE_FILE, FACTS_FILE = "dataset_dict.json", "state.json", "dataset_info.json"


def is_saved_set(path: Path) -> bool:
    """Whether save_to_disk has written a folder."""
    if (path / SPLITS_FILE).is_file():
        return True
    if not (path / STATE_FILE).is_file():
        return False
    return (path / FACTS_FILE).is_file() or any(name.endswith(".arrow") for name in os.listdir(path))


def read_saved_table(path: Path, split: str) -> ShardTable:
    """The table in a folder. split: the part of a DatasetDict to train on, "" to choose by name.

    Raises DataError: E402 for a missing file, E401 for a damaged one, E403 for parts of which none can be
    chosen, and the errors of `join_shards`.
    """
    if not (path / SPLITS_FILE).is_file():
        if split:
            raise DataError("E403", f"{path} is one Dataset without splits; leave split out.")
        return join_shards(path, _arrow_files(path), (), ())
    splits = _entry_names(_read_json(path / SPLITS_FILE).get("splits"), path / SPLITS_FILE)
    train, test = _choose_splits(path, splits, split)
    unused = [name for name in splits if name not in (train, test)]
    omissions = tuple(f"split '{excerpt(name, 40)[1:-1]}'" for name in unused)
    return join_shards(path, _arrow_files(path / train), _arrow_files(path / test) if test else (), omissions)


def _choose_splits(path: Path, splits: list[str], split: str) -> tuple[str, str]:
    """(the split to train on, the split to test on, "" for none)."""
    if split and split not in splits:
        raise DataError("E403", f"{path} has no split {excerpt(split)}; it has {abbreviate(splits, 8)}.")
    if split or len(splits) == 1:
        return split or splits[0], ""
    parts = {
        part: [name for name in splits if PART_NAMES.get(name.lower()) == part] for part in ("train", "test")
    }
    if len(parts["train"]) != 1 or len(parts["test"]) > 1:
        text = f"{path} holds the splits {abbreviate(splits, 8)}, none or several of which are called train"
        raise DataError("E403", f"{text}: name the one to train on, such as split={splits[0]}.")
    return parts["train"][0], parts["test"][0] if parts["test"] else ""


def _arrow_files(folder: Path) -> list[Shard]:
    """The files of a Dataset, in their order."""
    state = _read_json(folder / STATE_FILE)
    if state.get("_indices_data_files"):
        text = f"{folder} was saved with an order of its rows apart (indices)"
        raise DataError("E403", f"{text}; save it again with a newer version of Datasets.")
    entries: Any = state.get("_data_files") or ()
    files = [entry.get("filename") if isinstance(entry, Mapping) else entry for entry in entries]
    return [read_stream(folder / name) for name in _entry_names(files, folder / STATE_FILE)]


def _entry_names(names: Any, source: Path) -> list[str]:
    """Names of entries of a folder. Raises DataError (E401) for anything else, such as a path that leads
    out of it."""
    if not isinstance(names, list) or not names:
        raise DataError("E401", f"{source} lists nothing; save the set again.")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or "\0" in name:
            text = f"{source} lists {excerpt(name, 60)}, which is no name in this folder"
            raise DataError("E401", f"{text}; save the set again.")
        if (source.parent / name).is_symlink():
            raise DataError("E401", f"{source.parent / name} is a link; copy what it leads to.")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file. Raises DataError: E402 for a missing file, E401 for a damaged one."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        text = f"{path} is missing, which save_to_disk writes"
        raise DataError("E402", f"{text}; copy the whole folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError("E401", f"{path} cannot be read; save the set again.") from error
    if not isinstance(content, dict):
        raise DataError("E401", f"{path} is damaged; save the set again.")
    return content
