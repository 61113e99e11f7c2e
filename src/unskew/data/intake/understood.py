"""One table that says what was understood of a set: samples, values, classes, sites, and what was done to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.intake.alike import alike
from unskew.data.intake.leaks import leaks
from unskew.data.intake.lopsided import lopsided
from unskew.data.intake.notes import counted, some
from unskew.data.intake.outweighed import outweighed
from unskew.data.intake.sites import apart, by_site, site_column
from unskew.data.layout import Input
from unskew.data.rows import Rows
from unskew.errors import excerpt
from unskew.specs import parse

TOPICS = ("warning", "sites", "labels", "scaled", "left out", "note")
MOST_CLASSES = 12
MOST_SITES = 8
BY_COLUMN = ("column", "domain")
"""Partitions that make clients of a column's values."""
CHUNK = 1 << 24
"""Values of which the range is taken at once, so that a mapped file is never loaded as a whole."""


def table(dataset: Dataset | Federation) -> str:
    """The table as lines of a topic and what there is to say of it."""
    untested = ", so no test scores: give a test set, or more samples of each class" * (not len(dataset.y_test))
    rows = [
        ("data", excerpt(dataset.name).strip("'\"")),
        ("samples", f"{len(dataset.y):,} for training, {len(dataset.y_test):,} for testing{untested}"),
        ("each", _each(dataset)),
        *(_inputs(dataset) if dataset.layout else [("values", _values(dataset))]),
        ("target", _target(dataset))
        if dataset.target
        else ("labels" if dataset.several else "classes", _classes(dataset)),
    ]
    if column := site_column(dataset):
        text = _sites(dataset, column) if isinstance(dataset, Dataset) else _mixed(dataset, column)
        rows += [("sites", text)] if text else []
    rows += [*_ranges(dataset), *(("warning", text) for text in _warnings(dataset))]
    notes = dataset.intake.notes if dataset.intake else ()
    rows += sorted(notes, key=lambda note: TOPICS.index(note[0]))
    return "\n".join(f"{topic:<9}{text}" for topic, text in rows)


def _warnings(dataset: Dataset | Federation) -> list[str]:
    return [text for text in (leaks(dataset), lopsided(dataset), outweighed(dataset), *alike(dataset)) if text]


def facts(dataset: Dataset) -> dict[str, Any]:
    """The table as values for programs: samples, shape, range, shares of classes, sites, columns and notes."""
    sites, warnings = by_site(dataset), _warnings(dataset)
    notes = (*(dataset.intake.notes if dataset.intake else ()), *(("warning", text) for text in warnings))
    counts = [] if dataset.target else _counts(dataset)
    return {
        "data": dataset.name,
        "samples": {"train": len(dataset.y), "test": len(dataset.y_test)},
        "shape": dataset.shape,
        **({"inputs": _facts_of_inputs(dataset)} if dataset.layout else {}),
        "values": span(dataset),
        "classes": dataset.classes,
        "shares": (np.asarray(counts) / max(1, np.sum(counts))).tolist(),
        **({"target": {**asdict(dataset.target), "values": _span(dataset.y)}} if dataset.target else {}),
        "sites": [
            {"name": s.name, "samples": s.samples, "values": [s.low, s.high], "shares": list(s.shares)} for s in sites
        ],
        "columns": list(dataset.columns),
        "notes": [{"about": topic, "text": text} for topic, text in notes],
    }


