"""One training step of all lanes of a chunk: the loss, a backward pass, the Parts' changes of gradients, the
optimiser.

A step reads only tensors on the device and changes them in place, so that a GPU can replay it
(`cuda_graphs`). Letters: B batch, G lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unskew.core.part import Part
from unskew.core.trees import Tree, Weights, flat_tree, tree_map
from unskew.errors import UsageError
from unskew.round.chunks import Step
from unskew.round.clients import Broadcast, Clients
from unskew.round.lane_views import Axis, LaneViews
from unskew.round.layer_kernels import DropoutMasks, Kernels
from unskew.round.loss import ClientLoss, StepInputs
from unskew.round.noise import NoiseTables
from unskew.round.optimisers import Optimiser
from unskew.round.sample_privacy import PerSampleGradients
from unskew.round.samples import Samples, StreamedSamples, on_device

NO_GRADIENT = (
    "no gradient of the loss reaches a weight: the model or a hook (`batch`, `tap`, `logits`) returns values"
    " that none passes, such as those of argmax() or detach()."
)


@dataclass
class LaneState:
    """What the steps of a chunk read and change.

    weights, lane_table: stacked over lanes, see `lane_views.lane_table`. Weights that are frozen in the model
    are only in `LaneViews.constants`. loss_sum: [G], each lane's training loss summed over samples.
    """

    weights: Weights
    lane_table: Tree
    noise: NoiseTables
    optimiser: Optimiser
    loss_sum: Tensor

    def start_optimiser(self, clients: Clients) -> None:
        """Initialise the optimiser's state for the weights at which training starts."""
        lanes = self.lane_table["steps"] if clients.hooks["holds"] else None
        self.optimiser.start([self.weights[n] for n in clients.learnt], lanes)


class Feed(NamedTuple):
    """The inputs of one step, on the device.

    rows: [B*G], indices of the step's samples; for each place in the batch, one client after another.
    local: [G], the number of steps that each lane has taken before. weight: [G, B], 1 for a sample and 0 for
    padding; None without padding. dropout: the uniform numbers of each dropout layer, [G, B, ...].
    x: the step's samples, [B*G, ...], if they were read from a disk; None if all are on the device.
    """

    rows: Tensor
    local: Tensor
    weight: Tensor | None
    dropout: tuple[Tensor, ...]
    x: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that differ between steps, in a fixed order."""
        return [t for t in (self.rows, self.local, self.weight, self.x) if t is not None] + [*self.dropout]

    def clone(self) -> Feed:
        """A copy in memory of its own."""
        weight, x = (None if t is None else t.clone() for t in (self.weight, self.x))
        return Feed(self.rows.clone(), self.local.clone(), weight, tuple(t.clone() for t in self.dropout), x)

    def inputs(self, samples: Samples) -> Tensor:
        """The step's samples, [B*G, ...]."""
        return samples.x.index_select(0, self.rows) if self.x is None else self.x


@dataclass(frozen=True)
class Steps:
    """The steps of a chunk and everything that they read.

    plan: the steps in order. frozen: batch normalisation uses its running statistics in all lanes.
    """

    clients: Clients
    axis: Axis
    start: Broadcast
    plan: Sequence[Step]
    dropout: DropoutMasks
    frozen: bool
    state: LaneState

    def feeds(self) -> Iterator[Feed]:
        """The feed of each step, in order. Row numbers and weights of all steps are copied to the device at
        once; dropout's numbers and samples from a disk follow step by step."""
        plan, device, samples = self.plan, self.clients.device, self.clients.samples.x
        by_sample = [step.rows_GB.T.ravel() for step in plan]
        rows = on_device(np.concatenate(by_sample), device)
        read = samples.ahead(by_sample) if isinstance(samples, StreamedSamples) else repeat(None)
        local = on_device(np.concatenate([step.local_G for step in plan]), device)
        masks = [step.weight_GB.ravel() for step in plan if step.weight_GB is not None]
        weights = iter(
            on_device(np.concatenate(masks), device).split([len(m) for m in masks]) if masks else ()
        )
        by_step = zip(
            plan, rows.split([step.rows_GB.size for step in plan]), local.split([step.width for step in plan])
        )
        for (step, index, before), x in zip(by_step, read):
            weight = None if step.weight_GB is None else next(weights).view(step.width, step.size)
            yield Feed(
                index,
                before,
                weight,
                tuple(on_device(numbers, device) for numbers in self.dropout.at(step)),
                x,
            )


