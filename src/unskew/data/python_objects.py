"""Any Python object that holds or names data, as a Dataset or a Federation.

`run`, `compare` and the sites of a deployment all call `take`. It accepts arrays, DataFrames, datasets of
torch and Hugging Face, DataLoaders, texts that name data, and lists or dictionaries with one of these for
each client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.files.tree import PART_NAMES
from unskew.data.kinds.column_roles import column_named, label_column_in
from unskew.data.kinds.groups import GROUP_COLUMN, INDEPENDENT
from unskew.data.readers.from_items import from_items, has_several_inputs, is_loader, loader_dataset
from unskew.data.readers.from_tables import add_labels, frame_columns, is_frame, read_frames, read_table
from unskew.data.readers.raw_samples import (
    RawSamples,
    check_columns,
    from_clients,
    raw_samples_of,
    read_class_names,
    share_numbering,
    split_parts,
)
from unskew.data.registry import divided_by, place_of, read
from unskew.data.samples.conversion import AxisOrder, array_of
from unskew.data.samples.dataset import Dataset, Target
from unskew.data.samples.intake import abbreviate
from unskew.data.samples.packing import PackedSamples, are_inputs
from unskew.data.storage.sample_rows import is_streamed
from unskew.errors import DataError, excerpt
from unskew.formats import calls
from unskew.system.python_files import GIVEN_OBJECT

ARRAYS = frozenset(("x", "y", "x_train", "y_train", "x_test", "y_test", "classes", "group", "group_test"))


def take(
    data: Any,
    *,
    label: str = "",
    site: str = "",
    target: str = "",
    layout: AxisOrder = "auto",
    group: Any = "",
) -> Dataset | Federation:
    """The set or federation in an object.

    data: a name or path, a Federation or Dataset; (x, y), (x, y, x_test, y_test) or ((x, y), (x_test,
    y_test)); a dictionary of such arrays; a pandas DataFrame; a torch or Hugging Face Dataset, or a
    DataLoader over one; a list of pairs of a sample and its label, or of dictionaries that name both; a pair
    (train, test) or a dictionary of train and test. A list or dictionary of these is one set for each client,
    and so is (clients, test).
    label, site: columns of a table. target: the number to predict: a column of a table, or a name for the
    labels.
    layout: the order of the axes of arrays, or of the lists in a file: "channels first", "channels last" for
    images also without channels, or "time first" for series [N, time, features].
    group: samples that belong together, such as those of a patient, and that no split separates: a column of
    a table, a key of samples that are dictionaries, for folders also a pattern of file names, or an array
    with the group of each training sample (and then of each test sample), [N]. "none": samples are
    independent.
    Raises DataError (E4xx) for data that cannot be trained on, UsageError (E125) for a name.
    """
    named = isinstance(group, str)
    if layout != "auto" and (isinstance(data, Federation | Dataset) or is_frame(data)):
        raise DataError(
            "E403", f"layout='{layout}' orders the axes of arrays, and these have been read; leave it out."
        )
    if isinstance(data, Federation | Dataset):
        if not named or group not in ("", INDEPENDENT):
            text = "these samples are divided into training and test already"
            raise DataError(
                "E403",
                f"{data.name}: {text}; name groups to what reads them: unskew.data.arrays(..., group=...).",
            )
        return _check_named_columns(data, label or target, site)
    if isinstance(data, str | os.PathLike):
        return read(os.fspath(data), **_named_roles(label, site, target, layout, group))
    check_instance(data)
    if is_frame(data):
        columns = frame_columns(data)
        if not named:
            columns, group = _add_groups(columns, array_of(group)), GROUP_COLUMN
        return read_table(columns, "table", label, site, target=target, group=group)
    if label and target:
        raise DataError(
            "E403", f"label='{label}' names classes, and target='{target}' a number; give one of them."
        )
    spec = SampleSpec(label, target, layout, group if named else INDEPENDENT)
    clients = data[0] if isinstance(data, tuple) and len(data) == 2 and _are_clients(data[0]) else data
    if clients is not data or _names_clients(data) or (isinstance(data, list) and not _are_samples(data)):
        if not named:
            raise DataError(
                "E403", "group is an array, and each client has samples of its own; name a column."
            )
        entries = _named_sets(clients)
        raws = _read_sets([*entries, *([("the test set", data[1])] if clients is not data else [])], spec)
        test = raws.pop() if clients is not data else None
        return _check_named_columns(
            from_clients({name: raw for (name, _), raw in zip(entries, raws)}, test), "", site
        )
    column = "" if _has_columns(data) or target else label
    raw = _read_sets([("", data)], spec)[0]
    dataset = raw.dataset("arrays") if named else raw.with_groups(group).dataset("arrays")
    return _check_named_columns(dataset, column, site)


def _named_roles(label: str, site: str, target: str, layout: str, group: Any) -> dict[str, str]:
    """The arguments of a reader. Raises DataError (E403) for groups that are no name."""
    if not isinstance(group, str):
        raise DataError(
            "E403", f"group is {excerpt(group, 40)}, and these data are a path; name a column, or a pattern."
        )
    entries = (("label", label), ("site", site), ("target", target), ("layout", layout), ("group", group))
    return {k: v for k, v in entries if v not in ("", "auto")}


def _add_groups(columns: Mapping[str, np.ndarray], groups: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of a table and the group of each row. Raises DataError (E403) for another number of groups
    than rows, and if a column has their name."""
    rows = len(next(iter(columns.values()), ()))
    if groups.shape != (rows,):
        raise DataError(
            "E403", f"group is {list(groups.shape)} for {rows} rows; give the group of each, [N]."
        )
    if GROUP_COLUMN in columns:
        text = f"the table has a column '{GROUP_COLUMN}', too"
        raise DataError("E403", f"{text}; put the groups into a column with another name, and name it.")
    return {**columns, GROUP_COLUMN: groups}


