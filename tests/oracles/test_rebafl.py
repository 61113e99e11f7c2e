"""ReBaFL (Xu et al., arXiv 2303.06314): relaxed balanced softmax and feature augmentation.

    q = (1 - eps) p_k + eps / C;  additive: (p_k + eps) / (1 + C eps)                            p_k: label
    shares (10) L0 = -log( q_y exp(z_y) / sum_c q_c exp(z_c) )
    (9) h'_i = c_{k_i} + h_i - c_{y_i},  label k_i: the classes that have a prototype, one after the other
    (15)
    L1: as L0 for (h', k) with the label shares of the augmented batch;   L = L0 + mu L1
    (16)
    c_c: the prototype received, else the mean feature of the client's class c under the received model
    (18)
    after training, with the trained model:  c_c = sum_k (sum of features of k's class c) / sum_k n_kc
    (21, 23)
h and c are constants in L1, unless `aug_grad`. L1 is left out as long as nothing was received, and at a
client with a single class. Prototypes of classes that nobody reported are dropped, unless `keep_stale`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class ReBaFL(FedAvg):
    part = "rebafl"
    eps = 0.01
    mu = 0.5
    form = "smoothing"
    aug_grad = False
    keep_stale = False
    D = 7

    def begin(self) -> None:
        if self.mu:
            self.slice = {
                "prototypes": torch.zeros(CLASSES, self.D).double(),
                "known": torch.zeros(CLASSES).double(),
            }

    def arrive(self, c: Client) -> None:
        if not self.mu:
            return
        received = {j: self.slice["prototypes"][j] for j in range(CLASSES) if self.slice["known"][j]}
        own = {j: sums / n for j, (sums, n) in self.class_sums(c, c.start).items()}
        self.prototypes = {j: (own | received)[j] for j in sorted({*own, *received})}
        self.augments = bool(received) and len(own) > 1

    def class_sums(self, c: Client, w: Weights) -> dict[int, tuple[Tensor, int]]:
        """By class that client c has: the sum of its features under these weights, and their number."""
        rows = self.given.rows(c.k)
        h, label = self.evaluated(w, self.x[rows])[1], self.y[rows].argmax(1)
        return {j: (h[label == j].sum(0), int((label == j).sum())) for j in set(label.tolist())}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = balanced(seen.z, seen.y, self.smoothed(c.counts / c.n))
        if not self.mu or not self.augments:
            return loss
        known, moved, labels = list(self.prototypes), [], []
        for i, (h, y) in enumerate(zip(seen.h, seen.y.argmax(1).tolist())):
            labels.append(known[i % len(known)])
            moved.append(self.prototypes[labels[-1]] + h - self.prototypes[y])
        h_BD = torch.stack(moved)
        k_BC = torch.nn.functional.one_hot(torch.tensor(labels), CLASSES).double()
        z_BC = c.model.head(h_BD if self.aug_grad else h_BD.detach())  # type: ignore[operator]
        return loss + self.mu * balanced(z_BC, k_BC, self.smoothed(k_BC.mean(0)))

    def smoothed(self, p_C: Tensor) -> Tensor:
        if self.form == "additive":
            return (p_C + self.eps) / (1 + CLASSES * self.eps)
        return (1 - self.eps) * p_C + self.eps / CLASSES

    def leave(self, c: Client) -> Tree:
        return {"sums": self.class_sums(c, c.weights)} if self.mu else {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        if not self.mu:
            return
        before = self.slice
        self.begin()
        for j in range(CLASSES):
            if parts := [r.shared["sums"][j] for r in replies if j in r.shared["sums"]]:
                self.slice["prototypes"][j] = sum(s for s, _ in parts) / sum(n for _, n in parts)
                self.slice["known"][j] = 1
            elif self.keep_stale:
                self.slice["prototypes"][j], self.slice["known"][j] = (
                    before["prototypes"][j],
                    before["known"][j],
                )


class Unrelaxed(ReBaFL):
    eps = 0.0


def balanced(z_BC: Tensor, y_BC: Tensor, q_C: Tensor) -> Tensor:
    """-log( q_y exp(z_y) / sum_c q_c exp(z_c) ), the mean over the batch."""
    weighed = q_C * z_BC.exp()
    return -((weighed * y_BC).sum(1) / weighed.sum(1)).log().mean()


SOME_CLASSES = ((2,), (0, 4), (1, 2, 4))
"""Nobody who answers has class 3 in round 1, or all classes in round 2: clients must complete the
prototypes."""


@everywhere
def test_rebafl(case: Case) -> None:
    agree(case, ReBaFL)


@on_both_models
def test_classes_without_a_received_prototype(case: Case) -> None:
    agree(replace(case, attendance=SOME_CLASSES), ReBaFL, mu=1.0)


def test_prototypes_that_nobody_renews_may_stay() -> None:
    agree(replace(Case("cnn"), attendance=SOME_CLASSES), ReBaFL, keep_stale=True)


@on_both_models
def test_without_augmentation(case: Case) -> None:
    agree(case, ReBaFL, mu=0.0, eps=0.2)


def test_the_balanced_softmax_itself() -> None:
    agree(Case(), Unrelaxed, eps=0.0)


@on_both_models
def test_augmentation_that_trains_the_body_too(case: Case) -> None:
    agree(case, ReBaFL, aug_grad=True)


def test_an_added_coefficient() -> None:
    agree(Case(), ReBaFL, form="additive", eps=0.1)
