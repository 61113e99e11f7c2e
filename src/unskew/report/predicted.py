"""Predictions as a table that other programs read: a line for each sample, and a column for each class.

Letters: N samples, C classes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import numpy as np

FORMULA = re.compile(r"[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.I)


def as_csv(names: Sequence[str], classes: Sequence[str], p_NC: np.ndarray) -> str:
    """`input,class,p(CLASS),...`: what each sample is called, its likeliest class, and every class's probability."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["input", "class", *(f"p({name})" for name in classes)])
    for name, p_C in zip(names, p_NC):
        rows.writerow([cell(name), cell(classes[int(p_C.argmax())]), *(f"{p:.6f}" for p in p_C)])
    return text.getvalue()


def several_as_csv(names: Sequence[str], labels: Sequence[str], p_NL: np.ndarray) -> str:
    """`input,labels,p(LABEL),...`: what each sample is called, its labels joined by ";", and every label's probability."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["input", "labels", *(f"p({name})" for name in labels)])
    for name, p_L in zip(names, p_NL):
        there = ";".join(label for label, p in zip(labels, p_L) if p > 0.5)
        rows.writerow([cell(name), cell(there), *(f"{p:.6f}" for p in p_L)])
    return text.getvalue()


def numbers_as_csv(names: Sequence[str], target: str, guess_N: np.ndarray) -> str:
    """`input,TARGET`: what each sample is called, and the number that the model predicts, in the target's own unit."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["input", cell(target)])
    rows.writerows([cell(name), f"{value:.7g}"] for name, value in zip(names, guess_N))
    return text.getvalue()


def places_as_csv(names: Sequence[str]) -> str:
    """`place,input`: where in an array of masks, from 0, that of each sample is."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["place", "input"])
    rows.writerows([str(place), cell(name)] for place, name in enumerate(names))
    return text.getvalue()


def cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula: one that begins like a formula gets an apostrophe before it.

    The names of classes and files may be somebody else's.
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text
