"""What hooks receive: the facts of the run (Fed), the client (Client), the samples of a step (Batch) and the
outputs of its forward pass (Out).

Letters: B batch, C classes, D features, H x W pixels, K clients, S local steps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unskew.core.network import Network
from unskew.core.shares import Kind
from unskew.core.trees import Tree, Weights
from unskew.errors import UsageError
from unskew.tasks.metrics import Metric
from unskew.tasks.task import Task


@dataclass(frozen=True)
class Batch:
    """The samples of one step.

    x: inputs [B, *shape]. y: class distributions [B, C], or [B, C, H, W] for masks; in a regression the
    target numbers [B, 1]. weight: [B], 1 for a sample and 0 for a row of padding. along: optional input-space
    direction [B, *shape] for a directional derivative (FedMix). importance: [B], the user's weight of each
    sample in a training step, by which means are weighted; None for equal ones.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    along: Tensor | None = None
    importance: Tensor | None = None

    def mean(self, values_B: Tensor) -> Tensor:
        """The mean of one value per sample, sum_i v_i x_i / sum_i v_i with the importance v of samples;
        padding does not count, even if it is infinite.

        Raises UsageError (E127) for any other shape, which would broadcast silently.
        """
        if values_B.shape != self.weight.shape:
            shape = " x ".join(map(str, values_B.shape)) or "a single number"
            raise UsageError(
                "E127",
                f"batch.mean takes one number for each of the {len(self.weight)} samples; a hook gave it"
                f" {shape}.",
            )
        weight, least = self.weight, 1.0
        if self.importance is not None:
            weight, least = weight * self.importance, torch.finfo(weight.dtype).tiny
        return torch.where(weight > 0, values_B * weight, 0.0).sum() / weight.sum().clamp(min=least)

    def replace(self, **changes: Any) -> Batch:
        """A copy of the batch with these fields changed."""
        return replace(self, **changes)

    def scaled(self, shift: Tensor, scale: Tensor) -> Batch:
        """The batch with inputs (x - shift) / scale; `along` is only divided."""
        return replace(
            self,
            x=(self.x - shift) / scale,
            along=None if self.along is None else (self.along / scale).expand_as(self.x),
        )


@dataclass(frozen=True)
class Out:
    """The outputs of one forward pass of a training step, for the losses.

    logits: [B, C], [B, C, H, W] for masks, or [B, 1] in a regression, after every Part's `logits`; raw: the
    logits before them. features: [B, D], the input of the head. own: the batch as it entered the model,
    before any `tap` changed its labels. before, after: by cut, the activation before and after the Parts'
    `tap` changed it.
    """

    logits: Tensor
    raw: Tensor
    features: Tensor
    own: Batch
    before: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    after: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


NOISE_DEVIATIONS = 3.0
"""A noisy count must exceed this many standard deviations of its noise, or it is taken as 0; noise alone
exceeds it once in 740 times."""

Measure: TypeAlias = Callable[[Batch], dict[str, Tensor]]
"""Values of a batch, by name, that are summed over a client's samples."""


@dataclass(frozen=True)
class Fed:
    """Facts of a run that are known before round 1 and are equal at the server and all clients.

    clients: K. classes: C. shape: of one input. rounds: T. epochs: local epochs per round; first_epochs:
    those of round 1, 0 if they do not differ. batch: samples per step. lr: the first round's learning rate.
    net: the model's structure. sizes: [K], the number of training samples of each client. task: targets, loss
    and predictions. momentum, optimiser: of the clients' steps. natural: whether the data name the client of
    every sample. seed: of all random numbers. proximal: the mu of a term mu/2 ||w - w_t||^2 that the method's
    Parts add to the loss, 0 without one. reserved: the server's own samples, if a Part asks for some
    (`Part.reserve`). shared: names of the trained weights that leave a client, neither kept nor frozen. kept:
    names of those that stay with it. sampled: the probability with which each client takes part in a round,
    independently of other clients and rounds; None if clients are chosen in another way. metrics: the
    requested scores in addition to the task's own. sums: if a Part protects single samples, the number of
    sums over its samples that a client releases if it takes part in every round, in addition to its updates.
    weighted: whether samples have weights in the loss.
    """

    clients: int
    classes: int
    shape: tuple[int, ...]
    rounds: int
    epochs: int
    batch: int
    lr: float
    net: Network
    sizes: np.ndarray[Any, Any]
    task: Task
    momentum: float = 0.0
    optimiser: str = "sgd"
    natural: bool = False
    seed: int = 0
    proximal: float = 0.0
    reserved: Batch | None = None
    shared: tuple[str, ...] = ()
    sampled: float | None = None
    first_epochs: int = 0
    metrics: tuple[Metric, ...] = ()
    sums: int = 0
    kept: tuple[str, ...] = ()
    weighted: bool = False

    @property
    def usual_loss(self) -> bool:
        """Whether clients minimise the task's loss, in which all classes have the weight 1."""
        return all(getattr(self.task, name, None) is None for name in ("weights_C", "own_loss"))

    def nothing_common(self, head: bool = False) -> str | None:
        """Why a Part cannot use the model, or its head, as one that all clients share: the text of its
        refusal; None if it can."""
        kept = [n for n in self.kept if n not in self.net.extra and (self.net.of_head(n) or not head)]
        what = "head" if head else "model"
        return f"it needs the {what} that clients have in common, and they keep '{kept[0]}'" if kept else None

    @property
    def passes(self) -> int:
        """The number of epochs, over all rounds, of a client that takes part in every round."""
        return (self.first_epochs or self.epochs) + (self.rounds - 1) * self.epochs

    @property
    def features(self) -> int:
        """D, the number of inputs of the head."""
        return int(np.prod(self.net.shape_at("features")))

    def kind_at(self, cut: str, kind: Kind) -> Kind:
        """What values at a cut of the model disclose: `kind`, or "inputs" if no layer precedes the cut."""
        return "inputs" if self.net.is_input_at(cut) else kind


