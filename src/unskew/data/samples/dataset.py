"""A data set before it is dealt to clients: samples, labels or a target, and what every set must satisfy.
Letters: N samples, C classes, K targets, T tenths, G groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from unskew.data.samples import scaling
from unskew.data.samples.reading_notes import Intake, Note, abbreviate, quantity
from unskew.data.storage.rows_on_disk import Rows, is_streamed, map_samples, select_samples
from unskew.errors import DataError, UsageError, excerpt, printable
from unskew.formats.input_layout import Layout

TENTHS = 10
LARGEST_TARGET = 1e15
"""Squared errors of targets beyond this value are lost to rounding."""


Constants: TypeAlias = float | tuple[float, ...]
"""The center or scale of a target; a tuple of those of several targets."""


@dataclass(frozen=True)
class Target:
    """The name of a target, or the names of several, and the constants with which each is learnt, as
    (y - center) / scale.

    center, scale: of several targets a tuple of numbers. given: whether the user chose the constants;
    otherwise they are computed from the training samples.
    """

    name: str
    center: Constants = 0.0
    scale: Constants = 1.0
    given: bool = False

    def __post_init__(self) -> None:
        for field_, values in (("center", self.center), ("scale", self.scale)):
            if isinstance(values, list):  # of JSON
                object.__setattr__(self, field_, tuple(values))

    @staticmethod
    def from_settings(name: str, center: Constants | None = None, scale: Constants | None = None) -> Target:
        """The target that a user names. Raises UsageError (E109) if only one constant is given, or a scale is
        not above 0."""
        if center is None and scale is None:
            return Target(name)
        constants = [() if values is None else values for values in (center, scale)]
        sizes, numbers = [np.shape(values) for values in constants], np.hstack(constants)
        if sizes[0] != sizes[1] or not np.isfinite(numbers).all() or not (np.array(constants[1]) > 0).all():
            text = "center and scale belong together, and scale is above 0"
            raise UsageError("E109", f"{text}: a target is learnt as (y - center) / scale.")
        return Target(name, _constants(np.array(center)), _constants(np.array(scale)), given=True)

    def fit(self, y: np.ndarray, data: str) -> Target:
        """This target with the mean and deviation of training targets; unchanged if the user chose the
        constants.

        y: [N], or [N, K] of several targets. data: the set's name, for the message.
        Raises DataError (E404) if all values of a target are equal, because then there is nothing to learn,
        and for another number of constants than targets. With constants that all sites agreed on, the targets
        of one site may be equal.
        """
        if self.given:
            if np.shape(self.center) != y.shape[1:]:
                text = f"center is {self.center}, and {y[0].size} are predicted"
                raise DataError("E404", f"{data}: {text}; give a center and a scale for each, center=[1, 2].")
            return self
        for i, values in enumerate(np.atleast_2d(y.T)):
            if values.min() == values.max():
                name = self.name if y.ndim == 1 else self.name.split(",")[i].strip()
                text = f"the target '{name}' is {values[0]:g} in every training sample"
                raise DataError("E404", f"{data}: {text}, so there is nothing to learn.")
        center, scale = y.mean(0, dtype=np.float64), y.std(0, dtype=np.float64)
        return replace(self, center=_constants(center), scale=_constants(scale))


def _constants(values: np.ndarray) -> Constants:
    return tuple(values.astype(float).tolist()) if values.ndim else float(values)


def target_shape(classes: Sequence[str]) -> tuple[int, ...]:
    """The shape of one sample's targets: () for a single one, else (K,). classes: their names."""
    return () if len(classes) == 1 else (len(classes),)


def check_targets(name: str, y: np.ndarray, y_test: np.ndarray, classes: Sequence[str]) -> None:
    """Raises DataError (E404) unless targets are finite numbers, [N], or [N, K] of several. name: name of the
    set. classes: names of the targets."""
    shape = target_shape(classes)
    for part, values in (("training", y), ("test", y_test)):
        if values.shape[1:] != shape or values.dtype.kind != "f":
            needed = ", ".join(map(str, ("N", *shape)))
            text = f"{part} targets are {values.dtype} {list(values.shape)}; they must be numbers, [{needed}]"
            raise DataError("E404", f"{name}: {text}.")
        wrong = ~(np.abs(values) <= LARGEST_TARGET)
        if wrong.any():
            row, *place = np.argwhere(wrong)[0].tolist()
            subject = f"the target '{classes[place[0]]}'" if place else "the target"
            value, count = values[(row, *place)], int(wrong.sum())
            text = f"{subject} of {part} sample {row} is {value:g} ({count:,} such samples)"
            raise DataError("E404", f"{name}: {text}; fill it in, or leave the sample out.")


