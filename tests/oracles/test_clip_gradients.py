"""Clipped local gradients (Pascanu et al., ICML 2013): torch's own clip_grad_norm_ before every local
step."""

import torch

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client


class ClipGradients(FedAvg):
    part = "clip_gradients"
    norm = 1.0

    def gradient(self, c: Client) -> None:
        torch.nn.utils.clip_grad_norm_(list(c.parameters.values()), self.norm)


@on_both_models
def test_clip_gradients(case: Case) -> None:
    agree(case, ClipGradients, norm=0.4)


def test_its_defaults() -> None:
    agree(Case(), ClipGradients)
