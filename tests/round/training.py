"""A trainer on random samples of unequal clients, for tests of local training."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from unskew import models
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.random_keys import key
from unskew.methods import registry
from unskew.round.chunks import Recipe
from unskew.round.clients import Broadcast, LocalTraining
from unskew.round.samples import Samples
from unskew.round.trainer import Trainer
from unskew.tasks.task import Classification

SIZES = (40, 33, 1, 2, 64, 7, 18, 0)
CLASSES, SEED, LR = 4, 3, 0.05


def trainer(
    module: nn.Module,
    shape: tuple[int, ...],
    method: str | Method = "fedavg",
    lanes: int = 8,
    workers: int = 1,
    *,
    sizes: tuple[int, ...] = SIZES,
    batch: int = 16,
    epochs: int = 2,
    lr: float = LR,
    optimiser: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[Trainer, Broadcast]:
    """(a trainer of these clients, what round 1 sends them)."""
    g = torch.Generator().manual_seed(5)
    x, y = torch.rand(sum(sizes), *shape, generator=g), torch.randint(0, CLASSES, (sum(sizes),), generator=g)
    rows = [np.arange(a, b) for a, b in pairwise(np.cumsum([0, *sizes]))]
    counts = np.stack([np.bincount(y[r].numpy(), minlength=CLASSES) for r in rows])
    net = Network(module, shape)
    fed = Fed(
        clients=len(sizes),
        classes=CLASSES,
        shape=shape,
        rounds=9,
        epochs=epochs,
        batch=batch,
        lr=lr,
        net=net,
        sizes=np.array(sizes),
        task=Classification(),
        momentum=momentum,
        optimiser=optimiser,
        seed=SEED,
    )
    training = LocalTraining(Recipe(batch, epochs, bool(net.norms)), optimiser, momentum, weight_decay)
    chosen = registry.parse(method) if isinstance(method, str) else method
    samples = Samples(x, F.one_hot(y, CLASSES).float(), rows, counts)
    down = {p.name: p.server_init(net.weights(), fed) for p in chosen.parts}
    return Trainer(chosen, fed, samples, training, lanes, workers), Broadcast(1, lr, net.weights(), down)


def build(name: str, shape: tuple[int, ...]) -> nn.Module:
    module = models.build(name, shape, CLASSES)
    models.initialise(module, key("test"))
    return module


def linear(features: int, *before: nn.Module) -> nn.Module:
    """Flat inputs, other layers, and a head."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Flatten(), nn.Sequential(*before, nn.Identity()), nn.Linear(features, CLASSES))


def orders(clients: Trainer, k: int, epochs: int = 1) -> list[np.ndarray]:
    """The rows of client k as its epochs of round 1 take them."""
    rows, generator = clients.samples.rows[k], key(SEED, 1, k, "batch")
    return [rows[torch.randperm(len(rows), generator=generator).numpy()] for _ in range(epochs)]
