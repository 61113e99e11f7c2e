"""Cross-site generalisation (FedRDN, Yan et al., CVPR 2025, Table 3): local models on other sites' test rows.

score_ij: the model of site i, after its last local training and before it is merged, on the test rows of site j, whose
inputs are prepared with the statistics of site j.
The paper says neither which local model it takes nor whose statistics; these are our reading. Letters: K sites.
"""

from __future__ import annotations

import numpy as np


def off_diagonal_mean(score_KK: np.ndarray) -> float:
    """The mean of score_KK [K, K] over pairs of different sites, without NaN (no model, no test rows); NaN if none is left."""
    other = ~np.eye(*score_KK.shape, dtype=bool)
    values = score_KK[other & ~np.isnan(score_KK)]
    return float(values.mean()) if len(values) else float("nan")
