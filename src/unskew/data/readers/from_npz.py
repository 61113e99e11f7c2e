"""A data set from a NumPy archive, or from .npy files in one folder; and a data set written to an archive.

`save_dataset` writes a user's set, so that other processes load the same bits without converting anything
again.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np

from unskew.data.files.archives import Archive
from unskew.data.files.folder_tree import is_npy_folder
from unskew.data.kinds.column_roles import INDEPENDENT
from unskew.data.readers.from_arrays import arrays
from unskew.data.samples.conversion import AxisOrder, map_npy
from unskew.data.samples.dataset import Constants, Dataset, Target
from unskew.data.samples.packing import archive_inputs
from unskew.data.samples.reading_notes import Intake, Note, abbreviate
from unskew.data.storage.rows_on_disk import is_streamed
from unskew.errors import DataError, UsageError
from unskew.formats.input_layout import Layout
from unskew.system import disk, python_files

FACTS_ARRAY = "unskew_facts"
"""The array that marks an archive written by `save_dataset`."""
LARGEST_SAVED = 4 << 30
"""Maximal size of samples in memory, in bytes."""
LayoutSetting: TypeAlias = Annotated[
    AxisOrder, "the order of a sample's axes: 'channels last' for images, 'time first' for series"
]
_SAMPLE_ARRAYS = ("x", "y", "x_test", "y_test")
_FACTS = [f.name for f in fields(Dataset) if f.name not in (*_SAMPLE_ARRAYS, "columns", "test_columns")]


def save_dataset(dataset: Dataset, path: Path) -> None:
    """Write a set to an .npz file.

    Raises UsageError (E109) for samples that are too large to be copied for every run.
    """
    size = dataset.x.nbytes + dataset.x_test.nbytes
    if size > LARGEST_SAVED or is_streamed(dataset.x) or is_streamed(dataset.x_test):
        text = f"{size:,} bytes of samples are too many to be handed to other processes"
        raise UsageError("E109", f"{text}; save them as .npy or Parquet files, and give the path.")
    facts: dict[str, Any] = {name: getattr(dataset, name) for name in _FACTS}
    for name in ("intake", "target"):
        facts[name] = asdict(facts[name]) if facts[name] else None
    facts["layout"] = dataset.layout.as_json() if dataset.layout else None
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {name: getattr(dataset, name) for name in _SAMPLE_ARRAYS}
    arrays |= {f"column {name}": values for name, values in dataset.columns.items()}
    arrays |= {f"test column {name}": values for name, values in dataset.test_columns.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **{FACTS_ARRAY: np.array(json.dumps(facts))}, **arrays)  # type: ignore[arg-type]
    disk.replace(path, buffer.getvalue())


def load_dataset(archive: Archive) -> Dataset:
    """The set that `save_dataset` has written."""
    facts = json.loads(str(archive[FACTS_ARRAY]))
    x, y, x_test, y_test = (archive[name] for name in _SAMPLE_ARRAYS)

    def columns(prefix: str) -> dict[str, np.ndarray]:
        return {n.removeprefix(prefix): archive[n] for n in archive if n.startswith(prefix)}

    facts = {name: facts[name] for name in _FACTS}
    for name in ("classes", "mean", "std"):
        facts[name] = None if facts[name] is None else tuple(facts[name])
    facts["labels"] = {name: tuple(words) for name, words in facts["labels"].items()}
    facts["applied"] = tuple(map(tuple, facts["applied"])) if facts["applied"] else None
    facts["intake"] = Intake(**facts["intake"]) if facts["intake"] else None
    facts["target"] = Target(**facts["target"]) if facts["target"] else None
    facts["layout"] = Layout.from_json(facts["layout"], x.shape[1]) if facts["layout"] else None
    dataset = Dataset(
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        columns=columns("column "),
        test_columns=columns("test column "),
        **facts,
    )
    if dataset.group_column and dataset.group_column not in dataset.columns:
        raise ValueError("groups in no column")
    for values in (dataset.mean, dataset.std, *(dataset.applied or ())):
        channels = dataset.layout.channels if dataset.layout else x.shape[1]
        if values is not None and len(values) != channels:
            raise ValueError(f"{len(values)} constants for samples of {channels} channels")
    return dataset


GROUP_ARRAYS = ("group", "groups")
MEDMNIST = {
    f"{part}_{array}": f"{name}_{part}"
    for array, name in (("images", "x"), ("labels", "y"))
    for part in ("train", "test")
}
"""The names of arrays in MedMNIST's files, whose channels come last, and the usual ones."""
ARRAY_NAMES = ("x", "y", "x_train", "y_train", "x_test", "y_test")


