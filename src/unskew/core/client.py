"""What hooks are handed: the client they run for, and the facts both sides know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.network import Network
from unskew.core.trees import Tree, Weights
from unskew.core.values import Batch


@dataclass(frozen=True)
class Fed:
    """Facts of a run that are the same for everybody and known before round 1."""

    clients: int
    classes: int
    shape: tuple[int, ...]
    rounds: int
    epochs: int
    batch: int
    lr: float
    net: Network
    sizes: np.ndarray
    task: Any
    momentum: float = 0.0
    optimiser: str = "sgd"
    natural: bool = False
    names: tuple[str, ...] = ()
    seed: int = 0
    reserved: Batch | None = None
    """What the server held back for itself, if a Part asked for it."""
    shared: tuple[str, ...] = ()
    """The trained weights that leave a client: neither kept nor frozen."""

    @property
    def features(self) -> int:
        """D, the width of what the head receives."""
        return int(np.prod(self.net.shape_at("features")))


@dataclass(frozen=True)
class Client:
    """One client as its hooks see it.

    n: its number of samples; counts_C: its samples (of masks: its pixels) per class; steps: local steps it takes this round; lr: this
    round's learning rate; start: the weights it started from; down, mine: this Part's broadcast slice and private
    slice; noise: what this Part asked for, at this step. `id` is -1 for a sample that belongs to no client.
    """

    id: Tensor | int
    n: Tensor
    counts: Tensor
    steps: Tensor
    lr: float
    t: int
    start: Weights
    fed: Fed
    net: Network
    down: Tree = field(default_factory=dict)
    mine: Tree = field(default_factory=dict)
    round: Tree = field(default_factory=dict)
    noise: dict[str, Tensor] = field(default_factory=dict)
    data: Callable[[bool], Iterator[Batch]] | None = None
    chosen: Callable[[int, str, bool, bool], Batch] | None = None
    slopes: Callable[[Weights, Batch], Tensor] | None = None
    prepare: Callable[[Tensor], Tensor] | None = None

    @property
    def pull(self) -> Tensor:
        """What the coefficients of this round's gradients in w_t - w_S sum to, in learning rates: S for plain SGD.

        With momentum rho, (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho); for Adam, which has no closed form, S.
        """
        rho, S = self.fed.momentum, self.steps
        return (S - rho * (1 - rho**S) / (1 - rho)) / (1 - rho) if self.fed.optimiser == "sgd" else S

    def cut(self, name: str) -> str:
        """The block a cut names; "cut" stands for the model's own."""
        return self.net.check_cut(name)

    def run(self, w: Weights, x: Tensor, since: str | None = None, until: str | None = None) -> Tensor:
        """The model in evaluation mode, from the input or the cut `since` to the logits or the cut `until`."""
        return self.net.run(w, x, since=since, until=until)[0]

    def features(self, w: Weights, x: Tensor) -> Tensor:
        return self.net.features_of(w, x)

    def head(self, w: Weights, h: Tensor) -> Tensor:
        return self.net.head_of(w, h)

    def ready(self, x: Tensor) -> Tensor:
        """Raw inputs as this client sees inputs at test time (normalised by its statistics, say)."""
        return self.prepare(x) if self.prepare else x

    def maps(self, w: Weights, x: Tensor, cuts: Sequence[str]) -> dict[str, Tensor]:
        """The activations at several cuts of one pass in evaluation mode."""
        found: dict[str, Tensor] = {}

        def keep(cut: str, h: Tensor) -> Tensor:
            found[cut] = h
            return h

        self.net.run(w, x, taps=dict.fromkeys(cuts, keep))
        return found

    def slope(self, w: Weights, b: Batch) -> Tensor:
        """d/de of the batch's mean loss at x + e along, as the model trains; statistics of batches are not recorded."""
        if self.slopes is None:
            raise RuntimeError("slope() is for the hook `loss`")
        return self.slopes(w, b)

    def batches(self, raw: bool = False) -> Iterator[Batch]:
        """All the client's samples in turn, padded to equal batches; inputs as at test time unless `raw`."""
        if self.data is None:
            raise RuntimeError("this hook runs where no data are: batches() is for finish and for trips")
        return self.data(raw)

    def total(self, measure: Callable[[Batch], dict[str, Tensor]], raw: bool = False) -> dict[str, Tensor]:
        """The sum of `measure(batch)` over all the client's samples; multiply by `batch.weight` what must ignore padding."""
        sums: dict[str, Tensor] = {}
        for b in self.batches(raw):
            for name, value in measure(b).items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def class_sums(self, w: Weights) -> tuple[Tensor, Tensor]:
        """(sum of features [C, D], number of samples [C]) per class, over all the client's samples, in evaluation mode."""

        def sums(b: Batch) -> dict[str, Tensor]:
            y_BC = b.y * b.weight[:, None]
            return {"h": torch.einsum("bc,bd->cd", y_BC, self.features(w, b.x)), "n": y_BC.sum(0)}

        total = self.total(sums)
        return total["h"], total["n"]

    def sample(self, count: int, purpose: str, replace: bool = False, raw: bool = False) -> Batch:
        """`count` of the client's samples in random order, the same at every call with this purpose; only in trips.

        Inputs as at test time unless `raw`.
        """
        if self.chosen is None:
            raise RuntimeError("this hook runs where no single client's data are: sample() is for trips")
        return self.chosen(count, purpose, replace, raw)
