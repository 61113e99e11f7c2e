"""The data: the number of samples of each class at each client, and remarks of the reader of own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.report.analysis.number_formats import plural, whole_number
from unskew.report.analysis.runs import RunData
from unskew.report.figures.svg import (
    SHADES,
    WIDTH,
    data_attribute,
    label_stride,
    rects,
    shorten,
    step_of,
    svg,
    text,
)
from unskew.report.sections import Context, Section, figure, render

ORDER = 60
TITLES = {
    "scaled": "scaled",
    "labels": "labels",
    "sites": "sites",
    "left out": "left out",
    "note": "to check",
}
"""The subjects of remarks in words."""


def build(context: Context) -> Section | None:
    """The partition of the first competing run, without a picture if labels were not counted, and the remarks
    on the data of all runs by subject; None without either."""
    run = context.first
    remarks = dict.fromkeys(
        (topic, text) for each in context.runs for topic, text in each.federation.get("understood", [])
    )
    labelled = bool(run.federation.get("labels"))
    if not labelled and not remarks:
        return None
    topics = dict.fromkeys([*TITLES, *(topic for topic, _ in remarks)])
    by_topic = {topic: [text for about, text in remarks if about == topic] for topic in topics}
    html = render(
        "partition.html.j2",
        picture=figure(partition_map(run.federation)) if labelled else "",
        rows=[(TITLES.get(topic, topic), texts) for topic, texts in by_topic.items() if texts],
    )
    lead = sentence(run) if labelled else ""
    return Section("Who holds what", "partition", html, lead=lead, link="Data")


def sentence(run: RunData) -> str:
    """The partition in words."""
    federation = run.federation
    sizes = federation["sizes"]["train"]
    if not sizes:
        return ""
    unit = federation.get("unit")
    each = {"pixels": ("pixel", "images"), "tokens": ("token", "samples")}.get(str(unit))
    who = (
        f"{federation['name']}, {federation['skew']}, seed {run.seed}:"
        f" {plural(federation['clients'], 'client')}"
    )
    what = f"{each[1] if each else 'samples'} (median {np.median(sizes):,.0f})"
    if not any(map(any, federation["labels"])):
        return (
            f"{who}, each with {min(sizes):,} to {max(sizes):,} training {what}. They do not tell of which"
            " classes."
        )
    held = np.mean([sum(1 for count in row if count) for row in federation["labels"]])
    groups = "classes"
    if target := federation.get("target"):
        name = target["name"] if isinstance(target["center"], float) else target["name"].split(",")[0]
        groups = f"tenths of the target {name}"
    of_classes = "" if each else f" from {held:.1f} of the {len(federation['classes'])} {groups} on average"
    scored = "held-out part" if run.config.get("validation") else "test set"
    test = f" The {scored} has {federation['test']:,} samples." if federation.get("test") else ""
    cells = (
        f"Every {each[0]} is labelled: a cell is the class’s share of the client’s training {each[0]}s, in"
        " percent."
        if each
        else (
            "The stronger a cell’s colour, the more samples of the tenth, or class, the client has."
            if "target" in federation
            else "The stronger a cell’s colour, the more samples of the class the client has."
        )
    )
    return f"{who}, each with {min(sizes):,} to {max(sizes):,} training {what}{of_classes}.{test} {cells}"


MOST_CLIENTS = 200
TOP, TALL = 24, 36
"""The margin above the cells, and the height of the bars below them."""


def partition_map(federation: Mapping[str, Any]) -> str:
    """Clients across, classes down; the stronger a cell's colour, the more samples. Below them, how many
    samples each client has.

    federation: as in federation.json. Where every pixel or token has a label, a cell is the share of the
    client's pixels in percent. Shows the first 200 clients; "" if the federation names no labels, or counts
    none.
    """
    counts = np.array(federation.get("labels", [])[:MOST_CLIENTS], dtype=float)
    if counts.ndim != 2 or not counts.any():
        return ""
    K, C = counts.shape
    unit = str(federation.get("unit"))
    shares_of = unit if unit in ("pixels", "tokens") else ""
    train = federation.get("sizes", {}).get("train", [])[:K]
    sizes = np.array(train, dtype=float) if len(train) == K else counts.sum(1)
    shades = f"1 to {int(counts.max()):,} samples of a class"
    if shares_of:
        counts = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
        shades = f"share of {shares_of}, %"
    names, classes = [str(n) for n in federation["names"][:K]], [str(c) for c in federation["classes"]]
    letters = 18
    left = max(64.0, 14 + 6.4 * min(letters, max(map(len, classes))))
    w = min(46.0 if K > 8 else 84.0, (WIDTH - left - 8) / K)  # a few sites have room for their names
    h = min(24.0, max(5.0, 300 / C))
    base = TOP + h * C
    parts = [
        f'<rect class="q{i}" x="{left + 17 * (i - 1):.1f}" y="2" width="16" height="10"/>'
        for i in range(1, SHADES + 1)
    ]
    parts += [text(left + 17 * SHADES + 6, 11, shades), *_cells(counts, left, w, h, bool(shares_of))]
    parts += [
        text(left - 8, TOP + (c + 0.5) * h + 4, shorten(classes[c], letters), anchor="end")
        for c in range(0, len(classes), label_stride(h, 12))
    ]
    parts += _sizes(sizes, left, w, base + 8)
    parts.append(_client_names(names, federation.get("clients", K), left, w, base + 58))
    held = (
        f"{np.mean((counts > 0).sum(1)):.1f} of {C} classes per client, "
        f"{sizes.min():.0f} to {sizes.max():.0f} samples"
    )
    label = f"{shares_of.capitalize() or 'Samples'} of each class at each of {plural(K, 'client')}: {held}"
    grid = {"x": round(left, 1), "y": TOP, "w": round(w, 3), "h": round(h, 3)}  # for the script's tooltip
    values = counts.round(1).tolist() if shares_of else counts.astype(int).tolist()
    grid |= {"names": names, "classes": classes, "v": values, "n": sizes.astype(int).tolist()}
    grid |= {"u": "images" if shares_of == "pixels" else "samples", **({"p": 1} if shares_of else {})}
    return svg(base + 86, label, parts, data_attribute("grid", grid))


def _cells(counts: np.ndarray, left: float, w: float, h: float, percent: bool) -> list[str]:
    """One shape per shade; cells that are large enough show their count."""
    gap = _gap(min(w, h))
    level = np.ceil(SHADES * np.sqrt(counts / max(counts.max(), 1))).astype(int)
    K, C = counts.shape
    parts = [f'<rect class="empty" x="{left:.1f}" y="{TOP}" width="{K * w:.1f}" height="{C * h:.1f}"/>']
    for shade in range(1, SHADES + 1):
        boxes = [(left + k * w, TOP + c * h, w - gap, h - gap) for k, c in np.argwhere(level == shade)]
        parts.append(rects(boxes, f"q{shade}"))
    if w >= 27 and h >= 15:
        for k, c in np.argwhere(counts > 0):
            count = f"{counts[k, c]:.1f}" if percent else f"{counts[k, c]:.0f}"
            x, y = left + (k + 0.5) * w - gap / 2, TOP + (c + 0.5) * h + 3.5
            parts.append(text(x, y, count, f"count on{level[k, c]}", "middle"))
    return parts


def _gap(side: float) -> float:
    if side > 7:
        return 1.5
    return 0.5 if side > 3 else 0.0


def _sizes(sizes: np.ndarray, left: float, w: float, top: float) -> list[str]:
    """A bar per client, as high as its number of samples."""
    most = max(float(sizes.max()), 1.0)
    heights = [(k, TALL * s / most) for k, s in enumerate(sizes) if s]
    boxes = [(left + k * w, top + TALL - height, w - _gap(w), height) for k, height in heights]
    return [
        rects(boxes, "bar"),
        text(left - 8, top + 11, whole_number(most), anchor="end"),
        text(left - 8, top + TALL, "samples", anchor="end"),
    ]


def _client_names(names: Sequence[str], clients: int, left: float, w: float, y: float) -> str:
    """The names of all clients if there is room; else some of their numbers."""
    K, middle = len(names), left + len(names) * w / 2
    short = [n.removeprefix("client-") for n in names]
    label = plural(K, "client") if clients == K else f"the first {K} of {clients:,} clients"
    if 6.6 * max(map(len, short)) + 6 <= w:
        label = label if short == names else f"client, 0 to {K - 1}"
        shown = dict(enumerate(short))
    else:
        step = max(1, int(step_of(K, max(2, int(K * w // 60)))))
        shown = {k: str(k) for k in range(0, K, step)}
    ticks = [text(left + (k + 0.5) * w, y, name, anchor="middle") for k, name in shown.items()]
    return "".join([*ticks, text(middle, y + 22, label, "axis", "middle")])
