"""One training step in which every sample has a gradient of its own, as differential privacy of samples needs it.

Each sample trains in a lane of its own: B samples of G clients are B G lanes with batches of one, whose gradients a Part
sees one by one (`sample_grad`) before they are added up in float64, get noise, and are divided by the expected number of samples.
Letters: B batch, G lanes, S = B G samples, the first of every client before the second of any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unskew.core.trees import Tree, Weights, tree_map
from unskew.core.values import Noise, noisy
from unskew.engine.client.axis import Many
from unskew.engine.client.clients import Clients
from unskew.engine.client.kernels import Kernels, within
from unskew.engine.client.lanes import LaneViews
from unskew.engine.client.loss import ClientLoss, StepInputs
from unskew.engine.client.schedule import Step
from unskew.engine.client.transfer import on_device
from unskew.engine.precision import BF16

OF_ALL = ("rows", "rows_weight", "round")
"""Leaves of a lane's table that no hook may read here: they tell of other samples. So do `counts`, which
`LaneViews` hides."""


class SamplesApart:
    """Called with a step, its rows [S], samples [S, ...], weights and inputs, returns ([G] losses summed over samples, noisy
    gradients by name [G, ...]).

    names: the client of every lane."""

    def __init__(
        self, clients: Clients, views: LaneViews, laws: Mapping[str, Mapping[str, Noise]], names: Sequence[int]
    ):
        assert clients.apart is not None
        self.clients, self.views, self.part, self.laws, self.names = clients, views, clients.apart, laws, names
        self.kernels = Kernels(folded=True, rounded=clients.training.precision == BF16)
        self.loss = Many().loss(ClientLoss(clients, views, self.kernels))

    def __call__(
        self, step: Step, rows: Tensor, x: Tensor, leaves: Weights, given: StepInputs
    ) -> tuple[Tensor, Weights]:
        B, G, learnt = step.size, step.width, self.clients.learnt
        lanes = given.lane["n"].dim() > 0  # else there is one client, without an axis of lanes

        def spread(t: Tensor) -> Tensor:
            """[G, ...] -> [S, ...], a copy for every sample."""
            stacked = t if lanes else t[None]
            return stacked[None].expand(B, *stacked.shape).reshape(B * G, *stacked.shape[1:])

        def apart(t: Tensor) -> Tensor:
            """[G, B, ...] -> [S, 1, ...]"""
            stacked = t if lanes else t[None]
            return stacked.transpose(0, 1).reshape(B * G, 1, *stacked.shape[2:])

        w = {n: spread(t.detach()).requires_grad_(n in learnt) for n, t in leaves.items()}
        lane: Tree = tree_map(spread, {n: v for n, v in given.lane.items() if n not in OF_ALL}) | {"round": {}}
        weight_S = apart(given.weight)
        noise = {
            part: {name: (apart if law.per_sample else spread)(given.noise[part][name]) for name, law in laws.items()}
            for part, laws in self.laws.items()
        }
        inputs = StepInputs(
            self.clients.samples.y.index_select(0, rows)[:, None],
            weight_S,
            noise,
            tuple(map(apart, given.dropout)),
            lane,
        )
        with within(self.clients.net, self.kernels):
            loss_S = self.loss(w, x[None], inputs)
        grads = torch.autograd.grad(loss_S.sum(), [w[n] for n in learnt], allow_unused=True)
        g = {n: torch.zeros_like(w[n]) if v is None else v for n, v in zip(learnt, grads)}
        with torch.no_grad():
            g = torch.func.vmap(self._sample_grad)(g, lane)
            expected_G = spread(given.lane["n"])[:G].clamp(max=self.clients.training.recipe.batch)
            means = {
                n: self._noisy(n, self._sum(t, weight_S, B, G), step) / _per_lane(expected_G, t) for n, t in g.items()
            }
            loss_G = (loss_S.detach() * weight_S[:, 0]).reshape(B, G).sum(0)
            return loss_G, {n: t.to(w[n].dtype) for n, t in means.items()}

    def _noisy(self, name: str, total: Tensor, step: Step) -> Tensor:
        """[G, ...]: the sums of a weight's gradients with the noise of each lane's own step."""
        normal = self.clients.chance.normal(self.views.start.t, self.part.name)
        shape = tuple(total.shape[1:])
        drawn = [normal(shape, f"{client} {local} {name}") for client, local in zip(self.names, step.local_G)]
        return noisy(total, self.part.step_noise, on_device(torch.stack(drawn), total.device))

    def _sample_grad(self, g: Weights, lane: Tree) -> Weights:
        return self.part.sample_grad(g, self.views.client(self.part, lane, {}))

    @staticmethod
    def _sum(t: Tensor, weight_S: Tensor, B: int, G: int) -> Tensor:
        """[S, ...] -> [G, ...], float64: over samples, without padding."""
        counted = torch.where(weight_S.reshape(-1, *[1] * (t.dim() - 1)) > 0, t, 0.0)
        return counted.reshape(B, G, *t.shape[1:]).sum(0, dtype=torch.float64)


def _per_lane(values_G: Tensor, like: Tensor) -> Tensor:
    return values_G.reshape(-1, *[1] * (like.dim() - 1))
