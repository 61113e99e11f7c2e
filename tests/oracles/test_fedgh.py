"""FedGH (Yi et al., ACM MM 2023, algorithm 1): the head is trained at the server on every client's mean
feature of each class.

    m_kc by client k's trained model;    w_head <- w_head - lr grad mean CE(head(m), c) over minibatches of
    the pairs (m, c)
Bodies never leave. The order of pairs is given.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class FedGH(FedAvg):
    part = "fedgh"
    lr = 0.01
    epochs = 1
    batch_size = 10

    def keeps(self, name: str) -> bool:
        return not name.startswith("head.")

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        h, label = self.evaluated(c.weights, self.x[rows])[1], self.y[rows].argmax(1)
        return {"means": {j: h[label == j].mean(0) for j in sorted(set(label.tolist()))}}

    def merge(self, replies: list[Reply]) -> Weights:
        pairs = [(m, j) for r in replies for j, m in r.shared["means"].items()]
        present = sorted({j for _, j in pairs})
        W, b = self.w["head.weight"].clone().requires_grad_(), self.w["head.bias"].clone().requires_grad_()
        generator = self.given.generator(self.t, "fedgh")
        for _ in range(self.epochs):
            order = torch.randperm(len(pairs), generator=generator).tolist()
            for first in range(0, len(pairs), self.batch_size):
                chosen = [pairs[i] for i in order[first : first + self.batch_size]]
                z = [(W @ m + b)[present].log_softmax(0)[present.index(j)] for m, j in chosen]
                loss = -sum(z[1:], z[0]) / len(z)
                slopes = torch.autograd.grad(loss, [W, b])
                with torch.no_grad():
                    W -= self.lr * slopes[0]
                    b -= self.lr * slopes[1]
        return self.w | {"head.weight": W.detach(), "head.bias": b.detach()}

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w | kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@on_both_models
def test_fedgh(case: Case) -> None:
    agree(case, FedGH, lr=0.5, epochs=2, batch_size=4)
