"""FedRDN (Yan et al., CVPR 2025, arXiv 2306.09363): normalises images with a random client's statistics.

Once, before round 1, client k sends for every channel, over its images i:
    mu_k = mean_i mean_hw x_i,    sigma_k = mean_i std_hw x_i      (population std of each image)
Train:  each time an image is drawn, j uniform in 1..K:    x <- (x - mu_j) / sigma_j
Test:   client k's images use its own pair; an image of no client uses the mean pair over clients
FedRDN-V (`mean=True`) uses the mean pair for every image, at training and test. With `dpsgd` clients send
sums of (mean_hw x_i, std_hw x_i, 1) with clip and noise; sigma is at least three deviations of its noise, and
if the count is not above three deviations of its own noise, the pair is (0, 1). If a sample has several
inputs, every image among them is normalised by its own channels, all with the statistics of one client; other
inputs do not change.
Differs from the paper: it prints sums where its code has means; means are meant. `variant="official"` draws
mean and std from two different clients, one pick for each batch, with the unbiased std, as the public code
does.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from unskew.core import Batch, Client, Fed, Noise, Part, Share, Tensor, Tree, Trip, Ups, Weights
from unskew.core.trees import row_at
from unskew.methods.shared import sample_images
from unskew.methods.shared.declarations import before_training

FLOOR = 1e-6


@dataclass(frozen=True)
class FedRDN(Part):
    """Normalises every training image with the statistics of a client drawn at random."""

    mean: Annotated[bool, "FedRDN-V: normalise every image with the mean pair over clients"] = False
    variant: Annotated[Literal["paper", "official"], "the paper's form, or the public code's"] = "paper"
    name = "fedrdn"
    family = "data"
    against = ("features",)
    use_when = (
        "Images look different from site to site; it works with any method and sends two numbers a"
        " channel, once."
    )
    presets = {"fedrdn_v": {"mean": True}}
    normalises = True
    by_input = "images"
    alone = True
    clashes = {"norm": "both normalise the input"}

    def refuse(self, fed: Fed) -> str | None:
        if sample_images.image_shapes(fed):
            return None
        return f"it normalises channels of images and {sample_images.image_refusal(fed)}"

    @property
    def trips(self) -> tuple[Trip, ...]:
        return before_training(self.measure, self.collect, self.statistics, sums=1)

    def statistics(self, fed: Fed) -> dict[str, Share]:
        each = Share((sample_images.image_channels(fed),), reads="each", kind="statistics", samples="client")
        return {
            "mu": replace(each, what="mean of each channel"),
            "sigma": replace(each, low=FLOOR, what="mean standard deviation of each channel"),
        }

    def measure(self, w: Weights, c: Client) -> Tree:
        def sums(b: Batch) -> dict[str, Tensor]:
            each_BCP = [image.flatten(2) for image in sample_images.images(b.x, c.fed)]
            mean_BC = torch.cat([pixels_BCP.mean(-1) for pixels_BCP in each_BCP], 1)
            correction = int(self.variant == "official")
            std_BC = torch.cat([pixels_BCP.std(-1, correction=correction) for pixels_BCP in each_BCP], 1)
            weight = b.weight[:, None]
            return {"mu": (mean_BC * weight).sum(0), "sigma": (std_BC * weight).sum(0), "n": b.weight.sum()}

        total = c.total(sums, raw=True)
        mu, sigma = (
            c.mean_of(total[what], total["n"], unknown) for what, unknown in (("mu", 0.0), ("sigma", 1.0))
        )
        least = c.mean_of(
            torch.full_like(sigma, c.floor), total["n"], FLOOR
        )  # the least deviation that is more than noise
        return {"mu": mu, "sigma": torch.maximum(sigma, least).clamp(min=FLOOR)}

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        """Builds the table of all pairs; the row of a client that never reported is the mean pair. Without
        any pair, inputs do not change."""
        if not len(ups):
            return w, s
        mu_KC, sigma_KC = ups["mu"], ups["sigma"]
        row_of = torch.full((fed.clients,), -1, dtype=torch.int64)
        row_of[ups.clients] = torch.arange(len(ups))
        return w, {"mu": mu_KC, "sigma": sigma_KC, "row": row_of}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        """The pair (0, 1), which leaves inputs unchanged until clients report."""
        channels = sample_images.image_channels(fed)
        unreported = torch.full((fed.clients,), -1, dtype=torch.int64)
        return {"mu": torch.zeros(1, channels), "sigma": torch.ones(1, channels), "row": unreported}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        if self.mean:
            return {}
        rows = (float(len(down["mu"])),)
        if self.variant == "official":
            pick = Noise("integers", rows, (1,), per_sample=False)
            return {"of_mean": pick, "of_std": pick}
        pick = Noise("integers", rows)
        return {"of_pair": pick}

    def batch(self, b: Batch, c: Client) -> Batch:
        if self.mean:
            return b.scaled(*self._mean_pair(c))
        of_mean = c.noise["of_mean"] if self.variant == "official" else c.noise["of_pair"]
        of_std = c.noise["of_std"] if self.variant == "official" else c.noise["of_pair"]
        return b.scaled(*_broadcast(c.down["mu"][of_mean], c.down["sigma"][of_std], c.fed))

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        if self.mean or (isinstance(c.id, int) and c.id < 0):
            mu, sigma = self._mean_pair(c)
            return (x - mu) / sigma
        row = row_at(
            c.down["row"], c.id if isinstance(c.id, Tensor) else torch.full((), c.id, device=x.device)
        )
        known, at = (row >= 0).to(x.dtype), row.clamp(min=0)
        mu_C = known * row_at(c.down["mu"], at) + (1 - known) * c.down["mu"].mean(0)
        sigma_C = known * row_at(c.down["sigma"], at) + (1 - known) * c.down["sigma"].mean(0)
        mu, sigma = _broadcast(mu_C[None], sigma_C[None], c.fed)
        return (x - mu) / sigma

    def _mean_pair(self, c: Client) -> tuple[Tensor, Tensor]:
        return _broadcast(c.down["mu"].mean(0)[None], c.down["sigma"].mean(0)[None], c.fed)


def _broadcast(mu_BC: Tensor, sigma_BC: Tensor, fed: Fed) -> tuple[Tensor, Tensor]:
    """The pairs, shaped to broadcast against samples; they change only images."""
    return sample_images.per_channel(mu_BC, fed, 0.0), sample_images.per_channel(sigma_BC, fed, 1.0)
