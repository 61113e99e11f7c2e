"""pFedLA (Ma et al., CVPR 2022): theta_k sent = sum_j alpha_kj theta_j layer by layer, alpha by client k's
own hypernetwork.

Each client's hypernetwork is nn.Linear and ReLU three times on an embedding, then one nn.Linear with a ReLU
for every layer of the model; torch's SGD moves it by what training changed.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from tests.fixtures import assert_close
from tests.oracles.agreement import agree, everywhere
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.pfedla import PFedLA, layers_of, mix_models

LAYER = "head"


class Hyper(nn.Module):
    def __init__(self, e: Tensor, hidden: list[nn.Linear], out: dict[str, nn.Linear]) -> None:
        super().__init__()
        self.e, self.hidden, self.names = nn.Parameter(e), nn.ModuleList(hidden), list(out)
        self.out = nn.ModuleList(out.values())

    def forward(self, k: int) -> dict[str, list[Tensor]]:
        a = self.e
        for layer in self.hidden:
            a = torch.relu(layer(a))
        said = {n: torch.relu(layer(a)) for n, layer in zip(self.names, self.out)}
        return {
            n: (
                [x / o.sum() for x in o]
                if o.sum() > 0
                else [torch.tensor(float(j == k)).double() for j in range(len(o))]
            )
            for n, o in said.items()
        }


class Oracle(Dispatched):
    part = "pfedla"
    embed = 100
    hidden = 100
    layers = 3
    rate = 0.005

    def begin(self) -> None:
        self.theta = [dict(self.w) for _ in range(self.clients)]
        self.nets = [self.network(k) for k in range(self.clients)]
        self.note()

    def network(self, k: int) -> Hyper:
        draw, H, E = self.given.generator("pfedla", "network", k), self.hidden, self.embed
        e = torch.randn(E, generator=draw).double()
        hidden = []
        for columns in [E] + [H] * (self.layers - 1):
            hidden.append(linear((2 * torch.rand(H, columns + 1, generator=draw) - 1) / columns**0.5))
        out = {}
        for name in dict.fromkeys(n.rpartition(".")[0] for n in self.w):
            drawn = torch.rand(self.clients, H, generator=draw)
            out[name] = linear(torch.cat([drawn, torch.zeros(self.clients, 1)], 1))
        return Hyper(e, hidden, out)

    def sent_to(self, k: int) -> Weights:
        return {n: t.detach() for n, t in self.made(k).items()}

    def made(self, k: int) -> Weights:
        alpha = self.nets[k](k)
        return {
            n: sum(a * self.theta[j][n] for j, a in enumerate(alpha[n.rpartition(".")[0]]))  # type: ignore[misc]
            for n in self.w
        }

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        return {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            sgd, made = torch.optim.SGD(self.nets[r.k].parameters(), self.rate), self.made(r.k)
            sgd.zero_grad()
            change = {n: made[n].detach() - r.w[n] for n in self.learned if made[n].requires_grad}
            if change:
                torch.autograd.backward([made[n] for n in change], list(change.values()))
                sgd.step()
        for r in replies:
            self.theta[r.k] = r.w
        self.note()

    def note(self) -> None:
        def tree(net: Hyper) -> Tree:
            of = {n: matrix(layer) for n, layer in zip(net.names, net.out)}
            hidden = {str(i): matrix(layer) for i, layer in enumerate(net.hidden)}
            return {"embed": net.e.detach().clone(), "hidden": hidden, "out": of}

        self.slice = {"theta": self.rows(self.theta), "net": together([tree(net) for net in self.nets])}

    def own(self, k: int) -> Weights:
        return self.private[k]["w"] if k in self.private else self.sent_to(k)


def linear(drawn: Tensor) -> nn.Linear:
    layer = nn.Linear(drawn.shape[1] - 1, drawn.shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(drawn[:, :-1])
        layer.bias.copy_(drawn[:, -1])
    return layer


def matrix(layer: nn.Linear) -> Tensor:
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach()


def together(trees: list[Tree]) -> Tree:
    first = trees[0]
    return {
        n: torch.stack([t[n] for t in trees]) if isinstance(v, Tensor) else together([t[n] for t in trees])
        for n, v in first.items()
    }


@everywhere
def test_pfedla(case: Case) -> None:
    agree(case, Oracle, embed=3, hidden=6, layers=2, rate=0.3)


def net(bias: list[float]) -> Tree:
    """One unit that says 1, and from it o = bias + (1, 0)."""
    return {
        "embed": torch.tensor([1.0]),
        "hidden": {"0": torch.tensor([[1.0, 0.0]])},
        "out": {LAYER: torch.tensor([[1.0, bias[0]], [0.0, bias[1]]])},
    }


def test_shares_are_what_the_network_says_above_0_and_a_clients_own_model_where_that_is_nothing() -> None:
    """o = (1 + 2, 1): shares 3/4 and 1/4.   o = (1 - 4, 1): the second alone.   o = (-3, -1): client 1's
    own."""
    shares = PFedLA(embed=1, hidden=1, layers=1).shares_of
    assert shares(net([2.0, 1.0]), 1)[LAYER].tolist() == [0.75, 0.25]
    assert shares(net([-4.0, 1.0]), 0)[LAYER].tolist() == [0, 1]
    assert shares(net([-4.0, -1.0]), 1)[LAYER].tolist() == [0, 1]
    assert shares(net([-4.0, -1.0]), 0)[LAYER].tolist() == [1, 0]


def test_each_layer_has_shares_of_its_own_which_its_weight_bias_and_statistics_have_in_common() -> None:
    names = ["a.conv.weight", "a.conv.bias", "a.norm.running_mean", "head.weight"]
    assert layers_of(names) == ["a.conv", "a.norm", "head"]
    theta = {n: torch.tensor([[0.0], [4.0]]) for n in names}
    share = {
        "a.conv": torch.tensor([0.5, 0.5]),
        "a.norm": torch.tensor([1.0, 0]),
        "head": torch.tensor([0, 1.0]),
    }
    assert [float(t) for t in mix_models(theta, share).values()] == [2, 2, 0, 4]


def test_shares_move_towards_clients_that_lie_where_training_went() -> None:
    """theta = 0 and 4, o = (2, 2): u = 2, and training ended at 3: d = -1.   du/do_j = (theta_j - u) / 4 =
    -+1/2.

    So o's slope is (1/2, -1/2), and a step of rate 1 takes the biases from (1, 2) to (1/2, 5/2).
    """
    nets = net([1.0, 2.0])
    theta = {"head.weight": torch.tensor([0.0, 4.0])}
    s = {"theta": theta, "net": together([nets, nets])}
    fed = type("Fed", (), {"shared": ("head.weight",)})
    moved = PFedLA(embed=1, hidden=1, layers=1, rate=1.0).step(s, 0, {"head.weight": torch.tensor(3.0)}, fed)  # type: ignore[arg-type]
    assert_close(moved["out"][LAYER][:, 1], [0.5, 2.5])


def test_a_client_without_samples_sends_back_its_mixture() -> None:
    """Client 1 of two was sent (0 + 4) / 2. It counted with 4, the model it began with, for good."""
    theta = {"head.weight": torch.tensor([[0.0], [4.0]])}
    s = {"theta": theta, "net": together([net([1.0, 2.0]), net([1.0, 2.0])])}
    fed = SimpleNamespace(shared=("head.weight",), sizes=np.array([1, 0]))
    part, replies = (
        PFedLA(embed=1, hidden=1, layers=1),
        Ups.of([Sent(0, 1.0, {"head.weight": torch.tensor([3.0])})], 1),
    )
    after = part.server(s, replies, fed)  # type: ignore[arg-type]
    assert after["theta"]["head.weight"].flatten().tolist() == [3, 2]
