"""pFedHN (Shamsian, Navon, Fetaya & Chechik, ICML 2021, arXiv 2103.04628): a hypernetwork makes the weights.

Server: sends client k  w_k0 = h(e_k; phi)
        e_k: its embedding, E numbers;   h: layers of `hidden` units, then one for each tensor
        d_k = w_k0 - w_k
        (g, g_e) = the mean over replies of  (dh/d phi, dh/d e_k) d_k,   scaled to norm `clip` if
        longer
        v <- momentum v + g + decay phi,   phi <- phi - rate v,   and the embeddings in the same way
Client: trains the model that it receives, and sends it back
Test:   clients are scored by the models they receive
The network stays at the server, and is `hidden` times as large as the model. It does not make the weights
that clients keep (`fedper`: pFedHN-PC). The global model is the mean of replies, which no client receives; it
provides the statistics of normalisation.
Differs from the paper: it takes a step for one client's reply at a time; ours takes one for the mean of a
round's replies. The model's initial weights are not used, as in the paper. Its code also clips clients'
gradients at norm 50.
Defaults: those of the authors' program.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights, key
from unskew.core.trees import flat_tree, nested_tree, tree_map
from unskew.formats.setting_ranges import BelowOne, Fraction, Positive, Rate
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class PFedHN(Part):
    """Makes each client's weights from its embedding, by a network that learns from the trained weights."""

    embed: Annotated[
        int, Ge(0), Le(10_000), "numbers in a client's embedding; 0: one, and one for every 4 clients"
    ] = 0
    hidden: Annotated[int, Ge(1), Le(10_000), "units in each of the network's layers"] = 100
    layers: Annotated[int, Ge(0), Le(10), "further layers before those that make weights"] = 3
    rate: Annotated[Rate, "the network's learning rate"] = 0.01
    momentum: Annotated[BelowOne, "momentum of the network's steps"] = 0.9
    decay: Annotated[Fraction, "weight decay of the network"] = 0.001
    clip: Annotated[Positive, "largest norm of the network's gradient"] = 50.0
    name = "pfedhn"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Many clients differ in labels, rounds are many, and the server may train a network larger than the"
        " model."
    )
    merges = True
    weights_read = "each"
    weighting = "equal"
    keeps_at_server = ("net", "v")
    hands_on = "weights that a network makes for it, which learnt from the models of single clients"

    def refuse(self, fed: Fed) -> str | None:
        if fed.shared:
            return None
        return "its network makes the weights that clients are sent, and they keep every weight"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        draw, E, H = key(fed.seed, self.name, "network"), self.embed or 1 + fed.clients // 4, self.hidden
        net: Tree = {
            "embed": torch.randn(fed.clients, E, generator=draw),
            "hidden": {str(i): _linear(H, H if i else E, draw) for i in range(self.layers + 1)},
            "out": {n: _linear(w[n].numel(), H, draw) for n in fed.shared},
        }
        return {"net": net, "v": tree_map(torch.zeros_like, net)}

    def generate(self, net: Tree, k: int, w: Weights, fed: Fed) -> Weights:
        """The weights of client k, in the shapes of `w`."""
        a_H = net["embed"][k]
        for i in range(self.layers + 1):
            a_H = _through(net["hidden"][str(i)], a_H.relu() if i else a_H)
        return {n: _through(net["out"][n], a_H).reshape(w[n].shape) for n in fed.shared}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | self.generate(s["net"], k, w, fed), {}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        phi, v, g = flat_tree(s["net"]), flat_tree(s["v"]), flat_tree(self.gradient(w, s["net"], ups, fed))
        norm = torch.stack([t.pow(2).sum() for t in g.values()]).sum().sqrt()
        shorter = (self.clip / norm.clamp(min=1e-12)).clamp(max=1)
        v = {path: self.momentum * t + shorter * g[path] + self.decay * phi[path] for path, t in v.items()}
        phi = {path: t - self.rate * v[path] for path, t in phi.items()}
        return weighted_mean(w, ups), {"net": nested_tree(phi), "v": nested_tree(v)}

    def gradient(self, w: Weights, net: Tree, ups: Ups, fed: Fed) -> Tree:
        """The gradient of sum_k p_k <h(e_k; phi), d_k>, d_k constant."""
        with torch.enable_grad():
            leaves = tree_map(lambda t: t.detach().requires_grad_(), net)
            terms: list[Tensor] = []
            for p, reply in zip(ups.shares_of_weight(), ups.replies):
                sent = self.generate(leaves, reply.client, w, fed)
                terms += [p * (t * (t.detach() - reply.weights[n])).sum() for n, t in sent.items()]
            grads = torch.autograd.grad(torch.stack(terms).sum(), list(flat_tree(leaves).values()))
        return nested_tree(dict(zip(flat_tree(leaves), grads)))


def _linear(rows: int, columns: int, draw: torch.Generator) -> Tensor:
    """A linear layer drawn as torch draws it, [rows, columns + 1], with its biases in the last column."""
    return (2 * torch.rand(rows, columns + 1, generator=draw) - 1) / columns**0.5


def _through(layer: Tensor, a: Tensor) -> Tensor:
    return layer[:, :-1] @ a + layer[:, -1]
