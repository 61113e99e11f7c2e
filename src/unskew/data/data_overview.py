"""The overview of a data set or federation that a run prints before it trains.

`table` gives the lines for a person, `facts` the values for a program, and `terminal` the facts of a
federation with a map of labels: one row for each client, one column for each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.data_warnings import (
    class_imbalance,
    different_ranges,
    leaks,
    partition_warnings,
    site_column,
    sites_of,
)
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.intake import abbreviate, quantity
from unskew.data.samples.packing import input_column
from unskew.data.storage.sample_rows import Rows
from unskew.errors import excerpt
from unskew.formats.input_layout import Input
from unskew.formats.specs import parse

TOPICS = ("warning", "sites", "labels", "scaled", "left out", "note")
CLASSES_SHOWN = 12
SITES_SHOWN = 8
COLUMN_PARTITIONS = ("column", "domain")
"""The partitions that make clients of a column's values."""
RANGE_BLOCK = 1 << 24
"""Number of values of which the range is computed at a time, so that a mapped file is never loaded as a
whole."""


def table(dataset: Dataset | Federation) -> str:
    """The overview as text, each line a topic and its facts."""
    remark = ""
    if not len(dataset.y_test):
        remark = ", so no test scores: give a test set, or more samples of each class"
    rows = [
        ("data", excerpt(dataset.name).strip("'\"")),
        ("samples", f"{len(dataset.y):,} for training, {len(dataset.y_test):,} for testing{remark}"),
        ("each", _sample_text(dataset)),
        *(_input_rows(dataset) if dataset.layout else [("values", _value_text(dataset))]),
        (
            ("target", _target_text(dataset))
            if dataset.target
            else ("labels" if dataset.several else "classes", _class_text(dataset))
        ),
    ]
    if column := site_column(dataset):
        text = (
            _site_text(dataset, column)
            if isinstance(dataset, Dataset)
            else _mixed_sites_text(dataset, column)
        )
        rows += [("sites", text)] if text else []
    rows += [*_site_rows(dataset), *(("warning", text) for text in _warnings(dataset))]
    notes = dataset.intake.notes if dataset.intake else ()
    rows += sorted(notes, key=lambda note: TOPICS.index(note[0]))
    return "\n".join(f"{topic:<9}{text}" for topic, text in rows)


def _warnings(dataset: Dataset | Federation) -> list[str]:
    return [text for text in (leaks(dataset), class_imbalance(dataset)) if text]


def facts(dataset: Dataset) -> dict[str, Any]:
    """The overview as values for programs: samples, shape, range, shares of classes, sites, columns and
    notes."""
    sites, warnings = sites_of(dataset), _warnings(dataset)
    notes = (*(dataset.intake.notes if dataset.intake else ()), *(("warning", text) for text in warnings))
    counts = [] if dataset.target else _class_counts(dataset)
    return {
        "data": dataset.name,
        "samples": {"train": len(dataset.y), "test": len(dataset.y_test)},
        "shape": dataset.shape,
        **({"inputs": _input_facts(dataset)} if dataset.layout else {}),
        "values": value_range(dataset),
        "classes": dataset.classes,
        "shares": (np.asarray(counts) / max(1, np.sum(counts))).tolist(),
        **({"target": {**asdict(dataset.target), "values": _range_of(dataset.y)}} if dataset.target else {}),
        "sites": [
            {"name": s.name, "samples": s.samples, "values": [s.low, s.high], "shares": list(s.shares)}
            for s in sites
        ],
        "columns": list(dataset.columns),
        "notes": [{"about": topic, "text": text} for topic, text in notes],
    }


def _site_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """A row for each site of images or signals, and a warning if two sites are scaled differently."""
    sites = sites_of(dataset) if len(dataset.shape) > 1 else []
    rows = []
    for site in sites[:SITES_SHOWN]:
        shares = [
            f"{_printable_name(c)} {100 * share:.1f} %"
            for c, share in zip(dataset.classes[1:], site.shares[1:])
        ]
        pixels = f", {abbreviate(shares, 3)}" if dataset.masks else ""
        rows.append(("", f"{_printable_name(site.name)}: values {site.low:.3g} to {site.high:.3g}{pixels}"))
    if pair := different_ranges(sites):
        small, large = pair
        text = (
            f"values of {_printable_name(large.name)} range {large.spread / small.spread:.0f} times as far as"
            f" those of {_printable_name(small.name)}; if {_printable_name(small.name)} is only stored"
            " differently, bring both to one scale (image files of 12 bits in 16: bits=12 for that site)"
        )
        rows.append(("warning", text))
    return rows


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


def _input_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """A row for each input: its description, and its smallest and largest value."""
    lines = (f"{item}, {low:.4g} to {high:.4g}" for item, (low, high) in _input_ranges(dataset))
    return [("inputs" if not i else "", line) for i, line in enumerate(lines)]


def _input_facts(dataset: Dataset) -> list[dict[str, Any]]:
    return [
        {"name": e.name, "shape": e.shape, "type": e.kind, "values": v} for e, v in _input_ranges(dataset)
    ]


def _input_ranges(dataset: Dataset | Federation) -> list[tuple[Input, list[float]]]:
    """Every input of a sample that has several, with its smallest and largest value."""
    assert dataset.layout
    return [
        (e, _range_of(input_column(dataset.layout, dataset.x, i)))
        for i, e in enumerate(dataset.layout.inputs)
    ]


