"""Cross-site generalisation (FedRDN, Yan et al., CVPR 2025, Table 3): local models on other sites' test rows.

score_ij: the model of site i, after its last local training and before it is merged, on the test rows of site j, whose
inputs are prepared with the statistics of site j.
The paper says neither which local model nor whose statistics; these are our reading.
"""

from __future__ import annotations

import numpy as np


def off_diagonal_mean(score_KK: np.ndarray) -> float:
    """The mean over pairs of different sites; NaN (no model, no test rows) left out, NaN if nothing is left."""
    other = ~np.eye(*score_KK.shape, dtype=bool)
    values = score_KK[other & ~np.isnan(score_KK)]
    return float(values.mean()) if len(values) else float("nan")
