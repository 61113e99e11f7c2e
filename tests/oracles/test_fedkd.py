"""FedKD (Wu et al. 2022, eq. 1 to 6): a mentor stays, a mentee is sent; both learn from both, less where both
are wrong.

    L = CE_w + CE_v + (KL(p_v || p_w) + KL(p_w || p_v)) / (CE_w + CE_v) + 2 MSE(h_v, W h_w) / (CE_w + CE_v)
Everything descends L at once. Clients answer with their mentor.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div, mse_loss

from tests.oracles.agreement import agree
from tests.oracles.personal import Beside
from tests.oracles.plain import cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedKD(Beside):
    part = "fedkd"

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        v = dict(v)
        W = v.pop("hidden")
        features: list[Tensor] = []
        watch = c.model.head.register_forward_pre_hook(lambda _, h: features.append(h[0]))  # type: ignore[operator, union-attr]
        z = torch.func.functional_call(c.model, v, (seen.x,))
        watch.remove()
        log_v, log_w = z.log_softmax(1), seen.z.log_softmax(1)
        known = cross_entropy(z, seen.y) + cross_entropy(seen.z, seen.y)
        both = kl_div(log_w, log_v.exp(), reduction="batchmean") + kl_div(
            log_v, log_w.exp(), reduction="batchmean"
        )
        return cross_entropy(z, seen.y) + (both + 2 * mse_loss(features[0], seen.h @ W.T)) / known


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fedkd(model: str) -> None:
    agree(Case(model, 0.9), FedKD)
