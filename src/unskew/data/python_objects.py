"""Any Python object that holds or names data, as a Dataset or a Federation.

`run`, `compare` and the sites of a deployment all call `take`. It accepts arrays, DataFrames, datasets of
torch and Hugging Face, texts that name data, and lists or dictionaries with one of these for each client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.files.folder_tree import PART_NAMES
from unskew.data.kinds.column_roles import GROUP_COLUMN, INDEPENDENT, column_named, column_question
from unskew.data.readers.from_items import from_items
from unskew.data.readers.from_tables import (
    ColumnChoice,
    add_labels,
    frame_sheet,
    read_frames,
    sheet_set,
    target_of,
)
from unskew.data.readers.raw_samples import (
    RawSamples,
    check_columns,
    from_clients,
    raw_samples_of,
    share_numbering,
)
from unskew.data.registry import divided_by, read, with_arguments
from unskew.data.samples.conversion import AxisOrder
from unskew.data.samples.dataset import Dataset, Target
from unskew.data.samples.packing import are_inputs
from unskew.data.samples.reading_notes import Note
from unskew.errors import DataError, excerpt
from unskew.system.python_files import GIVEN_OBJECT


def take(
    data: Any,
    *,
    label: str = "",
    site: str = "",
    target: str = "",
    layout: AxisOrder = "auto",
    group: Any = "",
    weight: str = "",
) -> Dataset | Federation:
    """The set or federation in an object.

    data: a name or path, a Federation or Dataset; (x, y) or (x, y, x_test, y_test); a pandas DataFrame; a
    torch or Hugging Face Dataset; a pair (train, test) or a dictionary of train and test. A list or
    dictionary of these is one set for each client, and so is (clients, test).
    label, site: columns of a table. target: the number to predict: a column of a table, or a name for the
    labels.
    layout: the order of the axes of arrays, or of the lists in a file: "channels first", "channels last" for
    images also without channels, or "time first" for series [N, time, features].
    group: samples that belong together, such as those of a patient, and that no split separates: a column of
    a table, a key of samples that are dictionaries, for folders also a pattern of file names, or an array
    with the group of each training sample (and then of each test sample), [N]. "none": samples are
    independent.
    weight: of a path or a DataFrame: the column of weights of samples in the loss; of arrays, see
    `unskew.data.arrays`.
    Raises DataError (E4xx) for data that cannot be trained on, UsageError (E125) for a name.
    """
    if not isinstance(data, str | os.PathLike):
        return _take_object(data, SampleSpec(label, target, layout, group, weight), site)
    return read(os.fspath(data), **_named_roles(label, site, target, layout, group, weight))


class SampleSpec(NamedTuple):
    """The column of labels or the target, the order of the samples' axes, the groups, and the column of
    weights, as named by the user."""

    label: str
    target: str
    layout: AxisOrder
    group: Any
    weight: str = ""


def _take_object(data: Any, spec: SampleSpec, site: str) -> Dataset | Federation:
    """The set or federation in an object that is no text."""
    label, target, layout, group, _ = spec
    named = isinstance(group, str)
    if spec.weight and not is_frame(data):
        remedy = "give unskew.data.arrays(x, y, weight=...), or a DataFrame"
        raise DataError("E403", f"weight='{spec.weight}' names a column, and these data have none; {remedy}.")
    if layout != "auto" and (isinstance(data, Federation | Dataset) or is_frame(data)):
        raise DataError("E403", f"layout='{layout}' orders the axes of arrays, and these have been read.")
    if isinstance(data, Federation | Dataset):
        if not named or group not in ("", INDEPENDENT):
            remedy = "name groups to what reads them: unskew.data.arrays(..., group=...)"
            raise DataError("E403", f"{data.name}: these samples are divided already; {remedy}.")
        if label or target:
            fault = f"label='{label or target}' names a column"
            raise DataError("E403", f"{fault}, and these data come with their labels.")
        return _with_sites(data, site)
    if is_frame(data):
        sheet = frame_sheet(data) if named else add_labels(data, group, "table", GROUP_COLUMN)
        roles = (label, site, group if named else GROUP_COLUMN)
        aim = target_of(target, label, None, None)
        return sheet_set(sheet, roles, None, aim, choice=ColumnChoice(weight=spec.weight))
    if label and target:
        text = f"label='{label}' and target='{target}' exclude each other; give one of them"
        raise DataError("E403", f"{text}.")
    spec = spec if named else spec._replace(group=INDEPENDENT)
    clients = data[0] if isinstance(data, tuple) and len(data) == 2 and _are_clients(data[0]) else data
    if clients is data and not _names_clients(data) and not isinstance(data, list):
        dataset = _read_sets([("", data)], spec)[0].dataset("arrays", None if named else group)
        return _with_sites(dataset, site)
    if not named:
        raise DataError("E403", "group is an array, and each client has samples of its own; name a column.")
    if not clients:
        raise DataError("E403", "an empty list was given as data; give (x, y), or a set for each client.")
    sets = clients if isinstance(clients, Mapping) else {f"client-{i}": c for i, c in enumerate(clients)}
    tested = [("the test set", data[1])] if clients is not data else []
    raws = _read_sets([*((str(name), one) for name, one in sets.items()), *tested], spec)
    test = raws.pop() if tested else None
    return _with_sites(from_clients(dict(zip(map(str, sets), raws)), test), site)


def _named_roles(
    label: str = "",
    site: str = "",
    target: str = "",
    layout: str = "auto",
    group: Any = "",
    weight: str = "",
) -> dict[str, str]:
    """The arguments of a reader."""
    if not isinstance(group, str):
        raise DataError("E403", "group is an array, and these data are a path; name a column, or a pattern.")
    entries = {"label": label, "site": site, "target": target, "layout": layout, "group": group}
    return {k: v for k, v in {**entries, "weight": weight}.items() if v not in ("", "auto")}


def _read_sets(
    entries: Sequence[tuple[str, Any]], spec: SampleSpec, facts: Sequence[dict[str, np.ndarray]] = ()
) -> list[RawSamples]:
    """The samples of named sets. facts: as `facts_of` of `from_items`, for each set; () for none."""
    frames = {name: frame_sheet(data, name) for name, data in entries if is_frame(data)}
    tables = read_frames(frames, spec.label, spec.target, spec.group) if frames else {}
    raws = list[RawSamples]()
    for i, (name, data) in enumerate(entries):
        raw = tables[name] if is_frame(data) else _read_set(data, spec, name, facts[i] if facts else None)
        if raw.layout == "auto":
            raw = replace(raw, layout=spec.layout)
        if spec.group not in ("", INDEPENDENT) and not raw.group:
            fault = f"group='{spec.group}' names a column, and these samples have none"
            raise DataError("E403", f"{fault}; give the group of each sample, [N].")
        raw = replace(raw, group="") if spec.group == INDEPENDENT else raw
        raws.append(replace(raw, target=raw.target or Target(spec.target)) if spec.target else raw)
    return raws


def _with_sites(data: Dataset | Federation, site: str) -> Dataset | Federation:
    """The data. Raises DataError (E403) if the site is not one of their columns."""
    if site and isinstance(data, Federation):
        raise DataError("E403", f"site='{site}' was given, and a Federation is dealt out already.")
    if site:
        column_named(data.columns, site, data.name)
    return data


def settings_of(
    data: Any, label: str = "", site: str = "", **roles: Any
) -> tuple[Dataset | Federation | None, dict[str, str]]:
    """(the data, None if they are a name or path; the settings that describe them: `data`, and `skew` if the
    data are divided).

    label, site, roles: arguments of `take`. Raises the errors of `take`.
    """
    if not isinstance(data, str | os.PathLike):
        dataset = take(data, label=label, site=site, **roles)
        column = site or (dataset.intake.divided if isinstance(dataset, Dataset) and dataset.intake else "")
        return dataset, {"data": GIVEN_OBJECT, **({"skew": f"column:{column}"} if column else {})}
    settings = _named_roles(label, site, **roles)
    text = with_arguments(os.fspath(data), settings) if settings else os.fspath(data)
    column = divided_by(text)
    return None, {"data": text, **({"skew": f"column:{column}"} if column else {})}


def _read_set(
    data: Any, spec: SampleSpec, name: str, facts: dict[str, np.ndarray] | None = None
) -> RawSamples:
    """The samples of one set. name: of the client, for the message. facts: as for `from_items`."""
    if isinstance(data, type):
        raise DataError("E403", f"{data.__name__} is a class, not a set; create it: {data.__name__}(...).")
    if isinstance(data, RawSamples):
        return data
    if isinstance(data, tuple):
        return _read_tuple(data, spec)
    if isinstance(data, Mapping) and _is_split(data):
        return _read_split(data, spec)
    if isinstance(data, Dataset | str | os.PathLike):
        dataset = data if isinstance(data, Dataset) else take(data, **spec._asdict())
        assert isinstance(dataset, Dataset)
        return raw_samples_of(dataset)
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        raise DataError("E403", f"a {type(data).__name__} returns batches; give its set, loader.dataset.")
    if _is_set(data):
        return from_items(data, spec.label or spec.target, spec.group, facts)
    if (shape := getattr(data, "shape", None)) is not None:
        raise DataError("E403", f"an array of {list(shape)} was given without labels; give (x, y).")
    remedy = "give (x, y), a path, a DataFrame, a Dataset, or a list or dictionary of clients"
    fault = f"{f'{name}: ' if name else ''}cannot read a {type(data).__name__} as data: {excerpt(data)}"
    raise DataError("E403", f"{fault}; {remedy}.")


def _read_tuple(data: tuple[Any, ...], spec: SampleSpec) -> RawSamples:
    """The set (x, y), (x, y, x_test, y_test) or (train, test)."""
    first, second = data[:2] if len(data) in (2, 4) else (None, None)
    is_table = is_frame(first) and not is_frame(second) and not _is_set(second)
    is_y = second is not None and not isinstance(second, tuple | Mapping) and not _is_set(second)
    has_inputs = is_y and not is_frame(second) and are_inputs(first, second)
    sets = [_is_set(part) or is_frame(part) or is_pair(part) for part in data]
    if spec.label and (is_table or has_inputs or not any(sets)):
        raise DataError("E403", f"label='{spec.label}' names a column, and y is given as well.")
    if is_table:
        label = spec.target or str(getattr(second, "name", None) or "label")
        pairs = zip(("x", "x_test"), data[::2], data[1::2])
        tables = {name: add_labels(x, y, name, label) for name, x, y in pairs}
        raws = read_frames(tables, "" if spec.target else label, spec.target, spec.group)
        train, *test = raws.values()
        return train.with_test(test[0]) if test else train
    if has_inputs or not any(sets):
        if len(data) not in (2, 4):
            fault = f"{len(data)} arrays were given"
            raise DataError("E403", f"data: {fault}; give (x, y) or (x, y, x_test, y_test).")
        return RawSamples(*data)
    if len(data) != 2 or not all(sets):
        remedy = 'give (train, test), or name them: {"train": ..., "val": ..., "test": ...}'
        raise DataError("E403", f"what each of {len(data)} parts is for cannot be told; {remedy}.")
    return _read_split({"train": data[0], "test": data[1]}, spec)


def is_frame(data: Any) -> bool:
    """Whether this is a table of columns: pandas' and polars' DataFrames, and pyarrow's Tables."""
    known = any(hasattr(data, n) for n in ("iloc", "to_dicts", "to_pydict"))
    return known and hasattr(data, "columns") and not isinstance(data, type)


