"""How an attacker trains any network: a fixed budget of steps, its own seed, and early stopping on its own held-back quarter.

Letters: N samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unskew.core.keys import key
from unskew.models.initial import initialise

BATCH, LOOK, RATE = 64, 25, 2e-3
LEAST, NEAR = 0.05, 2.0
"""Deviations, and the largest mean, of inputs that a network learns as they are."""


@dataclass(frozen=True)
class Lesson:
    """What an attacker learns from: payloads [N, ...] and what it wants to know of each, [N, ...], all of its own samples.

    steps: of training, at most.
    """

    sent: Tensor
    x: Tensor
    steps: int
    seed: int

    def parts(self) -> tuple[Tensor, Tensor]:
        """Rows to train on, and a quarter to stop by."""
        order = torch.randperm(len(self.x), generator=key(self.seed, "lesson"))
        quarter = max(1, len(order) // 4)
        return order[quarter:], order[:quarter]


def fit(lesson: Lesson, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The network after training by Adam, as it was when its loss on the held-back quarter was least.

    It takes payloads as they are; they are scaled by the mean and deviation of the lesson's.
    """
    mean, std = scale(lesson.sent)
    train, held = lesson.parts()
    initialise(module, key(lesson.seed, "network"))
    module.to(lesson.sent.device)
    optimiser = torch.optim.Adam(module.parameters(), RATE)
    generator = key(lesson.seed, "batches")
    best, kept = math.inf, copy.deepcopy(module.state_dict())

    @torch.no_grad()
    def answer(sent: Tensor) -> Tensor:
        return torch.cat([module((piece - mean) / std) for piece in sent.split(256)])

    for step in range(lesson.steps):
        rows = train[torch.randint(len(train), (min(BATCH, len(train)),), generator=generator)]
        error = loss(module((lesson.sent[rows] - mean) / std), lesson.x[rows])
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        if step % LOOK == LOOK - 1 or step == lesson.steps - 1:
            now = float(loss(answer(lesson.sent[held]), lesson.x[held]))
            if now < best:
                best, kept = now, copy.deepcopy(module.state_dict())
    module.load_state_dict(kept)
    return answer


def fit_inputs(
    lesson: Lesson, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """The same of a network that answers with inputs, which it learns in deviations from their mean where they are far from one.

    Steps of Adam are as long in any unit, so numbers up to 255 would be out of its reach. Numbers like those of images from 0 to
    1 are learnt as they are.
    """
    mean, std = lesson.x.mean(), lesson.x.std(correction=0)
    if float(mean.abs()) <= NEAR and LEAST <= float(std) <= NEAR:
        return fit(lesson, module, loss)
    unit = torch.where(std > 0, std, 1.0)
    answer = fit(replace(lesson, x=(lesson.x - mean) / unit), module, loss)
    return lambda sent: mean + unit * answer(sent)


def scale(sent: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, or of each value of a vector, to be broadcast."""
    axes = [0, *range(2, sent.dim())]
    return sent.mean(axes, keepdim=True), sent.std(axes, keepdim=True).clamp(min=1e-6)
