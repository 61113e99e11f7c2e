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

from unskew.data.kinds.column_roles import INDEPENDENT
from unskew.data.readers.from_arrays import arrays
from unskew.data.samples.conversion import (
    AxisOrder,
    array_of,
    bits_of,
    channels_first,
    sample_array,
    scale_samples,
)
from unskew.data.samples.dataset import SAMPLE_WEIGHT, Dataset, Target
from unskew.data.samples.packing import PackedSamples, are_inputs, pack
from unskew.data.samples.reading_notes import Intake, Note, abbreviate
from unskew.data.storage.rows_on_disk import concatenate_samples, select_samples
from unskew.errors import DataError, excerpt

ClassNames = tuple[str, ...]


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

    def dataset(self, name: str, group: Any = None) -> Dataset:
        """The set of these samples; raises the errors of `arrays`. group: the group of each training sample,
        or of each training and then each test sample, instead of a column."""
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
            group=self.group or INDEPENDENT if group is None else group,
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

    def with_test(self, test: RawSamples) -> RawSamples:
        """The set with the samples of another as its test part, and the facts that both have, such as
        sites."""
        facts = {name: values for name, values in test.columns.items() if name in self.columns}
        gaps = {**test.gaps, **self.gaps}
        return replace(self, x_test=test.x, y_test=test.y, test_columns=facts, gaps=gaps)


def raw_samples_of(dataset: Dataset) -> RawSamples:
    """A set that has been read, with its labels as words again, so that they can be numbered together with
    others'.

    Test samples that were split off, because the source has none, are among the training samples again.
    """
    layout, group, intake = dataset.layout, dataset.group_column, dataset.intake or Intake()
    names, words = np.array(dataset.classes), np.array(dataset.labels.get(group, ()))

    def groups(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = {name: columns[name] for name in (group, SAMPLE_WEIGHT) if name in columns}
        return {name: words[v] if name == group and len(words) else v for name, v in kept.items()}

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
        gaps=intake.gaps,
        source_dtype="" if layout else intake.dtype,
        layout="channels first",
    )


def check_columns(sets: Sequence[tuple[str, RawSamples]]) -> Mapping[str, Any]:
    """How the columns of all tables among these sets became samples, {} if one set is not a table. Missing
    values are filled with the median of the sets' medians.

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
    if len(tables) < len(sets):
        return {}
    medians = [raw.form["missing"] for _, raw in sets if "missing" in raw.form]
    common = {c: float(np.median([one[c] for one in medians if c in one])) for of in medians for c in of}
    return {**sets[0][1].form, **({"missing": common} if medians else {})}


def share_numbering(sets: Sequence[tuple[str, RawSamples]]) -> list[RawSamples]:
    """The sets with one list of classes. If their lists differ, so that one number means different classes,
    labels become the names of the classes, those of the first set first.

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
    entries = [*clients.items(), *([("the test set", common_test)] if common_test else [])]
    form, raws, orders = check_columns(entries), share_numbering(entries), {raw.layout for _, raw in entries}
    if len(orders) == 1 and orders <= {"channels last", "time first"}:
        form = {"axes": raws[0].layout}
    sets = dict(zip(clients, raws))
    lacking = [name for name, raw in sets.items() if raw.x_test is None]
    if common_test and len(lacking) < len(sets):
        raise DataError("E403", "a client brings a test set, and there is one for all; give one kind.")
    if 0 < len(lacking) < len(sets):
        fault = f"'{lacking[0]}' brings no test set, and other clients do"
        raise DataError("E403", f"{fault}; give all of them one.")
    notes = [note for raw in sets.values() for note in raw.notes]
    if len({len(raw.classes) for raw in sets.values() if raw.classes}) > 1:
        remedy = "give every client the same: unskew.data.arrays(..., classes=...)"
        raise DataError("E404", f"clients' masks have different numbers of classes; {remedy}.")
    x, y, columns, source_dtype = _join_part(sets, "", notes)
    joined = RawSamples(
        x,
        y,
        classes=next((raw.classes for raw in sets.values() if raw.classes), None),
        columns={**columns, **_join_weights(sets)},
        target=_common_target(sets),
        group=next((raw.group for raw in sets.values() if raw.group), ""),
        form=form,
        gaps=_join_gaps(sets),
        source_dtype=source_dtype,
        layout="auto" if all(raw.layout == "auto" for raw in raws) else "channels first",
    )
    if common_test:
        test = raws[-1]
        x_test = test.x if are_inputs(test.x, test.y) else _turned(test.x, test.layout, "the test set")
        facts = {joined.group: test.columns[joined.group]} if joined.group in test.columns else {}
        joined = replace(joined, x_test=x_test, y_test=test.y, test_columns=facts)
    elif not lacking:
        x_test, y_test, test_columns, _ = _join_part(sets, "_test", [])
        joined = replace(joined, x_test=x_test, y_test=y_test, test_columns=test_columns)
    notes.append(("sites", f"{len(sets)} clients brought sets of their own"))
    if empty := [name for name, raw in sets.items() if not len(raw.y)]:
        notes.append(("left out", f"{abbreviate(empty)}, without training samples"))
    dataset = replace(joined, notes=tuple(dict.fromkeys(notes))).dataset("clients")
    assert dataset.intake
    labels = {**dataset.labels, CLIENT_COLUMN: tuple(sets)}
    return replace(dataset, labels=labels, intake=replace(dataset.intake, divided=CLIENT_COLUMN))


