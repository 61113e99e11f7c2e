"""One training step of all lanes of a chunk: the loss, a backward pass, the Parts' changes of gradients, the
optimiser.

A step reads only tensors on the device and changes them in place, so that a GPU can replay it
(`cuda_graphs`). Letters: B batch, G lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew.core.trees import Tree, Weights, tree_map
from unskew.errors import UsageError
from unskew.round.chunks import Step
from unskew.round.clients import Broadcast, Clients
from unskew.round.lane_views import Axis, LaneViews
from unskew.round.layer_kernels import DropoutMasks, Kernels
from unskew.round.loss import ClientLoss, StepInputs
from unskew.round.noise import NoiseTables
from unskew.round.optimisers import Optimiser
from unskew.round.sample_privacy import PerSampleGradients
from unskew.round.samples import Feed, feeds
from unskew.round.step_hooks import Gradients, Perturbation, carry, held_weights, whole_gradients

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
        """The feed of each step, in order."""
        return feeds(self.plan, self.clients.samples, self.dropout)


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
        axis, samples, learnt = self.axis, self.clients.samples, self.clients.learnt
        leaves = self._leaves(step)
        inputs = self._inputs(step, feed, axis.targets(samples.y.index_select(0, feed.rows), step))
        self.kernels.padded = axis.padded(step)
        x = feed.inputs(samples)
        grads: Gradients
        if self.apart:  # from the separate gradient of every sample
            loss_G, means = self.apart(step, feed.rows, x, leaves, inputs)
            grads = [axis.fit(means[n]) for n in learnt]
        else:
            loss, grads, inputs = self._gradients(step, leaves, axis.inputs(x, step), inputs)
            samples_G = inputs.weight.sum(-1).reshape(-1)  # without an axis of lanes it is a scalar
            loss_G = loss.detach().reshape(-1) * samples_G
        with torch.no_grad():
            self._descend(step, feed, leaves, grads, inputs)
            self.state.loss_sum[: step.active] += loss_G[: step.active]

    def _gradients(
        self, step: Step, leaves: Weights, x: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Gradients, StepInputs]:
        """(loss, gradients of the trained weights, inputs), at the weights that a Part's `perturb` returns,
        if any; the inputs then also hold the gradients of earlier passes."""
        for p in self.clients.hooks["perturb"]:
            return Perturbation(p, self.clients, self.axis, self.views, self._gradients_at)(leaves, x, inputs)
        return *self._gradients_at(leaves, x, inputs, step.resting), inputs

    def _gradients_at(
        self, leaves: Weights, x: Tensor, inputs: StepInputs, resting: frozenset[str] = frozenset()
    ) -> tuple[Tensor, Gradients]:
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

    def _descend(self, step: Step, feed: Feed, leaves: Weights, grads: Gradients, inputs: StepInputs) -> None:
        """Let the Parts change the gradients, update the weights of the lanes that take this step, and let
        the Parts carry values to the next."""
        first_lanes, active, state = self.axis.first, step.active, self.state
        g = whole_gradients(self.clients, leaves, grads)
        for p in self.clients.hooks["grad"]:
            g = self.axis.map(self.views.grad(p), g, leaves, inputs.lane, inputs.noise.get(p.name, {}))
        moving = [(i, n) for i, n in enumerate(self.clients.learnt) if n not in step.resting]
        w = [first_lanes(state.weights[n], active) for _, n in moving]
        groups = [[first_lanes(group[i], active) for i, _ in moving] for group in state.optimiser.state]
        by_name = {n: tensors for (_, n), *tensors in zip(moving, w, *groups)}
        with held_weights(self.clients, self.axis, self.views, step, by_name, inputs.lane):
            if w:
                gradients = [first_lanes(g[n], active) for _, n in moving]
                state.optimiser.step(w, gradients, groups, feed.local[:active])
        if step.width > active:  # the copies of `_leaves` hold the new running statistics
            for n in self.clients.fed.net.statistics:
                state.weights[n][:active] = leaves[n][:active]
        for p in self.clients.hooks["carry"]:
            w_next = {n: first_lanes(t, step.width) for n, t in state.weights.items()}
            carry(p, self.axis, self.views, step, g, w_next, state.lane_table, inputs)
