"""What a run knows of its sites, on either side: names in a fixed order, sizes, and one task common to all.

Letters: K sites, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from unskew.data.dataset import Dataset, check_labels
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.errors import DataError, UsageError


@dataclass(frozen=True)
class Hello:
    """What a site says of its data before round 1: counts and shapes, no sample and no label.

    train, test: numbers of samples; pixels: what follows a label, () or a mask's height and width.
    """

    site: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    pixels: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(site: str, data: Dataset, versions: Mapping[str, str]) -> Hello:
        return Hello(site, len(data.y), len(data.y_test), data.shape, data.classes, tuple(data.y.shape[1:]), versions)

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Hello:
        """From a header. Raises ValueError for anything that is not as declared."""
        hello = Hello(
            str(facts["site"]),
            _whole(facts["train"]),
            _whole(facts["test"]),
            tuple(_whole(v) for v in facts["shape"]),
            tuple(str(c)[:100] for c in facts["classes"]),
            tuple(_whole(v) for v in facts["pixels"]),
            {str(n): str(v)[:40] for n, v in dict(facts["versions"]).items()},
        )
        if not 2 <= len(hello.classes) <= 100_000 or not hello.shape:
            raise ValueError("no classes or no shape")
        return hello

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "versions": dict(self.versions)}


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is no count")
    return value


def check_alike(hellos: Sequence[Hello]) -> None:
    """Raises UsageError (E504), naming two sites, unless all hold one task's data."""
    first = hellos[0]
    for other in hellos[1:]:
        for what in ("classes", "shape", "pixels"):
            here, there = getattr(first, what), getattr(other, what)
            if here != there:
                raise UsageError("E504", f"sites hold different data: {what} {_difference(what, first, other)}.")
    for hello in hellos:
        for package in ("unskew", "torch"):
            mine, theirs = first.versions.get(package), hello.versions.get(package)
            if mine != theirs:
                told = f"{first.site} has {mine}, {hello.site} {theirs}"
                raise UsageError("E504", f"sites run different versions of {package}: {told}.")


def _difference(what: str, a: Hello, b: Hello) -> str:
    here, there = getattr(a, what), getattr(b, what)
    if what != "classes":
        return f"are {list(here)} at {a.site} and {list(there)} at {b.site}"
    only = [f"'{c}' is only at {h.site}" for h, mine, others in ((a, here, there), (b, there, here)) for c in mine if c not in others]  # fmt: skip
    return "; ".join(only[:4]) if only else f"stand in another order at {a.site} and {b.site}"


class Sites(Federation):
    """A federation as the server sees it: K sites of known sizes, none of their samples; perhaps a test set of its own."""

    def __post_init__(self) -> None:
        if not self.clients or not self.sizes.any():
            raise DataError("E403", f"{self.name}: no site holds a training sample.")
        check_labels(self.name, self.y, self.y_test, self.n_classes, self.shape)

    @property
    def label_counts(self) -> np.ndarray:  # type: ignore[override]
        """Zeros [K, C]: sites do not tell."""
        return np.zeros((self.clients, self.n_classes), np.int64)

    @staticmethod
    def of(name: str, hellos: Sequence[Hello], test: Dataset | None = None) -> Sites:
        """In the order given. Raises UsageError (E504) unless all data, and the test set, are alike."""
        check_alike(hellos)
        first = hellos[0]
        shape, pixels = first.shape, first.pixels
        if test is not None:
            check_alike([replace(first), replace(Hello.of("the server", test, first.versions))])
        x_test = np.zeros((0, *shape), np.float32) if test is None else test.x_test
        y_test = np.zeros((0, *pixels), np.int64) if test is None else test.y_test
        return Sites(
            name,
            np.zeros((0, *shape), np.float32),
            np.zeros((0, *pixels), np.int64),
            x_test,
            y_test,
            first.classes,
            Index(np.zeros(0, np.int64), np.cumsum([0, *(h.train for h in hellos)], dtype=np.int64)),
            Index.empty(len(hellos)),
            "sites",
            names=tuple(h.site for h in hellos),
        )


@dataclass(frozen=True)
class Own(Federation):
    """A federation as one site sees it: its own samples as client `k`; of the others only the largest size."""

    largest: int = 0

    @property
    def sizes(self) -> np.ndarray:  # type: ignore[override]
        """[K]: its own; the others' are told as the largest, so that bounds made from sizes are the server's."""
        own = self.train.sizes
        return np.where(own > 0, own, self.largest)

    @staticmethod
    def of(data: Dataset, k: int, clients: int, largest: int) -> Own:
        return Own(
            data.name,
            data.x,
            data.y,
            data.x_test,
            data.y_test,
            data.classes,
            _alone(k, clients, len(data.y)),
            _alone(k, clients, len(data.y_test)),
            "sites",
            largest=largest,
        )


def _alone(k: int, clients: int, rows: int) -> Index:
    """Client k holds rows 0 to rows - 1, the others nothing."""
    return Index(np.arange(rows, dtype=np.int64), np.where(np.arange(clients + 1) > k, rows, 0).astype(np.int64))
