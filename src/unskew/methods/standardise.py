"""Standardise (no paper): scales channels by their mean and standard deviation over all clients' samples.

Once, before round 1, client k sends for every channel, of its n_k samples:
    mu_k = mean x,    sigma_k = std x              (population std; pixels of images count like
    samples)
With p_k = n_k / sum_j n_j, as the merge weighs clients, all clients scale, at training and test, by
    mu = sum_k p_k mu_k,    sigma^2 = sum_k p_k (sigma_k^2 + (mu_k - mu)^2),    x <- (x - mu) /
    sigma
A constant channel is not divided. Each of several inputs has its own channels; whole numbers and truth values
do not change, and for them mu = 0 and sigma = 1 are sent. If all clients answer, these are the constants of
`normalise=dataset`, which sees all samples in one place.
Differs from the paper: there is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch

from unskew.core import Batch, Client, Fed, Part, Share, Tensor, Tree, Trip, Ups, Weights
from unskew.formats.input_layout import Layout
from unskew.methods.shared.declarations import before_training
from unskew.methods.shared.sample_images import per_channel


@dataclass(frozen=True)
class Standardise(Part):
    """Scales every channel by one pair of constants, pooled from the clients' means and deviations."""

    images: Annotated[
        bool, "of several inputs scale images, too; set False with fedrdn or norm, which scale images"
    ] = True
    name = "standardise"
    family = "data"
    against = ("features",)
    use_when = (
        "Columns of a table, or sites' images, have different scales, and no site may see another's samples."
    )
    normalises = True
    alone = True

    @property
    def by_input(self) -> Literal["floats", "others"]:  # type: ignore[override]
        return "floats" if self.images else "others"

    @property
    def clashes(self) -> Mapping[str, str]:  # type: ignore[override]
        why = (
            "both normalise the input; beside several inputs standardise(images=False) scales the others"
            " alone"
        )
        return dict.fromkeys(("norm", "fedrdn"), why) if self.images else {}

    def refuse(self, fed: Fed) -> str | None:
        layout = fed.net.layout
        if not layout:
            if self.images:
                return None
            return "images=False leaves out one of several inputs, and a sample here is one"
        if not self._scaled(layout).any():
            which = "floats" if self.images else "floats that are no image"
            return f"none of a sample's inputs are {which} ({layout})"
        return None

    def _scaled(self, layout: Layout) -> np.ndarray:
        """Marks the channels that are scaled, bool [channels]."""
        return layout.scalable([each.name for each in layout.inputs if self.images or not each.is_image])

    @property
    def trips(self) -> tuple[Trip, ...]:
        return before_training(self.measure, self.pool, self.statistics)

    def statistics(self, fed: Fed) -> dict[str, Share]:
        each = Share((channels(fed),), reads="each", kind="statistics", samples="client")
        return {
            "mu": replace(each, what="mean of each channel"),
            "sigma": replace(each, low=0.0, what="standard deviation of each channel"),
        }

    def measure(self, w: Weights, c: Client) -> Tree:
        def count(b: Batch) -> dict[str, Tensor]:
            return {"x": (by_channel(b.x, c.fed) * b.weight[:, None]).sum(0), "n": b.weight.sum()}

        total = c.total(count, raw=True)
        mu_C = total["x"] / total["n"]

        def apart(b: Batch) -> dict[str, Tensor]:
            square = (b.x - for_samples(mu_C, c.fed)).square()
            return {"square": (by_channel(square, c.fed) * b.weight[:, None]).sum(0)}

        sigma_C = (c.total(apart, raw=True)["square"] / total["n"]).sqrt()
        if not c.fed.net.layout:
            return {"mu": mu_C, "sigma": sigma_C}
        scaled_C = torch.as_tensor(self._scaled(c.fed.net.layout), device=mu_C.device)
        return {"mu": torch.where(scaled_C, mu_C, 0.0), "sigma": torch.where(scaled_C, sigma_C, 1.0)}

    def pool(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if not len(ups):
            return w, s
        mu_KC, sigma_KC = ups["mu"].double(), ups["sigma"].double()
        p_K1 = torch.tensor(ups.shares_of_weight("size"), dtype=torch.float64, device=mu_KC.device)[:, None]
        mu_C = (p_K1 * mu_KC).sum(0)
        sigma_C = (p_K1 * (sigma_KC.square() + (mu_KC - mu_C).square())).sum(0).sqrt()
        constant_C = sigma_C <= 1e-6 * mu_C.abs()  # only the rounding error of the mean is left
        return w, {"mu": mu_C.float(), "sigma": torch.where(constant_C, 1.0, sigma_C).float()}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        """The pair (0, 1), which leaves inputs unchanged until clients report."""
        return {"mu": torch.zeros(channels(fed)), "sigma": torch.ones(channels(fed))}

    def batch(self, b: Batch, c: Client) -> Batch:
        return b.scaled(*(for_samples(c.down[name], c.fed) for name in ("mu", "sigma")))

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        return (x - for_samples(c.down["mu"], c.fed)) / for_samples(c.down["sigma"], c.fed)


def channels(fed: Fed) -> int:
    """The number C of a sample's channels, over all its inputs."""
    return fed.net.layout.channels if fed.net.layout else fed.shape[0]


def by_channel(x: Tensor, fed: Fed) -> Tensor:
    """The mean of each sample's numbers in every channel, [B, C]."""
    if not fed.net.layout:
        return x.reshape(len(x), x.shape[1], -1).mean(-1)
    inputs = [x[:, a:b].reshape(len(x), each.channels, -1) for each, a, b in fed.net.layout.places]
    return torch.cat([x_BCP.mean(-1) for x_BCP in inputs], 1)


def for_samples(values_C: Tensor, fed: Fed) -> Tensor:
    """One number for each channel, shaped to broadcast against samples [B, ...]."""
    if not fed.net.layout:
        return per_channel(values_C[None], fed)
    return values_C[torch.as_tensor(fed.net.layout.channel_of, device=values_C.device)][None]
