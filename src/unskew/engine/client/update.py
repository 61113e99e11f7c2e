"""The local training of the clients of one chunk, from what they were sent to their replies.

A chunk is a group of clients that train together; each has one lane, a place on the first axis of stacked tensors (see
`axis` and `schedule`). Letters: G lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from unskew.core import encoding
from unskew.core.client import changed
from unskew.core.keys import key
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.engine.client import optimise
from unskew.engine.client.axis import Axis
from unskew.engine.client.clients import Clients
from unskew.engine.client.dropout import DropoutMasks, own_draws
from unskew.engine.client.kernels import Kernels, within
from unskew.engine.client.lanes import LaneViews, lane_table, sent_table
from unskew.engine.client.noise import NoiseTables
from unskew.engine.client.padding import Padding
from unskew.engine.client.replays import Replays
from unskew.engine.client.rules import rules_of_hooks
from unskew.engine.client.schedule import Chunk, Step, steps, steps_apart, widths
from unskew.engine.client.step import LaneState, LaneStep, Steps
from unskew.engine.client.sums import Release, with_sums, within_bounds
from unskew.engine.client.values import Start
from unskew.engine.precision import BF16


class Update:
    """One local update of the clients of a chunk; `run` it once.

    private: the private state of the clients that have one; then, a list with that of every lane.
    steps: the chunk's batches, and the tensors that they read and change.
    """

    def __init__(self, clients: Clients, axis: Axis, chunk: Chunk, start: Start, private: Mapping[int, Tree]):
        self.clients, self.axis, self.chunk, self.start = clients, axis, chunk, start
        # a client that trains alone may have a second lane as filler; only those of `chunk.work` get a reply
        work, training = axis.work(chunk), clients.training
        self.recipe = training.recipe_in(start.t)
        sent = [start.to(w.client) for w in work]
        self.private = [clients.private_state(private.get(w.client), to) for w, to in zip(work, sent)]
        plan = [axis.widened(step) for step in self._plan()]
        drops_out = bool(clients.mask_shapes)
        streams = {w.client: clients.stream(start.t, w.client) for w in work}
        generators = [key(streams[w.client], start.t, w.client, "dropout") for w in work] if drops_out else []
        dropout = DropoutMasks(clients.mask_shapes, chunk, generators)
        self.state = LaneState(
            axis.stack_weights([clients.lane_weights(to, state) for to, state in zip(sent, self.private)]),
            lane_table(clients, axis, work, self.private, start.t)
            | {"sent": sent_table(axis, sent) if start.own else {}},
            NoiseTables(clients, start, work, streams, widths(chunk, plan)),
            optimise.optimiser(training.optimiser, self._rate(), training.momentum, training.weight_decay),
            torch.zeros(len(work), device=clients.device),
        )
        self.steps = Steps(clients, axis, start, plan, dropout, chunk.frozen, self.state)
        self.kernels = Kernels(axis.folded, chunk.frozen, training.precision == BF16)
        self.views = LaneViews(clients, start)
        self.padding = Padding(clients)

    def _plan(self) -> list[Step]:
        """The chunk's steps: epochs in shuffled order, or samples drawn one by one."""
        clients, t, recipe = self.clients, self.start.t, self.recipe
        if recipe.apart:
            return steps_apart(self.chunk, {w.client: clients.drawn(w, t) for w in self.chunk.work}, recipe)
        return steps(self.chunk, {w.client: clients.orders(w.client, t) for w in self.chunk.work}, recipe)

    def run(self, replays: Replays | None = None) -> list[Reply]:
        """Train, and return one reply a client. replays: on a GPU, the steps recorded so far."""
        fed, first_client = self.clients.fed, self.chunk.work[0].client
        with own_draws(fed.net, self.clients.device, fed.seed, self.start.t, first_client, "model"):
            return self._trained(None if fed.net.draws or self.clients.apart else replays)

    def _trained(self, replays: Replays | None) -> list[Reply]:
        hooks, views, axis, state = self.clients.hooks, self.views, self.axis, self.state
        with rules_of_hooks(), within(self.clients.net, self.kernels):
            with torch.no_grad():
                begun = {p.name: self._passed(p, "begin", views.begin(p)) for p in hooks["begin"]}
                for p in hooks["carry"]:  # what steps change must be no part of anything else
                    begun[p.name] = tree_map(torch.clone, begun.get(p.name, {}))
                state.lane_table["round"] = begun
                for p in hooks["starts"]:
                    self._start_at(axis.map(views.starts(p), state.weights, state.lane_table))
            state.start_optimiser(self.clients)
            if replays:
                replays.train(self.steps)
            else:
                self._train()
            with torch.no_grad():
                finished = {p.name: self._finished(p) for p in hooks["finish"]}
                sent = state.weights
                for p in hooks["sends"]:
                    sent = axis.map(views.sends(p), sent, state.lane_table)
        return [self._reply(g, finished, sent) for g in range(len(self.chunk.work))]

    def _start_at(self, weights: Weights) -> None:
        """Put in what a Part's `starts` returned."""
        for n, t in weights.items():
            self.state.weights[n].copy_(t)

    def _passed(self, p: Part, name: str, hook: Callable[..., Any]) -> Any:
        """What a hook makes that may pass over the clients' data."""
        state = self.state
        result = self.axis.map(hook, state.weights, state.lane_table)
        self.padding.check_pass(p, name, state.lane_table, result, lambda t: self.axis.map(hook, state.weights, t))
        return result

    def _finished(self, p: Part) -> tuple[Tree, Tree]:
        """What the Part's `finish` returned, (shares, private slice), both stacked.

        Where a Part protects samples it is one client after the other, each with noisy sums in place of samples.
        """
        clients, views, axis, state = self.clients, self.views, self.axis, self.state
        if clients.apart is None:
            return self._passed(p, "finish", views.finish(p))
        release = Release(p.name, "finish", p.totals["finish"])
        shared, kept = [], []
        for g, work in enumerate(self.chunk.work):
            w, lane = (tree_map(lambda t: axis.lane(t, g), tree) for tree in (state.weights, state.lane_table))  # noqa: B023
            c = with_sums(clients, views.client(p, lane, {}), work.client, self.start, release)
            shares, mine = p.finish(views.whole(w), c)
            shared.append(within_bounds(shares, p.shares(clients.facts)))
            kept.append(mine)
        return axis.stack(shared), axis.stack(kept)

    def _rate(self) -> float | torch.Tensor:
        """The learning rate, on a GPU as the tensor that recorded steps read, so that these have the bits of any other."""
        device = self.clients.device
        return self.start.lr if device.type == "cpu" else torch.full((), self.start.lr, device=device)

    def _train(self) -> None:
        step = LaneStep(self.clients, self.axis, self.views, self.kernels, self.state)
        self.padding.check_step(step, self.steps.plan, self.clients.mask_shapes)
        for plan, feed in zip(self.steps.plan, self.steps.feeds()):
            step(plan, feed)

    def _reply(self, g: int, finished: Mapping[str, tuple[Tree, Tree]], sent: Weights) -> Reply:
        """finished: what each Part's `finish` returned, (shares, private slice); sent: the weights to send. Both stacked."""
        clients, work = self.clients, self.chunk.work[g]
        select_lane = partial(tree_map, lambda t: self.axis.lane(t, g))
        w = {n: self.axis.lane(t, g).contiguous() for n, t in sent.items() if n in clients.sent}
        private: Tree = {n: t for n, t in self.private[g].items() if n != "kept"}
        private |= {name: select_lane(mine) for name, (_, mine) in finished.items()}
        if clients.kept:
            private["kept"] = {n: self.axis.lane(self.state.weights[n], g).contiguous() for n in clients.kept}
        reply = Reply(
            client=work.client,
            size=float(work.n),
            weights={n: w[n] for n in clients.sent},
            shares={name: select_lane(shares) for name, (shares, _) in finished.items()},
            private={name: state for name, state in private.items() if state},
            loss=0.0 if clients.withholds_loss else self.state.loss_sum[g] / work.samples_seen(self.recipe),
        )
        return self._encoded(g, reply) if clients.method.encoder else reply

    def _encoded(self, g: int, reply: Reply) -> Reply:
        """The reply as it leaves where a Part encodes weights; one client at a time, whatever the lanes."""
        part = self.clients.method.encoder
        assert part is not None
        lane = tree_map(lambda t: self.axis.lane(t, g), self.state.lane_table)
        c = changed(self.views.client(part, lane, {}), mine=reply.private.get(part.name, {}))
        with torch.no_grad():
            return encoding.encoded(part, c, reply)
