"""FedPCL (Tan et al., NeurIPS 2022, eq. 4 to 8): L(C) + mean_j L(C_j), L the cross-entropy of products with
class means / tau.

h has length 1. C_kc is client k's mean h of class c; C_c their mean over clients that have the class, which
also stands for classes that client j lacks. A client that is new only sends its means. It predicts the class
of its own nearest mean.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.oracles.agreement import agree
from tests.oracles.personal import Divided
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import CLASSES, Case, Tree
from tests.oracles.values import Client, Pass, Reply

D = 7


class FedPCL(Divided):
    part = "fedpcl"
    tau = 0.07

    def begin(self) -> None:
        self.sent: dict[int, dict[int, Tensor]] = {}
        self.note()

    def keeps(self, name: str) -> bool:
        return True

    def freezes(self, name: str) -> bool:
        return name.startswith("head.")

    def common(self) -> dict[int, Tensor]:
        """The mean of each class over the clients that have it."""
        by_class = {j: [m[j] for m in self.sent.values() if j in m] for j in range(CLASSES)}
        return {j: sum(means) / len(means) for j, means in by_class.items() if means}  # type: ignore[misc]

    def loss(self, c: Client, seen: Pass) -> Tensor:
        if c.k not in self.sent:
            return 0 * seen.h.sum()
        common, h = self.common(), normalize(seen.h)
        sets = [common, *({**common, **means} for means in self.sent.values())]
        weights = [1.0] + [1 / len(self.sent)] * len(self.sent)
        return sum(p * self.contrast(h, seen.y, means) for p, means in zip(weights, sets))  # type: ignore[return-value]

    def contrast(self, h: Tensor, y: Tensor, means: dict[int, Tensor]) -> Tensor:
        known = sorted(means)
        return cross_entropy(h @ torch.stack([means[j] for j in known]).T / self.tau, y[:, known])

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        h, label = normalize(self.evaluated(c.weights, self.x[rows])[1]), self.y[rows].argmax(1)
        means = {j: h[label == j].mean(0) for j in sorted(set(label.tolist()))}
        self.private[c.k] = self.table(means)
        return {"means": means}

    def table(self, means: dict[int, Tensor]) -> Tree:
        rows = [means.get(j, torch.zeros(D).double()) for j in range(CLASSES)]
        return {"C": torch.stack(rows), "has": torch.tensor([float(j in means) for j in range(CLASSES)])}

    def server(self, replies: list[Reply], old: object) -> None:
        self.sent |= {r.k: r.shared["means"] for r in replies}
        self.note()

    def note(self) -> None:
        tables = [self.table(self.sent.get(k, {})) for k in range(self.clients)]
        common = self.common()
        filled = [
            self.table(common),
            *(self.table({**common, **self.sent.get(k, {})}) for k in range(self.clients)),
        ]
        there = torch.tensor(
            [1.0] + [float(k in self.sent) / max(len(self.sent), 1) for k in range(self.clients)]
        )
        self.slice = {
            "sent": torch.stack([t["C"] for t in tables]),
            "has": torch.stack([t["has"] for t in tables]),
            "C": torch.stack([t["C"] for t in filled]),
            "weight": there,
            "known": self.table(common)["has"],
        }

    def answers(self) -> dict[int, Tensor]:
        return {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        h, means = normalize(self.evaluated(self.w | self.kept[k], self.tests_of(k))[1]), self.sent[k]
        z = torch.full((len(h), CLASSES), -torch.inf).double()
        for j, mean in means.items():
            z[:, j] = h @ mean
        return z


def test_fedpcl() -> None:
    """Class 3 has no mean in round 2, when two who have it are new."""
    agree(Case("cnn", 0.9, attendance=((0, 2), (1, 2, 3), (0, 1, 2, 4))), FedPCL, tau=0.5)
