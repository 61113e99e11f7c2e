"""FedFA (Zhou & Konukoglu, ICLR 2023, arXiv 2301.12995): perturbs feature statistics as clients differ.

At every chosen cut, in training, with probability p in each step; m, s: a sample's channel means and standard
deviations:
    V_m, V_s: their variances over the batch;   S_m, S_s: variances of the clients' mean m and s
    gamma = C r / sum(r),   r_c = 1 / (1 + 1 / S_c)
    m' = m + N(0, 1) sqrt((gamma + 1) V_m),   s' in the same way
    h <- (h - m) / s * s' + m'
Up:     each client's mean m and mean s for every channel
In round 1 S = 1, so gamma = 1. At test time nothing changes.
Differs from the paper: clients' means are taken over all samples by the trained model, not as running means
(momentum 0.99) during training. Clients are weighted by size (paper: equally). A sample's standard deviation
is the population's (code: unbiased), and 1e-6 is added once to (gamma + 1) V, not to each variance; the
results differ by at most 1.3e-5. `variant="official"` reproduces an error of the public code: one S for all
channels, so that gamma is always 1.
Defaults: p is that of the official program.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import MinLen

from unskew.core import Batch, Client, Fed, Noise, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import Fraction

EPS = 1e-6


@dataclass(frozen=True)
class FedFA(Part):
    """Perturbs channel statistics of activations, more where clients differ more."""

    p: Annotated[Fraction, "probability with which a step is perturbed at a cut; 0 is FedAvg"] = 0.5
    cuts: Annotated[
        tuple[str, ...],
        MinLen(1),
        'blocks whose output is perturbed ("maps": all whose output has channels of pixels)',
    ] = ("maps",)
    variant: Annotated[
        Literal["paper", "official"], "variances over clients per channel, or one for all channels"
    ] = "paper"
    name = "fedfa"
    family = "data"
    against = ("features",)
    use_when = (
        "Images look different from site to site, and the model is to be robust to this without changed"
        " inputs."
    )

    @property
    def taps(self) -> tuple[str, ...]:
        return self.cuts

    def refuse(self, fed: Fed) -> str | None:
        return None if self._channels(fed) else "the model has no block whose output has channels of pixels"

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {
            f"{what}/{cut}": Share(
                (channels,),
                reads="each",
                what=f"mean of each channel's {statistic}",
                kind="statistics",
                samples="client",
            )
            for what, statistic in (("m", "mean"), ("s", "standard deviation"))
            for cut, channels in self._channels(fed).items()
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {what: {cut: torch.ones(n) for cut, n in self._channels(fed).items()} for what in ("m", "s")}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        """Standard normal numbers for every channel's m and s, and one uniform number for each cut and step,
        which decides whether to perturb."""
        drawn = {
            f"{what}/{cut}": Noise("normal", shape=(n,))
            for cut, n in self._channels(fed).items()
            for what in ("m", "s")
        }
        return drawn | {
            f"p/{cut}": Noise("uniform", shape=(), per_sample=False) for cut in self._channels(fed)
        }

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        if f"p/{cut}" not in c.noise:
            return h, b
        m, s = moments(h)
        m_new, s_new = (
            v + c.noise[f"{what}/{cut}"] * spread(v, b.weight, c.down[what][cut]).sqrt()
            for what, v in (("m", m), ("s", s))
        )
        perturbed = (h - _wide(m)) / _wide(s) * _wide(s_new) + _wide(m_new)
        return torch.where(c.noise[f"p/{cut}"] < self.p, perturbed, h), b

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        def sums(b: Batch) -> dict[str, Tensor]:
            statistics: dict[str, Tensor] = {}
            for cut, h in c.maps(w, b.x, self._cuts(c.fed)).items():
                for what, v in zip(("m", "s"), moments(h)):
                    statistics[f"{what}/{cut}"] = (v * b.weight[:, None]).sum(0)
            return statistics

        total = c.total(sums)
        return {
            what: {cut: total[f"{what}/{cut}"] / c.n for cut in self._cuts(c.fed)} for what in ("m", "s")
        }, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        def variance(v_KC: Tensor) -> Tensor:
            if self.variant == "official":
                return v_KC.var(correction=0).expand(v_KC.shape[1]).clone()
            return v_KC.var(0, correction=0)

        return {what: {cut: variance(ups[what][cut]) for cut in s[what]} for what in ("m", "s")}

    def _cuts(self, fed: Fed) -> list[str]:
        return list(dict.fromkeys(cut for name in self.cuts for cut in fed.net.cuts(name)))

    def _channels(self, fed: Fed) -> dict[str, int]:
        shapes = {cut: fed.net.shape_at(cut) for cut in self._cuts(fed)}
        return {cut: shape[0] for cut, shape in shapes.items() if len(shape) == 3}


def moments(h_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel over its pixels, both [B, C]."""
    return h_BCHW.mean((2, 3)), (h_BCHW.var((2, 3), correction=0) + EPS).sqrt()


def spread(v_BC: Tensor, weight_B: Tensor, S_C: Tensor) -> Tensor:
    """The variance (gamma + 1) V of each channel, [C], larger where clients differ more; 0 with fewer than
    two samples."""
    n = weight_B.sum()
    mean_C = (v_BC * weight_B[:, None]).sum(0) / n.clamp(min=1)
    V_C = ((v_BC - mean_C).pow(2) * weight_B[:, None]).sum(0) / (n - 1).clamp(min=1)
    r_C = 1 / (1 + 1 / (S_C + EPS))
    gamma_C = len(S_C) * r_C / r_C.sum()
    return torch.where(n > 1, (gamma_C + 1) * V_C, 0.0) + EPS * (n > 1)


def _wide(v_BC: Tensor) -> Tensor:
    return v_BC[:, :, None, None]
