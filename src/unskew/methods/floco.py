"""FLOCO (Grinwald, Wiesner & Nakajima, NeurIPS 2024): heads span a simplex with a point for each client.

Head:   theta(a) = sum_m a_m theta_m,   theta_m: `endpoints` heads, which are trained and sent
        instead of one
Client: at every step draws a, and descends CE with the head theta(a), body and all theta_m together
        up to round tau, and for clients without a point, a is uniform on the simplex
        then a_k + r u, r uniform on [0, rho], u = v / |v|_1 with v uniform on [-1, 1]
Server: means of body and endpoints; it keeps the last change of the endpoints at each client. After
        round tau:
        kappa_k: the first `endpoints` principal components of these changes
        for each z = 0.0001 ... 1:  a_k = the nearest point to kappa_k with a_k >= 0 and sum z,
        divided by z
        z is chosen so that the points are furthest apart:  least  sum_{k<j} |a_k - a_j|^-2
Test:   client k receives, and is scored by, the head theta(a_k); the global model has the head at
        the simplex's centre
Differs from the paper: its code has all clients train once more to find their changes, and has endpoints of
the weights only, with one bias; ours takes the changes of the clients that replied by round tau, and
endpoints of the whole head. The signs of principal components, on which points depend, are arbitrary: here
the largest number of each is positive. FLOCO+ is not included (`floco+ditto` is close to it). tau counts
rounds; 0 means half of the run's.
Defaults: those of the authors' file for CIFAR-10 in folds of clients, with tau half of its 500 rounds; for
Dirichlet splits it has 20 endpoints and rho = 0.01.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Noise, Out, Part, Tensor, Tree, Ups, Weights, key
from unskew.formats.setting_ranges import NonNegative

_TRIES = 1000


@dataclass(frozen=True)
class Floco(Part):
    """Trains a simplex of heads, and gives each client the head at its point."""

    endpoints: Annotated[int, Ge(2), Le(100), "how many heads span the simplex"] = 10
    rho: Annotated[
        float, Ge(0), Le(2), "how far from its point a client trains, as a sum of absolute values"
    ] = 0.1
    tau: Annotated[NonNegative, "rounds after which clients get their points; 0: half of the run's"] = 0.0
    name = "floco"
    own_logits = True
    family = "personalised"
    against = ("labels",)
    use_when = "Labels differ by client, and a common and a personal head are both needed; heads are small."
    tasks = ("classification",)
    needs = "a head for each class"
    divides = True
    weights_read = "each"
    keeps_at_server = ("at", "moves", "known", "a", "on")
    first_stage = "tau"
    hands_on = "a mixture of common heads, by how the client's own moves differ from those of others"

    def paced(self, whole: int, rounds: int) -> Self:
        return replace(self, tau=self.tau * rounds / whole)

    def first_rounds(self, rounds: int) -> int:
        return math.ceil(self.tau or rounds / 2)

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True)

    def weights(self, fed: Fed) -> Weights:
        heads = {n: t for n, t in fed.net.weights().items() if fed.net.of_head(n) and n in fed.net.trainable}
        return {
            f"{m}.{n}": (2 * torch.rand(t.shape, generator=key(fed.seed, self.name, m, n)) - 1)
            / fed.features**0.5
            for m in range(self.endpoints)
            for n, t in heads.items()
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        at, K = self.flat(w), fed.clients
        a = torch.full((K, self.endpoints), 1 / self.endpoints)
        return {
            "at": at,
            "moves": torch.zeros(K, len(at)),
            "known": torch.zeros(K),
            "a": a,
            "on": torch.zeros(K),
        }

    def flat(self, w: Weights) -> Tensor:
        """All endpoints as one vector, [N]."""
        return torch.cat([w[n].flatten() for n in sorted(w) if n.startswith(f"{self.name}.")])

    def theta(self, w: Weights, a: Tensor, fed: Fed) -> Weights:
        """The head at this point."""
        names = [n for n in fed.net.trainable if fed.net.of_head(n)]
        ends = {n: torch.stack([w[f"{self.name}.{m}.{n}"] for m in range(self.endpoints)]) for n in names}
        return {n: torch.einsum("m,m...->...", a.to(t), t) for n, t in ends.items()}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {"u": Noise("uniform", shape=(self.endpoints + 1,), per_sample=False)}

    def holds(self, c: Client) -> dict[str, Tensor]:
        return {n: c.step >= 0 for n in c.net.trainable if c.net.of_head(n)}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        u = c.noise["u"]
        anywhere, v = -(1 - u[1:]).log(), 2 * u[1:] - 1
        near = c.down["a"] + self.rho * u[0] * v / v.abs().sum().clamp(min=1e-12)
        a = torch.where(c.down["on"] > 0, near, anywhere / anywhere.sum().clamp(min=1e-12))
        z, loss = c.head(w | self.theta(w, a, c.fed), out.features), c.fed.task.loss
        return b.mean(loss(z, b.y) - loss(out.logits, b.y))

    def sends(self, w: Weights, c: Client) -> Weights:
        return w | self.theta(w, torch.full_like(c.down["a"], 1 / self.endpoints), c.fed)

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        moved = torch.stack([self.flat(reply.weights) for reply in ups.replies]) - s["at"]
        moves = s["moves"].index_copy(0, ups.clients.to(s["moves"].device), moved.to(s["moves"]))
        known = s["known"].index_fill(0, ups.clients.to(s["known"].device), 1.0)
        s = s | {"moves": moves, "known": known}
        if ups.t < (self.tau or fed.rounds / 2) or s["on"].any() or known.sum() < 2:
            return s
        who = torch.nonzero(known).flatten()
        a = points(moves[who].double().cpu(), self.endpoints).to(s["a"])
        return s | {"a": s["a"].index_copy(0, who, a), "on": known.clone()}

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        return w, s | {"at": self.flat(w)}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | self.theta(w, s["a"][k], fed), {"a": s["a"][k], "on": s["on"][k]}


def points(moves_KN: Tensor, endpoints: int) -> Tensor:
    """Each client's point from the change of its endpoints, float64 [K, endpoints]."""
    centred_KN = moves_KN - moves_KN.mean(0)
    values, vectors = torch.linalg.eigh(centred_KN @ centred_KN.T)
    kappa_KM = (vectors * values.clamp(min=0).sqrt()).flip(1)[:, :endpoints]
    kappa_KM = kappa_KM * kappa_KM.gather(0, kappa_KM.abs().argmax(0, keepdim=True)).sign()
    kappa_KM = torch.nn.functional.pad(kappa_KM, (0, endpoints - kappa_KM.shape[1]))
    near = [nearest(kappa_KM, z) / z for z in torch.linspace(1e-4, 1, _TRIES).tolist()]
    return near[int(torch.stack([proximity_penalty(a_KM) for a_KM in near]).argmin())]


def nearest(kappa_KM: Tensor, z: float) -> Tensor:
    """The nearest rows of non-negative numbers with sum z."""
    sorted_KM = kappa_KM.sort(1, descending=True).values
    excess_KM = (sorted_KM.cumsum(1) - z) / torch.arange(1, kappa_KM.shape[1] + 1)
    last_K1 = (sorted_KM > excess_KM).sum(1, keepdim=True) - 1
    return (kappa_KM - excess_KM.gather(1, last_K1)).clamp(min=0)


def proximity_penalty(a_KM: Tensor) -> Tensor:
    """The sum over pairs of 1 / squared distance, the latter at least 1e-8."""
    return torch.nn.functional.pdist(a_KM).clamp(min=1e-4).pow(-2).sum()
