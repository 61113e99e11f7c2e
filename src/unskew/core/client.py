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

    x: inputs [B, *shape]. y: class distributions [B, C], or [B, C, H, W] where samples have masks; of a
    regression the numbers to learn, [B, 1].
    weight: [B], 1 for a sample and 0 for a row that only pads the batch.
    along: a direction in the space of x, [B, *shape], for a directional derivative (FedMix); it scales as x
    does.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    along: Tensor | None = None

    def mean(self, values_B: Tensor) -> Tensor:
        """The mean over the samples of this batch; padding does not count, even if it is infinite.

        Raises UsageError (E127) unless there is one number for each sample: others would be spread over
        samples in silence.
        """
        if values_B.shape != self.weight.shape:
            given = " x ".join(map(str, values_B.shape)) or "a single number"
            raise UsageError(
                "E127",
                f"batch.mean takes one number for each of the {len(self.weight)} samples; a hook gave it"
                f" {given}.",
            )
        return torch.where(self.weight > 0, values_B * self.weight, 0.0).sum() / self.weight.sum().clamp(
            min=1
        )

    def replace(self, **changes: Any) -> Batch:
        """The same batch with other values of the fields named."""
        return replace(self, **changes)

    def scaled(self, shift: Tensor, scale: Tensor) -> Batch:
        """The batch with inputs (x - shift) / scale; a direction is only divided."""
        return replace(
            self,
            x=(self.x - shift) / scale,
            along=None if self.along is None else (self.along / scale).expand_as(self.x),
        )


@dataclass(frozen=True)
class Out:
    """What one forward pass of a training step gives to the losses.

    logits: [B, C], or [B, C, H, W] for masks, or [B, 1] of a regression, after every Part's `logits`; raw:
    the same before them.
    features: [B, D], what the head received.
    own: the batch as it entered the model, before any `tap` changed its labels.
    before, after: by cut, the activation there before and after the Parts' `tap` changed it.
    """

    logits: Tensor
    raw: Tensor
    features: Tensor
    own: Batch
    before: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    after: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


NOISE_DEVIATIONS = 3.0
"""Deviations of its noise that a count must exceed, or it counts as none; noise alone does so once in 740
times."""

Measure: TypeAlias = Callable[[Batch], dict[str, Tensor]]
"""What of a batch is added up over a client's samples, by name."""


