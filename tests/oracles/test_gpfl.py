"""GPFL (Zhang et al., ICCV 2023, eq. 1 to 8): CE(head(V(f, p))) + CE(cos(V(f, g), E)) + lam |V(f, g) - E_y|;
the head stays.

V(f, u) = relu(f (gamma(u) + 1) + beta(u));  gamma, beta: LayerNorm(relu(linear)).   g, p: means of the
received embeddings, of all classes alike and by the client's label shares; 0 in round 1.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from tests.oracles.agreement import agree
from tests.oracles.personal import Divided
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import CLASSES, Case
from tests.oracles.values import Client, Pass


class GPFL(Divided):
    part = "gpfl"
    lam = 0.01

    def keeps(self, name: str) -> bool:
        return name.startswith("head.")

    def loss(self, c: Client, seen: Pass) -> Tensor:
        w = {n.removeprefix("gpfl."): t for n, t in c.extra.items()}
        g, p = self.conditions(c.k, self.t)
        own, common = (self.conditioned(w, seen.h, u) for u in (p, g))
        to_classes = torch.stack([cosine_similarity(common, e[None]) for e in w["E"]], 1)
        received = self.w["gpfl.E"][seen.y.argmax(1)]
        loss = cross_entropy(c.model.head(own), seen.y) + cross_entropy(to_classes, seen.y)  # type: ignore[operator]
        return loss + self.lam * torch.linalg.matrix_norm(common - received)

    def conditions(self, k: int, t: int) -> tuple[Tensor, Tensor]:
        """g and p in round t, of the embeddings that are there."""
        E, y = self.w["gpfl.E"], self.y[self.given.rows(k)]
        if t == 1:
            return 0 * E[0], 0 * E[0]
        return sum(E) / CLASSES, sum(E[int(j)] for j in y.argmax(1)) / len(y)  # type: ignore[return-value]

    def conditioned(self, w: Mapping[str, Tensor], f: Tensor, u: Tensor) -> Tensor:
        terms: list[Tensor] = []
        for which in ("gamma", "beta"):
            v = torch.relu(w[f"{which}.map"] @ u + w[f"{which}.shift"])
            v = (v - v.mean()) / (v.var(correction=0) + nn.LayerNorm(1).eps).sqrt()
            terms.append(v * w[f"{which}.norm"][0] + w[f"{which}.norm"][1])
        return torch.relu(f * (terms[0] + 1) + terms[1])

    def answers(self) -> dict[int, Tensor]:
        return {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        f = self.evaluated(self.w | self.kept[k], self.tests_of(k))[1]
        w = {n.removeprefix("gpfl."): t for n, t in self.w.items()}
        read = self.conditioned(w, f, self.conditions(k, self.t + 1)[1])
        return read @ self.kept[k]["head.weight"].T + self.kept[k]["head.bias"]


def test_gpfl() -> None:
    agree(Case("cnn", 0.9, lr=0.02), GPFL, lam=0.5)
