"""FedBR (Guo, Tang & Lin, ICML 2023, eq. 3 to 6 and algorithm 2): local models agree on data that belong to
nobody.

Before round 1 clients share averages of B of their inputs each; a batch u is taken from them at every step.
    e1 = P(phi(u)),  e2 = P(phi_t(u)),  e3 = P(phi(x));    phi_t: the received body, constant
    L_con = -log( exp(tau cos(e1, e2)) / (exp(tau cos(e1, e2)) + exp(tau cos(e1, e3))) )
    phi and head descend CE(x, y) + mu L_con + lam CE(z(u), 1/C);    P, linear layers with ReLU between,
    ascends L_con
Both steps are taken at once. In L_con and for u, batch normalisation is in evaluation mode. P stays with the
client.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg, cross_entropy, evaluating, split_forward
from tests.oracles.tiny import CLASSES, Case, Law
from tests.oracles.values import Client, Pass


class FedBR(FedAvg):
    part = "fedbr"
    mu = 0.5
    lam = 1.0
    pseudo = 32
    tau = 2.0
    widths: tuple[int, ...] = (256, 256, 512)

    def keeps(self, name: str) -> bool:
        return name.startswith("fedbr.")

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        each, B = -(-self.pseudo // self.clients), self.case.batch
        own = {k: self.x[self.given.sample(k, each * B, "fedbr", replace=True)] for k in cohort}
        averages = [own[k][i * B : (i + 1) * B].mean(0) for i in range(each) for k in cohort]
        self.slice = {"x": torch.stack(averages[: self.pseudo])}

    def arrive(self, c: Client) -> None:
        self.row = self.noise(c, "row", Law("cycle", (len(self.slice["x"]),)))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        u = self.ready(self.slice["x"][self.row[c.step][: len(seen.x)]])
        with evaluating(c.model):
            z_u, h_u = split_forward(c.model, u)
            h_x = split_forward(c.model, seen.x)[1]
        h_t = self.evaluated(c.start, u)[1]
        fixed = {n: p.detach() for n, p in c.extra.items()}
        descended = self.contrast(fixed, h_u, h_t, h_x)
        ascended = self.contrast(dict(c.extra), h_u.detach(), h_t, h_x.detach())
        uniform = torch.full((len(u), CLASSES), 1 / CLASSES).double()
        loss = super().loss(c, seen) + self.mu * descended + self.lam * cross_entropy(z_u, uniform)
        return loss - (ascended - ascended.detach()) * (self.mu > 0)

    def ready(self, x: Tensor) -> Tensor:
        """Inputs as the model sees them."""
        return x

    def contrast(
        self, P: dict[str, Tensor] | dict[str, nn.Parameter], h_u: Tensor, h_t: Tensor, h_x: Tensor
    ) -> Tensor:
        e1, e2, e3 = (normalize(self.projected(P, h)) for h in (h_u, h_t, h_x))
        near, far = torch.exp(self.tau * (e1 * e2).sum(1)), torch.exp(self.tau * (e1 * e3).sum(1))
        return -torch.log(near / (near + far)).mean()

    def projected(self, P: dict[str, Tensor] | dict[str, nn.Parameter], h: Tensor) -> Tensor:
        for i in range(len(self.widths)):
            h = h @ P[f"fedbr.weight{i}"].T + P[f"fedbr.bias{i}"]
            if i < len(self.widths) - 1:
                h = h.clamp(min=0)
        return h

    def answers(self) -> dict[int, Tensor]:
        """P stays with the clients and has no part in the logits, so the server's model is scored."""
        return {-1: self.evaluated(self.w, self.x_test)[0]}


class Normalised(FedBR):
    """Inputs are shared as they are stored, and normalised where they enter the model."""

    beside = "+norm(mean=(0.5,), std=(2.0,))"

    def ready(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 2

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.ready(x), y

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w, self.ready(self.tests_of(k)))[0] for k in range(self.clients)}


@everywhere
def test_fedbr(case: Case) -> None:
    agree(case, FedBR, pseudo=12, widths=(6, 5), tau=3.0)


def test_averages_are_normalised_like_inputs() -> None:
    agree(Case(), Normalised, pseudo=12, widths=(6,))


def test_either_loss_alone() -> None:
    agree(Case(), FedBR, pseudo=7, widths=(6,), mu=0.0)
    agree(Case("cnn"), FedBR, pseudo=7, widths=(6,), lam=0.0)
