"""pFedMe (Dinh, Tran & Nguyen, NeurIPS 2020, arXiv 2006.08848): personal models by Moreau envelopes.

Client, at every step, from theta = w:
        K times  theta <- theta - rate (grad f(theta; batch) + lam (theta - w))
        then     w <- w - lr lam (w - theta)
Server: w <- (1 - beta) w + beta mean_k w_k
Test:   a client's own score is that of theta, computed from the received w in one pass over the
        client's batches, with K steps on each and theta continued from batch to batch; the global
        score is that of w
This is the paper's algorithm 1.
Differs from the paper: clients are weighted by size, as in its code, in the paper equally. There all clients
train in every round and a subset reports; ours train only when they are selected. theta begins at w in every
step and is computed anew at test time, so that absent clients have one, too; its code continues from the last
batch's, keeps it, and adds 0.001 theta to its gradients. Statistics of normalisation follow the pass at w.
Defaults: lam, K and beta are those of the authors' program; the rate is that of PFLlib, of FL-bench and of
the authors' commands for synthetic data. Their commands for MNIST have 0.09 or 0.1, with lr = 0.005: on
digits with dirichlet:0.1, 20 clients, 30 rounds, lr = 0.1 and one seed, clients' own scores were 69.1 % with
0.09 and 96.0 % with 0.01.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from unskew.core import Client, Fed, Part, Tree, Ups, Weights
from unskew.formats.setting_ranges import Positive, Rate
from unskew.merge.mean import weighted_mean
from unskew.methods.shared.weights import test_gradients


@dataclass(frozen=True)
class PFedMe(Part):
    """Moves the global model towards each client's personal model, which is pulled to the global one."""

    lam: Annotated[Positive, "pull of a client's own model towards the global one"] = 15.0
    K: Annotated[int, Ge(1), Le(100), "gradients of a client's own model in a step; each costs a pass"] = 5
    rate: Annotated[Rate, "step size of a client's own model"] = 0.01
    beta: Annotated[float, Gt(0), Le(10), "the server's step towards the clients' mean; 1: all of it"] = 1.0
    name = "pfedme"
    family = "personalised"
    equal_samples = True
    against = ("labels",)
    use_when = (
        "Clients differ a lot and each is to have a model near the global one; a step costs K gradients."
    )
    personal = True

    @property
    def climbs(self) -> int:  # type: ignore[override]
        return self.K - 1

    @property
    def merges(self) -> bool:  # type: ignore[override]
        return self.beta != 1

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        return self.theta(w, list(c.seen.values()))

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        theta = self.theta(w, [*c.seen.values(), g])
        return {n: self.lam * (w[n] - theta[n]) for n in g}

    def theta(self, w: Weights, gradients: Sequence[Weights]) -> Weights:
        """The personal weights after steps with these gradients, from w."""
        theta = w
        for g in gradients:
            theta = self.step(theta, g, w)
        return theta

    def step(self, theta: Weights, g: Weights, w: Weights) -> Weights:
        return theta | {n: theta[n] - self.rate * (t + self.lam * (theta[n] - w[n])) for n, t in g.items()}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean = weighted_mean(w, ups)
        return mean | {n: (1 - self.beta) * w[n] + self.beta * mean[n] for n in fed.shared}, s

    def personalise(self, w: Weights, c: Client) -> Weights:
        theta, shuffled = w, c.sample(int(c.n), f"{self.name}/{c.t}")
        for first in range(0, len(shuffled.y), c.fed.batch):
            rows = slice(first, first + c.fed.batch)
            b = shuffled.replace(x=shuffled.x[rows], y=shuffled.y[rows], weight=shuffled.weight[rows])
            for _ in range(self.K):
                theta = self.step(theta, test_gradients(theta, b, c), w)
        return theta
