"""The local training of the clients of one chunk, from what they were sent to their replies.

A chunk is a group of clients that train together; each has one lane, a place on the first axis of stacked tensors (see
`axis` and `schedule`). Every step is one call of the loss, one backward pass and one step of the optimiser for all of
them. Letters: B batch, G lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from unskew.core.keys import key
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.engine.client import optimise
from unskew.engine.client.axis import Axis
from unskew.engine.client.clients import Clients
from unskew.engine.client.dropout import DropoutMasks, own_draws
from unskew.engine.client.kernels import Kernels, within
from unskew.engine.client.lanes import LaneViews, lane_table
from unskew.engine.client.loss import ClientLoss, StepInputs
from unskew.engine.client.noise import NoiseTables
from unskew.engine.client.rules import rules_of_hooks
from unskew.engine.client.schedule import Chunk, Step, steps
from unskew.engine.client.values import Start


class Update:
    """One local update of the clients of a chunk; `run` it once.

    private: the private state of the clients that have one; then, a list with that of every lane.
    steps: the chunk's batches in order. weights, lane_table: stacked over lanes; what the table holds says `lane_table`.
    loss_sum: [G], of each lane's training loss, summed over samples.
    """

    def __init__(self, clients: Clients, axis: Axis, chunk: Chunk, start: Start, private: Mapping[int, Tree]):
        self.clients, self.axis, self.chunk, self.device = clients, axis, chunk, clients.device
        # a client that trains alone may have a second lane as filler; only those of `chunk.work` get a reply
        work, training = axis.work(chunk), clients.training
        self.private = [clients.private_state(private.get(w.client), start) for w in work]
        orders = {w.client: clients.orders(w.client, start.t) for w in work}
        self.steps = [axis.widened(step) for step in steps(chunk, orders, training.recipe)]
        self.weights = axis.stack_weights([clients.held_weights(start, state) for state in self.private])
        self.lane_table = lane_table(clients, axis, work, self.private)
        self.noise = NoiseTables(clients, start, work)
        drops_out = bool(clients.mask_shapes)
        generators = [key(clients.fed.seed, start.t, w.client, "dropout") for w in work] if drops_out else []
        self.dropout = DropoutMasks(clients.mask_shapes, chunk, generators)
        self.kernels = Kernels(axis.folded, frozen=chunk.frozen)
        self.views = LaneViews(clients, start)
        self.loss = axis.loss(ClientLoss(clients, self.views, self.kernels))
        self.optimiser = optimise.optimiser(training.optimiser, start.lr, training.momentum, training.weight_decay)
        self.loss_sum = torch.zeros(len(work), device=self.device)

    def run(self) -> list[Reply]:
        """Train, and return one reply a client."""
        fed, first_client = self.clients.fed, self.chunk.work[0].client
        with own_draws(fed.net, self.device, fed.seed, self.views.start.t, first_client, "model"):
            return self._trained()

    def _trained(self) -> list[Reply]:
        hooks, views, axis = self.clients.hooks, self.views, self.axis
        with rules_of_hooks(), within(self.clients.net, self.kernels):
            with torch.no_grad():
                begun = {p.name: axis.map(views.begin(p), self.weights, self.lane_table) for p in hooks["begin"]}
            self.lane_table["round"] = begun
            self._train()
            with torch.no_grad():
                finished = {p.name: axis.map(views.finish(p), self.weights, self.lane_table) for p in hooks["finish"]}
        return [self._reply(g, finished) for g in range(len(self.chunk.work))]

    def _train(self) -> None:
        self.optimiser.start([self.weights[n] for n in self.clients.learnt])
        # one copy to the device for all steps
        rows = np.concatenate([step.rows_GB.T.ravel() for step in self.steps])
        sizes = [step.rows_GB.size for step in self.steps]
        for step, index in zip(self.steps, torch.as_tensor(rows, device=self.device).split(sizes)):
            self._step(step, index)

    def _step(self, step: Step, index: Tensor) -> None:
        """index: the rows of the step's samples, one client after another for each place in the batch."""
        axis, samples, learnt = self.axis, self.clients.samples, self.clients.learnt
        leaves = self._leaves(step)
        step_inputs = self._inputs(step, axis.targets(samples.y.index_select(0, index), step))
        self.kernels.padded = axis.padded(step)
        loss = self.loss(leaves, axis.inputs(samples.x.index_select(0, index), step), step_inputs)
        grads = torch.autograd.grad(loss.sum(), [leaves[n] for n in learnt], allow_unused=True)
        with torch.no_grad():
            self._descend(step, leaves, grads, step_inputs.lane)
            samples_G = step_inputs.weight.sum(-1).reshape(-1)  # without an axis of lanes it is a scalar
            self.loss_sum[: step.active] += (loss.detach().reshape(-1) * samples_G)[: step.active]

    def _leaves(self, step: Step) -> Weights:
        """The weights as this step's lanes read them; those that learn are leaves of the graph."""
        leaves = {n: self.axis.first(t, step.width) for n, t in self.weights.items()}
        if step.width > step.active:  # layers change running statistics in place, but not the filler's: a copy
            leaves |= {n: leaves[n].clone() for n in self.clients.fed.net.buffers}
        return leaves | {n: leaves[n].detach().requires_grad_() for n in self.clients.learnt}

    def _inputs(self, step: Step, y: Tensor) -> StepInputs:
        """Targets, weights of samples, noise, dropout and lane table of this step."""
        axis, device = self.axis, self.device
        if step.weight_GB is None:
            weight = torch.ones((step.width, step.size), device=device)
        else:
            weight = torch.as_tensor(step.weight_GB, device=device)
        noise = tree_map(axis.fit, self.noise.at(step))
        dropout = tuple(axis.fit(numbers.to(device)) for numbers in self.dropout.at(step))
        lane = tree_map(lambda t: axis.first(t, step.width), self.lane_table)
        return StepInputs(y, axis.fit(weight), noise, dropout, lane)

    def _descend(self, step: Step, leaves: Weights, grads: Sequence[Tensor | None], lane: Tree) -> None:
        """Let the Parts change the gradients, then move the weights of the clients that take this step."""
        first_lanes, learnt, active = self.axis.first, self.clients.learnt, step.active
        g = {n: torch.zeros_like(leaves[n]) if v is None else v for n, v in zip(learnt, grads)}
        for p in self.clients.hooks["grad"]:
            g = self.axis.map(self.views.grad(p), g, leaves, lane)
        w = [first_lanes(self.weights[n], active) for n in learnt]
        state = [[first_lanes(t, active) for t in group] for group in self.optimiser.state]
        self.optimiser.step(w, [first_lanes(g[n], active) for n in learnt], state, step.local_G[:active])
        if step.width > active:  # the copies of `_leaves` hold the new running statistics
            for n in self.clients.fed.net.buffers:
                self.weights[n][:active] = leaves[n][:active]

    def _reply(self, g: int, finished: Mapping[str, tuple[Tree, Tree]]) -> Reply:
        """finished: what each Part's `finish` returned, (shares, private slice), stacked."""
        clients, work = self.clients, self.chunk.work[g]
        select_lane = partial(tree_map, lambda t: self.axis.lane(t, g))
        w = {n: self.axis.lane(t, g).contiguous() for n, t in self.weights.items()}
        private: Tree = {n: t for n, t in self.private[g].items() if n != "kept"}
        private |= {name: select_lane(mine) for name, (_, mine) in finished.items()}
        if clients.kept:
            private["kept"] = {n: w[n] for n in clients.kept}
        return Reply(
            client=work.client,
            size=float(work.n),
            weights={n: w[n] for n in clients.sent},
            shares={name: select_lane(shares) for name, (shares, _) in finished.items()},
            private={name: state for name, state in private.items() if state},
            loss=self.loss_sum[g] / work.samples_seen(clients.training.recipe),
        )
