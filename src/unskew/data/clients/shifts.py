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
from collections.abc import Callable, Sequence
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

    def require_images(self, shape: tuple[int, ...]) -> None:
        """Raises UsageError (E103) for samples of this shape if they are no images."""
        if len(shape) != 3:
            raise UsageError("E103", f"feature skew '+{self.name}' needs images; samples are {list(shape)}.")


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
class Blur(Shift):
    """a Gaussian of s v pixels over images"""

    strength: Annotated[float, Ge(0), "s: the largest standard deviation, in pixels"] = 1.0
    name = "blur"
    example = "+blur:1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        width = self.strength * (1 + client.level) / 2
        if width < 0.05:
            return x
        reach = min(math.ceil(3 * width), min(x.shape[-2:]))
        weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2).astype(np.float32)
        for axis in (-2, -1):
            x = _smooth(x, weights / weights.sum(), axis)
        return x

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        self.require_images(shape)


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
        self.require_images(shape)
        if shape[-1] != shape[-2]:
            text = f"feature skew '+rotate90' needs square images; samples are {list(shape)}"
            raise UsageError("E103", f"{text}.")


def _smooth(x: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    """x averaged along one axis with these weights; the pixels at the border are repeated beyond it."""
    reach, n = len(weights) // 2, x.shape[axis]
    places = np.clip(np.arange(n)[:, None] + np.arange(-reach, reach + 1), 0, n - 1)
    mix = np.zeros((n, n), dtype=np.float32)
    np.add.at(mix, (np.arange(n)[:, None], places), weights)
    return np.moveaxis(np.moveaxis(x, axis, -1) @ mix.T, -1, axis)


SHIFTS: dict[str, type[Shift]] = {
    kind.name: kind for kind in (Brightness, Contrast, Gamma, Noise, Blur, Rotate90)
}
"""The kinds by name."""


View = Callable[[np.ndarray], np.ndarray]
"""A function from samples [n, ...] to a view of a part of each, [n, ...]."""


def apply_shifts(federation: Federation, shifts: Sequence[Shift], dataset: Dataset) -> Federation:
    """The federation with all clients' training, validation and test samples changed by the shifts, in their
    order.

    Every client then has separate samples: a row that two clients shared becomes two. The server's reserved
    samples do not change. Of several inputs only images of floats are changed.
    dataset: the set from which the federation was made.
    Raises DataError (E103) for a memory-mapped set, UsageError (E103) for samples to which a shift does not
    apply, or if none of several inputs is an image.
    """
    f = federation
    views = _image_views(f, shifts)
    if isinstance(dataset.x, np.memmap) or is_streamed(dataset.x) or is_streamed(dataset.x_test):
        text = "is read from files row by row; a feature skew needs a set that fits into memory"
        raise DataError("E103", f"{f.name} {text}.")
    rows = np.concatenate([f.train.rows, f.val.rows])
    x, x_test = dataset.to_natural(dataset.x[rows]), dataset.to_natural(dataset.x_test).copy()
    y, y_test = f.y[rows], f.y_test.copy()
    units = [bool(len(x)) and view(x).min() > -1e-5 and view(x).max() < 1 + 1e-5 for view in views]
    n_train = len(f.train.rows)
    train = Index(np.arange(n_train), f.train.offsets)
    val = Index(np.arange(n_train, len(rows)), f.val.offsets)
    for part, (values, labels, index) in enumerate(((x, y, train), (x, y, val), (x_test, y_test, f.test))):
        for k in np.flatnonzero(index.sizes).tolist():
            samples, masks = values[index[k]], labels[index[k]]
            for j, (view, unit) in enumerate(zip(views, units)):
                for i, shift in enumerate(shifts):
                    client = Client(k, stream=3 * (i + j * len(shifts)) + part)
                    view(samples)[:] = shift.transform(view(samples), client, unit)
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


def _image_views(f: Federation, shifts: Sequence[Shift]) -> list[View]:
    """Views of the parts of a sample that a device sees: all of it, or each image of several inputs.

    Raises UsageError (E103) if no input is an image.
    """
    if not f.layout:
        return [lambda x: x]
    images = f.layout.images
    if not images:
        text = f"feature skew '+{shifts[0].name}' changes images, and none of a sample's inputs is one"
        raise UsageError("E103", f"{text}: {f.layout}; give a skew without it.")
    return [
        lambda x, image=image, a=a, b=b: x[:, a:b].reshape(len(x), *image.shape) for image, a, b in images
    ]
