"""A site's description of its data and software before round 1, and the check that the sites of a run fit
together.

Form: how a site's table or sounds became samples. Samples of equal shape may mean different things: the
columns of a table in another order, other words encoded as columns of 0 and 1, sounds read at another rate.
The form contains nothing about single samples and no word of the data.

Versions: ends with equal first two numbers of unskew's version (0.1.0 and 0.1.7) work together under any
Python. The last number of unskew and the version of torch can change the last bits of weights, so a
difference there is reported and not refused. Differences of a Part from an installed package are reported
too, because each end runs its own code of the Part.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
import platform
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.samples.dataset import Dataset, Target
from unskew.errors import UsageError, printable
from unskew.formats.input_layout import Layout
from unskew.system import python_files
from unskew.version import __version__

Form = tuple[tuple[str, str], ...]
"""Ordered pairs (column, encoding); for sounds (setting, value). () if nothing is known."""
NUMBERS, SOUND = "numbers", "sounds"
SOUNDS = {"rate": "samples a second", "seconds": "seconds", "window": "samples in a frame"}
MOST_COLUMNS = 2000
"""A table with more columns is described by one digest of all of them."""
MOST_NAME = 100
"""Characters of a column's name."""
COLUMN_REMEDY = "give all sites the same columns in the same order"
SPELLING_REMEDY = "spell its words alike at all sites, or write numbers where a site lacks some of them"
MOST_NAMED_CLASSES = 12
DIGEST_DIGITS = 8
"""Hexadecimal digits of the digest of a column's words, by which a guess of all the words can be
confirmed.
"""


def form_of(data: Dataset) -> Form:
    """The form of a data set: its columns or sound settings with their encodings."""
    read: Mapping[str, Any] = data.intake.form if data.intake else {}
    sounds = tuple((what, f"{read[what]:g}") for what in SOUNDS) if read.get("kind") == "sounds" else ()
    content = (
        read["columns"] if read.get("kind") == "table" else sorted(read.get("beside", ()))
    )  # inputs have no order
    columns = tuple((str(name), _column_kind(kinds)) for name, kinds in content)
    columns += tuple(
        (
            str(name),
            (
                f"{SOUND} of {into['rate']:g} samples a second, {into['seconds']:g} s, {into['window']:g} a"
                " frame"
            ),
        )
        for name, into in sorted(read.get("files", {}).items())
        if into["kind"] == "sounds"
    )
    if len(columns) > MOST_COLUMNS:
        columns = ((f"{len(columns):,} columns", _words_digest(columns)),)
    return (*sounds, *((name[:MOST_NAME], encoding) for name, encoding in columns))


def form_disclosure(form: Form) -> str:
    """Which parts of a form leave the site, as text for its operator; "" for an empty form."""
    if not form:
        return ""
    columns = form[len(SOUNDS) :] if _is_sounds(form) else form
    heard = _is_sounds(form) or any(encoding.startswith(SOUND) for _, encoding in columns)
    rate = "at which rate sounds are read" if heard else ""
    if not columns:
        return rate
    words = (
        ", digests of the words in columns of words"
        if any(encoding[:1].isdigit() for _, encoding in columns)
        else ""
    )
    return f"{rate}{rate and ', '}names of columns{words}"


def read_form(pairs: Any) -> Form:
    """Parse a form from a reply's header. Raises TypeError or ValueError if the value is not a form."""
    form = tuple(
        (printable(str(name)[:MOST_NAME]), printable(str(encoding)[:MOST_NAME])) for name, encoding in pairs
    )
    if len(form) > MOST_COLUMNS:
        raise ValueError(f"more than {MOST_COLUMNS} columns")
    return form


def form_difference(
    sites: tuple[str, str], forms: tuple[Form, Form], everywhere: Mapping[str, Form] = MappingProxyType({})
) -> str:
    """How the forms of two sites differ, as the end of a sentence; "" if they are equal or one is unknown.

    everywhere: the forms of further sites, which are named if they have a column that one of the two lacks.
    """
    (a, b), (one, other) = sites, forms
    if one == other or not (one and other):
        return ""
    here, there = dict(one), dict(other)
    if _is_sounds(one) and _is_sounds(other):
        what = next((name for name in SOUNDS if here[name] != there[name]), "")
        if what:
            return f"sounds are read with {here[what]} {SOUNDS[what]} at {a} and {there[what]} at {b}"
    names = {site: dict(form) for site, form in everywhere.items()}
    only = [f"column '{name}' is only at {_holders(a, name, names)}" for name in here if name not in there]
    only += [f"column '{name}' is only at {_holders(b, name, names)}" for name in there if name not in here]
    if only:
        return f"{'; '.join(only[:4])}; {COLUMN_REMEDY}"
    for (name, encoding), (second, encoding_there) in zip(one, other):
        if name != second:
            return (
                f"columns are in another order: '{name}' stands at {a} where {b} has '{second}';"
                f" {COLUMN_REMEDY}"
            )
        if encoding != encoding_there:
            return f"column '{name}' {_column_difference(encoding, encoding_there, a, b)}"
    return f"{a} has {len(one)} columns and {b} {len(other)}"


