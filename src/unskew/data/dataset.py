"""A set of samples before it is dealt out, checked once.

Letters: N samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unskew.errors import DataError

CHUNK = 1 << 24
"""Values looked at in one go, so that checking a file that is mapped into memory never loads it."""


@dataclass(frozen=True)
class Dataset:
    """x [N, ...] float32, channels first, in natural units (images: [0, 1]); y int64 [N], 0 to C-1.

    Or y are masks: whole numbers [N, H, W] for x [N, channels, H, W], a class for every pixel.

    columns: further facts per training row (subject, domain), by which clients can be formed; labels: names of a
    column's values. mean, std: one number a channel. taken_off: the mean and std that `standardised` has applied.
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
    taken_off: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        self._check_lengths()
        check_labels(self.name, self.y, self.y_test, len(self.classes), self.shape)
        for part, x in (("training ", self.x), ("test ", self.x_test)):
            check_finite(self.name, part, x)

    def _check_lengths(self) -> None:
        for part, x, y, columns in (
            ("training", self.x, self.y, self.columns),
            ("test", self.x_test, self.y_test, self.test_columns),
        ):
            if len(x) != len(y):
                raise DataError(
                    "E403", f"{self.name}: {len(x)} {part} samples but {len(y)} labels; give one label a sample."
                )
            for column, values in columns.items():
                if len(values) != len(y):
                    raise DataError(
                        "E403",
                        f"{self.name}: column '{column}' has {len(values)} values for {len(y)} {part} samples; "
                        "give one value a sample.",
                    )
        if not len(self.y):
            raise DataError("E403", f"{self.name} has no training samples.")
        if len(self.y_test) and self.x.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                "E403",
                f"{self.name}: training samples are {list(self.x.shape[1:])}, test samples {list(self.x_test.shape[1:])}; "
                "they must be of one shape.",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def with_constants(self) -> Dataset:
        """With the mean and standard deviation of every channel of the training samples."""
        axes = (0, *range(2, self.x.ndim))
        mean, std = self.x.mean(axes, dtype=np.float64), self.x.std(axes, dtype=np.float64)
        return replace(self, mean=tuple(mean.tolist()), std=tuple(np.maximum(std, 1e-6).tolist()))

    def validated(self, share: float) -> Dataset:
        """The test set put away, and in its stead a share of the training samples, held out of every class and domain alike.

        The same samples for every seed. Raises DataError (E403) where none would be left to score on.
        """
        kinds = np.stack([strata(self.y), *(c for n, c in self.columns.items() if n == "domain")], axis=1)
        group = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
        rng, held = np.random.default_rng(0), np.zeros(len(self.y), dtype=bool)
        for kind in range(int(group.max()) + 1):
            rows = np.flatnonzero(group == kind)
            held[rng.permutation(rows)[: round(share * len(rows))]] = True
        if not held.any() or held.all():
            raise DataError(
                "E403", f"{self.name}: {share:g} of {len(held)} training samples leaves one side without any."
            )
        return replace(
            self,
            x=self.x[~held],
            y=self.y[~held],
            x_test=self.x[held],
            y_test=self.y[held],
            columns={n: c[~held] for n, c in self.columns.items()},
            test_columns={n: c[held] for n, c in self.columns.items()},
        )

    def standardised(self) -> Dataset:
        """(x - mean) / std per channel, by the set's own constants; unchanged if it has none."""
        if self.mean is None or self.std is None:
            return self
        mean, std = (per_channel(v, self.x.ndim) for v in (self.mean, self.std))
        return replace(
            self,
            x=(self.x - mean) / std,
            x_test=(self.x_test - mean) / std,
            mean=None,
            std=None,
            taken_off=(self.mean, self.std),
        )


def per_channel(values: tuple[float, ...], ndim: int) -> np.ndarray:
    """Shaped so that it meets the channels of [N, channels, ...]."""
    return np.reshape(values, (1, -1, *[1] * (ndim - 2))).astype(np.float32)


def check_labels(name: str, y: np.ndarray, y_test: np.ndarray, classes: int, shape: tuple[int, ...]) -> None:
    """Raises DataError (E404) unless labels, or masks as large as samples of `shape`, are 0 to classes - 1."""
    for part, labels in (("training", y), ("test", y_test)):
        fits = labels.ndim == y.ndim and (labels.ndim == 1 or labels.shape[1:] == shape[1:])
        if not fits or not np.issubdtype(labels.dtype, np.integer):
            masks = f" or masks {['N', *shape[1:]]}".replace("'", "") if len(shape) > 1 else ""
            raise DataError(
                "E404",
                f"{name}: {part} labels are {labels.dtype} {list(labels.shape)}; they must be whole numbers, [N]{masks}.",
            )
        wrong = np.argwhere((labels < 0) | (labels >= classes))
        if len(wrong):
            row, *place = wrong[0].tolist()
            where = f"the label of {part} sample {row}" + (f" at {place}" if place else "")
            raise DataError(
                "E404",
                f"{name}: {where} is {labels[tuple(wrong[0])]}; {classes} classes need labels from 0 to {classes - 1}.",
            )


def strata(y: np.ndarray) -> np.ndarray:
    """What draws go by: the classes of samples; samples with masks are all of one kind. int64 [N]."""
    return y if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)


def check_finite(name: str, part: str, x: np.ndarray) -> None:
    """Raises DataError (E405) that names the first sample with NaN or infinity. part: "", "training " or "test "."""
    step = max(1, CHUNK // max(1, int(np.prod(x.shape[1:]))))
    for begin in range(0, len(x), step):
        chunk = x[begin : begin + step]
        if np.isfinite(chunk.sum(dtype=np.float64)):
            continue
        place = np.argwhere(~np.isfinite(chunk))[0].tolist()
        raise DataError(
            "E405",
            f"{name}: {part}sample {begin + place[0]} holds {chunk[tuple(place)]} at {place[1:]}; mend or remove it.",
        )
