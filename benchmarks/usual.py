"""The usual loop: per client a deep copy of the model, a DataLoader and torch.optim.SGD; then a size-weighted
mean."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from work import Work


def train(model: nn.Module, rows: TensorDataset, work: Work) -> nn.Module:
    """One client's work, in place."""
    loader = DataLoader(rows, batch_size=work.batch, shuffle=False, num_workers=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(work.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    return model


def weighted_mean(states: list[dict[str, Tensor]], sizes: list[int]) -> dict[str, Tensor]:
    """Mean of state dicts by size; counters (whole numbers) are taken from the first client."""
    mean = copy.deepcopy(states[0])
    for name, value in mean.items():
        if value.is_floating_point():
            mean[name] = sum(
                state[name] * (size / sum(sizes)) for state, size in zip(states, sizes, strict=True)
            )
    return mean
