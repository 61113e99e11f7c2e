"""What a site says about its data before round 1, and whether the sites of a run fit together."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from typing import Any

from unskew.data.dataset import Dataset
from unskew.data.layout import Layout
from unskew.data.target import Target
from unskew.deploy import forms
from unskew.deploy.versions import COORDINATOR, another, refusal
from unskew.errors import UsageError, printable
from unskew.version import __version__

MOST_CLASSES, MOST_AXES, MOST_VERSIONS = 100_000, 8, 10

VALUES = {
    "shape": "a sample's shape is",
    "pixels": "a label's shape is",
    "target": "the target's center and scale are",
    "scale": "the constants of standardising are",
}
"""What must be equal at all sites, with how a sentence about it begins."""

version = cache(metadata.version)
"""What is installed; reading it takes milliseconds, and every message says it."""


@dataclass(frozen=True)
class Hello:
    """Counts and shapes; neither a sample nor a label.

    train, test: numbers of samples; shape: of one sample; pixels: of one label, () or a mask's height and width;
    versions: of the packages whose version matters; target: center and scale of a number that is predicted, () of classes.
    several: whether a sample has any number of the classes. layout: the inputs of samples that have several. scale: by which a set that everybody has was standardised, the means of
    its channels and then their standard deviations, () for none. own_scale: whether this site standardised its samples by
    constants of its own, which it does not tell. unscaled: whether its samples look as if somebody should have scaled them.
    form: how its table or sounds became samples, () where nothing is known of that.
    """

    site: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    pixels: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    target: tuple[float, ...] = ()
    several: bool = False
    layout: Layout | None = None
    scale: tuple[float, ...] = ()
    own_scale: bool = False
    unscaled: bool = False
    form: forms.Form = ()

    @property
    def data(self) -> tuple[object, ...]:
        """What it says of its data, without the versions."""
        form = self.shape, self.classes, self.pixels, self.target, self.several, self.layout, self.scale, self.own_scale
        return self.site, self.train, self.test, *form, self.form

    @property
    def applied(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """The scale as (means, standard deviations)."""
        half = len(self.scale) // 2
        return (self.scale[:half], self.scale[half:]) if self.scale else None

    @property
    def learnt(self) -> Target | None:
        """The target of numbers, if there is one."""
        return Target(self.classes[0], *self.target, given=True) if self.target else None

    @staticmethod
    def of(site: str, data: Dataset, versions: Mapping[str, str]) -> Hello:
        target = (data.target.center, data.target.scale) if data.target else ()
        pixels = tuple(data.y.shape[1:]) if data.masks else ()
        counts = len(data.y), len(data.y_test)
        known = data.applied if data.intake is None else None  # else they were computed from samples of this site
        return Hello(
            site, *counts, data.shape, data.classes, pixels, versions, target, data.several, data.layout,
            scale=(*known[0], *known[1]) if known else (), own_scale=known is None and data.applied is not None,
            form=forms.form_of(data),
        )  # fmt: skip

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
            {printable(str(n)[:100]): printable(str(v)[:100]) for n, v in dict(facts["versions"]).items()},
            _constants(facts.get("target", ())),
            facts.get("several", False) is True,
            _layout(facts),
            _scale(facts),
            facts.get("own_scale", False) is True,
            facts.get("unscaled", False) is True,
            forms.read(facts.get("form", ())),
        )
        least, most = (1, 1) if hello.target else (2, MOST_CLASSES)
        if not least <= len(hello.classes) <= most or not hello.shape:
            raise ValueError("no classes or no shape")
        if max(len(hello.shape), len(hello.pixels)) > MOST_AXES or len(hello.versions) > MOST_VERSIONS:
            raise ValueError(f"more than {MOST_AXES} axes or {MOST_VERSIONS} versions")
        if hello.layout and hello.pixels and hello.pixels not in {(n,) for n in hello.layout.lengths}:
            raise ValueError("several inputs, none of which has as many places as labels")
        return hello

    def as_json(self) -> dict[str, Any]:
        layout = self.layout.as_json() if self.layout else None
        facts = {**asdict(self), "versions": dict(self.versions), "layout": layout}
        optional = ("target", "several", "layout", "scale", "own_scale", "unscaled", "form")
        left_out = {name for name in optional if not facts[name]}
        return {name: value for name, value in facts.items() if name not in left_out}


def versions() -> dict[str, str]:
    """Of the packages that decide about a run's bits."""
    torch = version("torch").split("+")[0]  # without importing it, which takes seconds
    return {"unskew": __version__, "torch": torch, "python": platform.python_version()}


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is not a count")
    return value


def _constants(values: Any) -> tuple[float, ...]:
    """(center, scale) as JSON holds them, or (). Raises ValueError for anything else."""
    numbers = tuple(float(v) for v in values)
    if numbers and not (len(numbers) == 2 and all(map(math.isfinite, numbers)) and numbers[1] > 0):
        raise ValueError(f"{values!r} is no center and scale")
    return numbers


def _layout(facts: Mapping[str, Any]) -> Layout | None:
    """Of samples with several inputs, which are one row each. Raises as `Layout.from_json`, ValueError for samples that are no rows."""
    if facts.get("layout") is None:
        return None
    (width,) = facts["shape"]
    return Layout.from_json(facts["layout"], width)


