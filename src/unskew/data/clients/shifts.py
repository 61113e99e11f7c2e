"""Feature skew without a download: every client sees the data through a device that differs from the others'.

A suffix of the skew, `iid+gamma:0.5`, names the kind and its strength s; several may follow each other.
Client k has a level u_k in (-1, 1), spread evenly over clients by the golden ratio: u_k = 2 frac((k + 1/2)
(sqrt 5 - 1) / 2) - 1, and v_k = (1 + u_k) / 2 in (0, 1).

Shifts are applied when a federation is built, to the client's training, validation and test rows, in natural
units.
Letters: n samples of a client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.data.storage.sample_rows import is_streamed
from unskew.errors import DataError, UsageError

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Client:
    """The client that sees the samples. stream: which of the client's independent noises is drawn."""

    id: int
    stream: int = 0

    @property
    def level(self) -> float:
        """u_k in (-1, 1)."""
        return 2 * ((self.id + 0.5) * GOLDEN % 1) - 1


class Shift:
    """A kind of feature skew; subclasses are frozen dataclasses of their settings, see
    unskew.formats.specs."""

    name: ClassVar[str] = ""
    value: ClassVar[tuple[str, ...]] = ("strength",)
    example: ClassVar[str] = ""
    turns: ClassVar[bool] = False
    """Whether pixels change places, so that a mask has to follow its image."""

    def transform(self, x: np.ndarray, client: Client, unit: bool) -> np.ndarray:
        """Samples [n, channels, ...] as this client sees them, float32; x itself is not changed.

        unit: whether values lie in [0, 1]; they are then clipped to that range.
        Raises UsageError (E103) if the shift does not apply to samples of this shape and range.
        """
        self.check(x.shape[1:], unit)
        shifted = self.apply(x, client)
        if self.turns:
            return shifted
        return np.clip(shifted, 0, 1).astype(np.float32) if unit else shifted.astype(np.float32)

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        """The shifted samples, before they are clipped."""
        raise NotImplementedError

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        """Raises UsageError (E103) if the shift does not apply to samples of this shape and range."""


@dataclass(frozen=True)
class Brightness(Shift):
    """x + s u"""

    strength: Annotated[float, Ge(0), "s: the largest change"] = 0.2
    name = "brightness"
    example = "+brightness:0.2"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        return x + np.float32(self.strength * client.level)


@dataclass(frozen=True)
class Contrast(Shift):
    """m + (x - m) 2^(s u), m the sample's mean"""

    strength: Annotated[float, Ge(0), "s: the exponent of the largest factor"] = 1.0
    name = "contrast"
    example = "+contrast:1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        m = x.mean(axis=tuple(range(1, x.ndim)), keepdims=True)
        return m + (x - m) * np.float32(2 ** (self.strength * client.level))


@dataclass(frozen=True)
class Gamma(Shift):
    """x^(2^(s u)), for values in [0, 1]"""

    strength: Annotated[float, Ge(0), "s: 2^s is the largest exponent"] = 1.0
    name = "gamma"
    example = "+gamma:1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        # Scaling and its inverse may move black to just below 0, which has no root.
        return np.maximum(x, 0) ** np.float32(2 ** (self.strength * client.level))

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        if not unit:
            text = "feature skew '+gamma' needs values in [0, 1]; use +contrast or +brightness"
            raise UsageError("E103", f"{text}.")


@dataclass(frozen=True)
class Noise(Shift):
    """x + s v N(0, 1)"""

    strength: Annotated[float, Ge(0), "s: the largest standard deviation"] = 0.1
    name = "noise"
    example = "+noise:0.1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        normal = np.random.default_rng([client.id, client.stream]).standard_normal(x.shape, dtype=np.float32)
        return x + np.float32(self.strength * (1 + client.level) / 2) * normal


@dataclass(frozen=True)
class Rotate90(Shift):
    """k mod 4 quarter turns of square images"""

    name = "rotate90"
    value = ()
    example = "+rotate90"
    turns = True

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        return np.ascontiguousarray(np.rot90(x, client.id % 4, axes=(-2, -1)))

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        if len(shape) != 3 or shape[-1] != shape[-2]:
            text = f"feature skew '+rotate90' needs square images; samples are {list(shape)}"
            raise UsageError("E103", f"{text}.")


SHIFTS: dict[str, type[Shift]] = {kind.name: kind for kind in (Brightness, Contrast, Gamma, Noise, Rotate90)}
"""The kinds by name."""


def apply_shifts(federation: Federation, shifts: Sequence[Shift], dataset: Dataset) -> Federation:
    """The federation with all clients' training, validation and test samples changed by the shifts, in their
    order.

    Every client then has separate samples: a row that two clients shared becomes two. The server's reserved
    samples do not change.
    dataset: the set from which the federation was made.
    Raises DataError (E103) for a set that is read from disk, UsageError (E103) for samples with several
    inputs, or to which a shift does not apply.
    """
    f = federation
    if f.layout:
        text = f"feature skew '+{shifts[0].name}' changes samples with one input, and these have {f.layout}"
        raise UsageError("E103", f"{text}; give a skew without it.")
    if is_streamed(dataset.x) or is_streamed(dataset.x_test):
        text = "is read from files row by row; a feature skew needs a set that fits into memory"
        raise DataError("E103", f"{f.name} {text}.")
    rows = np.concatenate([f.train.rows, f.val.rows])
    x, x_test = dataset.to_natural(dataset.x[rows]), dataset.to_natural(dataset.x_test).copy()
    y, y_test = f.y[rows], f.y_test.copy()
    unit = bool(len(x)) and x.min() > -1e-5 and x.max() < 1 + 1e-5
    n_train = len(f.train.rows)
    train = Index(np.arange(n_train), f.train.offsets)
    val = Index(np.arange(n_train, len(rows)), f.val.offsets)
    for part, (values, labels, index) in enumerate(((x, y, train), (x, y, val), (x_test, y_test, f.test))):
        for k in np.flatnonzero(index.sizes).tolist():
            samples, masks = values[index[k]], labels[index[k]]
            for i, shift in enumerate(shifts):
                client = Client(k, stream=3 * i + part)
                samples = shift.transform(samples, client, unit)
                masks = shift.apply(masks, client) if f.masks and shift.turns else masks
            values[index[k]], labels[index[k]] = samples, masks
    reserved = np.arange(len(rows), len(rows) + len(f.reserved))
    rows = np.concatenate([rows, f.reserved])
    return replace(
        f,
        x=np.concatenate([dataset.from_natural(x), dataset.x[f.reserved]]),
        y=np.concatenate([y, f.y[f.reserved]]),
        x_test=dataset.from_natural(x_test),
        y_test=y_test,
        train=train,
        val=val,
        columns={name: values[rows] for name, values in f.columns.items()},
        reserved=reserved,
    )