def _join_gaps(sets: Mapping[str, RawSamples]) -> dict[str, dict[str, int]]:
    """The numbers of missing values that were filled, by column and client."""
    gaps: dict[str, dict[str, int]] = {}
    for name, raw in sets.items():
        for column, counts in raw.gaps.items():
            gaps.setdefault(column, {})[name] = sum(counts.values())
    return gaps


def _turned(x: Any, layout: AxisOrder, name: str) -> np.ndarray:
    """Samples as an array with its channels first."""
    return channels_first(sample_array(x, name), layout, name)


def _join_weights(sets: Mapping[str, RawSamples]) -> dict[str, np.ndarray]:
    """The weights of all clients' samples, [N], by the name of their column, {} without. Raises DataError
    (E403) if only some clients bring weights."""
    lacking = [name for name, raw in sets.items() if SAMPLE_WEIGHT not in raw.columns]
    if len(lacking) == len(sets):
        return {}
    if lacking:
        fault = f"'{lacking[0]}' brings no weights of samples, and other clients do"
        raise DataError("E403", f"{fault}; give all of them some.")
    return {SAMPLE_WEIGHT: np.concatenate([raw.columns[SAMPLE_WEIGHT] for raw in sets.values()])}


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
    sets: Mapping[str, RawSamples], suffix: Literal["", "_test"], notes: list[Note]
) -> tuple[Any, np.ndarray, dict[str, np.ndarray], str]:
    """(samples, labels, columns of clients and of groups, the original type of the samples, "" for several
    inputs) of the training or the test parts of all clients; adds notes on scaling."""
    parts = {name: (getattr(raw, f"x{suffix}"), getattr(raw, f"y{suffix}")) for name, raw in sets.items()}
    single = [name for name, part in parts.items() if not are_inputs(*part)]
    if 0 < len(single) < len(parts):
        raise DataError("E403", f"'{single[0]}' has samples with one input, other clients with several.")
    xs, ys, types, packs = list[np.ndarray](), list[np.ndarray](), dict[str, None](), list[PackedSamples]()
    first = next(iter(parts))
    for name, (x, labels) in parts.items():
        if single:
            array = _turned(x, sets[name].layout, f"client '{name}'")
            types[sets[name].source_dtype or str(array.dtype.newbyteorder("="))] = None
            if bits := bits_of(array):
                notes.append(("scaled", f"{bits}-bit whole numbers were divided by {(1 << bits) - 1:,}"))
            xs.append(scale_samples(array, name))
        else:
            packs.append(pack(x, f"client '{name}'"))
            xs.append(packs[-1].x)
            if packs[-1].layout != packs[0].layout:
                text = f"{packs[0].layout} and {packs[-1].layout}"
                raise DataError("E403", f"samples of '{first}' and '{name}' have other inputs: {text}.")
        y = array_of(labels)
        ys.append(y)
        if not y.ndim:
            raise DataError("E404", f"the labels of '{name}' are {excerpt(y.item())}; give one a sample.")
        if xs[-1].shape[1:] != xs[0].shape[1:]:
            shapes = f"{list(xs[0].shape[1:])}, those of '{name}' {list(xs[-1].shape[1:])}"
            raise DataError("E403", f"samples of '{first}' are {shapes}; all clients need one shape.")
        if len(xs[-1]) != len(y):
            fault = f"{len(xs[-1])} samples but {len(y)} labels"
            raise DataError("E403", f"'{name}': {fault}; give one label per sample.")
        if y.shape[1:] != ys[0].shape[1:]:
            forms = f"{list(ys[0].shape)} at '{first}' and {list(y.shape)} at '{name}'"
            raise DataError("E404", f"labels are {forms}; give all clients one form.")
    if any(one.dtype.kind in "OUS" for one in ys):
        ys = [one.astype(str) for one in ys]
    if len(types) > 1:
        notes.append(("note", f"samples of clients are of different types: {abbreviate(list(types))}"))
    joined: Any = concatenate_samples(xs)
    columns = {CLIENT_COLUMN: np.repeat(np.arange(len(xs)), list(map(len, xs))), **_join_groups(sets, suffix)}
    if packs:
        return PackedSamples(joined, packs[0].layout, packs[0].notes), np.concatenate(ys), columns, ""
    return joined, np.concatenate(ys), columns, "float32" if len(types) > 1 else next(iter(types))


def _join_groups(sets: Mapping[str, RawSamples], suffix: Literal["", "_test"]) -> dict[str, np.ndarray]:
    """The column of groups of all clients, [N], {} without one, and of test parts if that of a client is not
    known. A group may have samples at several clients; those of a client without groups are independent."""
    column, parts = next((raw.group for raw in sets.values() if raw.group), ""), list[np.ndarray]()
    for name, raw in sets.items() if column else ():
        facts = raw.test_columns if suffix else raw.columns
        if raw.group and raw.group not in facts:
            return {}
        single = [f"{name}{suffix}/{i}" for i in range(0 if raw.group else len(getattr(raw, f"y{suffix}")))]
        parts.append(np.asarray(facts[raw.group] if raw.group else single))
    return {column: np.concatenate(parts)} if column else {}
