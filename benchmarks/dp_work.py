"""pfl-research's own CIFAR-10 setting with client-level differential privacy: data, network and numbers for
both programs.

Needs numpy and torch alone. From its `benchmarks/image_classification/configs/baseline.yaml`: users of 50
samples each, dealt out at random; two convolutions and a hidden layer with dropout; an epoch in batches of 10
at rate 0.1; every user counts the same; clip 0.4, epsilon 2 at delta 1e-6, noise as for 1,000 of 1,000,000
users a round.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Work:
    """cohort: users of a round, of `users`. noise_cohort, population: for how many users a round, of how
    many, noise is added and accounted for, in place of those that are there. every: rounds from one
    evaluation to the next."""

    rounds: int = 1500
    cohort: int = 50
    users: int = 1000
    samples: int = 50
    batch: int = 10
    learning_rate: float = 0.1
    clip: float = 0.4
    epsilon: float = 2.0
    delta: float = 1e-6
    noise_cohort: int = 1000
    population: int = 1_000_000
    every: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Arrays:
    """x [K, N, 3, 32, 32] float32, y [K, N] int64 of K users with N samples each; x_test, y_test."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )


def initial(seed: int) -> nn.Sequential:
    """Glorot uniform weights, torch's own biases; the same bits in every environment."""
    torch.manual_seed(seed)
    module = network()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return module


def write(work: Work, arrays: Arrays, folder: Path) -> None:
    (folder / "work.json").write_text(json.dumps(asdict(work)))
    for field in fields(Arrays):
        np.save(folder / f"{field.name}.npy", getattr(arrays, field.name))


def read(folder: Path) -> tuple[Work, Arrays]:
    work = Work(**json.loads((folder / "work.json").read_text()))
    return work, Arrays(*(np.load(folder / f"{field.name}.npy") for field in fields(Arrays)))