def npz(
    path: str | Path,
    *,
    target: str = "",
    center: Constants | None = None,
    scale: Constants | None = None,
    layout: LayoutSetting = "auto",
    group: str = "",
    weight: str = "",
) -> Dataset:
    """A set from an archive with x and y, or x_train and y_train, and perhaps x_test and y_test; y are labels
    or masks. path: the archive, also one of MedMNIST; or a folder with an .npy file for each array, which is
    memory-mapped, or the file of the samples in it.

    Samples with several inputs are x.NAME for each. Further arrays of their length are columns: NAME, or
    NAME_train and NAME_test. `classes` names the classes. target: the name of y if it is a number to predict,
    learnt as (y - center) / scale. group: the array of groups, such as patients, that no split divides; by
    default `group` or `groups`, if there is one; "none" if samples are independent. weight: the array of
    weights of samples in the loss.
    Raises DataError: E401 and E402 for the file, and as `arrays` does.
    """
    path = Path(path)
    aim = Target.from_settings(target, center, scale) if target else None
    if path.is_dir() or path.suffix == ".npy":
        root = path if path.is_dir() else path.parent
        if not is_npy_folder(root) or (path != root and path.stem not in ("x", "x_train")):
            remedy = f"call it x.npy with y.npy beside it, or unskew.data.arrays('{path.name}', y)"
            raise DataError("E401", f"{path} holds an array without labels; {remedy}.")
        files = {file.stem: map_npy(file) for file in sorted(root.glob("*.npy"))}
        if "classes" in files:
            files["classes"] = np.asarray(files["classes"])
        return _dataset_of(files, root, root.resolve().name, aim, group, layout, weight)
    archive: Mapping[str, np.ndarray] = Archive(path)
    if MEDMNIST.keys() <= archive.keys():
        archive = {MEDMNIST.get(array, array): archive[array] for array in archive}
        layout = "channels last" if layout == "auto" else layout
    elif FACTS_ARRAY in archive:
        options = {"target": target, "group": group.removeprefix(INDEPENDENT), "weight": weight}
        if given := [
            *(n for n, value in options.items() if value),
            *(["layout"] if layout != "auto" else []),
        ]:
            text = f"{path} was written by unskew and says all of its samples; leave out {', '.join(given)}"
            raise UsageError("E109", f"{text}, which the data had to name when they were read.")
        try:
            return load_dataset(Archive(path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text = (
                f"{path} says that unskew wrote it, and what it holds is damaged"
                f" ({python_files.one_line(error)})"
            )
            raise DataError("E401", f"{text}; write it again.") from error
    return _dataset_of(archive, path, path.stem, aim, group, layout, weight)


def _dataset_of(
    archive: Mapping[str, np.ndarray],
    path: Path,
    name: str,
    target: Target | None = None,
    group: str = "",
    layout: AxisOrder = "auto",
    weight: str = "",
) -> Dataset:
    """The set in these arrays."""

    def samples(array: str) -> Any:
        """The array of this name, or several inputs such as `x.image` and `x.age`; None for neither."""
        return archive.get(array, archive_inputs(archive, array, path) or None)

    part = "_train" if samples("x_train") is not None else ""
    if part and (samples("x") is not None or "y" in archive):
        raise DataError("E401", f"{path} holds both x and x_train, or y and y_train; keep one of them.")
    x, y = samples(f"x{part}"), archive.get(f"y{part}")
    if x is None or y is None:
        holds = abbreviate(list(archive), 8) or "no arrays"
        needs = "it needs x and y, or x_train and y_train, and, if there is a test set, x_test and y_test"
        raise DataError("E401", f"{path} holds {holds}; {needs}; several inputs are x.NAME each.")
    if single := [n for n in ARRAY_NAMES if n in archive and not np.ndim(archive[n])]:
        raise DataError("E401", f"{path}: the array '{single[0]}' is a single value; give one each sample.")
    y_test = archive.get("y_test")
    inputs = tuple(f"{name}." for name in ARRAY_NAMES if name not in archive)
    shapes = archive.shapes if isinstance(archive, Archive) else {k: np.shape(v) for k, v in archive.items()}
    others = {
        k: shape
        for k, shape in shapes.items()
        if k not in (*ARRAY_NAMES, "classes") and not k.startswith(inputs)
    }

    def names_of(of: str, n: int) -> dict[str, str]:
        """The arrays of a part, NAME_train or train_NAME, with one value for each of n samples, by NAME."""
        plain = {k: re.sub(f"^{of}_|_{of}$", "", k) if of else k for k in others}
        fits = [k for k in others if (not of or plain[k] != k) and others[k] in ((n,), (n, 1))]
        return {plain[k]: k for k in fits}

    names, test_names = names_of(part[1:], len(y)), dict[str, str]()
    if y_test is not None:
        names = {k: array for k, array in names.items() if not re.search("^test_|_test$", k)}
        test_names = {k: array for k, array in names_of("test", len(y_test)).items() if k in names}
        if wrong := [k for k in names if f"{k}_test" in others and k not in test_names]:
            fault = f"the array '{wrong[0]}_test' is {list(others[f'{wrong[0]}_test'])}"
            raise DataError("E403", f"{path}: {fault} for {len(y_test)} test samples; give one value each.")
    columns, test_columns = (
        {k: archive[array].reshape(-1) for k, array in of_part.items()} for of_part in (names, test_names)
    )
    known = {*columns, *names.values(), *test_names.values(), *(f"{k}_train" for k in columns)}
    unused = [f"{k} {list(shape)}" for k, shape in others.items() if k not in known]
    notes: list[Note] = [("left out", f"arrays that are no columns: {abbreviate(unused)}")] if unused else []
    return arrays(
        x,
        y,
        samples("x_test"),
        y_test,
        name=name,
        classes=tuple(str(c) for c in archive["classes"]) if "classes" in archive else None,
        columns=columns,
        test_columns=None if y_test is None else test_columns,
        notes=notes,
        target=target,
        layout=layout,
        group=group or next((name for name in GROUP_ARRAYS if name in columns), ""),
        weight=weight,
    )