def with_resting(
    clients: Clients, axis: Axis, views: LaneViews, plan: Sequence[Step], table: Tree
) -> Sequence[Step]:
    """The steps with the weights that some Part's `holds` keeps constant in all their lanes, whose gradients
    and changes need not be computed. None rest if a Part reads gradients, which may be of all weights.

    A value of `holds` is read here, so there are no such weights on a GPU, which would wait.
    """
    hooks = clients.hooks
    reads_gradients = hooks["grad"] or hooks["carry"] or hooks["perturb"] or clients.apart
    if not plan or not hooks["holds"] or reads_gradients or clients.device.type != "cpu":
        return plan
    local_SG = np.zeros((len(plan), max(step.width for step in plan)), dtype=np.int64)
    for s, step in enumerate(plan):
        local_SG[s, : step.width] = step.local_G
    steps = torch.as_tensor(local_SG if axis.folded else local_SG[:, 0])
    resting = [set[str]() for _ in plan]
    for p in hooks["holds"]:

        def at(local: Tensor, p: Part = p) -> dict[str, Tensor]:
            return axis.map(views.holds(p), table | {"step": local})

        for name, stays in torch.func.vmap(at)(steps).items():
            for s, step in enumerate(plan):
                if bool(stays[s].reshape(-1)[: step.active].all()):
                    resting[s].add(name)
    return [replace(step, resting=frozenset(names)) for step, names in zip(plan, resting)]


