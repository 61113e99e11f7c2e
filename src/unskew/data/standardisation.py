"""Whether samples are standardised before training, and by which constants.

A named set has constants of its own. For a user's samples they are computed, channel by channel, over the
training samples: always if the run asks for it, otherwise only if the samples cannot be trained on as they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.column_statistics import numbers_of_rows, quoted
from unskew.data.samples.conversion import DEPTHS
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.packing import input_column
from unskew.data.samples.reading_notes import Note
from unskew.data.storage.sample_rows import map_samples, moments, select_samples
from unskew.errors import UsageError

UNSCALED_ABOVE = 5.0
"""A channel with a mean or standard deviation above this counts as unscaled; images and standardised
columns lie below."""
UNSCALED_BELOW = 0.02
"""If all standard deviations are below this, the channels count as unscaled, such as 12-bit images in
16-bit files."""
SCALE_RATIO = 30.0
"""Largest ratio of the columns' standard deviations at which the columns count as scaled."""
SCALE_SAMPLES = 5_000
"""Number of samples from which the need of standardising is judged."""


def standardise(dataset: Dataset, always: bool, but_images: bool = False) -> Dataset:
    """The set scaled by its constants.

    always: also scale a set without constants, or one that seems to be scaled. but_images: leave images among
    several inputs as they are.
    Several inputs are scaled separately, channel by channel, and each only if it needs scaling. Whole numbers
    and truth values stay as they are.
    Raises UsageError (E109) if constants are asked for and none of several inputs are floats.
    """
    if dataset.layout and dataset.mean is None:
        return _standardise_inputs(dataset, always, but_images)
    if dataset.mean is not None:
        return dataset.standardised()
    if dataset.applied is not None or not (always or dataset.intake):
        return dataset
    reason = "as normalise=dataset asks" if always else why_standardise(dataset)
    if not reason:
        return dataset
    unit = "column" if has_columns(dataset) else "channel"
    return (
        dataset.with_constants()
        .standardised()
        .with_notes(("scaled", f"standardised {unit} by {unit}: {reason}"))
    )


def _standardise_inputs(dataset: Dataset, always: bool, but_images: bool) -> Dataset:
    """A set with several inputs, standardised: all floats, or those that need it, images excepted if
    `but_images`."""
    assert dataset.layout
    floats = [item.name for item in dataset.layout.inputs if item.kind == "float32"]
    if always and not floats:
        text = f"none of a sample's inputs are floats ({dataset.layout})"
        raise UsageError("E109", f"normalise=dataset: {text}; give normalise=none.")
    if dataset.applied is not None or not (always or dataset.intake):
        return dataset
    request = "as normalise=dataset asks"
    reasons = (
        dict.fromkeys(floats, request)
        if always
        else dict(_inputs_to_scale(dataset, _scale_samples(dataset), but_images))
    )
    if not reasons:
        return dataset
    notes: list[Note] = [
        ("scaled", f"input {name} standardised channel by channel: {text}") for name, text in reasons.items()
    ]
    return dataset.with_constants(list(reasons)).standardised().with_notes(*notes)


def undo_scaling(dataset: Dataset) -> Dataset:
    """The set in the whole numbers of its source, for a model that looks them up: scaling by 255 or 65,535
    is undone."""
    intake = dataset.intake
    bits = DEPTHS.get(np.dtype(intake.dtype)) if intake and intake.dtype and dataset.x.ndim > 2 else None
    if intake is None or bits is None:
        return dataset
    x, x_test = (
        map_samples(part, partial(_whole_numbers, bits=bits)) for part in (dataset.x, dataset.x_test)
    )
    notes = tuple(note for note in intake.notes if note[0] != "scaled")
    unchanged = replace(dataset, x=x, x_test=x_test, intake=replace(intake, notes=notes))
    return unchanged.with_notes(("scaled", "not at all: the model looks whole numbers up"))


def _whole_numbers(x: np.ndarray, bits: int) -> np.ndarray:
    """The whole numbers of this many bits from which samples in [0, 1] were made."""
    return np.rint(x * np.float32((1 << bits) - 1))


def why_standardise(dataset: Dataset, but_images: bool = False) -> str:
    """The reason why the samples need standardising, "" if they do not. Large sets are judged by evenly
    spaced samples.

    but_images: do not judge images among several inputs.
    """
    rows = _scale_samples(dataset)
    if not dataset.layout:
        return _reason(rows, partial(column_name, dataset) if has_columns(dataset) else None)
    return "; ".join(
        f"input {name}: {reason}" for name, reason in _inputs_to_scale(dataset, rows, but_images)
    )


def _scale_samples(dataset: Dataset) -> np.ndarray:
    return select_samples(dataset.x, np.arange(0, len(dataset.x), max(1, len(dataset.x) // SCALE_SAMPLES)))


def _inputs_to_scale(dataset: Dataset, rows: np.ndarray, but_images: bool) -> Iterator[tuple[str, str]]:
    """(name, reason) of the float inputs that need standardising."""
    assert dataset.layout
    for i, item in enumerate(dataset.layout.inputs):
        if item.kind != "float32" or (but_images and item.is_image):
            continue
        if reason := _reason(input_column(dataset.layout, rows[:], i).reshape(-1, *(item.shape or (1,)))):
            yield item.name, reason


def has_columns(dataset: Dataset | Federation) -> bool:
    """Whether a sample is a row of numbers, without several inputs."""
    return dataset.layout is None and len(dataset.shape) == 1


def column_name(dataset: Dataset | Federation, c: int) -> str:
    """The name of a row's number c: that of the table's column, else its position."""
    return next((quoted(name) for name, _, _, end in numbers_of_rows(dataset) if c < end), str(c))


def _reason(rows: np.ndarray, column: Callable[[int], str] | None = None) -> str:
    """The reason why these samples [n, channels, ...] need standardising, "" if they do not. column:
    the name of a channel by its place."""
    word, name_of = ("channel", str) if column is None else ("column", column)
    mean, std = moments(rows)
    unscaled = np.flatnonzero((np.abs(mean) > UNSCALED_ABOVE) | (std > UNSCALED_ABOVE))
    if len(unscaled):
        c = int(unscaled[0])
        text = f"{word} {name_of(c)} with mean {mean[c]:.3g} and standard deviation {std[c]:.3g}"
        which = f"{len(unscaled)} of {len(mean)} {word}s are" if len(mean) > 1 else "they are"
        return f"{which} unscaled, such as {text}"
    if std.max() < UNSCALED_BELOW and std.max() > 0:
        return f"they hardly vary, with standard deviations up to {std.max():.2g}"
    if rows.ndim == 2 and (reason := _column_scales(rows[:], mean, std, name_of)):
        return reason
    return ""


def _column_scales(rows: np.ndarray, mean: np.ndarray, std: np.ndarray, name_of: Callable[[int], str]) -> str:
    """The reason why columns [N, columns] on different scales need standardising, "" if they do not.

    Columns that are constant, or 0 and 1, are ignored.
    """
    varying = np.flatnonzero((std > 1e-6 * np.abs(mean)) & ~((rows == 0) | (rows == 1)).all(0))
    if len(varying) < 2:
        return ""
    low, high = (int(varying[place(std[varying])]) for place in (np.argmin, np.argmax))
    if std[high] <= SCALE_RATIO * std[low]:
        return ""
    return f"columns {name_of(low)} and {name_of(high)} have deviations of {std[low]:.2g} and {std[high]:.2g}"
