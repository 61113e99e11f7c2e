"""How like samples are to what an attacker made of them: squared error, PSNR and SSIM, one number a sample.

Letters: N samples, C channels, H x W pixels.
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

from unskew.attacks.scores import Score, mean_of
from unskew.engine.pictures import png, row

SHOWN, SIDE = 8, 128
"""How many samples a sheet shows, and the longest side that one may have."""


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

    def blurred(x: Tensor) -> Tensor:
        return F.conv2d(x, window, groups=x.shape[1])

    mean_a, mean_b = blurred(a), blurred(b)
    var_a, var_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    both = blurred(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return (top / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).flatten(1).mean(1)


def is_image(shape: Sequence[int]) -> bool:
    """Whether samples of this shape have structure that SSIM can see."""
    return len(shape) == 3 and min(shape[1:]) >= 3


@dataclass(frozen=True)
class Guess:
    """What an attacker without payload has. x: its guess, [1, *shape] or one a sample. span: the range of values."""

    x: Tensor
    span: float


def guesses(mine: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> dict[str, Guess]:
    """The attacker's guess of each piece of a sample: the mean of its own.

    mine, there: pieces of its own samples and of the attacked ones. One of several that is the same in all is left out, for
    everybody knows it.
    """
    by_name = dict[str, Guess]()
    for name, x in there.items():
        span = float(mine[name].max() - mine[name].min())
        if span or len(there) == 1 or not bool((x == mine[name][0]).all()):
            by_name[name] = Guess(mine[name].mean(0, keepdim=True), span or 1.0)
    return by_name


def scores(payload: str, of: str, answers: Tensor, there: Tensor, guess: Guess, main: bool = True) -> list[Score]:
    """MSE, PSNR and, for images, SSIM of what was made of payloads."""
    span = guess.span
    measures: dict[str, Any] = {
        "MSE": (lambda a, b: mse(a, b), 0.0),
        "PSNR, dB": (lambda a, b: psnr(a, b, span), math.inf),
    }
    if is_image(there.shape[1:]):
        measures["SSIM"] = (lambda a, b: ssim(a, b, span), 1.0)
    listed = []
    for metric, (measure, ceiling) in measures.items():
        value, low, high = mean_of(measure(answers, there).double().cpu().numpy())
        without = float(measure(guess.x.expand_as(there), there).double().mean())
        listed.append(
            Score(payload, of, metric, value, low, high, without, ceiling, len(there), main=main and metric == "MSE")
        )
    return listed


def sheet(rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """A picture with a row of images for each name; {} where samples are no images of one or three channels."""
    first = next(iter(rows.values()))
    if first.dim() != 4 or first.shape[1] not in (1, 3) or max(first.shape[2:]) > SIDE:
        return {}
    shown = min(SHOWN, len(first))
    images = [x[:shown].detach().cpu().float() for x in rows.values()]
    low, high = float(images[0].min()), float(images[0].max())
    lines = [row((x - low) / ((high - low) or 1), shown) for x in images]
    return {"rows": list(rows), "columns": shown, "png": png(np.concatenate(lines))}
