"""Distance correlation (Szekely, Rizzo and Bakirov, 2007) of inputs and shared features, FLea's measure of
privacy.

E = Euclidean distances of all pairs of a batch;   A = C E_x C,  B = C E_f C,   C = I - J/n
R^2 = mean(A B) / sqrt(mean(A A) mean(B B))                          (FLea, Eq. 8; its code logs the root, R)
Few samples of many dimensions look dependent: for independent normal vectors of 50 dimensions R is 0.98 at n
= 8, 0.93 at n = 32 and 0.66 at n = 256. Compare only values of equal batch size and equal cut.
Letters: B batch, D values of a sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unskew.core.network import each_input
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.round.probes import Measurement, Probe, RoundEnd, mean


def distance_correlation(x: Tensor, f: Tensor, kinds: bool = False) -> tuple[float, float]:
    """(R, R^2) of a batch's inputs x [B, ...] and features f [B, ...]; NaN with fewer than three samples, or
    if x or f does not vary. kinds: x holds category numbers, and any two different categories have equal
    distance."""
    if len(x) < 3:
        return math.nan, math.nan
    x_BD = x.flatten(1)
    A, B = _centred(_differences(x_BD) if kinds else _distances(x_BD)), _centred(_distances(f.flatten(1)))
    spread = float((A * A).mean() * (B * B).mean())
    if not spread > 0:
        return math.nan, math.nan
    squared = max(float((A * B).mean()) / math.sqrt(spread), 0.0)
    return math.sqrt(squared), squared


def _distances(x_BD: Tensor) -> Tensor:
    x = x_BD.to(torch.float64)
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def _differences(x_BD: Tensor) -> Tensor:
    """The distances of rows with one-hot coded categories, up to a factor."""
    return (x_BD[:, None] != x_BD[None]).sum(-1).to(torch.float64).sqrt()


def _centred(E_BB: Tensor) -> Tensor:
    """Distances of all pairs, centred so that every row and column has mean zero."""
    return E_BB - E_BB.mean(0, keepdim=True) - E_BB.mean(1, keepdim=True) + E_BB.mean()


class Correlation(Probe):
    """R and R^2 of a batch of each client's inputs and shared activations, under the model that computes
    these.

    For samples with several inputs, the mean over the inputs, as in FLea's loss.
    """

    def refuse(self) -> str | None:
        return None if self._sharing() else "it shares no features; FLea does"

    def _sharing(self) -> tuple[Part, str] | None:
        """The Part that shares features, and the cut of the model at which it takes them; None without such a
        Part."""
        for part in self.trainer.method.parts:
            if part.taps and any("features" in trip.shares(self.fed) for trip in part.trips):
                return part, self.fed.net.check_cut(part.taps[0])
        return None

    def measure(self, end: RoundEnd) -> Measurement:
        sharing = self._sharing()
        assert sharing is not None
        part, cut = sharing

        def of_client(reply: Reply) -> tuple[float, float]:
            k, w = reply.client, self.lens.held_weights(reply, end.after)
            client = self.trainer.client(k, end.after, part.name, w, reply.private)
            b = client.sample(min(int(self.fed.sizes[k]), self.fed.batch), "measure")
            f = client.run(w, b.x, until=cut)
            by_input = [distance_correlation(x, f, kinds) for x, kinds in each_input(self.fed.net, b.x)]
            return mean([r for r, _ in by_input]), mean([r2 for _, r2 in by_input])

        pairs = self.lens.each(of_client, end.some_replies)
        values = {
            "correlation": mean([r for r, _ in pairs]),
            "correlation_squared": mean([r2 for _, r2 in pairs]),
        }
        return Measurement(values)
