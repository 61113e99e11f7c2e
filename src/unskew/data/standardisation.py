"""Whether samples are standardised before training, and by which constants.

A named set has constants of its own. For a user's samples they are computed, channel by channel, over the
training samples: always if the run asks for it, otherwise only if the samples cannot be trained on as they
are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.column_statistics import numbers_of_rows, quoted
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.packing import input_column
from unskew.data.samples.reading_notes import Note
from unskew.data.storage.rows_on_disk import moments, select_samples
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
    if dataset.mean is not None:
        return dataset.standardised()
    floats = [i.name for i in dataset.layout.inputs if i.kind == "float32"] if dataset.layout else [""]
    if always and not floats:
        text = f"none of a sample's inputs are floats ({dataset.layout})"
        raise UsageError("E109", f"normalise=dataset: {text}; give normalise=none.")
    if dataset.applied is not None or not (always or dataset.intake):
        return dataset
    reasons = dict.fromkeys(floats, "as normalise=dataset asks")
    reasons = reasons if always else _reasons(dataset, but_images)
    if not reasons:
        return dataset
    unit = "column by column" if has_columns(dataset) else "channel by channel"
    notes: list[Note] = [
        ("scaled", f"{f'input {name} ' if name else ''}standardised {unit}: {text}")
        for name, text in reasons.items()
    ]
    names = list(reasons) if dataset.layout else None
    return dataset.with_constants(names).standardised().with_notes(*notes)


def why_standardise(dataset: Dataset, but_images: bool = False) -> str:
    """The reason why the samples need standardising, "" if they do not. Large sets are judged by evenly
    spaced samples.

    but_images: do not judge images among several inputs.
    """
    reasons = _reasons(dataset, but_images)
    return "; ".join(f"input {name}: {text}" if name else text for name, text in reasons.items())


def _reasons(dataset: Dataset, but_images: bool) -> dict[str, str]:
    """Why samples, or those of their inputs that are floats, need standardising, by the input's name; {} if
    none does."""
    step = max(1, len(dataset.x) // SCALE_SAMPLES)
    rows = select_samples(dataset.x, np.arange(0, len(dataset.x), step))
    if not dataset.layout:
        reason = _reason(rows, partial(column_name, dataset) if has_columns(dataset) else None)
        return {"": reason} if reason else {}
    reasons = dict[str, str]()
    for i, item in enumerate(dataset.layout.inputs):
        if item.kind == "float32" and not (but_images and item.is_image):
            values = input_column(dataset.layout, rows[:], i).reshape(-1, *(item.shape or (1,)))
            reasons[item.name] = _reason(values)
    return {name: reason for name, reason in reasons.items() if reason}


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
