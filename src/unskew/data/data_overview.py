"""The overview of a data set or federation that a run prints before it trains.

`table` gives the lines, of a data set also one for each column of a table; `terminal` those of a federation
with a map of labels: one row for each client, one column for each class. Warnings are about

leaks       columns of a table that give the label away: one value for each class, or the target rescaled
imbalance   nearly all samples are of one class, so that a model that always answers it has a high accuracy
sites       two sites whose values lie in very different ranges, or a column that is measured in other units
partition   classes that no client holds, and clients without samples

A column counts as a leak only if every sample that is examined agrees; a good predictor is none.
Letters: n samples that are examined, D columns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.column_statistics import (
    columns_of,
    numbers_of_rows,
    quoted,
    rows_of_sites,
    site_column,
    unit_warnings,
)
from unskew.data.samples.dataset import Dataset, strata
from unskew.data.samples.packing import input_column
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.data.storage.rows_on_disk import Rows, is_streamed, select_samples
from unskew.errors import excerpt

TOPICS = ("warning", "sites", "labels", "scaled", "left out", "note")
CLASSES_SHOWN = 12
SITES_SHOWN = 8
SITE_SAMPLES = 200
"""Number of evenly spaced samples of a site from which its range of values is computed."""
RANGE_RATIO = 4.0
"""Ratio of two sites' ranges above which they count as differently scaled."""
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
        ("each", dataset.sample_text),
        *_value_rows(dataset),
        _output_row(dataset),
        *_site_rows(dataset),
        *_column_rows(dataset),
    ]
    notes = dataset.intake.notes if dataset.intake else ()
    if isinstance(dataset, Dataset):  # a federation's notes have them
        rows += value_warnings(dataset)
    rows += sorted(notes, key=lambda note: TOPICS.index(note[0]))
    return "\n".join(f"{topic:<9}{text}" for topic, text in rows)


def value_warnings(data: Dataset | Federation) -> list[Note]:
    """Warnings about values: units, columns that give the label away, one dominant class."""
    texts = [*unit_warnings(data), leaks(data), class_imbalance(data)]
    return [("warning", text) for text in texts if text]


def with_warnings(federation: Federation) -> Federation:
    """The federation with its `value_warnings` among its notes, from which overview and report take them."""
    if federation.intake is None:
        return federation
    new = [note for note in value_warnings(federation) if note not in federation.intake.notes]
    return replace(federation, intake=federation.intake.with_notes(*new)) if new else federation


def _column_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """A row for each of the first columns of a table."""
    if isinstance(dataset, Federation):
        return []
    named = bool(dataset.intake and dataset.intake.form.get("kind") == "table")
    lines = [str(column) for column in columns_of(dataset)] if named else []
    if len(lines) > COLUMNS_SHOWN:
        lines[COLUMNS_SHOWN:] = [f"and {len(lines) - COLUMNS_SHOWN} more columns"]
    return [("" if i else "columns", line) for i, line in enumerate(lines)]


