"""pFedHN (Shamsian et al., ICML 2021, algorithm 1): phi <- phi - a (d theta_k / d phi)^T (theta_k -
theta~_k), for the mean of replies.

h is nn.Linear on an embedding, ReLU and nn.Linear between hidden layers, and nn.Linear for every tensor of
the model; torch's SGD, with clipped gradients, trains it.
"""

import torch
from torch import Tensor, nn

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class PFedHN(Dispatched):
    part = "pfedhn"
    weighting = "equal"
    embed = 0
    hidden = 100
    layers = 3
    rate = 0.01
    clip = 50.0

    def begin(self) -> None:
        draw, E = self.given.generator("pfedhn", "network"), self.embed or 1 + self.clients // 4
        self.e = nn.Parameter(torch.randn(self.clients, E, generator=draw).double())
        self.mlp = [self.linear(E, self.hidden, draw)] + [
            self.linear(self.hidden, self.hidden, draw) for _ in range(self.layers)
        ]
        self.out = {n: self.linear(self.hidden, self.w[n].numel(), draw) for n in self.learned}
        every = [self.e, *(p for layer in (*self.mlp, *self.out.values()) for p in layer.parameters())]
        self.sgd = torch.optim.SGD(every, self.rate, momentum=0.9, weight_decay=0.001)
        self.note()

    def linear(self, columns: int, rows: int, draw: torch.Generator) -> nn.Linear:
        layer, drawn = nn.Linear(columns, rows).double(), torch.rand(rows, columns + 1, generator=draw)
        with torch.no_grad():
            layer.weight.copy_((2 * drawn[:, :-1] - 1) / columns**0.5)
            layer.bias.copy_((2 * drawn[:, -1] - 1) / columns**0.5)
        return layer

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: t.detach() for n, t in self.h(k).items()}

    def h(self, k: int) -> Weights:
        a = self.mlp[0](self.e[k])
        for layer in self.mlp[1:]:
            a = layer(torch.relu(a))
        return {n: self.out[n](a).view(self.w[n].shape) for n in self.learned}

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.sgd.zero_grad()
        for r in replies:
            made = self.h(r.k)
            delta = [(made[n].detach() - r.w[n]) / len(replies) for n in self.learned]
            torch.autograd.backward(list(made.values()), delta)
        every = [p for group in self.sgd.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(every, self.clip)
        self.sgd.step()
        self.note()

    def note(self) -> None:
        def tree(read: object) -> Weights:
            def of(layer: nn.Linear) -> Tensor:
                return torch.cat([read(layer.weight), read(layer.bias)[:, None]], 1)  # type: ignore[operator]

            hidden = {str(i): of(layer) for i, layer in enumerate(self.mlp)}
            out = {n: of(layer) for n, layer in self.out.items()}
            return {"embed": read(self.e), "hidden": hidden, "out": out}  # type: ignore[operator, dict-item]

        self.slice = {"net": tree(lambda p: p.detach().clone()), "v": tree(self.velocity)}

    def velocity(self, p: nn.Parameter) -> Tensor:
        held = self.sgd.state[p].get("momentum_buffer")
        return torch.zeros_like(p.detach()) if held is None else held.clone()


def test_pfedhn() -> None:
    agree(Case("cnn", 0.9), PFedHN, embed=2, hidden=5, layers=1, rate=0.3, clip=0.01)
