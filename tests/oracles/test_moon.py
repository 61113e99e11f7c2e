"""MOON (Li, He & Song, CVPR 2021, eq. 3 and algorithm 1).

    l_con = -log( exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)) )
    l = l_sup + mu l_con;    z: the projection, Linear-ReLU-Linear on the features, which the head reads
z_glob, z_prev: of the received model and of the client's own last one, in evaluation mode, without gradient.
A client that takes part for the first time has no last model and no l_con.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Tree, model_named
from tests.oracles.values import Client, Pass


class MOON(FedAvg):
    part = "moon"
    mu = 1.0
    temperature = 0.5
    width = 256

    def model(self) -> nn.Sequential:
        *body, (_, head) = model_named(self.case.model).named_children()
        assert isinstance(head, nn.Linear)
        model, D = nn.Sequential(), head.in_features
        for name, block in body:
            model.add_module(name, block)
        if self.width:
            model.add_module(
                "projection", nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, self.width))
            )
        model.add_module("head", nn.Linear(self.width or D, CLASSES))
        return model

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"last": dict(c.start), "known": torch.tensor(0.0)})

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if not self.private[c.k]["known"]:
            return loss
        near = self.evaluated(c.start, seen.x)[1]
        far = self.evaluated(self.private[c.k]["last"], seen.x)[1]
        like_near = torch.exp(cosine(seen.h, near) / self.temperature)
        like_far = torch.exp(cosine(seen.h, far) / self.temperature)
        return loss + self.mu * (-torch.log(like_near / (like_near + like_far))).mean()

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"last": c.weights, "known": torch.tensor(1.0)}
        return {}


def cosine(a_BD: Tensor, b_BD: Tensor) -> Tensor:
    return (normalize(a_BD) * normalize(b_BD)).sum(1)


@everywhere
def test_moon(case: Case) -> None:
    agree(case, MOON, mu=2.0, temperature=0.4, width=6)


def test_without_a_projection() -> None:
    agree(Case("cnn"), MOON, width=0)


def test_its_defaults() -> None:
    agree(Case(), MOON)