def _site_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """Rows on sites: their sizes, of images or signals also their values, and a warning if these differ."""
    rows, column = list[tuple[str, str]](), site_column(dataset)
    remedy = f"--skew column:{column} makes each a client"
    if column and isinstance(dataset, Dataset):
        texts = [f"{_printable_name(name)} {len(members):,}" for name, members in rows_of_sites(dataset)]
        rows.append(("sites", f"{len(texts)}: {abbreviate(texts, SITES_SHOWN)}; {remedy}"))
    elif column and isinstance(dataset, Federation) and dataset.intake and not dataset.natural:
        count = len(np.unique(dataset.columns[column]))
        text = f"{count:,} sites of the column '{column}' are mixed among {dataset.clients:,} clients"
        rows += [("sites", f"{text}; {remedy}")] if count > 1 else []
    sites = list[tuple[float, str]]()
    for name, members in rows_of_sites(dataset) if len(dataset.shape) > 1 else ():
        name, few = _printable_name(name), members[:: max(1, len(members) // SITE_SAMPLES)]
        values = np.asarray(dataset.x[few]).reshape(len(few), -1) if len(few) else np.zeros((1, 1))
        low, high = values.min(1), values.max(1)
        sites.append((float(np.median(high - low)), name))
        if len(sites) <= SITES_SHOWN:
            pixels = f", {_pixel_shares(dataset, members)}" if dataset.masks else ""
            rows.append(("", f"{name}: values {low.min():.3g} to {high.max():.3g}{pixels}"))
    spreads = sorted(site for site in sites if site[0] > 0)
    if spreads and spreads[-1][0] > RANGE_RATIO * spreads[0][0]:
        (low, small), (high, large) = spreads[0], spreads[-1]
        text = f"values of {large} range {high / low:.0f} times as far as those of {small}; if {small} is"
        remedy = "bring both to one scale (image files of 12 bits in 16: bits=12 for that site)"
        rows.append(("warning", f"{text} only stored differently, {remedy}"))
    return rows


def _pixel_shares(dataset: Dataset | Federation, rows: np.ndarray) -> str:
    """The shares of the pixels, or tokens, of some samples in each class but the first."""
    counts = np.zeros(len(dataset.classes), np.int64)
    for row in rows:
        labels = np.asarray(dataset.y[row])
        counts += np.bincount(labels[labels >= 0], minlength=len(counts))
    shares = zip(dataset.classes[1:], counts[1:] / max(1, counts.sum()))
    return abbreviate([f"{_printable_name(c)} {100 * s:.1f} %" for c, s in shares])


def _value_rows(dataset: Dataset | Federation) -> list[tuple[str, str]]:
    """The smallest and largest value of training samples, or of each input."""
    x, lines = dataset.x, list[str]()
    for i, item in enumerate(dataset.layout.inputs if dataset.layout else ()):
        values = input_column(dataset.layout, x, i) if dataset.layout else x
        lines.append(f"{item}, {float(values.min()):.4g} to {float(values.max()):.4g}")
    if lines:
        return [("" if i else "inputs", line) for i, line in enumerate(lines)]
    if isinstance(x, Rows) and not x.changes:
        low, high = x.survey.low.min(), x.survey.high.max()
    else:
        step = max(1, RANGE_BLOCK // max(1, int(np.prod(dataset.shape))))
        ends = [(x[i : i + step].min(), x[i : i + step].max()) for i in range(0, len(x), step)]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
    source = f", given as {dataset.intake.dtype}" if dataset.intake and dataset.intake.dtype else ""
    return [("values", f"{float(low):.4g} to {float(high):.4g}{source}")]


def _output_row(dataset: Dataset | Federation) -> tuple[str, str]:
    """The target with its range, mean and deviation, or the classes or labels with their counts of training
    samples; with masks, shares of their pixels."""
    if (target := dataset.target) and len(dataset.classes) > 1:
        centers, scales = dataset.y.mean(0), dataset.y.std(0)
        names = map(_printable_name, dataset.classes)
        texts = [f"{n} {m:.5g} ± {s:.5g}" for n, m, s in zip(names, centers, scales)]
        return "targets", f"mean ± standard deviation of {abbreviate(texts, CLASSES_SHOWN)}"
    if target:
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


def _class_counts(dataset: Dataset | Federation) -> np.ndarray:
    """Training samples of each class, pixels of masks, or samples with each of several labels."""
    if dataset.several:
        return np.asarray(dataset.y).sum(0)
    labels = np.asarray(dataset.y).reshape(-1)
    return np.bincount(labels[labels >= 0] if dataset.tokens else labels, minlength=len(dataset.classes))


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
    groups = f"tenths of {f.classes[0]}" if f.target else nouns
    classes = f"{(f.label_counts > 0).sum(1).mean():.1f} of {len(f.groups)} {groups} a client"
    if f.masks:
        holders = (f.label_counts[:, 1:].sum(1) > 0).sum()
        classes = f"{', '.join(f.classes[1:])} in {holders} of {f.clients} clients"
    output = f"target {', '.join(f.classes)}" if f.target else f"{f.n_classes} {nouns}"
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


LEAK_SAMPLES, LEAK_VALUES = 5_000, 1 << 22
"""Maximal number of evenly spaced samples that are examined, and of values in them."""
LEAK_MINIMUM, MINORITY_MINIMUM = 20, 10
"""Smallest numbers of samples, or different targets, and of samples outside the most frequent class;
below, columns may agree by chance."""
LINE_TOLERANCE = 1e-5
"""Distance from a line that still counts as linear, as a share of the range; float32 has seven digits."""


def leaks(dataset: Dataset | Federation) -> str:
    """The warning about columns that give the label away; "" if none does, or if samples are not rows of
    numbers."""
    if dataset.x.ndim != 2 or dataset.masks or len(dataset.y) < LEAK_MINIMUM:
        return ""
    spans = [(f"column {quoted(name)}", start, end) for name, _, start, end in numbers_of_rows(dataset)]
    if dataset.layout:
        spans = [(f"input {e.name}", start, end) for e, start, end in dataset.layout.places if e.size == 1]
    if not spans:
        return ""
    limit = min(LEAK_SAMPLES, max(LEAK_MINIMUM, LEAK_VALUES // max(1, dataset.x.shape[1])))
    rows = np.unique(np.linspace(0, len(dataset.x) - 1, min(limit, len(dataset.x))).astype(np.int64))
    columns = _leaking(select_samples(dataset.x, rows)[:], dataset.y[rows], spans, bool(dataset.target))
    if columns and not is_streamed(dataset.x):  # confirm the suspects with all samples
        columns = _leaking(dataset.x, dataset.y, columns, bool(dataset.target))
    if not columns:
        return ""
    tells = "has a value of its own for each class"
    if dataset.several or dataset.target:
        tells = "tells a label by itself" if dataset.several else "is the target in another unit"
    names = abbreviate([name for name, *_ in columns])
    text = f"{'each of ' if len(columns) > 1 else ''}{names} {tells} in all training samples"
    return f"{text}: leave out what was made from the labels, or scores mean nothing"


def _leaking(
    x: np.ndarray, y: np.ndarray, columns: list[tuple[str, int, int]], numbers: bool
) -> list[tuple[str, int, int]]:
    """The columns that give the labels away; with several labels or targets, any one of them."""
    # the column's number, or the index of its word
    codes = [x[:, a] if b - a == 1 else x[:, a:b].argmax(1).astype(np.float32) for _, a, b in columns]
    x_nD = np.stack(codes, axis=1)
    tells, tell = np.zeros(len(columns), bool), _are_linear if numbers else _one_value_each
    for labels in np.atleast_2d(y.T):
        tells |= tell(x_nD, labels)
    return [column for column, flag in zip(columns, tells) if flag]


def _one_value_each(x_nD: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which columns have one value in all samples of a class, and a different value in each class, bool
    [D]."""
    _, first, place, count = np.unique(y, return_index=True, return_inverse=True, return_counts=True)
    if len(count) < 2 or len(y) < LEAK_MINIMUM or len(y) - count.max() < MINORITY_MINIMUM:
        return np.zeros(x_nD.shape[1], bool)
    of_class_CD = x_nD[first]
    tells = (x_nD == of_class_CD[place]).all(0)
    tells[tells] = [len(np.unique(values)) == len(count) for values in of_class_CD[:, tells].T]
    return tells


def _are_linear(x_nD: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which columns are a linear function of the target, bool [D]."""
    if len(np.unique(y)) < LEAK_MINIMUM:
        return np.zeros(x_nD.shape[1], bool)
    low, high = int(y.argmin()), int(y.argmax())
    begin_D = x_nD[low].astype(np.float64)
    range_D = x_nD[high] - begin_D
    line_nD = begin_D + range_D * ((y - y[low]) / (y[high] - y[low]))[:, None]
    return (np.abs(x_nD - line_nD) <= LINE_TOLERANCE * np.abs(range_D)).all(0) & (range_D != 0)


MAJORITY_SHARE = 0.9
"""The share of samples in one class above which a warning is given."""
IMBALANCE_METRICS = "auroc,balanced_accuracy"


def class_imbalance(data: Dataset | Federation) -> str:
    """The warning about a set with one dominant class; "" for any other set, or without a single class a
    sample."""
    if data.target or data.several or data.masks or not len(data.y):
        return ""
    counts = np.bincount(data.y, minlength=len(data.classes))
    share = counts.max() / counts.sum()
    if not MAJORITY_SHARE <= share < 1:
        return ""
    often, present = int(counts.argmax()), np.flatnonzero(counts)
    rare = int(present[counts[present].argmin()])
    text = f"{share:.1%} of the training samples are of class {excerpt(data.classes[often], 40)}, so a model"
    rarest = f"{excerpt(data.classes[rare], 40)} has {counts[rare]:,}"
    hint = f"Look at --metrics {IMBALANCE_METRICS} as well"
    return f"{text} that always answers so has that accuracy; {rarest}. {hint}"


def partition_warnings(federation: Federation) -> list[str]:
    """Warnings about classes, or tenths of a target, that no client holds, and about clients without
    samples."""
    texts, y, y_test = list[str](), federation.y, federation.y_test
    held = np.zeros(len(y), bool)
    for rows in (federation.train.rows, federation.val.rows, federation.reserved):
        held[rows] = True
    groups, test_groups = strata(y), strata(y_test, y)
    counts = np.bincount(groups, minlength=len(federation.groups))
    absent = np.flatnonzero((counts > 0) & (np.bincount(groups[held], minlength=len(counts)) == 0))
    if len(absent):
        names = [*federation.groups, "no label"]
        noun = "targets" if federation.target else "class"
        which = f"{noun} {abbreviate([excerpt(names[c], 40) for c in absent])}"
        tests = int(np.isin(test_groups, absent).sum())
        more = f", and the common test set has {quantity(tests, 'sample')} of them" if tests else ""
        lost = f"{counts[absent].sum():,} of {len(y):,} training samples are left out{more}"
        remedy = "take more clients, more classes for each, or another skew"
        texts.append(f"no client holds {which}: {lost}; {remedy}")
    if empty := int((federation.sizes == 0).sum()):
        texts.append(f"{quantity(empty, 'client')} without samples: they receive the model and send nothing")
    return texts
