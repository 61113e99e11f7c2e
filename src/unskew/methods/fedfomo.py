"""FedFomo (Zhang et al., ICLR 2021, arXiv 2012.08565): clients mix the models that do well on their data.

Server: sends client k its own model th_k and those of M others: the ones with the largest P_kj
        among all that have sent a model, or, each place with probability `explore`, a random one
Client: a_j = (F(th_k) - F(th_j)) / (|th_j - th_k| + 1e-5)
        F: the mean loss on its samples;   |.| over the shared weights
        trains from  th_k + sum_j a_j+ / (sum_i a_i+) (th_j - th_k),   a+ = max(a, 0)
        or from th_k if all a+ are 0
        sends the result, its next th_k, and the M numbers a_j
Server: P_kj <- P_kj + a_j;   P begins at 0
Test:   clients are scored by the th_k that they sent last, and before that by the initial model
Differs from the paper: F is taken on a client's training samples; the paper uses held-out samples. All models
sent so far may be distributed; public code distributes those of the round before. `explore` is constant; in
the paper it falls by a fixed step in each round. Running statistics of normalisation are mixed by the same
shares. A model does best on the samples it was trained on, so F on these rarely finds a better one: on
`digits` with dirichlet:0.1, 10 clients, 20 rounds and one seed a_j was above 0 for none of 950 models that
were sent, and clients effectively trained alone; with iid samples it was for 87.
Defaults: models is that of PFLlib and FL-bench (authors' commands: 4 or 9 of 14); explore is that of the
authors' commands.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Part, Share, Tensor, Tree, Ups, Weights, key
from unskew.formats.setting_ranges import Fraction
from unskew.methods.shared.weights import first_models, last_models

_NEAR = 1e-5


@dataclass(frozen=True)
class FedFomo(Part):
    """Sends each client models of others, which it mixes by how well they do on its data."""

    models: Annotated[int, Ge(1), Le(1000), "M, models of others that a client is sent"] = 5
    explore: Annotated[Fraction, "probability with which one of them is chosen at random"] = 0.3
    name = "fedfomo"
    family = "personalised"
    equal_samples = True
    against = ("labels",)
    use_when = (
        "Few clients trust each other and have similar samples; each learns which models help it. A round"
        " sends M + 1 models down."
    )
    weights_read = "each"
    keeps_at_server = ("v", "P", "has", "t")
    hands_on = "models of single clients as they sent them"

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.clients > 1 else "there is only one client, and it mixes the models of others"

    def M(self, fed: Fed) -> int:
        """The number of other clients' models that a client receives."""
        return min(self.models, fed.clients - 1)

    def shares(self, fed: Fed) -> dict[str, Share]:
        what = "how much better each model does that it was sent"
        return {"a": Share((self.M(fed),), reads="each", what=what, kind="statistics", samples="client")}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        K = fed.clients
        v = first_models(w, fed)
        return {"v": v, "P": torch.zeros(K, K), "has": torch.zeros(K), "t": torch.zeros(())}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        rows = torch.tensor(self.others(s, k, fed))
        return w | {n: v[k] for n, v in s["v"].items()}, {
            "th": {n: v[rows.to(v.device)] for n, v in s["v"].items()}
        }

    def others(self, s: Tree, k: int, fed: Fed) -> list[int]:
        """Clients that provide the models for client k, [M]; k itself where there is no other."""
        candidates = [j for j in torch.nonzero(s["has"].cpu()).flatten().tolist() if j != k]
        ranked = sorted(candidates, key=lambda j: -float(s["P"][k, j]))
        draw, chosen = key(fed.seed, self.name, int(s["t"]), k), list[int]()
        for _ in range(min(self.M(fed), len(candidates))):
            left = [j for j in ranked if j not in chosen]
            tries = torch.rand((), generator=draw) < self.explore
            chosen.append(left[int(torch.randint(len(left), (), generator=draw)) if tries else 0])
        return chosen + [k] * (self.M(fed) - len(chosen))

    def begin(self, w: Weights, c: Client) -> Tree:
        models = [{n: t[j] for n, t in c.down["th"].items()} for j in range(self.M(c.fed))]

        def losses(b: Batch) -> dict[str, Tensor]:
            each = [(c.fed.task.loss(c.run(w | th, b.x), b.y) * b.weight).sum() for th in [{}, *models]]
            return {"F": torch.stack(each)}

        F = c.total(losses)["F"] / c.n
        distances = [
            torch.stack([(th[n] - w[n]).pow(2).sum() for n in c.fed.shared]).sum().sqrt() for th in models
        ]
        return {"a": (F[0] - F[1:]) / (torch.stack(distances) + _NEAR)}

    def starts(self, w: Weights, c: Client) -> Weights:
        a_M = c.round["a"].clamp(min=0)
        a_M = a_M / torch.where(a_M.sum() > 0, a_M.sum(), 1.0)
        return w | {n: w[n] + torch.einsum("m,m...->...", a_M, t - w[n]) for n, t in c.down["th"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {"a": c.round["a"]}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        replied, v, P, has = ups.clients.tolist(), last_models(s["v"], ups), s["P"].clone(), s["has"].clone()
        for k, a_M in zip(replied, ups["a"].to(P)):
            for j, a in zip(self.others(s, k, fed), a_M):
                P[k, j] += a * (j != k)
        has[replied] = 1.0
        return {"v": v, "P": P, "has": has, "t": s["t"] + 1}
