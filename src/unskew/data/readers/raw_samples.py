"""Samples and labels before any conversion, as every source of data gives them, one set for each client.

Sets may number their classes differently, as folders do if one of them lacks a class. Labels are therefore
matched by the names of the classes when the sets of several clients become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from unskew.data.kinds.groups import INDEPENDENT
from unskew.data.kinds.masks import MaskOrigin, as_masks
from unskew.data.readers.from_arrays import arrays, with_groups
from unskew.data.samples.conversion import AxisOrder, array_of, bits_of, sample_array, scale_samples
from unskew.data.samples.dataset import Dataset, Target
from unskew.data.samples.packing import PackedSamples, are_inputs, layout_difference, pack
from unskew.data.samples.reading_notes import Intake, Note, abbreviate
from unskew.data.storage.sample_rows import concatenate_samples, select_samples
from unskew.errors import DataError, excerpt

ClassNames = tuple[str, ...]


def class_names_of(items: Any) -> Any:
    """The class names of a set, or of the set below it, as below a torch.utils.data.Subset; None without."""
    while items is not None:
        if (names := getattr(items, "classes", None)) is not None:
            return names
        items = getattr(items, "dataset", None)
    return None


CLIENT_COLUMN = "client"
"""The column of clients, if clients bring separate sets."""


@dataclass(frozen=True)
class RawSamples:
    """Samples and labels before conversion.

    x, y, x_test, y_test: as `arrays` takes them; without a test set, the last two are None.
    group: the column of groups that no split may separate, such as the slices of a patient, "" without one.
    form, gaps: how the columns of a table became samples (Intake).
    source_dtype: the original type of samples that are scaled already.
    layout: the order of the axes of x and x_test.
    """

    x: Any
    y: Any
    x_test: Any = None
    y_test: Any = None
    classes: tuple[str, ...] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    test_columns: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    target: Target | None = None
    group: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)
    source_dtype: str = ""
    layout: AxisOrder = "auto"
    gaps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def dataset(self, name: str) -> Dataset:
        """The set of these samples; raises the errors of `arrays`."""
        dataset = arrays(
            self.x,
            self.y,
            self.x_test,
            self.y_test,
            classes=self.classes,
            columns=self.columns,
            test_columns=self.test_columns if self.x_test is not None else None,
            name=name,
            notes=self.notes,
            target=self.target,
            layout=self.layout,
            group=self.group or INDEPENDENT,
        )
        intake = dataset.intake or Intake()
        form, dtype = {**intake.form, **self.form}, self.source_dtype or intake.dtype
        return replace(dataset, intake=replace(intake, form=form, dtype=dtype, gaps=self.gaps))

    def divided(self, test: np.ndarray | None, unused: np.ndarray | None = None) -> RawSamples:
        """The samples divided into training and test part, without rows that are in neither. test, unused:
        which rows these are, bool [N]; None for none."""
        none = np.zeros(len(self.y), bool)
        test, unused = none if test is None else test, none if unused is None else unused
        if not unused.any() and not test.any():
            return self

        def part(rows: np.ndarray) -> tuple[Any, Any, dict[str, Any]]:
            x = self.x
            if isinstance(x, Mapping):
                x = {name: select_samples(values, rows) for name, values in x.items()}
            else:
                x = select_samples(x, rows)
            return x, self.y[rows], {c: v[rows] for c, v in self.columns.items()}

        x, y, columns = part(~test & ~unused)
        train = replace(self, x=x, y=y, columns=columns)
        if not test.any():
            return train
        x_test, y_test, test_columns = part(test & ~unused)
        return replace(train, x_test=x_test, y_test=y_test, test_columns=test_columns)

    def with_groups(self, values: Any) -> RawSamples:
        """The set with the group of each training sample, or of each training and then each test sample.

        Raises DataError (E403) for another number of groups than samples.
        """
        sizes = [len(y) for y in (self.y, self.y_test) if y is not None]
        groups = with_groups("data", array_of(values), self.columns, self.test_columns, sizes)
        return replace(self, columns=groups[0], test_columns=groups[1], group=groups[2])

    def with_test(self, test: RawSamples) -> RawSamples:
        """The set with the samples of another as its test part, and the facts that both have, such as
        sites."""
        facts = {name: values for name, values in test.columns.items() if name in self.columns}
        return replace(self, x_test=test.x, y_test=test.y, test_columns=facts)


def raw_samples_of(dataset: Dataset) -> RawSamples:
    """A set that has been read, with its labels as words again, so that they can be numbered together with
    others'.

    Test samples that were split off, because the source has none, are among the training samples again.
    """
    layout, group, intake = dataset.layout, dataset.group_column, dataset.intake or Intake()
    names, words = np.array(dataset.classes), np.array(dataset.labels.get(group, ()))

    def groups(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {group: words[columns[group]] if len(words) else columns[group]} if group in columns else {}

    def packed(x: np.ndarray) -> Any:
        return PackedSamples(x, layout) if layout else x

    x, y, y_test = dataset.x, dataset.y, dataset.y_test
    target, classes = dataset.target, dataset.classes if y.ndim > 1 else None
    if target or dataset.several:
        target, classes = target or Target(",".join(dataset.classes)), None
    elif y.ndim == 1:
        y, y_test = names[y], names[y_test]
    columns, test_columns = groups(dataset.columns), groups(dataset.test_columns)
    tested = len(y_test) > 0
    if tested and dataset.held_out:
        x, y = concatenate_samples([x, dataset.x_test]), np.concatenate([y, y_test])
        columns = {name: np.concatenate([v, test_columns[name]]) for name, v in columns.items()}
        tested = False
    return RawSamples(
        packed(x),
        y,
        packed(dataset.x_test) if tested else None,
        y_test if tested else None,
        classes,
        columns,
        test_columns if tested else {},
        intake.notes,
        target,
        group,
        form=intake.form if intake.form.get("kind") == "table" else {},
        source_dtype="" if layout else intake.dtype,
        layout="channels first",
    )


def check_columns(sets: Sequence[tuple[str, RawSamples]]) -> Mapping[str, Any]:
    """How the columns of all tables among these sets became samples, {} if one set is not a table.

    Raises DataError (E403) if the numbers of two tables mean different columns or words.
    """
    tables = [(name, raw.form["columns"]) for name, raw in sets if raw.form]
    for name, columns in tables[1:]:
        first, expected = tables[0]
        for (one, kinds), (other, words) in zip_longest(expected, columns, fillvalue=("", [])):
            if (one, list(kinds)) != (other, list(words)):
                forms = [
                    f"{excerpt(c, 40)}{f' with the words {abbreviate(ws, 5)}' if ws else ''}"
                    for c, ws in ((one, kinds), (other, words))
                ]
                fault = f"{excerpt(first)} and {excerpt(name)} become other numbers: {' and '.join(forms)}"
                remedy = "give all as DataFrames, or as one table with a column of clients"
                raise DataError("E403", f"the tables of {fault}; {remedy}.")
    return sets[0][1].form if len(tables) == len(sets) else {}


def share_numbering(sets: Sequence[tuple[str, RawSamples]]) -> list[RawSamples]:
    """The sets with one list of classes. Where sets have other lists, each with its own numbers, labels
    become the names of the classes, those of the first set first.

    sets: the sets, each with its name for messages. Raises DataError (E404) if the names do not identify the
    classes.
    """
    lists = {of: raw.classes for of, raw in sets if raw.classes and array_of(raw.y).ndim < 3}
    among = tuple(dict.fromkeys(name for names in lists.values() for name in names))
    if len({*lists.values()}) < 2:
        return [raw for _, raw in sets]

    def words(y: Any, names: ClassNames, of: str) -> Any:
        values = None if y is None else array_of(y)
        if values is None or values.dtype.kind not in "biuf":
            return y
        if values.ndim > 1 or len({*names}) < len(names):
            text = f"the classes of {excerpt(of)} and of others differ"
            raise DataError("E404", f"{text}; give all sets the same, each name once.")
        return np.array(names)[values.astype(np.int64)]

    note: Note = ("labels", "classes were matched by their names, because sets number them differently")
    shared = list[RawSamples]()
    for of, raw in sets:
        if names := lists.get(of):
            y, y_test = (words(labels, names, of) for labels in (raw.y, raw.y_test))
            raw = replace(raw, y=y, y_test=y_test, classes=among, notes=(*raw.notes, note))
        shared.append(raw)
    return shared


def from_clients(clients: Mapping[str, RawSamples], common_test: RawSamples | None = None) -> Dataset:
    """One set of the sets of several clients; the column `client` holds each sample's client.

    common_test: samples that belong to no client. Raises DataError (E403) for samples of unequal shapes, and
    if only some clients bring a test set.
    """
    names, tested = list(clients), [("the test set", common_test)] if common_test else []
    raws = share_numbering([*clients.items(), *tested])
    sets, common_test = dict(zip(names, raws)), raws[-1] if tested else None
    brings_test = {name: raw.x_test is not None for name, raw in sets.items()}
    if common_test is not None and any(brings_test.values()):
        raise DataError("E403", "a client brings a test set, and there is one for all; give one kind.")
    if len({*brings_test.values()}) > 1:
        lacks = next(name for name, brings in brings_test.items() if not brings)
        raise DataError("E403", f"'{lacks}' brings no test set, and other clients do; give all of them one.")
    form = check_columns([*sets.items(), *([("the test set", common_test)] if common_test else [])])
    parts, groups = [_join_part({n: (r.x, r.y) for n, r in sets.items()})], [_join_groups(sets, "columns")]
    if all(brings_test.values()):
        parts.append(_join_part({n: (r.x_test, r.y_test) for n, r in sets.items()}))
        groups.append(_join_groups(sets, "test_columns"))
    (x, y, owner), *test = parts
    source_dtype, scaling = _common_type(sets)
    notes = [*(note for raw in sets.values() for note in raw.notes), *scaling]
    classes = next((raw.classes for raw in sets.values() if raw.classes), None)
    if classes and len({len(raw.classes) for raw in sets.values() if raw.classes}) > 1:
        remedy = "give every client the same: unskew.data.arrays(..., classes=...)"
        raise DataError("E404", f"clients' masks have different numbers of classes; {remedy}.")
    if not isinstance(x, PackedSamples) and y.ndim == 3 and x.ndim == 4 and y.dtype.kind in "biuf":
        origins = [MaskOrigin(np.array(names)[of], lambda _: "given as arrays") for _, _, of in parts]
        ys, classes = as_masks("clients", [y for _, y, _ in parts], classes, notes, origins)
        y, test = ys[0], [(x, y, of) for (x, _, of), y in zip(test, ys[1:])]
    orders: list[AxisOrder] = sorted({raw.layout for raw in raws}, key=["auto", "channels first"].count)
    if len(orders) > 1 and orders[0] not in ("auto", "channels first"):
        fault = f"layout='{orders[0]}' orders axes of arrays, and some clients' are read already"
        raise DataError("E403", f"{fault}.")
    joined = RawSamples(
        x,
        y,
        classes=classes,
        columns={CLIENT_COLUMN: owner, **groups[0]},
        notes=tuple(dict.fromkeys(notes)),
        target=_common_target(sets),
        group=next(iter(groups[0]), ""),
        form=form,
        source_dtype=source_dtype,
        layout="auto" if "auto" in orders else orders[0],
    )
    if test:
        test_columns = {CLIENT_COLUMN: test[0][2], **groups[1]}
        joined = replace(joined, x_test=test[0][0], y_test=test[0][1], test_columns=test_columns)
    if common_test is not None:
        joined = replace(joined, x_test=common_test.x, y_test=common_test.y)
    dataset = joined.dataset("clients").with_notes(
        ("sites", f"{len(names)} clients brought sets of their own")
    )
    if empty := [str(n) for n, raw in sets.items() if not len(raw.y)]:
        dataset = dataset.with_notes(("left out", f"{abbreviate(empty)}, without training samples"))
    assert dataset.intake
    labels = {**dataset.labels, CLIENT_COLUMN: tuple(names)}
    return replace(dataset, labels=labels, intake=replace(dataset.intake, divided=CLIENT_COLUMN))


def _join_groups(
    sets: Mapping[str, RawSamples], part: Literal["columns", "test_columns"]
) -> dict[str, np.ndarray]:
    """The column of groups of all clients, [N], {} without one."""
    column = next((raw.group for raw in sets.values() if raw.group), "")
    values = list[str]()
    for name, raw in sets.items():
        y = raw.y if part == "columns" else raw.y_test
        own = getattr(raw, part).get(raw.group, [f"{part} {i}" for i in range(len(y))])
        values += [f"{name}/{value}" for value in own]
    return {column: np.array(values)} if column else {}


def _common_target(sets: Mapping[str, RawSamples]) -> Target | None:
    """The target of clients that bring numbers. Raises DataError (E404) if clients differ in it."""
    (first, target), *others = [(name, raw.target) for name, raw in sets.items()]
    for name, other in others:
        same = (target and (target.name, target.given)) == (other and (other.name, other.given))
        if not same or (target and target.given and target != other):
            texts = [f"the target {t.name}" if t else "classes" for t in (target, other)]
            remedy = "give all one target, with the same constants"
            raise DataError("E404", f"'{first}' learns {texts[0]}, '{name}' {texts[1]}; {remedy}.")
    return target


def _join_part(
    by_client: Mapping[str, tuple[Any, Any]],
) -> tuple[np.ndarray | PackedSamples, np.ndarray, np.ndarray]:
    """(samples, labels, number of the client) of all clients."""
    several = {name: are_inputs(x, y) for name, (x, y) in by_client.items()}
    if any(several.values()) and not all(several.values()):
        single = next(name for name, flag in several.items() if not flag)
        raise DataError("E403", f"'{single}' has samples with one input, other clients with several.")
    packed = {n: pack(x, f"client '{n}'") for n, (x, _) in by_client.items() if several[n]}
    for name, part in packed.items():
        first = next(iter(packed))
        if part.layout != packed[first].layout:
            text = layout_difference(packed[first].layout, part.layout)
            raise DataError("E403", f"samples of '{first}' and '{name}' have other inputs: {text}.")
    x = [
        packed[n].x if n in packed else scale_samples(sample_array(x, f"client '{n}'"), n)
        for n, (x, _) in by_client.items()
    ]
    y = [array_of(labels) for _, labels in by_client.values()]
    first = next(iter(by_client))
    for name, samples_, labels in zip(by_client, x, y):
        if not labels.ndim:
            raise DataError(
                "E404", f"the labels of '{name}' are {excerpt(labels.item())}; give one a sample."
            )
        if samples_.shape[1:] != x[0].shape[1:]:
            shapes = f"{list(x[0].shape[1:])}, those of '{name}' {list(samples_.shape[1:])}"
            raise DataError("E403", f"samples of '{first}' are {shapes}; all clients need one shape.")
        if len(samples_) != len(labels):
            fault = f"{len(samples_)} samples but {len(labels)} labels"
            raise DataError("E403", f"'{name}': {fault}; give one label per sample.")
        if labels.shape[1:] != y[0].shape[1:]:
            forms = f"{list(y[0].shape)} at '{first}' and {list(labels.shape)} at '{name}'"
            raise DataError("E404", f"labels are {forms}; give all clients one form.")
    if any(one.dtype.kind in "OUS" for one in y):
        y = [one.astype(str) for one in y]
    joined: Any = concatenate_samples(x)
    if packed:
        joined = PackedSamples(joined, packed[first].layout, packed[first].notes)
    return joined, np.concatenate(y), np.repeat(np.arange(len(x)), [len(one) for one in x])


def _common_type(sets: Mapping[str, RawSamples]) -> tuple[str, list[Note]]:
    """(the original type of the samples, float32 if clients differ; notes on their scaling)."""
    types, notes = dict[str, None](), list[Note]()
    for name, raw in sets.items():
        if are_inputs(raw.x, raw.y):
            return "", []
        array = sample_array(raw.x, f"client '{name}'")
        types[raw.source_dtype or str(array.dtype.newbyteorder("="))] = None
        if bits := bits_of(array):
            notes.append(("scaled", f"{bits}-bit whole numbers were divided by {(1 << bits) - 1:,}"))
    if len(types) > 1:
        notes.append(("note", f"samples of clients are of different types: {abbreviate(list(types))}"))
    return ("float32" if len(types) > 1 else next(iter(types))), notes