class SampleSpec(NamedTuple):
    """The column of labels or the target, the order of the samples' axes, and the groups, as named by the
    user."""

    label: str
    target: str
    layout: AxisOrder
    group: str

    @property
    def column(self) -> str:
        return self.label or self.target


def _read_sets(
    entries: Sequence[tuple[str, Any]], spec: SampleSpec, other_bytes: int = 0
) -> list[RawSamples]:
    """The samples of named sets; tables among them are read together. other_bytes: bytes that other sets take
    in memory."""
    frames = {name: frame_columns(data, name) for name, data in entries if is_frame(data)}
    tables = read_frames(frames, spec.label, spec.target, spec.group) if frames else {}
    raws, size = list[RawSamples](), other_bytes
    for name, data in entries:
        raw = tables[name] if is_frame(data) else _read_set(data, spec, size)
        if raw.layout == "auto":
            raw = replace(raw, layout=spec.layout)
        if spec.group not in ("", INDEPENDENT) and not raw.group:
            text = f"group='{spec.group}' names a column, and these samples have none"
            raise DataError("E403", f"{text}; give the group of each sample, [N].")
        raw = replace(raw, group="") if spec.group == INDEPENDENT else raw
        raws.append(replace(raw, target=raw.target or Target(spec.target)) if spec.target else raw)
        size += sum(map(_memory_of, (raw.x, raw.x_test)))
    return raws


def _has_columns(data: Any) -> bool:
    """Whether samples, or the training part, have columns in which labels can be named."""
    if isinstance(data, Mapping) and _is_split(data):
        return any(_has_columns(one) for one in data.values())
    if isinstance(data, tuple):
        return any(map(_has_columns, data))
    return is_frame(data) or _is_set(data) or isinstance(data, list | str | os.PathLike)


def _check_named_columns(data: Dataset | Federation, label: str, site: str) -> Dataset | Federation:
    """The data. Raises DataError (E403) if the label or site is not one of their columns."""
    if label:
        raise DataError(
            "E403",
            f"label='{label}' names a column of a table, and these data come with their labels; leave it"
            " out.",
        )
    if site and isinstance(data, Federation):
        raise DataError(
            "E403", f"site='{site}' was given, but a Federation is dealt out already; leave site out."
        )
    if site:
        column_named(data.columns, site, data.name)
    return data


def settings_of(
    data: Any, label: str = "", site: str = "", target: str = "", group: Any = ""
) -> tuple[Dataset | Federation | str, dict[str, str]]:
    """(the data, read unless they are a name or path; the settings that describe them: `data`, and `skew` if
    the data are divided).

    Raises the errors of `take`.
    """
    if isinstance(data, str | os.PathLike):
        settings = _named_roles(label, site, target, "auto", group)
        place, arguments = place_of(os.fspath(data)) if settings else (os.fspath(data), {})
        text = calls.call_text(place, arguments | settings)
        column = divided_by(text)
        return text, {"data": text, **({"skew": f"column:{column}"} if column else {})}
    dataset = take(data, label=label, site=site, target=target, group=group)
    column = site or (dataset.intake.divided if isinstance(dataset, Dataset) and dataset.intake else "")
    return dataset, {"data": GIVEN_OBJECT, **({"skew": f"column:{column}"} if column else {})}


