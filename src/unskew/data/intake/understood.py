"""One table that says what was understood of a set: samples, values, classes, sites, and what was done to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.intake.columns import site_of
from unskew.data.intake.notes import some
from unskew.errors import excerpt

TOPICS = ("sites", "labels", "scaled", "left out", "note")
MOST_CLASSES = 12
MOST_SITES = 8
CHUNK = 1 << 24
"""Values of which the range is taken at once, so that a mapped file is never loaded as a whole."""


def table(dataset: Dataset | Federation) -> str:
    """The table as lines of a topic and what there is to say of it."""
    rows = [
        ("data", excerpt(dataset.name).strip("'\"")),
        ("samples", f"{len(dataset.y):,} for training, {len(dataset.y_test):,} for testing"),
        ("each", _each(dataset)),
        ("values", _values(dataset)),
        ("classes", _classes(dataset)),
    ]
    if isinstance(dataset, Dataset) and (column := _site_column(dataset)):
        rows.append(("sites", _sites(dataset, column)))
    notes = dataset.intake.notes if dataset.intake else ()
    rows += sorted(notes, key=lambda note: TOPICS.index(note[0]))
    return "\n".join(f"{topic:<9}{text}" for topic, text in rows)


def _site_column(dataset: Dataset) -> str:
    """The column by which the set was divided, or else that a usual name says holds sites; "" without either."""
    divided = dataset.intake.divided if dataset.intake else ""
    return divided if divided in dataset.columns else site_of(dataset.columns)


def _each(dataset: Dataset | Federation) -> str:
    shape = dataset.shape
    if len(shape) == 3:
        kind = f"{shape[0]} {'channel' if shape[0] == 1 else 'channels'} of {shape[1]} x {shape[2]}"
    else:
        kind = f"{shape[0]} numbers" if len(shape) == 1 else " x ".join(map(str, shape))
    return f"{kind}, with a mask" if dataset.y.ndim > 1 else kind


def _values(dataset: Dataset | Federation) -> str:
    step = max(1, CHUNK // max(1, int(np.prod(dataset.shape))))
    chunks = [dataset.x[i : i + step] for i in range(0, len(dataset.x), step)]
    low, high = min(float(c.min()) for c in chunks), max(float(c.max()) for c in chunks)
    came = f", given as {dataset.intake.dtype}" if dataset.intake and dataset.intake.dtype else ""
    return f"{low:.4g} to {high:.4g}{came}"


def _classes(dataset: Dataset | Federation) -> str:
    """Names and counts of training samples; with masks, shares of their pixels."""
    counts = np.bincount(np.asarray(dataset.y).reshape(-1), minlength=len(dataset.classes))
    total = max(1, int(counts.sum()))
    shown = [
        f"{_word(c)} {100 * n / total:.1f} %" if dataset.y.ndim > 1 else f"{_word(c)} {n:,}"
        for c, n in zip(dataset.classes, counts)
    ]
    return f"{len(shown)}: {some(shown, MOST_CLASSES)}"


def _sites(dataset: Dataset, column: str) -> str:
    values, counts = np.unique(dataset.columns[column], return_counts=True)
    names: Sequence[str] | None = dataset.labels.get(column)
    shown = [f"{_word(names[int(v)] if names else str(v))} {n:,}" for v, n in zip(values, counts)]
    return f"{len(shown)}: {some(shown, MOST_SITES)}; --skew column:{column} makes each a client"


def _word(text: str) -> str:
    """A name from the data, without what could move the cursor."""
    return excerpt(text, 40)[1:-1] if not text.isprintable() else text[:40]
