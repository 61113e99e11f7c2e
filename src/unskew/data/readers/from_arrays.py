"""A data set from a user's arrays, tensors or memory-mapped files, with one input a sample or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.data.kinds.column_roles import (
    GROUP_COLUMN,
    INDEPENDENT,
    column_named,
    column_question,
    number_columns,
    overlap_warning,
    site_column_in,
)
from unskew.data.kinds.labels import (
    Labels,
    are_several_numbers,
    are_token_labels,
    read_labels,
    read_multilabels,
    read_targets,
    read_token_labels,
)
from unskew.data.samples.conversion import (
    AxisOrder,
    array_of,
    bits_of,
    channels_first,
    check_axes,
    sample_array,
    scale_samples,
)
from unskew.data.samples.dataset import SAMPLE_WEIGHT, Dataset, Target, with_test_set
from unskew.data.samples.packing import are_inputs, input_column, pack
from unskew.data.samples.reading_notes import Intake, Note, quantity
from unskew.data.storage.rows_on_disk import first_duplicates, row_digests
from unskew.errors import DataError
from unskew.formats.input_layout import Layout
from unskew.formats.specs import split_names

COMPARED_SCALES, SCALE_RATIO = 1_000, 10.0
"""Number of samples with which scales are compared, and the largest accepted ratio of training and test
samples."""


def arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    classes: Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    test_columns: Mapping[str, Any] | None = None,
    name: str = "arrays",
    test: float = 0.2,
    layout: AxisOrder = "auto",
    notes: Sequence[Note] = (),
    target: str | Target | None = None,
    group: Any = "",
    weight: Any = "",
) -> Dataset:
    """A set from arrays, tensors or lists.

    x: [N, ...], channels first; uint8 is divided by 255, uint16 by 65,535, except in columns [N, columns];
    other numbers stay. Also the path of a .npy file. Several inputs are a dictionary or a tuple of such
    arrays, see unskew.data.samples.packing.
    y: labels [N], whole numbers from 0, words or one-hot rows; or masks [N, H, W] or [N, 1, H, W]: see
    unskew.data.kinds.labels, masks. Rows [N, L] of zeros and ones, some with none or several ones, are L
    labels of which a sample may have any number. Labels [N, T] for samples [N, T] are one for each token,
    -100 for a token that does not count.
    target: the name of y if it is a number to predict, [N], instead of a class; it is standardised by its
    mean and standard deviation, or the constants of a `Target`. "fever,cough": the names of the columns of y,
    [N, 2], which are labels if they are zeros and ones, and else numbers to predict.
    x_test, y_test: in the form of x and y; without them the share `test` of every class (at every site) is
    held out.
    columns: facts per row, [N] each, by which clients can be formed (`--skew column:NAME`). test_columns: the
    facts of x_test, which gives every client test rows.
    layout: the order of the axes of x, of which some shapes leave a doubt; after "channels last" and "time
    first" the model receives the channels, or features, first. notes: on the source.
    group: the column of groups, such as patients, or the group of each training sample, [N], or of each
    training and then each test sample, [N + n]. No split divides a group. "none" if samples are independent;
    otherwise a column that looks like one of groups is pointed out.
    weight: the column of weights of training samples in the loss, or the weights, [N]; numbers of at least 0.
    Raises DataError: E403 for shapes, E404 for labels, E405 for NaN and infinity, E401 and E402 for files.
    """
    if x is None or y is None or (x_test is None) != (y_test is None):
        raise DataError("E403", f"{name}: x and y belong together, and x_test and y_test; give both.")
    if not 0 <= test < 1:
        raise DataError("E403", f"{name}: test must be at least 0 and below 1; got {test}.")
    samples, inputs, pack_notes = sample_parts(name, (x, y), (x_test, y_test), layout != "auto")
    y, y_test = array_of(y), None if y_test is None else array_of(y_test)
    if inputs:  # each input has been checked
        layout = "channels first"
    samples = [channels_first(part, layout, name) for part in samples]
    if layout == "auto" and np.shape(y) == samples[0].shape and samples[0].ndim == 3:
        check_axes(name, samples[0], masks=True)
    places = [token_input(part, inputs, y) for part in samples] if inputs else samples
    labels = _read_labels(name, (y, y_test), places, classes, target)
    if layout == "auto":
        for part in samples:
            check_axes(name, part, masks=labels.y.ndim == 3)
    x, *tests = [scale_samples(part, name) for part in samples]
    columns, test_columns, group = with_groups(name, group, columns, test_columns, list(map(len, samples)))
    columns, test_columns = _with_weights(name, weight, columns, test_columns)
    facts = number_columns(name, columns, test_columns, group)
    dtype = "" if inputs else str(samples[0].dtype.newbyteorder("="))
    notes = (*notes, *pack_notes, *_scaling_notes(samples), *labels.notes)
    form = {"axes": layout} if layout in ("channels last", "time first") else {}
    notes += tuple(_group_notes(facts, group, tested=bool(tests)))
    if SAMPLE_WEIGHT in facts[0]:
        low, high = facts[0][SAMPLE_WEIGHT].min(), facts[0][SAMPLE_WEIGHT].max()
        weighted: Note = ("note", f"training samples count by their weights in the loss, {low:g} to {high:g}")
        notes += (weighted,)
    intake = Intake(dtype, notes, form=form, unnamed=labels.unnamed)
    if tests:
        intake = intake.with_notes(*_duplicate_notes(x, tests[0]), *_scale_notes(x, tests[0]))
    elif len(x) != len(labels.y):
        fault = f"{len(x)} samples but {len(labels.y)} labels"
        raise DataError("E403", f"{name}: {fault}; give one label per sample.")
    else:
        facts = (facts[0], {n: v[:0] for n, v in facts[0].items()}, facts[2])
    dataset = Dataset(
        name,
        x,
        labels.y,
        tests[0] if tests else x[:0],
        labels.y_test if tests else labels.y[:0],
        labels.classes,
        *facts,
        intake=intake,
        target=labels.target,
        layout=inputs,
        group_column="" if group == INDEPENDENT else group,
    )
    return dataset if tests or not test else _hold_out(dataset, test)


Columns = Mapping[str, Any] | None


def with_groups(
    name: str, group: Any, columns: Columns, test_columns: Columns, sizes: Sequence[int]
) -> tuple[Columns, Columns, str]:
    """(the columns of both parts with the groups among them, the column of groups).

    sizes: number of samples of each part. Raises DataError (E403) for a column that does not exist, and for
    another number of groups than samples.
    """
    if isinstance(group, str):
        named = group not in ("", INDEPENDENT)
        return columns, test_columns, column_named(columns or {}, group, name) if named else group
    values = array_of(group)
    if values.ndim != 1 or len(values) not in (sizes[0], sum(sizes)):
        fault = f"group is {list(values.shape)} for {' and '.join(map(str, sizes))} samples"
        raise DataError("E403", f"{name}: {fault}; give the group of each sample, [N].")
    if len(values) > sizes[0]:
        test_columns = {**(test_columns or {}), GROUP_COLUMN: values[sizes[0] :]}
    return {**(columns or {}), GROUP_COLUMN: values[: sizes[0]]}, test_columns, GROUP_COLUMN


def _with_weights(name: str, weight: Any, columns: Columns, test_columns: Columns) -> tuple[Columns, Columns]:
    """The columns of both parts with the weights of samples under their name in a set. weight: as for
    `arrays`. Raises DataError (E403) for a column that does not exist."""
    if not isinstance(weight, str):
        return {**(columns or {}), SAMPLE_WEIGHT: weight}, test_columns
    if not weight:
        return columns, test_columns
    column = column_named(columns or {}, weight, name)
    train, test = (
        {SAMPLE_WEIGHT if n == column else n: v for n, v in (part or {}).items()}
        for part in (columns, test_columns)
    )
    return train, test if test_columns is not None else None


def _group_notes(
    facts: tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, tuple[str, ...]]],
    group: str,
    *,
    tested: bool,
) -> list[Note]:
    """The number of groups, or a warning if the test set divides them, or may do so; without groups, the
    question whether a column is one."""
    train, test, words = facts
    if group == INDEPENDENT:
        return []
    if not group:
        # a column of words is numbered; the question depends on the words
        train, test = (
            {c: np.array(words[c])[v] if c in words else v for c, v in p.items()} for p in (train, test)
        )
        if not tested:
            return column_question(train)
        both = {c: np.concatenate([values, test[c]]) for c, values in train.items() if c in test}
        sizes = [len(next(iter(part.values()), ())) for part in (train, test)]
        question = column_question(both, np.repeat([False, True], sizes))
        return question or column_question({c: v for c, v in train.items() if c not in test})
    number = len(np.unique(train[group]))
    text = f"{quantity(len(train[group]), 'sample')} of {quantity(number, 'group')} ('{group}')"
    if tested and group not in test:
        fault = "the groups of the test samples are not given, so some may also be trained on"
        return [("warning", f"{text}; {fault}; give them, too")]
    warning = overlap_warning(train[group], test[group], group) if tested else []
    return warning or [("note", f"{text}, which no split divides")]


def _read_labels(
    name: str,
    ys: tuple[Any, Any],
    xs: Sequence[np.ndarray],
    classes: Sequence[str] | None,
    target: str | Target | None,
) -> Labels:
    """The labels: classes, or numbers if a target is named, or several labels a sample if it names
    several columns of zeros and ones."""
    if target is None:
        if are_token_labels(ys[0], xs[0], classes):
            return read_token_labels(name, xs, ys, classes)
        return read_labels(name, ys, xs[0].ndim, classes)
    names = split_names(target if isinstance(target, str) else target.name)
    if len(names) > 1 and np.ndim(ys[0]) == 2 and not are_several_numbers(ys):
        return read_multilabels(name, ys, names)
    return read_targets(name, ys, classes, target)


def _hold_out(dataset: Dataset, share: float) -> Dataset:
    """The set with a share of it as test set; identical images stay on one side."""
    x = dataset.x
    site = site_column_in(c for c in dataset.columns if c != dataset.group_column)
    arrays_within = dataset.layout and any(len(item.shape) > 1 for item in dataset.layout.inputs)
    first = None if x.ndim == 2 and not arrays_within else first_duplicates(x)
    split = with_test_set(dataset, share, site, first)
    notes = _duplicate_notes(split.x, split.x_test)
    copies = 0 if first is None else int((first != np.arange(len(first))).sum())
    if copies and not notes:
        text = f"{quantity(copies, 'sample')} of {len(x):,} identical to another; they are on one side of"
        notes.append(("note", f"{text} the test split"))
    return split.with_notes(*notes)


def _scaling_notes(parts: Sequence[np.ndarray]) -> list[Note]:
    """Notes on the scaling of samples of these types."""
    notes: list[Note] = [
        ("scaled", f"{bits}-bit whole numbers were divided by {(1 << bits) - 1:,}")
        for bits in dict.fromkeys(map(bits_of, parts))
        if bits
    ]
    if len(kinds := {str(x.dtype.newbyteorder("=")) for x in parts}) > 1:
        text = f"training and test samples are of different types: {' and '.join(sorted(kinds))}"
        notes.append(("note", text))
    return notes


def _duplicate_notes(x: np.ndarray, x_test: np.ndarray) -> list[Note]:
    """A note on test samples that also occur in training."""
    if not len(x_test) or x.shape[1:] != x_test.shape[1:]:
        return []
    twice = int(np.isin(row_digests(x_test), row_digests(x)).sum())
    text = f"{quantity(twice, 'test sample')} of {len(x_test):,} also among the training samples"
    return [("note", text)] if twice else []


def _scale_notes(x: np.ndarray, x_test: np.ndarray) -> list[Note]:
    """A note on test samples of far larger or smaller numbers than the training samples."""
    if not len(x) or not len(x_test):
        return []
    parts = (part[:: max(1, len(part) // COMPARED_SCALES)] for part in (x, x_test))
    train, test = (float(np.abs(part).mean(dtype=np.float64)) for part in parts)
    if max(train, test) <= SCALE_RATIO * min(train, test):
        return []
    text = f"test samples are {test:.3g} in mean size, training samples {train:.3g}"
    return [("note", f"{text}: are both scaled alike?")]


SamplesWithLabels = tuple[Any, Any]
"""(x, y), not yet converted."""


def sample_parts(
    name: str, train: SamplesWithLabels, test: SamplesWithLabels, as_is: bool
) -> tuple[list[np.ndarray], Layout | None, tuple[Note, ...]]:
    """(the training samples and, if there are any, the test samples; the layout of several inputs; notes).

    as_is: accept inputs with shapes that look like images with channels last or missing.
    Raises DataError (E403) if training and test samples differ in their inputs, and the errors of
    `sample_array` and `pack`.
    """
    parts = [part for part in (train, test) if part[0] is not None]
    several = [are_inputs(*part) for part in parts]
    if not any(several):
        return [sample_array(x, name) for x, _ in parts], None, ()
    if not all(several):
        raise DataError("E403", f"{name}: only one of training and test samples has several inputs.")
    rows = [pack(x, label, as_is) for (x, _), label in zip(parts, (name, f"{name}, test samples"))]
    if rows[0].layout != rows[-1].layout:
        fault = f"training and test samples differ: {rows[0].layout} and {rows[-1].layout}"
        raise DataError("E403", f"{name}: {fault}; give both alike.")
    return [part.x for part in rows], rows[0].layout, rows[0].notes


def token_input(x: np.ndarray, layout: Layout, y: np.ndarray) -> np.ndarray:
    """The input of rows [N, D] that is a sequence of whole numbers with a place for each label y [N, places],
    [N, places].

    NaN if only another kind of input has that many places; [N, 0] if none has.
    """
    places = y.shape[1] if y.ndim == 2 else 0
    for i, item in enumerate(layout.inputs):
        if item.shape == (places,) and item.kind == "int64":
            return input_column(layout, x, i)
    return np.full((len(x), places if places in layout.lengths else 0), np.nan, np.float32)
