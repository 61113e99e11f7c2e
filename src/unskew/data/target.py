"""A target that is a number: what it is called, what of it is learnt, and the tenths by which it is divided.

    learnt      (y - center) / scale, by default the mean and the standard deviation of the training samples
    tenths      ten groups of equally many training samples, from the smallest targets to the largest; fewer where values
                recur. They stand for classes wherever samples are drawn or dealt out in proportion, or counted.

Letters: N samples, T tenths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from unskew.errors import DataError, UsageError

TENTHS = 10
LARGEST = 1e15
"""Targets beyond this lose the squares of their errors to rounding."""


@dataclass(frozen=True)
class Target:
    """The target's name and constants. given: whether whoever brought the data named them; else they are of these data."""

    name: str
    center: float = 0.0
    scale: float = 1.0
    given: bool = False

    @staticmethod
    def wished(name: str, center: float | None = None, scale: float | None = None) -> Target:
        """The target that a user names. Raises UsageError (E109) for one constant without the other, or no scale."""
        if (center is None) != (scale is None):
            raise UsageError("E109", "center and scale belong together: a target is learnt as (y - center) / scale.")
        if scale is None or center is None:
            return Target(name)
        if not (np.isfinite(center) and np.isfinite(scale) and scale > 0):
            raise UsageError("E109", f"scale must be a number above 0 and center finite; got {scale:g} and {center:g}.")
        return Target(name, float(center), float(scale), given=True)

    def fitted(self, y: np.ndarray, data: str) -> Target:
        """With the constants of these training targets, unless some were given. data: the set's name, for the message.

        Raises DataError (E404) where all targets are equal, so that there is nothing to learn; one site's may be, where the
        constants were agreed on.
        """
        if self.given:
            return self
        low, high = float(y.min()), float(y.max())
        if low == high:
            raise DataError(
                "E404",
                f"{data}: the target '{self.name}' is {low:g} in every training sample, so there is nothing to learn.",
            )
        return replace(self, center=float(y.mean(dtype=np.float64)), scale=float(y.std(dtype=np.float64)))


def check_targets(name: str, y: np.ndarray, y_test: np.ndarray) -> None:
    """Raises DataError (E404) unless targets are finite numbers, [N]. name: of the set."""
    for part, values in (("training", y), ("test", y_test)):
        if values.ndim != 1 or values.dtype.kind != "f":
            text = f"{part} targets are {values.dtype} {list(values.shape)}; they must be numbers, [N]"
            raise DataError("E404", f"{name}: {text}.")
        wrong = ~(np.abs(values) <= LARGEST)
        if wrong.any():
            row = int(np.argmax(wrong))
            text = f"the target of {part} sample {row} is {values[row]:g} ({int(wrong.sum()):,} such samples)"
            raise DataError("E404", f"{name}: {text}; fill it in, or leave the sample out.")


def edges(y: np.ndarray) -> np.ndarray:
    """Where one tenth of these targets ends and the next begins, rising, [T - 1]."""
    if not len(y):
        return np.zeros(0)
    inner = np.unique(np.quantile(y.astype(np.float64), np.arange(1, TENTHS) / TENTHS))
    return inner[inner > y.min()]


def tenths(y: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The tenth of every target, int64 [N], from 0. cuts: as `edges` gives them."""
    return np.searchsorted(cuts, y, side="right").astype(np.int64)


def names(cuts: np.ndarray) -> tuple[str, ...]:
    """What the tenths are called: `below 61`, `61 to 74`, `from 275`."""
    if not len(cuts):
        return ("all",)
    texts = [f"{c:.4g}" for c in cuts]
    return (f"below {texts[0]}", *(f"{a} to {b}" for a, b in pairwise(texts)), f"from {texts[-1]}")
