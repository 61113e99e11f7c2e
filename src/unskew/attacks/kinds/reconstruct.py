"""Reconstruct: images from the activations that FLea's clients share (Xia et al., KDD 2024, figure 9c).

The adversary has the model that made the activations f(x), and samples x' of its own. It trains decoders g by
    min_g mean |g(f(x')) - x'|^2
and applies them to the activations of clients: g(f(x)).
linear: without non-linearity, as in the paper's code. deep: convolutions with ReLU, ours. class mean: the
mean of its own samples of the class, which is sent in clear, so that no activation is needed.
Several inputs are decoded one by one, whole numbers as numbers.
FedMix's averages and FedData's inputs are compared, as sent, with each of their samples.
Differs from the paper: it is scored on shared samples, not on a test set, and trains on samples of no client,
with Adam and early stopping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from unskew.attacks import decoders, success
from unskew.attacks.attack import Attack, Outcome, Score
from unskew.attacks.auxiliary import unseen
from unskew.attacks.decoders import Lesson
from unskew.attacks.inversion import pieces, score_subject
from unskew.attacks.payloads import Taken, activations, inputs, part_of
from unskew.attacks.scene import Scene
from unskew.core.keys import numpy_key
from unskew.methods.feddata import FedData
from unskew.methods.fedmix import FedMix
from unskew.methods.flea import FLea

READS = ("flea/features", "fedmix/x", "naivemix/x", "feddata/x")
"""The attacked payloads, by their names in the ledger."""

CLASS_MEAN = "class mean"


@dataclass(frozen=True)
class Reconstruct(Attack):
    """Turns shared activations back into images."""

    own: Annotated[int, Ge(50), Le(1_000_000), "the most samples of its own that the attacker trains on"] = (
        2000
    )
    steps: Annotated[int, Ge(1), Le(1_000_000), "steps of 64 samples that a decoder trains at most"] = 600
    name: ClassVar[str] = "reconstruct"
    one_input: ClassVar[bool] = False
    asks: ClassVar[str] = "which images are behind it?"
    adversary: ClassVar[str] = "the server, and every client that is sent the same; all have the model"
    quick: ClassVar[Mapping[str, object]] = {"samples": 100, "own": 500, "steps": 100}

    def refuse(self, scene: Scene) -> str | None:
        part = part_of(scene, FLea)
        if part is None and part_of(scene, FedMix) is None and part_of(scene, FedData) is None:
            return "its clients share neither activations of samples (FLea) nor inputs (FedMix, FedData)"
        if part is not None and (scene.final.t < 2 or not part.trips):
            return "FLea shares activations after every round but the last, and this run has none"
        return None

    def attempt(self, scene: Scene, seed: int) -> Outcome:
        if part := part_of(scene, FLea):
            taken = activations(scene, part)
        else:
            taken = inputs(scene, part_of(scene, FedMix) or part_of(scene, FedData))  # type: ignore[arg-type]
        own = unseen(scene.run.federation, taken.x, seed, most=self.own)
        rows = torch.as_tensor(numpy_key(seed, "attacked").permutation(len(taken.sent))[: self.samples])
        layout = scene.run.federation.layout
        there = pieces(layout, scene.natural(taken.x[rows]).float())
        mine = pieces(layout, scene.natural(own.x).float().to(taken.x.device))
        sent = pieces(layout, scene.natural(taken.sent[rows]).float()) if not taken.cut else {}
        shown = at_cut(scene, taken, own.x) if taken.cut else taken.sent
        scores, sheets = list[Score](), dict[str, Any]()
        for name, guess in success.guesses(mine, there).items():
            x = there[name]
            if taken.cut:
                answers = self._decoded(
                    Lesson(shown, mine[name].to(shown.device), self.steps, seed), taken.sent[rows]
                )
                answers[CLASS_MEAN] = class_means(mine[name], own.y.to(x.device), scene.run.fed.classes)[
                    taken.y[rows]
                ]
            else:
                answers = {"as sent": sent[name]}
            scores += _scores(taken.share, name, answers, x, guess)
            sheet = success.image_sheet(
                {"there": x, **answers, "mean of the attacker's own": guess.x.expand_as(x)}
            )
            sheets |= {f"{score_subject(name, taken.share)} turned back into images": sheet} if sheet else {}
        return Outcome(tuple(scores), f"{len(own)} {own.name}", {"images": sheets} if sheets else {})

    def _decoded(self, lesson: Lesson, sent: Tensor) -> dict[str, Tensor]:
        """The reconstructions of activations by each decoder that is trained on the lesson."""
        return {
            "linear decoder": decoders.linear_decoder(lesson)(sent),
            "deep decoder": decoders.deep_decoder(lesson)(sent),
        }


def _scores(
    share: str, name: str, answers: Mapping[str, Tensor], there: Tensor, guess: success.Guess
) -> Iterator[Score]:
    """The likeness of answers to the samples, or to the input of this name."""
    for of, x in answers.items():
        yield from success.likeness_scores(
            share, score_subject(name, of), x, there, guess, main=of != CLASS_MEAN
        )


def at_cut(scene: Scene, taken: Taken, x: Tensor) -> Tensor:
    """Activations [N, ...] of stored samples, with the model and the cut of other activations."""
    with scene.trainer.evaluating():
        net = scene.trainer.net
        until = net.check_cut(taken.cut)
        return torch.cat([net.run(taken.weights, scene.seen(p), until=until)[0] for p in x.split(256)])


def class_means(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """[C, *shape]: the mean sample of each class; the mean of all for an empty class."""
    return torch.stack([x[y == c].mean(0) if bool((y == c).any()) else x.mean(0) for c in range(classes)])
