"""Sample-level differential privacy (DP-SGD: Abadi et al., CCS 2016), at every client.

Step:   each of the client's n samples is drawn independently, with probability q = B / n (all if n < B)
        g = (sum_i g_i min(1, C / |g_i|) + N(0, (z C)^2)) / (q n)       g_i: gradient of sample i's loss
An epoch takes n / B steps, rounded up.
Sums:   sum_i v_i min(1, S / |v_i|) + N(0, (y S)^2)   in place of sum_i v_i,   for other Parts
        v_i: everything that sample i adds to the sums a Part shares, with counts, as one vector
Parts that share such sums are, for example, FedRDN (statistics) and FedProto (class sums).
Guarantee: everything a client sends during the run is private for the addition or removal of one of its
samples, against any reader, the server included. The number of samples is public; scores on test samples and,
in a simulation, losses carry no noise. Steps and sums are one composition with one epsilon. Noise is added in
float64 and rounded to multiples of 2^-20 deviations.
Differs from the paper: every client accounts for itself, at its own q and number of steps; the sums are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt

from unskew.core import Client, Fed, Part, Tensor, Weights
from unskew.core.client import NOISE_DEVIATIONS
from unskew.core.method import Method
from unskew.core.privacy_account import Account, epsilon_caution
from unskew.privacy import dp
from unskew.privacy.accounting import LEAST_NOISE, round_up, sampled_epsilon

SHORTER = 1 - 2.0**-22
"""Vectors that are clipped are shorter than the bound by this factor, so that rounding them to float32 does
not exceed it."""


@dataclass(frozen=True)
class DPSGD(Part):
    """Clips the gradient of every sample and adds noise to their sum, so that updates reveal little about any
    one sample."""

    clip: Annotated[float, Gt(0), Le(1_000_000), "C, the largest L2 norm of one sample's gradient"] = 1.0
    noise_multiplier: Annotated[
        float, Ge(LEAST_NOISE), Le(1_000_000), "z, the deviation of the noise in units of the clip"
    ] = 1.0
    sums_clip: Annotated[
        float,
        Gt(0),
        Le(1_000_000),
        "S, the largest L2 norm of what one sample adds to a sum that another Part releases",
    ] = 1.0
    sums_noise: Annotated[
        float,
        Ge(LEAST_NOISE),
        Le(1_000_000),
        "y, the deviation of the noise on each number of such a sum, in units of its clip",
    ] = 10.0
    delta: Annotated[
        float,
        Ge(1e-12),
        Lt(1),
        "chance with which more may leak; well below one in a client's number of samples",
    ] = 1e-5
    name = "dpsgd"
    family = "privacy"
    use_when = (
        "Nobody, the server included, may learn whether one sample was in a client's data; clients need many"
        " samples."
    )
    samples_apart = True

    def refuse(self, fed: Fed) -> str | None:
        if self.delta * float(fed.sizes.max(initial=0)) >= 1:
            return f"delta={self.delta:g} is no less than one in a client's number of samples; lower it"
        return None

    def sample_grad(self, g: Weights, c: Client) -> Weights:
        return clip_vector(g, self.clip)

    def sample_sum(self, v: dict[str, Tensor], c: Client) -> dict[str, Tensor]:
        return clip_vector(v, self.sums_clip)

    @property
    def step_noise(self) -> float:  # type: ignore[override]
        """The deviation of the noise on each number of a step's sum of gradients."""
        return self.noise_multiplier * self.clip

    @property
    def sum_noise(self) -> float:  # type: ignore[override]
        """The deviation of the noise on each number of another sum."""
        return self.sums_noise * self.sums_clip

    def account(self, counts_KC: np.ndarray[Any, Any], fed: Fed) -> Account:
        worst, n = max((self.of_client(n, fed), n) for n in _candidates(fed))
        q, steps = min(1.0, fed.batch / n), fed.passes * -(-n // fed.batch)
        many = f"{fed.sums:,} sums over its samples, each" if fed.sums > 1 else "a sum over its samples"
        sums = f", {many} with noise {self.sums_noise:g} x clip {self.sums_clip:g}"
        return Account(
            f"noise {self.noise_multiplier:g} x clip {self.clip:g}; the client protected least has {n:,}"
            f" samples: q = {q:.4g}, {steps:,} steps{sums if fed.sums else ''} if it is asked in every round",
            (
                (
                    worst,
                    (
                        "of all a client sends, one sample more or less, against whoever reads"
                        f" it{epsilon_caution(worst)}"
                    ),
                ),
                (math.inf, "of test scores, and of training losses in a simulation, which carry no noise"),
            ),
            delta=self.delta,
        )

    def of_client(self, n: int, fed: Fed) -> float:
        """Epsilon of a client with n samples that is asked in every round, for its updates and all other
        sums together."""
        steps = (fed.passes * -(-n // fed.batch), min(1.0, fed.batch / n), self.noise_multiplier)
        return round_up(sampled_epsilon((steps, (fed.sums, 1.0, self.sums_noise)), self.delta))


def clip_vector(v: dict[str, Tensor], most: float) -> dict[str, Tensor]:
    """One sample's contribution to a sum, clipped as one vector to the L2 norm `most`; zeros if it is not
    finite."""
    norm = torch.stack([t.double().pow(2).sum() for t in v.values()]).sum().sqrt()
    keep = torch.where(norm > most, most * SHORTER / norm, 1.0)
    return {n: torch.where(norm.isfinite(), t.double() * keep, 0.0).to(torch.float32) for n, t in v.items()}


def sum_remarks(method: Method, fed: Fed) -> tuple[tuple[str, str], ...]:
    """Remark E128 for clients with so few samples that noise hides their counts; else ()."""
    part, sizes = method.samples_apart, fed.sizes[fed.sizes > 0]
    if part is None or not fed.sums or not len(sizes):
        return ()
    floor = NOISE_DEVIATIONS * part.sum_noise
    few = int(np.count_nonzero(sizes <= floor))
    if not few:
        return ()
    text = (
        f"{few:,} of {len(sizes):,} clients have no more than {floor:,.0f} samples, three deviations of the"
        f" noise that '{part.name}' adds to sums over samples, so what their sums say counts as unknown:"
        " lower sums_noise, which costs epsilon, or leave out what asks for the sums."
    )
    return (("E128", text),)


def _candidates(fed: Fed) -> list[int]:
    """The sizes that may belong to the least protected client: the smallest for each number of steps."""
    smallest: dict[int, int] = {}
    for n in sorted({int(n) for n in fed.sizes if n}, reverse=True):
        smallest[-(-n // fed.batch)] = n
    return list(smallest.values())


def noise_remarks(method: Method, fed: Fed) -> tuple[tuple[str, str], ...]:
    """Remarks (code, text) on privacy settings that do not suit this method or these clients."""
    return (*dp.remarks(method, fed), *sum_remarks(method, fed))
