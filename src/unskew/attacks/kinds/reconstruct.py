"""Reconstruct: images from the activations that FLea's clients share (Xia et al., KDD 2024, figure 9c).

The adversary has the map f of every exchange, because it has the model, and samples x' of its own. It trains
decoders g by
    min_g mean |g(f(x')) - x'|^2
and applies them to the activations of clients: g(f(x)).
linear: the best affine map (ridge regression). deep: convolutions with ReLU, or two hidden layers, ours.
white-box: no training, but min_x |f(x) - f|^2 by L-BFGS, from the linear decoder's answer. class mean: the
mean of its own samples of the class, which is sent in clear, so that no activation is needed.
A client shares the same samples in every exchange, so one exchange discloses all. The score is that of the
attacked exchange in which ridge regression reads the adversary's own samples best.
FedMix's averages and FedData's inputs are compared, as sent, with each of their samples.
Differs from the paper: its linear decoder is a composition of convolutions, which ridge regression contains;
it is scored on shared samples, not on a test set, and trains on samples of no client, with early stopping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from unskew.attacks import decoders, success
from unskew.attacks.attack import Attack, Outcome, Score
from unskew.attacks.auxiliary_samples import Samples, unseen
from unskew.attacks.decoders import TrainingSet
from unskew.attacks.inversion import Search, white_box
from unskew.attacks.payloads import (
    Exchanges,
    Payloads,
    activations,
    at_cut,
    clearest,
    inputs,
    map_of,
    part_of,
)
from unskew.attacks.target_run import TargetRun
from unskew.core import module_inputs
from unskew.core.random_keys import numpy_key
from unskew.formats.setting_ranges import Count
from unskew.methods.feddata import FedData
from unskew.methods.fedmix import FedMix
from unskew.methods.flea import FLea

READS = ("flea/features", "fedmix/x", "naivemix/x", "feddata/x")

CLASS_MEAN, WHITE_BOX = "class mean", "white-box inversion"


@dataclass(frozen=True)
class Reconstruct(Attack):
    """Turns shared activations back into images."""

    own: Annotated[int, Ge(50), Le(1_000_000), "the most samples of its own that the attacker trains on"] = (
        2000
    )
    steps: Annotated[Count, "steps of 64 samples that a decoder trains at most, and of an inversion"] = 600
    exchanges: Exchanges = "every"
    name: ClassVar[str] = "reconstruct"
    asks: ClassVar[str] = "which images are behind it?"
    adversary: ClassVar[str] = "the server, and every client that is sent the same; all have the model"
    quick: ClassVar[Mapping[str, object]] = {"samples": 100, "own": 500, "steps": 100, "exchanges": "ends"}

    def refuse(self, target: TargetRun) -> str | None:
        part = part_of(target, FLea)
        if part is None and part_of(target, FedMix) is None and part_of(target, FedData) is None:
            return "its clients share neither activations of samples (FLea) nor inputs (FedMix, FedData)"
        if part is not None and (target.final.t < 2 or not part.trips):
            return "FLea shares activations after every round but the last, and this run has none"
        return None

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        if part := part_of(target, FLea):
            candidates = activations(target, part, self.exchanges)
        else:
            candidates = [inputs(target, part_of(target, FedMix) or part_of(target, FedData))]  # type: ignore[arg-type]
        every = torch.unique(torch.cat([taken.x for taken in candidates]), dim=0)
        own = unseen(target.federation, every, seed, most=self.own)
        taken = clearest(target, candidates, own, seed)
        rows = torch.as_tensor(numpy_key(seed, "attacked").permutation(len(taken.sent))[: self.samples])
        there, mine = target.natural(taken.x[rows]).float(), target.natural(own.x).float().to(taken.x.device)
        guess, scores = success.guess_of(mine), list[Score]()
        if taken.cut:
            answers = self._answers(target, taken, rows, own, mine, seed)
        else:
            answers = {"as sent": target.natural(taken.sent[rows]).float()}
        for of, answer in answers.items():
            scores += success.likeness_scores(
                taken.share, of, answer, there, guess, taken.client[rows], of != CLASS_MEAN
            )
        sheet = success.image_sheet(
            {"there": there, **answers, "mean of the attacker's own": guess.x.expand_as(there)}
        )
        read = f"{len(own)} {own.name}"
        if taken.cut:
            read += f"; read in {len(candidates)} exchanges, best after round {taken.t}"
        return Outcome(tuple(scores), read, {f"{taken.share} turned back into images": sheet})

    def _answers(
        self, target: TargetRun, taken: Payloads, rows: Tensor, own: Samples, mine: Tensor, seed: int
    ) -> dict[str, Tensor]:
        """The samples by each attacker, in natural units. mine: the attacker's own samples in these."""
        net, sent, shown = target.trainer.net, taken.sent[rows], at_cut(target, taken, own.x)
        training = TrainingSet(shown, mine.to(shown.device), self.steps, seed)
        means = class_means(mine, own.y.to(mine.device), target.run.fed.classes)
        answers = {
            "linear decoder": decoders.linear_decoder(training)(sent),
            "deep decoder": decoders.deep_decoder(training)(sent),
        }
        if not module_inputs.has_embedding(net.module):
            own_x = target.seen(own.x)
            first = decoders.linear_decoder(TrainingSet(shown, own_x, 1, 0))(sent)
            within = Search.like(own_x)
            with target.trainer.evaluating(), torch.enable_grad():
                x = [
                    white_box(map_of(net, taken), aims, begin, within, self.steps)
                    for aims, begin in zip(sent.split(64), first.split(64))
                ]
            answers[WHITE_BOX] = target.natural(target.unseen_by_model(torch.cat(x))).float()
        return answers | {CLASS_MEAN: means[taken.y[rows]]}


def class_means(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """[C, *shape]: the mean sample of each class; the mean of all for an empty class."""
    return torch.stack([x[y == c].mean(0) if bool((y == c).any()) else x.mean(0) for c in range(classes)])