def _read_set(source: Any, spec: SampleSpec, other_bytes: int) -> RawSamples:
    """The samples of one set. other_bytes: bytes that others take in memory. Raises DataError (E403) for
    anything but a set."""
    data: Any = loader_dataset(source) if is_loader(source) else source
    check_instance(data)
    if isinstance(data, RawSamples):
        return data
    if isinstance(data, tuple):
        return _read_tuple(data, spec, other_bytes)
    if isinstance(data, Mapping) and set(data) <= ARRAYS:
        return _read_archive(data)
    if isinstance(data, Mapping) and _is_split(data):
        return _read_split(data, spec, other_bytes)
    if isinstance(data, Dataset | str | os.PathLike):
        dataset = data if isinstance(data, Dataset) else take(data, **spec._asdict())
        assert isinstance(dataset, Dataset)
        return raw_samples_of(dataset)
    if _is_set(data) or (isinstance(data, list) and _are_samples(data)):
        return from_items(data, spec.column, other_bytes, spec.group)
    if (shape := getattr(data, "shape", None)) is not None:
        raise DataError("E403", f"an array of {list(shape)} was given without labels; give (x, y).")
    raise DataError(
        "E403",
        f"cannot read a {type(data).__name__} as data: {excerpt(data)}. Give (x, y), a path, a DataFrame, a"
        " Dataset, or a list or dictionary of clients.",
    )


def _read_tuple(data: tuple[Any, ...], spec: SampleSpec, other_bytes: int) -> RawSamples:
    """The set (x, y), (x, y, x_test, y_test) or (train, test). Raises DataError (E403) for another number
    of parts."""
    if len(data) in (2, 4) and is_frame(data[0]) and not is_frame(data[1]) and not _is_set(data[1]):
        return _labelled_tables(data, spec)
    if len(data) in (2, 4) and _is_labelled(data[0], data[1]):
        return split_parts(data, "data")
    sets = [_is_set(part) or is_frame(part) or is_pair(part) for part in data]
    if not any(sets):
        return split_parts(data, "data")
    if len(data) != 2 or not all(sets):
        raise DataError(
            "E403",
            f"a tuple of {len(data)} was given, and what each part is for cannot be told; give (train, test),"
            ' or name them: {"train": ..., "val": ..., "test": ...}.',
        )
    return _read_split({"train": data[0], "test": data[1]}, spec, other_bytes)


def _labelled_tables(data: tuple[Any, ...], spec: SampleSpec) -> RawSamples:
    """The set (x, y) or (x, y, x_test, y_test), where x are DataFrames. Raises DataError (E403) if labels
    are named as well."""
    if spec.label:
        raise DataError(
            "E403", f"label='{spec.label}' names a column, and y is given as well; give one of them."
        )
    label = spec.target or str(getattr(data[1], "name", None) or "label")
    pairs = zip(("x", "x_test"), data[::2], data[1::2])
    tables = {name: add_labels(x, y, name, label) for name, x, y in pairs}
    raws = read_frames(tables, "" if spec.target else label, spec.target, spec.group)
    train, *test = raws.values()
    return train.with_test(test[0]) if test else train


def _is_labelled(x: Any, y: Any) -> bool:
    """Whether these are several inputs with their labels, not a training and a test set."""
    return not isinstance(y, tuple | Mapping) and not _is_set(y) and not is_frame(y) and are_inputs(x, y)


def _are_clients(data: Any) -> bool:
    """Whether this is a list or dictionary of sets, not of samples or arrays."""
    sets = list(data.values()) if _names_clients(data) else data
    if not isinstance(sets, list) or not sets:
        return False
    return all(_is_set(part) or is_frame(part) or is_pair(part) for part in sets)


def _names_clients(data: Any) -> bool:
    return isinstance(data, Mapping) and not set(map(str, data)) <= ARRAYS and not _is_split(data)


def _are_samples(data: list[Any]) -> bool:
    """Whether this is a list of samples, each with its label."""
    return bool(data) and all(map(is_sample, data))


def _named_sets(data: Any) -> list[tuple[str, Any]]:
    """The clients' sets, each with its name."""
    if isinstance(data, list):
        return [(f"client-{i}", one) for i, one in enumerate(_numbered_clients(data))]
    names = list(map(str, _read_clients(data)))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError("E403", f"two clients are called '{twice}'; give each a name of its own.")
    return list(zip(names, data.values()))


def _memory_of(x: Any) -> int:
    if isinstance(x, Mapping | tuple):
        return sum(map(_memory_of, x.values() if isinstance(x, Mapping) else x))
    if isinstance(x, PackedSamples):
        return x.x.nbytes
    return 0 if x is None or is_streamed(x) else 4 * array_of(x).size


def _is_set(data: Any) -> bool:
    """Whether an object returns samples: it has items but is neither an array nor a collection of values."""
    if is_loader(data):
        return True
    return (
        hasattr(data, "__getitem__")
        and not (
            hasattr(data, "shape") and hasattr(data, "dtype")
        )  # a Dataset of Hugging Face has a shape, too
        and not isinstance(data, str | list | tuple | Mapping)
    )


