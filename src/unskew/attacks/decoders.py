"""Networks that an attacker trains to turn payloads back into samples, with a fixed budget.

    linear   ridge regression, the best affine map
    deep     maps: convolutions with ReLU and nearest upsampling; vectors: two hidden layers

For vectors of a class there are also a decoder with upsampling, a variational decoder, and a generator fitted
to single vectors. Early stopping uses the loss on a quarter of the attacker's own samples.

Letters: N samples or vectors, D values of a payload or a vector, P of a sample.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.attacks.inversion import variation
from unskew.core.random_keys import key
from unskew.models.blocks import initialise

BATCH, LOOK, RATE = 64, 25, 2e-3
LEAST, NEAR = 0.05, 2.0
"""The range of deviations and means of inputs that need no scaling."""


@dataclass(frozen=True)
class TrainingSet:
    """The attacker's training set: payloads [N, ...] of its own samples and the targets x [N, ...].

    steps: the most training steps.
    """

    sent: Tensor
    x: Tensor
    steps: int
    seed: int

    def parts(self) -> tuple[Tensor, Tensor]:
        """(rows for training, a quarter of the rows for early stopping)."""
        order = torch.randperm(len(self.x), generator=key(self.seed, "lesson"))
        quarter = max(1, len(order) // 4)
        return order[quarter:], order[:quarter]


def fit(
    training: TrainingSet, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """The network after training by Adam, at the least loss on the quarter for early stopping.

    It scales payloads by the mean and deviation of the training's payloads.
    """
    mean, std = scale(training.sent)
    train, stopping = training.parts()
    initialise(module, key(training.seed, "network"))
    module.to(training.sent.device)
    optimiser = torch.optim.Adam(module.parameters(), RATE)
    generator = key(training.seed, "batches")
    least, best = math.inf, copy.deepcopy(module.state_dict())

    @torch.no_grad()
    def answer(sent: Tensor) -> Tensor:
        return torch.cat([module((piece - mean) / std) for piece in sent.split(256)])

    for step in range(training.steps):
        rows = train[torch.randint(len(train), (min(BATCH, len(train)),), generator=generator)]
        error = loss(module((training.sent[rows] - mean) / std), training.x[rows])
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        if step % LOOK == LOOK - 1 or step == training.steps - 1:
            now = float(loss(answer(training.sent[stopping]), training.x[stopping]))
            if now < least:
                least, best = now, copy.deepcopy(module.state_dict())
    module.load_state_dict(best)
    return answer


def fit_inputs(
    training: TrainingSet, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Like `fit`, for a network that outputs inputs; unless their scale is near 1, it learns standardised
    inputs.

    Steps of Adam have a fixed length in any unit, so numbers up to 255 would be out of reach.
    """
    mean, std = training.x.mean(), training.x.std(correction=0)
    if float(mean.abs()) <= NEAR and LEAST <= float(std) <= NEAR:
        return fit(training, module, loss)
    unit = torch.where(std > 0, std, 1.0)
    answer = fit(replace(training, x=(training.x - mean) / unit), module, loss)
    return lambda sent: mean + unit * answer(sent)


