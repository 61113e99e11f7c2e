"""The hooks of a training step that few methods need (`core/special_hooks.StepHooks`): `perturb` moves the
weights at which the gradient is taken, `holds` keeps weights constant, `carry` passes values on to the next
step.

Letters: G lanes, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from unskew.core.part import Part
from unskew.core.trees import Tree, Weights, flat_tree
from unskew.errors import UsageError
from unskew.round.chunks import Step
from unskew.round.clients import Clients
from unskew.round.lane_views import Axis, LaneViews
from unskew.round.loss import StepInputs

Gradients: TypeAlias = Sequence[Tensor | None]
"""Gradients in the order of `Clients.learnt`; None for weights that the loss does not reach or that rest."""


def whole_gradients(clients: Clients, leaves: Weights, grads: Gradients) -> Weights:
    """The gradients by name; zeros in place of None."""
    return {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(clients.learnt, grads)}


@dataclass(frozen=True)
class Perturbation:
    """The gradients of a step at the weights that a Part's `perturb` returns.

    gradients_at: from weights, x and inputs to (loss, gradients). Weights that other Parts keep at the client
    have the gradients and running statistics of a pass at the step's own weights.
    """

    part: Part
    clients: Clients
    axis: Axis
    views: LaneViews
    gradients_at: Callable[[Weights, Tensor, StepInputs], tuple[Tensor, Gradients]]

    def __call__(
        self, leaves: Weights, x: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Gradients, StepInputs]:
        """(loss, gradients, inputs); if the Part climbs, the inputs also hold the gradients of earlier
        passes."""
        if self.part.climbs:
            return self._climbed(leaves, x, inputs)
        point, hidden = self._point({}, leaves, inputs), self.clients.hidden[self.part.name]
        if not hidden:
            return *self.gradients_at(point, x, inputs), inputs
        copies = self._statistics(leaves)
        kept = {n: t for n, t in copies.items() if n in hidden}
        loss, grads = self.gradients_at(point | kept, x, inputs)
        common = {n: t for n, t in copies.items() if n not in hidden}
        apart = self.gradients_at(leaves | common, x, inputs)[1]
        return loss, self._mixed(grads, apart), inputs

    def _climbed(
        self, leaves: Weights, x: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Gradients, StepInputs]:
        """The loss and the running statistics are those of the first pass, at the step's weights."""
        loss, first = self.gradients_at(leaves, x, inputs)
        grads = first
        seen: Tree = {}
        for climb in range(self.part.climbs):
            seen = seen | {str(climb): whole_gradients(self.clients, leaves, grads)}
            inputs = inputs._replace(lane=inputs.lane | {"seen": seen})
            point = self._point(seen[str(climb)], leaves, inputs)
            grads = self.gradients_at(point | self._statistics(leaves), x, inputs)[1]
        return loss.detach(), self._mixed(grads, first), inputs

    def _point(self, g: Weights, leaves: Weights, inputs: StepInputs) -> Weights:
        """The weights that `perturb` returns. Raises UsageError (E127) if it leaves out a trained weight."""
        p, learnt = self.part, self.clients.learnt
        with torch.no_grad():
            w = self.axis.map(self.views.perturb(p), g, leaves, inputs.lane, inputs.noise.get(p.name, {}))
        if missing := [n for n in learnt if n not in w]:
            text = f"'{p.name}' does not say where the gradient of '{missing[0]}' is taken"
            raise UsageError("E127", f"{text}; `perturb` returns all weights that learn, changed or not.")
        return leaves | {n: w[n].detach().requires_grad_() for n in learnt}

    def _statistics(self, leaves: Weights) -> Weights:
        """Copies of the running statistics, which a pass may change."""
        return {n: leaves[n].clone() for n in self.clients.fed.net.statistics}

    def _mixed(self, grads: Gradients, own: Gradients) -> Gradients:
        """The gradients, with those of `own` for weights that other Parts keep at the client."""
        hidden: Collection[str] = self.clients.hidden[self.part.name]
        return [h if n in hidden else g for n, g, h in zip(self.clients.learnt, grads, own)]


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


@contextmanager
def held_weights(
    clients: Clients,
    axis: Axis,
    views: LaneViews,
    step: Step,
    by_name: Mapping[str, Sequence[Tensor]],
    lane: Tree,
) -> Iterator[None]:
    """A context that undoes changes of weights in the lanes in which a Part's `holds` keeps them constant.
    by_name: by weight, it and its state in the optimiser."""
    held: list[tuple[Tensor, Tensor, Tensor]] = []
    for p in clients.hooks["holds"]:
        stays = axis.map(views.holds(p), lane)
        for name in [n for n in by_name if n in stays]:
            stays_G = axis.first(stays[name], step.active)
            for t in by_name[name]:
                lanes = stays_G.reshape([*stays_G.shape, *[1] * (t.dim() - stays_G.dim())])
                held.append((t, t.clone(), lanes))
    yield
    for t, before, lanes in held:
        t.copy_(torch.where(lanes, before, t))


def carry(
    p: Part, axis: Axis, views: LaneViews, step: Step, g: Weights, w: Weights, table: Tree, inputs: StepInputs
) -> None:
    """Replace leaves of `c.round` in the lane table by what the Part's `carry` returns, in the lanes that
    take the step."""
    result = axis.map(views.carry(p), g, w, inputs.lane, inputs.noise.get(p.name, {}))
    # copies, because a new value may be the old value of another leaf
    values = {path: axis.first(t, step.active).clone() for path, t in flat_tree(result).items()}
    places = flat_tree(table["round"].get(p.name, {}))
    for path, t in values.items():
        axis.first(places[path], step.active).copy_(t)