def _scale(facts: Mapping[str, Any]) -> tuple[float, ...]:
    """One mean and one standard deviation for each channel, or (). Raises KeyError, TypeError or ValueError for anything else."""
    numbers = tuple(float(v) for v in facts.get("scale", ()))
    layout, half = _layout(facts), len(numbers) // 2
    channels = layout.channels if layout else facts["shape"][0]
    if numbers and (len(numbers) != 2 * channels or not all(map(math.isfinite, numbers)) or min(numbers[half:]) <= 0):
        raise ValueError("scale is not a mean and a standard deviation for each channel")
    return numbers


def check_alike(hellos: Sequence[Hello]) -> None:
    """Raises UsageError (E504), naming two sites, unless all hold data of one task."""
    for one, other in itertools.product(_speakers(hellos), hellos):
        if text := difference(one, other):
            raise UsageError("E504", f"{text}.")


def difference(one: Hello, other: Hello) -> str:
    """Why these two cannot take part in one run by their data, as a sentence without its full stop; "" if they can."""
    if one.several != other.several:
        several, single = (one, other) if one.several else (other, one)
        return f"sites hold different data: samples have several labels at {several.site} and one at {single.site}"
    text = _other_classes(one, other) or forms.difference((one.site, other.site), (one.form, other.form))
    text = text or _other_inputs(one, other) or _other_values(one, other)  # the last of which says least of why
    return f"sites hold different data: {text}" if text else ""


def changed(before: Hello, now: Hello) -> str:
    """Why a site that has come back cannot go on, as a sentence without its full stop; "" if it can."""
    if now.train != before.train:
        return f"{now.site} holds {now.train} training samples; it held {before.train} when the run began"
    if now.data != (before if before.form else replace(before, form=now.form)).data:
        return f"{now.site} has other data than when the run began"
    if text := another(now.site, before.versions, now.versions):
        return text
    return refusal(now.site, now.versions, COORDINATOR, versions())


def fitting(hellos: Sequence[Hello]) -> tuple[list[Hello], dict[str, str]]:
    """(the sites of the largest group that can take part in one run, why not by name of each other site).

    Raises UsageError (E504), naming two sites, where no group is larger than all others.
    """
    groups: list[list[Hello]] = [[]] * (not hellos)
    for hello in hellos:
        group = next((g for g in groups if not any(difference(one, hello) for one in _speakers(g))), None)
        groups.append([hello]) if group is None else group.append(hello)
    groups.sort(key=len, reverse=True)
    if len(groups) > 1 and len(groups[0]) == len(groups[1]):
        check_alike([*groups[0], groups[1][0]])
    return groups[0], {h.site: _apart(groups[0], h) for group in groups[1:] for h in group}


def _apart(group: Sequence[Hello], hello: Hello) -> str:
    """Why a site does not fit a group, as a sentence without its full stop."""
    return next(text for one in _speakers(group) if (text := difference(one, hello)))


def _speakers(group: Sequence[Hello]) -> list[Hello]:
    """Whoever fits these fits all of a group: the first, and the first that says how its samples came about."""
    return [*group[:1], *[hello for hello in group[1:] if hello.form and not group[0].form][:1]]


def _other_inputs(one: Hello, other: Hello) -> str:
    """How the inputs of samples differ at these two; "" if they do not. Short, however many a site has made up."""
    a, b = one.layout, other.layout
    if a == b:
        return ""
    if a is None or b is None:
        several, single = (one, other) if a else (other, one)
        return f"samples have several inputs at {several.site} and one at {single.site}"
    if a.named != b.named:
        named, placed = (one, other) if a.named else (other, one)
        return f"inputs have names at {named.site}, as a dictionary gives them, and none at {placed.site}"
    names_a, names_b = ([each.name for each in layout.inputs] for layout in (a, b))
    only = [f"input '{n}' is only at {one.site}" for n in names_a if n not in names_b]
    only += [f"input '{n}' is only at {other.site}" for n in names_b if n not in names_a]
    if only:
        return "; ".join(only[:4])
    here, there = next((x, y) for x, y in zip(a.inputs, b.inputs) if x != y)
    return f"input {here} at {one.site} is {there} at {other.site}"


def _other_classes(a: Hello, b: Hello) -> str:
    """How the classes of these two differ; "" if they do not."""
    if a.classes == b.classes:
        return ""
    only = [f"'{c}' is only at {a.site}" for c in a.classes if c not in b.classes]
    only += [f"'{c}' is only at {b.site}" for c in b.classes if c not in a.classes]
    return f"classes {'; '.join(only[:4]) if only else f'are in another order at {a.site} and {b.site}'}"


def _other_values(a: Hello, b: Hello) -> str:
    """Which of `VALUES` differs at these two; "" if none does."""
    for name, what in VALUES.items():
        at_a, at_b = getattr(a, name), getattr(b, name)
        if at_a != at_b:
            return f"{what} {list(at_a)} at {a.site} and {list(at_b)} at {b.site}"
    return ""
