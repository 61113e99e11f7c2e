"""The work of the speed benchmarks: which model, which seeded data, how much training. Needs torch, nothing
else.

One round of FedAvg: every client starts at the same weights, trains `epochs` over its `samples` rows with SGD
in row order (no shuffling, the last short batch is kept), and the weights are averaged by size.
Every round starts again from `initial_model`, so all rounds of all variants do the same sums.

Learning rates do not change the speed. They are small where 0.05 makes training on random data chaotic:
HARNet then diverges, and one and two threads of the very same loop end 0.03 apart, so that agreement would
say nothing.

Legend: K clients, N samples per client.
"""

from dataclasses import dataclass

import torch
from nets import NETS
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    batch: int
    epochs: int
    learning_rate: float


WORKS = {
    work.model: work
    for work in [
        Work(
            "rebafl_fmnist", (1, 28, 28), 10, clients=50, samples=100, batch=32, epochs=5, learning_rate=0.05
        ),
        Work("harnet", (1, 128, 3), 6, clients=50, samples=100, batch=32, epochs=5, learning_rate=0.01),
        Work("audionet", (2, 64, 344), 10, clients=10, samples=100, batch=32, epochs=2, learning_rate=0.01),
        Work("mobilenet_v2", (3, 32, 32), 10, clients=4, samples=64, batch=32, epochs=1, learning_rate=0.002),
        Work("mlp", (1, 28, 28), 10, clients=50, samples=100, batch=32, epochs=5, learning_rate=0.05),
    ]
}


def data(work: Work) -> tuple[Tensor, Tensor]:
    """`x` of shape [K, N, *shape] (standard normal) and `y` of shape [K, N] (class indices)."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(work.clients, work.samples, *work.shape, generator=g)
    y = torch.randint(work.classes, (work.clients, work.samples), generator=g)
    return x, y


def initial_model(work: Work) -> nn.Module:
    """Weights uniform in +-1/sqrt(fan in), biases 0, from a generator: the same bits in every environment."""
    g = torch.Generator().manual_seed(2)
    model = NETS[work.model]()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                w = module.weight
                w.copy_((2 * torch.rand(w.shape, generator=g) - 1) / w[0].numel() ** 0.5)
                if module.bias is not None:
                    module.bias.zero_()
    return model.train()
