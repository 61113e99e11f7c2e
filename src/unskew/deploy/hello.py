"""What a site says about its data before round 1, and whether the sites of a run fit together."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from unskew.data.dataset import Dataset
from unskew.errors import UsageError, printable
from unskew.version import __version__

MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Hello:
    """Counts and shapes; neither a sample nor a label.

    train, test: numbers of samples; shape: of one sample; pixels: of one label, () or a mask's height and width;
    versions: of the packages whose version matters.
    """

    site: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    pixels: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> tuple[object, ...]:
        """What it says of its data, without the versions."""
        return self.site, self.train, self.test, self.shape, self.classes, self.pixels

    @staticmethod
    def of(site: str, data: Dataset, versions: Mapping[str, str]) -> Hello:
        return Hello(site, len(data.y), len(data.y_test), data.shape, data.classes, tuple(data.y.shape[1:]), versions)

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Hello:
        """From a reply's header. Raises KeyError, TypeError or ValueError for anything that is not as declared."""
        hello = Hello(
            printable(str(facts["site"])[:64]),
            _count(facts["train"]),
            _count(facts["test"]),
            tuple(_count(v) for v in facts["shape"]),
            tuple(printable(str(c)[:100]) for c in facts["classes"]),
            tuple(_count(v) for v in facts["pixels"]),
            {printable(str(n)[:40]): printable(str(v)[:40]) for n, v in dict(facts["versions"]).items()},
        )
        if not 2 <= len(hello.classes) <= MOST_CLASSES or not hello.shape:
            raise ValueError("no classes or no shape")
        return hello

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "versions": dict(self.versions)}


def versions() -> dict[str, str]:
    """Of the packages that decide about a run's bits."""
    torch = version("torch").split("+")[0]  # without importing it, which takes seconds
    return {"unskew": __version__, "torch": torch, "python": platform.python_version()}


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is not a count")
    return value


def check_alike(hellos: Sequence[Hello]) -> None:
    """Raises UsageError (E504), naming two sites, unless all hold data of one task and run the same versions."""
    first = hellos[0]
    for other in hellos[1:]:
        for what in ("classes", "shape", "pixels"):
            if getattr(first, what) != getattr(other, what):
                raise UsageError("E504", f"sites hold different data: {what} {_difference(what, first, other)}.")
    for hello in hellos:
        check_versions(first, hello)


def check_versions(one: Hello, other: Hello, when: str = "") -> None:
    """Raises UsageError (E504) if two sites, or one site now and before, run other versions of what decides about bits.

    Which Python it is does not decide about them. when: the end of the sentence's first half, such as " than before".
    """
    for package in ("unskew", "torch"):
        ours, theirs = one.versions.get(package), other.versions.get(package)
        if ours != theirs:
            versions = f"{one.site} has {ours}, {other.site} {theirs}"
            raise UsageError("E504", f"sites run different versions of {package}{when}: {versions}.")


def _difference(what: str, a: Hello, b: Hello) -> str:
    at_a, at_b = getattr(a, what), getattr(b, what)
    if what != "classes":
        return f"are {list(at_a)} at {a.site} and {list(at_b)} at {b.site}"
    only = [f"'{c}' is only at {a.site}" for c in at_a if c not in at_b]
    only += [f"'{c}' is only at {b.site}" for c in at_b if c not in at_a]
    return "; ".join(only[:4]) if only else f"are in another order at {a.site} and {b.site}"
