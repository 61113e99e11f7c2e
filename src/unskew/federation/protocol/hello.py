"""A site's description of its data and software before round 1, and the check that the sites of a run fit
together."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from unskew.data.samples.dataset import Dataset, Target
from unskew.errors import UsageError, printable
from unskew.formats.input_layout import Layout
from unskew.version import __version__

Form = tuple[tuple[str, str], ...]
"""Ordered pairs (column, encoding); for sounds (setting, value). () if nothing is known."""
NUMBERS, SOUND = "numbers", "sounds"
SOUNDS = {"rate": "samples a second", "seconds": "seconds", "window": "samples in a frame"}
MOST_COLUMNS = 2000
"""A table with more columns is described by one digest of all of them."""
MOST_NAME = 100
"""Characters of a column's name."""
FORM_REMEDY = (
    "give all sites the same columns in the same order, with words spelt alike, or with numbers where a site"
    " lacks some of the words"
)
MOST_NAMED_CLASSES = 12
FORM_LEAVES = "names of columns, digests of the words in them, how sounds are read"
"""What a form tells, as text for a site's operator."""
DIGEST_DIGITS = 8
"""Hexadecimal digits of the digest of a column's words, by which a guess of all the words can be
confirmed.
"""


def form_of(data: Dataset) -> Form:
    """The form of a data set: its columns or sound settings with their encodings.

    Samples of equal shape may mean different things: the columns of a table in another order, other words
    encoded as columns of 0 and 1, sounds read at another rate. The form contains nothing about single samples
    and no word of the data.
    """
    read: Mapping[str, Any] = data.intake.form if data.intake else {}
    heard = SOUNDS.items() if read.get("kind") == "sounds" else ()
    sounds = tuple((what, f"{read[what]:g} {unit}") for what, unit in heard)
    # several inputs have no order
    content = read["columns"] if read.get("kind") == "table" else sorted(read.get("beside", ()))
    columns: list[tuple[str, str]] = []
    for name, words in content:
        count = f"{len(words)} {'word' if len(words) == 1 else 'words'}"
        columns.append((str(name), f"{count} ({_words_digest(words)})" if words else NUMBERS))
    for name, into in sorted(read.get("files", {}).items()):
        if into["kind"] == "sounds":
            text = f"{into['rate']:g} samples a second, {into['seconds']:g} s, {into['window']:g} a frame"
            columns.append((str(name), f"{SOUND} of {text}"))
    if len(columns) > MOST_COLUMNS:
        columns = [(f"{len(columns):,} columns", _words_digest(columns))]
    return (*sounds, *((name[:MOST_NAME], encoding) for name, encoding in columns))


def form_difference(sites: tuple[str, str], forms: tuple[Form, Form]) -> str:
    """How the forms of two sites differ, as the end of a sentence; "" if they are equal or one is unknown."""
    if not all(forms):
        return ""
    what = "sounds are read in other ways" if all(map(_is_sounds, forms)) else "columns"
    text = _list_difference(what, forms[0], forms[1], sites)
    return f"{text}; {FORM_REMEDY}" if text else ""


def _list_difference(
    what: str,
    one: Sequence[tuple[str, str]],
    other: Sequence[tuple[str, str]],
    sites: tuple[str, str],
) -> str:
    """How the ordered pairs (name, description) of two sites differ; "" if they are equal."""
    a, b = sites
    here, there = dict(one), dict(other)
    only = [f"'{name}' is at {a} and not at {b}" for name in here if name not in there]
    only += [f"'{name}' is at {b} and not at {a}" for name in there if name not in here]
    if only:
        return f"{what}: {'; '.join(only[:4])}"
    for (name, text), (second, text_there) in zip(one, other):
        if name != second:
            return f"{what} are in another order: '{name}' stands at {a} where {b} has '{second}'"
        if text != text_there:
            return f"{what}: '{name}' is {text} at {a} and {text_there} at {b}"
    return "" if len(one) == len(other) else f"{what}: {len(one)} at {a} and {len(other)} at {b}"


def _is_sounds(form: Form) -> bool:
    return tuple(name for name, _ in form[: len(SOUNDS)]) == tuple(SOUNDS)


def _words_digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:DIGEST_DIGITS]


DECISIVE_PACKAGES = ("unskew", "torch")
"""Packages with a version that can change the bits of weights."""
COORDINATOR = "the coordinator"

version = cache(metadata.version)
"""The installed version of a package, cached because every message contains it."""