@dataclass(frozen=True)
class Client:
    """One client as a Part's hooks see it in round t.

    id: its number, 0 to K-1; -1 for samples that belong to no client. n: the number of its training samples.
    counts: [C] its samples of each class (with masks: its pixels). steps: its number of local steps in this
    round. lr: this round's learning rate. t: the round. start: the weights with which it began the round.
    fed: facts of the run. net: the model's structure, equal to `fed.net`. down: the Part's slice as the
    server broadcast it. mine: the Part's private slice. round: the result of the Part's `begin`. noise: this
    step's draws of the Part's `noise`. step: the number of steps before this one in the round; 0 outside
    steps. seen: for a Part that climbs, the gradients of the step's earlier passes: "0" is the first.
    inputs: in the hook `scores`, the inputs [B, *shape] of the logits as the model saw them; else empty.

    The engine implements `batches`, `sample`, `slope`, `run_training` and `ready` by data, chosen, slopes,
    passes and prepare, which are None in hooks without access. summed: replaces the pass in `total` if sums
    have noise. floor: a count in such sums that is not above it may be noise only; 0 without noise.
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
    down: Tree = field(default_factory=dict[str, Any])
    mine: Tree = field(default_factory=dict[str, Any])
    round: Tree = field(default_factory=dict[str, Any])
    noise: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    step: Tensor = field(default_factory=lambda: torch.zeros(()))
    seen: Tree = field(default_factory=dict[str, Any])
    inputs: Tensor = field(default_factory=lambda: torch.zeros(0))
    data: Callable[[bool], Iterator[Batch]] | None = None
    chosen: Callable[[int, str, bool, bool], Batch] | None = None
    slopes: Callable[[Weights, Batch], Tensor] | None = None
    passes: Callable[[Weights, Tensor, str | None, str | None], Tensor] | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    summed: Callable[[Measure, bool], dict[str, Tensor]] | None = None
    floor: float = 0.0

    @property
    def pull(self) -> Tensor:
        """The sum of the coefficients of this round's gradients in w_t - w_S, in units of the learning rate.

        S for plain SGD; (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho) with momentum rho; S for Adam, which
        has no closed form.
        """
        rho, S = self.fed.momentum, self.steps
        if self.fed.optimiser != "sgd" or not rho:
            return S
        rest = -torch.expm1(S.double() * math.log(rho))  # 1 - rho^S, which float32 rounds to 0 for rho near 1
        return ((S - rho * rest / (1 - rho)) / (1 - rho)).to(S.dtype)

    def cut(self, name: str) -> str:
        """The name of the block after which a cut lies; "cut" is the model's default."""
        return self.net.check_cut(name)

    def run(self, w: Weights, x: Tensor, since: str | None = None, until: str | None = None) -> Tensor:
        """The logits of the model with weights `w`, in evaluation mode.

        since: `x` is the activation at this cut instead of the input. until: return the activation at this
        cut instead of the logits.
        """
        return self.net.run(w, x, since=since, until=until)[0]

    def features(self, w: Weights, x: Tensor) -> Tensor:
        """The features [B, D], the input of the head, for inputs `x`, in evaluation mode."""
        return self.net.features_of(w, x)

    def head(self, w: Weights, h: Tensor) -> Tensor:
        """The logits [B, C] for features `h`."""
        return self.net.head_of(w, h)

    def ready(self, x: Tensor) -> Tensor:
        """Raw inputs as this client sees them at test time (normalised with its own statistics, say)."""
        return self.prepare(x) if self.prepare else x

    def gradients(self, loss: Callable[[Weights], Tensor], w: Weights) -> Weights:
        """The gradients of loss(w), by name. The loss calls the model by `run`, `features` or `head`. Only
        outside training steps: in `begin`, `starts`, `finish`, `personalise` and trips."""
        with self.net.differentiable():
            return torch.func.grad(loss)(w)

    def maps(self, w: Weights, x: Tensor, cuts: Sequence[str]) -> dict[str, Tensor]:
        """The activations of one pass in evaluation mode, by cut."""
        activations: dict[str, Tensor] = {}

        def keep(cut: str, h: Tensor) -> Tensor:
            activations[cut] = h
            return h

        self.net.run(w, x, taps=dict.fromkeys(cuts, keep))
        return activations

    def slope(self, w: Weights, b: Batch) -> Tensor:
        """The derivative of the batch's mean training loss along `b.along`, a scalar. Only in the hook
        `loss`.

        The pass runs in training mode, and batch normalisation does not record its statistics.
        """
        if self.slopes is None:
            raise RuntimeError("slope() is for the hook `loss`")
        return self.slopes(w, b)

    def run_training(
        self, w: Weights, x: Tensor, since: str | None = None, until: str | None = None
    ) -> Tensor:
        """As `run`, but in training mode: a further pass of this step, which also updates the running
        statistics. Only in the hook `loss`.

        `x` has a row for every row of the step's batch. All passes of a step drop out the same units.
        `until="features"` returns the input of the head.
        """
        if self.passes is None:
            raise RuntimeError("run_training() is for the hook `loss`")
        return self.passes(w, x, since, until)

    def batches(self, raw: bool = False) -> Iterator[Batch]:
        """All the client's samples, in batches of equal size, the last one padded. Only in `begin`, `finish`,
        `personalise` and trips. raw: inputs as they are stored, instead of as at test time."""
        if self.data is None:
            raise RuntimeError("batches() is for the hooks begin, finish and personalise, and for trips")
        return self.data(raw)

    def total(self, measure: Measure, raw: bool = False) -> dict[str, Tensor]:
        """The sums of `measure(batch)` over all the client's samples. Allowed where `batches` is.

        Weight each term by `batch.weight` so that padding does not count. If a Part protects single samples,
        `measure` receives one sample at a time, its values are clipped as one vector, and the sums have
        noise; `floor` is then three standard deviations of the noise.
        """
        if self.summed is not None:
            return self.summed(measure, raw)
        sums: dict[str, Tensor] = {}
        for b in self.batches(raw):
            for name, value in measure(b).items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def mean_of(self, total: Tensor, count: Tensor, unknown: float) -> Tensor:
        """total / count, or `unknown` where the count is not above `floor` and may be noise only."""
        known = count > self.floor
        return torch.where(known, total / torch.where(known, count, 1.0), unknown)

    def class_sums(self, w: Weights) -> tuple[Tensor, Tensor]:
        """Sums by class over all the client's samples: ([C, D] features in evaluation mode, [C] number of
        samples). With noise, both are 0 for a class whose number is not above `floor`."""

        def sums(b: Batch) -> dict[str, Tensor]:
            y_BC = b.y * b.weight[:, None]
            return {"h": torch.einsum("bc,bd->cd", y_BC, self.features(w, b.x)), "n": y_BC.sum(0)}

        total = self.total(sums)
        if not self.floor:
            return total["h"], total["n"]
        known_C = (total["n"] > self.floor).to(total["n"].dtype)
        return total["h"] * known_C[:, None], total["n"] * known_C

    def sample(self, count: int, purpose: str, replace: bool = False, raw: bool = False) -> Batch:
        """A random draw of `count` of the client's samples, equal at every call with this purpose. Only in
        trips and `personalise`.

        replace: draw with replacement; else the draw has at most as many samples as the client. raw: as in
        `batches`.
        """
        if self.chosen is None:
            raise RuntimeError("sample() is for trips and personalise, where a hook runs for a single client")
        return self.chosen(count, purpose, replace, raw)


def replace_fields(c: Client, **fields: Any) -> Client:
    """A copy of the client with these fields changed. Unlike `dataclasses.replace` it does not read the other
    fields, because the engine may record which fields a hook reads."""
    other = copy.copy(c)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other
