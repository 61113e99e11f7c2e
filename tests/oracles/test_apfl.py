"""APFL (Deng, Kamani & Mahdavi 2020, algorithm 1): m = a v + (1 - a) w;  v <- v - lr a grad f(m),  a <- a -
lr <grad f(m), v - w>.

w is FedAvg's. a moves at the first step of a round only, or at every one, and a <- clip(a, 0, 1) after its
step. Momentum and weight decay may carry it out of [0, 1] in later ones: m takes the nearest end then.
"""

import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Beside, logits_with
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Client, Pass


class APFL(Beside):
    part = "apfl"
    alpha = 0.5
    adaptive = True
    moves = "round"

    def freezes(self, name: str) -> bool:
        return super().freezes(name) or (name == "apfl.alpha" and not self.adaptive)

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        """Its gradient is written down by hand, so it is added as a product with constants."""
        w, a = dict(c.model.named_parameters()), float(v["alpha"].detach().clamp(0, 1))
        m = {n: (a * v[n] + (1 - a) * p).detach().requires_grad_() for n, p in w.items()}
        statistics = {n: t for n, t in v.items() if "running" in n}
        loss = cross_entropy(logits_with(c.model, m | statistics, seen.x), seen.y)
        slopes = dict(zip(m, torch.autograd.grad(loss, list(m.values()))))
        gap = torch.stack([((v[n] - w[n]).detach() * g).sum() for n, g in slopes.items()]).sum()
        before = float(v["alpha"].detach())
        gap = (
            before - (before - c.lr * gap).clamp(0, 1)
        ) / c.lr  # the slope of the step that ends at the clipped a
        line = torch.stack([a * (g * v[n]).sum() for n, g in slopes.items()]).sum()
        if self.adaptive and (c.step == 0 or self.moves == "step"):
            line = line + gap * v["alpha"]
        return loss.detach() + line - line.detach()

    def own_model(self, kept: Weights) -> Weights:
        v, a = super().own_model(kept), kept["apfl.alpha"].clamp(0, 1)
        return {n: t if "running" in n else a * t + (1 - a) * self.w[n] for n, t in v.items()}


@pytest.mark.parametrize(("model", "alpha", "moves"), [("mlp", 0.999, "step"), ("cnn", 0.3, "round")])
def test_apfl(model: str, alpha: float, moves: str) -> None:
    agree(Case(model, 0.9), APFL, alpha=alpha, moves=moves)


@pytest.mark.parametrize(("alpha", "moves"), [(0.02, "round"), (0.9, "step")])
def test_a_share_that_is_clipped_and_comes_back(alpha: float, moves: str) -> None:
    """With long steps a would be far beyond 0 or 1 after one round, and come back many rounds later."""
    agree(Case(lr=1.5, epochs=1, attendance=((0, 1, 2, 3, 4),) * 4), APFL, alpha=alpha, moves=moves)


def test_a_share_that_stays() -> None:
    agree(Case(), APFL, alpha=0.25, adaptive=False)
