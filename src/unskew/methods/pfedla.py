"""pFedLA (Ma et al., CVPR 2022, arXiv 2205.03993): the server learns to mix layers for each client.

Server: theta_j is the model that client j sent last
        sends client k, layer by layer,  u_k^l = sum_j a_kj^l theta_j^l
        a_k^l = relu(o) / sum relu(o),   o = H_k^l(h_k(e_k)) in R^K;   its own layer if relu(o) is
        all 0
        e_k: `embed` numbers;   h_k: `layers` layers of `hidden` units, each with a ReLU
        H_k^l: one layer for each layer l
        d_k = u_k - w_k, the change by training
        (e_k, h_k, H_k) descend  <u_k, d_k>  by one step of SGD, d_k constant
Client: trains the model that it receives, and sends w_k, the next theta_k;   without samples it
        returns u_k
Test:   a client's own score is that of the model it trained last; other scores are those of the
        models that clients receive
H_k begins with weights from [0, 1) and biases 0, so that all clients count about equally at first. A layer's
weight, bias and statistics of normalisation share a_k^l. The networks stay at the server: K (K + `hidden`)
numbers and more for each layer.
Differs from the paper: public code (FL-bench) has a row a_k for each tensor, moves the networks in the
opposite direction, against the change by training, and adds that change to theta_k instead of u_k; clients of
one round see each other's new models there, here from the next round on. HeurpFedLA, which spares clients the
download of some layers, is not included. The rate is that of public code, at which shares hardly move in tens
of rounds: on `digits` with dirichlet:0.1, 10 clients and 30 rounds, the models that clients receive scored
92.6 % with 0.005, as FedAvg did, 97.1 % with 1 and 99.3 % with 10, on all test samples after the last round,
in the mean of three seeds.
Defaults: those of FL-bench.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Fed, Remembered, Tensor, Tree, Ups, Weights, key
from unskew.core.trees import flat_tree, nested_tree, tree_map
from unskew.formats.setting_ranges import Rate
from unskew.methods.shared.weights import first_models, last_models, with_idle_clients


@dataclass(frozen=True)
class PFedLA(Remembered):
    """Sends each client a model in which every layer is a mixture of all clients', with shares learned by a
    network."""

    embed: Annotated[int, Ge(1), Le(10_000), "numbers in a client's embedding"] = 100
    hidden: Annotated[int, Ge(1), Le(10_000), "units in each layer of a client's network"] = 100
    layers: Annotated[int, Ge(1), Le(10), "layers of a client's network before those that give shares"] = 3
    rate: Annotated[Rate, "learning rate of the networks; try 1 to 100, too"] = 0.005
    name = "pfedla"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Few clients, and others help some layers of a client's model but not all; each client's network"
        " learns which."
    )
    weights_read = "each"
    keeps_at_server = ("theta", "net")
    hands_on = "mixtures of the layers of single clients, in shares that a network learns for each"

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.shared else "it mixes the layers that clients send, and they keep every weight"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        theta = first_models(w, fed)
        nets = [self.drawn(list(theta), k, fed) for k in range(fed.clients)]
        return {"theta": theta, "net": nested_tree(_stacked([flat_tree(net) for net in nets]))}

    def drawn(self, names: list[str], k: int, fed: Fed) -> Tree:
        """Client k's initial network; its embedding and hidden layers are drawn as torch draws them."""
        draw, H = key(fed.seed, self.name, "network", k), self.hidden
        bound = {i: (H if i else self.embed) ** -0.5 for i in range(self.layers)}
        sizes = {i: (H, (H if i else self.embed) + 1) for i in range(self.layers)}
        return {
            "embed": torch.randn(self.embed, generator=draw),
            "hidden": {str(i): bound[i] * (2 * torch.rand(*sizes[i], generator=draw) - 1) for i in sizes},
            "out": {
                layer: torch.cat([torch.rand(fed.clients, H, generator=draw), torch.zeros(fed.clients, 1)], 1)
                for layer in layers_of(names)
            },
        }

    def shares_of(self, net: Tree, k: int) -> dict[str, Tensor]:
        """The shares a_k of all clients' layers in client k's, [K] by layer. net: client k's network."""
        a_H = net["embed"]
        for i in range(self.layers):
            a_H = _through(net["hidden"][str(i)], a_H).relu()
        return {layer: _normalised(_through(out, a_H).relu(), k) for layer, out in net["out"].items()}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | mix_models(s["theta"], self.shares_of(_of(s["net"], k), k)), {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        nets = _stacked([flat_tree(self.step(s, r.client, r.weights, fed)) for r in ups.replies])
        net = {
            path: t.index_copy(0, ups.clients.to(t.device), nets[path].to(t))
            for path, t in flat_tree(s["net"]).items()
        }

        def mixture(k: int) -> Weights:
            return mix_models(s["theta"], self.shares_of(_of(s["net"], k), k))

        theta = with_idle_clients(last_models(s["theta"], ups), mixture, fed)
        return {"theta": theta, "net": nested_tree(net)}

    def step(self, s: Tree, k: int, trained: Weights, fed: Fed) -> Tree:
        """Client k's network after a step against the gradient of <u_k, u_k - w_k>, the second u_k
        constant."""
        with torch.enable_grad():
            net = tree_map(lambda t: t.detach().clone().requires_grad_(), _of(s["net"], k))
            sent = mix_models({n: s["theta"][n] for n in fed.shared}, self.shares_of(net, k))
            along = torch.stack([(u * (u.detach() - trained[n].to(u))).sum() for n, u in sent.items()]).sum()
            leaves = flat_tree(net)
            slopes = torch.autograd.grad(
                along, list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return nested_tree({path: t.detach() - self.rate * g for (path, t), g in zip(leaves.items(), slopes)})


def layers_of(names: list[str]) -> list[str]:
    """The layers of these weights and statistics: "block1.conv" for "block1.conv.weight"."""
    return list(dict.fromkeys(map(_layer, names)))


def mix_models(theta: Tree, share: dict[str, Tensor]) -> Weights:
    """The mixture of all clients' tensors, [K, ...] each, with the shares of its layer, by name."""
    return {
        n: (t.reshape(len(t), -1).T @ share[_layer(n)].to(t)).reshape(t.shape[1:]) for n, t in theta.items()
    }


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name


def _normalised(o_K: Tensor, k: int) -> Tensor:
    """Shares that sum to 1; the share of client k alone if all are 0."""
    total, own_K = o_K.sum(), torch.eye(len(o_K), dtype=o_K.dtype, device=o_K.device)[k]
    return torch.where(total > 0, o_K / torch.where(total > 0, total, 1.0), own_K)


def _of(nets: Tree, k: int) -> Tree:
    return tree_map(lambda t: t[k], nets)


def _stacked(flats: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {path: torch.stack([leaves[path] for leaves in flats]) for path in flats[0]}


def _through(layer: Tensor, a: Tensor) -> Tensor:
    return layer[:, :-1] @ a + layer[:, -1]
