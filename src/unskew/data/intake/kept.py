"""A user's set in a file, from which other processes read the same bits: arrays and facts, nothing read anew."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np

from unskew import disk
from unskew.data.archives import Archive
from unskew.data.dataset import Dataset
from unskew.data.intake.notes import Intake, Topic
from unskew.data.layout import Layout
from unskew.data.rows import Rows, streams
from unskew.data.stored import laid_down, lies_as_used, picked_up
from unskew.data.target import Target
from unskew.errors import UsageError

FACTS = "unskew_facts"
"""The array of an archive that says it was written here."""
MOST = 4 << 30
"""Bytes of samples in memory at most."""
_ARRAYS = ("x", "y", "x_test", "y_test")


def keep(dataset: Dataset, path: Path) -> None:
    """Write a set to an .npz file, and samples that lie in no file of their own, but are too many for memory, beside it.

    Raises UsageError (E109) for samples in memory that are too large to be written beside their runs.
    """
    size = sum(part.nbytes for part in (dataset.x, dataset.x_test) if not streams(part))
    if size > MOST:
        raise UsageError(
            "E109",
            f"{size:,} bytes of samples are too many to be handed to other processes; save them, and give the path.",
        )
    facts = {
        "name": dataset.name, "classes": dataset.classes, "labels": dataset.labels, "mean": dataset.mean, "std": dataset.std,
        "applied": dataset.applied, "source": dataset.source, "intake": asdict(dataset.intake) if dataset.intake else None,
        "target": asdict(dataset.target) if dataset.target else None,
        "layout": dataset.layout.as_json() if dataset.layout else None,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: part for name in _ARRAYS if not isinstance(part := getattr(dataset, name), Rows)}
    read = {name: part for name in _ARRAYS if isinstance(part := getattr(dataset, name), Rows)}
    facts["stored"] = {name: laid_down(part, _beside(path, name)) for name, part in read.items()}
    arrays |= {f"rows {name}": part.rows for name, part in read.items() if part.rows is not None and lies_as_used(part)}
    arrays |= {f"column {name}": values for name, values in dataset.columns.items()}
    arrays |= {f"test column {name}": values for name, values in dataset.test_columns.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **{FACTS: np.array(json.dumps(facts))}, **arrays)  # type: ignore[arg-type]
    disk.replace(path, buffer.getvalue())


def kept(archive: Archive) -> Dataset:
    """The set that `keep` has written. Of other files it reads those beside the archive alone, whatever its facts say."""
    facts = json.loads(str(archive[FACTS]))
    intake, applied = facts["intake"], facts["applied"]
    _check(facts)
    read = {
        name: picked_up(how, _beside(archive.path, name), archive.get(f"rows {name}"))
        for name, how in facts.get("stored", {}).items()
        if name in _ARRAYS
    }
    x, y, x_test, y_test = (read[name] if name in read else archive[name] for name in _ARRAYS)
    dataset = Dataset(
        facts["name"], x, y, x_test, y_test, tuple(facts["classes"]),
        columns={n.removeprefix("column "): v for n, v in archive.items() if n.startswith("column ")},
        test_columns={n.removeprefix("test column "): v for n, v in archive.items() if n.startswith("test column ")},
        labels={n: tuple(v) for n, v in facts["labels"].items()},
        mean=_tuple(facts["mean"]), std=_tuple(facts["std"]), source=facts["source"],
        applied=(tuple(applied[0]), tuple(applied[1])) if applied else None,
        intake=_intake(**intake) if intake else None,
        target=Target(**facts["target"]) if facts.get("target") else None,
        layout=Layout.from_json(facts["layout"], x.shape[1]) if facts.get("layout") else None,
    )  # fmt: skip
    for constants in (dataset.mean, dataset.std, *(dataset.applied or ())):
        channels = dataset.layout.channels if dataset.layout else x.shape[1]
        if constants is not None and len(constants) != channels:
            raise ValueError(f"{len(constants)} constants for samples of {channels} channels")
    return dataset


def _check(facts: Mapping[str, Any]) -> None:
    """Raises TypeError or ValueError for facts, from anybody, of other types than `keep` writes."""
    words = [facts["name"], facts["source"], *facts["classes"], *(w for ws in facts["labels"].values() for w in ws)]
    if not all(isinstance(word, str) for word in words):
        raise TypeError("names that are no words")
    constants = [facts[name] for name in ("mean", "std")] + list(facts["applied"] or ())
    if not all(isinstance(c, int | float) and math.isfinite(c) for each in constants for c in each or ()):
        raise ValueError("constants that are no numbers")
    if any(c <= 0 for each in (facts["std"], *(facts["applied"] or ())[1:]) for c in each or ()):
        raise ValueError("deviations that are not above 0")
    if intake := facts["intake"]:
        notes = [part for note in intake["notes"] for part in note]
        if not all(isinstance(word, str) for word in (intake["dtype"], intake["divided"], *notes)):
            raise TypeError("notes that are no words")
        if not {topic for topic, _ in intake["notes"]} <= {*get_args(Topic)} or not isinstance(intake["form"], dict):
            raise ValueError("notes on nothing")


def _beside(path: Path, name: str) -> Path:
    """Where samples lie that are in no archive."""
    return path.with_suffix(f".{name}.npy")


def _intake(
    dtype: str, notes: list[tuple[Topic, str]], divided: str, form: Mapping[str, Any], unnamed: bool = False
) -> Intake:
    return Intake(dtype, tuple((topic, text) for topic, text in notes), divided, form, unnamed is True)


def _tuple(values: list[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)
