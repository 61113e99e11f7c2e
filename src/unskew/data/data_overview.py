"""The overview of a data set or federation that a run prints before it trains.

`table` gives the lines for a person, of a data set also one for each column of a table; `facts` the values
for a program, and `terminal` the facts of a federation with a map of labels: one row for each client, one
column for each class.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.column_statistics import columns_of, furthest, statistics_of, unit_warnings
from unskew.data.data_warnings import (
    class_imbalance,
    different_ranges,
    leaks,
    partition_warnings,
    site_column,
    sites_of,
)
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.packing import input_column
from unskew.data.samples.reading_notes import abbreviate, quantity
from unskew.data.storage.sample_rows import Rows
from unskew.errors import excerpt
from unskew.formats.input_layout import Input

TOPICS = ("warning", "sites", "labels", "scaled", "left out", "note")
CLASSES_SHOWN = 12
SITES_SHOWN = 8
COLUMNS_SHOWN = 40
RANGE_BLOCK = 1 << 24
"""Number of values of which the range is computed at a time, so that a mapped file is never loaded as a
whole."""


def table(dataset: Dataset | Federation) -> str:
    """The overview as text, each line a topic and its facts."""
    untested = "" if len(dataset.y_test) else ", so no test scores: give a test set, or more samples"
    samples = f"{len(dataset.y):,} for training, {len(dataset.y_test):,} for testing{untested}"
    rows = [
        ("data", excerpt(dataset.name).strip("'\"")),
        ("samples", samples),
        ("each", _sample_text(dataset)),
        *_value_rows(dataset),
        _output_row(dataset),
        *_site_rows(dataset),
        *_column_rows(dataset),
        *(("warning", text) for text in _warnings(dataset)),
    ]
    notes = dataset.intake.notes if dataset.intake else ()
    rows += sorted(notes, key=lambda note: TOPICS.index(note[0]))
    return "\n".join(f"{topic:<9}{text}" for topic, text in rows)


def facts(dataset: Dataset) -> dict[str, Any]:
    """The overview as values for programs: samples, shape, range, shares of classes, sites, columns and
    notes."""
    warnings = (("warning", text) for text in _warnings(dataset))
    notes = (*(dataset.intake.notes if dataset.intake else ()), *warnings)
    counts = [] if dataset.target else _class_counts(dataset)
    inputs = [{"name": e.name, "shape": e.shape, "type": e.kind, "values": v} for e, v in _inputs(dataset)]
    target = {**asdict(dataset.target), "values": _range_of(dataset.y)} if dataset.target else {}
    return {
        "data": dataset.name,
        "samples": {"train": len(dataset.y), "test": len(dataset.y_test)},
        "shape": dataset.shape,
        **({"inputs": inputs} if inputs else {}),
        "values": value_range(dataset),
        "classes": dataset.classes,
        "shares": (np.asarray(counts) / max(1, np.sum(counts))).tolist(),
        **({"target": target} if target else {}),
        "sites": [
            {"name": s.name, "samples": s.samples, "values": [s.low, s.high], "shares": list(s.shares)}
            for s in sites_of(dataset)
        ],
        "columns": list(dataset.columns),
        "features": _feature_facts(dataset),
        "notes": [{"about": topic, "text": text} for topic, text in notes],
    }


def _warnings(dataset: Dataset | Federation) -> list[str]:
    return [text for text in (*unit_warnings(dataset), leaks(dataset), class_imbalance(dataset)) if text]


def _column_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """A row for each of the first columns of a table, and one for that in which sites differ most."""
    if isinstance(dataset, Federation):
        return []
    named = bool(dataset.intake and dataset.intake.form.get("kind") == "table")
    lines = [str(column) for column in columns_of(dataset)] if named else []
    if len(lines) > COLUMNS_SHOWN:
        lines[COLUMNS_SHOWN:] = [f"and {len(lines) - COLUMNS_SHOWN} more columns"]
    statistics = statistics_of(dataset)
    if statistics and (worst := furthest(statistics)):
        lines.append(f"sites differ most in {_printable_name(worst[0])}: {worst[1]}")
    return [("" if i else "columns", line) for i, line in enumerate(lines)]


def _feature_facts(dataset: Dataset) -> list[dict[str, Any]]:
    """The columns of a table with the mean and deviation of numbers, also by site, or the shares of words."""
    sites, s = dict[str, dict[str, list[float]]](), statistics_of(dataset)
    for c, name in enumerate(s.names if s else ()):
        assert s
        sites[name] = dict(zip(s.sites, np.stack([s.mean_KC[:, c], s.std_KC[:, c]], 1).tolist()))
    return [
        {
            "name": column.name,
            "missing": column.missing,
            **({"words": dict(column.kinds)} if column.kinds else {"mean": column.mean, "std": column.std}),
            **({"sites": sites[column.name]} if column.name in sites and not column.kinds else {}),
        }
        for column in columns_of(dataset)
    ]


def _site_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """Rows on sites: their sizes, of images or signals also their values, and a warning if these differ."""
    rows, column = list[tuple[str, str]](), site_column(dataset)
    if column and isinstance(dataset, Dataset):
        values, counts = np.unique(dataset.columns[column], return_counts=True)
        names = dataset.labels.get(column) or dict(zip(values.tolist(), map(str, values)))
        texts = [f"{_printable_name(names[v])} {n:,}" for v, n in zip(values.tolist(), counts)]
        text = f"{len(texts)}: {abbreviate(texts, SITES_SHOWN)}; --skew column:{column} makes each a client"
        rows.append(("sites", text))
    elif column and isinstance(dataset, Federation) and dataset.intake and not dataset.natural:
        count = len(np.unique(dataset.columns[column]))
        text = f"{count:,} sites of the column '{column}' are mixed among {dataset.clients:,} clients"
        rows += [("sites", f"{text}; --skew column:{column} makes each a client")] if count > 1 else []
    sites = sites_of(dataset) if len(dataset.shape) > 1 else []
    for site in sites[:SITES_SHOWN]:
        pixels = ""
        if dataset.masks:
            shares = zip(dataset.classes[1:], site.shares[1:])
            pixels = f", {abbreviate([f'{_printable_name(c)} {100 * s:.1f} %' for c, s in shares])}"
        rows.append(("", f"{_printable_name(site.name)}: values {site.low:.3g} to {site.high:.3g}{pixels}"))
    if pair := different_ranges(sites):
        (small, low), (large, high) = ((_printable_name(site.name), site.spread) for site in pair)
        text = f"values of {large} range {high / low:.0f} times as far as those of {small}; if {small} is"
        remedy = "bring both to one scale (image files of 12 bits in 16: bits=12 for that site)"
        rows.append(("warning", f"{text} only stored differently, {remedy}"))
    return rows


def _inputs(dataset: Dataset | Federation) -> list[tuple[Input, list[float]]]:
    """Every input of a sample that has several, with its smallest and largest value."""
    layout = dataset.layout
    inputs = layout.inputs if layout else ()
    return [(e, _range_of(input_column(layout, dataset.x, i))) for i, e in enumerate(inputs) if layout]


def _value_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """The smallest and largest value of samples, or of each input."""
    if dataset.layout:
        lines = [f"{item}, {low:.4g} to {high:.4g}" for item, (low, high) in _inputs(dataset)]
        return [("" if i else "inputs", line) for i, line in enumerate(lines)]
    low, high = value_range(dataset)
    source = f", given as {dataset.intake.dtype}" if dataset.intake and dataset.intake.dtype else ""
    return [("values", f"{low:.4g} to {high:.4g}{source}")]


def _output_row(dataset: Dataset | Federation) -> tuple[str, str]:
    """The target with its range, mean and deviation, or the classes or labels with their counts of training
    samples; with masks, shares of their pixels."""
    if target := dataset.target:
        y, y_test = dataset.y, dataset.y_test
        text = f"{_printable_name(target.name)}: {y.min():.5g} to {y.max():.5g}, mean {y.mean():.5g}"
        text += f", standard deviation {y.std():.5g}"
        if target.given:
            text += f"; learnt as (y - {target.center:.5g}) / {target.scale:.5g}"
        if len(y_test) and y_test.min() == y_test.max():
            text += f"; it is {y_test[0]:.5g} in every test sample, so R² is undefined and left out"
        return "target", text
    counts = _class_counts(dataset)
    total = max(1, int(counts.sum()))
    texts = [
        f"{_printable_name(c)} {100 * n / total:.1f} %" if dataset.masks else f"{_printable_name(c)} {n:,}"
        for c, n in zip(dataset.classes, counts)
    ]
    topic = "labels" if dataset.several else "classes"
    return topic, f"{len(texts)}: {abbreviate(texts, CLASSES_SHOWN)}"


def _sample_text(dataset: Dataset | Federation) -> str:
    shape = dataset.shape
    if dataset.layout:
        count = len(dataset.layout.inputs)
        more = f", with labels of {dataset.y.shape[1]} tokens" if dataset.tokens else ""
        return f"{quantity(count, 'input')}, {'by name' if dataset.layout.named else 'by place'}{more}"
    if len(shape) == 3:
        kind = f"{quantity(shape[0], 'channel')} of {shape[1]} x {shape[2]}"
    else:
        kind = quantity(shape[0], "number") if len(shape) == 1 else " x ".join(map(str, shape))
    if dataset.tokens:
        return f"{quantity(shape[0], 'token')}, with a label each"
    return f"{kind}, with a mask" if dataset.masks else kind


def value_range(dataset: Dataset | Federation) -> tuple[float, float]:
    """The smallest and the largest value of the training samples."""
    if isinstance(dataset.x, Rows) and dataset.x.unchanged:
        return float(dataset.x.survey.low.min()), float(dataset.x.survey.high.max())
    step = max(1, RANGE_BLOCK // max(1, int(np.prod(dataset.shape))))
    chunks = [dataset.x[i : i + step] for i in range(0, len(dataset.x), step)]
    return min(float(c.min()) for c in chunks), max(float(c.max()) for c in chunks)


def _class_counts(dataset: Dataset | Federation) -> np.ndarray:
    """Training samples of each class, pixels of masks, or samples with each of several labels."""
    if dataset.several:
        return np.asarray(dataset.y).sum(0)
    labels = np.asarray(dataset.y).reshape(-1)
    return np.bincount(labels[labels >= 0] if dataset.tokens else labels, minlength=len(dataset.classes))


def _range_of(y: np.ndarray) -> list[float]:
    return [float(y.min()), float(y.max())]


def _printable_name(text: str) -> str:
    """A name from the data, without characters that could move the cursor."""
    return excerpt(text, 40)[1:-1] if not text.isprintable() else text[:40]


BARS = " ▁▂▃▄▅▆▇█"
CLIENTS_SHOWN = 8
"""Maximal number of clients in the map of labels."""
MAP_CLASSES = 40
"""Maximal number of classes with which the map fits a terminal."""


def terminal(federation: Federation) -> str:
    """The overview of a user's data, two lines of facts, and a map of labels: a row per client, a column per
    class, height for the share.

    If samples have masks, a client's row shows the share of its pixels in each class but the background.
    """
    f, sizes = federation, federation.sizes
    nouns = "labels" if f.several else "classes"
    groups = f"tenths of {f.target.name}" if f.target else nouns
    classes = f"{(f.label_counts > 0).sum(1).mean():.1f} of {len(f.groups)} {groups} a client"
    if f.masks:
        holders = (f.label_counts[:, 1:].sum(1) > 0).sum()
        classes = f"{', '.join(f.classes[1:])} in {holders} of {f.clients} clients"
    output = f"target {f.target.name}" if f.target else f"{f.n_classes} {nouns}"
    shape = f.layout or "x".join(map(str, f.shape))
    samples = f"{len(np.unique(f.train.rows)):,} training samples of {f.clients:,} clients, {output}"
    spread = f"sizes {sizes.min():,} to {sizes.max():,} (median {int(np.median(sizes)):,})"
    lines = [
        f"data    {f.name}: {samples}, samples {shape}; global test {len(f.y_test):,}",
        f"split   {f.skew}: {spread}, {classes}",
        *(f"        {text}" for text in partition_warnings(f)),
    ]
    overview = [table(f), ""] if f.intake else []
    return "\n".join([*overview, *lines, *(_label_map(f) if len(f.groups) <= MAP_CLASSES else ())])


def _label_map(f: Federation) -> list[str]:
    """A row for each client: the share of each class as a bar, with masks as a percentage."""
    clients = range(f.clients) if f.clients <= CLIENTS_SHOWN else [*range(CLIENTS_SHOWN - 1), f.clients - 1]
    width = max(len(f.name_of(k)) for k in clients)
    noun, places = ("sample", "tokens") if f.tokens else ("image", "pixels")
    lines = []
    for i, k in enumerate(clients):
        if f.clients > CLIENTS_SHOWN and i == CLIENTS_SHOWN - 1:
            lines.append(f"        {'...':<{width}}")
        counts = f.label_counts[k]
        shares = counts / max(1, counts.sum() if f.masks else counts.max())
        bars = "".join(BARS[0 if s == 0 else max(1, round(float(s) * 8))] for s in shares)
        text = f"|{bars}| {f.sizes[k]:,}"
        if f.masks:
            classes = ", ".join(f"{name} {100 * s:.1f} %" for name, s in zip(f.classes[1:], shares[1:]))
            text = f"{quantity(int(f.sizes[k]), noun)}, {classes} of the {places}"
        lines.append(f"        {f.name_of(k):<{width}} {text}")
    return lines
