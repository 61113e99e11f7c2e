"""Context: does a payload carry a marker that is unrelated to its class (FLea, KDD 2024, figure 9d)?

The marker is a square of one colour in a corner of the image: the brightest value of the first channel of the
adversary's own samples, or the darkest if these are bright there. The adversary marks half of its own
samples, computes the payloads of a client from them, and trains a classifier for "marked or not" on n of
these, for several n. It is scored on the samples that clients shared, half of which are marked before they
are sent.
Differs from the paper: the classifier has ReLU between its layers and is scored on clients' samples; averages
are of samples that are all marked or all not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn

from unskew.attacks import success
from unskew.attacks.attack import Attack, Outcome, Score, share_of
from unskew.attacks.auxiliary_samples import LEAST, unseen
from unskew.attacks.decoders import TrainingSet, fit
from unskew.attacks.payloads import Exchanges, activations, at_cut, clearest, inputs, part_of
from unskew.attacks.target_run import TargetRun
from unskew.core.random_keys import numpy_key
from unskew.formats.setting_ranges import Count
from unskew.methods.fedmix import FedMix
from unskew.methods.flea import FLea

READS = ("flea/features", "fedmix/x", "naivemix/x")

CORNER = 2
"""The first row and column of the marker."""
SEEN = 0.25
"""The least contrast of a bright marker, as a share of the range of values; else the marker is dark."""
MOST_READ = 2000
"""The most own samples by which an exchange is chosen."""
Sent = Callable[[Tensor], Tensor]
"""The payloads of clients for stored samples, [N, *shape] -> [N', ...]."""


@dataclass(frozen=True)
class Marker:
    """A square in an image. place: its rows and its columns. colour: of its pixels in the first channel."""

    place: slice
    colour: float

    @staticmethod
    def on(own: Tensor, side: int) -> Marker:
        """A marker that is visible on samples like the attacker's own, [N, *shape]."""
        place = slice(CORNER, CORNER + side)
        pixels = own[:, 0]
        low, high = float(pixels.min()), float(pixels.max())
        far = high - float(pixels[:, place, place].mean())
        return Marker(place, high if far >= SEEN * (high - low) else low)

    def drawn(self, x: Tensor) -> Tensor:
        """Copies of samples [N, *shape] with the marker."""
        marked = x.clone()
        marked[:, 0, self.place, self.place] = self.colour
        return marked


@dataclass(frozen=True)
class Context(Attack):
    """Finds a marker in what was shared."""

    marker: Annotated[int, Ge(1), "side of the marker in pixels"] = 5
    own: Annotated[
        tuple[Annotated[int, Ge(20), Le(1_000_000)], ...],
        "numbers of own samples with which the attacker tries",
    ] = (100, 300, 1000, 3000, 10_000)
    steps: Annotated[Count, "steps of 64 samples that a classifier trains at most"] = 300
    exchanges: Exchanges = "every"
    name: ClassVar[str] = "context"
    asks: ClassVar[str] = "does it show a mark on an image that the model never needed?"
    adversary: ClassVar[str] = "the server, and every client that is sent the same; all have the model"
    quick: ClassVar[Mapping[str, object]] = {
        "samples": 200,
        "own": (100, 300),
        "steps": 100,
        "exchanges": "ends",
    }

    def refuse(self, target: TargetRun) -> str | None:
        flea, shape = part_of(target, FLea), list(target.run.fed.shape)
        if flea is None and part_of(target, FedMix) is None:
            return "its clients share neither activations of samples (FLea) nor averages of inputs (FedMix)"
        if flea is not None and (target.final.t < 2 or not flea.trips):
            return "FLea shares activations after every round but the last, and this run has none"
        if len(shape) != 3 or min(shape[1:]) < CORNER + self.marker:
            return f"a marker of {self.marker} pixels does not fit into samples of shape {shape}"
        return None

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        if part := part_of(target, FLea):
            takens, group = activations(target, part, self.exchanges), 1
            sent: Sent = lambda x: at_cut(target, taken, x)  # noqa: E731
        else:
            mix = part_of(target, FedMix)
            assert mix is not None
            takens, group = [inputs(target, mix)], mix.group
            sent = lambda x: torch.stack([g.mean(0) for g in x.split(group)])  # noqa: E731
        every = torch.unique(torch.cat([taken.x for taken in takens]), dim=0)
        own = unseen(target.federation, every, seed, most=group * max(self.own, default=LEAST))
        taken = clearest(target, takens, own.take(np.arange(min(len(own), MOST_READ))), seed)
        rows = torch.as_tensor(numpy_key(seed, "attacked").permutation(len(taken.x))[: self.samples * group])
        marker = Marker.on(own.x, self.marker)
        shared, marks = _marked(marker, taken.x[rows], group, numpy_key(seed, "marks", "clients"))
        sizes = self._sizes(len(own) // group)
        scores = list[Score]()
        for n in sizes:
            mine, marks_of_mine = _marked(marker, own.x[: n * group], group, numpy_key(seed, "marks", "own"))
            training = TrainingSet(sent(mine), marks_of_mine.long(), self.steps, seed)
            z = fit(training, _classifier(training.sent.shape[1:]), F.cross_entropy)(sent(shared))
            sure = (z[:, 1] - z[:, 0]).cpu().numpy()
            scores += _scores(taken.share, f"{n} own samples", sure, marks, (seed, n == sizes[-1]))
        return Outcome(tuple(scores), f"{len(own)} {own.name}")

    def _sizes(self, most: int) -> list[int]:
        """The numbers of own samples that there are, and all of them where some number asks for more."""
        asked = sorted(set(self.own))
        fitting = [n for n in asked if n <= most]
        return fitting if fitting and len(fitting) == len(asked) else sorted({*fitting, most})


def _marked(marker: Marker, x: Tensor, group: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(samples with the marker on every one of half of the groups, [G] 1 for these)."""
    marks = torch.as_tensor(rng.permutation(-(-len(x) // group)) % 2)
    each = marks.repeat_interleave(group)[: len(x)].bool()
    return torch.where(each.reshape(-1, *[1] * (x.dim() - 1)).to(x.device), marker.drawn(x), x), marks


def _classifier(shape: torch.Size) -> nn.Module:
    """A network for maps (conv 1x1, conv 3x3 of stride 2, conv 1x1, dense) or vectors (one hidden layer)."""
    if len(shape) != 3:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), 64), nn.ReLU(), nn.Linear(64, 2))
    left = -(-shape[1] // 2) * -(-shape[2] // 2)
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * left, 2),
    )  # fmt: skip


def _accuracy(sure: np.ndarray, marks: Tensor) -> tuple[float, float, float]:
    right = int(((sure > 0) == marks.numpy().astype(bool)).sum())
    return share_of(right, len(sure))


def _scores(share: str, of: str, sure: np.ndarray, marks: Tensor, plan: tuple[int, bool]) -> list[Score]:
    """Accuracy and AUC; on raw inputs the marker is seen at a glance. plan: seed, whether these are the main
    scores."""
    seed, main = plan
    carry, n = marks.numpy().astype(bool), len(sure)
    accuracy = Score(share, of, "accuracy", *_accuracy(sure, marks), 0.5, 1.0, n, main)
    if carry.all() or not carry.any():  # of one sample
        return [accuracy]
    low, high = success.interval_of_auc(sure[carry], sure[~carry], numpy_key(seed, "interval"))
    return [accuracy, Score(share, of, "AUC", success.auc(sure[carry], sure[~carry]), low, high, 0.5, 1.0, n)]
