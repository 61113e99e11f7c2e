"""kNN-Per (Marfoq et al., ICML 2022, eq. 7 to 9): FedAvg, and at test time, for client k and an input with
features h,

    p = share q + (1 - share) softmax(z),   q_c = sum_{i in kNN(h)} e^{-|h - h_i| / scale} 1[y_i = c] / sum_{i
    in kNN(h)} e^{-|h - h_i| / scale}
The gaussian kernel of its code has |h - h_i|^2 / D instead of |h - h_i|. Client 0 has one sample, fewer than
k.
"""

import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case


class KNNPer(FedAvg):
    part = "knn_per"
    k = 10
    share = 0.5
    scale = 1.0
    kernel = "exponential"

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in range(self.clients)}

    def own(self, k: int) -> Tensor:
        rows = self.given.rows(k)
        z, h = self.evaluated(self.w, self.tests_of(k))
        own_h = self.evaluated(self.w, self.x[rows])[1]
        answers: list[Tensor] = []
        for z_i, h_i in zip(z, h):
            far = (own_h - h_i).norm(dim=1)
            near = far.argsort()[: self.k]
            d = far[near] ** 2 / h.shape[1] if self.kernel == "gaussian" else far[near]
            counts = (-d / self.scale).exp()
            q = (counts[:, None] * self.y[rows[near]]).sum(0) / counts.sum()
            answers.append(self.share * q + (1 - self.share) * z_i.softmax(0))
        return torch.stack(answers).log()


@pytest.mark.parametrize(("model", "kernel"), [("mlp", "exponential"), ("cnn", "gaussian")])
def test_knn_per(model: str, kernel: str) -> None:
    agree(Case(model), KNNPer, k=3, share=0.7, scale=0.5, kernel=kernel)
