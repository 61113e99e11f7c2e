"""Per-FedAvg (Fallah, Mokhtari & Ozdaglar, NeurIPS 2020, algorithm 1, both practical forms), w <- w - lr G at
every step:

    u = w - alpha grad f(w; D),  v = grad f(u; D');   FO: G = v;
    HF: G = v - alpha [grad f(w + delta v; D'') - grad f(w - delta v; D'')] / (2 delta)
D, D', D'' are the first, second and third part of the batch, as equal as they can be. Only the pass at w
moves statistics.
"""

import copy

import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class PerFedAvg(FedAvg):
    part = "per_fedavg"
    alpha = 0.01
    form = "fo"
    delta = 0.001
    steps = 1

    def loss(self, c: Client, seen: Pass) -> Tensor:
        """On D; the gradients of the other parts are taken in `gradient`, of a copy that keeps the statistics
        in place."""
        self.x_step, self.y_step = seen.x, seen.y
        D = self.rows_of(0, len(seen.x))
        return cross_entropy(seen.z[D], seen.y[D])

    def rows_of(self, part: int, n: int) -> Tensor:
        parts = 2 if self.form == "fo" else 3
        rows = [j for j in range(n) if j * parts // n == part]
        return torch.tensor(rows or list(range(n)))

    def slope(self, c: Client, moved: dict[str, Tensor], part: int) -> dict[str, Tensor]:
        """grad f at these weights on this part of the batch."""
        model = copy.deepcopy(c.model)
        with torch.enable_grad():
            named = {n: t.detach().requires_grad_() for n, t in moved.items()}
            z = torch.func.functional_call(model, named, (self.x_step,))
            rows = self.rows_of(part, len(self.x_step))
            grads = torch.autograd.grad(cross_entropy(z[rows], self.y_step[rows]), list(named.values()))
        return dict(zip(named, grads))

    def gradient(self, c: Client) -> None:
        w = {n: p.detach().clone() for n, p in c.parameters.items()}
        first = {n: p.grad.clone() for n, p in c.parameters.items() if p.grad is not None}
        v = self.slope(c, {n: w[n] - self.alpha * first[n] for n in w}, 1)
        for n, p in c.parameters.items():
            p.grad = v[n]
        if self.form == "hf":
            ahead = self.slope(c, {n: w[n] + self.delta * v[n] for n in w}, 2)
            behind = self.slope(c, {n: w[n] - self.delta * v[n] for n in w}, 2)
            for n, p in c.parameters.items():
                p.grad = v[n] - self.alpha * (ahead[n] - behind[n]) / (2 * self.delta)

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.adapted(k) for k in range(self.clients)}

    def adapted(self, k: int) -> Tensor:
        model = self.model_with(self.w).eval()
        optimiser = torch.optim.SGD(model.parameters(), self.alpha)
        for step in range(self.steps):
            rows = self.given.sample(k, self.case.batch, f"per_fedavg/{self.t}/{step}")
            optimiser.zero_grad()
            cross_entropy(model(self.x[rows]), self.y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            return model(self.tests_of(k))


@pytest.mark.parametrize(("model", "form", "alpha"), [("cnn", "fo", 0.5), ("mlp", "hf", 0.1)])
def test_per_fedavg(model: str, form: str, alpha: float) -> None:
    agree(Case(model, 0.9), PerFedAvg, form=form, alpha=alpha, delta=0.5, steps=2)
