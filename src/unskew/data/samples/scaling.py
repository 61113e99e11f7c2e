"""The constants that standardise samples: computed, applied and undone.

There is one pair (mean, standard deviation) for each channel, which is the first axis of a sample: a channel
of images, a column of a table. Samples with several inputs have channels of their own for each input, in the
order of the inputs, and a single number is one channel. Whole numbers and truth values have the constants 0
and 1, which change nothing.

Letters: N samples, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from unskew.data.storage.rows_on_disk import moments
from unskew.formats.input_layout import Layout

Constants: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""(mean, standard deviation) of every channel."""


def find_constants(
    x: np.ndarray, layout: Layout | None = None, inputs: Sequence[str] | None = None
) -> Constants:
    """The constants of samples [N, ...]. layout: of rows with several inputs. inputs: the names of those
    to be scaled, by default all floats."""
    mean, std = channel_constants(x, layout, inputs)
    std = np.where(
        std > 1e-7 * np.abs(mean), np.maximum(std, 1e-12), 1.0
    )  # a constant channel is only shifted
    return tuple(mean.tolist()), tuple(std.tolist())


def channel_constants(
    x: np.ndarray, layout: Layout | None = None, inputs: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of every channel of samples [N, ...], float64 [C]; 0 and 1 for channels
    that are not to be scaled."""
    mean_D, std_D = moments(x)
    if not layout:
        return mean_D, std_D
    of_D = layout.channel_of
    count_C = np.bincount(of_D)
    mean_C = np.bincount(of_D, mean_D) / count_C
    std_C = np.sqrt(np.bincount(of_D, std_D**2 + (mean_D - mean_C[of_D]) ** 2) / count_C)
    scaled_C = layout.scalable(inputs)
    return np.where(scaled_C, mean_C, 0.0), np.where(scaled_C, std_C, 1.0)


def apply(x: np.ndarray, constants: Constants, layout: Layout | None = None) -> np.ndarray:
    """Standardised samples, (x - mean) / std, [N, ...]."""
    mean, std = (_broadcast(values, x.ndim, layout) for values in constants)
    scaled = x - mean
    scaled /= std  # in place, because a third array of this size would be the most memory of many runs
    return scaled


def undo(x: np.ndarray, constants: Constants, layout: Layout | None = None) -> np.ndarray:
    """Samples [N, ...] in natural units."""
    mean, std = (_broadcast(values, x.ndim, layout) for values in constants)
    return x * std + mean


def check(constants: Constants, shape: Sequence[int], layout: Layout | None) -> None:
    """Raises ValueError unless every channel of samples of this shape has finite constants and a deviation
    above 0."""
    channels = layout.channels if layout else shape[0]
    if any(len(values) != channels for values in constants):
        raise ValueError(f"{len(constants[0])} and {len(constants[1])} constants for {channels} channels")
    if not all(np.isfinite(values).all() for values in constants) or min(constants[1]) <= 0:
        raise ValueError("constants that scale nothing")


def _broadcast(values_C: Sequence[float], ndim: int, layout: Layout | None) -> np.ndarray:
    """One number per channel as float32 [1, channels, 1, ...], ready to broadcast against [N, channels,
    ...]."""
    values = np.asarray(values_C, np.float32)
    return values[layout.channel_of][None] if layout else values.reshape(1, -1, *[1] * (ndim - 2))
