"""Networks that make images from vectors: a decoder, a variational one, and a generator fitted to single vectors.

Letters: N vectors, D values of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.attacks.inversion import variation
from unskew.attacks.training import Lesson, fit_inputs
from unskew.core.keys import key
from unskew.models.initial import initialise

CHANNELS, HIDDEN, NOISE = 32, 32, 64
"""Channels of the maps, units of the bottleneck, values of the noise."""
Decoder = Callable[[Tensor], Tensor]


def upcnn(lesson: Lesson) -> Decoder:
    """Dense, then three times nearest upsampling and a convolution; trained on squared error."""
    return fit_inputs(lesson, _upward(lesson.sent.shape[1], lesson.x.shape[1:]), F.mse_loss)


def vae(lesson: Lesson) -> Decoder:
    """The same from a bottleneck that is drawn from a normal law around what the vector says."""
    module = _Variational(lesson.sent.shape[1], lesson.x.shape[1:], key(lesson.seed, "draws"))
    return fit_inputs(
        lesson,
        module,
        lambda answer, x: F.mse_loss(answer, x) + (module.divergence / 1000 if torch.is_grad_enabled() else 0.0),
    )


def fitted(features: Callable[[Tensor], Tensor], aims: Tensor, shape: torch.Size, plan: tuple[int, int]) -> Tensor:
    """[N, *shape] inputs whose features are near these aims, [N, D], made from noise by one generator. plan: steps, seed."""
    steps, seed = plan
    noise = torch.randn((len(aims), NOISE), generator=key(seed, "noise")).to(aims.device)
    module = _upward(NOISE, shape).to(aims.device)
    initialise(module, key(seed, "generator"))
    optimiser = torch.optim.Adam(module.parameters(), 2e-3)
    spread = aims.var() + 1e-6
    for _ in range(steps):
        x = module(noise)
        distance = F.mse_loss(features(x), aims) / spread + 0.01 * variation(x)
        optimiser.zero_grad()
        distance.backward()
        optimiser.step()
    return module(noise).detach()


def _upward(values: int, shape: torch.Size) -> nn.Module:
    """From vectors [N, D] to inputs of this shape; of inputs that are no images, two dense layers."""
    if len(shape) != 3:
        return nn.Sequential(
            nn.Linear(values, 256), nn.ReLU(), nn.Linear(256, math.prod(shape)), nn.Unflatten(1, tuple(shape))
        )
    height, width = (max(1, math.ceil(side / 8)) for side in shape[1:])
    layers: list[nn.Module] = [nn.Linear(values, CHANNELS * height * width), nn.ReLU()]
    layers.append(nn.Unflatten(1, (CHANNELS, height, width)))
    for _ in range(3):
        layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()]
    layers += [
        nn.Conv2d(CHANNELS, shape[0], 3, padding=1),
        nn.Upsample((int(shape[1]), int(shape[2])), mode="bilinear"),
    ]
    return nn.Sequential(*layers)


class _Variational(nn.Module):
    """divergence: of the last pass, KL(N(mu, s^2) || N(0, I)) in nats, the mean over the batch."""

    def __init__(self, values: int, shape: torch.Size, generator: torch.Generator):
        super().__init__()
        self.encoder = nn.Linear(values, 2 * HIDDEN)
        self.decoder = _upward(HIDDEN, shape)
        self.generator = generator
        self.divergence = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        mu, log_var = self.encoder(x).chunk(2, 1)
        self.divergence = 0.5 * (log_var.exp() + mu**2 - 1 - log_var).sum(1).mean()
        if not torch.is_grad_enabled():
            return self.decoder(mu)
        drawn = torch.randn(mu.shape, generator=self.generator).to(mu.device)
        return self.decoder(mu + (log_var / 2).exp() * drawn)