def _holders(site: str, name: str, names: Mapping[str, Container[str]]) -> str:
    """The site and the others that have this name."""
    return ", ".join(dict.fromkeys([site, *(other for other, has in names.items() if name in has)]))


def _is_sounds(form: Form) -> bool:
    return tuple(name for name, _ in form[: len(SOUNDS)]) == tuple(SOUNDS)


def _column_difference(here: str, there: str, a: str, b: str) -> str:
    content, content_there = (encoding.partition(" (")[0] for encoding in (here, there))
    if content == content_there:
        return f"holds other words at {a} than at {b}; {SPELLING_REMEDY}"
    words = content[:1].isdigit() and content_there[:1].isdigit()
    return (
        f"holds {content} at {a} and {content_there} at {b};"
        f" {SPELLING_REMEDY if words else 'let it hold the same at all sites'}"
    )


def _column_kind(kinds: Sequence[str]) -> str:
    if not kinds:
        return NUMBERS
    return f"{len(kinds)} {'word' if len(kinds) == 1 else 'words'} ({_words_digest(kinds)})"


def _words_digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:DIGEST_DIGITS]


DECISIVE_PACKAGES = ("unskew", "torch")
"""Packages with a version that can change the bits of weights."""
PYTHON = "python"
COORDINATOR = "the coordinator"
MOST_PARTS = 7
"""Number of Parts with a version in the description."""


def version_conflict(here: str, ours: Mapping[str, str], there: str, theirs: Mapping[str, str]) -> str:
    """Why two ends cannot work together and which one must upgrade, without a full stop; "" if they can.

    here, there: names of the ends; ours, theirs: their versions by package. An end without a version is
    accepted.
    """
    a, b = ours.get("unskew", ""), theirs.get("unskew", "")
    if not (a and b) or _minor(a) == _minor(b):
        return ""
    older, newer = (here, b) if _minor(a) < _minor(b) else (there, a)
    other = there if older == here else here
    text = f"{here} runs unskew {a} and {there} {b}, which do not work together"
    return f"{text}: {older} must upgrade to unskew {'.'.join(newer.split('.')[:2])}, as at {other}"


def version_differences(here: str, ours: Mapping[str, str], there: str, theirs: Mapping[str, str]) -> str:
    """The differing versions that can change a run's bits, as a sentence without a full stop; "" if there are
    none.
    """
    known = dict.fromkeys([*DECISIVE_PACKAGES, *ours])
    apart = [p for p in known if p != PYTHON and p in ours and p in theirs and ours[p] != theirs[p]]
    if not apart:
        return ""
    both = [" and ".join(f"{p} {of[p]}" for p in apart) for of in (ours, theirs)]
    what = "the last bits of weights" if {*apart} <= {*DECISIVE_PACKAGES} else "the run"
    return f"{here} runs {both[0]}, {there} {both[1]}: {what} may differ from a run with equal versions"


def part_versions(method: Method) -> dict[str, str]:
    """By name of each Part from an installed package: the package's version and 8 digits of the SHA-256 of
    its code.

    The code is the Part's file and the modules of its package that the file imports.
    """
    return dict([pair for part in method.parts if (pair := _part_version(type(part)))][:MOST_PARTS])


@cache
def _part_version(kind: type[Part]) -> tuple[str, str] | None:
    place = f"{kind.__module__}:{kind.__qualname__}"
    entry = next((e for e in entry_points(group="unskew.methods") if e.value == place), None)
    if entry is None:
        return None
    file = inspect.getsourcefile(kind)
    digest = _code_digest(Path(file), kind.__module__) if file and Path(file).is_file() else "no file"
    return entry.name, f"{entry.dist.version if entry.dist else 'without a version'} ({digest})"