def _is_split(data: Mapping[str, Any]) -> bool:
    """Whether this is a dictionary of the parts of one set. Raises DataError (E403) for parts without a
    training part, or two of one kind."""
    parts = [PART_NAMES.get(str(name).lower(), "") for name in data]
    if parts and all(parts) and "train" not in parts:
        raise DataError(
            "E403",
            f"of the parts {abbreviate(list(map(str, data)))} none is called train; name the one to train"
            " on so.",
        )
    if all(parts) and (twice := next((part for part in ("train", "test") if parts.count(part) > 1), "")):
        names = [str(name) for name, part in zip(data, parts) if part == twice]
        raise DataError("E403", f"both {names[0]} and {names[1]} name the {twice} part; give one of them.")
    return {PART_NAMES.get(str(name).lower()) for name in data} >= {"train"} and all(
        str(n).lower() in PART_NAMES for n in data
    )


def _read_split(data: Mapping[str, Any], spec: SampleSpec, other_bytes: int) -> RawSamples:
    """Training and test part as one set; validation samples are left out, with a note.

    Raises DataError (E403) for two kinds of test samples.
    """
    sources = {
        PART_NAMES[str(name).lower()]: one
        for name, one in data.items()
        if PART_NAMES[str(name).lower()] != "val"
    }
    raws = share_numbering(list(zip(sources, _read_sets(list(sources.items()), spec, other_bytes))))
    entries = list(zip(sources, raws))
    form, parts = check_columns(entries), dict(entries)
    train, test = replace(parts["train"], form=form), parts.get("test")
    validation = [str(n) for n in data if PART_NAMES[str(n).lower()] == "val"]
    notes = (
        *train.notes,
        *(
            (("left out", f"{abbreviate(validation)}: choose settings with validation=0.1"),)
            if validation
            else ()
        ),
    )
    if test is None:
        return replace(train, notes=notes)
    if owner := next((name for name, raw in entries if raw.x_test is not None), ""):
        raise DataError(
            "E403",
            f"'{owner}' brings a test set of its own, and train and test are given apart; give one kind.",
        )
    return replace(train.with_test(test), notes=notes)


def _read_archive(data: Mapping[str, Any]) -> RawSamples:
    """The set from arrays with the names of an archive."""
    if not data:
        raise DataError(
            "E403", "an empty dictionary was given as data; give (x, y), or a set for each client."
        )
    x, y = (data.get(n, data.get(f"{n}_train")) for n in ("x", "y"))
    if x is None or y is None:
        raise DataError(
            "E403",
            f"a dictionary of arrays needs x and y, or x_train and y_train; it has {abbreviate(list(data))}.",
        )
    raw = RawSamples(x, y, data.get("x_test"), data.get("y_test"), read_class_names(data.get("classes")))
    groups = [array_of(data[name]) for name in ("group", "group_test") if name in data]
    return raw.with_groups(np.concatenate(groups)) if groups else raw


def _read_clients(data: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Clients by name. Raises DataError (E403) for values that are not sets."""
    for name, one in data.items():
        if not (
            isinstance(one, tuple | Mapping | Dataset | str | os.PathLike) or is_frame(one) or _is_set(one)
        ):
            raise DataError(
                "E403",
                f"a dictionary of clients should hold a set for each, such as (x, y); '{name}' is a"
                f" {type(one).__name__}. Arrays by name are called x and y; of scikit-learn's data give"
                " (data.data, data.target).",
            )
    return data


def _numbered_clients(data: list[Any]) -> list[Any]:
    if not data:
        raise DataError("E403", "an empty list was given as data; give (x, y), or a set for each client.")
    return list(_read_clients(dict(enumerate(data))).values())


def is_pair(data: Any) -> bool:
    """Whether this is (x, y), arrays with a row for each sample, and not two samples or two rows; x may be
    several inputs."""
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Mapping | tuple):
        return len(getattr(data[1], "shape", ())) > 0 and are_inputs(*data)
    if not (
        isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data)
    ):
        return False
    x, y = (tuple(part.shape) for part in data)
    return len(x) > 1 and bool(y) and x[0] == y[0] and x != y


def is_sample(data: Any) -> bool:
    """Whether this is a sample with its label, one number or word: a pair, or a dictionary that names
    them."""
    if isinstance(data, Mapping):
        label = data.get(label_column_in(data))
        return len(data) > 1 and label is not None and np.ndim(label) == 0
    if not (isinstance(data, tuple | list) and len(data) == 2 and np.ndim(data[1]) == 0):
        return False
    return hasattr(data[0], "shape") or has_several_inputs(data[0])


def check_instance(data: Any) -> None:
    """Raises DataError (E403) if the object is a class of sets and not a set."""
    if isinstance(data, type):
        raise DataError(
            "E403",
            f"{data.__name__} is a class, not a set of samples; create it first: {data.__name__}(...).",
        )