def _ranges(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """A row for each site of images or signals, and a warning where two sites are scaled differently."""
    sites = by_site(dataset) if len(dataset.shape) > 1 else []
    rows = []
    for site in sites[:MOST_SITES]:
        shares = [f"{_word(c)} {100 * share:.1f} %" for c, share in zip(dataset.classes[1:], site.shares[1:])]
        pixels = f", {some(shares, 3)}" if dataset.masks else ""
        rows.append(("", f"{_word(site.name)}: values {site.low:.3g} to {site.high:.3g}{pixels}"))
    if two := apart(sites):
        small, large = two
        text = (
            f"values of {_word(large.name)} range {large.spread / small.spread:.0f} times as far as those of "
            f"{_word(small.name)}; if {_word(small.name)} is only stored differently, bring both to one scale "
            "(image files of 12 bits in 16: bits=12 for that site)"
        )
        rows.append(("warning", text))
    return rows


def _each(dataset: Dataset | Federation) -> str:
    shape = dataset.shape
    if dataset.layout:
        count = len(dataset.layout.inputs)
        more = f", with labels of {dataset.y.shape[1]} tokens" if dataset.tokens else ""
        return f"{counted(count, 'input')}, {'by name' if dataset.layout.named else 'by place'}{more}"
    if len(shape) == 3:
        kind = f"{counted(shape[0], 'channel')} of {shape[1]} x {shape[2]}"
    else:
        kind = counted(shape[0], "number") if len(shape) == 1 else " x ".join(map(str, shape))
    if dataset.tokens:
        return f"{counted(shape[0], 'token')}, with a label each"
    return f"{kind}, with a mask" if dataset.masks else kind


def _inputs(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """A row for each input: what it is, and its smallest and largest value."""
    lines = (f"{each}, {low:.4g} to {high:.4g}" for each, (low, high) in _spans(dataset))
    return [("inputs" if not i else "", line) for i, line in enumerate(lines)]


def _facts_of_inputs(dataset: Dataset) -> list[dict[str, Any]]:
    return [{"name": e.name, "shape": e.shape, "type": e.kind, "values": v} for e, v in _spans(dataset)]


def _spans(dataset: Dataset | Federation) -> list[tuple[Input, list[float]]]:
    """Every input of a sample that has several, with its smallest and largest value."""
    assert dataset.layout
    return [(e, _span(dataset.layout.column(dataset.x, i))) for i, e in enumerate(dataset.layout.inputs)]


def _values(dataset: Dataset | Federation) -> str:
    low, high = span(dataset)
    came = f", given as {dataset.intake.dtype}" if dataset.intake and dataset.intake.dtype else ""
    return f"{low:.4g} to {high:.4g}{came}"


def span(dataset: Dataset | Federation) -> tuple[float, float]:
    """The smallest and the largest value of the training samples."""
    if isinstance(dataset.x, Rows) and dataset.x.unchanged:
        return float(dataset.x.survey.low.min()), float(dataset.x.survey.high.max())
    step = max(1, CHUNK // max(1, int(np.prod(dataset.shape))))
    chunks = [dataset.x[i : i + step] for i in range(0, len(dataset.x), step)]
    return min(float(c.min()) for c in chunks), max(float(c.max()) for c in chunks)


def _counts(dataset: Dataset | Federation) -> np.ndarray:
    """Training samples of each class, pixels of masks, or samples that have each of several labels."""
    if dataset.several:
        return np.asarray(dataset.y).sum(0)
    labels = np.asarray(dataset.y).reshape(-1)
    return np.bincount(labels[labels >= 0] if dataset.tokens else labels, minlength=len(dataset.classes))


def _classes(dataset: Dataset | Federation) -> str:
    """Names and counts of training samples; with masks, shares of their pixels."""
    counts = _counts(dataset)
    total = max(1, int(counts.sum()))
    shown = [
        f"{_word(c)} {100 * n / total:.1f} %" if dataset.masks else f"{_word(c)} {n:,}"
        for c, n in zip(dataset.classes, counts)
    ]
    return f"{len(shown)}: {some(shown, MOST_CLASSES)}"


def _target(dataset: Dataset | Federation) -> str:
    """Range, mean and deviation of the training samples' target, and where R² will be missing."""
    y, y_test, target = dataset.y, dataset.y_test, dataset.target
    assert target
    low, high = _span(y)
    text = f"{_word(target.name)}: {low:.5g} to {high:.5g}, mean {y.mean():.5g}, standard deviation {y.std():.5g}"
    if target.given:
        text += f"; learnt as (y - {target.center:.5g}) / {target.scale:.5g}"
    if len(y_test) and y_test.min() == y_test.max():
        text += f"; it is {y_test[0]:.5g} in every test sample, so R² is undefined and left out"
    return text


def _span(y: np.ndarray) -> list[float]:
    return [float(y.min()), float(y.max())]


def _sites(dataset: Dataset, column: str) -> str:
    values, counts = np.unique(dataset.columns[column], return_counts=True)
    names: Sequence[str] | None = dataset.labels.get(column)
    shown = [f"{_word(names[int(v)] if names else str(v))} {n:,}" for v, n in zip(values, counts)]
    return f"{len(shown)}: {some(shown, MOST_SITES)}; --skew column:{column} makes each a client"


def _mixed(federation: Federation, column: str) -> str:
    """That clients are not the sites that a column tells of; "" where a column makes the clients."""
    if not federation.intake or parse(federation.skew, "skew", "E103").kind.partition("+")[0] in BY_COLUMN:
        return ""
    sites = len(np.unique(federation.columns[column]))
    into = f"{sites:,} sites of the column '{column}' are mixed among {federation.clients:,} clients"
    return f"{into}; --skew column:{column} makes each a client" if sites > 1 else ""


def _word(text: str) -> str:
    """A name from the data, without what could move the cursor."""
    return excerpt(text, 40)[1:-1] if not text.isprintable() else text[:40]