def version_change(site: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Why a site cannot continue a run after a change of versions, without a full stop; "" if it can.

    The version of Python is ignored; unskew's version is left to `version_conflict`.
    """
    for what in ("torch", *(name for name in before if name not in ("torch", "unskew", PYTHON))):
        then, since = before.get(what), now.get(what)
        if then != since:
            return (
                f"{site} runs another version of {what} than when the run began: it had {then}, now {since}"
            )
    return ""


def _code_digest(file: Path, module: str) -> str:
    """First 8 digits of the SHA-256 of a Part's file and of the modules of its package that it imports."""
    package = module.partition(".")[0]
    beside = [p.read_bytes() for p in sorted(python_files.imported_files(file, within=package))]
    sha = hashlib.sha256(file.read_bytes())
    for content in beside:
        sha.update(hashlib.sha256(content).digest())
    return sha.hexdigest()[:8]


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version for comparison; a part that is not a number counts as older than any
    number.
    """
    return tuple(int(part) if part.isdecimal() else -1 for part in f"{version}.".split(".")[:2])


MOST_CLASSES, MOST_AXES, MOST_VERSIONS = 100_000, 8, 10

VALUES = {
    "shape": "a sample's shape is",
    "pixels": "a label's shape is",
    "target": "the target's center and scale are",
    "scale": "the constants of standardising are",
}
"""Fields that must be equal at all sites, with the beginning of a sentence about each."""

version = cache(metadata.version)
"""The installed version of a package, cached because every message contains it."""


@dataclass(frozen=True)
class Hello:
    """Counts and shapes of a site's data; neither a sample nor a label.

    train, test: numbers of samples. shape: shape of one sample; pixels: shape of one label, () for a class
    or (height, width) for a mask. versions: versions by package. target: (center, scale) of the predicted
    number; () for classes. several: a sample can have any number of the classes. layout: the inputs of
    samples that have several inputs. scale: means, then standard deviations, of the channels if the data
    set's published constants standardised it; else (). own_scale: the site standardised its samples by its
    own constants, which it does not send. unscaled: the samples look as if they should have been scaled.
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
    def data(self) -> tuple[object, ...]:
        """The description of the data without the versions, for comparison."""
        form = (
            self.shape,
            self.classes,
            self.pixels,
            self.target,
            self.several,
            self.layout,
            self.scale,
            self.own_scale,
        )
        return self.site, self.train, self.test, *form, self.form

    @property
    def applied(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """The scale as (means, standard deviations), or None."""
        half = len(self.scale) // 2
        return (self.scale[:half], self.scale[half:]) if self.scale else None

    @property
    def learnt(self) -> Target | None:
        """The target for a predicted number, or None for classes."""
        return Target(self.classes[0], *self.target, given=True) if self.target else None

    @staticmethod
    def of(site: str, data: Dataset, versions: Mapping[str, str]) -> Hello:
        """The description of a site's data set."""
        target = (data.target.center, data.target.scale) if data.target else ()
        pixels = tuple(data.y.shape[1:]) if data.masks else ()
        counts = len(data.y), len(data.y_test)
        known = (
            data.applied if data.intake is None else None
        )  # else they were computed from samples of this site
        return Hello(
            site,
            *counts,
            data.shape,
            data.classes,
            pixels,
            versions,
            target,
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
            read_form(facts.get("form", ())),
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
        """The description as JSON values; optional fields that are empty are left out."""
        layout = self.layout.as_json() if self.layout else None
        facts = {**asdict(self), "versions": dict(self.versions), "layout": layout}
        optional = ("target", "several", "layout", "scale", "own_scale", "unscaled", "form")
        left_out = {name for name in optional if not facts[name]}
        return {name: value for name, value in facts.items() if name not in left_out}


def versions() -> dict[str, str]:
    """The versions of unskew, torch and Python."""
    torch = version("torch").split("+")[0]  # without importing it, which takes seconds
    return {"unskew": __version__, "torch": torch, "python": platform.python_version()}


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is not a count")
    return value


def _constants(values: Any) -> tuple[float, ...]:
    """(center, scale), or (). Raises ValueError for anything else."""
    numbers = tuple(float(v) for v in values)
    if numbers and not (len(numbers) == 2 and all(map(math.isfinite, numbers)) and numbers[1] > 0):
        raise ValueError(f"{values!r} is no center and scale")
    return numbers


def _layout(facts: Mapping[str, Any]) -> Layout | None:
    """The layout of samples with several inputs, each of which is one row, or None.

    Raises as `Layout.from_json`, and ValueError for samples that are not rows.
    """
    if facts.get("layout") is None:
        return None
    (width,) = facts["shape"]
    return Layout.from_json(facts["layout"], width)


def _scale(facts: Mapping[str, Any]) -> tuple[float, ...]:
    """One mean and one standard deviation for each channel, or (). Raises KeyError, TypeError or ValueError
    for anything else.
    """
    numbers = tuple(float(v) for v in facts.get("scale", ()))
    layout, half = _layout(facts), len(numbers) // 2
    channels = layout.channels if layout else facts["shape"][0]
    if numbers and (
        len(numbers) != 2 * channels or not all(map(math.isfinite, numbers)) or min(numbers[half:]) <= 0
    ):
        raise ValueError("scale is not a mean and a standard deviation for each channel")
    return numbers


def check_compatible(hellos: Sequence[Hello]) -> None:
    """Raises UsageError (E504), which names two sites, unless the data of all sites fit one task."""
    for one, other in itertools.product(_representatives(hellos), hellos):
        if text := data_difference(one, other, hellos):
            raise UsageError("E504", f"{text}.")


def data_difference(one: Hello, other: Hello, everywhere: Sequence[Hello] = ()) -> str:
    """Why the data of two sites do not fit one run, as a sentence without a full stop; "" if they do.

    everywhere: all sites, of which those are named that have a class or column that one of the two lacks.
    """
    if one.several != other.several:
        several, single = (one, other) if one.several else (other, one)
        return (
            f"sites hold different data: samples have several labels at {several.site} and one at"
            f" {single.site}"
        )
    text = _class_difference(one, other, everywhere) or form_difference(
        (one.site, other.site), (one.form, other.form), {hello.site: hello.form for hello in everywhere}
    )
    text = (
        text or _input_difference(one, other) or _value_difference(one, other)
    )  # the last of which says least of why
    return f"sites hold different data: {text}" if text else ""


def data_change(before: Hello, now: Hello) -> str:
    """Why a returning site cannot continue a run, as a sentence without a full stop; "" if it can."""
    if now.train != before.train:
        return f"{now.site} holds {now.train} training samples; it held {before.train} when the run began"
    if now.data != (before if before.form else replace(before, form=now.form)).data:
        return f"{now.site} has other data than when the run began"
    if text := version_change(now.site, before.versions, now.versions):
        return text
    return version_conflict(now.site, now.versions, COORDINATOR, versions())


def largest_group(hellos: Sequence[Hello]) -> tuple[list[Hello], dict[str, str]]:
    """The sites of the largest group that fits one run, and for each other site the reason why it does not
    fit.

    Raises UsageError (E504), which names two sites, if no group is larger than all others.
    """
    groups: list[list[Hello]] = [[]] * (not hellos)
    for hello in hellos:
        group = next(
            (g for g in groups if not any(data_difference(one, hello) for one in _representatives(g))), None
        )
        groups.append([hello]) if group is None else group.append(hello)
    groups.sort(key=len, reverse=True)
    if len(groups) > 1 and len(groups[0]) == len(groups[1]):
        check_compatible([*groups[0], *(hello for group in groups[1:] for hello in group)])
    return groups[0], {h.site: _misfit(groups[0], h, hellos) for group in groups[1:] for h in group}


def _misfit(group: Sequence[Hello], hello: Hello, everywhere: Sequence[Hello]) -> str:
    """Why a site does not fit a group, as a sentence without a full stop."""
    return next(text for one in _representatives(group) if (text := data_difference(one, hello, everywhere)))


def _representatives(group: Sequence[Hello]) -> list[Hello]:
    """The members with which a site must fit to fit the group: the first one, and the first one with a known
    form.
    """
    return [*group[:1], *[hello for hello in group[1:] if hello.form and not group[0].form][:1]]


def _input_difference(one: Hello, other: Hello) -> str:
    """How the inputs of samples differ between two sites, as short text; "" if they are equal."""
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


def _class_difference(a: Hello, b: Hello, everywhere: Sequence[Hello]) -> str:
    """How the classes of two sites differ, and the classes to name at all sites; "" if they are equal."""
    if a.classes == b.classes:
        return ""
    names = {hello.site: hello.classes for hello in everywhere}
    only = [f"'{c}' is only at {_holders(a.site, c, names)}" for c in a.classes if c not in b.classes]
    only += [f"'{c}' is only at {_holders(b.site, c, names)}" for c in b.classes if c not in a.classes]
    text = "; ".join(only[:4]) if only else f"are in another order at {a.site} and {b.site}"
    every = sorted({c for classes in (a.classes, b.classes, *names.values()) for c in classes})
    remedy = "name all classes at every site"
    if len(every) <= MOST_NAMED_CLASSES:
        remedy += f", --classes {','.join(every)}"
    return f"classes {text}; {remedy}"


def _value_difference(a: Hello, b: Hello) -> str:
    """Which of `VALUES` differs between two sites; "" if none does."""
    for name, what in VALUES.items():
        at_a, at_b = getattr(a, name), getattr(b, name)
        if at_a != at_b:
            return f"{what} {list(at_a)} at {a.site} and {list(at_b)} at {b.site}"
    return ""
