"""FedAS (Yang et al., CVPR 2024): the received body takes a pass towards the means m_c of what the client's
own body saw.

Then it trains; F_k = sum over batches of |grad CE|^2 of the trained model, and w = sum_k F_k w_k / sum_k F_k.
The head stays at the client, which is scored by the model that it trained last.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import Divided
from tests.oracles.plain import cross_entropy, loaded, split_forward
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class FedAS(Divided):
    part = "fedas"
    rate = 0.01
    passes = 1

    def keeps(self, name: str) -> bool:
        return name.startswith("head.")

    def arrive(self, c: Client) -> None:
        rows = self.given.rows(c.k)
        last = self.private[c.k]["w"] if c.k in self.private else c.start
        f, label = self.evaluated(last, self.x[rows])[1], self.y[rows].argmax(1)
        m = {j: f[label == j].mean(0) for j in set(label.tolist())}
        model = self.model_with(c.start).eval()
        for _ in range(self.passes):
            for batch in rows.split(self.case.batch):
                f, label = split_forward(model, self.x[batch])[1], self.y[batch].argmax(1)
                model.zero_grad()
                torch.stack(
                    [(f[label == j] - m[j]).pow(2).mean() for j in set(label.tolist())]
                ).sum().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        if p.grad is not None:
                            p -= self.rate * p.grad
        loaded(c.model, {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers())})

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        model, F = self.model_with(c.weights).eval(), 0.0
        for batch in self.given.rows(c.k).split(self.case.batch):
            model.zero_grad()
            cross_entropy(model(self.x[batch]), self.y[batch]).backward()
            F += sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None)
        return {"F": F}

    def merge(self, replies: list[Reply]) -> Weights:
        whole = sum(r.shared["F"] for r in replies)
        return self.w | {n: sum(r.shared["F"] / whole * r.w[n] for r in replies) for n in replies[0].w}  # type: ignore[misc]

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.private[k]["w"], self.tests_of(k))[0] for k in self.private}


def test_fedas() -> None:
    agree(Case("cnn", 0.9), FedAS, rate=0.5, passes=2)
