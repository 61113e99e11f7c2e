"""Measures of an attack's success: likeness of reconstructions, and separation of members from non-members.

Likeness is the squared error, PSNR and SSIM of each sample. Membership is measured by the area under the ROC
curve, and by true positives at few false positives.

Letters: N samples, C channels, H x W pixels; for membership M members, N others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.attacks.attack import Score, mean_of, share_of
from unskew.runs.measures.received import png, row

MOST_IMAGES, SIDE = 8, 128
"""The number of samples in a picture, and the longest side of a sample."""


def mse(a: Tensor, b: Tensor) -> Tensor:
    """[N]: mean squared error, in the samples' unit squared."""
    return (a - b).flatten(1).pow(2).mean(1)


def psnr(a: Tensor, b: Tensor, span: float) -> Tensor:
    """[N]: 10 log10(span^2 / MSE) in decibels; span: the range of values, 1 for images."""
    return 10 * (span**2 / mse(a, b).clamp(min=1e-12)).log10()


def ssim(a: Tensor, b: Tensor, span: float) -> Tensor:
    """[N]: structural similarity (Wang et al., 2004) of images [N, C, H, W], 1 for equal ones.

    Gaussian window of 1.5 pixels, 11 pixels wide or as wide as the smaller side allows.
    """
    wide = min(11, (min(a.shape[2:]) - 1) // 2 * 2 + 1)
    place = torch.arange(wide, dtype=a.dtype) - wide // 2
    line = (-(place**2) / (2 * 1.5**2)).exp()
    line = line / line.sum()
    window = (line[:, None] * line[None, :]).expand(a.shape[1], 1, wide, wide).to(a.device)

    def blur(x: Tensor) -> Tensor:
        return F.conv2d(x, window, groups=x.shape[1])

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    both = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return (top / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).flatten(1).mean(1)


def is_image(shape: Sequence[int]) -> bool:
    """Whether samples of this shape are images for which SSIM is defined."""
    return len(shape) == 3 and min(shape[1:]) >= 3


@dataclass(frozen=True)
class Guess:
    """The guess without a payload. x: [1, *shape] or one per sample. span: the range of values."""

    x: Tensor
    span: float


def guess_of(own: Tensor) -> Guess:
    """The guess of an attacker with samples [N, *shape] of its own: their mean."""
    return Guess(own.mean(0, keepdim=True), float(own.max() - own.min()) or 1.0)


EXACT = 40.0
"""The PSNR in decibels above which a sample counts as recovered exactly."""
WORST = "MSE of the worst client"


def likeness_scores(
    payload: str, of: str, answers: Tensor, there: Tensor, guess: Guess, client_N: Tensor, main: bool = True
) -> list[Score]:
    """MSE, PSNR and, for images, SSIM of reconstructions; the share of exact ones, and the worst client.

    client_N: the client of each sample.
    """
    span, without = guess.span, guess.x.expand_as(there)
    measures: dict[str, Any] = {"MSE": (mse, 0.0), "PSNR, dB": (lambda a, b: psnr(a, b, span), math.inf)}
    if is_image(there.shape[1:]):
        measures["SSIM"] = (lambda a, b: ssim(a, b, span), 1.0)
    scores = list[Score]()
    for metric, (measure, ceiling) in measures.items():
        value, floor = mean_of(_numbers(measure(answers, there))), float(measure(without, there).mean())
        scores.append(
            Score(payload, of, metric, *value, floor, ceiling, len(there), main and metric == "MSE")
        )
    exact, guessed = (int((psnr(a, there, span) > EXACT).sum()) for a in (answers, without))
    n = len(there)
    share = share_of(exact, n)
    scores.append(Score(payload, of, f"share above {EXACT:g} dB", *share, guessed / n, 1.0, n, main))
    error_N, clients = mse(answers, there), client_N.unique()
    if len(clients) > 1:
        worst = min((client_N == k for k in clients), key=lambda rows: float(error_N[rows].mean()))
        floor = float(mse(without, there)[worst].mean())
        value = mean_of(_numbers(error_N[worst]))
        scores.append(Score(payload, of, WORST, *value, floor, 0.0, int(worst.sum())))
    return scores


def _numbers(x: Tensor) -> np.ndarray:
    return x.double().cpu().numpy()


def image_sheet(rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """A picture with a row of images for each name; {} for samples that are no grey or colour images."""
    first = next(iter(rows.values()))
    if first.dim() != 4 or first.shape[1] not in (1, 3) or max(first.shape[2:]) > SIDE:
        return {}
    shown = min(MOST_IMAGES, len(first))
    images = [x[:shown].detach().cpu().float() for x in rows.values()]
    low, high = float(images[0].min()), float(images[0].max())
    lines = [row((x - low) / ((high - low) or 1), shown) for x in images]
    return {"rows": list(rows), "columns": shown, "png": png(np.concatenate(lines))}


RESAMPLES = 200


def auc(members_M: np.ndarray, others_N: np.ndarray) -> float:
    """The chance that a member's score is above another's; ties count half."""
    from scipy.stats import rankdata  # which takes a second to import

    ranks = rankdata(np.concatenate([members_M, others_N]))
    m, n = len(members_M), len(others_N)
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def tpr_at(fpr: float, members_M: np.ndarray, others_N: np.ndarray) -> float:
    """The largest share of members above a threshold that at most a share `fpr` of the others exceeds."""
    allowed = _allowed(fpr, len(others_N))
    threshold = np.sort(others_N)[::-1][allowed] if allowed < len(others_N) else -np.inf
    return float((members_M > threshold).mean())


def chance_of_tpr(fpr: float, n: int) -> float:
    """The mean of `tpr_at` if members and n others have scores of one distribution.

    The threshold is the score of one of the others, and all n + 1 ranks of a member's score are equally
    likely. For 200 others and a rate of 0.1 %, the threshold is the highest score, which 1 in 201 members
    exceeds.
    """
    return (_allowed(fpr, n) + 1) / (n + 1)


def interval_of_tpr(
    fpr: float, members_M: np.ndarray, others_N: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """The 95 % interval of `tpr_at`: Wilson's over members, widened by a bootstrap over the others."""
    m = len(members_M)
    _, *wilson = share_of(round(tpr_at(fpr, members_M, others_N) * m), m)
    values = [
        tpr_at(fpr, rng.choice(members_M, m), rng.choice(others_N, len(others_N))) for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return min(wilson[0], float(low)), max(wilson[1], float(high))


def _allowed(fpr: float, n: int) -> int:
    """The number of n others that may exceed the threshold."""
    return int(fpr * n + 1e-9)


def interval_of_auc(
    members_M: np.ndarray, others_N: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """The 95 % bootstrap interval of the area over samples; Wilson's if all resamples have equal areas."""
    values = [
        auc(rng.choice(members_M, len(members_M)), rng.choice(others_N, len(others_N)))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    if low == high:
        k = min(len(members_M), len(others_N))
        return share_of(auc(members_M, others_N) * k, k)[1:]
    return float(low), float(high)