def scale(sent: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, or of each value of a vector, to be broadcast."""
    axes = [0, *range(2, sent.dim())]
    return sent.mean(axes, keepdim=True), sent.std(axes, keepdim=True).clamp(min=1e-6)


WIDTH = 32
PENALTIES = tuple(10.0**power for power in range(-8, 3))
"""The penalties of ridge regression that are tried."""
Decoder = Callable[[Tensor], Tensor]


def linear_decoder(training: TrainingSet) -> Decoder:
    """Ridge regression from payloads to samples, its penalty chosen on the quarter for early stopping.

    A w minimises |a w - b|^2 / N + penalty |w|^2. The smaller of its primal and its dual system is solved,
    because payloads may have many more values D than there are samples N.
    """
    mean, std = scale(training.sent.flatten(1))  # of each value, or the map would have no constant of its own
    train, stopping = training.parts()
    flat_ND = ((training.sent.flatten(1) - mean) / std).double()
    x_NP, middle = training.x.flatten(1).double(), training.x.flatten(1).double().mean(0)
    a, b = flat_ND[train], x_NP[train] - middle
    n, d = a.shape
    values, vectors = torch.linalg.eigh((a.T @ a if d <= n else a @ a.T) / n)
    basis = vectors if d <= n else a.T @ vectors
    along = (basis.T @ a.T if d <= n else vectors.T) @ b / n

    def apply(rows: Tensor, penalty: float) -> Tensor:
        return (rows @ basis / (values.clamp(min=0) + penalty)) @ along + middle

    best = min(PENALTIES, key=lambda p: float((apply(flat_ND[stopping], p) - x_NP[stopping]).pow(2).mean()))
    shape, low, high = training.x.shape[1:], training.x.min(), training.x.max()

    def decode(sent: Tensor) -> Tensor:
        rows = ((sent.flatten(1) - mean) / std).double()
        answers = apply(rows, best).to(training.x.dtype).reshape(-1, *shape)
        return answers.clamp(low, high)  # a unit that is hardly ever active is extrapolated without bound

    return decode


def deep_decoder(training: TrainingSet) -> Decoder:
    """The decoder with non-linearities of a training."""
    if training.sent.dim() == 4 == training.x.dim():
        return _train_decoder(training, _deep_maps(training.sent.shape[1:], training.x.shape[1:]))
    values, pixels = training.sent[0].numel(), training.x[0].numel()
    dense = nn.Sequential(
        nn.Flatten(),
        nn.Linear(values, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, pixels),
    )
    return _train_decoder(training, nn.Sequential(dense, nn.Unflatten(1, tuple(training.x.shape[1:]))))


def _deep_maps(maps: torch.Size, image: torch.Size) -> nn.Module:
    """Upsampling stays below the image's size, above which a step costs several times as much."""
    ratio = max(image[1] / maps[1], image[2] / maps[2])
    layers: list[nn.Module] = [nn.Conv2d(maps[0], 2 * WIDTH, 3, padding=1), nn.ReLU()]
    for _ in range(max(0, math.floor(math.log2(ratio)))):
        layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU()]
    layers += [_Resized(image), nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(2 * WIDTH, image[0], 3, padding=1))


class _Resized(nn.Module):
    """Bilinear interpolation to the image's size."""

    def __init__(self, image: torch.Size):
        super().__init__()
        self.size = (int(image[1]), int(image[2]))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] == self.size:
            return x
        return F.interpolate(x, self.size, mode="bilinear", align_corners=False)


def _train_decoder(training: TrainingSet, module: nn.Module) -> Decoder:
    return fit_inputs(training, module, F.mse_loss)


CHANNELS, HIDDEN, NOISE = 32, 32, 64
"""Channels of the maps, units of the bottleneck, values of the noise."""
Generator = Callable[[Tensor], Tensor]


def upcnn(training: TrainingSet) -> Generator:
    """Dense, then three times nearest upsampling and a convolution; trained on squared error."""
    return fit_inputs(training, _upsampling(training.sent.shape[1], training.x.shape[1:]), F.mse_loss)


def vae(training: TrainingSet) -> Generator:
    """Like `upcnn`, with a bottleneck drawn from a normal distribution that depends on the vector."""
    module = _Variational(training.sent.shape[1], training.x.shape[1:], key(training.seed, "draws"))
    return fit_inputs(
        training,
        module,
        lambda answer, x: (
            F.mse_loss(answer, x) + (module.divergence / 1000 if torch.is_grad_enabled() else 0.0)
        ),
    )


def fit_generator(
    features: Callable[[Tensor], Tensor], aims: Tensor, shape: torch.Size, plan: tuple[int, int]
) -> Tensor:
    """Inputs [N, *shape] with features near these aims [N, D], generated from noise. plan: (steps, seed)."""
    steps, seed = plan
    noise = torch.randn((len(aims), NOISE), generator=key(seed, "noise")).to(aims.device)
    module = _upsampling(NOISE, shape).to(aims.device)
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


def _upsampling(values: int, shape: torch.Size) -> nn.Module:
    """A network from vectors [N, D] to inputs of this shape; two dense layers unless these are images."""
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
    """divergence: KL(N(mu, s^2) || N(0, I)) of the last pass in nats, mean over the batch."""

    def __init__(self, values: int, shape: torch.Size, generator: torch.Generator):
        super().__init__()
        self.encoder = nn.Linear(values, 2 * HIDDEN)
        self.decoder = _upsampling(HIDDEN, shape)
        self.generator = generator
        self.divergence = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        mu, log_var = self.encoder(x).chunk(2, 1)
        self.divergence = 0.5 * (log_var.exp() + mu**2 - 1 - log_var).sum(1).mean()
        if not torch.is_grad_enabled():
            return self.decoder(mu)
        drawn = torch.randn(mu.shape, generator=self.generator).to(mu.device)
        return self.decoder(mu + (log_var / 2).exp() * drawn)
