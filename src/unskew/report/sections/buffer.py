"""The classes in a shared buffer, and in the batches of clients that use it (FLea, figure 7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from unskew.report.analysis.runs import RunData
from unskew.report.figures.bars import histograms
from unskew.report.sections import Context, Section, figure

ORDER = 80
LABELS = "slices/flea/labels"
"""The labels of FLea's buffer in a checkpoint."""
LEAD = (
    "Does the buffer hold the classes that a client lacks? First the class shares of the buffer, then those"
    " of some clients’ own data, and below them those of what the same clients train on. Each panel has its"
    " own scale."
)


def build(context: Context) -> Section | None:
    """The histograms of the first seed of each method that shares a buffer; None if there is none."""
    pictures = []
    for method, group in context.methods.items():
        if shares := histograms_of(group[0]):
            classes = group[0].federation.get("classes", [])
            pictures.append((method, figure(partial(histograms, shares, classes))))
    if not pictures:
        return None
    if len(pictures) == 1:
        method, picture = pictures[0]
        return Section(
            f"Classes in the shared buffer of {method}", "buffer", picture, lead=LEAD, link="Shared buffer"
        )
    html = Markup().join(Markup("<h3>{}</h3>{}").format(method, picture) for method, picture in pictures)
    return Section("Classes in the shared buffers", "buffer", html, lead=LEAD, link="Shared buffers")


def histograms_of(run: RunData, most: int = 3) -> dict[str, Any]:
    """{"buffer": [C], "local": [[C]...], "mixed": [[C]...]} for the first `most` clients; {} without a buffer
    or without known labels.

    The histograms are the measured ones if there are any. Otherwise they come from the labels of the buffer
    in the checkpoint and of the clients, with the mean of both as the mixture, because half of the samples in
    FLea's loss are the buffer's.
    """
    if run.histograms:
        return run.histograms
    labels, counts = _buffered_labels(run), run.federation.get("labels")
    if not len(labels) or not counts or not any(map(any, counts)):
        return {}
    buffer = np.bincount(labels, minlength=len(counts[0])) / len(labels)
    local = [np.array(row) / max(sum(row), 1) for row in counts[:most]]
    return {
        "buffer": buffer.tolist(),
        "local": [row.tolist() for row in local],
        "mixed": [((row + buffer) / 2).tolist() for row in local],
    }


def _buffered_labels(run: RunData) -> np.ndarray:
    """[N] the class of every buffered activation; empty if there is no buffer."""
    from safetensors import SafetensorError, safe_open

    nothing = np.array([], dtype=int)
    path = run.path / "state.safetensors"
    if "flea" not in str(run.config.get("method")) or not path.is_file():
        return nothing
    try:
        with safe_open(str(path), "numpy") as file:
            return file.get_tensor(LABELS) if LABELS in set(file.keys()) else nothing
    except (SafetensorError, OSError):
        return nothing