@dataclass(frozen=True)
class Fed:
    """Facts of a run that are known before round 1 and are the same for the server and all clients.

    clients: K. classes: C. shape: of one input. rounds: T. epochs: local passes a round, first_epochs: those
    of round 1 where they differ (0: they do not). batch: samples in a step.
    lr: the first round's learning rate. net: the model's structure. sizes: [K] training samples of each
    client.
    task: targets, loss and predictions. momentum, optimiser: of the clients' steps. natural: whether the data
    name the
    client of every sample. seed: what all randomness is keyed by. proximal: the mu of a term mu/2 ||w -
    w_t||^2 that the method's Parts add to the loss, 0 without one.
    reserved: samples the server held back for itself, if a Part asked for some (`Part.reserve`).
    shared: names of the trained weights that leave a client, those that are neither kept nor frozen. kept: of
    the trained weights that stay with it.
    sampled: the probability with which a client is asked in a round, independently of all others and of other
    rounds; None where clients are chosen in another way.
    metrics: the scores beside the task's own that were asked for.
    even: whether all steps of a round have one learning rate.
    sums: how many sums over its samples a client that is always asked releases in the run, beside its
    updates; counted where a Part protects single samples.
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
    even: bool = True
    sums: int = 0
    kept: tuple[str, ...] = ()

    def nothing_common(self, head: bool = False) -> str | None:
        """Why a Part cannot use the model that clients have in common, or its head, as its refusal says it;
        None if it can."""
        kept = [n for n in self.kept if n not in self.net.extra and (self.net.of_head(n) or not head)]
        what = "head" if head else "model"
        return f"it needs the {what} that clients have in common, and they keep '{kept[0]}'" if kept else None

    @property
    def passes(self) -> int:
        """How often a client that answers in every round goes through its samples, in all rounds together."""
        return (self.first_epochs or self.epochs) + (self.rounds - 1) * self.epochs

    @property
    def features(self) -> int:
        """D, the number of features that the head receives."""
        return int(np.prod(self.net.shape_at("features")))

    def kind_at(self, cut: str, kind: Kind) -> Kind:
        """What values taken at a cut of the model disclose: `kind`, or inputs where the activations there
        still are inputs."""
        return "inputs" if self.net.is_input_at(cut) else kind


@dataclass(frozen=True)
class Client:
    """One client as a Part's hooks see it in round t.

    id: its number, 0 to K-1; -1 stands for samples that belong to no client. n: its training samples. counts:
    [C] its samples of each class (of masks: its pixels). steps: the local steps it takes this round. lr: this
    round's learning rate, on which the settings lr_course and lr_warmup put a factor at each step. t: the
    round. start: the weights it began the round with. fed: facts of the run.
    net: the model's structure, this thread's own; the same as `fed.net`.
    down: the Part's slice as the server broadcast it. mine: the Part's private slice. round: what the Part's
    `begin`
    returned. noise: what the Part's `noise` asked for, drawn for this step.
    step: at a step, how many it has taken before in this round; 0 elsewhere.
    seen: the gradients that a step's earlier passes gave, "0" the first, where a Part climbs.
    pulled: `pull`, where the learning rate changes within the round.
    inputs: in the hook `scores`, the inputs [B, *shape] that the logits are of, as the model saw them; empty
    elsewhere.
    data, chosen, slopes, passes, prepare: the engine's side of `batches`, `sample`, `slope`, `run_training`
    and `ready`; None where a hook has no access to them. summed: what stands for passes in `total` where sums
    have noise. floor: a count among such sums that is not above it may be noise alone; 0 without noise.
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
    pulled: Tensor | None = None
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
        """The sum of the coefficients with which this round's gradients enter w_t - w_S, in units of the
        learning rate.

        Where it changes within the round, `pulled` holds the sum. S for plain SGD; with momentum rho, (S -
        rho (1 - rho^S) / (1 - rho)) / (1 - rho). Adam has no closed form: S.
        """
        if self.pulled is not None:
            return self.pulled
        rho, S = self.fed.momentum, self.steps
        if self.fed.optimiser != "sgd" or not rho:
            return S
        rest = -torch.expm1(
            S.double() * math.log(rho)
        )  # 1 - rho^S; float32 would lose it, for a rho near 1 all of it
        return ((S - rho * rest / (1 - rho)) / (1 - rho)).to(S.dtype)

    def cut(self, name: str) -> str:
        """The name of the block after which a cut lies; "cut" stands for the model's own."""
        return self.net.check_cut(name)

    def run(self, w: Weights, x: Tensor, since: str | None = None, until: str | None = None) -> Tensor:
        """Logits of the model with weights `w`, in evaluation mode.

        since: `x` is the activation at this cut, not the input. until: return the activation at this cut.
        """
        return self.net.run(w, x, since=since, until=until)[0]

    def features(self, w: Weights, x: Tensor) -> Tensor:
        """[B, D]: what the head receives for inputs `x`, in evaluation mode."""
        return self.net.features_of(w, x)

    def head(self, w: Weights, h: Tensor) -> Tensor:
        """[B, C]: logits for features `h`."""
        return self.net.head_of(w, h)

    def ready(self, x: Tensor) -> Tensor:
        """Raw inputs as this client sees them at test time (normalised with its own statistics, say)."""
        return self.prepare(x) if self.prepare else x

    def gradients(self, loss: Callable[[Weights], Tensor], w: Weights) -> Weights:
        """The gradients, by name, of loss(w), whose passes through the model take `run`, `features` or
        `head`; outside
        training steps: in `begin`, `starts`, `finish`, `personalise` and trips."""
        with self.net.differentiable():
            return torch.func.grad(loss)(w)

    def maps(self, w: Weights, x: Tensor, cuts: Sequence[str]) -> dict[str, Tensor]:
        """By cut, the activations of one pass in evaluation mode."""
        activations: dict[str, Tensor] = {}

        def keep(cut: str, h: Tensor) -> Tensor:
            activations[cut] = h
            return h

        self.net.run(w, x, taps=dict.fromkeys(cuts, keep))
        return activations

    def slope(self, w: Weights, b: Batch) -> Tensor:
        """The derivative of the batch's mean training loss along `b.along`; a scalar. Only in the hook
        `loss`.

        The pass runs in training mode, and batch normalisation does not record its statistics.
        """
        if self.slopes is None:
            raise RuntimeError("slope() is for the hook `loss`")
        return self.slopes(w, b)

    def run_training(
        self, w: Weights, x: Tensor, since: str | None = None, until: str | None = None
    ) -> Tensor:
        """As `run`, in training mode: a further pass of this step, which updates the running statistics once
        more.

        `x` has a row for every row of the step's batch; all passes of a step drop out the same units.
        `until="features"` gives what the head received. Only in the hook `loss`.
        """
        if self.passes is None:
            raise RuntimeError("run_training() is for the hook `loss`")
        return self.passes(w, x, since, until)

    def batches(self, raw: bool = False) -> Iterator[Batch]:
        """All the client's samples, in batches of equal size, the last one padded. Only in `begin`, `finish`
        and trips.

        raw: inputs as they are stored; else as at test time.
        """
        if self.data is None:
            raise RuntimeError("batches() is for the hooks begin, finish and personalise, and for trips")
        return self.data(raw)

    def total(self, measure: Measure, raw: bool = False) -> dict[str, Tensor]:
        """The sums of what `measure(batch)` returns over all the client's samples, where `batches` is
        allowed.

        Weight each term by `batch.weight`, so that padding does not count. Where a Part protects single
        samples, `measure` sees one at a time, all that it returns of one is clipped as one vector, and the
        sums have noise; `floor` is then three deviations of it.
        """
        if self.summed is not None:
            return self.summed(measure, raw)
        sums: dict[str, Tensor] = {}
        for b in self.batches(raw):
            for name, value in measure(b).items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def mean_of(self, total: Tensor, count: Tensor, unknown: float) -> Tensor:
        """total / count, or `unknown` where the count is not above `floor`, so that it may be noise alone."""
        known = count > self.floor
        return torch.where(known, total / torch.where(known, count, 1.0), unknown)

    def class_sums(self, w: Weights) -> tuple[Tensor, Tensor]:
        """By class, over all the client's samples: ([C, D] sum of features in evaluation mode, [C] number of
        samples).

        Both are 0 for a class whose number is not above `floor`, where there is noise.
        """

        def sums(b: Batch) -> dict[str, Tensor]:
            y_BC = b.y * b.weight[:, None]
            return {"h": torch.einsum("bc,bd->cd", y_BC, self.features(w, b.x)), "n": y_BC.sum(0)}

        total = self.total(sums)
        if not self.floor:
            return total["h"], total["n"]
        known_C = (total["n"] > self.floor).to(total["n"].dtype)
        return total["h"] * known_C[:, None], total["n"] * known_C

    def sample(self, count: int, purpose: str, replace: bool = False, raw: bool = False) -> Batch:
        """`count` of the client's samples drawn at random, the same at every call with this purpose. Only in
        trips and `personalise`.

        replace: draw with replacement; else at most as many as there are. raw: as in `batches`.
        """
        if self.chosen is None:
            raise RuntimeError("sample() is for trips and personalise, where a hook runs for a single client")
        return self.chosen(count, purpose, replace, raw)


def replace_fields(c: Client, **fields: Any) -> Client:
    """The client with these fields. As `dataclasses.replace`, but none of the others is read, which engines
    may note."""
    other = copy.copy(c)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other