def versions() -> dict[str, str]:
    """The versions of unskew, torch and Python."""
    torch = version("torch").split("+")[0]  # without importing it, which takes seconds
    return {"unskew": __version__, "torch": torch, "python": platform.python_version()}


def version_conflict(here: str, ours: Mapping[str, str], there: str, theirs: Mapping[str, str]) -> str:
    """Why two ends cannot work together and which one must upgrade, without a full stop; "" if they can.

    Ends with equal first two numbers of unskew's version (0.1.0 and 0.1.7) work together under any Python.
    The last number of unskew and the version of torch can change the last bits of weights, so a difference
    there is reported and not refused.

    here, there: names of the ends; ours, theirs: their versions by package. An end without a version is
    accepted.
    """
    a, b = ours.get("unskew", ""), theirs.get("unskew", "")
    if not (a and b) or _minor(a) == _minor(b):
        return ""
    older, newer, other = (here, b, there) if _minor(a) < _minor(b) else (there, a, here)
    text = f"{here} runs unskew {a} and {there} {b}, which do not work together"
    return f"{text}: {older} must upgrade to unskew {'.'.join(newer.split('.')[:2])}, as at {other}"


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version for comparison; any other text counts as older than a number."""
    return tuple(int(part) if part.isdecimal() else -1 for part in f"{version}.".split(".")[:2])


def version_differences(here: str, ours: Mapping[str, str], there: str, theirs: Mapping[str, str]) -> str:
    """The differing versions that can change bits, as a sentence without a full stop; "" without any."""
    apart = [p for p in DECISIVE_PACKAGES if p in ours and p in theirs and ours[p] != theirs[p]]
    if not apart:
        return ""
    both = [" and ".join(f"{p} {of[p]}" for p in apart) for of in (ours, theirs)]
    return (
        f"{here} runs {both[0]}, {there} {both[1]}: the last bits of weights may differ from a run with equal"
        " versions"
    )


MOST_CLASSES, MOST_AXES, MOST_VERSIONS = 100_000, 8, 10

VALUES = {
    "shape": "a sample's shape is",
    "pixels": "a label's shape is",
    "target": "the target's center and scale are",
    "scale": "the constants of standardising are",
}
"""Fields that must be equal at all sites, with the beginning of a sentence about each."""


@dataclass(frozen=True)
class Hello:
    """Counts and shapes of a site's data; neither a sample nor a label.

    train, test: numbers of samples. shape: shape of one sample; pixels: shape of one label, () for a class or
    (height, width) for a mask. versions: versions by package. target: the centers, then the scales of
    predicted numbers; () for classes. several: a sample can have any number of the classes. layout: the
    inputs of samples that have several inputs. scale: means, then standard deviations, of the channels if the
    data set's published constants standardised it; else (). own_scale: the site standardised its samples by
    its own constants, which it does not send. unscaled: the samples look as if they should have been scaled.
    form: how the table or the sounds became samples; () if unknown.
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
    form: Form = ()

    @property
    def applied(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """The scale as (means, standard deviations), or None."""
        half = len(self.scale) // 2
        return (self.scale[:half], self.scale[half:]) if self.scale else None

    @property
    def learnt(self) -> Target | None:
        """The target of predicted numbers, or None for classes."""
        if not self.target:
            return None
        if (count := len(self.classes)) == 1:
            return Target(self.classes[0], *self.target, given=True)
        return Target(",".join(self.classes), self.target[:count], self.target[count:], given=True)

    @staticmethod
    def of(site: str, data: Dataset, versions: Mapping[str, str]) -> Hello:
        """The description of a site's data set."""
        known = data.applied if data.intake is None else None  # else computed from samples of this site
        return Hello(
            site,
            len(data.y),
            len(data.y_test),
            data.shape,
            data.classes,
            tuple(data.y.shape[1:]) if data.masks else (),
            versions,
            tuple(np.hstack([data.target.center, data.target.scale]).tolist()) if data.target else (),
            data.several,
            data.layout,
            scale=(*known[0], *known[1]) if known else (),
            own_scale=known is None and data.applied is not None,
            form=form_of(data),
        )

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Hello:
        """Parse a description from a reply's header. Raises KeyError, TypeError or ValueError if it is
        malformed.
        """
        shape = tuple(_count(v) for v in facts["shape"])
        pixels = tuple(_count(v) for v in facts["pixels"])
        classes = tuple(_name(c) for c in facts["classes"])
        known = {_name(n): _name(v) for n, v in dict(facts["versions"]).items()}
        layout = None
        if facts.get("layout") is not None:  # its samples are rows
            (width,) = shape
            layout = Layout.from_json(facts["layout"], width)
            if pixels and pixels not in {(n,) for n in layout.lengths}:
                raise ValueError("several inputs, none of which has as many places as labels")
        target = _constants(facts.get("target", ()), len(classes))
        if not (1 if target else 2) <= len(classes) <= MOST_CLASSES or not shape:
            raise ValueError("no classes or no shape")
        if max(len(shape), len(pixels)) > MOST_AXES or len(known) > MOST_VERSIONS:
            raise ValueError(f"more than {MOST_AXES} axes or {MOST_VERSIONS} versions")
        form = tuple((_name(name), _name(encoding)) for name, encoding in facts.get("form", ()))
        if len(form) > MOST_COLUMNS:
            raise ValueError(f"more than {MOST_COLUMNS} columns")
        return Hello(
            printable(str(facts["site"])[:64]),
            _count(facts["train"]),
            _count(facts["test"]),
            shape,
            classes,
            pixels,
            known,
            target,
            layout=layout,
            scale=_constants(facts.get("scale", ()), layout.channels if layout else shape[0]),
            form=form,
            **{flag: facts.get(flag) is True for flag in ("several", "own_scale", "unscaled")},
        )

    def as_json(self) -> dict[str, Any]:
        """The description as JSON values; optional fields that are empty are left out."""
        layout = self.layout.as_json() if self.layout else None
        facts = {**asdict(self), "versions": dict(self.versions), "layout": layout}
        optional = ("target", "several", "layout", "scale", "own_scale", "unscaled", "form")
        return {name: value for name, value in facts.items() if value or name not in optional}


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is not a count")
    return value


def _name(value: Any) -> str:
    return printable(str(value)[:MOST_NAME])


def _constants(values: Any, channels: int) -> tuple[float, ...]:
    """The means of the channels, then their scales, or (). Raises ValueError for anything else."""
    numbers = tuple(float(v) for v in values)
    if numbers and (
        len(numbers) != 2 * channels or not all(map(math.isfinite, numbers)) or min(numbers[channels:]) <= 0
    ):
        raise ValueError(f"{printable(repr(values)[:100])} is not a mean and a scale for each channel")
    return numbers


def largest_group(hellos: Sequence[Hello]) -> tuple[list[Hello], dict[str, str]]:
    """The sites of the largest group that fits one run, and for each other site the reason why it does not
    fit.

    Raises UsageError (E504), which names two sites, if no group is larger than all others.
    """
    candidates = [h for h in hellos if h.form] or list(hellos)  # a site of unknown form fits several groups
    groups = {h.site: [o for o in hellos if not data_difference(h, o)] for h in candidates}
    one = max(candidates, key=lambda h: len(groups[h.site]), default=None)
    if one is None:
        return [], {}
    misfits = {h.site: text for h in hellos if (text := data_difference(one, h))}
    for other in candidates:
        if other.site in misfits and len(groups[other.site]) == len(groups[one.site]):
            raise UsageError("E504", f"{misfits[other.site]}.")
    return groups[one.site], misfits


def data_difference(one: Hello, other: Hello) -> str:
    """Why the data of two sites do not fit one run, as a sentence without a full stop; "" if they do."""
    sites = one.site, other.site
    text = ""
    if one.several != other.several:
        several, single = sites if one.several else sites[::-1]
        text = f"samples have several labels at {several} and one at {single}"
    elif one.classes != other.classes:
        here, there = ([(name, "") for name in each.classes] for each in (one, other))
        text = _list_difference("classes", here, there, sites)
        every = sorted({*one.classes, *other.classes})
        listed = f", --classes {','.join(every)}" if len(every) <= MOST_NAMED_CLASSES else ""
        text = f"{text}; name all classes at every site{listed}"
    elif form := form_difference(sites, (one.form, other.form)):
        text = form
    elif one.layout != other.layout:
        several, single = sites if one.layout else sites[::-1]
        text = f"samples have several inputs at {several} and one at {single}"
        if one.layout and other.layout:
            here, there = (
                [(each.name, str(each).removeprefix(f"{each.name} ")) for each in layout.inputs]
                for layout in (one.layout, other.layout)
            )
            text = _list_difference("inputs", here, there, sites) or "inputs have names at one of them only"
    else:
        for name, what in VALUES.items():
            here, there = getattr(one, name), getattr(other, name)
            if here != there:
                text = f"{what} {list(here)} at {one.site} and {list(there)} at {other.site}"
                break
    return f"sites hold different data: {text}" if text else ""
