"""How well scores tell members from others: area under the ROC, true positives at few false ones, and the curve.

Letters: M members, N others, P points of a curve.
"""

from __future__ import annotations

import numpy as np

from unskew.attacks.scores import share_of

POINTS = 200
RESAMPLES = 200


def auc(members_M: np.ndarray, others_N: np.ndarray) -> float:
    """The chance that a member's score is above another's; ties count half."""
    from scipy.stats import rankdata  # which takes a second to import

    ranks = rankdata(np.concatenate([members_M, others_N]))
    m, n = len(members_M), len(others_N)
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def tpr_at(fpr: float, members_M: np.ndarray, others_N: np.ndarray) -> float:
    """The largest share of members that a threshold catches while at most this share of the others is caught with them."""
    allowed = _allowed(fpr, len(others_N))
    threshold = np.sort(others_N)[::-1][allowed] if allowed < len(others_N) else -np.inf
    return float((members_M > threshold).mean())


def chance_of_tpr(fpr: float, n: int) -> float:
    """What `tpr_at` comes to in the mean where n others are like members.

    A threshold lies at another's score, above which a member is as likely as each of n + 1 scores: of 200 others no threshold
    lets 0.1 % pass, and the highest lets 1 in 201.
    """
    return (_allowed(fpr, n) + 1) / (n + 1)


def interval_of_tpr(
    fpr: float, members_M: np.ndarray, others_N: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """The 95 % interval of `tpr_at`: Wilson's over members, widened by a bootstrap over those others that set the threshold."""
    m = len(members_M)
    _, *wilson = share_of(round(tpr_at(fpr, members_M, others_N) * m), m)
    values = [tpr_at(fpr, rng.choice(members_M, m), rng.choice(others_N, len(others_N))) for _ in range(RESAMPLES)]
    low, high = np.quantile(values, [0.025, 0.975])
    return min(wilson[0], float(low)), max(wilson[1], float(high))


def _allowed(fpr: float, n: int) -> int:
    """How many of n others may pass."""
    return int(fpr * n + 1e-9)


def roc(members_M: np.ndarray, others_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(false positives, true positives) as shares, both [P] rising, for at most POINTS thresholds, dense where both are few."""
    thresholds = np.unique(np.concatenate([members_M, others_N]))[::-1]
    fpr = np.searchsorted(np.sort(-others_N), -thresholds, side="right") / len(others_N)
    tpr = np.searchsorted(np.sort(-members_M), -thresholds, side="right") / len(members_M)
    if len(thresholds) > POINTS:
        steps = np.geomspace(1, len(thresholds), POINTS).round().astype(int) - 1
        fpr, tpr = fpr[np.unique(steps)], tpr[np.unique(steps)]
    return fpr, tpr


def interval_of_auc(members_M: np.ndarray, others_N: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % bootstrap interval of the area, over samples; Wilson's where resamples are told apart alike, as few ones are."""
    values = [auc(rng.choice(members_M, len(members_M)), rng.choice(others_N, len(others_N))) for _ in range(RESAMPLES)]
    low, high = np.quantile(values, [0.025, 0.975])
    if low == high:
        k = min(len(members_M), len(others_N))
        return share_of(auc(members_M, others_N) * k, k)[1:]
    return float(low), float(high)