def _are_clients(data: Any) -> bool:
    """Whether this is a list or dictionary of sets, not of samples or arrays."""
    sets = list(data.values()) if _names_clients(data) else data
    if not isinstance(sets, list) or not sets:
        return False
    return all(_is_set(part) or is_frame(part) or is_pair(part) for part in sets)


def _names_clients(data: Any) -> bool:
    return isinstance(data, Mapping) and not _is_split(data)


def _is_set(data: Any) -> bool:
    """Whether an object returns samples: it has items but is neither an array nor a collection of values."""
    is_array = hasattr(data, "shape") and hasattr(data, "dtype")  # a Dataset of Hugging Face has a shape, too
    is_collection = isinstance(data, str | list | tuple | Mapping)
    return hasattr(data, "__getitem__") and not is_array and not is_collection


def _is_split(data: Mapping[str, Any]) -> bool:
    """Whether this is a dictionary of the parts of one set."""
    parts = [PART_NAMES.get(str(name).lower(), "") for name in data]
    if not parts or not all(parts):
        return False
    if parts.count("train") != 1 or parts.count("test") > 1:
        raise DataError(
            "E403",
            f"of the parts {', '.join(map(str, data))} one should be called train, and at most one test.",
        )
    return True


def _read_split(data: Mapping[str, Any], spec: SampleSpec) -> RawSamples:
    """Training and test part as one set."""
    parts = {str(name): PART_NAMES[str(name).lower()] for name in data}
    sources = {part: one for part, one in zip(parts.values(), data.values()) if part != "val"}
    facts: list[dict[str, np.ndarray]] = [{} for _ in sources]
    raws = share_numbering(list(zip(sources, _read_sets(list(sources.items()), spec, facts))))
    entries = dict(zip(sources, raws))
    if len(entries) > 1 and (own := [name for name, raw in entries.items() if raw.x_test is not None]):
        raise DataError(
            "E403", f"'{own[0]}' brings a test set of its own, and train and test are given apart."
        )
    validation = ", ".join(name for name, part in parts.items() if part == "val")
    note: tuple[Note, ...] = (("left out", f"{validation}: choose settings with validation=0.1"),)
    train = replace(entries["train"], form=check_columns(list(entries.items())))
    questions = _question_of_parts(dict(zip(sources, facts)))
    train = replace(train, notes=(*train.notes, *(note if validation else ()), *questions))
    return train.with_test(entries["test"]) if "test" in entries else train


def _question_of_parts(facts: Mapping[str, Mapping[str, np.ndarray]]) -> list[Note]:
    """The question whether a fact that samples have in training, and in the test part if there is one, is
    that of groups. facts: of the samples of each part, [N] each."""
    train, test = facts["train"], facts.get("test", {})
    both = {fact: np.concatenate([values, test[fact]]) for fact, values in train.items() if fact in test}
    sizes = [len(next(iter(part.values()), ())) for part in (train, test)]
    question = column_question(both, np.repeat([False, True], sizes)) if both else []
    return question or column_question({fact: v for fact, v in train.items() if fact not in test})


def is_pair(data: Any) -> bool:
    """Whether this is (x, y), arrays with a row for each sample, and not two samples or two rows; x may be
    several inputs."""
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return False
    if isinstance(data[0], Mapping | tuple):
        return len(getattr(data[1], "shape", ())) > 0 and are_inputs(*data)
    if not all(hasattr(part, "shape") for part in data):
        return False
    x, y = (tuple(part.shape) for part in data)
    return len(x) > 1 and bool(y) and x[0] == y[0] and x != y
