"""FedSAM (Qu et al., ICML 2022, algorithm 1; Caldarola et al., ECCV 2022, eq. 5 for ASAM).

    e = rho g / ||g||, g = grad F(w);    w <- w - lr grad F(w + e)
    ASAM: e = rho T^2 g / ||T g||, T = |w| + eta for matrices and kernels, 1 for vectors
Batch normalisation's running statistics see the pass at w, not the one at w + e.
"""

import torch

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg, named_tensors
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Client, Pass


class FedSAM(FedAvg):
    part = "fedsam"
    rho = 0.05
    adaptive = False
    eta = 0.2

    def ascent(self, c: Client) -> Weights:
        """e, from the gradients at w."""
        T = {n: abs(p) + self.eta if self.adaptive and p.dim() >= 2 else 1.0 for n, p in c.parameters.items()}
        g = {n: p.grad for n, p in c.parameters.items() if p.grad is not None}
        length = sum(((T[n] * g_n) ** 2).sum() for n, g_n in g.items()) ** 0.5
        return {n: self.rho * T[n] ** 2 * g_n / length for n, g_n in g.items()}

    def gradient(self, c: Client) -> None:
        e = self.ascent(c)
        statistics = {n: t.clone() for n, t in named_tensors(c.model) if n not in c.parameters}
        for n, p in c.parameters.items():
            p += e[n]
            p.grad = None
        with torch.enable_grad():
            x, y = self.batch(c, self.x[c.rows], self.y[c.rows])
            self.loss(c, Pass(x, y, *self.forward(c, x))).backward()
        for n, p in c.parameters.items():
            p -= e[n]
        for n, t in named_tensors(c.model):
            if n in statistics:
                t.copy_(statistics[n])


@on_both_models
def test_fedsam(case: Case) -> None:
    agree(case, FedSAM, rho=0.5)


def test_adaptive() -> None:
    agree(Case(), FedSAM, rho=0.7, adaptive=True, eta=0.1)
