"""FedGen (Zhu, Hong & Zhou, ICML 2021, arXiv 2105.10056): the server learns the features of each class.

Generator: G(y, e): Linear(64 + C, 512)-ReLU-Linear(512, D), e uniform on [0, 1)
Server, in every round, from the clients' heads and label counts, 50 steps of Adam on
    sum_k w_ky CE(head_k(G(y, e)), y) + div,   w_ky = n_ky / sum_j n_jy
    div = exp(-mean_ij |G_i - G_j|_1/D |e_i - e_j|^2/64)         (mean over pairs)
Client, from round 2:
    loss + a_t CE(head(G(y')), y') + b_t KL(head(G(y)) || z),   a_t = b_t = 10 * 0.98^t, >= 1e-4
    y': any class that G has seen;   the generated side of KL is a constant
Differs from the paper: no batch normalisation in G. In public code Adam's rate falls by 2 % in each round;
n_ky is 1 plus the samples of every local pass, also for classes that a client lacks; a client's terms end
after 20 local passes, and a_t is 10 * 0.98^(t - 1). `fedgen_images` is the other method of this name, which
FLea cites.
Defaults: those of the authors' program for MNIST.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Noise, Out, Part, Share, Tensor, Tree, Ups, Weights, key
from unskew.formats.setting_ranges import NonNegative, PositiveFraction, Rate
from unskew.methods.shared.declarations import class_counts, uniform

EPS, HIDDEN = 64, 512


@dataclass(frozen=True)
class FedGen(Part):
    """Trains a generator of features at the server, from which clients learn about classes they lack."""

    a: Annotated[
        NonNegative, "weight of generated features' cross-entropy at the client, before decay; 0: none"
    ] = 10.0
    b: Annotated[NonNegative, "weight of the distillation from generated features, before decay; 0: none"] = (
        10.0
    )
    decay: Annotated[PositiveFraction, "factor on both weights in every round"] = 0.98
    steps: Annotated[int, Ge(1), Le(100_000), "steps of Adam on the generator, a round"] = 50
    batch_size: Annotated[int, Ge(1), Le(4096), "features in such a step"] = 128
    lr: Annotated[Rate, "learning rate of Adam"] = 0.0003
    weight_decay: Annotated[NonNegative, "L2 penalty of Adam"] = 0.01
    name = "fedgen"
    family = "distillation"
    against = ("labels",)
    use_when = "Label skew, and the server may know how many samples of each class a client has."
    tasks = ("classification",)
    needs = "class counts"
    weights_read = "each"
    keeps_at_server = ("first", "second", "done")
    clashes = {
        "fedbabu": "the generator learns from heads that clients train",
        "fedpcl": "the generator learns from heads that clients train",
        "local": "the generator learns from heads that clients send",
        "flea": "its student would see FLea's mixture and its teacher the sample's own class",
    }

    def refuse(self, fed: Fed) -> str | None:
        return fed.nothing_common(head=True)

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {"counts": class_counts(fed, "each")}

    def paced(self, whole: int, rounds: int) -> Self:
        return replace(self, decay=self.decay ** (whole / rounds))

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"counts": c.counts}, {}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        generator = key(fed.seed, self.name, "generator")
        G = {}
        for name, (out, inside) in {"1": (HIDDEN, EPS + fed.classes), "2": (fed.features, HIDDEN)}.items():
            G[f"w{name}"] = uniform(out, inside, generator)
            G[f"b{name}"] = (2 * torch.rand(out, generator=generator) - 1) * inside**-0.5
        first, second = ({n: torch.zeros_like(t) for n, t in G.items()} for _ in range(2))
        return {
            "G": G,
            "first": first,
            "second": second,
            "done": torch.zeros(()),
            "known": torch.zeros(fed.classes),
        }

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {
            "e": Noise("uniform", shape=(EPS,)),
            "e_own": Noise("uniform", shape=(EPS,)),
            "label": Noise("integers", (fed.classes,)),
        }

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        fade = self.decay**c.t
        a, b_t = (max(v * fade, 1e-4) if v else 0.0 for v in (self.a, self.b))
        if c.t == 1 or not (a or b_t):
            return 0.0
        y_BC = F.one_hot(c.noise["label"], c.fed.classes).to(b.x.dtype)
        known = c.down["known"]
        drawn = c.fed.task.loss(c.head(w, features(c.down["G"], y_BC, c.noise["e"])), y_BC) * (y_BC @ known)
        teacher = c.head(w, features(c.down["G"], out.own.y, c.noise["e_own"])).detach().log_softmax(-1)
        apart = (teacher.exp() * (teacher - out.raw.log_softmax(-1))).sum(-1) * (out.own.y @ known)
        return a * b.mean(drawn) + b_t * b.mean(apart)

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        n_KC = ups["counts"]
        known_C = n_KC.sum(0) > 1
        heads = [{n: t for n, t in r.weights.items() if fed.net.of_head(n)} for r in ups.replies]
        G = {n: t.clone().requires_grad_() for n, t in s["G"].items()}
        adam = torch.optim.Adam(list(G.values()), self.lr, weight_decay=self.weight_decay)
        if int(s["done"]):
            for n, t in G.items():
                state = {"step": s["done"].cpu(), "exp_avg": s["first"][n], "exp_avg_sq": s["second"][n]}
                adam.state[t] = {k: v.clone() for k, v in state.items()}
        generator, classes = key(fed.seed, ups.t, self.name), torch.nonzero(known_C).flatten().cpu()
        for _ in range(self.steps if len(classes) else 0):
            e = torch.rand(self.batch_size, EPS, generator=generator)
            y = classes[torch.randint(len(classes), (self.batch_size,), generator=generator)]
            e, y = e.to(n_KC.device), y.to(n_KC.device)
            with torch.enable_grad():
                loss = generator_loss(G, y, e, heads, n_KC, fed)
            adam.zero_grad()
            loss.backward()
            adam.step()
        done = s["done"] + (self.steps if len(classes) else 0)
        moments = {
            leaf: {n: adam.state[t][k].detach() if t in adam.state else s[leaf][n] for n, t in G.items()}
            for leaf, k in (("first", "exp_avg"), ("second", "exp_avg_sq"))
        }
        return {
            "G": {n: t.detach() for n, t in G.items()},
            **moments,
            "done": done,
            "known": known_C.to(n_KC.dtype),
        }


def features(G: Mapping[str, Tensor], y_BC: Tensor, e_BE: Tensor) -> Tensor:
    """Generated features for classes y [B, C] from noise e [B, 64]; [B, D]."""
    hidden = F.linear(torch.cat([y_BC, e_BE], 1), G["w1"], G["b1"]).relu()
    return F.linear(hidden, G["w2"], G["b2"])


def generator_loss(
    G: Mapping[str, Tensor], y_B: Tensor, e_BE: Tensor, heads: list[Weights], n_KC: Tensor, fed: Fed
) -> Tensor:
    """The scalar loss of G: the clients' heads' loss on its features, each head weighted by its share of the
    class, and the diversity term."""
    y_BC = fed.task.targets(y_B, fed.classes).to(e_BE.dtype)
    h_BD = features(G, y_BC, e_BE)
    share_KC = n_KC / n_KC.sum(0).clamp(min=1)
    losses = [
        share_C[y_B] * fed.task.loss(fed.net.head_of(fed.net.weights() | head, h_BD), y_BC)
        for share_C, head in zip(share_KC, heads)
    ]
    return torch.stack(losses).sum(0).mean() + diversity(h_BD, e_BE)


def diversity(h_BD: Tensor, e_BE: Tensor) -> Tensor:
    """The term exp(-mean over pairs of |h_i - h_j| times (e_i - e_j)^2), both averaged over their
    coordinates."""
    apart = (h_BD[:, None] - h_BD[None]).abs().mean(-1)
    return torch.exp(-(apart * (e_BE[:, None] - e_BE[None]).pow(2).mean(-1)).mean())
