"""FLea (Xia et al., KDD 2024, eq. 3 to 5 and 8): training on mixtures of activations with those of other
clients.

    f: the activation after the first block;   f~ = beta f + (1 - beta) fF,   y~ = beta y + (1 - beta) yF
    L = CE(f~, y~) + lambda1 mean_i KL(p(f~_i) || p_t(f~_i)) + lambda2 nu(x, f) / sqrt(nu(x, x) nu(f, f))
    nu(a, b) = 1/n^2 sum_ij A_ij B_ij;   A, B: the double-centred matrices of Euclidean distances
p_t: the received model, in evaluation mode and constant. beta ~ Beta(a, a) for each sample. After the merge
those who answered send activations, by the merged model (`fused`: by the received one), of a fixed share of
their samples; they are the next round's (fF, yF). Without any, f~ = f and y~ = y. A batch of one or two
samples has no last term. As in the public code (`variant=official`), in its order of passes, all in training
mode but p_t's:
    f = body(x);  z = model(x);  z~ = above(f~);  zF = above(fF)
    L = CE(z, y) + CE(z~, y~) + lambda1 KL(p_t(fF) || p(fF)) + lambda2 sqrt(last term);    lambda2 falls by
    0.1 a round to 1
and where there is no fF, L = CE(z, y) + lambda1 / 2 KL(p_t(x) || p(x)) + lambda2 sqrt(last term).
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg, cross_entropy, split_forward
from tests.oracles.tiny import CLASSES, Case, Law, Weights
from tests.oracles.values import Client, Pass, Reply


class FLea(FedAvg):
    part = "flea"
    alpha = 0.1
    lambda1 = 1.0
    lambda2 = 3.0
    a = 2.0
    variant = "paper"
    fused = False

    def begin(self) -> None:
        none = self.module[0](torch.zeros(0, *self.case.shape).double()).detach()
        self.slice = {"features": none, "labels": torch.zeros(0, dtype=torch.int64)}

    def arrive(self, c: Client) -> None:
        self.buffered = len(self.slice["labels"])
        if self.buffered:
            self.row = self.noise(c, "row", Law("cycle", (self.buffered,)))
            self.beta = self.noise(c, "beta", Law("beta", (self.a, self.a)))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not self.buffered:
            return x, y
        row, self.beta_B = self.row[c.step][: len(x)], self.beta[c.step][: len(x)]
        self.fF = self.slice["features"][row]
        yF = torch.nn.functional.one_hot(self.slice["labels"][row], CLASSES).double()
        self.y_mixed = torch.stack(
            [beta * y_i + (1 - beta) * yF_i for beta, y_i, yF_i in zip(self.beta_B, y, yF)]
        )
        return x, y if self.variant == "official" else self.y_mixed

    def forward(self, c: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        first, *rest, head = c.model
        self.f = h = first(x)
        if self.buffered:
            h = torch.stack([beta * f + (1 - beta) * fF for beta, f, fF in zip(self.beta_B, self.f, self.fF)])
        self.mixed = h
        if self.variant == "official":
            return split_forward(c.model, x)
        for block in rest:
            h = block(h)
        return head(h), h

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        close = correlation(seen.x, self.f) if len(seen.x) > 2 else torch.zeros(()).double()
        if self.variant == "paper":
            return loss + self.lambda1 * kl(seen.z, self.received(c, self.mixed)) + self.lambda2 * close
        lambda2 = max(1.0, self.lambda2 - 0.1 * (self.t - 1))
        loss = loss + lambda2 * (close.sqrt() if close > 0 else close)
        if not self.buffered:
            with torch.no_grad():
                teacher = self.model_with(c.start).eval()(seen.x)
            return loss + self.lambda1 / 2 * kl(teacher, seen.z)
        loss = loss + cross_entropy(c.model[1:](self.mixed), self.y_mixed)
        return loss + self.lambda1 * kl(self.received(c, self.fF), c.model[1:](self.fF))

    def received(self, c: Client, f: Tensor) -> Tensor:
        """Logits of the model that was received, from activations at the cut."""
        with torch.no_grad():
            return self.model_with(c.start).eval()[1:](f)

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.old = old

    def exchange(self, cohort: list[int]) -> None:
        if not 0 < self.t < self.case.rounds or not self.alpha:
            return
        body = self.model_with(self.old if self.fused else self.w).eval()[0]
        rows = torch.cat([self.shared_rows(k) for k in cohort])
        self.slice = {"features": body(self.x[rows]).detach(), "labels": self.y[rows].argmax(1)}

    def shared_rows(self, k: int) -> Tensor:
        count = int(self.alpha * len(self.given.rows(k)))
        if self.variant == "official":
            return self.given.sample(k, count, "flea", replace=True)
        return self.given.sample(k, max(1, count), "flea")


def kl(z_BC: Tensor, u_BC: Tensor) -> Tensor:
    """KL(softmax(z) || softmax(u)), the mean over the batch."""
    p, q = z_BC.softmax(1), u_BC.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def correlation(x: Tensor, f: Tensor) -> Tensor:
    """The squared distance correlation of the batch's inputs and activations."""
    A, B = centred_distances(x.flatten(1)), centred_distances(f.flatten(1))
    return (A * B).mean() / ((A * A).mean() * (B * B).mean()).sqrt()


def centred_distances(x_BD: Tensor) -> Tensor:
    n = len(x_BD)
    zero = torch.zeros(()).double()
    E = torch.stack(
        [
            torch.stack([(a - b).norm() if i != j else zero for j, b in enumerate(x_BD)])
            for i, a in enumerate(x_BD)
        ]
    )
    J = torch.eye(n).double() - 1 / n
    return J @ E @ J


CANCELLED = 1e-4
"""The engine takes distances from |a|^2 + |b|^2 - 2 ab, whose float32 digits cancel where activations are
close."""


@everywhere
def test_flea(case: Case) -> None:
    """M21: as its page says, only the teacher is in evaluation mode, and running statistics see the
    mixture."""
    agree(case, FLea, atol=CANCELLED, alpha=0.4)


@on_both_models
def test_without_the_last_term(case: Case) -> None:
    agree(case, FLea, lambda2=0.0, a=0.5)


def test_mixtures_alone() -> None:
    agree(Case(), FLea, lambda1=0.0, lambda2=0.0)


@on_both_models
def test_activations_that_travel_with_the_update(case: Case) -> None:
    agree(case, FLea, atol=CANCELLED, fused=True)


@everywhere
def test_the_loss_of_the_public_code(case: Case) -> None:
    """M20: every term of it in training mode, and running statistics that see the passes in the code's
    order."""
    agree(case, FLea, atol=CANCELLED, variant="official", alpha=0.4)


def test_the_public_codes_schedule_ends_at_one() -> None:
    agree(Case(), FLea, atol=CANCELLED, variant="official", lambda2=1.05)
