"""How a site's table or sounds became samples, as far as all sites of a run must have done the same.

Samples of equal shape may mean different things: a table's columns in another order, words of another set that became
columns of 0 and 1, sounds read at another rate. Nothing of single samples is told, nor a word of the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.data.dataset import Dataset
from unskew.errors import printable

Form = tuple[tuple[str, str], ...]
"""Pairs of (column, what became of it), in order; of sounds (what, value). () where nothing is known of it."""
NUMBERS, SOUND = "numbers", "sounds"
SOUNDS = {"rate": "samples a second", "seconds": "seconds", "window": "samples in a frame"}
MOST_COLUMNS = 2000
"""A table of more columns is told by one digest of all of them."""
MOST_NAME = 100
"""Characters of a column's name."""
ALIKE = "give all sites the same columns in the same order"
SPELT = "spell its words alike at all sites, or write numbers where a site lacks some of them"
DIGEST = 8
"""Hexadecimal digits of the digest of a column's words. They tell whoever guesses all of the words that the guess is right."""


def form_of(data: Dataset) -> Form:
    """What a site says of how its samples came about."""
    read: Mapping[str, Any] = data.intake.form if data.intake else {}
    sounds = tuple((what, f"{read[what]:g}") for what in SOUNDS) if read.get("kind") == "sounds" else ()
    held = read["columns"] if read.get("kind") == "table" else sorted(read.get("beside", ()))  # inputs have no order
    columns = tuple((str(name), _became(kinds)) for name, kinds in held)
    columns += tuple(
        (str(name), f"{SOUND} of {into['rate']:g} samples a second, {into['seconds']:g} s, {into['window']:g} a frame")
        for name, into in sorted(read.get("files", {}).items())
        if into["kind"] == "sounds"
    )
    if len(columns) > MOST_COLUMNS:
        columns = ((f"{len(columns):,} columns", _digest(columns)),)
    return (*sounds, *((name[:MOST_NAME], became) for name, became in columns))


def told(form: Form) -> str:
    """What of it leaves a site, for its operator; "" where nothing does."""
    if not form:
        return ""
    columns = form[len(SOUNDS) :] if _of_sounds(form) else form
    heard = _of_sounds(form) or any(became.startswith(SOUND) for _, became in columns)
    rate = "at which rate sounds are read" if heard else ""
    if not columns:
        return rate
    words = ", digests of the words in columns of words" if any(became[:1].isdigit() for _, became in columns) else ""
    return f"{rate}{rate and ', '}names of columns{words}"


def read(pairs: Any) -> Form:
    """From a reply's header. Raises TypeError or ValueError for anything that is no form."""
    form = tuple((printable(str(name)[:MOST_NAME]), printable(str(became)[:MOST_NAME])) for name, became in pairs)
    if len(form) > MOST_COLUMNS:
        raise ValueError(f"more than {MOST_COLUMNS} columns")
    return form


def difference(sites: tuple[str, str], forms: tuple[Form, Form]) -> str:
    """How samples came about in another way at one of two sites, as the end of a sentence; "" if they did not, or nobody knows."""
    (a, b), (one, other) = sites, forms
    if one == other or not (one and other):
        return ""
    here, there = dict(one), dict(other)
    if _of_sounds(one) and _of_sounds(other):
        what = next((name for name in SOUNDS if here[name] != there[name]), "")
        if what:
            return f"sounds are read with {here[what]} {SOUNDS[what]} at {a} and {there[what]} at {b}"
    only = [f"column '{name}' is only at {a}" for name in here if name not in there]
    only += [f"column '{name}' is only at {b}" for name in there if name not in here]
    if only:
        return f"{'; '.join(only[:4])}; {ALIKE}"
    for (name, became), (second, became_there) in zip(one, other):
        if name != second:
            return f"columns are in another order: '{name}' stands at {a} where {b} has '{second}'; {ALIKE}"
        if became != became_there:
            return f"column '{name}' {_differing(became, became_there, a, b)}"
    return f"{a} has {len(one)} columns and {b} {len(other)}"


def _of_sounds(form: Form) -> bool:
    return tuple(name for name, _ in form[: len(SOUNDS)]) == tuple(SOUNDS)


def _differing(here: str, there: str, a: str, b: str) -> str:
    held, held_there = (became.partition(" (")[0] for became in (here, there))
    if held == held_there:
        return f"holds other words at {a} than at {b}; {SPELT}"
    words = held[:1].isdigit() and held_there[:1].isdigit()
    return f"holds {held} at {a} and {held_there} at {b}; {SPELT if words else 'let it hold the same at all sites'}"


def _became(kinds: Sequence[str]) -> str:
    if not kinds:
        return NUMBERS
    return f"{len(kinds)} {'word' if len(kinds) == 1 else 'words'} ({_digest(kinds)})"


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:DIGEST]