def _first_target(y: np.ndarray) -> np.ndarray:
    """The targets [N] by which samples are grouped: the first of several, [N, K]."""
    return y if y.ndim == 1 else y[:, 0]


def tenth_edges(y: np.ndarray) -> np.ndarray:
    """The limits between the tenths of these targets, ascending, [T - 1].

    Ten groups of equally many training samples, from the smallest targets (of several: of the first) to the
    largest, stand for classes where samples are drawn in proportion; fewer where values recur.
    """
    if not len(y):
        return np.zeros(0)
    y = _first_target(y)
    inner = np.unique(np.quantile(y.astype(np.float64), np.arange(1, TENTHS) / TENTHS))
    return inner[inner > y.min()]


def tenths(y: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The tenth of every target, int64 [N], from 0. cuts: the limits from `tenth_edges`."""
    return np.searchsorted(cuts, _first_target(y), side="right").astype(np.int64)


def tenth_names(cuts: np.ndarray) -> tuple[str, ...]:
    """The names of the tenths: `below 61`, `61 to 74`, `from 275`."""
    if not len(cuts):
        return ("all",)
    texts = [f"{c:.4g}" for c in cuts]
    return (f"below {texts[0]}", *(f"{a} to {b}" for a, b in pairwise(texts)), f"from {texts[-1]}")


CHECK_BLOCK = 1 << 24
"""Number of values checked at a time, so that checking a memory-mapped file never loads all of it."""
NO_LABEL = -1
"""The label of a token that does not count."""


def check_labels(
    name: str,
    y: np.ndarray,
    y_test: np.ndarray,
    classes: int,
    shape: tuple[int, ...],
    layout: Layout | None = None,
) -> None:
    """Raises DataError (E404) for labels that do not fit the samples or the number of classes.

    Labels, or masks as large as the samples, are whole numbers from 0 to classes - 1 (or -1 for a token that
    does not count), or truth values, bool [N, classes].
    name: name of the set. shape: shape of one sample. layout: of rows with several inputs; the labels of a
    row are then as many as one of its inputs has places.
    """
    if layout and y.ndim == 2:
        shape = y.shape[1:]
    if y.dtype.kind == "b":
        for labels in (y, y_test):
            if labels.dtype.kind != "b" or labels.shape[1:] != (classes,):
                text = f"truth values of labels are {labels.dtype} {list(labels.shape)}"
                raise DataError("E404", f"{name}: {text}; they must be bool [N, {classes}].")
        return
    for part, labels in (("training", y), ("test", y_test)):
        tokens = labels.ndim == 2 and len(shape) == 1
        fits = labels.ndim == y.ndim and (
            labels.ndim == 1 or labels.shape[1:] == (shape if tokens else shape[1:])
        )
        if not fits or not np.issubdtype(labels.dtype, np.integer):
            masks = f" or masks {['N', *shape[1:]]}".replace("'", "") if len(shape) > 1 else ""
            text = f"{name}: {part} labels are {labels.dtype} {list(labels.shape)}"
            raise DataError("E404", f"{text}; they must be whole numbers, [N]{masks}.")
        wrong = np.argwhere((labels < (NO_LABEL if tokens else 0)) | (labels >= classes))
        if len(wrong):
            row, *place = wrong[0].tolist()
            subject = f"the label of {part} sample {row}" + (f" at {place}" if place else "")
            text = f"{classes} classes need labels from 0 to {classes - 1}"
            raise DataError("E404", f"{name}: {subject} is {labels[tuple(wrong[0])]}; {text}.")


def check_rows(name: str, layout: Layout | None, shape: tuple[int, ...], pixels: tuple[int, ...]) -> None:
    """Raises DataError unless rows with several inputs have the length of their layout (E403) and one label
    each, or one for each place of an input that is a sequence (E404).

    name: name of the set. shape: shape of one sample. pixels: shape of its label, () for a single one.
    """
    if layout and shape != (layout.width,):
        text = f"samples are {list(shape)}, and their inputs take {layout.width} numbers a row"
        raise DataError("E403", f"{name}: {text}.")
    if layout and pixels and not (len(pixels) == 1 and pixels[0] in layout.lengths):
        labels = ", ".join(map(str, ("N", *pixels)))
        text = f"labels are [{labels}], and no input of a sample has so many places ({layout})"
        raise DataError(
            "E404", f"{name}: {text}; give one label for each place of a sequence, or one a sample."
        )


def check_finite(name: str, part: str, x: np.ndarray) -> None:
    """Raises DataError (E405) for NaN or infinity, with the number of the first such sample. part:
    "training" or "test"."""
    if isinstance(x, Rows) and x.source.kind.kind in "iub":
        return
    if isinstance(x, Rows):  # they are read once, and the survey is kept for all callers
        wrong = np.flatnonzero(~(np.isfinite(x.survey.low) & np.isfinite(x.survey.high)))
        blocks = [slice(int(row), int(row) + 1) for row in wrong[:1]]
    else:
        step = max(1, CHECK_BLOCK // max(1, int(np.prod(x.shape[1:]))))
        blocks = [slice(begin, begin + step) for begin in range(0, len(x), step)]
    for rows in blocks:
        chunk = x[rows]
        if np.isfinite(chunk.sum(dtype=np.float64)):
            continue
        for row, *place in np.argwhere(~np.isfinite(chunk))[:1].tolist():
            value = chunk[(row, *place)]
            limit = "" if np.isnan(value) else " (numbers beyond 3.4e38 are infinite in float32)"
            text = f"{part} sample {rows.start + row} holds {value} at {place}{limit}"
            raise DataError("E405", f"{name}: {text}; correct or remove it.")


def check_numbers(values: np.ndarray, file: str) -> None:
    """Raises DataError (E405), which names the file, if the values contain NaN or infinity."""
    if not np.isfinite(values).all():
        value = values[~np.isfinite(values)][0]
        raise DataError("E405", f"{file} holds {value}, which is no number; correct it, or take it away.")


SAMPLE_WEIGHT = "sample weight"
"""The column of the weights of samples in the loss of training."""
LARGEST_WEIGHT = 1e6


def check_weights(name: str, values: np.ndarray, words: Sequence[str]) -> None:
    """Raises DataError (E405) unless weights of samples are numbers from 0 to LARGEST_WEIGHT, not all 0.

    name: name of the set. words: the words that the values stand for; () for numbers.
    """
    wrong = ~((values >= 0) & (values <= LARGEST_WEIGHT))
    fault = f"these hold words, such as {words[0]}" if words else "all of these are 0"
    if wrong.any():
        row = int(np.argmax(wrong))
        fault = f"that of training sample {row} is {values[row]:g}"
    if words or wrong.any() or not values.any():
        text = f"weights of samples are numbers from 0 to {LARGEST_WEIGHT:,.0f}"
        raise DataError("E405", f"{name}: {text}, and {fault}.")


def check_lengths(name: str, part: str, x: np.ndarray, y: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """Raises DataError (E403) unless every sample has one label and one value of every column."""
    if len(x) != len(y):
        raise DataError(
            "E403", f"{name}: {len(x)} {part} samples but {len(y)} labels; give one label per sample."
        )
    for column, values in columns.items():
        if len(values) != len(y):
            text = f"column '{column}' has {len(values)} values for {len(y)} {part} samples"
            raise DataError("E403", f"{name}: {text}; give one value per sample.")


def largest_remainder(quota: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Whole numbers near the quotas, int64, at most `limit`, which add up to the rounded sum of the quotas.

    Quotas are rounded down; each missing unit goes to the next largest remainder, the first of equal ones
    first. If `limit` is too small, the numbers add up to less.
    """
    counts = np.minimum(np.floor(quota).astype(np.int64), limit)
    missing = round(float(quota.sum())) - int(counts.sum())
    for i in np.argsort(-(quota - counts), kind="stable"):
        if missing <= 0:
            break
        extra = min(1, int(limit[i] - counts[i]))
        counts[i] += extra
        missing -= extra
    return counts


SHOWN = 8
"""The most classes that the text of a set names."""


class SampleForm:
    """Properties of samples and labels that follow from the arrays of a set."""

    x: np.ndarray
    y: np.ndarray
    applied: tuple[tuple[float, ...], tuple[float, ...]] | None
    layout: Layout | None
    name: str
    classes: tuple[str, ...]
    y_test: np.ndarray
    target: Target | None
    columns: dict[str, np.ndarray]
    group_column: str

    def __repr__(self) -> str:
        """A few lines: the numbers of samples, their shape, what is predicted, and the columns."""
        noun = "target" if self.target else "labels" if self.several else "classes"
        names, tests = list(map(printable, self.classes)), f"{len(self.y_test):,} test samples"
        lines = [
            f"<{type(self).__name__} {excerpt(self.name, 40)}: {len(self.y):,} training and {tests}",
            f"each     {self.layout or self.sample_text}",
            f"{noun:<9}{len(names)}: {abbreviate(names, SHOWN)}",
        ]
        for column, values in self.columns.items():
            role = "groups" if column == self.group_column else "column"
            lines.append(f"{role:<9}{excerpt(column, 40)}, {quantity(len(np.unique(values)), 'value')}")
        return "\n ".join(lines) + ">"

    @property
    def sample_text(self) -> str:
        """What one sample is: `3 channels of 128 x 128, with a mask`."""
        shape = self.shape
        if self.layout:
            count = len(self.layout.inputs)
            more = f", with labels of {self.y.shape[1]} tokens" if self.tokens else ""
            return f"{quantity(count, 'input')}, {'by name' if self.layout.named else 'by place'}{more}"
        if len(shape) == 3:
            kind = f"{quantity(shape[0], 'channel')} of {shape[1]} x {shape[2]}"
        else:
            kind = quantity(shape[0], "number") if len(shape) == 1 else " x ".join(map(str, shape))
        if self.tokens:
            return f"{quantity(shape[0], 'token')}, with a label each"
        return f"{kind}, with a mask" if self.masks else kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def several(self) -> bool:
        """Whether a sample has any number of labels, instead of one class."""
        return self.y.dtype.kind == "b"

    @property
    def masks(self) -> bool:
        """Whether every pixel or token has a label, instead of every sample."""
        return self.y.ndim > 1 and self.y.dtype.kind not in "bf"

    @property
    def tokens(self) -> bool:
        """Whether every token has a label; such sets also count as masks."""
        return self.masks and self.y.ndim == 2 and len(self.shape) == 1

    def from_natural(self, x: np.ndarray) -> np.ndarray:
        """Samples [N, ...] in natural units, scaled like the samples of this set."""
        return x if self.applied is None else scaling.apply(x, self.applied, self.layout)


@dataclass(frozen=True, repr=False)
class Dataset(SampleForm):
    """Training and test samples with their labels.

    x: [N, ...] float32, channels first, in natural units (images: [0, 1]); or `Rows` that are read when they
    are needed (unskew.data.storage.rows_on_disk).
    y: classes, int64 [N], 0 to C-1; or masks, whole numbers [N, H, W] for x [N, channels, H, W], a class for
    every pixel; or labels of tokens, int64 [N, T] for x [N, T], -1 for a token that does not count; or
    targets, float64 [N], or [N, K] of several; or several labels a sample, bool [N, C].
    classes: the names of the classes, or of the targets.
    columns: further facts of each training sample, such as subject or domain, [N] each, by which clients can
    be formed; SAMPLE_WEIGHT among them holds weights in the loss.
    test_columns: the facts of each test sample. labels: names of a column's values.
    mean, std: one number per channel (`scaling.py`), with which `standardised` scales the samples; None if
    there are none.
    applied: the mean and std with which the samples have been scaled already.
    intake: notes on how a user's data were read; None for a named set. target: set if labels are numbers to
    predict.
    layout: set if samples have several inputs, each sample then being a row of x, [N, D]. held_out: whether
    the test samples were taken from the training samples, because the source had none.
    group_column: the column of groups: samples with one value of it belong together, such as those of a
    patient, and no split separates them. "" if samples are independent.

    A target without constants gets those of the training samples.
    Raises DataError: E403 for lengths and shapes, E404 for labels, E405 for NaN and infinity.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    test_columns: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    source: str = ""
    applied: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    intake: Intake | None = None
    target: Target | None = None
    layout: Layout | None = None
    held_out: bool = False
    group_column: str = ""

    def __post_init__(self) -> None:
        check_lengths(self.name, "training", self.x, self.y, self.columns)
        check_lengths(self.name, "test", self.x_test, self.y_test, self.test_columns)
        if not len(self.y):
            raise DataError("E403", f"{self.name} has no training samples.")
        shape, test_shape = list(self.x.shape[1:]), list(self.x_test.shape[1:])
        if len(self.y_test) and shape != test_shape:
            text = f"training samples are {shape}, test samples {test_shape}"
            raise DataError("E403", f"{self.name}: {text}; they must have one shape.")
        check_rows(self.name, self.layout, self.shape, self.y.shape[1:] if self.masks else ())
        if SAMPLE_WEIGHT in self.columns:
            check_weights(self.name, self.columns[SAMPLE_WEIGHT], self.labels.get(SAMPLE_WEIGHT, ()))
        if self.target:
            check_targets(self.name, self.y, self.y_test, self.classes)
            object.__setattr__(self, "target", self.target.fit(self.y, self.name))
        else:
            check_labels(self.name, self.y, self.y_test, len(self.classes), self.shape, self.layout)
        check_finite(self.name, "training", self.x)
        check_finite(self.name, "test", self.x_test)

    def with_constants(self, inputs: Sequence[str] | None = None) -> Dataset:
        """The set with the mean and standard deviation of every channel of its training samples as `mean` and
        `std`.

        inputs: of several inputs, the names of those to scale; by default all floats.
        """
        mean, std = scaling.find_constants(self.x, self.layout, inputs)
        return replace(self, mean=mean, std=std)

    def with_notes(self, *notes: Note) -> Dataset:
        """The set with further notes on how the data were read."""
        return replace(self, intake=(self.intake or Intake(str(self.x.dtype))).with_notes(*notes))

    def standardised(self) -> Dataset:
        """The set with samples (x - mean) / std, channel by channel; unchanged without constants."""
        if self.mean is None or self.std is None:
            return self
        constants = (self.mean, self.std)
        scale = partial(scaling.apply, constants=constants, layout=self.layout)
        x, x_test = (map_samples(part, scale) for part in (self.x, self.x_test))
        return replace(self, x=x, x_test=x_test, mean=None, std=None, applied=constants)

    def in_memory(self) -> Dataset:
        """The set with its samples as arrays; unchanged if they are read from a disk."""
        if is_streamed(self.x) or not isinstance(self.x, Rows):
            return self
        return replace(self, x=self.x[:], x_test=self.x_test[:])

    def to_natural(self, x: np.ndarray) -> np.ndarray:
        """Samples [N, ...] of this set in natural units."""
        return x if self.applied is None else scaling.undo(x, self.applied, self.layout)


def strata(y: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """The groups from which samples are drawn in proportion, int64 [N]: the classes; one group for all masks.

    Targets are grouped by tenth, and samples with several labels by their rarest label, or C without any.
    among: the targets or labels that define the tenths or frequencies; by default y itself.
    """
    if y.dtype.kind == "b":
        return rarest_labels(y, y if among is None else among)
    if y.dtype.kind == "f":
        return tenths(y, tenth_edges(y if among is None else among))
    return y if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)


def rarest_labels(y_NC: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The label of each sample that is rarest in `among`, the first of equally rare ones; C for a sample
    without labels."""
    count, C = among.sum(0), y_NC.shape[1]
    order = np.argsort(count, kind="stable")
    return np.where(y_NC.any(1), order[y_NC[:, order].argmax(1)], C).astype(np.int64)


def with_test_set(dataset: Dataset, share: float, site: str = "", first: np.ndarray | None = None) -> Dataset:
    """The set with a share of every class, or tenth of a target, as its test set; with masks, a share of all
    samples.

    dataset: without a test set; it is returned unchanged if no training sample would be left.
    site: the column of sites, if there is one; the share is then taken from every class of every site.
    first: for each sample the first identical one, int64 [N]; copies stay on one side, unless that would
    halve or double the share. If the set has groups, whole groups are held out.
    Every call chooses the same rows, for any seed of a run.
    """
    rng, kinds = np.random.default_rng(1797), strata(dataset.y)
    if dataset.group_column:
        sites = [dataset.columns[site]] if site else []
        test = whole_groups(dataset.columns[dataset.group_column], [kinds, *sites], share, rng)
        return replace(_split_off(dataset, test), held_out=True) if test.any() else dataset
    test = _in_proportion([dataset.columns[site], kinds] if site else [kinds], share, rng)
    if first is not None and 0.5 * test.sum() <= test[first].sum() <= 2 * test.sum():
        test = test[first]
    return dataset if test.all() else replace(_split_off(dataset, test), held_out=True)


def _in_proportion(kinds: Sequence[np.ndarray], share: float, rng: np.random.Generator) -> np.ndarray:
    """The rows of a random share of every combination of values of these columns [N], bool [N]."""
    one = kinds[0]
    if len(kinds) > 1:
        one = np.unique(np.stack(kinds), axis=1, return_inverse=True)[1].reshape(-1)
    counts, chosen = np.bincount(one), np.zeros(len(one), dtype=bool)
    for c, size in enumerate(largest_remainder(counts * share, counts)):
        chosen[rng.permutation(np.flatnonzero(one == c))[:size]] = True
    return chosen


def with_fewer_tests(dataset: Dataset, most: int, column: str = "") -> Dataset:
    """The set with `most` of its test samples, drawn from every class, or tenth of a target, in proportion;
    unchanged if it has no more. column: a column from each of which values the share is drawn, too."""
    count = len(dataset.y_test)
    if count <= most:
        return dataset
    kinds = [strata(dataset.y_test, dataset.y)]
    kinds += [dataset.test_columns[column]] if column in dataset.test_columns else []
    kept = _in_proportion(kinds, most / count, np.random.default_rng(1797))
    return replace(
        dataset,
        x_test=select_samples(dataset.x_test, kept),
        y_test=dataset.y_test[kept],
        test_columns={name: values[kept] for name, values in dataset.test_columns.items()},
    )


def validation_of(dataset: Dataset, share: float) -> Dataset:
    """The set with a share of its training samples, drawn from every class and domain, in place of its test
    set.

    The samples of a group stay together.
    Raises DataError (E403) if either side would be empty.
    """
    rng, test = np.random.default_rng(0), np.zeros(len(dataset.y), dtype=bool)
    domains = [v for name, v in dataset.columns.items() if name == "domain"]
    if dataset.group_column:
        test = whole_groups(dataset.columns[dataset.group_column], [strata(dataset.y), *domains], share, rng)
    else:
        kinds = np.stack([strata(dataset.y), *domains], axis=1)
        kind_of = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
        for kind in range(int(kind_of.max()) + 1):
            rows = np.flatnonzero(kind_of == kind)
            test[rng.permutation(rows)[: round(share * len(rows))]] = True
    if not test.any() or test.all():
        text = f"{share:g} of {len(test)} training samples leaves one side without any"
        raise DataError("E403", f"{dataset.name}: {text}.")
    return _split_off(dataset, test)


def whole_groups(
    groups: np.ndarray, kinds: Sequence[np.ndarray], share: float, rng: np.random.Generator
) -> np.ndarray:
    """The rows of a random choice of groups that hold about this share of all rows, bool [N].

    groups: the group of each row, [N]. kinds: the class, int64 [N], and further columns, such as the site, in
    proportion to which rows are chosen.
    The groups are passed in the order of their kinds, at random within one; each adds its share of rows to
    what is owed, and is chosen if it then holds at most twice the rows owed. The last group of a class is
    never chosen. If no group is, the smallest one is that can be.
    """
    if not len(groups):
        return np.zeros(0, dtype=bool)
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    owner = owner.reshape(-1)
    keys = [most_frequent(np.unique(values, return_inverse=True)[1], owner) for values in kinds]
    left_C = np.bincount(keys[0])
    chosen, owed = np.zeros(len(sizes), dtype=bool), 0.0
    for group in np.lexsort((rng.random(len(sizes)), *keys)):
        owed += share * sizes[group]
        if left_C[keys[0][group]] > 1 and 2 * owed >= sizes[group]:
            chosen[group], owed = True, owed - sizes[group]
            left_C[keys[0][group]] -= 1
    usable = np.flatnonzero(left_C[keys[0]] > 1)
    if not chosen.any() and len(usable):
        chosen[usable[np.argmin(sizes[usable])]] = True
    return chosen[owner]


def most_frequent(kinds: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """The most frequent kind among the samples of every group, int64 [G]; the largest of equally frequent
    ones.

    kinds: int64 [N]. owner: the group of each sample, [N], from 0 without gaps.
    """
    (owners, values), counts = np.unique(np.stack([owner, kinds.reshape(-1)]), axis=1, return_counts=True)
    order = np.lexsort((counts, owners))
    last = np.searchsorted(owners[order], np.arange(owner.max() + 1), side="right") - 1
    return values[order][last]


def _split_off(dataset: Dataset, test: np.ndarray) -> Dataset:
    """The set with the training rows `test`, bool [N], as its test set."""
    return replace(
        dataset,
        x=select_samples(dataset.x, ~test),
        y=dataset.y[~test],
        x_test=select_samples(dataset.x, test),
        y_test=dataset.y[test],
        columns={name: values[~test] for name, values in dataset.columns.items()},
        test_columns={name: values[test] for name, values in dataset.columns.items()},
    )
