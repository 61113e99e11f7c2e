"""One client's loss at one step: the task's loss, and what every Part adds to it.

Written for one client; the axis runs it for all clients of a chunk at once. Letters: B batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from unskew.core.client import Batch, Client, Out, replace_fields
from unskew.core.trees import Tree, Weights
from unskew.errors import UsageError
from unskew.round.clients import Clients
from unskew.round.lane_views import LaneViews
from unskew.round.layer_kernels import Kernels


class StepInputs(NamedTuple):
    """A client's inputs at one step in addition to its weights and x.

    y: targets. weight: [B], 1 for a sample and 0 for padding. noise: by Part and name. dropout: the uniform
    numbers of each dropout layer. lane: the client's lane of the chunk's table. importance: one tensor [B],
    the samples' weights in the loss, or none.
    """

    y: Tensor
    weight: Tensor
    noise: dict[str, dict[str, Tensor]]
    dropout: tuple[Tensor, ...]
    lane: Tree
    importance: tuple[Tensor, ...] = ()


class ClientLoss:
    """A function of one client's weights, x and `StepInputs`: its mean loss over the batch, a scalar."""

    def __init__(self, clients: Clients, views: LaneViews, kernels: Kernels):
        self.clients, self.views, self.kernels = clients, views, kernels

    def __call__(self, w: Weights, x: Tensor, inputs: StepInputs) -> Tensor:
        clients, hooks, w = self.clients, self.clients.hooks, self.views.whole(w)
        views = {
            p.name: self.views.client(p, inputs.lane, inputs.noise.get(p.name, {}))
            for p in clients.method.parts
        }
        batch = Batch(x, inputs.y, inputs.weight, importance=next(iter(inputs.importance), None))
        for p in hooks["batch"]:
            batch = p.batch(batch, views[p.name])
        forward = ForwardPass(clients, self.kernels, views, batch, inputs)
        logits, raw, features = forward.run(w, batch.x, dict.fromkeys(clients.cuts, forward.tap))
        forward.check_labels()
        out = Out(logits, raw, features, batch, forward.before, forward.after)
        batch = forward.batch  # with the labels that taps may have changed
        loss = batch.mean(clients.fed.task.loss(logits, batch.y))
        for p in hooks["loss"]:
            c = replace_fields(views[p.name], slopes=forward.slope, passes=forward.again)
            loss = loss + p.loss(self.views.seen(p, w), out, batch, c)
        return loss


class ForwardPass:
    """A client's training pass through the model at one step, with the Parts' hooks `tap` and `logits`.

    views: each Part's `Client`. batch: the batch that enters the model; taps replace it. before, after: the
    activation at each tapped cut, before and after the Parts changed it. relabelled: by cut, the Part that
    changed labels there.
    """

    def __init__(
        self, clients: Clients, kernels: Kernels, views: dict[str, Client], batch: Batch, inputs: StepInputs
    ):
        self.clients, self.kernels, self.views = clients, kernels, views
        self.batch, self.inputs = batch, inputs
        self.before: dict[str, Tensor] = {}
        self.after: dict[str, Tensor] = {}
        self.relabelled: dict[str, str] = {}

    def run(self, w: Weights, x: Tensor, taps: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, logits before the Parts changed them, features)."""
        with self.kernels.training(self.inputs.weight, self.inputs.dropout):
            raw, features = self.clients.net.run(w, x, train=True, taps=taps)
        logits = raw
        for p in self.clients.hooks["logits"]:
            logits = p.logits(logits, self.batch, self.views[p.name])
        return logits, raw, features

    def tap(self, cut: str, h: Tensor) -> Tensor:
        """The activation at a cut after the Parts' `tap`."""
        self.before[cut] = h
        for p in self.clients.hooks["tap"]:
            h, batch = p.tap(cut, h, self.batch, self.views[p.name])
            if batch.y is not self.batch.y:
                self.relabelled[cut] = p.name
            self.batch = batch
        self.after[cut] = h
        return h

    def check_labels(self) -> None:
        """Raises UsageError (E108) if a Part changed labels at a cut that some path of the model avoids."""
        for cut, name in self.relabelled.items():
            if not self.clients.net.goes_on(cut):
                text = f"'{name}' cannot run here: it changes labels with what lies at '{cut}', and a part of"
                text = f"{text} every sample passes that by; cut the model where all of it meets."
                raise UsageError("E108", text)

    def again(self, w: Weights, x: Tensor, since: str | None, until: str | None) -> Tensor:
        """The output of a further pass in training mode, from the input or a cut to the logits, a cut or
        "features"."""
        left_out = 0 if since is None else self.clients.masks_before[since]
        with self.kernels.training(self.inputs.weight, self.inputs.dropout[left_out:]):
            cut = None if until == "features" else until
            output, features = self.clients.net.run(w, x, since=since, until=cut, train=True)
        return features if until == "features" else output

    def slope(self, w: Weights, batch: Batch) -> Tensor:
        """The derivative of the batch's mean loss at x, along the direction `batch.along`."""
        if batch.along is None:
            raise RuntimeError("slope() needs a batch with a direction: batch.replace(along=...)")

        def loss_at(x: Tensor) -> Tensor:
            return batch.mean(self.clients.fed.task.loss(self.run(w, x, {})[0], batch.y))

        with self.kernels.differentiating():
            return (torch.func.grad(loss_at)(batch.x) * batch.along).sum()