def _value_text(dataset: Dataset | Federation) -> str:
    low, high = value_range(dataset)
    source = f", given as {dataset.intake.dtype}" if dataset.intake and dataset.intake.dtype else ""
    return f"{low:.4g} to {high:.4g}{source}"


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


def _class_text(dataset: Dataset | Federation) -> str:
    """Names and counts of training samples; with masks, shares of their pixels."""
    counts = _class_counts(dataset)
    total = max(1, int(counts.sum()))
    texts = [
        f"{_printable_name(c)} {100 * n / total:.1f} %" if dataset.masks else f"{_printable_name(c)} {n:,}"
        for c, n in zip(dataset.classes, counts)
    ]
    return f"{len(texts)}: {abbreviate(texts, CLASSES_SHOWN)}"


def _target_text(dataset: Dataset | Federation) -> str:
    """Range, mean and deviation of the training samples' target, and the clients for which R² will be
    missing."""
    y, y_test, target = dataset.y, dataset.y_test, dataset.target
    assert target
    low, high = _range_of(y)
    text = (
        f"{_printable_name(target.name)}: {low:.5g} to {high:.5g}, mean {y.mean():.5g}, standard deviation"
        f" {y.std():.5g}"
    )
    if target.given:
        text += f"; learnt as (y - {target.center:.5g}) / {target.scale:.5g}"
    if len(y_test) and y_test.min() == y_test.max():
        text += f"; it is {y_test[0]:.5g} in every test sample, so R² is undefined and left out"
    return text


def _range_of(y: np.ndarray) -> list[float]:
    return [float(y.min()), float(y.max())]


def _site_text(dataset: Dataset, column: str) -> str:
    values, counts = np.unique(dataset.columns[column], return_counts=True)
    names: Sequence[str] | None = dataset.labels.get(column)
    texts = [f"{_printable_name(names[int(v)] if names else str(v))} {n:,}" for v, n in zip(values, counts)]
    return f"{len(texts)}: {abbreviate(texts, SITES_SHOWN)}; --skew column:{column} makes each a client"


def _mixed_sites_text(federation: Federation, column: str) -> str:
    """The remark that clients are not the sites of a column; "" if a column makes the clients."""
    if (
        not federation.intake
        or parse(federation.skew, "skew", "E103").kind.partition("+")[0] in COLUMN_PARTITIONS
    ):
        return ""
    sites = len(np.unique(federation.columns[column]))
    into = f"{sites:,} sites of the column '{column}' are mixed among {federation.clients:,} clients"
    return f"{into}; --skew column:{column} makes each a client" if sites > 1 else ""


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
    if f.masks:
        holders = (f.label_counts[:, 1:].sum(1) > 0).sum()
        classes = f"{', '.join(f.classes[1:])} in {holders} of {f.clients} clients"
    else:
        groups = f"tenths of {f.target.name}" if f.target else nouns
        classes = f"{(f.label_counts > 0).sum(1).mean():.1f} of {len(f.groups)} {groups} a client"
    output = f"target {f.target.name}" if f.target else f"{f.n_classes} {nouns}"
    lines = [
        (
            f"data    {f.name}: {len(np.unique(f.train.rows)):,} training samples of {f.clients:,} clients,"
            f" {output}, samples {f.layout or 'x'.join(map(str, f.shape))}; global test {len(f.y_test):,}"
        ),
        (
            f"split   {f.skew}: sizes {sizes.min():,} to {sizes.max():,} (median {int(np.median(sizes)):,}),"
            f" {classes}"
        ),
    ]
    lines += [f"        {text}" for text in partition_warnings(f)]
    overview = [table(f), ""] if f.intake else []
    return "\n".join([*overview, *lines, *(_label_map(f) if len(f.groups) <= MAP_CLASSES else ())])


def _label_map(f: Federation) -> list[str]:
    clients = range(f.clients) if f.clients <= CLIENTS_SHOWN else [*range(CLIENTS_SHOWN - 1), f.clients - 1]
    width = max(len(f.name_of(k)) for k in clients)
    lines = []
    for i, k in enumerate(clients):
        if f.clients > CLIENTS_SHOWN and i == CLIENTS_SHOWN - 1:
            lines.append(f"        {'...':<{width}}")
        lines.append(f"        {f.name_of(k):<{width}} {_pixel_row(f, k) if f.masks else _label_row(f, k)}")
    return lines


def _label_row(f: Federation, k: int) -> str:
    shares = f.label_counts[k] / max(1, f.label_counts[k].max())
    cells = "".join(BARS[0 if s == 0 else max(1, round(float(s) * 8))] for s in shares)
    return f"|{cells}| {f.sizes[k]:,}"


def _pixel_row(f: Federation, k: int) -> str:
    shares = f.label_counts[k] / max(1, f.label_counts[k].sum())
    classes = ", ".join(f"{name} {100 * s:.1f} %" for name, s in zip(f.classes[1:], shares[1:]))
    noun, places = ("sample", "tokens") if f.tokens else ("image", "pixels")
    return f"{quantity(int(f.sizes[k]), noun)}, {classes} of the {places}"
