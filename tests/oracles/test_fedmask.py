"""FedMask (Li et al., SenSys 2021, eq. 2 to 10 and algorithm 1).

    y = (W m) x,  m_ij = [m_r,ij >= 0];   dL/dm_r = sigma(m_r) (1 - sigma(m_r)) dL/dm;   L + lam sum_g |m_g|
Before round 1 an epoch of SGD on m_r; of the last layers the share `keep` with the largest change of W m_r
stays, by client. The server averages each element over those that have it and answered, as a bit, ties 0;
clients go on from +start, -start.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.personal import Dispatched
from tests.oracles.plain import cross_entropy, evaluating, split_forward
from tests.oracles.tiny import Case, Tree, Weights, model_named
from tests.oracles.values import Client, Pass, Reply

NEVER = -200.0


class Bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r: Tensor) -> Tensor:
        ctx.save_for_backward(r)
        return torch.where(r >= 0, 1.0, 0.0).to(r)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (r,) = ctx.saved_tensors
        return g / (1 + torch.exp(-r)) / (1 + torch.exp(r))


class Layer(nn.Module):
    """A linear layer or convolution under a mask."""

    def __init__(self, layer: nn.Linear | nn.Conv2d):
        super().__init__()
        self.fixed, self.fedmask = nn.Parameter(layer.weight.detach()), nn.Parameter(layer.weight.detach())
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        weight = self.fixed * Bit.apply(self.fedmask)
        return (
            F.linear(x, weight, self.bias) if weight.dim() == 2 else F.conv2d(x, weight, self.bias, padding=1)
        )


class FedMask(Dispatched):
    part = "fedmask"
    weighting = "equal"
    keep = 0.2
    layers = 2
    lam = 2e-4
    start = 0.0003

    def model(self) -> nn.Sequential:
        module = model_named(self.case.model)
        for parent in [module, *module]:
            for name, layer in list(parent.named_children()):
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    setattr(parent, name, Layer(layer))
        return module

    def freezes(self, name: str) -> bool:
        return "running" not in name and not name.endswith("fedmask")

    @property
    def pruned(self) -> list[str]:
        """In the order of the layers."""
        return [n for n, _ in self.module.named_parameters() if n.endswith("fedmask")][-self.layers :]

    def begin(self) -> None:
        self.kept = {}
        self.has = [{n: torch.ones_like(self.w[n]) for n in self.pruned} for _ in range(self.clients)]

    def exchange(self, cohort: list[int]) -> None:
        if self.t:
            return
        for k in cohort:
            moved = self.one_epoch(k)
            for n in self.pruned:
                size = (self.w[n.replace("fedmask", "fixed")] * moved[n]).abs()
                bound = size.flatten().sort(descending=True).values[round(self.keep * size.numel()) - 1]
                self.has[k][n] = (size >= bound).double()
        self.slice = {"kept": self.rows(self.has)}

    def one_epoch(self, k: int) -> Weights:
        """How far the real-valued masks of client k move."""
        model, rows = self.model_with(self.w), self.given.rows(k)
        parameters = {n: p for n, p in model.named_parameters() if n.endswith("fedmask")}
        with evaluating(model):
            for batch in self.given.sample(k, len(rows), "fedmask").split(self.case.batch):
                loss = cross_entropy(split_forward(model, self.x[batch])[0], self.y[batch])
                with torch.no_grad():
                    for p, g in zip(
                        parameters.values(), torch.autograd.grad(loss, list(parameters.values()))
                    ):
                        p -= self.case.lr * g
        return {n: p.detach() - self.w[n] for n, p in parameters.items()}

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: torch.where(has > 0, self.w[n], NEVER) for n, has in self.has[k].items()}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        groups = torch.zeros(())
        for name, p in c.model.named_parameters():
            if name.endswith("fedmask"):
                m = Bit.apply(p)
                for group in [*m, *m.transpose(0, 1)]:
                    if float(group.detach().sum()):
                        groups = groups + group.norm()
        return super().loss(c, seen) + self.lam * groups

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": {n: t for n, t in c.weights.items() if not n.endswith("fixed")}}
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        merged = self.weighted_mean(replies)
        for n in self.learned:
            whole = torch.ones_like(self.w[n])
            have = {r.k: self.has[r.k].get(n, whole) for r in replies}
            ones = sum(have[r.k] * (r.w[n] >= 0) for r in replies)
            mean = torch.as_tensor(ones) / sum(have.values())  # NaN where nobody has it
            bit = torch.where(mean > 0.5, self.start, -self.start)
            merged[n] = torch.where(mean.isnan(), self.w[n], bit)
        return merged

    def own(self, k: int) -> Weights:
        mine = self.private.get(k, {}).get("w", {})
        return self.sent_to(k) | mine


@on_both_models
def test_fedmask(case: Case) -> None:
    agree(case, FedMask, atol=3e-4, start=0.003, lam=0.01)  # numbers reach 200, and bits differ by 0.006


def test_without_pruning() -> None:
    class Whole(FedMask):
        layers = 0
        pruned = []  # type: ignore[assignment]

        def exchange(self, cohort: list[int]) -> None: ...

    agree(Case(), Whole, layers=0, start=0.003)
