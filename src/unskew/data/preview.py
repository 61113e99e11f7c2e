"""The partition as text: what a run shows before it starts."""

from __future__ import annotations

import numpy as np

from unskew.data.federation import Federation

BLOCKS = " ▁▂▃▄▅▆▇█"
SHOWN = 8


def terminal(federation: Federation) -> str:
    """Two lines of facts, then a label map: a row per client, a column per class, height for the share.

    Where samples have masks, a client's row tells the share of its pixels that each class but the background has.
    """
    f, sizes = federation, federation.sizes
    held = (
        f"{', '.join(f.classes[1:])} in {(f.label_counts[:, 1:].sum(1) > 0).sum()} of {f.clients} clients"
        if f.masks
        else f"{(f.label_counts > 0).sum(1).mean():.1f} of {f.n_classes} classes a client"
    )
    lines = [
        f"data    {f.name}: {len(np.unique(f.train.rows)):,} training samples of {f.clients:,} clients, {f.n_classes} classes, "
        f"samples {'x'.join(map(str, f.shape))}; global test {len(f.y_test):,}",
        f"split   {f.skew}: sizes {sizes.min():,} to {sizes.max():,} (median {int(np.median(sizes)):,}), {held}",
    ]
    if empty := int((sizes == 0).sum()):
        lines.append(
            f"        {empty} client{'s have' if empty > 1 else ' has'} no samples: they receive the model and send nothing"
        )
    if f.n_classes <= 40:
        lines += _map(federation)
    return "\n".join(lines)


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
    share = f.label_counts[k] / max(1, f.label_counts[k].max())
    cells = "".join(BLOCKS[0 if s == 0 else max(1, round(float(s) * 8))] for s in share)
    return f"|{cells}| {f.sizes[k]:,}"


def _pixels(f: Federation, k: int) -> str:
    share = f.label_counts[k] / max(1, f.label_counts[k].sum())
    told = ", ".join(f"{name} {100 * s:.1f} %" for name, s in zip(f.classes[1:], share[1:]))
    return f"{f.sizes[k]:,} images, {told} of the pixels"
