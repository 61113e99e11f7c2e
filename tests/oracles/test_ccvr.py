"""CCVR (Luo et al., NeurIPS 2021, algorithm 1 and eq. 3 and 4): the head is trained again on virtual
features.

After the last round, with the merged model in evaluation mode: the mean and the unbiased covariance of the
features of class c, over the samples of all clients (which is what the formulas of the paper sum up to from
those of each client). The server draws `each` features of every class from this normal law, as mean + g
root^T with g standard normal and root from the eigenvectors, and trains the head on them by SGD. With
`mode="features"` it trains it on features of max(1, floor(share n_k)) samples of each client. A class without
a feature stays out, its row of the head as it is.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import CLASSES, Case


class CCVR(FedAvg):
    part = "ccvr"
    mode = "gaussian"
    each = 200
    share = 0.1
    epochs = 10
    batch_size = 64
    lr = 0.01
    momentum = 0.9

    def exchange(self, cohort: list[int]) -> None:
        if self.t < self.case.rounds:
            return
        h, label = self.sent() if self.mode == "features" else self.drawn()
        have = sorted(set(label.tolist()))
        y = torch.stack([label == j for j in have], 1).double()
        model = self.model_with(self.w)
        head = list(model.head.parameters())  # type: ignore[union-attr]
        optimiser = torch.optim.SGD(head, self.lr, self.momentum)
        generator = self.given.generator("ccvr", "batches")
        for _ in range(self.epochs):
            for rows in torch.randperm(len(h), generator=generator).split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(model.head(h[rows])[:, have], y[rows]).backward()  # type: ignore[operator]
                optimiser.step()
        self.w |= {n: p.detach().clone() for n, p in model.named_parameters()}

    def sent(self) -> tuple[Tensor, Tensor]:
        """Features and labels of some samples of every client."""
        rows = [
            self.given.sample(k, max(1, int(self.share * len(self.given.rows(k)))), "ccvr")
            for k in range(self.clients)
        ]
        return self.evaluated(self.w, self.x[torch.cat(rows)])[1], self.y[torch.cat(rows)].argmax(1)

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Features and labels, drawn class by class."""
        h, label = self.evaluated(self.w, self.x)[1], self.y.argmax(1)
        generator, features = self.given.generator("ccvr", "draw"), []
        for j in range(CLASSES):
            of_class = h[label == j]
            values, vectors = torch.linalg.eigh(torch.cov(of_class.T))
            root = vectors * values.clamp(min=0).sqrt()
            normal = torch.randn(self.each, len(root), generator=generator, dtype=torch.float64)
            features.append(of_class.mean(0) + normal @ root.T)
        return torch.cat(features), torch.arange(CLASSES).repeat_interleave(self.each)


@everywhere
def test_ccvr(case: Case) -> None:
    agree(case, CCVR, each=20, epochs=2, batch_size=16, lr=0.1)


@on_both_models
def test_real_features(case: Case) -> None:
    agree(case, CCVR, mode="features", share=0.3, epochs=3, batch_size=4, lr=0.2)


def test_a_class_of_which_no_feature_was_sent() -> None:
    """One sample of each of two clients: two classes at most."""
    agree(Case(), CCVR, mode="features", share=0.01, lr=0.2)
