"""Class shares of a shared buffer beside clients' own data, as in FLea's figure 7."""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.report.read import RunData

LABELS = "slices/flea/labels"


def histograms_of(run: RunData, most: int = 3) -> dict[str, Any]:
    """{"buffer": [C], "local": [[C]...], "mixed": [[C]...]}; {} where the run kept no buffer.

    `histograms.json` if there is one. Else the labels of the buffer in the checkpoint, the first clients' labels, and
    as the mixture the mean of the two: half of what FLea's loss sees is the buffer's.
    """
    if run.histograms:
        return run.histograms
    labels, counts = _buffered(run), run.federation.get("labels")
    if not len(labels) or not counts:
        return {}
    buffer = np.bincount(labels, minlength=len(counts[0])) / len(labels)
    local = [np.array(row) / max(sum(row), 1) for row in counts[:most]]
    return {
        "buffer": buffer.tolist(),
        "local": [row.tolist() for row in local],
        "mixed": [((row + buffer) / 2).tolist() for row in local],
    }


def _buffered(run: RunData) -> np.ndarray:
    """[N] class of every buffered activation; empty where there is no buffer."""
    from safetensors import SafetensorError, safe_open

    path = run.path / "state.safetensors"
    if "flea" not in str(run.config.get("method")) or not path.is_file():
        return np.array([], dtype=int)
    try:
        with safe_open(str(path), "numpy") as file:
            return file.get_tensor(LABELS) if LABELS in set(file.keys()) else np.array([], dtype=int)
    except (SafetensorError, OSError):
        return np.array([], dtype=int)
