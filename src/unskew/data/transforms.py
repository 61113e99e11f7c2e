"""Feature skew without a download: every client sees the world through its own device.

A suffix of the skew, `iid+gamma:0.5`, names the kind and its strength s; several may follow each other. Client k has a
level u_k in (-1, 1), spread evenly over clients by the golden ratio: u_k = 2 frac((k + 1/2) (sqrt 5 - 1) / 2) - 1, and
v_k = (1 + u_k) / 2 in (0, 1).

brightness   x + s u           contrast   m + (x - m) 2^(s u), m the sample's mean
gamma        x^(2^(s u))       noise      x + s v N(0, 1)
blur         Gaussian of s v pixels       rotate90   k mod 4 quarter turns (no strength)

Applied when a federation is built, to the client's training, validation and test rows, in the data's natural units.
x [n, channels, ...] float32; values of a set that lies in [0, 1] stay there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unskew.errors import UsageError, suggestion

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Shift:
    """A kind of feature skew and its strength."""

    kind: str
    strength: float

    @staticmethod
    def parse(text: str) -> Shift:
        """`gamma:0.5`, or `gamma` for the usual strength. Raises UsageError (E103)."""
        kind, colon, value = text.strip().partition(":")
        if kind not in STRENGTHS:
            raise UsageError(
                "E103", f"unknown feature skew '+{text}'.{suggestion(kind, STRENGTHS)} Known: {', '.join(STRENGTHS)}."
            )
        if kind == "rotate90" and colon:
            raise UsageError("E103", f"feature skew '+rotate90' takes no strength; got '{value}'.")
        try:
            strength = float(value) if colon else STRENGTHS[kind]
            if not (math.isfinite(strength) and strength >= 0):
                raise ValueError
        except ValueError:
            raise UsageError(
                "E103", f"feature skew '+{kind}' needs a strength of at least 0, like +{kind}:0.5; got '{value}'."
            ) from None
        return Shift(kind, strength)

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        """Raises UsageError (E103) where samples of this shape and range cannot be changed this way."""
        if self.kind == "gamma" and not unit:
            raise UsageError("E103", "feature skew '+gamma' needs values in [0, 1]; use +contrast or +brightness.")
        if self.kind in ("blur", "rotate90") and len(shape) != 3:
            raise UsageError("E103", f"feature skew '+{self.kind}' needs images; samples are {list(shape)}.")
        if self.kind == "rotate90" and shape[-1] != shape[-2]:
            raise UsageError("E103", f"feature skew '+rotate90' needs square images; samples are {list(shape)}.")


def level(client: int) -> float:
    """u_k in (-1, 1)."""
    return 2 * ((client + 0.5) * GOLDEN % 1) - 1


def skew_features(x: np.ndarray, client: int, kind: str | Shift, *, unit: bool = True, stream: int = 0) -> np.ndarray:
    """x [n, channels, ...] as this client sees it; x itself is not changed.

    unit: values belong in [0, 1] and are kept there. stream: which of the client's independent noises.
    """
    shift = kind if isinstance(kind, Shift) else Shift.parse(kind)
    shift.check(x.shape[1:], unit)
    if shift.kind == "rotate90":
        return np.ascontiguousarray(np.rot90(x, client % 4, axes=(-2, -1)))
    if shift.kind == "noise":
        drawn = np.random.default_rng([client, stream]).standard_normal(x.shape, dtype=np.float32)
        found = x + np.float32(shift.strength * (1 + level(client)) / 2) * drawn
    else:
        found = _CHANGES[shift.kind](x, shift.strength, level(client))
    return np.clip(found, 0, 1).astype(np.float32) if unit else found.astype(np.float32)


def _brightness(x: np.ndarray, s: float, u: float) -> np.ndarray:
    return x + np.float32(s * u)


def _contrast(x: np.ndarray, s: float, u: float) -> np.ndarray:
    m = x.mean(axis=tuple(range(1, x.ndim)), keepdims=True)
    return m + (x - m) * np.float32(2 ** (s * u))


def _gamma(x: np.ndarray, s: float, u: float) -> np.ndarray:
    return x ** np.float32(2 ** (s * u))


def _blur(x: np.ndarray, s: float, u: float) -> np.ndarray:
    width = s * (1 + u) / 2
    if width < 0.05:
        return x
    reach = min(math.ceil(3 * width), min(x.shape[-2:]))
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2).astype(np.float32)
    for axis in (-2, -1):
        x = _smoothed(x, bell / bell.sum(), axis)
    return x


def _smoothed(x: np.ndarray, bell: np.ndarray, axis: int) -> np.ndarray:
    reach, n = len(bell) // 2, x.shape[axis]
    places = np.clip(np.arange(n)[:, None] + np.arange(-reach, reach + 1), 0, n - 1)  # the border repeats
    mix = np.zeros((n, n), dtype=np.float32)
    np.add.at(mix, (np.arange(n)[:, None], places), bell)
    return np.moveaxis(np.moveaxis(x, axis, -1) @ mix.T, -1, axis)


STRENGTHS = {"brightness": 0.2, "contrast": 1.0, "gamma": 1.0, "noise": 0.1, "blur": 1.0, "rotate90": 0.0}
"""The kinds, and the strength of each when none is given."""

_CHANGES: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "gamma": _gamma,
    "blur": _blur,
}
