"""A federation as text: what a run shows before it starts."""

from __future__ import annotations

import numpy as np

from unskew.data.federation import Federation
from unskew.data.intake import understood
from unskew.data.intake.notes import counted

BLOCKS = " ▁▂▃▄▅▆▇█"
SHOWN = 8
"""Clients in the map of labels at most."""
MOST_CLASSES = 40
"""With more classes, the map would not fit a terminal."""


def terminal(federation: Federation) -> str:
    """What was understood of a user's own data; two lines of facts, then a map of labels: one row per client, one column per class, height for the share.

    Where samples have masks, the row of a client says which share of its pixels each class but the background has.
    """
    f, sizes = federation, federation.sizes
    if f.masks:
        holders = (f.label_counts[:, 1:].sum(1) > 0).sum()
        classes = f"{', '.join(f.classes[1:])} in {holders} of {f.clients} clients"
    else:
        groups = f"tenths of {f.target.name}" if f.target else "labels" if f.several else "classes"
        classes = f"{(f.label_counts > 0).sum(1).mean():.1f} of {len(f.groups)} {groups} a client"
    learnt = f"target {f.target.name}" if f.target else f"{f.n_classes} {'labels' if f.several else 'classes'}"
    lines = [
        f"data    {f.name}: {len(np.unique(f.train.rows)):,} training samples of {f.clients:,} clients, {learnt}, "
        f"samples {f.layout or 'x'.join(map(str, f.shape))}; global test {len(f.y_test):,}",
        f"split   {f.skew}: sizes {sizes.min():,} to {sizes.max():,} (median {int(np.median(sizes)):,}), {classes}",
    ]
    if empty := int((sizes == 0).sum()):
        have = "client has" if empty == 1 else "clients have"
        lines.append(f"        {empty} {have} no samples: they receive the model and send nothing")
    own = [understood.table(f), ""] if f.intake else []
    return "\n".join([*own, *lines, *(_map(f) if len(f.groups) <= MOST_CLASSES else ())])


def _map(f: Federation) -> list[str]:
    shown = range(f.clients) if f.clients <= SHOWN else [*range(SHOWN - 1), f.clients - 1]
    width = max(len(f.name_of(k)) for k in shown)
    lines = []
    for i, k in enumerate(shown):
        if f.clients > SHOWN and i == SHOWN - 1:
            lines.append(f"        {'...':<{width}}")
        lines.append(f"        {f.name_of(k):<{width}} {_pixels(f, k) if f.masks else _labels(f, k)}")
    return lines


def _labels(f: Federation, k: int) -> str:
    shares = f.label_counts[k] / max(1, f.label_counts[k].max())
    cells = "".join(BLOCKS[0 if s == 0 else max(1, round(float(s) * 8))] for s in shares)
    return f"|{cells}| {f.sizes[k]:,}"


def _pixels(f: Federation, k: int) -> str:
    shares = f.label_counts[k] / max(1, f.label_counts[k].sum())
    classes = ", ".join(f"{name} {100 * s:.1f} %" for name, s in zip(f.classes[1:], shares[1:]))
    what, places = ("sample", "tokens") if f.tokens else ("image", "pixels")
    return f"{counted(int(f.sizes[k]), what)}, {classes} of the {places}"