class LaneStep:
    """A function of a `Step` and its `Feed` that takes the step in all lanes: it changes their
    `LaneState`."""

    def __init__(self, clients: Clients, axis: Axis, views: LaneViews, kernels: Kernels, state: LaneState):
        self.clients, self.axis, self.views, self.kernels, self.state = clients, axis, views, kernels, state
        self.loss = axis.loss(ClientLoss(clients, views, kernels))
        self.apart = (
            PerSampleGradients(clients, views, state.noise.laws, state.noise.names) if clients.apart else None
        )

    def __call__(self, step: Step, feed: Feed) -> None:
        axis, samples = self.axis, self.clients.samples
        leaves = self._leaves(step)
        step_inputs = self._inputs(step, feed, axis.targets(samples.y.index_select(0, feed.rows), step))
        self.kernels.padded = axis.padded(step)
        if self.apart:
            self._step_apart(step, feed, leaves, step_inputs)
            return
        x = axis.inputs(feed.inputs(samples), step)
        loss, grads, step_inputs = self._gradients(step, leaves, x, step_inputs)
        with torch.no_grad():
            self._descend(step, feed, leaves, grads, step_inputs)
            samples_G = step_inputs.weight.sum(-1).reshape(-1)  # without an axis of lanes it is a scalar
            self.state.loss_sum[: step.active] += (loss.detach().reshape(-1) * samples_G)[: step.active]

    def gradients(self, step: Step, feed: Feed) -> Sequence[Tensor | None]:
        """The gradients of the trained weights at this step, without taking it: no weight and no running
        statistic changes."""
        axis, samples, leaves = self.axis, self.clients.samples, self._leaves(step)
        leaves |= {n: leaves[n].clone() for n in self.clients.fed.net.statistics}
        inputs = self._inputs(step, feed, axis.targets(samples.y.index_select(0, feed.rows), step))
        self.kernels.padded = axis.padded(step)
        return self._gradients(step, leaves, axis.inputs(feed.inputs(samples), step), inputs)[1]

    def _gradients(
        self, step: Step, leaves: Weights, x: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Sequence[Tensor | None], StepInputs]:
        """(loss, gradients of the trained weights, inputs), at the weights that a Part's `perturb` returns,
        if any; the inputs then also hold the gradients of earlier passes."""
        for p in self.clients.hooks["perturb"]:
            if p.climbs:
                return self._climbed(p, leaves, x, inputs)
            point = self._perturbed(p, {}, leaves, inputs)
            if hidden := self.clients.hidden[p.name]:
                return *self._gradients_apart(point, hidden, leaves, x, inputs), inputs
            return *self._gradients_at(point, x, inputs), inputs
        return *self._gradients_at(leaves, x, inputs, step.resting), inputs

    def _gradients_apart(
        self, point: Weights, hidden: Collection[str], leaves: Weights, x: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """(loss, gradients) at `point`. Weights `hidden`, which other Parts keep at the client, have
        their gradients and running statistics from a second pass, at the step's weights."""
        own = {n for n in self.clients.fed.net.statistics if n in hidden}
        copies = {n: leaves[n].clone() for n in self.clients.fed.net.statistics}
        loss, grads = self._gradients_at(point | {n: copies[n] for n in own}, x, inputs)
        common = {n: t for n, t in copies.items() if n not in own}
        apart = self._gradients_at(leaves | common, x, inputs)[1]
        return loss, [g1 if n in hidden else g for n, g, g1 in zip(self.clients.learnt, grads, apart)]

    def _climbed(
        self, p: Part, leaves: Weights, x: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Sequence[Tensor | None], StepInputs]:
        """`_gradients` for a Part that climbs. The loss, the running statistics and the gradients of weights
        that other Parts keep at the client are those of the first pass, at the step's weights."""
        loss, first = self._gradients_at(leaves, x, inputs)
        grads, hidden = first, self.clients.hidden[p.name]
        seen: Tree = {}
        for climb in range(p.climbs):
            seen = seen | {str(climb): self._whole(leaves, grads)}
            inputs = inputs._replace(lane=inputs.lane | {"seen": seen})
            point = self._perturbed(p, seen[str(climb)], leaves, inputs)
            # only the first pass updates the running statistics
            point |= {n: leaves[n].clone() for n in self.clients.fed.net.statistics}
            grads = self._gradients_at(point, x, inputs)[1]
        grads = [g1 if n in hidden else g for n, g, g1 in zip(self.clients.learnt, grads, first)]
        return loss.detach(), grads, inputs

    def _gradients_at(
        self, leaves: Weights, x: Tensor, inputs: StepInputs, resting: frozenset[str] = frozenset()
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """(loss, gradients of the trained weights) at these weights; None for those that rest. Raises
        UsageError (E127) for a loss without gradient."""
        loss = self.loss(leaves, x, inputs)
        if not loss.requires_grad:
            raise UsageError("E127", NO_GRADIENT)
        moving = [n for n in self.clients.learnt if n not in resting]
        if not moving:
            return loss, [None for _ in self.clients.learnt]
        grads = dict(
            zip(moving, torch.autograd.grad(loss.sum(), [leaves[n] for n in moving], allow_unused=True))
        )
        return loss, [grads.get(n) for n in self.clients.learnt]

    def _perturbed(self, p: Part, g: Weights, leaves: Weights, inputs: StepInputs) -> Weights:
        """The weights at which this Part's `perturb` has the gradient taken. Raises UsageError (E127) if it
        leaves out a trained weight."""
        with torch.no_grad():
            w = self.axis.map(self.views.perturb(p), g, leaves, inputs.lane, inputs.noise.get(p.name, {}))
        if missing := [n for n in self.clients.learnt if n not in w]:
            text = f"'{p.name}' does not say where the gradient of '{missing[0]}' is taken"
            raise UsageError("E127", f"{text}; `perturb` returns all weights that learn, changed or not.")
        return leaves | {n: w[n].detach().requires_grad_() for n in self.clients.learnt}

    def _whole(self, leaves: Weights, grads: Sequence[Tensor | None]) -> Weights:
        """The gradients by name; zeros for weights that the loss does not reach."""
        return {
            n: torch.zeros_like(leaves[n]) if v is None else v for n, v in zip(self.clients.learnt, grads)
        }

    def _step_apart(self, step: Step, feed: Feed, leaves: Weights, inputs: StepInputs) -> None:
        """Take the step from the separate gradient of every sample."""
        assert self.apart is not None
        loss_G, grads = self.apart(step, feed.rows, feed.inputs(self.clients.samples), leaves, inputs)
        fit = self.axis.fit
        with torch.no_grad():
            self._descend(step, feed, leaves, [fit(grads[n]) for n in self.clients.learnt], inputs)
            self.state.loss_sum[: step.active] += loss_G[: step.active]

    def _leaves(self, step: Step) -> Weights:
        """The weights of this step's lanes; the trained ones are leaves of the autograd graph."""
        leaves = {n: self.axis.first(t, step.width) for n, t in self.state.weights.items()}
        if step.width > step.active:  # the pass updates copies, so that idle lanes keep their statistics
            leaves |= {n: leaves[n].clone() for n in self.clients.fed.net.statistics}
        return leaves | {n: leaves[n].detach().requires_grad_() for n in self.clients.learnt}

    def _inputs(self, step: Step, feed: Feed, y: Tensor) -> StepInputs:
        """The targets y, weights of samples, noise, dropout and lane table of this step."""
        axis, weight = self.axis, feed.weight
        if weight is None:
            weight = torch.ones((step.width, step.size), device=y.device)
        noise = tree_map(axis.fit, self.state.noise.at(step, feed.local))
        lane = tree_map(lambda t: axis.first(t, step.width), self.state.lane_table) | {
            "step": axis.fit(feed.local)
        }
        every = self.clients.samples.importance
        importance = () if every is None else (axis.targets(every.index_select(0, feed.rows), step),)
        return StepInputs(y, axis.fit(weight), noise, tuple(map(axis.fit, feed.dropout)), lane, importance)

    def _descend(
        self, step: Step, feed: Feed, leaves: Weights, grads: Sequence[Tensor | None], inputs: StepInputs
    ) -> None:
        """Let the Parts change the gradients, update the weights of the lanes that take this step, and let
        the Parts carry values to the next."""
        first_lanes, active, state = self.axis.first, step.active, self.state
        g = self._whole(leaves, grads)
        for p in self.clients.hooks["grad"]:
            g = self.axis.map(self.views.grad(p), g, leaves, inputs.lane, inputs.noise.get(p.name, {}))
        moving = [(i, n) for i, n in enumerate(self.clients.learnt) if n not in step.resting]
        learnt = [n for _, n in moving]
        w = [first_lanes(state.weights[n], active) for n in learnt]
        groups = [[first_lanes(group[i], active) for i, _ in moving] for group in state.optimiser.state]
        constant = self._held_tensors(step, learnt, [w, *groups], inputs)
        if w:
            gradients = [first_lanes(g[n], active) for n in learnt]
            state.optimiser.step(w, gradients, groups, feed.local[:active])
        for t, before, stays in constant:
            t.copy_(torch.where(stays, before, t))
        if step.width > active:  # the copies of `_leaves` hold the new running statistics
            for n in self.clients.fed.net.statistics:
                state.weights[n][:active] = leaves[n][:active]
        for p in self.clients.hooks["carry"]:
            self._carry(p, step, g, inputs)

    def _carry(self, p: Part, step: Step, g: Weights, inputs: StepInputs) -> None:
        """Replace leaves of `c.round` by what the Part's `carry` returns, in the lanes that take the step."""
        first_lanes, state = self.axis.first, self.state
        w = {n: first_lanes(t, step.width) for n, t in state.weights.items()}
        result = self.axis.map(self.views.carry(p), g, w, inputs.lane, inputs.noise.get(p.name, {}))
        # copies, because a new value may be the old value of another leaf
        values = {path: first_lanes(t, step.active).clone() for path, t in flat_tree(result).items()}
        places = flat_tree(state.lane_table["round"].get(p.name, {}))
        for path, t in values.items():
            first_lanes(places[path], step.active).copy_(t)

    def _held_tensors(
        self, step: Step, names: Sequence[str], groups: Sequence[Sequence[Tensor]], inputs: StepInputs
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each tensor that a Part's `holds` keeps constant: (the tensor, a copy, the lanes in which it
        stays). groups: the weights of these names and the optimiser's state, each in the order of names."""
        tensors: list[tuple[Tensor, Tensor, Tensor]] = []
        for p in self.clients.hooks["holds"]:
            stays = self.axis.map(self.views.holds(p), inputs.lane)
            for place, name in enumerate(names):
                for t in (group[place] for group in groups if name in stays):
                    stays_G = self.axis.first(stays[name], step.active)
                    broadcastable = [*stays_G.shape, *[1] * (t.dim() - stays_G.dim())]
                    tensors.append((t, t.clone(), stays_G.reshape(broadcastable)))
        return tensors
